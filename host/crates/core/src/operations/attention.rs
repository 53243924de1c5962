//! What needs the attention of a person: approvals that wait, plugins and sandboxes that do not work, credentials and
//! budgets that are about to end, and schedules that are paused. Each key sees only what it may read.

use std::collections::HashMap;

use monstrum_api::attention::{Attention, AttentionItem, AttentionKind};
use monstrum_api::plugins::PluginStatus;
use monstrum_egress::{CredentialSource as _, CredentialState};
use monstrum_store::{ApprovalKind, MissingScopesRow};
use monstrum_types::{CredentialId, UtcMillis};

use super::{OperationError, Person, approvals};
use crate::app::App;
use crate::call::ledger::month;
use crate::plugins::Entry;
use crate::policy::{Resource, Snapshot};

/// The maximum number of items. More would be a list, and each kind has a list of its own.
const ITEMS_MAX: usize = 100;
/// The share of a budget above which the budget needs attention, in percent.
const BUDGET_PERCENT: i128 = 80;
/// The time before the end of a credential at which the credential needs attention.
const ENDS_WITHIN_MS: i64 = 7 * 24 * 3600 * 1000;

/// Lists what needs attention.
pub async fn list(app: &App, caller: &Person) -> Result<Attention, OperationError> {
    let snapshot = app.policy.load();
    let mut lists = vec![waiting(app, caller, &snapshot).await?];
    if caller.root().is_ok() {
        lists.push(sandboxes(app, &snapshot).into_iter().collect());
        lists.push(app.plugins.entries().into_iter().filter_map(plugin).collect());
    }
    if caller.operator().is_ok() {
        lists.push(credentials(app, caller, &snapshot).await?);
        lists.push(budgets(app, caller, &snapshot).await?);
        lists.push(schedules(app, caller).await?);
    }
    shorten(&mut lists);
    Ok(Attention { items: lists.into_iter().flatten().collect() })
}

/// Shortens the longest lists until all lists together have at most [`ITEMS_MAX`] items, so that no kind of item hides
/// another.
fn shorten(lists: &mut [Vec<AttentionItem>]) {
    for list in &mut *lists {
        list.truncate(ITEMS_MAX);
    }
    while lists.iter().map(Vec::len).sum::<usize>() > ITEMS_MAX {
        if let Some(longest) = lists.iter_mut().max_by_key(|list| list.len()) {
            longest.pop();
        }
    }
}

/// Returns the approvals that wait for a decision. Approvers may read approvals only, so that the texts for them name no
/// other objects.
async fn waiting(app: &App, caller: &Person, snapshot: &Snapshot) -> Result<Vec<AttentionItem>, OperationError> {
    let limit = u32::try_from(ITEMS_MAX).expect("the limit is small");
    let rows = approvals::waiting(app, caller, limit).await?;
    let reads_names = caller.operator().is_ok();
    let items = rows.into_iter().map(|row| {
        let bot = snapshot.bot(caller.workspace, row.bot_id).filter(|_| reads_names);
        let what = if row.kind == ApprovalKind::Call { "call" } else { "step" };
        let text = match bot {
            Some(bot) => format!("a {what} of the bot `{}` waits for approval", bot.row.name),
            None => format!("a {what} waits for approval"),
        };
        AttentionItem {
            kind: AttentionKind::Approval,
            id: row.id.to_string(),
            name: row.tool.or(row.run_step).unwrap_or_default(),
            text,
            since: Some(row.created_at),
        }
    });
    Ok(items.collect())
}

fn sandboxes(app: &App, snapshot: &Snapshot) -> Option<AttentionItem> {
    let error = app.sandboxes.capabilities().err().filter(|_| snapshot.uses_sandboxes())?;
    Some(AttentionItem {
        kind: AttentionKind::Sandbox,
        id: "sandbox".to_owned(),
        name: "sandbox".to_owned(),
        text: format!("bots use sandboxes, but sandboxes are unavailable: {error}"),
        since: None,
    })
}

fn plugin(entry: Entry) -> Option<AttentionItem> {
    let text = match (entry.status, &entry.pending) {
        (PluginStatus::Loaded, _) => return None,
        (PluginStatus::Failed, _) => entry.error.unwrap_or_else(|| "the plugin could not be loaded".to_owned()),
        (PluginStatus::NeedsApproval, Some(pending)) => {
            format!("version {} waits for approval", pending.plugin.manifest.version)
        }
        (PluginStatus::NeedsApproval, None) => "a version waits for approval".to_owned(),
    };
    Some(AttentionItem { kind: AttentionKind::Plugin, id: entry.name.clone(), name: entry.name, text, since: None })
}

/// Returns the credentials of resources that cannot be used, or not for long. Users renew their own credentials, so that
/// these are left out.
async fn credentials(app: &App, caller: &Person, snapshot: &Snapshot) -> Result<Vec<AttentionItem>, OperationError> {
    let limit = u32::try_from(ITEMS_MAX).expect("the limit is small");
    let missing = app.store.missing_scopes_of_workspace(caller.workspace, limit).await?;
    let missing: HashMap<CredentialId, MissingScopesRow> =
        missing.into_iter().map(|row| (row.credential_id, row)).collect();
    let now = app.clock.now();
    let of_workspace = snapshot.resources().filter(|resource| resource.row.workspace_id == caller.workspace);
    let found = of_workspace.filter_map(|resource| credential(resource, snapshot, &missing, now));
    let mut items: Vec<AttentionItem> = found.collect();
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(items)
}

fn credential(
    resource: &Resource,
    snapshot: &Snapshot,
    missing: &HashMap<CredentialId, MissingScopesRow>,
    now: UtcMillis,
) -> Option<AttentionItem> {
    let held = resource.credential.as_ref()?;
    let source = resource.credential_source();
    let ends_at = source.ends_at();
    let (text, since) = match source.status() {
        CredentialState::Expired => ("the credential has expired".to_owned(), ends_at),
        CredentialState::NeedsAuthorization if source.requested_audience().is_some() => {
            ("the credential would be sent to other origins, and an admin must confirm this".to_owned(), None)
        }
        CredentialState::NeedsAuthorization => {
            ("the credential needs an authorization".to_owned(), Some(held.row.updated_at))
        }
        CredentialState::Ready if missing.contains_key(&held.row.id) => {
            let since = missing.get(&held.row.id).map(|row| row.noted_at);
            ("the credential needs an authorization with more scopes".to_owned(), since)
        }
        CredentialState::Ready if !held.can_go_on(snapshot.issuer(&resource.row)) => {
            ("the credential needs an authorization".to_owned(), None)
        }
        CredentialState::Ready => {
            let ends_at = ends_at.filter(|end| *end <= now.plus_ms(ENDS_WITHIN_MS))?;
            (format!("the credential expires at {ends_at}"), Some(ends_at.plus_ms(-ENDS_WITHIN_MS)))
        }
        CredentialState::None | CredentialState::NotNeeded | CredentialState::Unavailable => return None,
    };
    Some(AttentionItem {
        kind: AttentionKind::Credential,
        id: resource.stored_id()?.to_string(),
        name: resource.row.name.clone(),
        text,
        since,
    })
}

async fn budgets(app: &App, caller: &Person, snapshot: &Snapshot) -> Result<Vec<AttentionItem>, OperationError> {
    let month = month(app.clock.now());
    let spent = app.store.spent_by_bots(caller.workspace, &month).await?;
    let items = spent.into_iter().filter_map(|spent| {
        let bot = snapshot.bot(caller.workspace, spent.bot_id)?;
        let budget = bot.row.monthly_token_budget.filter(|budget| is_almost_spent(*budget, spent.tokens))?;
        Some(AttentionItem {
            kind: AttentionKind::Budget,
            id: bot.row.id.to_string(),
            name: bot.row.name.clone(),
            text: format!("{} of {budget} tokens of the budget for {month} are spent", spent.tokens),
            since: None,
        })
    });
    let mut items: Vec<AttentionItem> = items.collect();
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(items)
}

/// Returns the schedules that are paused because they failed too often.
async fn schedules(app: &App, caller: &Person) -> Result<Vec<AttentionItem>, OperationError> {
    let limit = u32::try_from(ITEMS_MAX).expect("the limit is small");
    let rows = app.store.paused_schedules(caller.workspace, limit).await?;
    let items = rows.into_iter().map(|row| AttentionItem {
        kind: AttentionKind::Schedule,
        id: row.id.to_string(),
        name: row.name,
        text: format!("{} failures in a row have paused the schedule", row.failures),
        since: row.last_fired_at,
    });
    Ok(items.collect())
}

fn is_almost_spent(budget: i64, tokens: i64) -> bool {
    i128::from(tokens) * 100 > i128::from(budget) * BUDGET_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(count: usize, kind: AttentionKind) -> Vec<AttentionItem> {
        let item = |id: usize| AttentionItem {
            kind,
            id: id.to_string(),
            name: String::new(),
            text: String::new(),
            since: None,
        };
        (0..count).map(item).collect()
    }

    #[test]
    fn no_kind_of_item_hides_another() {
        let mut lists = [items(500, AttentionKind::Credential), items(3, AttentionKind::Plugin)];
        shorten(&mut lists);
        assert_eq!(lists.each_ref().map(Vec::len), [97, 3]);
        assert_eq!(lists[0][0].id, "0");
        let mut lists = [items(70, AttentionKind::Approval), items(70, AttentionKind::Budget)];
        shorten(&mut lists);
        assert_eq!(lists.each_ref().map(Vec::len), [50, 50]);
    }

    #[test]
    fn a_budget_needs_attention_above_four_fifths() {
        let cases =
            [(100, 80, false), (100, 81, true), (0, 0, false), (i64::MAX, i64::MAX, true), (i64::MAX, 1, false)];
        for (budget, tokens, expected) in cases {
            assert_eq!(is_almost_spent(budget, tokens), expected, "{tokens} of {budget}");
        }
    }
}
