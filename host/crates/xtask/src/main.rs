//! Tasks of this repository, with one command for each task: `cargo xtask demo`, `test`, `deny`, `doc`, `plugins`,
//! `bench`, `soak`, `openapi`, `schema`, `settings`, `pictures`.
//!
//! A task first installs missing prerequisites (WebAssembly targets, and for `test` a few tools). The task then
//! announces each step; between these lines, cargo prints its own progress.

#![forbid(unsafe_code)]

mod plugins;
mod repository;
mod setup;
mod snapshots;
mod steps;
mod test;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use plugins::Kind;
use repository::Repository;
use setup::WASIP2;
use steps::{Steps, output, run};

/// Tasks of this repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    /// The build folder [default: target]
    #[arg(long, env = "CARGO_TARGET_DIR", value_name = "DIR", global = true, hide = true)]
    target_dir: Option<PathBuf>,
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a server with one bot, and show allowed, denied and stopped calls and how secrets are protected
    Demo {
        /// Keep the server running until Ctrl-C
        #[arg(long)]
        keep: bool,
    },
    /// Build and test everything
    Test {
        /// Also run the long tests, which take minutes
        #[arg(long)]
        long: bool,
    },
    /// Check licences, bans and sources of all dependencies, and advisories if their database is reachable
    Deny,
    /// Build the documentation of the crates; broken links are errors
    Doc,
    /// Build the reference plugins into target/plugins
    Plugins {
        /// Also build the test guests into target/test-plugins
        #[arg(long)]
        test: bool,
    },
    /// Benchmark a release build against its baselines
    Bench {
        /// Arguments of the benches
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run valid and hostile calls on a release build for 20 minutes, and fail on any resource growth or error; with
    /// --crash, kill the server and cut its power 1 000 times, and fail if an answer is lost
    Soak {
        /// Arguments of the soak, such as --minutes 5 or --crash --moments 200 --seed 7
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write the OpenAPI description to host/openapi.json
    Openapi,
    /// Write the manifest's JSON Schema to host/crates/manifest/monstrum.schema.json
    Schema,
    /// Write the tables of settings in docs/configuration.md
    Settings,
    /// Write the pictures of the console in docs/images/console
    Pictures,
}

/// The test that checks docs/configuration.md.
const SETTINGS_TEST: &str = "guides::configuration::every_setting_is_in_the_reference_as_the_flags_describe_it";
/// The test that compares pages of the console with the pictures in docs/images/console.
const PICTURES_TEST: &str = "console::pictures::the_pages_look_like_the_pictures";

fn main() -> ExitCode {
    let Cli { target_dir, task } = Cli::parse();
    let result = Repository::new(target_dir).and_then(|repository| match task {
        Task::Demo { keep } => demo(&repository, keep),
        Task::Test { long } => test::run_all(&repository, long),
        Task::Deny => deny(&repository),
        Task::Doc => doc(&repository),
        Task::Plugins { test } => build_plugins(&repository, test),
        Task::Bench { arguments } => {
            let all = [revision(&repository), arguments.clone()].concat();
            bench(&repository, "benches", || set_up_benches(&repository, &arguments), &all)
        }
        Task::Soak { arguments } => {
            bench(&repository, "soak", || Ok(()), &[vec!["soak".to_owned()], arguments].concat())
        }
        Task::Openapi => generate(&repository, &["openapi"], "host/openapi.json"),
        Task::Schema => generate(&repository, &["plugin", "schema"], "host/crates/manifest/monstrum.schema.json"),
        Task::Settings => settings(&repository),
        Task::Pictures => console_pictures(&repository),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            steps::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn build_plugins(repository: &Repository, with_guests: bool) -> Result<()> {
    let mut steps = Steps::new(2);
    steps.step("WebAssembly target", || setup::wasm_targets(repository, &[WASIP2]))?;
    let kinds: &[Kind] = if with_guests { &[Kind::Reference, Kind::Guest] } else { &[Kind::Reference] };
    let folders = steps.step("plugins", || plugins::build(repository, kinds))?;
    for folder in folders {
        steps::say(&folder.display().to_string());
    }
    Ok(())
}

/// The manifests of the cargo workspaces. Each workspace has separate dependencies, and releases contain the
/// dependencies of both.
const WORKSPACES: [&str; 2] = ["Cargo.toml", "plugins-wasm/Cargo.toml"];

fn deny(repository: &Repository) -> Result<()> {
    let mut steps = Steps::new(3);
    steps.step("set-up: cargo-deny", || setup::cargo_deny(repository))?;
    let check = |workspace: &str, what: &[&str]| {
        let mut cargo = repository.command("cargo");
        cargo.args(["deny", "--locked", "--manifest-path", workspace, "--config", "deny.toml", "check"]).args(what);
        run(&mut cargo)
    };
    steps.step("licences, bans and sources", || {
        WORKSPACES.iter().try_for_each(|workspace| check(workspace, &["licenses", "bans", "sources"]))
    })?;
    steps.step("advisories", || {
        // git must not ask for a password on the terminal. Without a network, the step reports a warning and succeeds,
        // because the dependencies are not at fault.
        let fetch = ["deny", "--config", "deny.toml", "fetch", "db"];
        if steps::ask(repository.command("cargo").env("GIT_TERMINAL_PROMPT", "0").args(fetch)).is_none() {
            steps::say("warning: the advisory database cannot be reached; advisories are not checked");
            return Ok(());
        }
        WORKSPACES.iter().try_for_each(|workspace| check(workspace, &["advisories"]))
    })
}

fn doc(repository: &Repository) -> Result<()> {
    let mut cargo = repository.cargo();
    // The documentation includes private items, because most of it is for readers of the source.
    cargo.args(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"]);
    cargo.env("RUSTDOCFLAGS", "-D rustdoc::broken_intra_doc_links");
    Steps::new(1).step("documentation", || run(&mut cargo))
}

fn demo(repository: &Repository, keep: bool) -> Result<()> {
    let mut steps = Steps::new(4);
    steps.step("WebAssembly target", || setup::wasm_targets(repository, &[WASIP2]))?;
    steps.step("plugins", || plugins::build(repository, &[Kind::Reference, Kind::Guest]).map(drop))?;
    steps.step("server (takes a few minutes the first time)", || {
        run(repository.cargo().args(["build", "--package", "monstrum-host", "--package", "monstrum-tests", "--bins"]))
    })?;
    steps.begin("demo");
    let mut demo = Command::new(repository.binary("debug", "demo"));
    if keep {
        demo.arg("--keep");
    }
    become_it(demo)
}

/// Installs what only some of the benches need.
fn set_up_benches(repository: &Repository, arguments: &[String]) -> Result<()> {
    let measures_console = measures("console", arguments);
    // The console is measured on PostgreSQL too, which logs its queries.
    if measures_console || measures("postgres", arguments) {
        setup::postgresql()?;
    }
    if measures_console {
        setup::oauth_server(repository)?;
        setup::console_browser(repository)?;
    }
    Ok(())
}

/// Returns whether the benches with these arguments measure the part `part`, which takes more than a few minutes.
fn measures(part: &str, arguments: &[String]) -> bool {
    let has = |part: &str| arguments.iter().any(|argument| argument.contains(part));
    has(part) || !(has("--only") || has("--quick") || has("--help"))
}

/// Builds the program of the benches in release mode and runs it. `setup` installs what only this run needs.
fn bench(repository: &Repository, title: &str, setup: impl FnOnce() -> Result<()>, arguments: &[String]) -> Result<()> {
    let mut steps = Steps::new(4);
    steps.step("set-up", || setup::wasm_targets(repository, &[WASIP2]).and_then(|()| setup()))?;
    steps.step("plugins", || plugins::build(repository, &[Kind::Reference, Kind::Guest]).map(drop))?;
    steps.step("release build (takes a few minutes the first time)", || {
        let packages = ["--package", "monstrum-host", "--package", "monstrum-tests"];
        run(repository.cargo().args(["build", "--release", "--bins"]).args(packages))
    })?;
    steps.begin(title);
    let mut bench = Command::new(repository.binary("release", "bench"));
    bench.args(arguments);
    become_it(bench)
}

/// Returns the argument that tells the benches the commit of the working tree. Returns no argument if git cannot
/// determine the commit.
fn revision(repository: &Repository) -> Vec<String> {
    let commit = steps::ask(repository.command("git").args(["describe", "--always", "--dirty", "--exclude=*"]));
    commit.map(|commit| vec![format!("--revision={}", commit.trim())]).unwrap_or_default()
}

/// Replaces this process with another program, so that only that program receives Ctrl-C.
fn become_it(mut command: Command) -> Result<()> {
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", command.get_program().display()))
}

/// Runs `monstrum` with `arguments` and writes its output to `file`, which is part of the repository.
fn generate(repository: &Repository, arguments: &[&str], file: &str) -> Result<()> {
    let mut steps = Steps::new(2);
    steps.step("server", || {
        run(repository.cargo().args(["build", "--package", "monstrum-host", "--bin", "monstrum"]))
    })?;
    steps.step(file, || {
        let printed = output(Command::new(repository.binary("debug", "monstrum")).args(arguments))?;
        if printed.trim().is_empty() {
            bail!("`monstrum {}` did not print anything", arguments.join(" "));
        }
        let path = repository.path(file);
        std::fs::write(&path, printed).with_context(|| format!("cannot write {}", path.display()))
    })
}

/// Updates the tables of settings in docs/configuration.md. The test that compares these tables with the flags of
/// `monstrum serve` writes them if `MONSTRUM_REWRITE_DOCS` is set, so this function runs that test.
fn settings(repository: &Repository) -> Result<()> {
    Steps::new(1).step("docs/configuration.md", || {
        let mut cargo = repository.cargo();
        cargo.args(["test", "--locked", "--workspace", "--test", "it", "--", "--exact", SETTINGS_TEST]);
        run(cargo.env("MONSTRUM_REWRITE_DOCS", "1"))
    })
}

/// Writes the pictures of the console. The test that compares pages with these pictures writes them if
/// `MONSTRUM_REWRITE_PICTURES` is set, so this function runs that test.
fn console_pictures(repository: &Repository) -> Result<()> {
    let mut steps = Steps::new(4);
    steps.step("set-up", || {
        setup::wasm_targets(repository, &[WASIP2])?;
        setup::oauth_server(repository)?;
        setup::console_browser(repository)
    })?;
    steps.step("plugins", || plugins::build(repository, &[Kind::Reference, Kind::Guest]).map(drop))?;
    steps.step("workspace (takes a few minutes the first time)", || {
        run(repository.cargo().args(["build", "--locked", "--workspace", "--bins", "--tests"]))
    })?;
    steps.step("docs/images/console", || {
        let mut cargo = repository.cargo();
        cargo.args(["test", "--locked", "--workspace", "--test", "it", "--", "--exact", PICTURES_TEST]);
        run(cargo.env("MONSTRUM_REWRITE_PICTURES", "1"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bench_needs_is_installed_for_this_bench() {
        let measures = |part: &str, arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            measures(part, &arguments)
        };
        for part in ["postgres", "console"] {
            assert!(measures(part, &[]) && measures(part, &["--rounds", "3"]));
            assert!(measures(part, &["--only", "http,postgres,console"]));
            assert!(!measures(part, &["--quick"]) && !measures(part, &["--only=http"]));
        }
    }

    #[test]
    fn the_tasks_are_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
