//! Limits how many streams of changes are open.

use std::collections::HashMap;
use std::sync::Arc;

use monstrum_types::KeyId;
use parking_lot::Mutex;

use crate::gateway::http::problem::Problem;

/// The maximum number of open streams of one key. A key usually belongs to one application with a few processes.
const PER_KEY_MAX: usize = 64;
/// The maximum number of open streams on this host. Each change of a bot's permissions makes its streams list the
/// tools.
const IN_ALL_MAX: usize = 1_000;

/// The open streams. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<HashMap<KeyId, usize>>>);

/// The place of one stream, which ends with this value.
pub(super) struct StreamPlace {
    streams: Streams,
    key: KeyId,
}

impl Streams {
    /// Takes a place for a stream of this key.
    pub(super) fn enter(&self, key: KeyId) -> Result<StreamPlace, Problem> {
        let mut open = self.0.lock();
        if open.values().sum::<usize>() >= IN_ALL_MAX {
            return Err(Problem::full("the server has reached its limit of open streams; try again later"));
        }
        let of_key = open.entry(key).or_default();
        if *of_key >= PER_KEY_MAX {
            return Err(Problem::full(format!("this key has {PER_KEY_MAX} open streams; close some of them")));
        }
        *of_key += 1;
        Ok(StreamPlace { streams: self.clone(), key })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.streams.0.lock();
        if let Some(of_key) = open.get_mut(&self.key) {
            *of_key -= 1;
            if *of_key == 0 {
                open.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_sixty_four_streams_and_the_host_a_thousand() {
        let streams = Streams::default();
        let key = KeyId::new();
        let mut places: Vec<_> = (0..PER_KEY_MAX).map(|_| streams.enter(key).unwrap()).collect();
        assert!(streams.enter(key).is_err());
        places.pop();
        places.push(streams.enter(key).unwrap());
        places.extend((PER_KEY_MAX..IN_ALL_MAX).map(|_| streams.enter(KeyId::new()).unwrap()));
        assert!(streams.enter(KeyId::new()).is_err());
        drop(places);
        assert!(streams.0.lock().is_empty());
    }
}
