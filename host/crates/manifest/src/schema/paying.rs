//! The budget of the validation that runs on the current thread.
//!
//! The validator passes only the value to its keywords. Keywords whose work depends on the value therefore read the
//! budget from a thread-local variable. Each validation runs on a single thread.

use std::cell::RefCell;

use monstrum_types::{Effort, Overrun};

thread_local! {
    static CURRENT: RefCell<Option<Effort>> = const { RefCell::new(None) };
}

/// A guard that sets the budget of this thread's validation. When the guard is dropped, the previous budget is
/// restored.
pub(super) struct Paying(Option<Effort>);

impl Paying {
    pub(super) fn from(effort: &Effort) -> Paying {
        Paying(CURRENT.replace(Some(effort.clone())))
    }
}

impl Drop for Paying {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Returns the budget of the current validation. Without a current validation, the budget is 0.
pub(super) fn current() -> Effort {
    CURRENT.with_borrow(|effort| effort.clone().unwrap_or_else(|| Effort::of(0)))
}

/// Spends steps from the budget of the current validation.
pub(super) fn spend(steps: u64) -> Result<(), Overrun> {
    CURRENT.with_borrow(|effort| effort.as_ref().map_or(Err(Overrun::Steps), |effort| effort.spend(steps)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_budget_is_restored_after_a_panic() {
        assert_eq!(spend(0), Err(Overrun::Steps), "no validation is in progress");
        let outer = Effort::of(10);
        let _outer = Paying::from(&outer);
        let panicked = std::panic::catch_unwind(|| {
            let _inner = Paying::from(&Effort::of(100));
            assert_eq!(spend(50), Ok(()));
            panic!("deliberate panic of a test");
        });
        assert!(panicked.is_err());
        assert_eq!(spend(10), Ok(()));
        assert_eq!(spend(1), Err(Overrun::Steps));
        assert_eq!(outer.overrun(), Some(Overrun::Steps));
    }
}
