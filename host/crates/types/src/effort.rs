//! The work budget of one check.
//!
//! Plugins and tenants write patterns and schemas, and callers send the values to match. The work of a check is
//! therefore bounded in advance: the check spends steps from a budget that the host sets. A step takes about a
//! nanosecond in an optimised build. The crates that do the work compute an upper bound for each piece of work; they do
//! not depend on threads, deadlines or tasks.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The remaining steps of a check, and an optional signal that ends the check earlier.
///
/// Clones share one budget. An `Effort` belongs to a single thread.
#[derive(Clone, Debug)]
pub struct Effort(Rc<Budget>);

#[derive(Debug)]
struct Budget {
    left: Cell<u64>,
    halt: Option<Halt>,
    overrun: Cell<Option<Overrun>>,
}

/// A signal that ends a check before its budget is exhausted: at a deadline, or when the caller no longer waits.
#[derive(Clone, Debug)]
pub struct Halt {
    deadline: Instant,
    cancelled: Arc<AtomicBool>,
}

/// The reason why a check ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overrun {
    /// The budget is exhausted.
    #[error("the check exceeded its work limit")]
    Steps,
    /// The deadline has passed.
    #[error("the check exceeded its deadline")]
    Deadline,
    /// The caller no longer waits.
    #[error("the check was cancelled")]
    Cancelled,
}

impl Halt {
    /// Creates a signal that ends the check at `deadline`, or earlier through [`Halt::cancel`].
    #[must_use]
    pub fn at(deadline: Instant) -> Halt {
        Halt { deadline, cancelled: Arc::default() }
    }

    /// Ends the check at its next step.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    fn reason(&self) -> Option<Overrun> {
        if self.cancelled.load(Ordering::Relaxed) {
            Some(Overrun::Cancelled)
        } else if Instant::now() >= self.deadline {
            Some(Overrun::Deadline)
        } else {
            None
        }
    }
}

impl Effort {
    /// Creates a budget of `steps` that has no deadline.
    #[must_use]
    pub fn of(steps: u64) -> Effort {
        Effort::new(steps, None)
    }

    /// Creates a budget of `steps` that `halt` may end early.
    #[must_use]
    pub fn until(steps: u64, halt: Halt) -> Effort {
        Effort::new(steps, Some(halt))
    }

    fn new(steps: u64, halt: Option<Halt>) -> Effort {
        Effort(Rc::new(Budget { left: Cell::new(steps), halt, overrun: Cell::new(None) }))
    }

    /// Spends steps for the next piece of work. Call this function before doing the work.
    ///
    /// # Errors
    /// Fails if the budget does not have that many steps, or if the check was ended from outside. All later calls fail
    /// for the same reason.
    pub fn spend(&self, steps: u64) -> Result<(), Overrun> {
        let Budget { left, halt, overrun } = &*self.0;
        if let Some(reason) = overrun.get() {
            return Err(reason);
        }
        let reason = match left.get().checked_sub(steps) {
            None => Some(Overrun::Steps),
            Some(rest) => {
                left.set(rest);
                halt.as_ref().and_then(Halt::reason)
            }
        };
        overrun.set(reason);
        reason.map_or(Ok(()), Err)
    }

    /// Returns the reason why the check ended without a result, if it did.
    #[must_use]
    pub fn overrun(&self) -> Option<Overrun> {
        self.0.overrun.get()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_spent_budget_refuses_further_work() {
        let effort = Effort::of(10);
        assert_eq!(effort.spend(4), Ok(()));
        let clone = effort.clone();
        assert_eq!(clone.spend(6), Ok(()), "clones share the budget");
        assert_eq!(effort.overrun(), None);
        assert_eq!(effort.spend(1), Err(Overrun::Steps));
        assert_eq!(effort.spend(0), Err(Overrun::Steps));
        assert_eq!(effort.overrun(), Some(Overrun::Steps));
    }

    #[test]
    fn a_check_ends_when_it_is_cancelled_or_late() {
        let halt = Halt::at(Instant::now() + Duration::from_secs(3600));
        let effort = Effort::until(10, halt.clone());
        assert_eq!(effort.spend(1), Ok(()));
        halt.cancel();
        assert_eq!(effort.spend(1), Err(Overrun::Cancelled));
        assert_eq!(Effort::until(10, Halt::at(Instant::now())).spend(1), Err(Overrun::Deadline));
    }
}
