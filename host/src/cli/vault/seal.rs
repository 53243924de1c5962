//! `monstrum vault seal`: shows an operator the rows of a database that grant permissions, and seals these rows.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use monstrum_store::{Scope, ScopeRow, Store, StoreError, Table, Unsealed as UnsealedRows};
use monstrum_types::{SystemClock, WorkspaceId};
use serde_json::{Value, json};

use crate::boot::{Data, OfflineChange, OfflineError, Unsealed, connections_of_servers, recorded};
use crate::cli::failure::Failure;
use crate::cli::{DATABASE_HINT, FolderFlags, Options, folder, output};
use crate::config::Settings;
use monstrum_core::audit::{HEADS_FILE, rows_were_sealed};
use monstrum_core::policy::row_seals::{ROW_KEY, RowSeals};

const RUNNING: &str = "stop every server that uses this database first";
/// The number of displayed hexadecimal digits of a key's hash, enough to distinguish keys.
const HASH_DIGITS: usize = 12;
/// The advice and the outcome of a question that is not answered with yes.
const CHECK: &str = "check the list";
const UNDONE: &str = "nothing was sealed";
const LIST_ROWS: &str = "run the command without --delete to list the rows";
const AGAIN: &str = "nothing was changed; run the command again when the database can be used";

pub(super) const EXAMPLES: &str = "\
Examples:
  monstrum vault seal                              in a database from before authenticated rows: list keys,
                                                   trusted keys and plugins, ask, and seal all rows
  monstrum vault seal --scope acme                 after `monstrum doctor` has named the workspace: show its
                                                   rows, ask, and seal them
  monstrum vault seal --scope instance --delete api_keys/01939d2c-7f6a-7000-8000-000000000001

Stop every server that uses the database first, and run this command once. Sealed rows count as authentic from then on:
check the list for keys and plugins that you do not know. The command deletes the rows that --delete names before it
seals the remaining rows. Seals do not include sandboxes and OAuth authorizations: the command lists the sandboxes and
authorizations whose MAC is wrong, and they can only be deleted. Rows of a missing workspace are listed under
`instance`.";

#[derive(Args)]
pub(in crate::cli) struct Seal {
    /// Seal the current rows of one workspace (its name or id) or of the `instance`
    #[arg(long, value_name = "WORKSPACE")]
    scope: Option<String>,
    /// Delete this row first; can be repeated
    #[arg(long, value_name = "TABLE/ID", requires = "scope")]
    delete: Vec<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    folder: FolderFlags,
}

impl Seal {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let Seal { scope, delete, yes, folder } = self;
        let settings = options.settings(folder)?;
        // The connections are counted before the database is opened. Otherwise, the count would include this process.
        let servers = connections_of_servers(&settings).await;
        let data = folder::open_unsealed(&settings, RUNNING).await?;
        if servers.map_err(|error| Failure::from_error(&error, DATABASE_HINT))? > 0 {
            return Err(Failure::new("other servers use this database", RUNNING));
        }
        match scope {
            None => seal_all(data, &settings, yes).await,
            Some(scope) => seal_scope(data, &settings, &scope, &delete, yes).await,
        }
    }
}

fn of_store(error: &StoreError) -> Failure {
    Failure::from_error(error, AGAIN)
}

async fn seal_all(data: Unsealed, settings: &Settings, yes: bool) -> Result<ExitCode, Failure> {
    if data.store.is_sealed().await.map_err(|error| of_store(&error))? {
        let hint = "run `monstrum doctor` to list unverified scopes, and use --scope to seal the rows of one workspace";
        return Err(Failure::new("the rows of this database are already sealed", hint));
    }
    refuse_where_sealed_before(&data).await?;
    let found = data.store.unsealed().await.map_err(|error| of_store(&error))?;
    show_unsealed(&found)?;
    if !yes {
        output::confirm("Seal these rows as authentic?", CHECK, UNDONE)?;
    }
    let held = data.store.instance_keys(ROW_KEY).await.map_err(|error| of_store(&error))?;
    let (key, record) = match held.first() {
        Some(row) => RowSeals::of(row, &data.vault).map(|key| (key, None)),
        None => RowSeals::generate(1, &data.vault, &SystemClock).map(|(key, row)| (key, Some(row))),
    }
    .map_err(|error| Failure::from_error(&error, AGAIN))?;
    let store = data.store.clone().with_row_key(Arc::new(key));
    let rows = store.seal_everything(&found, record.as_ref()).await.map_err(|error| of_store(&error))?;
    record_in_audit(data, settings, "database", json!({ "rows": rows })).await?;
    output::line(format!("sealed {rows} rows; start the server"))?;
    Ok(ExitCode::SUCCESS)
}

/// Rejects a database whose seals were deleted. Without seals, the database looks like a database from before
/// authenticated rows, but its signed heads show that its rows were sealed.
async fn refuse_where_sealed_before(data: &Unsealed) -> Result<(), Failure> {
    let keys = data.audit_keys().await;
    let keys = keys.map_err(|error| Failure::from_error(&error, folder::keys_hint(&error).unwrap_or(AGAIN)))?;
    if rows_were_sealed(&data.path, &keys).map_err(|error| Failure::from_error(&error, AGAIN))? {
        let message =
            format!("the seals of this database are missing, but {HEADS_FILE} shows that its rows were sealed before");
        let held = data.store.instance_keys(ROW_KEY).await.map_err(|error| of_store(&error))?;
        let hint = if held.is_empty() {
            "its row key is missing too: restore the database from a backup"
        } else {
            folder::OLDER_DATABASE_HINT
        };
        return Err(Failure::new(message, hint));
    }
    Ok(())
}

fn show_unsealed(found: &UnsealedRows) -> Result<(), Failure> {
    let key = |key: &monstrum_store::KeyRow| {
        let workspace = key.workspace_id.map(|id| id.to_string()).unwrap_or_default();
        vec![key.kind.as_str().to_owned(), key.name.clone(), key.prefix.clone(), workspace, key.created_at.to_string()]
    };
    output::line("API keys:")?;
    output::table(&["KIND", "NAME", "PREFIX", "WORKSPACE", "CREATED"], found.keys.iter().map(key).collect())?;
    output::line("Trusted keys:")?;
    let trust = |row: &monstrum_store::TrustRow| {
        vec![row.public_key.clone(), row.name_glob.clone(), row.type_glob.clone(), row.created_at.to_string()]
    };
    output::table(&["KEY", "PLUGINS", "TYPES", "CREATED"], found.trust.iter().map(trust).collect())?;
    output::line("Plugins:")?;
    let plugin = |row: &monstrum_store::PluginRow| {
        vec![row.name.to_string(), row.version.clone(), row.component_digest.to_string(), row.updated_at.to_string()]
    };
    output::table(&["NAME", "VERSION", "COMPONENT", "UPDATED"], found.plugins.iter().map(plugin).collect())?;
    let counts: Vec<String> = found.rows.iter().map(|(table, rows)| format!("{rows} in {table}")).collect();
    output::line(format!("Rows: {}", counts.join(", ")))
}

async fn seal_scope(
    data: Unsealed,
    settings: &Settings,
    scope: &str,
    delete: &[String],
    yes: bool,
) -> Result<ExitCode, Failure> {
    // `with_rows` rejects a database that is older than its heads. The operator could not see which rows are missing
    // from such a database.
    let opened = data.with_rows(settings, &SystemClock).await;
    let data = opened.map_err(|error| Failure::from_error(&error, folder::keys_hint(&error).unwrap_or(AGAIN)))?;
    let scope = scope_called(&data.store, scope).await?;
    let rows = data.store.scope_rows(scope).await.map_err(|error| of_store(&error))?;
    let mut deleted = Vec::new();
    for name in delete {
        let row = rows.iter().find(|row| row.name.to_string() == *name);
        let row = row.ok_or_else(|| Failure::new(format!("scope `{scope}` has no row {name}"), LIST_ROWS))?;
        deleted.push(row.name.clone());
    }
    show_rows(&rows, &deleted)?;
    if !yes {
        output::confirm(&format!("Seal scope `{scope}` with the rows above?"), CHECK, UNDONE)?;
    }
    let names: Vec<String> = deleted.iter().map(ToString::to_string).collect();
    let change = sealing(&scope.to_string(), json!({ "rows": rows.len(), "deleted": names }));
    let seal = async { data.store.seal_scope(scope, &rows, &deleted).await.map_err(OfflineError::from) };
    let sealed = recorded(&data, Arc::new(SystemClock), change, seal).await;
    let sealed = sealed.map_err(|error| Failure::from_error(&error, AGAIN))?;
    data.store.close().await;
    output::line(format!("sealed {sealed} rows of scope `{scope}`"))?;
    Ok(ExitCode::SUCCESS)
}

fn show_rows(rows: &[ScopeRow], deleted: &[monstrum_store::RowName]) -> Result<(), Failure> {
    let row = |row: &ScopeRow| {
        let state = match (deleted.contains(&row.name), row.is_counted, row.is_valid) {
            (true, _, _) => "delete",
            (false, false, _) => "reject until the row is deleted",
            (false, true, true) => "accept",
            (false, true, false) => "accept despite its missing or wrong MAC",
        };
        let shown = row.columns.iter().filter(|(_, text)| !text.is_empty());
        let column = |(name, text): &(&str, String)| match *name {
            "hash" => format!("hash={}", text.chars().take(HASH_DIGITS).collect::<String>()),
            _ => format!("{name}={text}"),
        };
        let columns: Vec<String> = shown.map(column).collect();
        vec![state.to_owned(), row.name.to_string(), columns.join(" ")]
    };
    output::table(&["", "ROW", "CONTENT"], rows.iter().map(row).collect())
}

/// Returns the scope that `text` names: `instance`, or the name or id of a workspace.
async fn scope_called(store: &Store, text: &str) -> Result<Scope, Failure> {
    if text == Scope::Instance.to_string() {
        return Ok(Scope::Instance);
    }
    let rows = store.scope_rows(Scope::Instance).await.map_err(|error| of_store(&error))?;
    let of = |row: &ScopeRow, column: &str| {
        row.columns.iter().find(|(name, _)| *name == column).map(|(_, text)| text.clone()).unwrap_or_default()
    };
    let workspaces = rows.iter().filter(|row| row.name.table == Table::Workspaces);
    let found = workspaces.into_iter().find(|row| of(row, "id") == text || of(row, "name") == text);
    let id = found.and_then(|row| of(row, "id").parse::<WorkspaceId>().ok());
    id.map(Scope::Workspace).ok_or_else(|| {
        Failure::new(
            format!("the database has no workspace `{text}`"),
            "use the name or id of a workspace, or `instance`",
        )
    })
}

async fn record_in_audit(data: Unsealed, settings: &Settings, object: &str, after: Value) -> Result<(), Failure> {
    let opened = data.with_rows(settings, &SystemClock).await;
    let data = opened.map_err(|error| Failure::from_error(&error, folder::keys_hint(&error).unwrap_or(AGAIN)))?;
    audit(&data, object, after).await?;
    data.store.close().await;
    Ok(())
}

/// Records the sealing in the audit.
async fn audit(data: &Data, object: &str, after: Value) -> Result<(), Failure> {
    let hint = "the rows are sealed, but the audit did not record the change; \
                check that the database and the data folder are writable";
    let change = sealing(object, after);
    let sealed = async { Ok::<(), OfflineError>(()) };
    let recorded = recorded(data, Arc::new(SystemClock), change, sealed).await;
    recorded.map_err(|error| Failure::from_error(&error, hint))
}

fn sealing(object: &str, after: Value) -> OfflineChange {
    OfflineChange { what: "vault.seal", object: object.to_owned(), before: Value::Null, after }
}
