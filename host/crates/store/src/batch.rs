//! Changes of many rows of a workspace in one transaction, for imports.

use monstrum_types::{UtcMillis, WorkspaceId};

use crate::db::args;
use crate::rows::{Authentic, Change, Scope, change, digest};
use crate::{BindingRow, BotRow, ResourceRow, RoleRow, Store, StoreError};

/// A row of a kind that an import writes.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigurationRow {
    Role(RoleRow),
    Bot(BotRow),
    Resource(ResourceRow),
    Binding(Box<BindingRow>),
}

/// A row to write.
#[derive(Clone, Debug, PartialEq)]
pub struct RowWrite {
    pub row: ConfigurationRow,
    /// The `updated_at` of the row that is replaced, as the caller read it; `None` inserts a new row.
    pub before: Option<UtcMillis>,
}

macro_rules! rows {
    ($($kind:ident($row:ident)),+) => {$(
        impl From<$row> for ConfigurationRow {
            fn from(row: $row) -> Self {
                ConfigurationRow::$kind(row)
            }
        }
    )+};
}

rows!(Role(RoleRow), Bot(BotRow), Resource(ResourceRow));

impl From<BindingRow> for ConfigurationRow {
    fn from(row: BindingRow) -> Self {
        ConfigurationRow::Binding(Box::new(row))
    }
}

impl ConfigurationRow {
    /// Returns the SHA-256 of the bytes that the row's MAC covers. Fails if a text cannot be stored.
    pub fn digest(&self) -> Result<[u8; 32], StoreError> {
        match self {
            ConfigurationRow::Role(row) => digest(row),
            ConfigurationRow::Bot(row) => digest(row),
            ConfigurationRow::Resource(row) => digest(row),
            ConfigurationRow::Binding(row) => digest(&**row),
        }
    }
}

impl Store {
    /// Writes rows of one workspace in their order, all or none. Fails with [`StoreError::ChangedMeanwhile`] if a row
    /// to replace is missing or was changed since the caller read it.
    pub async fn write_rows(&self, workspace: WorkspaceId, writes: &[RowWrite]) -> Result<(), StoreError> {
        change!(self, &[Scope::from(workspace)], |change| {
            let mut done = Ok(());
            for write in writes {
                done = change.write(write).await;
                if done.is_err() {
                    break;
                }
            }
            done
        })
    }
}

impl Change<'_> {
    async fn write(&mut self, RowWrite { row, before }: &RowWrite) -> Result<(), StoreError> {
        let Some(before) = *before else {
            return match row {
                ConfigurationRow::Role(row) => self.add(row).await,
                ConfigurationRow::Bot(row) => self.add(row).await,
                ConfigurationRow::Resource(row) => self.add(row).await,
                ConfigurationRow::Binding(row) => self.add(&**row).await,
            };
        };
        let is_updated = match row {
            ConfigurationRow::Role(row) => self.update(args![row.id], |old| row.over(old, before)).await?,
            ConfigurationRow::Bot(row) => self.update(args![row.id], |old| row.over(old, before)).await?,
            ConfigurationRow::Resource(row) => self.update(args![row.id], |old| row.over(old, before)).await?,
            ConfigurationRow::Binding(row) => self.update(args![row.id], |old| row.over(old, before)).await?,
        };
        if is_updated { Ok(()) } else { Err(StoreError::ChangedMeanwhile) }
    }

    async fn add<T: Authentic>(&mut self, row: &T) -> Result<(), StoreError> {
        self.insert(row, Vec::new(), Vec::new()).await
    }
}
