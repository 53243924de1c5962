//! Tests of several hosts that share a PostgreSQL database: one drives, the others take over when it ends, and each runs
//! what it has claimed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[expect(unreachable_pub, dead_code, reason = "the file is public in the integration tests, which use all of it")]
#[path = "../../../../tests/support/postgres.rs"]
mod postgres;
#[path = "../src/local/tests/row_key.rs"]
mod row_key;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use monstrum_engine::{Engine as _, Handler, Local, LocalOptions, Observer, Turn, TurnError, TurnOutcome, TurnResult};
use monstrum_store::{DueCount, InstanceKeyRow, NewWake, Page, Store, StoreOptions};
use monstrum_types::{Clock as _, SystemClock, UtcMillis, WakeKey, WakeKind, WorkspaceId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::postgres::Postgres;
use self::row_key::TestRowKey;

/// The time that a test waits for an event before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

struct NoMeters;

impl Observer for NoMeters {
    fn turn(&self, _: WakeKind, _: TurnResult, _: Duration) {}

    fn due(&self, _: DueCount) {}
}

/// Tells the test about each turn. Turns whose id begins with `long` last until they are cancelled.
struct Told {
    node: &'static str,
    began: mpsc::UnboundedSender<(&'static str, String)>,
}

#[async_trait]
impl Handler for Told {
    fn kind(&self) -> WakeKind {
        WakeKind::Task
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        self.began.send((self.node, turn.key().id().to_owned())).unwrap();
        if turn.key().id().starts_with("long") {
            turn.cancelled().await;
            return Err(TurnError::Cancelled);
        }
        Ok(TurnOutcome::Done)
    }
}

struct Host {
    engine: Local,
    stop: CancellationToken,
    run: JoinHandle<()>,
}

impl Host {
    fn start(store: &Store, node: &'static str, began: &mpsc::UnboundedSender<(&'static str, String)>) -> Host {
        let (clock, observer) = (Arc::new(SystemClock), Arc::new(NoMeters));
        let engine = Local::new(LocalOptions { store: store.clone(), node: node.to_owned(), clock, observer });
        engine.register(Arc::new(Told { node, began: began.clone() }));
        let stop = CancellationToken::new();
        let run = tokio::spawn({
            let (engine, stop) = (engine.clone(), stop.clone());
            async move { engine.run(stop).await }
        });
        Host { engine, stop, run }
    }

    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.run).await.unwrap().unwrap();
    }
}

fn key(id: &str) -> WakeKey {
    WakeKey::new(WakeKind::Task, id).unwrap()
}

/// Requests a turn, as a process without an engine would.
async fn request(store: &Store, workspace_id: WorkspaceId, id: &str) {
    let wake = NewWake { key: key(id), workspace_id, due_at: SystemClock.now(), claim: None };
    assert_eq!(store.request_turns(&[wake]).await.unwrap(), [true]);
}

#[tokio::test]
async fn one_host_drives_and_another_takes_over_at_its_end() {
    let server = Postgres::start(&["fsync=off"]).unwrap();
    let store = Store::open(StoreOptions::from_url(&server.database().unwrap()).unwrap()).await.unwrap();
    let store = store.with_row_key(Arc::new(TestRowKey));
    let (name, sealed) = ("rows".to_owned(), "sealed".to_owned());
    let record = InstanceKeyRow { name, version: 1, sealed, created_at: UtcMillis(0) };
    assert!(store.initialize(&record, UtcMillis(0)).await.unwrap());
    let workspace = store.workspace_named(monstrum_store::DEFAULT_WORKSPACE).await.unwrap().unwrap().id;
    let (began, mut turns) = mpsc::unbounded_channel();
    let mut next = async || tokio::time::timeout(PATIENCE, turns.recv()).await.unwrap().unwrap();

    let first = Host::start(&store, "first", &began);
    request(&store, workspace, "a").await;
    assert_eq!(next().await, ("first", "a".to_owned()));
    let second = Host::start(&store, "second", &began);
    for number in 0..20 {
        let id = format!("n{number}");
        request(&store, workspace, &id).await;
        assert_eq!(next().await, ("first", id), "the first host drives");
    }
    // A wake that the second host inserts claimed runs there, although the first host drives.
    let mine = second.engine.reserve(key("mine"), workspace);
    assert_eq!(store.request_turns(std::slice::from_ref(&mine)).await.unwrap(), [true]);
    second.engine.start(&mine);
    assert_eq!(next().await, ("second", "mine".to_owned()));

    // The turn of a host that ends goes on at the other host, which also becomes the driver.
    request(&store, workspace, "long").await;
    assert_eq!(next().await, ("first", "long".to_owned()));
    first.end().await;
    assert_eq!(next().await, ("second", "long".to_owned()));
    request(&store, workspace, "b").await;
    assert_eq!(next().await, ("second", "b".to_owned()));
    second.end().await;
    let left = store.wakes(workspace, false, &Page::first(100)).await.unwrap().items;
    assert_eq!(left.iter().map(|wake| (wake.key.id(), wake.claimed_by.clone())).collect::<Vec<_>>(), [("long", None)]);
    store.close().await;
}
