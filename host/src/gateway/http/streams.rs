//! What streams of server-sent events share: limits of open streams, and where a client continues.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use http::HeaderMap;
use monstrum_types::KeyId;
use parking_lot::Mutex;

use crate::gateway::http::problem::Problem;

/// The header with the id of the event that a client has received last.
pub(crate) const LAST_EVENT_ID: &str = "last-event-id";

/// Returns the id of the event that a client has received last, if it continues a stream.
pub(crate) fn last_event_id<T: FromStr>(headers: &HeaderMap) -> Result<Option<T>, Problem> {
    let Some(id) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let id = id.to_str().ok().and_then(|id| id.parse().ok());
    id.map(Some).ok_or_else(|| Problem::invalid_at(LAST_EVENT_ID, "expected the id of an event"))
}

/// The open streams of one kind. Clones share them.
#[derive(Clone)]
pub(crate) struct Streams {
    of_key_max: usize,
    in_all_max: usize,
    open: Arc<Mutex<HashMap<KeyId, usize>>>,
}

/// The place of one stream, which ends with this value.
pub(crate) struct StreamPlace {
    streams: Streams,
    key: KeyId,
}

impl Streams {
    /// Permits `of_key_max` streams of one key, and `in_all_max` on this host.
    pub(crate) fn new(of_key_max: usize, in_all_max: usize) -> Streams {
        Streams { of_key_max, in_all_max, open: Arc::default() }
    }

    /// Takes a place for a stream of this key.
    pub(crate) fn enter(&self, key: KeyId) -> Result<StreamPlace, Problem> {
        let mut open = self.open.lock();
        if open.values().sum::<usize>() >= self.in_all_max {
            return Err(Problem::full("the server has reached its limit of open streams; try again later"));
        }
        let of_key = open.entry(key).or_default();
        if *of_key >= self.of_key_max {
            let max = self.of_key_max;
            return Err(Problem::full(format!("this key has {max} open streams; close some of them")));
        }
        *of_key += 1;
        Ok(StreamPlace { streams: self.clone(), key })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
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
    fn a_key_and_the_host_have_limits() {
        let streams = Streams::new(64, 1_000);
        let key = KeyId::new();
        let mut places: Vec<_> = (0..64).map(|_| streams.enter(key).unwrap()).collect();
        assert!(streams.enter(key).is_err());
        places.pop();
        places.push(streams.enter(key).unwrap());
        places.extend((64..1_000).map(|_| streams.enter(KeyId::new()).unwrap()));
        assert!(streams.enter(KeyId::new()).is_err());
        drop(places);
        assert!(streams.open.lock().is_empty());
    }
}
