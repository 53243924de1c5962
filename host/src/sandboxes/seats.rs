//! How many sandboxes run at once on this host.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use monstrum_sandbox::{SandboxError, SandboxName};

/// The names of those that run, or are on their way.
pub(super) struct Seats {
    taken: Mutex<HashSet<SandboxName>>,
    max: usize,
}

impl Seats {
    pub(super) fn new(max: u32) -> Seats {
        Seats { taken: Mutex::default(), max: usize::try_from(max).unwrap_or(usize::MAX) }
    }

    /// Takes a seat for a sandbox that is to run; whether it had none.
    pub(super) fn take(&self, name: &SandboxName) -> Result<bool, SandboxError> {
        let mut taken = self.taken();
        if taken.contains(name) {
            return Ok(false);
        }
        if taken.len() >= self.max {
            let words = "as many sandboxes run as may at once on this host; one becomes free when it is idle";
            return Err(SandboxError::Exhausted(format!("{words} (--sandbox-max {})", self.max)));
        }
        Ok(taken.insert(name.clone()))
    }

    /// Notes a sandbox that was found running, whether there is room or not.
    pub(super) fn note(&self, name: &SandboxName) {
        self.taken().insert(name.clone());
    }

    /// Frees the seat of a sandbox that runs no more.
    pub(super) fn free(&self, name: &SandboxName) {
        self.taken().remove(name);
    }

    fn taken(&self) -> MutexGuard<'_, HashSet<SandboxName>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
