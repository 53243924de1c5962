//! The trait with which the core asks about the runs of workflows whose steps are calls.

use futures::future::BoxFuture;
use monstrum_types::{KeyId, RunId, WorkspaceId};

use crate::call_types::refusal::Refusal;
use crate::events::EventCause;

/// Knows what runs of workflows are about. The core must not depend on the runner of workflows, which implements it.
pub trait KnowsRuns: Send + Sync {
    /// Returns the keys that started a run, or made what started it. Returns `None` if they are not known.
    fn starters(&self, workspace: WorkspaceId, run: RunId) -> BoxFuture<'_, Option<Vec<KeyId>>>;

    /// Returns the cause of the events of a run; `None` if no event has caused the run.
    fn cause(&self, workspace: WorkspaceId, run: RunId) -> BoxFuture<'_, Result<Option<EventCause>, Refusal>>;
}
