//! What happens in tasks of this host now: the texts of rounds as they arrive, and signals to tasks and listeners.
//!
//! Nothing here is kept. Listeners read the journal for what has ended, and tasks of other hosts have no entry here.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use monstrum_core::call_types::round::RoundChannel;
use monstrum_types::{RequestId, TaskId};
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

/// The number of events of a task that a slow listener can fall behind. A listener that falls behind further misses texts
/// and reads the journal.
const EVENTS_MAX: usize = 256;
/// The number of entries from which entries without tasks and listeners are removed.
const SWEPT_FROM: usize = 64;

/// Something that happens in a task.
#[derive(Clone, Debug)]
pub(crate) enum LiveEvent {
    /// The journal has changed.
    Changed,
    /// A text of the round that will be this step.
    Delta { step: i64, channel: RoundChannel, text: Arc<str> },
}

/// A task of this host, or a task that has listeners on this host.
pub(crate) struct LiveTask {
    /// Cancelled when a caller asks this host to cancel the task.
    pub(crate) cancel: CancellationToken,
    events: broadcast::Sender<LiveEvent>,
    changes: watch::Sender<()>,
    /// The number of clients that wait for the task; `None` for a task that runs without a client.
    clients: watch::Sender<Option<usize>>,
}

impl LiveTask {
    /// Tells the listeners that the journal has changed.
    pub(crate) fn changed(&self) {
        // The error means that the task has no listeners.
        drop(self.events.send(LiveEvent::Changed));
        self.changes.send_replace(());
    }

    /// Watches the changes of the journal. A watcher does not count as a listener and gets no texts as they arrive.
    #[must_use]
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns the number of clients that wait for the task.
    #[must_use]
    pub(crate) fn clients(&self) -> &watch::Sender<Option<usize>> {
        &self.clients
    }

    /// Sends a text to the listeners.
    pub(crate) fn delta(&self, step: i64, channel: RoundChannel, text: String) {
        drop(self.events.send(LiveEvent::Delta { step, channel, text: text.into() }));
    }

    /// Records that the task has clients, although none may have come to this host.
    pub(crate) fn has_clients(&self) {
        self.clients.send_if_modified(|clients| clients.is_none() && clients.replace(0).is_none());
    }

    /// Waits until all clients of the task have gone.
    pub(crate) async fn deserted(&self) {
        // An error would mean that the sender was dropped, but this value owns it.
        drop(self.clients.subscribe().wait_for(|clients| *clients == Some(0)).await);
    }

    /// Waits while all clients of the task have gone. A task that runs without a client does not wait.
    pub(crate) async fn attended(&self) {
        // An error would mean that the sender was dropped, but this value owns it.
        drop(self.clients.subscribe().wait_for(|clients| *clients != Some(0)).await);
    }

    /// Returns whether the task has listeners.
    #[must_use]
    pub(crate) fn has_listeners(&self) -> bool {
        self.events.receiver_count() > 0
    }

    /// Listens to the task.
    #[must_use]
    pub(crate) fn listen(&self) -> broadcast::Receiver<LiveEvent> {
        self.events.subscribe()
    }
}

/// The tasks of this host.
#[derive(Default)]
pub struct LiveTasks {
    tasks: Mutex<HashMap<TaskId, Weak<LiveTask>>>,
    /// The calls that wait for the answer of a task.
    waiting: Mutex<HashSet<RequestId>>,
}

/// A call that waits for the answer of a task. Dropping the value cancels the task.
pub(crate) struct WaitingCall {
    live: Arc<LiveTasks>,
    request: RequestId,
    task: Option<TaskId>,
}

impl WaitingCall {
    /// Registers the call. Its task begins only while the call is registered, so this precedes the task.
    pub(crate) fn register(live: &Arc<LiveTasks>, request: RequestId) -> WaitingCall {
        live.waiting.lock().insert(request);
        WaitingCall { live: Arc::clone(live), request, task: None }
    }

    /// Sets the task for which the call waits.
    pub(crate) fn of(mut self, task: TaskId) -> WaitingCall {
        self.task = Some(task);
        self
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.live.waiting.lock().remove(&self.request);
        if let Some(task) = self.task {
            self.live.cancel(task);
        }
    }
}

impl LiveTasks {
    /// Returns the entry of a task, which exists as long as the task runs here or has a listener.
    #[must_use]
    pub(crate) fn of(&self, id: TaskId) -> Arc<LiveTask> {
        let mut tasks = self.tasks.lock();
        if let Some(task) = tasks.get(&id).and_then(Weak::upgrade) {
            return task;
        }
        if tasks.len() >= SWEPT_FROM {
            tasks.retain(|_, task| task.strong_count() > 0);
        }
        let task = Arc::new(LiveTask {
            cancel: CancellationToken::new(),
            events: broadcast::Sender::new(EVENTS_MAX),
            changes: watch::Sender::new(()),
            clients: watch::Sender::new(None),
        });
        tasks.insert(id, Arc::downgrade(&task));
        task
    }

    /// Returns whether a call of this host waits for the answer of a task.
    pub(crate) fn is_waiting(&self, request: RequestId) -> bool {
        self.waiting.lock().contains(&request)
    }

    /// Cancels a task, if it runs here.
    pub(crate) fn cancel(&self, id: TaskId) {
        if let Some(task) = self.tasks.lock().get(&id).and_then(Weak::upgrade) {
            task.cancel.cancel();
            task.changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_call_that_stops_waiting_cancels_its_task() {
        let live = Arc::new(LiveTasks::default());
        let (request, id) = (RequestId::new(), TaskId::new());
        let task = live.of(id);
        let waiting = WaitingCall::register(&live, request);
        assert!(live.is_waiting(request) && !live.is_waiting(RequestId::new()));
        let waiting = waiting.of(id);
        assert!(live.is_waiting(request) && !task.cancel.is_cancelled());
        assert!(!task.has_listeners());
        drop(waiting);
        assert!(!live.is_waiting(request) && task.cancel.is_cancelled());
    }

    #[tokio::test]
    async fn a_task_waits_while_its_clients_have_gone() {
        let task = LiveTasks::default().of(TaskId::new());
        assert!(task.attended().now_or_never().is_some(), "the task never had a client");
        task.clients().send_replace(Some(1));
        assert!(task.attended().now_or_never().is_some());
        task.clients().send_replace(Some(0));
        let mut waits = Box::pin(task.attended());
        assert!(waits.as_mut().now_or_never().is_none());
        task.clients().send_replace(Some(1));
        waits.await;
    }

    #[tokio::test]
    async fn a_task_of_clients_is_deserted_until_one_comes() {
        let task = LiveTasks::default().of(TaskId::new());
        assert!(task.deserted().now_or_never().is_none(), "the task runs without clients");
        task.has_clients();
        assert!(task.deserted().now_or_never().is_some());
        task.clients().send_replace(Some(1));
        task.has_clients();
        assert!(task.deserted().now_or_never().is_none());
    }

    #[tokio::test]
    async fn listeners_hear_of_changes_and_entries_end_with_their_users() {
        let live = LiveTasks::default();
        let id = TaskId::new();
        let task = live.of(id);
        assert!(!task.has_listeners());
        let mut listener = live.of(id).listen();
        task.changed();
        assert!(matches!(listener.recv().await, Ok(LiveEvent::Changed)));
        live.cancel(id);
        assert!(task.cancel.is_cancelled());
        drop(task);
        assert!(!live.of(id).cancel.is_cancelled(), "a new entry");
        for _ in 0..2 * SWEPT_FROM {
            drop(live.of(TaskId::new()));
        }
        assert!(live.tasks.lock().len() <= SWEPT_FROM);
    }
}
