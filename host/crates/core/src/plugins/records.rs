//! The database's records of plugins. A load of one plugin reads the records. A scan of all plugins reads them only
//! once, because every read verifies all rows of the instance.

use std::sync::Arc;

use monstrum_store::{PluginRow, Store, StoreError};
use monstrum_types::PluginName;
use tokio::sync::Mutex;

use crate::plugins::owners::Owners;

/// The records of plugins at one generation of the instance's seal.
pub(super) struct Records {
    generation: i64,
    plugins: Vec<PluginRow>,
    pub(super) owners: Owners,
}

impl Records {
    /// Returns the serving version of a plugin.
    pub(super) fn plugin(&self, name: &PluginName) -> Option<&PluginRow> {
        self.plugins.iter().find(|row| row.name == *name)
    }
}

/// A reader of the records that caches them during a scan.
pub(super) struct RecordReader {
    store: Store,
    scan: Mutex<Scan>,
}

/// The state of the scan. A running scan caches the records.
enum Scan {
    None,
    Running(Option<Arc<Records>>),
}

impl RecordReader {
    pub(super) fn new(store: Store) -> RecordReader {
        RecordReader { store, scan: Mutex::new(Scan::None) }
    }

    /// Starts to cache the records. The cached records stay valid until a row of the instance changes.
    pub(super) async fn begin_scan(&self) {
        *self.scan.lock().await = Scan::Running(None);
    }

    /// Stops caching. Every later read goes to the database.
    pub(super) async fn end_scan(&self) {
        *self.scan.lock().await = Scan::None;
    }

    /// Returns the current records.
    pub(super) async fn read(&self) -> Result<Arc<Records>, StoreError> {
        let mut scan = self.scan.lock().await;
        let Scan::Running(kept) = &mut *scan else { return self.read_rows().await };
        if let Some(records) = kept
            && self.store.instance_generation().await? == records.generation
        {
            return Ok(Arc::clone(records));
        }
        let records = self.read_rows().await?;
        *kept = Some(Arc::clone(&records));
        Ok(records)
    }

    async fn read_rows(&self) -> Result<Arc<Records>, StoreError> {
        let rows = self.store.plugin_records().await?;
        let owners = Owners::new(rows.owners);
        Ok(Arc::new(Records { generation: rows.generation, plugins: rows.plugins, owners }))
    }
}
