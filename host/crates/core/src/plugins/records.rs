//! The database's records of plugins. A load of one plugin reads the records. A scan of all plugins reads them only
//! once, because every read verifies all rows of the instance.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monstrum_store::{PluginRow, Store, StoreError};
use monstrum_types::PluginName;
use tokio::sync::Mutex;

use crate::plugins::owners::Owners;

/// The time for which a scan uses records without asking the database whether another host has changed them. Such a
/// change can also be made right after an assessment, so the host handles it later in any case.
const CHECKED_FOR: Duration = Duration::from_millis(50);

/// The records of plugins at one generation of the instance's seal.
pub(super) struct Records {
    generation: i64,
    plugins: HashMap<PluginName, PluginRow>,
    pub(super) owners: Owners,
}

impl Records {
    /// Returns the serving version of a plugin.
    pub(super) fn plugin(&self, name: &PluginName) -> Option<&PluginRow> {
        self.plugins.get(name)
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
    Running(Option<Checked>),
}

/// The records, and the time at which they were the current records.
struct Checked {
    records: Arc<Records>,
    at: Instant,
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
        let now = Instant::now();
        if let Some(checked) = kept {
            let is_recent = now.duration_since(checked.at) < CHECKED_FOR;
            if is_recent || self.store.instance_generation().await? == checked.records.generation {
                checked.at = if is_recent { checked.at } else { now };
                return Ok(Arc::clone(&checked.records));
            }
        }
        let records = self.read_rows().await?;
        *kept = Some(Checked { records: Arc::clone(&records), at: now });
        Ok(records)
    }

    /// Makes the next read of a scan read the records again. Call this function after each change of the records.
    pub(super) async fn forget(&self) {
        if let Scan::Running(kept) = &mut *self.scan.lock().await {
            *kept = None;
        }
    }

    async fn read_rows(&self) -> Result<Arc<Records>, StoreError> {
        let rows = self.store.plugin_records().await?;
        let owners = Owners::new(rows.owners);
        let plugins = rows.plugins.into_iter().map(|row| (row.name.clone(), row)).collect();
        Ok(Arc::new(Records { generation: rows.generation, plugins, owners }))
    }
}
