//! A small connection pool.
//!
//! sqlx has its own pool, but that one pings the server whenever a connection is returned, and without a timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::{Limits, connect};
use crate::StoreError;
use crate::error::unavailable;

/// The idle time after which a connection is pinged before it is used again.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(1);
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Pool {
    options: PgConnectOptions,
    limits: Limits,
    /// A semaphore with one permit for each connection that may be open.
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    /// A counter that is incremented for every lost connection, across all pools of a database. Idle connections of
    /// an older generation are dropped, because the server may have restarted since.
    generation: Arc<AtomicU64>,
    /// The tasks that roll back abandoned transactions.
    rollbacks: TaskTracker,
}

struct Idle {
    connection: PgConnection,
    generation: u64,
    since: Instant,
}

/// A permit for a connection, and the connection itself unless it is lost.
pub(super) struct Lease {
    pool: Arc<Pool>,
    connection: Option<PgConnection>,
    generation: u64,
    is_new: bool,
    /// Whether a transaction is open. Dropping the lease rolls the transaction back.
    pub(super) in_transaction: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Pool {
    pub(super) fn new(options: PgConnectOptions, limits: Limits, size: usize, generation: &Arc<AtomicU64>) -> Self {
        Pool {
            options,
            limits,
            permits: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
            generation: Arc::clone(generation),
            rollbacks: TaskTracker::new(),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Leases an idle connection or opens a new one. If all connections are in use, waits for up to the time limit
    /// for connections.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<Lease, StoreError> {
        let permit = match timeout(self.limits.connect, Arc::clone(&self.permits).acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(closed)) => return Err(unavailable("the database is closed", closed)),
            Err(late) => return Err(unavailable("all connections to the database are in use", late)),
        };
        let generation = self.generation.load(Ordering::Acquire);
        let idle = self.take_idle(generation).await;
        let is_new = idle.is_none();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.options, self.limits).await?,
        };
        let (pool, connection, permit) = (Arc::clone(self), Some(connection), Some(permit));
        Ok(Lease { pool, connection, generation, is_new, in_transaction: false, permit })
    }

    async fn take_idle(&self, generation: u64) -> Option<PgConnection> {
        loop {
            let mut idle = self.idle.lock().pop()?;
            if idle.generation != generation {
                continue;
            }
            if idle.since.elapsed() < IDLE_BEFORE_PING {
                return Some(idle.connection);
            }
            if matches!(timeout(PING_TIMEOUT, idle.connection.ping()).await, Ok(Ok(()))) {
                return Some(idle.connection);
            }
            self.report_lost();
        }
    }

    fn put(&self, connection: PgConnection, generation: u64) {
        if !self.permits.is_closed() {
            self.idle.lock().push(Idle { connection, generation, since: Instant::now() });
        }
    }

    fn report_lost(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Stops leasing connections and closes the idle ones.
    pub(super) async fn close(&self) {
        self.permits.close();
        self.rollbacks.close();
        self.rollbacks.wait().await;
        let idle = std::mem::take(&mut *self.idle.lock());
        for idle in idle {
            // If the termination message does not reach the server, the server still notices the closed socket.
            drop(timeout(CLOSE_TIMEOUT, idle.connection.close()).await);
        }
    }
}

impl Lease {
    /// Whether the connection was newly opened for this lease.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(super) fn is_lost(&self) -> bool {
        self.connection.is_none()
    }

    pub(super) fn take_connection(&mut self) -> Result<PgConnection, StoreError> {
        let lost = || unavailable("the connection to the database was lost", "an earlier statement failed");
        self.connection.take().ok_or_else(lost)
    }

    pub(super) fn put_connection(&mut self, connection: PgConnection) {
        self.connection = Some(connection);
    }

    pub(super) fn report_lost(&self) {
        self.pool.report_lost();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let (pool, generation, permit) = (Arc::clone(&self.pool), self.generation, self.permit.take());
        if !self.in_transaction {
            pool.put(connection, generation);
            return;
        }
        // Without a runtime, the connection is dropped and the server rolls the transaction back.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let tracker = pool.rollbacks.clone();
        tracker.spawn_on(
            async move {
                let rollback = sqlx::raw_sql("rollback").execute(&mut connection);
                if matches!(timeout(ROLLBACK_TIMEOUT, rollback).await, Ok(Ok(_))) {
                    pool.put(connection, generation);
                }
                drop(permit);
            },
            &runtime,
        );
    }
}
