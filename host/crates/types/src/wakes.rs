//! The keys of wakes.

use std::fmt;
use std::str::FromStr;

use crate::{InvalidId, words};

/// The maximum length of a key: the longest key names a run, a step of 63 characters and an item of eight numbers.
const KEY_BYTES_MAX: usize = 200;

words! {
    /// The kind of object that takes turns.
    #[derive(PartialOrd, Ord)]
    pub enum WakeKind {
        /// An event that is dispatched to its targets.
        Event = "event",
        /// The delivery of an event to one target.
        Delivery = "delivery",
        /// A schedule that fires.
        Schedule = "schedule",
        /// A run of a workflow.
        Run = "run",
        /// A step of a run. A turn of a step lasts as long as its call.
        Step = "step",
        /// A task of a bot. A turn of a task lasts until the task ends or waits.
        Task = "task",
    }
}

/// The key of a wake: the kind and the id of the object that takes turns, such as `task/0198…`. At any time, at most one
/// turn of a key runs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WakeKey {
    kind: WakeKind,
    text: String,
}

impl WakeKey {
    /// Creates the key of the object with this id. The id of a step consists of the ids of its run, of the step and of
    /// the item, separated by slashes.
    ///
    /// # Errors
    ///
    /// The id is empty, is too long, or has characters other than letters, digits and `-_./`.
    pub fn new(kind: WakeKind, id: impl Into<String>) -> Result<WakeKey, InvalidId> {
        format!("{kind}/{}", id.into()).parse()
    }

    /// Returns the kind of the object.
    #[must_use]
    pub fn kind(&self) -> WakeKind {
        self.kind
    }

    /// Returns the id of the object: the text after the kind.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text.split_once('/').map_or("", |(_, id)| id)
    }

    /// Returns the key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for WakeKey {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let parsed = text.split_once('/').and_then(|(kind, id)| {
            let is_valid = !id.is_empty() && text.len() <= KEY_BYTES_MAX && id.bytes().all(is_allowed);
            WakeKind::from_word(kind).filter(|_| is_valid)
        });
        match parsed {
            Some(kind) => Ok(WakeKey { kind, text: text.to_owned() }),
            None => Err(InvalidId::new("key of a wake", text, "a kind and an id, such as task/0198f0c2-…")),
        }
    }
}

impl fmt::Display for WakeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for WakeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestId;

    #[test]
    fn a_key_has_a_kind_and_an_id() {
        let id = RequestId::new();
        let key = WakeKey::new(WakeKind::Task, id).unwrap();
        assert_eq!((key.kind(), key.id()), (WakeKind::Task, id.to_string().as_str()));
        assert_eq!(key.to_string().parse(), Ok(key));
        let item: WakeKey = format!("step/{id}/triage/3.0").parse().unwrap();
        assert_eq!((item.kind(), item.id()), (WakeKind::Step, format!("{id}/triage/3.0").as_str()));
    }

    #[test]
    fn other_texts_are_no_keys() {
        for bad in ["", "task", "task/", "bot/x", "Task/x", "task/a b", "task/é", "task/x\0"] {
            assert!(bad.parse::<WakeKey>().is_err(), "{bad:?}");
        }
        assert!(WakeKey::new(WakeKind::Task, "x".repeat(KEY_BYTES_MAX)).is_err());
    }
}
