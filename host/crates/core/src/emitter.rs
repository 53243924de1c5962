//! Emits events, and knows what they are caused by.
//!
//! An event that a task emits is caused by the event that started the task, if one did. Such chains have limits, so that
//! bots that start each other come to an end. Code that inserts an event tells the engine about its wake with
//! [`Emitter::signal`]; otherwise the engine finds the wake some time later.

mod plugins;

use std::sync::{Arc, OnceLock, Weak};

use monstrum_store::{EventRow, NewWake, Store, StoreError, wake_of};
use monstrum_types::{Clock, KeyId, RunId, UtcMillis, WorkspaceId};
use monstrum_vault::Vault;
use tokio::sync::watch;

pub use plugins::{PluginSubscriber, SubscribeError};

use crate::audit::Auditor;
use crate::call_types::knows_runs::KnowsRuns;
use crate::call_types::starts_tasks::StartsTasks;
use crate::call_types::task_step::Origin;
use crate::events::rates::{EventRates, EventsLimited};
use crate::events::{self, EventCause, EventError, NewEvent};
use crate::policy::Policy;

/// Tells the engine about wakes that were written.
pub type Signals = Box<dyn Fn(&[NewWake]) + Send + Sync>;

/// An error while an event is emitted.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    #[error(transparent)]
    Limited(#[from] EventsLimited),
    #[error(transparent)]
    Event(#[from] EventError),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
}

/// The event that caused a task or a run cannot be read, so that nothing can be said about its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host cannot find out which event has caused the task or the run")]
pub struct UnknownCause;

/// The events that this host emits.
pub struct Emitter {
    store: Store,
    vault: Arc<Vault>,
    policy: Arc<Policy>,
    auditor: Auditor,
    clock: Arc<dyn Clock>,
    rates: EventRates,
    engine: OnceLock<Signals>,
    /// What knows the causes of tasks. It emits events itself, so the emitter does not keep it alive.
    tasks: OnceLock<Weak<dyn StartsTasks>>,
    runs: OnceLock<Arc<dyn KnowsRuns>>,
    /// The sender that notifies subscribers of each event that is dispatched on this host.
    dispatches: watch::Sender<()>,
}

impl Emitter {
    /// Creates the emitter of a host.
    pub fn new(
        store: Store,
        vault: Arc<Vault>,
        policy: Arc<Policy>,
        auditor: Auditor,
        clock: Arc<dyn Clock>,
    ) -> Emitter {
        let (rates, dispatches) = (EventRates::default(), watch::Sender::new(()));
        let (engine, tasks, runs) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Emitter { store, vault, policy, auditor, clock, rates, engine, tasks, runs, dispatches }
    }

    /// Sets what is told about wakes, and what knows the causes of tasks. A host without tasks has neither.
    pub fn connect(&self, engine: Signals, tasks: Weak<dyn StartsTasks>) {
        self.engine.get_or_init(|| engine);
        self.tasks.get_or_init(|| tasks);
    }

    /// Sets what knows the runs of workflows. A host that runs no workflows has none.
    pub fn connect_runs(&self, runs: Arc<dyn KnowsRuns>) {
        self.runs.get_or_init(|| runs);
    }

    /// Returns the current time.
    pub fn now(&self) -> UtcMillis {
        self.clock.now()
    }

    /// Tells the engine about the wake of an event, after its transaction was committed.
    pub fn signal(&self, event: &EventRow) {
        self.signal_wakes(&[wake_of(event)]);
    }

    /// Tells the engine about wakes, after their transaction was committed.
    pub fn signal_wakes(&self, wakes: &[NewWake]) {
        if let Some(engine) = self.engine.get() {
            engine(wakes);
        }
    }

    /// Returns the cause of the events of a task or a run; `None` if no event has started it.
    ///
    /// # Errors
    ///
    /// The record of the task or the run cannot be read.
    pub async fn cause_of(&self, workspace: WorkspaceId, of: Origin) -> Result<Option<EventCause>, UnknownCause> {
        match of {
            Origin::Task(position) => match self.tasks.get().and_then(Weak::upgrade) {
                Some(tasks) => tasks.cause(workspace, position.task).await.map_err(|_| UnknownCause),
                None => Ok(None),
            },
            Origin::Run(run) => match self.runs.get() {
                Some(runs) => runs.cause(workspace, run).await.map_err(|_| UnknownCause),
                None => Err(UnknownCause),
            },
        }
    }

    /// Returns the keys that started a run, or made what started it. Returns `None` if they are not known.
    pub async fn starters_of_run(&self, workspace: WorkspaceId, run: RunId) -> Option<Vec<KeyId>> {
        self.runs.get()?.starters(workspace, run).await
    }

    /// Counts an event that others emit, and makes its row.
    ///
    /// # Errors
    ///
    /// The bot or the workspace emits too many events, or the data is too large.
    pub fn row(&self, event: NewEvent) -> Result<EventRow, EmitError> {
        let now = self.clock.now();
        events::check_size(&event.data)?;
        self.rates.admit(event.workspace_id, event.bot_id, now)?;
        Ok(events::seal(&self.vault, event, now)?)
    }

    /// Inserts an event, and tells the engine about it.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn insert(&self, row: &EventRow) -> Result<(), StoreError> {
        if !self.store.insert_event(row).await? {
            return Err(StoreError::UnknownReference);
        }
        self.signal(row);
        Ok(())
    }

    /// Notifies subscribers on this host that an event was dispatched.
    pub fn dispatched(&self) {
        self.dispatches.send_replace(());
    }

    /// Returns a receiver that is notified of each event that is dispatched on this host from now on.
    pub fn dispatches(&self) -> watch::Receiver<()> {
        self.dispatches.subscribe()
    }
}
