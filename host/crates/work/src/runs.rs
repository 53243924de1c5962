//! Runs of workflows. record.rs seals what a run and its steps contain, history.rs reads the rows of a run as the history from
//! which the crate flow plans what comes next, and progress.rs turns such a plan into the rows that a turn writes. keys.rs has
//! the names of the turns. start.rs prepares new runs, steps.rs runs the calls of steps, children.rs prepares what steps start
//! beside calls, and waits.rs finds the events for which steps wait. operations.rs and requests.rs have what people do with runs,
//! shown.rs how the API shows them, and stream.rs follows one.

pub mod approvals;
pub mod children;
mod definitions;
mod history;
pub mod keys;
mod known;
mod operations;
mod progress;
mod record;
mod requests;
mod revocation;
mod shown;
pub mod start;
mod steps;
mod stream;
mod turns;
pub mod waits;

pub use definitions::{DefinitionError, Definitions};
pub use history::{HistoryError, history};
pub use known::KnownRuns;
pub use operations::{Runs, RunsInput};
pub use progress::{Progress, ProgressError, StartedStep, progress};
pub use record::{
    BlockContent, EndingContent, InstructionContent, RecordError, RunContent, StepContent, TargetContent, WaitContent,
    WorkContent, open_run, open_step, place_of_run, place_of_step, seal_run, seal_step,
};
pub use steps::StepTurns;
pub use stream::{Following, InvalidRunPosition, RunEvent, RunPosition};
pub use turns::RunTurns;
