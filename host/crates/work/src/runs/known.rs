//! What the core asks about runs: who started them, and what caused them.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_core::call_types::knows_runs::KnowsRuns;
use monstrum_core::call_types::refusal::Refusal;
use monstrum_core::events::EventCause;
use monstrum_store::Store;
use monstrum_types::{CallOutcome, Code, KeyId, RunId, WorkspaceId, with_causes};
use monstrum_vault::Vault;

use super::record::{RunContent, open_run};

/// The runs of a host, as the core knows them.
pub struct KnownRuns {
    store: Store,
    vault: Arc<Vault>,
}

impl KnownRuns {
    /// Creates the answers about the runs in a database.
    #[must_use]
    pub fn new(store: Store, vault: Arc<Vault>) -> KnownRuns {
        KnownRuns { store, vault }
    }

    /// Returns the content of a run; `None` for a run that does not exist, or that another program has written.
    async fn content(&self, workspace: WorkspaceId, run: RunId) -> Option<RunContent> {
        let row = match self.store.run(workspace, run).await {
            Ok(row) => row?,
            Err(error) => {
                tracing::error!(error = %with_causes(&error), run.id = %run, "a run cannot be read");
                return None;
            }
        };
        match open_run(&self.vault, &row) {
            Ok(content) => Some(content),
            Err(error) => {
                tracing::error!(error = %with_causes(&error), run.id = %run, "the record of a run cannot be opened");
                None
            }
        }
    }
}

impl KnowsRuns for KnownRuns {
    fn starters(&self, workspace: WorkspaceId, run: RunId) -> BoxFuture<'_, Option<Vec<KeyId>>> {
        async move { Some(self.content(workspace, run).await?.starters) }.boxed()
    }

    fn cause(&self, workspace: WorkspaceId, run: RunId) -> BoxFuture<'_, Result<Option<EventCause>, Refusal>> {
        async move {
            let unknown = || Box::new(CallOutcome::error(Code::Unavailable, "the run cannot be read; try again"));
            Ok(self.content(workspace, run).await.ok_or_else(unknown)?.cause)
        }
        .boxed()
    }
}
