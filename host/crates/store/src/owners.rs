//! Owners: which plugin a resource type or a tool's name belongs to.
//!
//! Names are claimed in the transaction that makes a version serve, so that of two plugins that want one name at the same
//! time, on one host or on several, exactly one gets it.

use monstrum_types::{InvalidId, PluginName, UtcMillis};

use crate::db::{ATTEMPTS_MAX, FromRow, Row, Session, args};
use crate::error::unavailable;
use crate::plugins::PUT;
use crate::{PluginRow, Store, StoreError};

/// A kind of name that belongs to one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnedKind {
    /// The id of a resource type.
    Type,
    /// The name of a tool.
    Tool,
}

impl OwnedKind {
    /// The word of the database, also used in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            OwnedKind::Type => "type",
            OwnedKind::Tool => "tool",
        }
    }
}

/// A name that belongs to one plugin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedName {
    pub kind: OwnedKind,
    pub name: String,
}

/// A row of `owners`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRow {
    pub name: OwnedName,
    pub plugin: PluginName,
    /// The plugin for which credentials of this type were given that do not name one.
    pub legacy_plugin: Option<PluginName>,
    /// When the plugin became the owner.
    pub created_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "kind, name, plugin, legacy_plugin, created_at"
    };
}

pub(crate) const ALL: &str = concat!("select ", columns!(), " from owners order by kind, name");
const ONE: &str = concat!("select ", columns!(), " from owners where kind = $1 and name = $2");
const TOOLS_OF: &str =
    concat!("select ", columns!(), " from owners where kind = 'tool' and plugin = $1 order by kind, name");
const CLAIM: &str =
    concat!("insert into owners (", columns!(), ") values ($1, $2, $3, $4, $5) on conflict (kind, name) do nothing");
const TAKE: &str = "update owners set plugin = $3, created_at = $5 where kind = $1 and name = $2 and plugin = $4";
const RELEASE: &str = "delete from owners where kind = $1 and name = $2 and plugin = $3";
const DUE: &str = "select count(*) as value from settings where id = 1 and owners_due = true";
const FILLED: &str = "update settings set owners_due = false where id = 1 and owners_due = true";

/// A kind as its column holds it.
struct Word(OwnedKind);

impl TryFrom<String> for Word {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        let kind = [OwnedKind::Type, OwnedKind::Tool].into_iter().find(|kind| kind.as_str() == text);
        kind.map(Word).ok_or(InvalidId { kind: "kind of owned name", text, expected: "type or tool" })
    }
}

impl FromRow for OwnerRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(OwnerRow {
            name: OwnedName { kind: row.id::<Word>("kind")?.0, name: row.text("name")? },
            plugin: row.id("plugin")?,
            legacy_plugin: row.id_opt("legacy_plugin")?,
            created_at: row.time("created_at")?,
        })
    }
}

impl Store {
    /// Every owned name.
    pub async fn owners(&self) -> Result<Vec<OwnerRow>, StoreError> {
        self.db.all(ALL, args![]).await
    }

    /// Makes a stored version the one that serves, and its plugin the owner of `names`. `takes` are names of other plugins
    /// that an approval moves, as they were when it was asked for. Tools that the plugin owns beyond `names` become free;
    /// its types stay.
    ///
    /// Returns the names that belong to other plugins. Where there are any, nothing has been written.
    pub async fn serve_plugin(
        &self,
        row: &PluginRow,
        names: &[OwnedName],
        takes: &[OwnerRow],
    ) -> Result<Vec<OwnerRow>, StoreError> {
        let mut attempt = 1;
        loop {
            match self.serve_once(row, names, takes).await {
                Err(error) if error.is_contention() && attempt < ATTEMPTS_MAX => attempt += 1,
                done => return done,
            }
        }
    }

    async fn serve_once(
        &self,
        row: &PluginRow,
        names: &[OwnedName],
        takes: &[OwnerRow],
    ) -> Result<Vec<OwnerRow>, StoreError> {
        // In one order everywhere, so that two hosts never wait for each other's rows.
        let mut names: Vec<&OwnedName> = names.iter().collect();
        names.sort();
        let mut session = self.db.write().await?;
        let mut refused = Vec::new();
        for name in &names {
            let taken_from = takes.iter().find(|taken| taken.name == **name).map(|taken| &taken.plugin);
            refused.extend(session.claim(name, row, taken_from).await?);
        }
        if !refused.is_empty() {
            return Ok(refused);
        }
        for tool in session.all::<OwnerRow>(TOOLS_OF, args![&row.name]).await? {
            if !names.contains(&&tool.name) {
                session.run(RELEASE, args![tool.name.kind.as_str(), &tool.name.name, &row.name]).await?;
            }
        }
        let args = args![&row.name, &row.version, &row.manifest_digest, &row.component_digest, row.updated_at];
        session.run(PUT, args).await?;
        session.bump_generation().await?;
        session.commit().await?;
        Ok(refused)
    }

    /// Whether `owners` still has to be filled from the versions that served before the table existed.
    pub async fn owners_are_due(&self) -> Result<bool, StoreError> {
        let due: Option<i64> = self.db.one(DUE, args![]).await?;
        Ok(due.unwrap_or(0) > 0)
    }

    /// Fills `owners` for a database from before the table existed; false where that was done before, and nothing has
    /// been written.
    pub async fn fill_owners(&self, rows: &[OwnerRow]) -> Result<bool, StoreError> {
        let mut session = self.db.write().await?;
        if session.run(FILLED, args![]).await? == 0 {
            return Ok(false);
        }
        for row in rows {
            let OwnerRow { name: OwnedName { kind, name }, plugin, legacy_plugin, created_at } = row;
            let legacy = legacy_plugin.as_ref().map(PluginName::as_str);
            session.run(CLAIM, args![kind.as_str(), name, plugin, legacy, *created_at]).await?;
        }
        session.bump_generation().await?;
        session.commit().await?;
        Ok(true)
    }
}

impl Session {
    /// Makes the plugin of `row` the owner of a name that is free or belongs to `taken_from`. Returns the owner that stands
    /// in the way.
    async fn claim(
        &mut self,
        name: &OwnedName,
        row: &PluginRow,
        taken_from: Option<&PluginName>,
    ) -> Result<Option<OwnerRow>, StoreError> {
        let (kind, text) = (name.kind.as_str(), name.name.as_str());
        // Between the insert and the select another host may release the name; the insert then succeeds the next time.
        for _ in 0..ATTEMPTS_MAX {
            if self.run(CLAIM, args![kind, text, &row.name, None::<&str>, row.updated_at]).await? > 0 {
                return Ok(None);
            }
            if let Some(owner) = taken_from {
                self.run(TAKE, args![kind, text, &row.name, owner, row.updated_at]).await?;
            }
            let owner: Option<OwnerRow> = self.one(ONE, args![kind, text]).await?;
            if let Some(owner) = owner {
                return Ok(Some(owner).filter(|owner| owner.plugin != row.name));
            }
        }
        let what = "others changed the same rows at the same time";
        Err(unavailable(what, format!("{kind} `{text}` was claimed and released again and again")))
    }
}
