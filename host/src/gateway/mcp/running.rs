//! The calls of sessions that run on this host, so that a notification can cancel them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::gateway::mcp::session::Nonce;

/// A session, and the id of a request in it.
type Name = (Nonce, String);

/// The running calls. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Running {
    calls: Arc<Mutex<HashMap<Name, (u64, CancellationToken)>>>,
    entered: Arc<AtomicU64>,
}

/// The entry of one call, which ends with this value.
pub(super) struct RunningCall {
    running: Running,
    name: Name,
    number: u64,
    pub cancelled: CancellationToken,
}

impl Running {
    /// Enters a call. If a client gives the same id to two calls, a notification cancels the later one.
    pub(super) fn enter(&self, session: Nonce, id: String) -> RunningCall {
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        let (name, cancelled) = ((session, id), CancellationToken::new());
        self.calls.lock().insert(name.clone(), (number, cancelled.clone()));
        RunningCall { running: self.clone(), name, number, cancelled }
    }

    /// Cancels the call with this id in a session, if it runs on this host.
    pub(super) fn cancel(&self, session: Nonce, id: String) {
        if let Some((_, cancelled)) = self.calls.lock().get(&(session, id)) {
            cancelled.cancel();
        }
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let mut calls = self.running.calls.lock();
        if calls.get(&self.name).is_some_and(|(number, _)| *number == self.number) {
            calls.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_cancels_the_call_of_its_session_only() {
        let running = Running::default();
        let (one, other) = (running.enter([1; 16], "7".to_owned()), running.enter([2; 16], "7".to_owned()));
        running.cancel([1; 16], "\"7\"".to_owned());
        assert!(!one.cancelled.is_cancelled(), "the id is a number, not a string");
        running.cancel([1; 16], "7".to_owned());
        assert!(one.cancelled.is_cancelled() && !other.cancelled.is_cancelled());
    }

    #[test]
    fn an_ended_call_leaves_no_entry_and_spares_a_later_call_of_the_same_id() {
        let running = Running::default();
        let first = running.enter([1; 16], "7".to_owned());
        let second = running.enter([1; 16], "7".to_owned());
        drop(first);
        running.cancel([1; 16], "7".to_owned());
        assert!(second.cancelled.is_cancelled());
        drop(second);
        assert!(running.calls.lock().is_empty());
    }
}
