//! The plugins, and the owners of names, at one generation of the instance.

use crate::db::args;
use crate::{OwnerRow, PluginRow, Scope, Store, StoreError};

/// The active versions of all plugins and the owners of all names, both verified.
#[derive(Clone, Debug)]
pub struct PluginRecords {
    /// The generation of the instance's seal.
    pub generation: i64,
    pub plugins: Vec<PluginRow>,
    pub owners: Vec<OwnerRow>,
}

impl Store {
    /// Reads and verifies the plugins and the owners.
    pub async fn plugin_records(&self) -> Result<PluginRecords, StoreError> {
        let mut verified = self.verified_instance().await?;
        let generation = verified.generation_of_instance();
        Ok(PluginRecords { generation, plugins: verified.take(), owners: verified.take() })
    }

    /// Returns the stored generation of the instance's seal. Does not verify the seal. While this generation is
    /// unchanged, records that were read earlier are still current.
    pub async fn instance_generation(&self) -> Result<i64, StoreError> {
        const GENERATION: &str = "select generation as value from policy_seals where scope = $1";
        let generation: Option<i64> = self.db.one(GENERATION, args![&Scope::Instance.to_string()]).await?;
        Ok(generation.unwrap_or_default())
    }
}
