//! API keys, by their hashes.

use monstrum_types::{BotId, InvalidId, KeyId, UtcMillis, WorkspaceId};

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{Listed, Page, Store, StoreError};

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// The instance.
    Root,
    /// Everything in its workspace.
    Admin,
    /// All of that but keys, credentials, permissions and the configuration and network of resources.
    Operator,
    /// The tools of one bot.
    Bot,
}

impl KeyKind {
    /// The word by which API and database know it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            KeyKind::Root => "root",
            KeyKind::Admin => "admin",
            KeyKind::Operator => "operator",
            KeyKind::Bot => "bot",
        }
    }

    /// The kind that goes by `word`.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [KeyKind::Root, KeyKind::Admin, KeyKind::Operator, KeyKind::Bot].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A row of `api_keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    pub id: KeyId,
    /// None for a root key.
    pub workspace_id: Option<WorkspaceId>,
    /// Unique in the workspace; among root keys, in the instance.
    pub name: String,
    pub kind: KeyKind,
    /// The bot of a bot key.
    pub bot_id: Option<BotId>,
    /// The first characters of the key, by which it is looked up and recognised.
    pub prefix: String,
    /// The hash of the key.
    pub hash: String,
    pub created_at: UtcMillis,
    /// To the minute; None for never.
    pub last_used_at: Option<UtcMillis>,
}

/// That a key was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// None for a root key.
    pub workspace_id: Option<WorkspaceId>,
    pub id: KeyId,
    pub at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, workspace_id, name, kind, bot_id, prefix, hash, created_at, last_used_at, mac"
    };
}

// A root key is reached without a workspace, any other only with its own.
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
// Several hosts write, each what it knows: the latest use stays.
const USE: &str = concat!(
    "update api_keys set last_used_at = $3 where ",
    of_owner!(),
    " and id = $2 and (last_used_at is null or last_used_at < $3)"
);

impl FromRow for KeyRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(KeyRow {
            id: row.id("id")?,
            workspace_id: row.id_opt("workspace_id")?,
            name: row.text("name")?,
            kind: row.id::<Word>("kind")?.0,
            bot_id: row.id_opt("bot_id")?,
            prefix: row.text("prefix")?,
            hash: row.text("hash")?,
            created_at: row.time("created_at")?,
            last_used_at: row.time_opt("last_used_at")?,
        })
    }
}

impl Authentic for KeyRow {
    const TABLE: Table = Table::ApiKeys;

    fn scope(&self) -> Scope {
        Scope::from(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            &self.name,
            self.kind.as_str(),
            self.bot_id,
            &self.prefix,
            &self.hash,
            self.created_at
        ]
    }
}

/// A kind as its column holds it.
struct Word(KeyKind);

impl TryFrom<String> for Word {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        let expected = "root, admin, operator or bot";
        KeyKind::from_word(&text).map(Word).ok_or(InvalidId { kind: "kind of key", text, expected })
    }
}

impl Store {
    /// Adds a key.
    pub async fn insert_key(&self, row: &KeyRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| change
            .insert(row, values![row.last_used_at], Vec::new())
            .await)
    }

    /// The key of this id in the workspace; without one, among the root keys.
    pub async fn key(&self, workspace: Option<WorkspaceId>, id: KeyId) -> Result<Option<KeyRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Whether there is a root key, however many rows stand there that are not authentic. The instance must be verified.
    pub async fn has_root_key(&self) -> Result<bool, StoreError> {
        let keys: Vec<KeyRow> = self.verified_instance().await?.take();
        Ok(keys.iter().any(|key| key.kind == KeyKind::Root))
    }

    /// A page of the workspace's keys; without one, of the root keys.
    pub async fn keys(
        &self,
        workspace: Option<WorkspaceId>,
        page: &Page<KeyId>,
    ) -> Result<Listed<KeyRow, KeyId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Gives the key of this row a new prefix and hash; whether it was still there, with the hash of the row. Of two
    /// that rotate a key at once, one is told that it came too late. What a key may do never changes.
    pub async fn rotate_key(&self, row: &KeyRow, prefix: &str, hash: &str) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next = |old: &KeyRow| {
                let (prefix, hash) = (prefix.to_owned(), hash.to_owned());
                (old.hash == row.hash).then(|| KeyRow { prefix, hash, ..old.clone() })
            };
            change.update(args![row.id], next).await
        })
    }

    /// Notes uses of keys, all or none. A key that is gone is passed over, and a later use stays. This decides about
    /// no call, so the generation stays as well.
    pub async fn save_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError> {
        let mut session = self.db.write().await?;
        for KeyUse { workspace_id, id, at } in uses {
            session.run(USE, args![*workspace_id, *id, *at]).await?;
        }
        session.commit().await
    }

    /// Deletes a key; whether there was one.
    pub async fn delete_key(&self, workspace: Option<WorkspaceId>, id: KeyId) -> Result<bool, StoreError> {
        let is_own = |key: &KeyRow| key.workspace_id == workspace;
        change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await)
    }
}
