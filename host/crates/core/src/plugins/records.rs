//! What the database has on record of plugins: read for each plugin that is loaded, and once for all plugins of a scan,
//! since every reading verifies all rows of the instance.

use std::sync::Arc;

use monstrum_store::{PluginRow, Store, StoreError};
use monstrum_types::PluginName;
use tokio::sync::Mutex;

use crate::plugins::owners::Owners;

/// The records of plugins as of one generation of the instance's seal.
pub(super) struct Records {
    generation: i64,
    plugins: Vec<PluginRow>,
    pub(super) owners: Owners,
}

impl Records {
    /// The serving version of a plugin.
    pub(super) fn plugin(&self, name: &PluginName) -> Option<&PluginRow> {
        self.plugins.iter().find(|row| row.name == *name)
    }
}

/// Reads the records.
pub(super) struct RecordReader {
    store: Store,
    scan: Mutex<Scan>,
}

/// Whether a scan is under way, which keeps what was read.
enum Scan {
    None,
    Running(Option<Arc<Records>>),
}

impl RecordReader {
    pub(super) fn new(store: Store) -> RecordReader {
        RecordReader { store, scan: Mutex::new(Scan::None) }
    }

    /// Keeps what is read from now on for as long as the rows of the instance stay the same.
    pub(super) async fn begin_scan(&self) {
        *self.scan.lock().await = Scan::Running(None);
    }

    /// Reads everything anew from now on.
    pub(super) async fn end_scan(&self) {
        *self.scan.lock().await = Scan::None;
    }

    /// The records as they are now.
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
