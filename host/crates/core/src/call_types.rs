//! The types that the stages of a call pass to each other and to the audit. They are plain data and do not depend on
//! the policy or on plugins.

pub mod call_labels;
pub mod call_secrets;
pub mod incoming;
pub mod knows_runs;
pub mod lineage;
pub mod links;
pub mod progress;
pub mod refusal;
pub mod resumed;
pub mod round;
pub mod runs_calls;
pub mod starts_tasks;
pub mod task_step;
