//! The labels of tasks: those of the resources whose results the model has read, in this task or earlier in its session.
//!
//! A gate with `after` applies to the calls of a task from the round in which the model has read such a result, whatever the
//! model does then. The labels are sealed with the steps and with the end of each task. The columns of tasks and sessions
//! have them too, so that they outlive deleted tasks; no row alone can take labels away. A sandbox keeps the labels of what was
//! written to it under the MAC of its row, and its calls read them (`call/built_in/sandbox.rs` of monstrum-core).

use monstrum_core::app::App;
use monstrum_store::{Page, SessionRow, StoreError, TaskFilter, TaskRow};
use monstrum_types::{Labels, SessionId};

use crate::journal;
use crate::runner::TaskTurn;
use crate::tasks::Tasks;

/// Returns the labels of a task that has ended. A record that cannot be opened counts as every label, because it may have
/// been replaced to lose them.
fn of_ended(app: &App, row: &TaskRow) -> Labels {
    let sealed = journal::open_task(&app.vault, row).map_or(Labels::ALL, |content| {
        let has_end = content.result.is_some() || content.message.is_some() || content.is_cancelled;
        // The record of the running task may have been put back to lose the labels of its steps.
        if row.ended_at.is_some() && !has_end { Labels::ALL } else { content.labels }
    });
    sealed.with(&row.labels)
}

impl TaskTurn<'_> {
    /// Returns the labels with which the task begins: its own, and those of its session.
    pub(crate) async fn first_labels(&self) -> Result<Labels, StoreError> {
        let app = &self.runner.app;
        let mut labels = self.content.labels.clone().with(&self.row.labels);
        if let Some(id) = self.row.session_id {
            let session = app.store.session(self.row.workspace_id, id).await?;
            labels.add(&session.map(|session| session.labels).unwrap_or_default());
            // Each task has the labels of those before it.
            if let Some(earlier) = app.store.earlier_tasks(self.row, 1).await?.pop() {
                labels.add(&of_ended(app, &earlier));
            }
        }
        Ok(labels)
    }
}

impl Tasks {
    /// Returns the labels with which a session begins its next task. `after` is the expired session that a new session
    /// replaces: the files of its conversation are still there.
    pub(crate) async fn labels_of_session(
        &self,
        session: &SessionRow,
        after: Option<SessionId>,
    ) -> Result<Labels, StoreError> {
        let (store, workspace) = (&self.app.store, session.workspace_id);
        let mut labels = session.labels.clone();
        if let Some(after) = after {
            labels.add(&store.session(workspace, after).await?.map(|after| after.labels).unwrap_or_default());
        }
        let filter = TaskFilter { session: Some(after.unwrap_or(session.id)), ..TaskFilter::default() };
        let newest = store.tasks(workspace, filter, &Page { limit: 1, cursor: None }).await?;
        labels.add(&newest.items.first().map(|row| of_ended(&self.app, row)).unwrap_or_default());
        Ok(labels)
    }
}
