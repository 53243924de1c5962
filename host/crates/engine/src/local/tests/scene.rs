//! A database, a clock, and an engine whose handlers a test describes.

use std::sync::Weak;

use async_trait::async_trait;
use futures::future::BoxFuture;
use monstrum_store::{InstanceKeyRow, Page, StoreOptions, WakeRow, WorkspaceRow};
use monstrum_types::FixedClock;

use super::super::driver::Searches;
use super::row_key::TestRowKey;
use super::*;
use crate::handler::Turn;

/// The time at which the clock begins.
pub(super) const START: UtcMillis = UtcMillis(1_000_000);
/// The time that a test waits for an event before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) type Ended<'a> = BoxFuture<'a, Result<TurnOutcome, TurnError>>;
type Work = Box<dyn for<'a> Fn(&'a Turn, Context) -> Ended<'a> + Send + Sync>;

/// What the closure of a test knows besides its turn.
pub(super) struct Context {
    pub(super) local: Local,
    /// The number of turns of the engine that have begun, with this one.
    pub(super) number: usize,
}

/// Runs a closure as the turns of a kind, and records the turns.
struct Described {
    kind: WakeKind,
    work: Work,
    engine: Weak<Inner>,
    ran: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Handler for Described {
    fn kind(&self) -> WakeKind {
        self.kind
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        let number = {
            let mut ran = self.ran.lock();
            ran.push(turn.key().id().to_owned());
            ran.len()
        };
        let local = Local(self.engine.upgrade().unwrap());
        (self.work)(turn, Context { local, number }).await
    }
}

#[derive(Default)]
struct Recorded(Mutex<Vec<TurnResult>>);

impl Observer for Recorded {
    fn turn(&self, _: WakeKind, result: TurnResult, _: Duration) {
        self.0.lock().push(result);
    }

    fn due(&self, _: DueCount) {}
}

pub(super) struct Scene {
    _folder: Option<tempfile::TempDir>,
    pub(super) clock: Arc<FixedClock>,
    pub(super) local: Local,
    pub(super) workspace: WorkspaceId,
    ran: Arc<Mutex<Vec<String>>>,
    recorded: Arc<Recorded>,
}

/// Has no more work.
pub(super) fn done<'a>() -> Ended<'a> {
    Box::pin(async { Ok(TurnOutcome::Done) })
}

/// Requests another turn of the same key.
pub(super) fn again(turn: &Turn) -> NewWake {
    NewWake { key: turn.key().clone(), workspace_id: turn.workspace(), due_at: START, claim: None }
}

/// Ends as cancelled turns do.
pub(super) async fn until_cancelled(turn: &Turn) -> Result<TurnOutcome, TurnError> {
    turn.cancelled().await;
    Err(TurnError::Cancelled)
}

pub(super) fn key(kind: WakeKind, id: &str) -> WakeKey {
    WakeKey::new(kind, id).unwrap()
}

impl Scene {
    /// Creates a database, and an engine of the host `a` that drives.
    pub(super) async fn new(
        kind: WakeKind,
        work: impl for<'a> Fn(&'a Turn, Context) -> Ended<'a> + Send + Sync + 'static,
    ) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        let store = store.with_row_key(Arc::new(TestRowKey));
        let (name, sealed) = ("rows".to_owned(), "sealed".to_owned());
        let record = InstanceKeyRow { name, version: 1, sealed, created_at: START };
        assert!(store.initialize(&record, START).await.unwrap());
        let clock = Arc::new(FixedClock::new(START));
        let scene = Scene::on(store, "a", clock, kind, work).await;
        Scene { _folder: Some(folder), ..scene }
    }

    /// Creates another engine on the database of `scene`.
    pub(super) async fn beside(
        scene: &Scene,
        node: &str,
        kind: WakeKind,
        work: impl for<'a> Fn(&'a Turn, Context) -> Ended<'a> + Send + Sync + 'static,
    ) -> Scene {
        Scene::on(scene.local.0.store.clone(), node, Arc::clone(&scene.clock), kind, work).await
    }

    async fn on(
        store: Store,
        node: &str,
        clock: Arc<FixedClock>,
        kind: WakeKind,
        work: impl for<'a> Fn(&'a Turn, Context) -> Ended<'a> + Send + Sync + 'static,
    ) -> Scene {
        let workspace = store.workspace_named(monstrum_store::DEFAULT_WORKSPACE).await.unwrap().unwrap().id;
        let recorded = Arc::new(Recorded::default());
        let observer: Arc<dyn Observer> = Arc::clone(&recorded) as Arc<dyn Observer>;
        let clock_of_engine: Arc<dyn Clock> = Arc::clone(&clock) as Arc<dyn Clock>;
        let local = Local::new(LocalOptions { store, node: node.to_owned(), clock: clock_of_engine, observer });
        local.0.state.lock().drives_until = Some(DrivesUntil::Stop);
        let scene = Scene { _folder: None, clock, local, workspace, ran: Arc::default(), recorded };
        scene.handle(kind, work);
        scene
    }

    pub(super) fn handle(
        &self,
        kind: WakeKind,
        work: impl for<'a> Fn(&'a Turn, Context) -> Ended<'a> + Send + Sync + 'static,
    ) {
        let (work, engine): (Work, _) = (Box::new(work), Arc::downgrade(&self.local.0));
        self.local.register(Arc::new(Described { kind, work, engine, ran: Arc::clone(&self.ran) }));
    }

    pub(super) async fn other_workspace(&self) -> WorkspaceId {
        let (id, name) = (WorkspaceId::new(), "other".to_owned());
        let row = WorkspaceRow { id, name, sandbox: None, created_at: START, updated_at: START };
        self.local.0.store.insert_workspace(&row).await.unwrap();
        id
    }

    /// Returns a request for a turn of a run in `in_ms`.
    pub(super) fn wake(&self, id: &str, in_ms: i64) -> NewWake {
        let due_at = self.clock.now().plus_ms(in_ms);
        NewWake { key: key(WakeKind::Run, id), workspace_id: self.workspace, due_at, claim: None }
    }

    pub(super) async fn write(&self, wake: &NewWake) {
        let written = self.local.0.store.request_turns(std::slice::from_ref(wake)).await.unwrap();
        assert_eq!(written, [true]);
        self.local.signal(std::slice::from_ref(wake));
    }

    pub(super) async fn request(&self, id: &str, in_ms: i64) {
        self.write(&self.wake(id, in_ms)).await;
    }

    /// Writes a request as another process would, without a signal.
    pub(super) async fn request_silently(&self, id: &str, in_ms: i64) {
        assert_eq!(self.local.0.store.request_turns(&[self.wake(id, in_ms)]).await.unwrap(), [true]);
    }

    /// Advances the clock, and waits until all turns that are due have ended.
    pub(super) async fn advance(&self, ms: i64) {
        self.clock.advance_ms(ms);
        loop {
            self.local.0.start_due().await.unwrap();
            if self.local.0.state.lock().running.is_empty() {
                return;
            }
            self.settle().await;
        }
    }

    /// Searches the database, and waits until all turns that are due have ended.
    pub(super) async fn search(&self) {
        self.search_without_waiting().await;
        self.settle().await;
        self.advance(0).await;
    }

    /// Searches the database, and starts the turns that are due.
    pub(super) async fn search_without_waiting(&self) {
        self.local.0.step(&mut Searches::default()).await;
    }

    /// Waits until no turn runs.
    pub(super) async fn settle(&self) {
        self.wait_until(|scene| scene.local.0.state.lock().running.is_empty()).await;
    }

    /// Waits until a condition holds, which is checked when a turn has ended, and each time that another task has run.
    pub(super) async fn wait_until(&self, holds: impl Fn(&Scene) -> bool) {
        let wait = async {
            while !holds(self) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }

    /// Returns the ids of the keys whose turns have begun, in order.
    pub(super) fn ran(&self) -> Vec<String> {
        self.ran.lock().clone()
    }

    pub(super) fn results(&self) -> Vec<TurnResult> {
        self.recorded.0.lock().clone()
    }

    pub(super) async fn wakes(&self) -> Vec<WakeRow> {
        self.local.0.store.wakes(self.workspace, false, &Page::first(1000)).await.unwrap().items
    }

    pub(super) async fn failing(&self) -> Vec<WakeRow> {
        self.local.0.store.wakes(self.workspace, true, &Page::first(1000)).await.unwrap().items
    }
}
