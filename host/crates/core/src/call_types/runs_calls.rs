//! The trait with which a running call starts the pipeline again for a child call.

use std::sync::Arc;

use futures::future::BoxFuture;
use monstrum_types::{CallOutcome, ToolFailure};
use tokio_util::task::TaskTracker;

use crate::call_types::incoming::IncomingCall;

/// The interface through which stages start child calls. The stages must not depend on `call.rs`, which implements it.
pub trait RunsCalls: Send + Sync {
    /// Runs a child call to its end. The parent call waits for all `siblings` before it ends.
    fn run_child<'a>(
        self: Arc<Self>,
        call: IncomingCall,
        siblings: &'a TaskTracker,
    ) -> BoxFuture<'a, Result<CallOutcome, ToolFailure>>;
}
