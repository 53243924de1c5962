//! Owners of names. The owner of a resource type or tool name is the plugin that provides it.
//!
//! A plugin becomes the owner of its names in the transaction that activates one of its versions. If two plugins
//! claim the same name concurrently, even on different hosts, exactly one of them succeeds.

use monstrum_types::{PluginName, UtcMillis, words};

use crate::db::{Arg, FromRow, Kind, Row, args, values};
use crate::rows::{Authentic, Change, Scope, Spec, Table, change};
use crate::{PluginRow, Store, StoreError};

words! {
    /// A kind of name that belongs to one plugin.
    #[derive(PartialOrd, Ord)]
    pub enum OwnedKind {
        /// The id of a resource type.
        Type = "type",
        /// The name of a tool.
        Tool = "tool",
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
    /// The plugin for credentials of this resource type that do not specify a plugin.
    pub legacy_plugin: Option<PluginName>,
    /// The time when the plugin became the owner.
    pub created_at: UtcMillis,
}

macro_rules! select {
    ($rest:literal) => {
        concat!("select kind, name, plugin, legacy_plugin, created_at, mac from owners ", $rest)
    };
}

const ONE: &str = select!("where kind = $1 and name = $2");
const TOOLS_OF: &str = select!("where kind = 'tool' and plugin = $1 order by kind, name");
const DUE: &str = "select count(*) as value from settings where id = 1 and owners_due = true";
const FILLED: &str = "update settings set owners_due = false where id = 1 and owners_due = true";

impl FromRow for OwnerRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(OwnerRow {
            name: OwnedName { kind: row.get("kind")?, name: row.get("name")? },
            plugin: row.get("plugin")?,
            legacy_plugin: row.get("legacy_plugin")?,
            created_at: row.get("created_at")?,
        })
    }
}

impl Authentic for OwnerRow {
    const TABLE: Table = Table::Owners;
    const SPEC: Spec = Spec {
        name: "owners",
        key: &["kind", "name"],
        covered: &[
            ("kind", Kind::Text),
            ("name", Kind::Text),
            ("plugin", Kind::Text),
            ("legacy_plugin", Kind::Text),
            ("created_at", Kind::Int),
        ],
        ..Spec::COUNTED
    };

    fn scope(&self) -> Scope {
        Scope::Instance
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        let legacy = self.legacy_plugin.as_ref().map(PluginName::as_str);
        values![self.name.kind.as_str(), &self.name.name, &self.plugin, legacy, self.created_at]
    }
}

impl Store {
    /// Returns all owned names.
    pub async fn owners(&self) -> Result<Vec<OwnerRow>, StoreError> {
        Ok(self.verified_instance().await?.take())
    }

    /// Activates a stored version and makes its plugin the owner of `names`. `takes` lists names that an approval
    /// transfers from other plugins, with the owners at the time of the approval request. Tool names of the plugin
    /// that are not in `names` become free, but its resource types remain owned.
    ///
    /// Returns the names that belong to other plugins. If this list is not empty, nothing is written.
    pub async fn serve_plugin(
        &self,
        row: &PluginRow,
        names: &[OwnedName],
        takes: &[OwnerRow],
    ) -> Result<Vec<OwnerRow>, StoreError> {
        change!(self, &[Scope::Instance], |change| {
            let mut refused = Vec::new();
            for name in names {
                let taken_from = takes.iter().find(|taken| taken.name == *name).map(|taken| &taken.plugin);
                refused.extend(change.claim(name, row, taken_from).await?);
            }
            if !refused.is_empty() {
                return Ok(refused);
            }
            for tool in change.all::<OwnerRow>(TOOLS_OF, args![&row.name]).await? {
                if !names.contains(&tool.name) {
                    let key = args![tool.name.kind.as_str(), &tool.name.name];
                    change.delete(key, |owner: &OwnerRow| owner.plugin == row.name).await?;
                }
            }
            change.put(row).await?;
            Ok(refused)
        })
    }

    /// Returns whether `owners` still lacks the names of versions that were active before the table existed.
    pub async fn owners_are_due(&self) -> Result<bool, StoreError> {
        let due: Option<i64> = self.db.one(DUE, args![]).await?;
        Ok(due.unwrap_or(0) > 0)
    }

    /// Fills `owners` in a database that is older than this table. If this was already done, writes nothing and
    /// returns `false`.
    pub async fn fill_owners(&self, rows: &[OwnerRow]) -> Result<bool, StoreError> {
        change!(self, &[Scope::Instance], |change| {
            if change.session.run(FILLED, args![]).await? == 0 {
                return Ok(false);
            }
            for row in rows {
                let key = args![row.name.kind.as_str(), &row.name.name];
                if change.one::<OwnerRow>(ONE, key).await?.is_none() {
                    change.put(row).await?;
                }
            }
            change.notify();
            Ok(true)
        })
    }
}

impl Change<'_> {
    /// Makes the plugin of `row` the owner of a name that is free or belongs to `taken_from`. If another plugin owns
    /// the name, returns that owner instead.
    async fn claim(
        &mut self,
        name: &OwnedName,
        row: &PluginRow,
        taken_from: Option<&PluginName>,
    ) -> Result<Option<OwnerRow>, StoreError> {
        let (plugin, created_at) = (row.name.clone(), row.updated_at);
        let owner: Option<OwnerRow> = self.one(ONE, args![name.kind.as_str(), &name.name]).await?;
        match owner {
            Some(owner) if owner.plugin == plugin => Ok(None),
            Some(owner) if taken_from != Some(&owner.plugin) => Ok(Some(owner)),
            Some(owner) => {
                self.put(&OwnerRow { plugin, created_at, ..owner }).await?;
                Ok(None)
            }
            None => {
                self.put(&OwnerRow { name: name.clone(), plugin, legacy_plugin: None, created_at }).await?;
                Ok(None)
            }
        }
    }
}
