//! API keys. Only their hashes are stored.

use monstrum_types::{BotId, KeyId, UtcMillis, WorkspaceId};

use crate::db::{Arg, ColumnValue, Row, args, values};
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// The kind of an API key, which determines its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// Access to the whole instance.
    Root,
    /// Access to everything in its workspace.
    Admin,
    /// Access to everything in its workspace except keys, credentials, permissions, and the configuration and network
    /// of resources.
    Operator,
    /// Reading and deciding the approvals of its workspace, and nothing else.
    Approver,
    /// Access to the tools of one bot.
    Bot,
}

impl KeyKind {
    /// All kinds.
    pub const ALL: [KeyKind; 5] = [KeyKind::Root, KeyKind::Admin, KeyKind::Operator, KeyKind::Approver, KeyKind::Bot];

    /// Returns the name of the kind in the API and the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            KeyKind::Root => "root",
            KeyKind::Admin => "admin",
            KeyKind::Operator => "operator",
            KeyKind::Approver => "approver",
            KeyKind::Bot => "bot",
        }
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        KeyKind::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A row of `api_keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    pub id: KeyId,
    /// The workspace of the key; `None` for a root key.
    pub workspace_id: Option<WorkspaceId>,
    /// The name, which is unique in the workspace, or among all root keys for a root key.
    pub name: String,
    pub kind: KeyKind,
    /// The bot of a bot key; `None` for other kinds.
    pub bot_id: Option<BotId>,
    /// The first characters of the key, for lookup and display.
    pub prefix: String,
    /// The hash of the key.
    pub hash: String,
    pub created_at: UtcMillis,
    /// The time of the last use, rounded to the minute; `None` if the key was never used.
    pub last_used_at: Option<UtcMillis>,
}

/// A single use of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// The workspace of the key; `None` for a root key.
    pub workspace_id: Option<WorkspaceId>,
    pub id: KeyId,
    pub at: UtcMillis,
}

authentic! {
    KeyRow in ApiKeys, columns: columns, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, name, kind, bot_id, prefix, hash, created_at],
    others: [last_used_at],
}

impl ColumnValue for KeyKind {
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        row.parse(column, KeyKind::from_word)
    }
}

impl From<&KeyKind> for Arg<'_> {
    fn from(kind: &KeyKind) -> Self {
        Arg::from(kind.as_str())
    }
}

// `$1` is the workspace of the key, or NULL for root keys. Keys of a workspace are found only with the id of that
// workspace.
macro_rules! of_owner {
    () => {
        "((workspace_id is null and $1 is null) or workspace_id = $1)"
    };
}

pub(crate) const OF_WORKSPACE: &str = concat!("select ", columns!(), " from api_keys where workspace_id = $1");
pub(crate) const OF_BOT: &str =
    concat!("select ", columns!(), " from api_keys where workspace_id = $1 and bot_id = $2");
const BY_ID: &str = concat!("select ", columns!(), " from api_keys where ", of_owner!(), " and id = $2");
const PAGE: &str =
    concat!("select ", columns!(), " from api_keys where ", of_owner!(), " and id > $2 order by id limit $3");
// Several hosts may write uses of the same key. Only the latest use is kept.
const USE: &str = concat!(
    "update api_keys set last_used_at = $3 where ",
    of_owner!(),
    " and id = $2 and (last_used_at is null or last_used_at < $3)"
);

impl Store {
    /// Inserts a key.
    pub async fn insert_key(&self, row: &KeyRow) -> Result<(), StoreError> {
        self.insert_row(row, args![row.last_used_at]).await
    }

    /// Returns the key with this id in the workspace. If `workspace` is `None`, returns the root key with this id.
    pub async fn key(&self, workspace: Option<WorkspaceId>, id: KeyId) -> Result<Option<KeyRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns whether a root key with a valid MAC exists. Fails if the instance is unverified.
    pub async fn has_root_key(&self) -> Result<bool, StoreError> {
        let keys: Vec<KeyRow> = self.verified_instance().await?.take();
        Ok(keys.iter().any(|key| key.kind == KeyKind::Root))
    }

    /// Returns a page of the keys in a workspace. If `workspace` is `None`, returns a page of the root keys.
    pub async fn keys(
        &self,
        workspace: Option<WorkspaceId>,
        page: &Page<KeyId>,
    ) -> Result<Listed<KeyRow, KeyId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Sets a new prefix and hash. Does nothing if the key is missing or its hash differs from the hash of `row`, so
    /// only one of two concurrent rotations succeeds. Returns whether the key was rotated. The permissions of the key
    /// stay unchanged.
    pub async fn rotate_key(&self, row: &KeyRow, prefix: &str, hash: &str) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next = |old: &KeyRow| {
                let (prefix, hash) = (prefix.to_owned(), hash.to_owned());
                (old.hash == row.hash).then(|| KeyRow { prefix, hash, ..old.clone() })
            };
            change.update(args![row.id], next).await
        })
    }

    /// Records uses of keys in one transaction. Skips deleted keys, and does not overwrite later uses. The generation
    /// stays unchanged, because uses do not affect permissions.
    pub async fn save_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError> {
        let mut session = self.db.write().await?;
        for KeyUse { workspace_id, id, at } in uses {
            session.run(USE, args![*workspace_id, *id, *at]).await?;
        }
        session.commit().await
    }

    /// Deletes a key. Returns whether the key existed.
    pub async fn delete_key(&self, workspace: Option<WorkspaceId>, id: KeyId) -> Result<bool, StoreError> {
        let is_own = |key: &KeyRow| key.workspace_id == workspace;
        change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await)
    }
}
