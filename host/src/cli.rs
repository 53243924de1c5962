//! The command line, with one file for each subcommand.
//!
//! `serve` runs the server. `vault rotate`, `vault seal`, `key recover` and `audit accept-loss` change the data folder
//! of a stopped server. These commands need no server: `plugin new`, `validate`, `test`, `dev`, `schema` and `pack`,
//! `registry index`, `doctor`, `sandbox doctor` and `template`, `completions`, and `audit verify --data-dir`. All other
//! commands are clients of the API. Results go to standard output, progress and errors to standard error.

#![expect(clippy::doc_markdown, reason = "help texts are not Markdown")]

mod approval;
mod audit;
mod binding;
mod bot;
mod browser;
mod budget;
mod call;
mod client;
mod completions;
mod configuration;
mod console;
mod credential;
mod delivery;
mod doctor;
mod event;
mod failure;
mod fields;
mod folder;
mod key;
mod logs;
mod mcp;
mod monthly_usage;
mod names;
mod oauth;
mod objects;
mod output;
mod params;
mod platform;
mod plugin;
mod registry;
mod resource;
mod role;
mod sandbox;
mod schedule;
mod serve;
mod session;
mod stream;
mod subscription;
mod task;
mod trust;
mod usage;
mod vault;
mod webhook;
mod why;
mod workflow;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use monstrum_types::Secret;

use crate::config::{DatabaseUrl, ServeFlags, Settings};
use crate::gateway;

use failure::Failure;

/// The maximum time that the process waits for unfinished background work before it exits.
const LEFTOVERS_MAX: Duration = Duration::from_secs(1);

/// The hint for a database server that cannot be used.
const DATABASE_HINT: &str =
    "check that the database of --database-url is running and reachable, and that its user may log in";

const EXAMPLES: &str = "\
Examples:
  monstrum serve                                  run a server from ./data
  monstrum bot create helper                      create a bot
  monstrum binding create helper tracker --role reader   give the bot a resource
  monstrum call helper github_list_issues '{…}'   call a tool as the bot
  monstrum task run helper 'Triage the issues' --watch   let the bot work on an instruction
  monstrum export > configuration.yaml            write the configuration to a file
  monstrum plugin new weather                     create a new plugin
  monstrum plugin validate plugins/github         check a plugin before you install it
  monstrum plugin install github-1.0.0.mst        install a signed package
  monstrum plugin list                            list the plugins of the server
  monstrum audit list --status permission_denied  list denied calls
  monstrum logs --follow                          show each call as it ends
  monstrum why helper github_list_issues          explain whether a bot may call a tool
  monstrum doctor                                 find weak settings and broken parts
  monstrum sandbox doctor                         check whether sandboxes can run on this machine
  monstrum vault rotate                           encrypt every secret with a new master key
  monstrum key create --name ci --kind operator   create an API key
  monstrum console                                open the console in a browser";

/// Governed tools for bots: plugins run sandboxed, secrets stay with the host, every call is audited.
#[derive(Parser)]
#[command(name = "monstrum", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

/// The options of every command.
#[derive(Args, Clone)]
struct Options {
    /// The server's URL [default: http://127.0.0.1:8080]
    #[arg(long, env = "MONSTRUM_URL", value_name = "URL", global = true, help_heading = "Global options")]
    url: Option<String>,

    /// The API key; prefer MONSTRUM_KEY, because other users can see arguments [default: the key in DATA/admin.key]
    #[arg(
        long, env = "MONSTRUM_KEY", value_name = "KEY", global = true, help_heading = "Global options",
        hide_env_values = true, value_parser = secret
    )]
    key: Option<Secret>,

    /// The workspace in which a root key acts
    #[arg(long, env = "MONSTRUM_WORKSPACE", value_name = "NAME", global = true, help_heading = "Global options")]
    workspace: Option<String>,

    /// The server's data folder, which contains the root key [default: ./data]
    #[arg(long, env = "MONSTRUM_DATA_DIR", value_name = "DIR", global = true, help_heading = "Global options")]
    data_dir: Option<PathBuf>,

    /// Print JSON
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
}

/// The locations of the database and the master keys, which can be outside the data folder.
#[derive(Args, Default)]
struct FolderFlags {
    /// The database URL, if the database is not in the data folder
    #[arg(long, env = "MONSTRUM_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: Option<DatabaseUrl>,
    /// The master key file, if it is not in the data folder
    #[arg(long, env = "MONSTRUM_MASTER_KEY_FILE", value_name = "FILE")]
    master_key_file: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::Serve>),
    #[command(subcommand)]
    Bot(bot::Bot),
    #[command(subcommand)]
    Resource(resource::Resource),
    #[command(subcommand)]
    Credential(credential::Credential),
    #[command(subcommand)]
    Oauth(oauth::Oauth),
    #[command(subcommand)]
    Role(role::Role),
    #[command(subcommand)]
    Binding(binding::Binding),
    #[command(subcommand)]
    Budget(budget::Budget),
    Usage(monthly_usage::Usage),
    #[command(subcommand)]
    Workspace(workspace::Workspace),
    Export(configuration::Export),
    Apply(configuration::Apply),
    Call(Box<call::Call>),
    #[command(visible_alias = "check")]
    Why(why::Why),
    #[command(subcommand)]
    Plugin(plugin::Plugin),
    #[command(subcommand)]
    Trust(trust::Trust),
    #[command(subcommand)]
    Registry(registry::Registry),
    #[command(subcommand)]
    Task(task::Task),
    #[command(subcommand)]
    Schedule(schedule::Schedule),
    #[command(subcommand)]
    Event(Box<event::Event>),
    #[command(subcommand)]
    Subscription(Box<subscription::Subscription>),
    #[command(subcommand)]
    Delivery(delivery::Delivery),
    #[command(subcommand)]
    Webhook(Box<webhook::Webhook>),
    #[command(subcommand)]
    Workflow(workflow::Workflow),
    #[command(subcommand)]
    Session(session::Session),
    #[command(subcommand)]
    Approval(approval::Approval),
    #[command(subcommand)]
    Mcp(mcp::Mcp),
    #[command(subcommand)]
    Audit(audit::Audit),
    Logs(logs::Logs),
    #[command(subcommand)]
    Sandbox(sandbox::Sandbox),
    #[command(subcommand)]
    Key(key::Key),
    Console(console::Console),
    #[command(subcommand)]
    Vault(vault::Vault),
    #[command(subcommand)]
    Platform(platform::Platform),
    Doctor(Box<doctor::Doctor>),
    /// Print a shell completion script
    #[command(after_help = completions::EXAMPLES)]
    Completions {
        /// The shell
        #[arg(value_parser = completions::shells())]
        shell: Shell,
    },
    #[command(hide = true)]
    Names(completions::Names),
    /// Print the OpenAPI description of the API
    #[command(hide = true)]
    Openapi,
}

/// Runs the command in the process's arguments.
pub fn main() -> ExitCode {
    let parsed = Cli::command().try_get_matches();
    let parsed = parsed.and_then(|matches| Ok((is_offline(&matches), Cli::from_arg_matches(&matches)?)));
    let (is_offline, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage::report(&error, &Cli::command()),
    };
    let json = cli.options.json;
    let result = run(cli, is_offline);
    result.unwrap_or_else(|failure| failure.report(json))
}

/// Returns whether the command works on the data folder without a server. Only the flag `--data-dir` requests this
/// mode. The environment variable does not, because clients of a server use it to find the key.
fn is_offline(matches: &ArgMatches) -> bool {
    let is_given = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
    is_given("data_dir") && !is_given("url")
}

/// The size of the stacks of the worker threads: memory that only deep calls use. Without optimizations, the futures of changes
/// that lock several tables take most of the default of 2 MiB.
const STACK_BYTES: usize = 8 << 20;

fn run(cli: Cli, is_offline: bool) -> Result<ExitCode, Failure> {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        return Err(Failure::new(
            "another TLS provider is already installed in this process",
            "this is a bug; report it",
        ));
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().thread_stack_size(STACK_BYTES).build().map_err(|error| {
        Failure::of("cannot start the threads of the process", &error, "raise the limit on processes (ulimit -u)")
    })?;
    let result = runtime.block_on(async {
        let Cli { options, command } = cli;
        match command {
            Command::Serve(serve) => serve.run(&options).await,
            Command::Bot(bot) => bot.run(&options).await,
            Command::Resource(resource) => resource.run(&options).await,
            Command::Credential(credential) => credential.run(&options).await,
            Command::Oauth(oauth) => oauth.run(&options).await,
            Command::Role(role) => role.run(&options).await,
            Command::Binding(binding) => binding.run(&options).await,
            Command::Budget(budget) => budget.run(&options).await,
            Command::Usage(usage) => usage.run(&options).await,
            Command::Workspace(workspace) => workspace.run(&options).await,
            Command::Export(export) => export.run(&options).await,
            Command::Apply(apply) => apply.run(&options).await,
            Command::Call(call) => call.run(&options).await,
            Command::Plugin(plugin) => plugin.run(&options).await,
            Command::Trust(trust) => trust.run(&options).await,
            Command::Registry(registry) => registry.run(&options),
            Command::Sandbox(sandbox) => sandbox.run(&options).await,
            Command::Task(task) => task.run(&options).await,
            Command::Schedule(schedule) => schedule.run(&options).await,
            Command::Event(event) => event.run(&options).await,
            Command::Subscription(subscription) => subscription.run(&options).await,
            Command::Delivery(delivery) => delivery.run(&options).await,
            Command::Webhook(webhook) => webhook.run(&options).await,
            Command::Workflow(workflow) => workflow.run(&options).await,
            Command::Session(session) => session.run(&options).await,
            Command::Approval(approval) => approval.run(&options).await,
            Command::Mcp(mcp) => mcp.run(&options).await,
            Command::Audit(audit) => audit.run(&options, is_offline).await,
            Command::Console(console) => console.run(&options).await,
            Command::Logs(logs) => logs.run(&options).await,
            Command::Key(key) => key.run(&options).await,
            Command::Vault(vault) => vault.run(&options).await,
            Command::Platform(platform) => platform.run(&options).await,
            Command::Why(why) => why.run(&options).await,
            Command::Doctor(doctor) => doctor.run(options.json).await,
            Command::Completions { shell } => completions::print(shell, &mut Cli::command()),
            Command::Names(names) => names.run(&options, Cli::command()).await,
            Command::Openapi => output::line(gateway::description()).map(|()| ExitCode::SUCCESS),
        }
    });
    runtime.shutdown_timeout(LEFTOVERS_MAX);
    result
}

impl Options {
    /// Resolves the settings of the server that uses this data folder.
    fn settings(&self, folder: FolderFlags) -> Result<Settings, Failure> {
        let FolderFlags { database_url, master_key_file } = folder;
        let flags =
            ServeFlags { data_dir: self.data_dir.clone(), database_url, master_key_file, ..ServeFlags::default() };
        resolve(flags)
    }
}

/// Resolves `flags` over the settings file in the working directory.
fn resolve(flags: ServeFlags) -> Result<Settings, Failure> {
    Settings::resolve(flags, Path::new(""))
        .and_then(Settings::with_keys_of_environment)
        .map_err(|error| Failure::from_error(&error, "`monstrum serve --help` describes every setting and its values"))
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of a value parser")]
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_count_before_and_after_the_command() {
        for arguments in
            [["monstrum", "--url", "http://h", "plugin", "list"], ["monstrum", "plugin", "list", "--url", "http://h"]]
        {
            let cli = Cli::try_parse_from(arguments).ok().unwrap();
            assert_eq!(cli.options.url.as_deref(), Some("http://h"));
        }
    }

    #[test]
    fn the_data_folder_of_serve_is_its_own_flag() {
        let cli = Cli::try_parse_from(["monstrum", "serve", "--data-dir", "/srv/m"]).ok().unwrap();
        let Command::Serve(serve) = cli.command else { panic!("another command") };
        assert_eq!(serve.flags.data_dir.as_deref(), Some(Path::new("/srv/m")));
    }

    #[test]
    fn only_a_data_folder_on_the_command_line_means_to_work_without_a_server() {
        let cases: [(&[&str], bool); 4] = [
            (&["audit", "verify"], false),
            (&["audit", "verify", "--data-dir", "d"], true),
            (&["--data-dir", "d", "audit", "verify"], true),
            (&["audit", "verify", "--data-dir", "d", "--url", "http://h"], false),
        ];
        for (arguments, expected) in cases {
            let all = std::iter::once("monstrum").chain(arguments.iter().copied());
            let matches = Cli::command().try_get_matches_from(all).unwrap();
            assert_eq!(is_offline(&matches), expected, "{arguments:?}");
        }
    }

    #[test]
    fn every_command_shows_examples() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            if command.get_subcommands().next().is_none() && !command.is_hide_set() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:"), "{path} shows no examples");
            }
            for subcommand in command.get_subcommands() {
                check(subcommand, &path);
            }
        }
        check(&Cli::command(), "");
    }
}
