//! Tasks of bots: a model is asked, the tools that it asks for are called, and the model reads their results, until it
//! answers.
//!
//! A *task* is the work of a bot on one instruction. A *round* is one exchange with a model, a *step* is a round or a call
//! of a tool, and a *session* is the tasks of one conversation. Rounds and calls are calls of the pipeline like all
//! others: the runner has no rights of its own, and at each call the bot has the permissions of that moment.

#![forbid(unsafe_code)]

mod answers;
mod attendance;
mod calls;
pub mod client_tools;
pub mod compact;
pub mod delivered;
mod endings;
mod find;
mod following;
mod grounds;
pub mod guards;
pub mod journal;
mod labels;
pub mod links;
mod live;
mod output;
mod own_tools;
mod places;
pub mod present;
mod reported;
pub mod requests;
mod resume;
pub mod round;
mod rounds;
mod runner;
pub mod schedules;
mod sessions;
mod shown;
mod spans;
mod started;
mod state;
pub mod stepped;
mod summaries;
mod tasks;
mod waits;

pub use answers::{Answer, AnswerError, AnswerEvent, Answering};
pub use attendance::Attendance;
pub use following::{Delta, Following, TaskEvent};
pub use live::LiveTasks;
pub use runner::{Runner, TaskCode};
pub use schedules::Schedules;
pub use tasks::Tasks;
