//! Step 4, first half: the cache of resolved names.
//!
//! The cache contains only answers whose addresses were all allowed by the network rules that are part of the key, so an
//! answer that was checked for one resource never serves a resource with other rules. Failures are not kept. Concurrent
//! requests with the same key share one look-up; when the last of these requests ends, the look-up ends as well.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use monstrum_types::Failure;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::policy::Network;

/// The maximum age of an answer, counted from the start of its look-up. The system's resolver reports no lifetime of an
/// answer. Names whose addresses change quickly typically have a lifetime of 30 to 60 s.
pub(crate) const KEPT_MAX: Duration = Duration::from_secs(30);

/// The maximum number of entries. The oldest entry is evicted first. An entry with the maximum of 64 addresses takes
/// about 2 KiB, so the cache takes at most about 2 MiB.
pub(crate) const NAMES_MAX: usize = 1024;

/// The checked addresses of a name, or the reason why the name may not be used.
pub(crate) type Answer = Result<Arc<[IpAddr]>, Failure>;

type Lookup = BoxFuture<'static, Answer>;

/// A name, and the rules by which its addresses are checked.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) network: Network,
}

struct Entry {
    /// The number of the look-up, which distinguishes it from earlier look-ups with the same key.
    number: u64,
    began: Instant,
    state: State,
}

enum State {
    Running(WeakShared<Lookup>),
    Checked(Arc<[IpAddr]>),
}

#[derive(Default)]
struct Kept {
    entries: HashMap<Key, Entry>,
    lookups: u64,
}

/// A look-up that the caller must await, or its answer.
enum Found {
    Checked(Arc<[IpAddr]>),
    Running(u64, Shared<Lookup>),
}

/// The cache of resolved names.
#[derive(Default)]
pub(crate) struct Names {
    kept: Mutex<Kept>,
}

impl Names {
    /// Returns the answer for `key`. If no current answer exists, runs `look_up`, which must return only addresses that
    /// the rules in `key` allow.
    pub(crate) async fn answer<F>(&self, key: Key, look_up: impl FnOnce(Key) -> F) -> Answer
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let (number, lookup) = match self.find(&key, look_up) {
            Found::Checked(addresses) => return Ok(addresses),
            Found::Running(number, lookup) => (number, lookup),
        };
        let answer = lookup.await;
        self.ended(&key, number, &answer);
        answer
    }

    fn find<F>(&self, key: &Key, look_up: impl FnOnce(Key) -> F) -> Found
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let mut kept = self.kept.lock();
        if let Some(entry) = kept.entries.get(key).filter(|entry| entry.began.elapsed() < KEPT_MAX) {
            match &entry.state {
                State::Checked(addresses) => return Found::Checked(Arc::clone(addresses)),
                State::Running(lookup) => {
                    // The upgrade fails if all requests that waited for the look-up have ended.
                    if let Some(lookup) = lookup.upgrade() {
                        return Found::Running(entry.number, lookup);
                    }
                }
            }
        }
        let lookup = look_up(key.clone()).boxed().shared();
        kept.lookups += 1;
        let number = kept.lookups;
        if let Some(running) = lookup.downgrade() {
            kept.make_room_for(key);
            kept.entries.insert(key.clone(), Entry { number, began: Instant::now(), state: State::Running(running) });
        }
        Found::Running(number, lookup)
    }

    /// Keeps the addresses of look-up `number`, or removes its entry if it failed.
    fn ended(&self, key: &Key, number: u64, answer: &Answer) {
        let mut kept = self.kept.lock();
        let Some(entry) = kept.entries.get_mut(key).filter(|entry| entry.number == number) else { return };
        match answer {
            Ok(addresses) => entry.state = State::Checked(Arc::clone(addresses)),
            Err(_) => {
                kept.entries.remove(key);
            }
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.kept.lock().entries.len()
    }
}

impl Kept {
    /// Evicts the oldest entry if the cache is full and has no entry for `key`.
    fn make_room_for(&mut self, key: &Key) {
        if self.entries.len() < NAMES_MAX || self.entries.contains_key(key) {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.number).map(|(key, _)| key.clone());
        oldest.and_then(|key| self.entries.remove(&key));
    }
}

#[cfg(test)]
mod tests;
