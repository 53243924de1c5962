//! Finds the changed rows of an unverified scope by comparing each row with the last change of its object in the audit.
//! The MACs are not enough, because the MAC of a restored older row is valid.

use std::collections::{BTreeMap, BTreeSet};

use monstrum_store::{AuditRow, CallFilter, PAGE_ITEMS_MAX, Page, Scope, ScopeRow, Store, StoreError, Table};
use monstrum_types::{Status, UtcMillis, WorkspaceId};
use serde_json::Value;

/// The maximum number of pages of changes that are read for a workspace: the newest 100 000 changes.
const PAGES_MAX: usize = 100;

/// The last successful change of an object.
struct LastChange {
    at: UtcMillis,
    /// The object after the change; null if the change deleted it.
    after: Value,
    bot: Option<String>,
    /// The digest of the row after the change, in hex, if the audit has it.
    digest: Option<String>,
}

/// Compares the rows of a scope with the audit. Returns one sentence for each difference.
///
/// An object whose last change was archived is not compared. Changes up to `archived_until` are left out for the same
/// reason: of two hosts, one may have archived a later change of the same object.
pub(super) async fn differences(
    store: &Store,
    scope: Scope,
    archived_until: Option<UtcMillis>,
) -> Result<Vec<String>, StoreError> {
    let workspaces = match scope {
        Scope::Instance => store.scopes().await?,
        Scope::Workspace(_) => BTreeSet::from([scope]),
    };
    let mut changes = BTreeMap::new();
    for scope in workspaces {
        if let Scope::Workspace(id) = scope {
            read_changes(store, id, &mut changes).await?;
        }
    }
    changes.retain(|_, change| archived_until.is_none_or(|until| change.at > until));
    let rows = store.scope_rows(scope).await?;
    let mut found: Vec<String> = rows.iter().filter_map(|row| difference(row, &changes)).collect();
    let there: BTreeSet<(Table, &str)> = rows.iter().map(|row| (row.name.table, row.name.key.as_str())).collect();
    for ((table, key), change) in &changes {
        let has_gone_with_its_bot = change.bot.as_ref().is_some_and(|bot| {
            let of_bot = changes.get(&(Table::Bots, bot.clone()));
            of_bot.is_some_and(|change| change.after.is_null())
        });
        // Keys of agents and OAuth providers are deleted with their resource.
        let has_gone_with_its_resource = change.after["resource_id"].as_str().is_some_and(|resource| {
            let of_resource = changes.get(&(Table::Resources, resource.to_owned()));
            of_resource.is_some_and(|change| change.after.is_null())
        });
        let has_gone = has_gone_with_its_bot || has_gone_with_its_resource;
        let is_expected = is_of(*table, &change.after, scope) && !change.after.is_null() && !has_gone;
        if is_expected && !there.contains(&(*table, key.as_str())) {
            let name = table.name();
            found.push(format!("row {name}/{key} is missing; the audit records its last change at {}", change.at));
        }
    }
    if let Some(until) = archived_until {
        found.push(format!("changes up to {until} are in the archive of the audit and were not compared"));
    }
    Ok(found)
}

/// Returns the difference between a row and the audit, if they differ.
fn difference(row: &ScopeRow, changes: &BTreeMap<(Table, String), LastChange>) -> Option<String> {
    let change = changes.get(&(row.name.table, row.name.key.clone()))?;
    let (name, at) = (&row.name, change.at);
    if change.after.is_null() {
        return Some(format!("row {name} exists, but the audit records its deletion at {at}"));
    }
    let column = |wanted: &str| row.columns.iter().find(|(column, _)| *column == wanted).map(|(_, text)| text.as_str());
    let left = |field: &str| change.after[field].as_str();
    let (updated_at, prefix) = (left("updated_at").and_then(|at| at.parse::<UtcMillis>().ok()), left("prefix"));
    let is_updated_then = updated_at.is_none_or(|at| column("updated_at") == Some(at.0.to_string().as_str()));
    let is_of_that_text = prefix.is_none_or(|prefix| column("prefix") == Some(prefix));
    let is_of_that_digest =
        change.digest.as_ref().is_none_or(|wanted| row.digest.map(hex::encode).as_ref() == Some(wanted));
    (!is_updated_then || !is_of_that_text || !is_of_that_digest)
        .then(|| format!("row {name} differs from its last change in the audit at {at}"))
}

/// Reads the changes of a workspace, newest first, and adds the last change of each object.
async fn read_changes(
    store: &Store,
    workspace: WorkspaceId,
    changes: &mut BTreeMap<(Table, String), LastChange>,
) -> Result<(), StoreError> {
    let mut page = Page::first(PAGE_ITEMS_MAX);
    for _ in 0..PAGES_MAX {
        let listed = store.changes(workspace, &CallFilter::default(), &page).await?;
        for row in &listed.items {
            for (object, change) in made(row) {
                if changes.get(&object).is_none_or(|known| known.at < change.at) {
                    changes.insert(object, change);
                }
            }
        }
        match listed.next_cursor {
            Some(cursor) => page = Page { cursor: Some(cursor), ..page },
            None => break,
        }
    }
    Ok(())
}

/// A row, and its last change.
type Made = ((Table, String), LastChange);

/// Returns the objects and the results of a change. The list is empty if the change failed or concerns no rows.
fn made(row: &AuditRow) -> Vec<Made> {
    if row.status.as_deref() != Some(Status::Success.as_str()) {
        return Vec::new();
    }
    let params = row.params.as_deref().and_then(|params| serde_json::from_str::<Value>(params).ok());
    let Some(params) = params else { return Vec::new() };
    match row.operation.as_deref().and_then(|operation| operation.split_once('.')) {
        Some(("import", _)) => imported(row, &params),
        Some((noun, _)) => single(row, noun, &params).into_iter().collect(),
        None => Vec::new(),
    }
}

fn single(row: &AuditRow, noun: &str, params: &Value) -> Option<Made> {
    let (object, after) = (params["object"].as_str()?.to_owned(), params["after"].clone());
    let bot = row.bot_id.map(|id| id.to_string());
    Some(((table(noun)?, object), LastChange { at: row.at, after, bot, digest: None }))
}

/// Returns the objects that a transaction of an import wrote. The audit has their digests in place of their content.
fn imported(row: &AuditRow, params: &Value) -> Vec<Made> {
    let object = |object: &Value| {
        let text = |field: &str| object[field].as_str().map(str::to_owned);
        let key = (table(object["kind"].as_str()?)?, text("id")?);
        let change = LastChange { at: row.at, after: object.clone(), bot: text("bot_id"), digest: text("after") };
        Some((key, change))
    };
    params["after"]["objects"].as_array().into_iter().flatten().filter_map(object).collect()
}

fn table(noun: &str) -> Option<Table> {
    Some(match noun {
        "role" => Table::Roles,
        "bot" => Table::Bots,
        "resource" => Table::Resources,
        "binding" => Table::BotResources,
        "key" => Table::ApiKeys,
        "oauth_provider" => Table::OauthProviders,
        "workspace" => Table::Workspaces,
        "trust" => Table::Trust,
        _ => return None,
    })
}

/// Returns whether a row of a table belongs to a scope. A root key has no workspace and belongs to the instance.
fn is_of(table: Table, after: &Value, scope: Scope) -> bool {
    let is_of_instance = match table {
        Table::ApiKeys => after["kind"] == "root",
        table => table.is_of_instance(),
    };
    is_of_instance == (scope == Scope::Instance)
}
