//! Subscriptions: which events start tasks of a bot.
//!
//! An operator subscribes a bot to its own events and to those of the platform. Only an admin subscribes it to the events of
//! other bots, because a bot with few rights could otherwise steer a bot with many.

use monstrum_api::schedules::MadeBy;
use monstrum_api::subscriptions::{NewSubscription, Subscription, SubscriptionChange, SubscriptionList};
use monstrum_api::tasks::Narrow;
use monstrum_store::{Page, SubscriptionMaker, SubscriptionRow};
use monstrum_types::{BotId, KeyId, SubscriptionId, WorkspaceId};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::change::{Change, changed_at, set};
use super::{Admin, Caller, InputErrors, OperationError, Operator, list, narrow};
use crate::app::App;
use crate::events::{EventSource, SUBSCRIPTIONS_MAX, subscription_faults};

/// The maximum number of entries in `from`.
const SOURCES_MAX: usize = 100;
/// The maximum number of keys that are kept of those that have changed a subscription.
const STARTERS_MAX: usize = 100;

/// Creates a subscription.
pub async fn create(app: &App, caller: &Operator, new: NewSubscription) -> Result<Subscription, OperationError> {
    let NewSubscription { bot_id, pattern, instruction, from, narrow, active, expires_at } = new;
    let (workspace_id, now) = (caller.workspace, app.clock.now());
    let sources = sources(from);
    let row = SubscriptionRow {
        id: SubscriptionId::new(),
        workspace_id,
        bot_id,
        pattern,
        instruction,
        sources: json!(sources),
        narrow: narrow.as_ref().map(|narrow| json!(narrow)),
        active,
        made_by_kind: SubscriptionMaker::Key,
        made_by_id: caller.key.to_string(),
        starters: json!([caller.key]),
        expires_at,
        created_at: now,
        updated_at: now,
    };
    if app.policy.load().bot(workspace_id, bot_id).is_none() {
        return Err(OperationError::invalid_at("/bot_id", "no such bot"));
    }
    if check(app, &row, &sources, narrow.as_ref())? {
        caller.admin()?;
    }
    check_end(app, &row)?;
    let created = shown(row.clone());
    let insert = async {
        match app.store.insert_subscription(&row, SUBSCRIPTIONS_MAX).await? {
            true => Ok(()),
            false => Err(OperationError::conflict(format!(
                "the bot has {SUBSCRIPTIONS_MAX} subscriptions, which is the maximum; delete one first"
            ))),
        }
    };
    Change::new("subscription.create", &row.id).of_bot(bot_id).to(&created).apply(app, caller, insert).await?;
    Ok(created)
}

/// Lists the subscriptions of a workspace or of a bot, in the order of their creation.
pub async fn list(
    app: &App,
    caller: &Operator,
    bot: Option<BotId>,
    page: &Page<SubscriptionId>,
) -> Result<SubscriptionList, OperationError> {
    Ok(list::page(app.store.subscriptions(caller.workspace, bot, page).await?, shown))
}

/// Shows a subscription.
pub async fn show(app: &App, caller: &Operator, id: SubscriptionId) -> Result<Subscription, OperationError> {
    Ok(shown(row(app, caller.workspace, id).await?))
}

/// Changes a subscription. Its bot cannot be changed.
pub async fn update(
    app: &App,
    caller: &Operator,
    id: SubscriptionId,
    change: SubscriptionChange,
) -> Result<Subscription, OperationError> {
    let before = row(app, caller.workspace, id).await?;
    let only_ends = is_end(&change);
    let SubscriptionChange { pattern, instruction, from, narrow, active, expires_at } = change;
    let mut row = before.clone();
    set(&mut row.pattern, pattern);
    set(&mut row.instruction, instruction);
    set(&mut row.sources, from.map(|from| json!(sources(from))));
    set(&mut row.narrow, narrow.map(|narrow| narrow.map(|narrow| json!(narrow))));
    set(&mut row.active, active);
    set(&mut row.expires_at, expires_at);
    let sources = Vec::<String>::deserialize(&row.sources).map_err(OperationError::internal)?;
    let narrow = row.narrow.as_ref().map(Narrow::deserialize).transpose().map_err(OperationError::internal)?;
    let is_wide = check(app, &row, &sources, narrow.as_ref())?;
    // What a plugin has made ends unless an admin wants it to go on.
    let lives_longer = row.made_by_kind == SubscriptionMaker::Plugin && row.expires_at != before.expires_at;
    if (is_wide && !only_ends) || lives_longer {
        caller.admin()?;
    }
    if expires_at.is_some() {
        check_end(app, &row)?;
    }
    write(app, caller, "subscription.update", before, row).await
}

/// Lets a subscription that a plugin has made go on without an end.
pub async fn confirm(app: &App, caller: &Admin, id: SubscriptionId) -> Result<Subscription, OperationError> {
    let before = row(app, caller.workspace, id).await?;
    if before.made_by_kind != SubscriptionMaker::Plugin {
        return Err(OperationError::conflict("only a subscription that a plugin has made needs to be confirmed"));
    }
    let row = SubscriptionRow { expires_at: None, ..before.clone() };
    write(app, caller, "subscription.confirm", before, row).await
}

/// Deletes a subscription. Tasks that it has started go on.
pub async fn delete(app: &App, caller: &Operator, id: SubscriptionId) -> Result<(), OperationError> {
    let before = row(app, caller.workspace, id).await?;
    let (workspace, now) = (caller.workspace, app.clock.now());
    let delete = app.store.delete_subscription(workspace, id, before.updated_at, now);
    let change = Change::new("subscription.delete", &id).of_bot(before.bot_id).from(&shown(before.clone()));
    change.update(app, caller, delete).await
}

/// Records a change of a subscription, and makes it.
async fn write(
    app: &App,
    caller: &Caller,
    what: &'static str,
    before: SubscriptionRow,
    mut row: SubscriptionRow,
) -> Result<Subscription, OperationError> {
    row.updated_at = changed_at(app, before.updated_at);
    row.starters = started_by(&row.starters, caller.key);
    let changed = shown(row.clone());
    let version = before.updated_at;
    let change = Change::new(what, &row.id).of_bot(row.bot_id).from(&shown(before)).to(&changed);
    change.update(app, caller, app.store.update_subscription(&row, version)).await?;
    Ok(changed)
}

async fn row(app: &App, workspace: WorkspaceId, id: SubscriptionId) -> Result<SubscriptionRow, OperationError> {
    let row = app.store.subscription(workspace, id).await?;
    row.ok_or_else(|| OperationError::not_found("subscription"))
}

/// Returns whether a change does nothing but switch the subscription off.
fn is_end(change: &SubscriptionChange) -> bool {
    let SubscriptionChange { pattern, instruction, from, narrow, active, expires_at } = change;
    let is_other = pattern.is_some() || instruction.is_some() || from.is_some() || narrow.is_some();
    *active == Some(false) && !is_other && expires_at.is_none()
}

fn sources(from: Option<Vec<String>>) -> Vec<String> {
    from.unwrap_or_else(|| EventSource::DEFAULT.iter().map(ToString::to_string).collect())
}

/// Returns the keys that made or changed a subscription, the last one last. They cannot decide about its calls.
fn started_by(starters: &Value, key: KeyId) -> Value {
    let mut starters = Vec::<KeyId>::deserialize(starters).unwrap_or_default();
    starters.retain(|starter| *starter != key);
    starters.push(key);
    let surplus = starters.len().saturating_sub(STARTERS_MAX);
    starters.drain(..surplus);
    json!(starters)
}

/// Checks a subscription. Returns whether it takes the events of other bots, for which it needs an admin.
fn check(
    app: &App,
    row: &SubscriptionRow,
    sources: &[String],
    narrow: Option<&Narrow>,
) -> Result<bool, OperationError> {
    let mut errors = InputErrors::default();
    errors.add_under("", subscription_faults(&row.pattern, &row.instruction));
    if sources.is_empty() {
        errors.add("/from", "must not be empty");
    } else if sources.len() > SOURCES_MAX {
        errors.add("/from", format!("must have at most {SOURCES_MAX} entries"));
    }
    let (snapshot, mut is_wide) = (app.policy.load(), false);
    for (index, word) in sources.iter().enumerate().take(SOURCES_MAX) {
        let path = format!("/from/{index}");
        match word.parse::<EventSource>() {
            Ok(EventSource::Bot(id)) if snapshot.bot(row.workspace_id, id).is_none() => errors.add(path, "no such bot"),
            Ok(source) => is_wide |= source.is_wide(row.bot_id),
            Err(error) => errors.add(path, error.to_string()),
        }
    }
    errors.check()?;
    narrow.map_or(Ok(()), |given| narrow::check("/narrow", given))?;
    Ok(is_wide)
}

/// Checks that a subscription does not end before it begins.
fn check_end(app: &App, row: &SubscriptionRow) -> Result<(), OperationError> {
    match row.expires_at {
        Some(end) if end <= app.clock.now() => Err(OperationError::invalid_at("/expires_at", "must be in the future")),
        _ => Ok(()),
    }
}

/// Returns a subscription as the API shows it.
fn shown(row: SubscriptionRow) -> Subscription {
    // The rows are checked when they are saved, and no other program can edit them.
    let from = Vec::<String>::deserialize(&row.sources).unwrap_or_default();
    let narrow = row.narrow.as_ref().and_then(|narrow| Narrow::deserialize(narrow).ok());
    Subscription {
        id: row.id,
        bot_id: row.bot_id,
        pattern: row.pattern,
        instruction: row.instruction,
        from,
        narrow,
        active: row.active,
        made_by: MadeBy { kind: row.made_by_kind.as_str().to_owned(), id: row.made_by_id },
        expires_at: row.expires_at,
        created_at: row.created_at,
    }
}
