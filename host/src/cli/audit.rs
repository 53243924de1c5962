//! `monstrum audit`: lists, shows and exports calls, lists changes, and verifies that the audit is unchanged.

mod accept_loss;
mod archive;
mod export;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use monstrum_types::{RequestId, UtcMillis};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::{FolderFlags, Options, folder, output};
use crate::config::Settings;
use monstrum_core::audit::{self, SinceHead};

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum audit list
  monstrum audit list --status permission_denied --since 2026-11-21T00:00:00Z
  monstrum audit list --tool github_create_issue --limit 500 --json
  monstrum audit list --rule scope.repos                calls that one rule rejected
  monstrum audit list --operation sandbox.download      show who downloaded files from sandboxes";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum audit show 01939d2c-7f6a-7000-8000-000000000001
  monstrum audit show 01939d2c-7f6a-7000-8000-000000000001 --json    the call, and each call below it

The calls below a call are indented, in the order of their start.";

const CHANGES_EXAMPLES: &str = "\
Examples:
  monstrum audit changes
  monstrum audit changes --limit 500 --json      include each object before and after the change";

const VERIFY_EXAMPLES: &str = "\
Examples:
  monstrum audit verify                              ask the running server
  monstrum audit verify --data-dir /srv/monstrum     read the data folder of a stopped server
  monstrum audit verify --since-head                 verify only the rows after the latest signed head
  monstrum audit verify --archive data/audit-archive --data-dir data    verify archived rows; a server may be running

The exit code is 0 if the audit is unchanged, and 1 otherwise.";

const ACCEPT_LOSS_EXAMPLES: &str = "\
Examples:
  monstrum audit accept-loss --reason 'disk failure: restored the backup of 2 November'

A server does not start with a database that is older than the signed heads in audit-heads.log, because revocations may
be missing from an older database. This command shows what is missing, records the reason in the audit, and keeps the
superseded heads in a file beside audit-heads.log. API keys and credentials that were revoked after the backup are valid
again: revoke them again.";

/// Read and verify the audit
#[derive(Subcommand)]
pub(super) enum Audit {
    /// List calls, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Show a call, and the calls that it made, as a tree
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The id of the request, as an answer or `monstrum audit list` shows it
        request: RequestId,
    },
    /// List changes of permissions, keys, credentials and plugins, newest first
    #[command(after_help = CHANGES_EXAMPLES)]
    Changes {
        /// The maximum number of changes
        #[arg(long, value_name = "ROWS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Export calls, or events for a SIEM, as JSON Lines
    #[command(after_help = export::EXAMPLES)]
    Export(export::Export),
    /// Check that no row of the audit was changed, moved or removed
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify {
        /// Verify archived segments instead of the database: manifests, or folders with manifests
        #[arg(long, value_name = "FILE", num_args = 1..)]
        archive: Vec<PathBuf>,
        /// Verify only the rows after a signed head: the latest head, or the newest head for ROW or an earlier row
        #[arg(long, value_name = "ROW", num_args = 0..=1, default_missing_value = "latest", conflicts_with = "archive")]
        since_head: Option<SinceHead>,
        #[command(flatten)]
        folder: FolderFlags,
    },
    /// Move old rows to signed files; the server must be stopped
    #[command(after_help = archive::EXAMPLES)]
    Archive {
        /// Archive rows that are older than this date (in UTC) or this time (in RFC 3339 format)
        #[arg(long, value_name = "DATE", value_parser = archive::moment)]
        before: UtcMillis,
        /// The folder for the archive files [default: DATA/audit-archive]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
        #[command(flatten)]
        folder: FolderFlags,
    },
    /// Accept a database that is older than its signed heads; the server must be stopped
    #[command(name = "accept-loss", after_help = ACCEPT_LOSS_EXAMPLES)]
    AcceptLoss {
        /// The reason for using the older database, which the audit records
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        folder: FolderFlags,
    },
}

/// Which calls a command shows.
#[derive(Args)]
pub(super) struct Filters {
    /// Only calls of this bot
    #[arg(long, value_name = "ID")]
    bot: Option<String>,
    /// Only calls of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Only calls of this operation, such as sandbox.read
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,
    /// Only calls with this status: success, error, scope_violation, permission_denied, approval_required, running or
    /// interrupted
    #[arg(long)]
    status: Option<String>,
    /// Only calls of this resource
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
    /// Only calls that this rule rejected, such as scope.repos
    #[arg(long)]
    rule: Option<String>,
    /// Only calls that started at this time or later, in RFC 3339 format
    #[arg(long, value_name = "TIME")]
    since: Option<UtcMillis>,
    /// Only calls that started before this time, in RFC 3339 format
    #[arg(long, value_name = "TIME")]
    until: Option<UtcMillis>,
}

#[derive(Args)]
pub(super) struct List {
    #[command(flatten)]
    filters: Filters,
    /// The maximum number of calls
    #[arg(long, value_name = "ROWS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

impl Audit {
    pub(super) async fn run(self, options: &Options, is_offline: bool) -> Result<ExitCode, Failure> {
        match self {
            Audit::List(list) => list.run(options).await,
            Audit::Show { request } => show::run(options, request).await,
            Audit::Changes { limit } => {
                let list = Client::new(options)?.list(&["api", "audit", "changes"], &[], limit as usize).await?;
                tell_list(list, options.json, show_changes, "there are more changes; raise --limit")
            }
            Audit::Export(export) => export.run(options).await,
            Audit::Verify { archive, folder, .. } if !archive.is_empty() => {
                archive::verify(&options.settings(folder)?, &archive, options.json).await
            }
            Audit::Archive { before, to, folder } => archive::run(options, folder, before, to).await,
            Audit::Verify { folder, since_head, .. } => {
                let report = if is_offline {
                    verify_folder(&options.settings(folder)?, since_head).await?
                } else {
                    let since = since_head.map(|since| ("since_head", since.to_string()));
                    Client::new(options)?.get(&["api", "audit", "verify"], since.as_slice()).await?
                };
                tell(&report, options.json)
            }
            Audit::AcceptLoss { reason, folder } => accept_loss::run(options, folder, reason).await,
        }
    }
}

impl List {
    async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let list = Client::new(options)?.list(&["api", "audit"], &self.filters.query(), self.limit as usize).await?;
        tell_list(
            list,
            options.json,
            show_calls,
            "there are more calls; raise --limit, or set --until to an earlier time",
        )
    }
}

impl Filters {
    /// Returns the parameters of the query.
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        let filters = [
            ("bot_id", self.bot.clone()),
            ("tool", self.tool.clone()),
            ("operation", self.operation.clone()),
            ("status", self.status.clone()),
            ("resource_id", self.resource.clone()),
            ("rule", self.rule.clone()),
            ("since", self.since.map(|time| time.to_string())),
            ("until", self.until.map(|time| time.to_string())),
        ];
        filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

fn tell_list(
    (items, next_cursor): (Vec<Value>, Value),
    json: bool,
    show: fn(&[Value]) -> Result<(), Failure>,
    hint: &str,
) -> Result<ExitCode, Failure> {
    if json {
        output::json(&json!({ "items": items, "next_cursor": next_cursor }))?;
        return Ok(ExitCode::SUCCESS);
    }
    show(&items)?;
    if !next_cursor.is_null() {
        output::note(hint);
    }
    Ok(ExitCode::SUCCESS)
}

fn show_changes(items: &[Value]) -> Result<(), Failure> {
    const FIELDS: [&str; 7] = ["started_at", "status", "change", "object", "key_kind", "key_id", "message"];
    if items.is_empty() {
        output::note("no changes");
        return Ok(());
    }
    let row = |item: &Value| FIELDS.iter().map(|field| output::cell(&item[*field]).replace('\n', " ")).collect();
    output::table(&["STARTED", "STATUS", "CHANGE", "OBJECT", "BY", "KEY", "MESSAGE"], items.iter().map(row).collect())
}

fn show_calls(items: &[Value]) -> Result<(), Failure> {
    const FIELDS: [&str; 8] =
        ["started_at", "status", "code", "tool", "duration_ms", "bot_id", "request_id", "message"];
    if items.is_empty() {
        output::note("no calls");
        return Ok(());
    }
    let row = |item: &Value| {
        // Calls through the sandbox file routes have no tool, so their operation is shown instead.
        let field = |name: &str| if name == "tool" && item["tool"].is_null() { "operation" } else { name }.to_owned();
        FIELDS.iter().map(|name| output::cell(&item[field(name)]).replace('\n', " ")).collect()
    };
    output::table(
        &["STARTED", "STATUS", "CODE", "TOOL", "MS", "BOT", "REQUEST", "MESSAGE"],
        items.iter().map(row).collect(),
    )
}

/// Verifies the data folder of a stopped server. The folder's lock ensures that no server uses it.
async fn verify_folder(settings: &Settings, since: Option<SinceHead>) -> Result<Value, Failure> {
    let running =
        "a server is using the data folder: omit --data-dir to send the request to the server, or stop it first";
    let (data, _lock) = folder::inspect_locked(settings, running).await?;
    let report = audit::verify(&data.store, &data.audit_keys, &data.path, since).await;
    data.store.close().await;
    let report = report.map_err(|error| {
        Failure::from_error(&error, "check that the data folder is complete and that its files are readable")
    })?;
    Ok(json!(report))
}

fn tell(report: &Value, json: bool) -> Result<ExitCode, Failure> {
    let is_valid = report["valid"] == true;
    let rows = output::cell(&report["rows"]);
    if json {
        output::json(report)?;
    } else if is_valid {
        let archived = match &report["archived_rows"] {
            Value::Null => String::new(),
            archived => format!(" after {} archived rows", output::cell(archived)),
        };
        output::line(match &report["since_head"] {
            Value::Null => format!("audit chain verified: {rows} rows{archived}"),
            head => {
                let (row, writer) = (output::cell(&head["sequence"]), output::cell(&head["writer"]));
                format!("audit chain of {writer} verified after row {row}, which a signed head covers: {rows} rows")
            }
        })?;
    } else {
        tell_problems(report, "audit", "keep a copy of the data folder, and compare it with an earlier backup")?;
    }
    Ok(if is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the problems that a verification of the audit or of an archive found.
fn tell_problems(report: &Value, what: &str, hint: &str) -> Result<(), Failure> {
    let problems = report["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
    let row = |problem: &Value| ["writer", "sequence", "what"].map(|field| output::cell(&problem[field])).to_vec();
    output::table(&["WRITER", "SEQUENCE", "PROBLEM"], problems.iter().map(row).collect())?;
    let rows = output::cell(&report["rows"]);
    output::error(&format!("the {what} failed verification: {} problems in {rows} rows", problems.len()));
    output::hint(hint);
    Ok(())
}
