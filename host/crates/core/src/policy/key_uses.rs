//! The time of each API key's last use, with a resolution of one minute. A request records the time in memory. A
//! background task and the shutdown write new times to the database. Requests do not wait for this write, and decisions
//! do not depend on the time.

use std::sync::atomic::{AtomicI64, Ordering};

use monstrum_store::{KeyUse, Store, StoreError};
use monstrum_types::{KeyId, UtcMillis, WorkspaceId};

/// The maximum number of keys that one transaction writes. A transaction must be short, because the audit waits for the
/// same lock.
const KEYS_PER_TRANSACTION: usize = 100;

/// The minimum time between two recorded uses of a key, in milliseconds. A minute is precise enough to find unused
/// keys. Because of this minimum, a client that reads the list of keys page by page does not change the list with each
/// request.
const RESOLUTION_MS: i64 = 60_000;

const NEVER: i64 = i64::MIN;

/// The last use of one key.
#[derive(Debug)]
pub struct LastUse {
    at: AtomicI64,
    /// The last use according to the database.
    saved: AtomicI64,
}

impl LastUse {
    /// Creates the last use of a key. `saved` is the last use in the database, or `None` if the key was never used.
    pub fn new(saved: Option<UtcMillis>) -> Self {
        let saved = saved.map_or(NEVER, |at| at.0);
        LastUse { at: AtomicI64::new(saved), saved: AtomicI64::new(saved) }
    }

    /// Records a use, unless a use within the last minute is already recorded.
    pub fn note(&self, now: UtcMillis) {
        let at = self.at.load(Ordering::Relaxed);
        if now.0.saturating_sub(at) >= RESOLUTION_MS {
            self.at.fetch_max(now.0, Ordering::Relaxed);
        }
    }

    /// Returns the time of the last use, or `None` if the key was never used.
    pub fn at(&self) -> Option<UtcMillis> {
        Some(self.at.load(Ordering::Relaxed)).filter(|at| *at != NEVER).map(UtcMillis)
    }

    fn unsaved(&self) -> Option<UtcMillis> {
        self.at().filter(|at| at.0 > self.saved.load(Ordering::Relaxed))
    }

    fn saved(&self, at: UtcMillis) {
        self.saved.fetch_max(at.0, Ordering::Relaxed);
    }
}

/// Writes the uses that are not in the database yet. If the write fails, the next call writes them again.
pub async fn save<'a>(
    store: &Store,
    keys: impl Iterator<Item = (Option<WorkspaceId>, KeyId, &'a LastUse)>,
) -> Result<(), StoreError> {
    let unsaved = keys.filter_map(|(workspace_id, id, last_use)| {
        Some((KeyUse { workspace_id, id, at: last_use.unsaved()? }, last_use))
    });
    let mut uses: Vec<_> = unsaved.collect();
    // All hosts use the same order, so that concurrent writes of two hosts do not deadlock.
    uses.sort_unstable_by_key(|(key_use, _)| key_use.id);
    for group in uses.chunks(KEYS_PER_TRANSACTION) {
        let rows: Vec<_> = group.iter().map(|(key_use, _)| *key_use).collect();
        store.save_key_uses(&rows).await?;
        for (KeyUse { at, .. }, last_use) in group {
            last_use.saved(*at);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use monstrum_store::{KeyKind, KeyRow, Page, StoreOptions};

    use super::*;
    use crate::policy::row_seals;

    const NOW: UtcMillis = UtcMillis(1_795_000_000_000);

    async fn root_key(store: &Store, number: usize) -> (KeyId, LastUse) {
        let row = KeyRow {
            id: KeyId::new(),
            workspace_id: None,
            name: format!("key {number}"),
            kind: KeyKind::Root,
            bot_id: None,
            resource_id: None,
            prefix: "mk_abcde".to_owned(),
            hash: format!("hash {number}"),
            created_at: NOW,
            last_used_at: None,
        };
        store.insert_key(&row).await.unwrap();
        (row.id, LastUse::new(None))
    }

    fn uses(keys: &[(KeyId, LastUse)]) -> impl Iterator<Item = (Option<WorkspaceId>, KeyId, &LastUse)> {
        keys.iter().map(|(id, last_use)| (None, *id, last_use))
    }

    async fn saved(store: &Store) -> Vec<Option<i64>> {
        let page = Page::first(monstrum_store::PAGE_ITEMS_MAX);
        let rows = store.keys(None, &page).await.unwrap().items;
        rows.into_iter().map(|row| row.last_used_at.map(|at| at.since_ms(NOW))).collect()
    }

    #[test]
    fn a_use_is_noted_once_a_minute_and_never_moves_backwards() {
        let last_use = LastUse::new(None);
        assert_eq!(last_use.at(), None);
        last_use.note(NOW);
        for ms in [0, 1, RESOLUTION_MS - 1, -5, -RESOLUTION_MS] {
            last_use.note(NOW.plus_ms(ms));
            assert_eq!((last_use.at(), last_use.unsaved()), (Some(NOW), Some(NOW)), "{ms}");
        }
        last_use.saved(NOW);
        assert_eq!((last_use.at(), last_use.unsaved()), (Some(NOW), None));
        let next = NOW.plus_ms(RESOLUTION_MS);
        last_use.note(next);
        assert_eq!((last_use.at(), last_use.unsaved()), (Some(next), Some(next)));
        let last_use = LastUse::new(Some(NOW));
        last_use.note(NOW.plus_ms(1));
        assert_eq!((last_use.at(), last_use.unsaved()), (Some(NOW), None), "a restart must keep the time");
    }

    #[tokio::test]
    async fn only_new_uses_are_written_and_a_failed_write_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let options = || StoreOptions::sqlite(folder.path().join("monstrum.db"));
        let store = row_seals::open_for_tests(options()).await.unwrap();
        let mut keys = Vec::new();
        // The number of keys exceeds the maximum of one transaction.
        for number in 0..=KEYS_PER_TRANSACTION {
            keys.push(root_key(&store, number).await);
        }
        keys.sort_by_key(|(id, _)| *id);
        let generation = store.generation().await.unwrap();
        save(&store, uses(&keys)).await.unwrap();
        assert_eq!(saved(&store).await, vec![None; keys.len()], "no key was used");
        for (_, last_use) in &keys {
            last_use.note(NOW);
        }
        save(&store, uses(&keys)).await.unwrap();
        assert_eq!(saved(&store).await, vec![Some(0); keys.len()]);
        assert!(keys.iter().all(|(_, last_use)| last_use.unsaved().is_none()), "no use is written twice");
        assert_eq!(store.generation().await.unwrap(), generation);

        keys[0].1.note(NOW.plus_ms(RESOLUTION_MS + 7));
        store.close().await;
        assert!(save(&store, uses(&keys)).await.is_err());
        let store = row_seals::open_for_tests(options()).await.unwrap();
        assert_eq!(saved(&store).await[0], Some(0));
        save(&store, uses(&keys)).await.unwrap();
        assert_eq!(saved(&store).await[..2], [Some(RESOLUTION_MS + 7), Some(0)]);
    }
}
