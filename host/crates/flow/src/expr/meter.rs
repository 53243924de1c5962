//! The budget of one evaluation.

use std::cell::Cell;

/// Maximum number of items that all comprehensions of one evaluation visit: a list of a thousand items against a list of
/// a hundred.
pub const ITEMS_MAX: u64 = 100_000;
/// Maximum number of steps of one evaluation, about a tenth of a second. A step is an operation, or a few dozen bytes of
/// text that are compared or copied.
pub const STEPS_MAX: u64 = 2_000_000;
/// Maximum number of bytes that one evaluation creates: as much as the largest result of a step.
pub const VALUE_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum size of the result of one evaluation in bytes of JSON.
pub const RESULT_BYTES_MAX: u64 = 256 * 1024;
/// The bytes that an element of a list or map counts for, beside its text.
pub(super) const ELEMENT_BYTES: u64 = 8;

/// Why an evaluation ended.
#[derive(Debug)]
pub(super) enum Stop {
    /// An operation failed. `&&` and `||` may still have a result.
    Failed(String),
    /// The budget is exhausted, which ends the evaluation at once.
    Budget(String),
}

impl Stop {
    pub(super) fn failed(message: impl Into<String>) -> Stop {
        Stop::Failed(message.into())
    }

    pub(super) fn into_message(self) -> String {
        match self {
            Stop::Failed(message) | Stop::Budget(message) => message,
        }
    }
}

/// What an evaluation has used.
#[derive(Default)]
pub(super) struct Meter {
    steps: Cell<u64>,
    items: Cell<u64>,
    bytes: Cell<u64>,
}

impl Meter {
    pub(super) fn step(&self, steps: u64) -> Result<(), Stop> {
        charge(&self.steps, steps, STEPS_MAX, "steps")
    }

    /// Charges for reading a text of `bytes` bytes once.
    pub(super) fn scan(&self, bytes: usize) -> Result<(), Stop> {
        self.step(1 + bytes as u64 / 32)
    }

    pub(super) fn items(&self, items: usize) -> Result<(), Stop> {
        charge(&self.items, items as u64, ITEMS_MAX, "items of lists and maps")
    }

    /// Charges for `bytes` bytes that are about to be created.
    pub(super) fn create(&self, bytes: u64) -> Result<(), Stop> {
        charge(&self.bytes, bytes, VALUE_BYTES_MAX, "bytes of values")?;
        self.step(1 + bytes / 32)
    }

    pub(super) fn elements(&self, count: usize) -> Result<(), Stop> {
        self.create((count as u64).saturating_mul(ELEMENT_BYTES))
    }
}

fn charge(used: &Cell<u64>, more: u64, most: u64, what: &str) -> Result<(), Stop> {
    let total = used.get().saturating_add(more);
    used.set(total);
    if total > most {
        return Err(Stop::Budget(format!("the expression uses more than {most} {what}")));
    }
    Ok(())
}
