//! `monstrum export` and `monstrum apply`: the configuration of a workspace as YAML that people edit.

mod credentials;
mod document;
mod plan;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use self::credentials::Credentials;
use self::document::{Configuration, Lines};
use self::plan::{Pruning, Shown};
use super::client::{Client, Imported};
use super::failure::Failure;
use super::{Options, output};

/// The maximum size of a file, which is the maximum size of an import.
const FILE_BYTES_MAX: usize = 64 << 20;

const EXPORT_EXAMPLES: &str = "\
Examples:
  monstrum export > configuration.yaml
  monstrum export --workspace acme > acme.yaml

The output contains roles, resources, bots and bindings by name. It contains no key, no credential and no secret.";

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

The command sets the credential of a resource that has none; --replace-credentials also replaces the others. Objects are
matched by name. A repeated command changes nothing.";

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
    /// Delete bots, bindings, resources and roles that the files do not contain
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
        let lines = exported(&Client::new(options)?).await?;
        let configuration = Configuration::of_lines(&lines)?;
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
        let planned = import(&client, &lines, true).await?;
        let shown = Shown::of(&planned);
        let pruning = if self.prune { Pruning::plan(&exported(&client).await?, &lines) } else { Pruning::default() };
        let credentials = credentials.without_present(&client, self.replace_credentials).await?;
        let is_unchanged = shown.changes == 0 && pruning.is_empty() && credentials.is_empty();
        if options.json && (self.dry_run || is_unchanged) {
            let delete = pruning.names();
            output::json(&json!({ "dry_run": self.dry_run, "workspaces": planned["workspaces"],
                "delete": delete, "credentials": credentials.resources() }))?;
            return Ok(ExitCode::SUCCESS);
        }
        if !options.json {
            shown.print(&pruning, &credentials.resources())?;
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
        let done = import(&client, &lines, false).await?;
        // The import is complete. A repeated command does the rest.
        let rest = async {
            credentials.set(&client).await?;
            pruning.run(&client).await
        };
        rest.await
            .map_err(|failure| failure.because("the objects in the files were applied; run the command again"))?;
        let result = json!({ "dry_run": false, "workspaces": done["workspaces"], "delete": pruning.names(),
            "credentials": credentials.resources() });
        output::done(options.json, &result, "applied")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Sends the lines. Reports each invalid line at its place in its file.
async fn import(client: &Client, lines: &Lines, dry_run: bool) -> Result<Value, Failure> {
    match client.import(lines.body(), dry_run).await? {
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
