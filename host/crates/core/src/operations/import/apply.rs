//! Writes the plans of an import, in transactions of at most [`ROWS_MAX`] rows. Each transaction is recorded as a
//! change in the audit of its workspace, and is in force before the next transaction begins.

use monstrum_store::RowWrite;
use monstrum_types::{RequestId, WorkspaceId};
use serde_json::{Value, json};

use super::plan::{Plan, Planned};
use super::targets::Target;
use crate::app::App;
use crate::operations::change::Change;
use crate::operations::{Caller, OperationError, Root, workspaces};

/// The maximum number of rows in a transaction. Other changes of the workspace wait until the transaction ends.
const ROWS_MAX: usize = 1_000;

/// An import that is being written. It counts the objects whose changes are in force.
pub(super) struct Apply<'a> {
    app: &'a App,
    caller: &'a Caller,
    /// The id of the next change. The first change has the id of the request, and each later change has a new id,
    /// because the audit distinguishes changes by id.
    next_id: RequestId,
    written: usize,
    total: usize,
}

impl<'a> Apply<'a> {
    pub(super) fn new(app: &'a App, caller: &'a Caller, plans: &[(Target, Plan)]) -> Apply<'a> {
        let of_workspace = |target: &Target| usize::from(target.before.as_ref() != Some(&target.row));
        let total = plans.iter().map(|(target, plan)| of_workspace(target) + plan.writes.len()).sum();
        Apply { app, caller, next_id: caller.request, written: 0, total }
    }

    /// Writes all plans. An error says how many objects were written before the error.
    pub(super) async fn run(mut self, plans: &[(Target, Plan)]) -> Result<(), OperationError> {
        for (target, plan) in plans {
            if let Err(error) = self.workspace(target, plan).await {
                return Err(self.with_progress(error));
            }
        }
        Ok(())
    }

    async fn workspace(&mut self, target: &Target, plan: &Plan) -> Result<(), OperationError> {
        match &target.before {
            None => {
                workspaces::insert(self.app, &self.root()?, &target.row).await?;
                self.written += 1;
            }
            Some(before) if *before != target.row => {
                workspaces::replace(self.app, &self.root()?, before.clone(), &target.row).await?;
                self.written += 1;
            }
            Some(_) => {}
        }
        for planned in plan.writes.chunks(ROWS_MAX) {
            self.rows(target.row.id, planned).await?;
            self.written += planned.len();
        }
        Ok(())
    }

    async fn rows(&mut self, workspace: WorkspaceId, planned: &[Planned]) -> Result<(), OperationError> {
        let caller = Caller { workspace, ..self.next() };
        let objects: Vec<Value> = planned.iter().map(Planned::recorded).collect();
        let writes: Vec<RowWrite> = planned.iter().map(|planned| planned.write.clone()).collect();
        let change = Change::new("import.apply", &self.caller.request).to(&json!({ "objects": objects }));
        change.create(self.app, &caller, self.app.store.write_rows(workspace, &writes)).await
    }

    /// Returns the caller of the next change.
    fn next(&mut self) -> Caller {
        let request = std::mem::replace(&mut self.next_id, RequestId::new());
        Caller { request, ..self.caller.clone() }
    }

    fn root(&mut self) -> Result<Root, OperationError> {
        self.next().try_into()
    }

    fn with_progress(&self, error: OperationError) -> OperationError {
        let (written, total) = (self.written, self.total);
        let done = format!(
            "{written} of {total} changed objects were written; repeat the import to write the remaining objects"
        );
        let with = |message: String| format!("{message}; {done}");
        match error {
            OperationError::Unauthenticated(message) => OperationError::Unauthenticated(with(message)),
            OperationError::Forbidden(message) => OperationError::Forbidden(with(message)),
            OperationError::NotFound(message) => OperationError::NotFound(with(message)),
            OperationError::Conflict(message) => OperationError::Conflict(with(message)),
            OperationError::Busy(message) => OperationError::Busy(with(message)),
            OperationError::Unavailable(message) => OperationError::Unavailable(with(message)),
            OperationError::Unverified(message) => OperationError::Unverified(with(message)),
            OperationError::Internal(source) => OperationError::BrokenOff { done, source },
            other => other,
        }
    }
}
