//! `monstrum export` and `monstrum apply`: the configuration of a workspace as YAML that people edit.

mod budgets;
mod credentials;
mod document;
mod pins;
mod plan;
mod providers;
mod schedules;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use self::budgets::Budgets;
use self::credentials::Credentials;
use self::document::{Configuration, Lines};
use self::pins::Pins;
use self::plan::{Pruning, Shown};
use self::providers::Providers;
use self::schedules::Schedules;
use super::client::{Client, Imported};
use super::failure::Failure;
use super::{Options, output};

/// The maximum size of a file, which is the maximum size of an import.
const FILE_BYTES_MAX: usize = 64 << 20;

const EXPORT_EXAMPLES: &str = "\
Examples:
  monstrum export > configuration.yaml
  monstrum export --workspace acme > acme.yaml

The output contains roles, resources, bots, bindings, OAuth providers, budgets and schedules by name, and the approved tools of
MCP servers and remote agents by digest. It contains no key, no credential and no secret, and no schedule whose single time
has come.";

const APPLY_EXAMPLES: &str = "\
Examples:
  monstrum apply configuration.yaml                 shows what each bot gains and loses, and asks
  monstrum apply roles.yaml bots.yaml --dry-run     shows the plan only
  monstrum apply configuration.yaml --prune --yes   also deletes what the files do not contain; does not ask
  monstrum export | sed s/acme/beta/ | monstrum apply - --yes

Files have the form that `monstrum export` writes; fields may be left out. A resource can have a credential, whose fields
are references to secrets and not secrets:

  resources:
    - name: tracker
      type: github
      credential:
        method: token
        fields: { access_token: env:GITHUB_TOKEN }      or file:token.txt

OAuth providers have a type, a client_id and a client_secret that is a reference too. Fields that a file leaves out get the
values of the manifest in a new provider, and stay in an existing one. The pins of a resource approve tools from outside by
the digests of their definitions; no other definition is approved:

  oauth_providers:
    - { type: github, client_id: Iv1.abc, client_secret: env:GITHUB_CLIENT_SECRET }
  resources:
    - name: issues
      type: mcp
      config: { url: https://mcp.example.com/mcp }
      pins:
        get-issue: { digest: sha256:…, effect: read }

Budgets and schedules name their bots. The tokens of a bot are its field monthly_token_budget:

  budgets:
    - { subject: workspace, monthly_tokens: 1000000 }
    - { subject: bot, bot: helper, monthly_credits: 2.5 }
    - { subject: user, app_id: chat, user_id: ada, monthly_credits: 1 }
    - { subject: each_user, monthly_tokens: 5000 }
  schedules:
    - { name: nightly, bot: helper, instruction: Sort the issues, cron: 30 2 * * *, timezone: Europe/Berlin }

The command sets the credential of a resource that has none; --replace-credentials also replaces the others, and the secrets
of OAuth providers. Objects are matched by name. A repeated command changes nothing. If another command changes the same
objects after the plan is shown, this command is refused and applies nothing.";

/// Print the configuration of a workspace as YAML
#[derive(Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(super) struct Export {}

/// Change the configuration of a workspace to that of YAML files
#[derive(Args)]
#[command(after_help = APPLY_EXAMPLES)]
pub(super) struct Apply {
    /// The files; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete schedules, bots, bindings, resources and roles that the files do not contain
    #[arg(long)]
    prune: bool,
    /// Replace the credentials of resources that have one
    #[arg(long)]
    replace_credentials: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl Export {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let lines = exported(&client).await?;
        let mut configuration = Configuration::of_lines(&lines)?;
        configuration.oauth_providers = providers::exported(&client).await?;
        pins::export(&client, &mut configuration).await?;
        configuration.budgets = budgets::exported(&client).await?;
        configuration.schedules = schedules::exported(&client).await?;
        if options.json {
            output::json(&json!(configuration))?;
        } else {
            output::line(configuration.yaml().trim_end())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the lines of an export of one workspace. Without `--workspace`, a root key exports the default workspace.
async fn exported(client: &Client) -> Result<Vec<Value>, Failure> {
    let lines = client.lines(&["api", "export"]).await?;
    if lines.iter().any(|line| line["kind"] == "workspace") {
        return client.in_workspace("default").lines(&["api", "export"]).await;
    }
    Ok(lines)
}

impl Apply {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let mut lines = Lines::default();
        for file in &self.files {
            lines.read(file.display().to_string(), read(file)?)?;
        }
        // Secrets are read first, so that a missing secret does not leave a change half done.
        let credentials = Credentials::read(&lines)?;
        let providers = Providers::plan(&lines, &client, self.replace_credentials).await?;
        let schedules = Schedules::plan(&lines, &client).await?;
        let planned = import(&client, &lines, None).await?;
        let shown = Shown::of(&planned);
        let pruning = if self.prune { Pruning::plan(&client, &lines).await? } else { Pruning::default() };
        let rest = Rest {
            providers,
            credentials: credentials.without_present(&client, self.replace_credentials).await?,
            pins: Pins::plan(&lines, &client).await?,
            budgets: Budgets::plan(&lines, &client).await?,
            schedules,
            pruning,
        };
        let is_unchanged = shown.changes == 0 && rest.is_empty();
        if options.json && (self.dry_run || is_unchanged) {
            output::json(&rest.json(self.dry_run, &planned))?;
            return Ok(ExitCode::SUCCESS);
        }
        if !options.json {
            shown.print(&rest.lines())?;
        }
        if self.dry_run || is_unchanged {
            output::note(if is_unchanged {
                "the workspace already has this configuration"
            } else {
                "nothing was changed"
            });
            return Ok(ExitCode::SUCCESS);
        }
        if !self.yes {
            if options.json {
                return Err(Failure::new("--json cannot show the plan and ask", "use --json with --dry-run or --yes"));
            }
            output::confirm("apply these changes?", "check the plan with --dry-run", "nothing was changed")?;
        }
        // The server refuses another plan than the one that was shown.
        let done = import(&client, &lines, Some(&planned["plan"])).await?;
        // The import is complete. A repeated command does the rest.
        rest.set(&client)
            .await
            .map_err(|failure| failure.because("the objects in the files were applied; run the command again"))?;
        output::done(options.json, &rest.json(false, &done), "applied")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The changes that follow an import.
struct Rest<'a> {
    providers: Providers,
    credentials: Credentials<'a>,
    pins: Pins,
    budgets: Budgets,
    schedules: Schedules,
    pruning: Pruning,
}

impl Rest<'_> {
    fn is_empty(&self) -> bool {
        let Rest { providers, credentials, pins, budgets, schedules, pruning } = self;
        let is_configured = providers.is_empty() && credentials.is_empty() && pins.is_empty();
        is_configured && budgets.is_empty() && schedules.is_empty() && pruning.is_empty()
    }

    /// Returns the changes as lines of the plan.
    fn lines(&self) -> Vec<String> {
        let providers = self.providers.resource_types().into_iter();
        let providers = providers.map(|name| format!("set the OAuth provider of type {name}"));
        let credentials = self.credentials.resources().into_iter();
        let credentials = credentials.map(|name| format!("set the credential of resource {name}"));
        let pins = self.pins.names().into_iter().map(|name| format!("approve tool {name}"));
        let budgets = self.budgets.names().into_iter().map(|name| format!("set the budget of {name}"));
        let schedules = self.schedules.names();
        let deleted = self.pruning.names().into_iter().map(|name| format!("delete {name}"));
        providers.chain(credentials).chain(pins).chain(budgets).chain(schedules).chain(deleted).collect()
    }

    fn json(&self, dry_run: bool, import: &Value) -> Value {
        json!({ "dry_run": dry_run, "workspaces": import["workspaces"], "delete": self.pruning.names(),
            "credentials": self.credentials.resources(), "oauth_providers": self.providers.resource_types(),
            "pins": self.pins.names(), "budgets": self.budgets.names(), "schedules": self.schedules.names() })
    }

    /// Makes the changes, each only if the server still has the state that was planned with. Tools are approved last,
    /// because an MCP server may need the credential to name its tools.
    async fn set(&self, client: &Client) -> Result<(), Failure> {
        self.providers.set(client).await?;
        self.credentials.set(client).await?;
        self.budgets.set(client).await?;
        self.schedules.set(client).await?;
        self.pruning.run(client).await?;
        self.pins.set(client).await
    }
}

/// Sends the lines: for a dry run, or to make the changes of a plan. Reports each invalid line at its place in its file.
async fn import(client: &Client, lines: &Lines, plan: Option<&Value>) -> Result<Value, Failure> {
    match client.import(lines.body(), plan.is_none(), plan.and_then(Value::as_str)).await? {
        Imported::Done(answer) => Ok(answer),
        Imported::Invalid(errors) => Err(lines.invalid(&errors)),
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let limit = FILE_BYTES_MAX as u64 + 1;
    let mut text = String::new();
    let size = if file == Path::new("-") {
        std::io::stdin().take(limit).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(limit).read_to_string(&mut text))
    };
    let size = size.map_err(|error| {
        Failure::of(format!("cannot read {}", file.display()), &error, "check the path; `-` is standard input")
    })?;
    if size > FILE_BYTES_MAX {
        let message = format!("{} exceeds the limit of {} MiB", file.display(), FILE_BYTES_MAX >> 20);
        return Err(Failure::new(message, "split the configuration into several workspaces"));
    }
    Ok(text)
}
