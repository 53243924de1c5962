//! How a running call starts the pipeline again for a call of its own.

use std::sync::Arc;

use futures::future::BoxFuture;
use monstrum_types::{CallOutcome, ToolFailure};
use tokio_util::task::TaskTracker;

use crate::call_types::incoming::IncomingCall;

/// The pipeline, for the stages that lie below it.
pub trait RunsCalls: Send + Sync {
    /// Runs a child call to its end. Its parent waits for all `siblings` before it ends itself.
    fn run_child<'a>(
        self: Arc<Self>,
        call: IncomingCall,
        siblings: &'a TaskTracker,
    ) -> BoxFuture<'a, Result<CallOutcome, ToolFailure>>;
}
