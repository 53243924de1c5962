//! Runs of workflows. record.rs seals what a run and its steps contain, history.rs reads the rows of a run as the history from
//! which the crate flow plans what comes next, and progress.rs turns such a plan into the rows that a turn writes. keys.rs has
//! the names of the turns. start.rs prepares new runs, children.rs what steps start beside calls, and waits.rs finds the events
//! for which steps wait.

pub mod approvals;
pub mod children;
mod definitions;
mod history;
pub mod keys;
mod known;
mod progress;
mod record;
pub mod start;
mod turns;
pub mod waits;

pub use definitions::{DefinitionError, Definitions};
pub use history::{HistoryError, history};
pub use known::KnownRuns;
pub use progress::{Progress, ProgressError, StartedStep, progress};
pub use record::{
    BlockContent, EndingContent, InstructionContent, RecordError, RunContent, StepContent, TargetContent, WaitContent,
    WorkContent, open_run, open_step, place_of_run, place_of_step, seal_run, seal_step,
};
pub use turns::RunTurns;
