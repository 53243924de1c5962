//! The effort that pays for the validation in progress.
//!
//! The validator hands its keywords nothing but the value, so a keyword whose work depends on the value finds the effort
//! here. A validation begins and ends on one thread.

use std::cell::RefCell;

use monstrum_types::{Effort, Overrun};

thread_local! {
    static CURRENT: RefCell<Option<Effort>> = const { RefCell::new(None) };
}

/// While it lives, the keywords of this thread's validation pay from one effort. The effort before it returns after it,
/// after a panic too.
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

/// The effort of the validation in progress. Without one, no work is allowed.
pub(super) fn current() -> Effort {
    CURRENT.with_borrow(|effort| effort.clone().unwrap_or_else(|| Effort::of(0)))
}

/// Pays for a piece of the validation in progress.
pub(super) fn spend(steps: u64) -> Result<(), Overrun> {
    CURRENT.with_borrow(|effort| effort.as_ref().map_or(Err(Overrun::Steps), |effort| effort.spend(steps)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effort_before_returns_after_a_panic_too() {
        assert_eq!(spend(0), Err(Overrun::Steps), "no validation is in progress");
        let outer = Effort::of(10);
        let _outer = Paying::from(&outer);
        let panicked = std::panic::catch_unwind(|| {
            let _inner = Paying::from(&Effort::of(100));
            assert_eq!(spend(50), Ok(()));
            panic!("as a keyword might");
        });
        assert!(panicked.is_err());
        assert_eq!(spend(10), Ok(()));
        assert_eq!(spend(1), Err(Overrun::Steps));
        assert_eq!(outer.overrun(), Some(Overrun::Steps));
    }
}
