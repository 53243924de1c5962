//! API keys. Only their hashes are stored.

pub use monstrum_types::KeyKind;
use monstrum_types::{BotId, KeyId, ResourceId, UtcMillis, WorkspaceId};

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

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
    /// The resource of an agent key; `None` for other kinds.
    pub resource_id: Option<ResourceId>,
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
    KeyRow in ApiKeys("api_keys"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, name, kind, bot_id, prefix, hash, created_at],
    optional: [resource_id],
    // The host only displays this column.
    others: [last_used_at],
}

// `$1` is the workspace of the key, or NULL for root keys. Keys of a workspace are found only with the id of that
// workspace.
macro_rules! of_owner {
    () => {
        "((workspace_id is null and $1 is null) or workspace_id = $1)"
    };
}

pub(crate) const OF_WORKSPACE: &str = select!("where workspace_id = $1");
pub(crate) const OF_BOT: &str = select!("where workspace_id = $1 and bot_id = $2");
pub(crate) const OF_RESOURCE: &str = select!("where workspace_id = $1 and resource_id = $2");
const BY_ID: &str = select!(concat!("where ", of_owner!(), " and id = $2"));
const PAGE: &str = select!(concat!("where ", of_owner!(), " and id > $2 order by id limit $3"));
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
