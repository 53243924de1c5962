//! The budgets of one evaluation and of one plan.

use std::cell::Cell;
use std::rc::Rc;

/// Maximum number of items that all comprehensions of one evaluation visit: a list of a thousand items against a list of
/// a hundred.
pub const ITEMS_MAX: u64 = 100_000;
/// Maximum number of steps of one evaluation, about a tenth of a second. A step is an operation, or a few dozen bytes of
/// text that are compared or copied.
pub const STEPS_MAX: u64 = 2_000_000;
/// Maximum number of steps of all evaluations of one plan, about a second: a thousand items with 20,000 steps each.
pub const PLAN_STEPS_MAX: u64 = 20_000_000;
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

/// The steps that several evaluations have used together.
#[derive(Clone, Default)]
pub(crate) struct Budget(Rc<Cell<u64>>);

impl Budget {
    /// Returns whether nothing is left. Then every further evaluation ends at its first step.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() > PLAN_STEPS_MAX
    }
}

/// What an evaluation has used. An evaluation is that of one value of a definition, with all its expressions.
#[derive(Default)]
pub(crate) struct Meter {
    steps: Cell<u64>,
    items: Cell<u64>,
    bytes: Cell<u64>,
    budget: Budget,
}

impl Meter {
    /// A meter whose steps are also taken from a budget.
    pub(crate) fn within(budget: &Budget) -> Meter {
        Meter { budget: budget.clone(), ..Meter::default() }
    }

    pub(super) fn step(&self, steps: u64) -> Result<(), Stop> {
        charge(&self.steps, steps, STEPS_MAX, "steps")?;
        let total = self.budget.0.get().saturating_add(steps);
        self.budget.0.set(total);
        if total > PLAN_STEPS_MAX {
            return Err(Stop::Budget(format!(
                "the expressions of the run use more than {PLAN_STEPS_MAX} steps at once"
            )));
        }
        Ok(())
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
