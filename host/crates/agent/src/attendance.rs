//! Clients that wait for the answer of a task. A task whose clients have all gone begins no further step, and is cancelled
//! unless one comes back in time.

use std::sync::Arc;
use std::time::Duration;

use monstrum_core::operations::{Caller, OperationError};
use monstrum_types::{TaskId, with_causes};
use tokio::sync::broadcast::Receiver;
use tokio::time::sleep;

use crate::live::{LiveEvent, LiveTask};
use crate::runner::TaskTurn;
use crate::tasks::Tasks;

/// The time after which a task without clients is cancelled. Libraries repeat a request within a few seconds.
const RETURN_MAX: Duration = Duration::from_secs(15);

/// A client that waits for a task. It goes when the value is dropped.
pub struct Attendance {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) caller: Caller,
    pub(crate) id: TaskId,
    pub(crate) live: Arc<LiveTask>,
    /// A listener that was there before the task began.
    pub(crate) early: Option<Receiver<LiveEvent>>,
    /// Whether the task was never started.
    is_abandoned: bool,
}

impl Tasks {
    /// Adds a client of a task. The task need not exist yet. Only a client that listens gets the text as it arrives.
    #[must_use]
    pub fn attend(self: &Arc<Self>, caller: &Caller, id: TaskId, listens: bool) -> Attendance {
        let live = self.live.of(id);
        live.clients().send_modify(|clients| *clients = Some(clients.unwrap_or(0).saturating_add(1)));
        let early = listens.then(|| live.listen());
        Attendance { tasks: Arc::clone(self), caller: caller.clone(), id, live, early, is_abandoned: false }
    }
}

impl Attendance {
    /// Ends the attendance of a task that could not be started.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let mut is_last = false;
        self.live.clients().send_modify(|clients| {
            let left = clients.map_or(0, |clients| clients.saturating_sub(1));
            is_last = left == 0;
            *clients = Some(left);
        });
        // Without a runtime, the host has ended and runs no tasks.
        if let (true, Ok(runtime)) = (is_last && !self.is_abandoned, tokio::runtime::Handle::try_current()) {
            let (tasks, caller, live) = (Arc::clone(&self.tasks), self.caller.clone(), Arc::clone(&self.live));
            drop(runtime.spawn(cancel_unless_joined(tasks, caller, self.id, live)));
        }
    }
}

/// Cancels a task if no client comes back in time.
async fn cancel_unless_joined(tasks: Arc<Tasks>, caller: Caller, id: TaskId, live: Arc<LiveTask>) {
    let ended = async {
        let mut changes = live.changes();
        loop {
            // The request may have ended while it started the task, so a task that is not there may still come. If the
            // database fails, the cancellation meets the failure again.
            let row = tasks.app.store.task_state(caller.workspace, id).await;
            let has_ended = matches!(&row, Ok(Some(row)) if row.ended_at.is_some());
            if has_ended || changes.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = live.attended() => return,
        () = tasks.closed.cancelled() => return,
        () = ended => return,
        () = sleep(RETURN_MAX) => {}
    }
    match tasks.cancel(&caller, id).await {
        Ok(_) | Err(OperationError::NotFound(_)) => {}
        Err(error) => {
            tracing::error!(error = %with_causes(&error), task.id = %id, "a task without clients cannot be cancelled");
        }
    }
}

impl TaskTurn<'_> {
    /// Waits until the clients of the task have been gone for as long as one may take to come back. After a restart of the
    /// host, none has come yet. Never returns for a task without clients.
    pub(crate) async fn unattended(&self) {
        loop {
            self.live.deserted().await;
            tokio::select! {
                () = self.live.attended() => {}
                () = sleep(RETURN_MAX) => return,
            }
        }
    }

    /// Waits while all clients of the task have gone. The wait ends when the task stops.
    pub(crate) async fn attended(&self) {
        tokio::select! {
            () = self.live.attended() => {}
            () = self.stop_calls.cancelled() => {}
            () = self.turn.cancelled() => {}
        }
    }
}
