//! When API keys were last used, to the minute. A request notes it in memory; in the background, and at shutdown, what
//! is new goes to the database. No request waits for that, and nothing is decided by it.

use std::sync::atomic::{AtomicI64, Ordering};

use monstrum_store::{KeyUse, Store, StoreError};
use monstrum_types::UtcMillis;

use crate::policy::Key;

/// How many keys are written in one transaction: the audit waits for the same lock, so it must be short.
const KEYS_PER_TRANSACTION: usize = 100;

/// A use is noted, and so written, at most this often a key: enough to tell a key that nobody uses, and no list changes
/// from page to page because of whoever reads it.
const RESOLUTION_MS: i64 = 60_000;

const NEVER: i64 = i64::MIN;

/// The last use of one key.
#[derive(Debug)]
pub struct LastUse {
    at: AtomicI64,
    /// What of it is in the database.
    saved: AtomicI64,
}

impl LastUse {
    /// As the database knows it.
    pub fn new(saved: Option<UtcMillis>) -> Self {
        let saved = saved.map_or(NEVER, |at| at.0);
        LastUse { at: AtomicI64::new(saved), saved: AtomicI64::new(saved) }
    }

    /// Notes a use, unless one within the last minute is known.
    pub fn note(&self, now: UtcMillis) {
        let at = self.at.load(Ordering::Relaxed);
        if now.0.saturating_sub(at) >= RESOLUTION_MS {
            self.at.fetch_max(now.0, Ordering::Relaxed);
        }
    }

    /// None for never.
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

/// Writes the uses of `keys` that the database does not know yet. What fails is left for the next time.
pub async fn save(store: &Store, keys: impl Iterator<Item = &Key>) -> Result<(), StoreError> {
    let of = |key: &Key| Some(KeyUse { workspace_id: key.workspace, id: key.id, at: key.last_use.unsaved()? });
    let mut uses: Vec<_> = keys.filter_map(|key| Some((of(key)?, &key.last_use))).collect();
    // In one order, so that two hosts which write at once do not wait for each other in a ring.
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
    use std::sync::Arc;

    use monstrum_store::{KeyKind, KeyRow, Page, StoreOptions};
    use monstrum_types::KeyId;

    use super::*;
    use crate::policy::row_seals;

    const NOW: UtcMillis = UtcMillis(1_795_000_000_000);

    async fn root_key(store: &Store, number: usize) -> Key {
        let row = KeyRow {
            id: KeyId::new(),
            workspace_id: None,
            name: format!("key {number}"),
            kind: KeyKind::Root,
            bot_id: None,
            prefix: "mk_abcde".to_owned(),
            hash: format!("hash {number}"),
            created_at: NOW,
            last_used_at: None,
        };
        store.insert_key(&row).await.unwrap();
        Key { id: row.id, kind: row.kind, workspace: None, bot: None, last_use: Arc::new(LastUse::new(None)) }
    }

    async fn saved(store: &Store) -> Vec<Option<i64>> {
        let page = Page::first(monstrum_store::PAGE_ITEMS_MAX);
        let rows = store.keys(None, &page).await.unwrap().items;
        rows.into_iter().map(|row| row.last_used_at.map(|at| at.since_ms(NOW))).collect()
    }

    #[test]
    fn a_use_is_noted_once_a_minute_and_no_clock_turns_it_back() {
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
        assert_eq!((last_use.at(), last_use.unsaved()), (Some(NOW), None), "nor is it after a start");
    }

    #[tokio::test]
    async fn only_what_is_new_is_written_and_a_failure_is_made_good() {
        let folder = tempfile::tempdir().unwrap();
        let options = || StoreOptions::sqlite(folder.path().join("monstrum.db"));
        let store = row_seals::open_for_tests(options()).await.unwrap();
        let mut keys = Vec::new();
        // More than one transaction takes.
        for number in 0..=KEYS_PER_TRANSACTION {
            keys.push(root_key(&store, number).await);
        }
        keys.sort_by_key(|key| key.id);
        let generation = store.generation().await.unwrap();
        save(&store, keys.iter()).await.unwrap();
        assert_eq!(saved(&store).await, vec![None; keys.len()], "none was used");
        for key in &keys {
            key.last_use.note(NOW);
        }
        save(&store, keys.iter()).await.unwrap();
        assert_eq!(saved(&store).await, vec![Some(0); keys.len()]);
        assert!(keys.iter().all(|key| key.last_use.unsaved().is_none()), "nothing is written twice");
        assert_eq!(store.generation().await.unwrap(), generation);

        keys[0].last_use.note(NOW.plus_ms(RESOLUTION_MS + 7));
        store.close().await;
        assert!(save(&store, keys.iter()).await.is_err());
        let store = row_seals::open_for_tests(options()).await.unwrap();
        assert_eq!(saved(&store).await[0], Some(0));
        save(&store, keys.iter()).await.unwrap();
        assert_eq!(saved(&store).await[..2], [Some(RESOLUTION_MS + 7), Some(0)]);
    }
}
