//! Server restarts under load: confirmed writes are preserved, all writes are atomic, and the store recovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Instant;

use monstrum_store::{AuditKind, Store, StoreError, StoreOptions};
use monstrum_types::{RequestId, WorkspaceId};
use tokio::task::JoinSet;

use super::WAIT_MAX;
use crate::rows::{AppendRows as _, bot, chain, default_workspace, event};
use crate::support::postgres::Postgres;

const WORKERS: usize = 8;

/// Concurrent writers that tolerate database failures, and a record of their confirmed writes.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicI64>,
    workers: JoinSet<Work>,
}

#[derive(Default)]
struct Work {
    worker: usize,
    /// The names of the inserted bots.
    bots: Vec<String>,
    /// The number of confirmed rows in this worker's chain.
    events: i64,
    refused: usize,
}

impl Load {
    fn start(store: &Store, workspace: WorkspaceId) -> Load {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicI64>::default());
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (store, stop, answered) = (store.clone(), Arc::clone(&stop), Arc::clone(&answered));
            workers.spawn(async move {
                let mut work = Work { worker, ..Work::default() };
                for number in 0.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    work.step(&store, workspace, number).await;
                    answered.fetch_add(1, Ordering::AcqRel);
                    tokio::task::yield_now().await;
                }
                work
            });
        }
        Load { stop, answered, workers }
    }

    /// Waits until the workers have completed `count` more steps, including failed steps.
    async fn steps(&self, count: i64) {
        let (until, goal) = (Instant::now() + WAIT_MAX, self.answered.load(Ordering::Acquire) + count);
        while self.answered.load(Ordering::Acquire) < goal {
            assert!(Instant::now() < until, "the workers are stuck");
            tokio::task::yield_now().await;
        }
    }

    async fn end(self) -> Vec<Work> {
        self.stop.store(true, Ordering::Release);
        self.workers.join_all().await
    }
}

impl Work {
    /// Inserts a bot, and appends rows after the last row of this worker's audit chain, as the audit writer does.
    async fn step(&mut self, store: &Store, workspace: WorkspaceId, number: usize) {
        let name = format!("{}-{number}", self.worker);
        match store.insert_bot(&bot(workspace, &name)).await {
            Ok(()) => self.bots.push(name),
            Err(StoreError::Unavailable { .. }) => self.refused += 1,
            Err(other) => panic!("inserting a bot failed: {other:?}"),
        }
        let writer = self.worker.to_string();
        let appended = async {
            let next = store.last(&writer).await?.map_or(1, |last| last.sequence + 1);
            let mut rows = [next, next + 1].map(|at| event(workspace, at, AuditKind::Finished, RequestId::new()));
            rows.iter_mut().for_each(|row| row.writer.clone_from(&writer));
            store.append_rows(&rows).await?;
            Ok(rows[1].sequence)
        };
        match appended.await {
            Ok(last) => self.events = last,
            // A commit whose response was lost may still succeed later. The next append then conflicts with it.
            Err(StoreError::Unavailable { .. } | StoreError::Conflict { .. }) => self.refused += 1,
            Err(other) => panic!("events: {other:?}"),
        }
    }
}

async fn check(store: &Store, workspace: WorkspaceId, generation: i64, done: &[Work]) {
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.generation - generation, snapshot.bots.len() as i64, "a change was written partially");
    let names: std::collections::HashSet<_> = snapshot.bots.iter().map(|bot| bot.name.as_str()).collect();
    for work in done {
        assert!(!work.bots.is_empty());
        for name in &work.bots {
            assert!(names.contains(name.as_str()), "the confirmed bot {name} is lost");
        }
        let chain = chain(store, &work.worker.to_string(), 1_000_000).await;
        let sequences: Vec<_> = chain.into_iter().map(|row| row.unwrap().row.sequence).collect();
        assert_eq!(sequences, (1..=sequences.len() as i64).collect::<Vec<_>>(), "the sequence numbers have a gap");
        assert!(sequences.len() as i64 >= work.events, "confirmed rows are lost");
        assert_eq!(sequences.len() % 2, 0, "a batch was written partially");
    }
    store.insert_bot(&bot(workspace, "afterwards")).await.unwrap();
}

/// Stops and restarts the server several times under load.
async fn survives(stop: impl Fn(&mut Postgres)) {
    let server = Postgres::start(&[]).unwrap();
    let options = StoreOptions::from_url(&server.database().unwrap()).unwrap();
    let store = crate::row_key::open(options).await.unwrap();
    let workspace = default_workspace(&store).await;
    let generation = store.generation().await.unwrap();
    let load = Load::start(&store, workspace);
    let mut server = server;
    for _ in 0..3 {
        load.steps(100).await;
        stop(&mut server);
        load.steps(20).await;
        server = tokio::task::spawn_blocking(move || {
            server.launch().unwrap();
            server
        })
        .await
        .unwrap();
    }
    load.steps(100).await;
    let done = load.end().await;
    assert!(done.iter().map(|work| work.refused).sum::<usize>() > 0, "no write failed: was the server stopped?");
    check(&store, workspace, generation, &done).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_loses_no_confirmed_write() {
    survives(|server| server.stop().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_no_confirmed_write() {
    survives(|server| server.kill().unwrap()).await;
}
