//! API keys. The text of a key is shown once, when the key is created or rotated. The database stores only the hash.

use monstrum_api::keys::{Key, KeyList, NewKeyInput, ShownKey};
use monstrum_store::{KeyRow, PAGE_ITEMS_MAX, Page};
use monstrum_types::{KeyId, KeyKind, Secret, with_causes};

use super::change::Change;
use super::{Admin, Caller, InputErrors, OperationError, rules};
use crate::app::App;
use crate::plugins::built_in;
use crate::policy::Snapshot;
use crate::policy::api_key::{self, NewKey};

/// The lock for deleting a root key, so that two concurrent requests cannot delete the last two root keys.
static DELETING_ROOT_KEY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn view(row: KeyRow, snapshot: &Snapshot) -> Key {
    Key {
        last_used_at: snapshot.last_use(&row),
        id: row.id,
        name: row.name,
        kind: row.kind,
        bot_id: row.bot_id,
        resource_id: row.resource_id,
        prefix: row.prefix,
        created_at: row.created_at,
    }
}

fn view_with_text(row: KeyRow, text: &Secret) -> ShownKey {
    ShownKey {
        id: row.id,
        key: text.expose().to_owned(),
        name: row.name,
        kind: row.kind,
        bot_id: row.bot_id,
        resource_id: row.resource_id,
        prefix: row.prefix,
        created_at: row.created_at,
    }
}

/// Creates a key. Only this answer shows the key in clear text.
pub async fn create(app: &App, caller: &Admin, new: NewKeyInput) -> Result<ShownKey, OperationError> {
    if new.kind == KeyKind::Root {
        caller.root()?;
    }
    check(app, caller, &new).await?;
    let key = api_key::generate().map_err(OperationError::internal)?;
    let workspace = (new.kind != KeyKind::Root).then_some(caller.workspace);
    let row = key.row(new.name, new.kind, workspace, (new.bot_id, new.resource_id), app.clock.now());
    change("key.create", &row)
        .to(&view(row.clone(), &app.policy.load()))
        .create(app, caller, app.store.insert_key(&row))
        .await?;
    Ok(view_with_text(row, &key.text))
}

async fn check(app: &App, caller: &Caller, new: &NewKeyInput) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    rules::name(&mut errors, "/name", &new.name);
    match (new.kind, new.bot_id) {
        (KeyKind::Bot, None) => errors.add("/bot_id", "required when `kind` is `bot`"),
        (KeyKind::Bot, Some(bot)) => {
            if app.store.bot(caller.workspace, bot).await?.is_none() {
                errors.add("/bot_id", "no such bot in this workspace");
            }
        }
        (_, Some(_)) => errors.add("/bot_id", "allowed only when `kind` is `bot`"),
        (_, None) => {}
    }
    match (new.kind, new.resource_id) {
        (KeyKind::Agent, None) => errors.add("/resource_id", "required when `kind` is `agent`"),
        (KeyKind::Agent, Some(resource)) => {
            let row = app.store.resource(caller.workspace, resource).await?;
            if row.is_none_or(|row| row.resource_type.as_str() != built_in::AGENT) {
                errors.add("/resource_id", "no such resource of type `agent` in this workspace");
            }
        }
        (_, Some(_)) => errors.add("/resource_id", "allowed only when `kind` is `agent`"),
        (_, None) => {}
    }
    errors.check()
}

/// Lists the workspace's keys and, for a root key, also the root keys.
pub async fn list(app: &App, caller: &Admin, page: &Page<KeyId>) -> Result<KeyList, OperationError> {
    let listed = app.store.keys(Some(caller.workspace), page).await?;
    let (mut rows, mut more) = (listed.items, listed.next_cursor.is_some());
    if caller.kind == KeyKind::Root {
        let roots = app.store.keys(None, page).await?;
        more |= roots.next_cursor.is_some();
        rows.extend(roots.items);
        rows.sort_by_key(|row| row.id);
    }
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    more |= rows.len() > limit;
    rows.truncate(limit);
    let next_cursor = if more { rows.last().map(|row| row.id.to_string()) } else { None };
    let snapshot = app.policy.load();
    Ok(KeyList { items: rows.into_iter().map(|row| view(row, &snapshot)).collect(), next_cursor })
}

/// Rotates a key. The old key no longer works, and only this answer shows the new key.
pub async fn rotate(app: &App, caller: &Admin, id: KeyId) -> Result<ShownKey, OperationError> {
    let row = key(app, caller, id).await?;
    let NewKey { text, hash, prefix } = api_key::generate().map_err(OperationError::internal)?;
    let hash = hex::encode(hash);
    let rotated = KeyRow { prefix: prefix.clone(), ..row.clone() };
    let snapshot = app.policy.load();
    let rotate = async {
        if !app.store.rotate_key(&row, &prefix, &hash).await? {
            // The key was deleted, or another rotation has replaced it, so the new key would not work.
            key(app, caller, id).await?;
            return Err(OperationError::conflict(
                "another request rotated the key at the same time; read the key again and retry",
            ));
        }
        Ok(())
    };
    let change = change("key.rotate", &row).from(&view(row.clone(), &snapshot)).to(&view(rotated, &snapshot));
    change.apply(app, caller, rotate).await?;
    end_runs(app, &row).await;
    Ok(view_with_text(KeyRow { prefix, hash, ..row }, &text))
}

/// Deletes a key. Fails if the key is the last root key.
pub async fn delete(app: &App, caller: &Admin, id: KeyId) -> Result<(), OperationError> {
    let row = key(app, caller, id).await?;
    let _one_at_a_time = if row.kind == KeyKind::Root {
        let guard = DELETING_ROOT_KEY.lock().await;
        if app.store.keys(None, &Page::first(PAGE_ITEMS_MAX)).await?.items.len() < 2 {
            return Err(OperationError::conflict("this is the last root key; create another root key first"));
        }
        Some(guard)
    } else {
        None
    };
    change("key.delete", &row)
        .from(&view(row.clone(), &app.policy.load()))
        .delete(app, caller, "key", app.store.delete_key(row.workspace_id, id))
        .await?;
    end_runs(app, &row).await;
    Ok(())
}

/// Requests turns of the runs that a bot key has started, which are cancelled by their next turns. A failure only delays
/// this: nothing of the run begins without a turn.
async fn end_runs(app: &App, key: &KeyRow) {
    let Some(workspace) = key.workspace_id.filter(|_| key.kind == KeyKind::Bot) else { return };
    match app.store.wake_runs_of_key(workspace, key.id, app.clock.now()).await {
        Ok(wakes) => app.emitter.signal_wakes(&wakes),
        Err(error) => {
            let error = with_causes(&error);
            tracing::warn!(%error, key.id = %key.id, "the runs of a key are not cancelled yet");
        }
    }
}

fn change(what: &'static str, row: &KeyRow) -> Change {
    Change::new(what, &row.id).of_bot(row.bot_id)
}

/// Reads a key that the caller may see: a key of the caller's workspace or, for a root key, also another root key.
async fn key(app: &App, caller: &Caller, id: KeyId) -> Result<KeyRow, OperationError> {
    let mut row = app.store.key(Some(caller.workspace), id).await?;
    if row.is_none() && caller.kind == KeyKind::Root {
        row = app.store.key(None, id).await?;
    }
    row.ok_or_else(|| OperationError::not_found("key"))
}
