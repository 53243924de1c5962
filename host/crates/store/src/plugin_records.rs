//! What the database has on record of plugins, as of one state of the instance's rows.

use crate::db::args;
use crate::{OwnerRow, PluginRow, Scope, Store, StoreError};

/// The plugins that serve and the owners of names, all of them verified.
#[derive(Clone, Debug)]
pub struct PluginRecords {
    /// The generation of the instance's seal that the rows belong to.
    pub generation: i64,
    pub plugins: Vec<PluginRow>,
    pub owners: Vec<OwnerRow>,
}

impl Store {
    /// Reads and verifies the records of plugins.
    pub async fn plugin_records(&self) -> Result<PluginRecords, StoreError> {
        let mut verified = self.verified_instance().await?;
        let generation = verified.generation_of_instance();
        Ok(PluginRecords { generation, plugins: verified.take(), owners: verified.take() })
    }

    /// The generation of the instance's seal as it stands in the database. It is not verified: rows of another generation
    /// have to be read again, and those of this one are what was verified.
    pub async fn instance_generation(&self) -> Result<i64, StoreError> {
        const GENERATION: &str = "select generation from policy_seals where scope = $1";
        let generation: Option<i64> = self.db.one(GENERATION, args![&Scope::Instance.to_string()]).await?;
        Ok(generation.unwrap_or_default())
    }
}
