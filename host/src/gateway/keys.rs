//! `/api/keys`: API keys. A key is shown once, when it is made or rotated; what is stored is its hash.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_store::{KeyKind, KeyRow, PAGE_ITEMS_MAX, Page};
use monstrum_types::{BotId, KeyId, Secret, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::gateway::changes::Change;
use crate::gateway::extract::{Admin, Caller, Faults, Id, Input, PageQuery, Params};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;
use monstrum_core::app::App;
use monstrum_core::policy::Snapshot;
use monstrum_core::policy::api_key::{self, NewKey};

/// Held while a root key is deleted, so that of the last two only one can go.
static DELETING_ROOT_KEY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The instance: workspaces, plugins, audit verification; acts in `default` or the workspace that the header
    /// `Monstrum-Workspace` names.
    Root,
    /// Everything in its workspace.
    Admin,
    /// All of that but keys, credentials, permissions and the configuration and network of resources.
    Operator,
    /// The tools of one bot.
    Bot,
}

impl From<KeyKind> for Kind {
    fn from(kind: KeyKind) -> Self {
        match kind {
            KeyKind::Root => Kind::Root,
            KeyKind::Admin => Kind::Admin,
            KeyKind::Operator => Kind::Operator,
            KeyKind::Bot => Kind::Bot,
        }
    }
}

impl From<Kind> for KeyKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Root => KeyKind::Root,
            Kind::Admin => KeyKind::Admin,
            Kind::Operator => KeyKind::Operator,
            Kind::Bot => KeyKind::Bot,
        }
    }
}

/// What is known of a key.
#[derive(Serialize, ToSchema)]
pub struct Key {
    pub id: KeyId,
    pub name: String,
    pub kind: Kind,
    /// The bot of a bot key.
    pub bot_id: Option<BotId>,
    /// The first characters of the key, by which its owner knows it.
    pub prefix: String,
    pub created_at: UtcMillis,
    /// When a request last came with it, or up to a minute before; null for never.
    pub last_used_at: Option<UtcMillis>,
}

/// A key that was just made or rotated. Its text is shown this once.
#[derive(Serialize, ToSchema)]
pub struct ShownKey {
    pub id: KeyId,
    /// `mk_` and 256 random bits: keep it, it cannot be shown again.
    pub key: String,
    pub name: String,
    pub kind: Kind,
    pub bot_id: Option<BotId>,
    pub prefix: String,
    pub created_at: UtcMillis,
}

/// A page of keys.
#[derive(Serialize, ToSchema)]
pub struct KeyList {
    pub items: Vec<Key>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKeyInput {
    name: String,
    kind: Kind,
    /// Required for a bot key, and only there.
    bot_id: Option<BotId>,
}

impl Key {
    fn of(row: KeyRow, snapshot: &Snapshot) -> Key {
        Key {
            last_used_at: snapshot.last_use(&row),
            id: row.id,
            name: row.name,
            kind: row.kind.into(),
            bot_id: row.bot_id,
            prefix: row.prefix,
            created_at: row.created_at,
        }
    }
}

impl ShownKey {
    fn of(row: KeyRow, text: &Secret) -> ShownKey {
        ShownKey {
            id: row.id,
            key: text.expose().to_owned(),
            name: row.name,
            kind: row.kind.into(),
            bot_id: row.bot_id,
            prefix: row.prefix,
            created_at: row.created_at,
        }
    }
}

/// Creates a key; the answer is the only place where it is shown
#[utoipa::path(post, path = "/api/keys", tag = "keys", request_body = NewKeyInput,
    responses((status = 201, body = ShownKey), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Input(new): Input<NewKeyInput>,
) -> Result<(StatusCode, Json<ShownKey>), Problem> {
    if new.kind == Kind::Root {
        caller.root()?;
    }
    check(&app, &caller, &new).await?;
    let NewKey { text, hash, prefix } = api_key::generate().map_err(|error| Problem::internal(&error))?;
    let row = KeyRow {
        id: KeyId::new(),
        workspace_id: (new.kind != Kind::Root).then_some(caller.workspace),
        name: new.name,
        kind: new.kind.into(),
        bot_id: new.bot_id,
        prefix,
        hash: hex::encode(hash),
        created_at: app.clock.now(),
        last_used_at: None,
    };
    let made = async {
        app.store.insert_key(&row).await?;
        Ok(app.changed().await?)
    };
    change("key.create", &row).to(&Key::of(row.clone(), &app.policy.load())).made(&app, &caller, made).await?;
    Ok((StatusCode::CREATED, Json(ShownKey::of(row, &text))))
}

async fn check(app: &App, caller: &Caller, new: &NewKeyInput) -> Result<(), Problem> {
    let mut faults = Faults::default();
    rules::name(&mut faults, "/name", &new.name);
    match (new.kind, new.bot_id) {
        (Kind::Bot, None) => faults.add("/bot_id", "a bot key needs the bot whose tools it may call"),
        (Kind::Bot, Some(bot)) => {
            if app.store.bot(caller.workspace, bot).await?.is_none() {
                faults.add("/bot_id", "no such bot in this workspace");
            }
        }
        (_, Some(_)) => faults.add("/bot_id", "only a bot key has a bot"),
        (_, None) => {}
    }
    faults.check()
}

/// Lists the workspace's keys; for a root key, the root keys as well
#[utoipa::path(get, path = "/api/keys", tag = "keys", params(PageQuery),
    responses((status = 200, body = KeyList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Params(query): Params<PageQuery>,
) -> Result<Json<KeyList>, Problem> {
    let page: Page<KeyId> = query.page()?;
    let listed = app.store.keys(Some(caller.workspace), &page).await?;
    let (mut rows, mut more) = (listed.items, listed.next_cursor.is_some());
    if caller.kind == KeyKind::Root {
        let roots = app.store.keys(None, &page).await?;
        more |= roots.next_cursor.is_some();
        rows.extend(roots.items);
        rows.sort_by_key(|row| row.id);
    }
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    more |= rows.len() > limit;
    rows.truncate(limit);
    let next_cursor = if more { rows.last().map(|row| row.id.to_string()) } else { None };
    let snapshot = app.policy.load();
    Ok(Json(KeyList { items: rows.into_iter().map(|row| Key::of(row, &snapshot)).collect(), next_cursor }))
}

/// Gives a key a new text, shown in this answer only; the old one is no longer accepted
#[utoipa::path(post, path = "/api/keys/{id}/rotate", tag = "keys", params(("id" = KeyId, Path)),
    responses((status = 200, body = ShownKey), (status = "4XX", body = ProblemBody)))]
pub async fn rotate(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<KeyId>,
) -> Result<Json<ShownKey>, Problem> {
    let row = key(&app, &caller, id).await?;
    let NewKey { text, hash, prefix } = api_key::generate().map_err(|error| Problem::internal(&error))?;
    let hash = hex::encode(hash);
    let rotated = KeyRow { prefix: prefix.clone(), ..row.clone() };
    let snapshot = app.policy.load();
    let made = async {
        if !app.store.rotate_key(&row, &prefix, &hash).await? {
            // It is gone, or else nobody gets a text that another rotation has made worthless.
            key(&app, &caller, id).await?;
            return Err(Problem::conflict("the key was rotated by another request at the same moment"));
        }
        Ok(app.changed().await?)
    };
    let change = change("key.rotate", &row).from(&Key::of(row.clone(), &snapshot)).to(&Key::of(rotated, &snapshot));
    change.made(&app, &caller, made).await?;
    Ok(Json(ShownKey::of(KeyRow { prefix, hash, ..row }, &text)))
}

/// Deletes a key; the last root key stays
#[utoipa::path(delete, path = "/api/keys/{id}", tag = "keys", params(("id" = KeyId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<KeyId>,
) -> Result<StatusCode, Problem> {
    let row = key(&app, &caller, id).await?;
    let _one_at_a_time = if row.kind == KeyKind::Root {
        let guard = DELETING_ROOT_KEY.lock().await;
        if app.store.keys(None, &Page::first(PAGE_ITEMS_MAX)).await?.items.len() < 2 {
            return Err(Problem::conflict("this is the last root key; create another one first"));
        }
        Some(guard)
    } else {
        None
    };
    let made = async {
        if !app.store.delete_key(row.workspace_id, id).await? {
            return Err(Problem::not_found("key"));
        }
        Ok(app.changed().await?)
    };
    change("key.delete", &row).from(&Key::of(row.clone(), &app.policy.load())).made(&app, &caller, made).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn change(what: &'static str, row: &KeyRow) -> Change {
    let change = Change::new(what, &row.id);
    match row.bot_id {
        Some(bot) => change.of_bot(bot),
        None => change,
    }
}

/// A key that the caller may see: one of its workspace, and for a root key a root key too.
async fn key(app: &App, caller: &Caller, id: KeyId) -> Result<KeyRow, Problem> {
    let mut row = app.store.key(Some(caller.workspace), id).await?;
    if row.is_none() && caller.kind == KeyKind::Root {
        row = app.store.key(None, id).await?;
    }
    row.ok_or_else(|| Problem::not_found("key"))
}
