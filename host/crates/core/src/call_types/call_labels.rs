//! The labels of a call: those of what its caller has read, and those of the results that it reads itself.

use std::sync::Arc;

use monstrum_types::Labels;
use parking_lot::Mutex;

/// The labels of a call, which gates ask for.
#[derive(Clone, Debug)]
pub struct CallLabels {
    carried: Labels,
    /// The labels of the results below the same root call, with its own. All calls of the tree share them.
    read: Arc<Mutex<Labels>>,
}

impl CallLabels {
    /// Creates the labels of a root call whose caller has read results with the labels `carried`.
    #[must_use]
    pub fn new(carried: Labels) -> CallLabels {
        CallLabels { carried, read: Arc::default() }
    }

    /// Returns the labels of a call whose caller the host does not know: every label.
    #[must_use]
    pub fn unknown() -> CallLabels {
        CallLabels::new(Labels::all())
    }

    /// Returns the labels of a child call. The plugin that makes the child call has read the results that the calls below
    /// the root call have returned until now.
    #[must_use]
    pub fn of_child(&self) -> CallLabels {
        let carried = self.carried.clone().with(&self.read.lock());
        CallLabels { carried, read: Arc::clone(&self.read) }
    }

    /// Returns the labels by which the call is judged.
    #[must_use]
    pub fn carried(&self) -> &Labels {
        &self.carried
    }

    /// Returns the labels of the results below the root call, with its own result.
    #[must_use]
    pub fn of_results(&self) -> Labels {
        self.read.lock().clone()
    }

    /// Records that the call has read a result with these labels.
    pub fn has_read(&self, labels: &Labels) {
        // Nothing can be added to the labels of a call that carries all.
        if !self.carried.is_all() {
            self.read.lock().add(labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(name: &str) -> Labels {
        std::iter::once(name.to_owned()).collect()
    }

    #[test]
    fn a_child_call_carries_what_was_read_before_it() {
        let root = CallLabels::new(labels("a"));
        let first = root.of_child();
        assert_eq!(first.carried(), &labels("a"));
        first.has_read(&labels("b"));
        let below_the_second = root.of_child().of_child();
        assert_eq!(below_the_second.carried(), &labels("a").with(&labels("b")));
        assert_eq!((root.carried(), first.carried()), (&labels("a"), &labels("a")));
        assert_eq!(root.of_results(), labels("b"));
    }

    #[test]
    fn an_unknown_caller_carries_every_label() {
        let root = CallLabels::unknown();
        root.has_read(&labels("a"));
        assert!(root.carried().is_all() && root.of_child().carried().is_all());
    }
}
