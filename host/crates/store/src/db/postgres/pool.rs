//! A few connections for one kind of work. Whoever finds none free waits, for a while.
//!
//! Not the driver's pool: that one asks the server for a sign of life each time a connection comes back, and waits for it
//! without an end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::{Limits, connect};
use crate::StoreError;
use crate::error::unavailable;

/// A connection that was idle for longer is asked for a sign of life.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);
/// How long a connection may take to give one, to roll back, or to say good-bye.
const COURTESY: Duration = Duration::from_secs(1);

pub(super) struct Pool {
    options: PgConnectOptions,
    limits: Limits,
    room: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    /// Counts the connections that were lost, over all pools of a database: those of an earlier era are suspect.
    era: Arc<AtomicU64>,
    /// Transactions that are being rolled back.
    rollbacks: TaskTracker,
}

struct Idle {
    connection: PgConnection,
    era: u64,
    since: Instant,
}

/// The right to a connection, and the connection itself as long as it is good.
pub(super) struct Lease {
    pool: Arc<Pool>,
    connection: Option<PgConnection>,
    era: u64,
    is_new: bool,
    /// A transaction is open. It is rolled back when the lease ends.
    pub(super) in_transaction: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Pool {
    pub(super) fn new(options: PgConnectOptions, limits: Limits, size: usize, era: &Arc<AtomicU64>) -> Self {
        Pool {
            options,
            limits,
            room: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
            era: Arc::clone(era),
            rollbacks: TaskTracker::new(),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// A connection that is idle, or else a new one.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<Lease, StoreError> {
        let permit = match timeout(self.limits.connect, Arc::clone(&self.room).acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(closed)) => return Err(unavailable("the database is closed", closed)),
            Err(late) => return Err(unavailable("no connection to the database came free in time", late)),
        };
        let era = self.era.load(Ordering::Acquire);
        let idle = self.take_idle(era).await;
        let is_new = idle.is_none();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.options, self.limits).await?,
        };
        let (pool, connection, permit) = (Arc::clone(self), Some(connection), Some(permit));
        Ok(Lease { pool, connection, era, is_new, in_transaction: false, permit })
    }

    async fn take_idle(&self, era: u64) -> Option<PgConnection> {
        loop {
            let mut idle = self.idle().pop()?;
            if idle.era != era {
                continue;
            }
            if idle.since.elapsed() < TRUSTED_IDLE {
                return Some(idle.connection);
            }
            if matches!(timeout(COURTESY, idle.connection.ping()).await, Ok(Ok(()))) {
                return Some(idle.connection);
            }
            self.report_lost();
        }
    }

    fn put(&self, connection: PgConnection, era: u64) {
        if !self.room.is_closed() {
            self.idle().push(Idle { connection, era, since: Instant::now() });
        }
    }

    fn report_lost(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// Gives out no more connections, and takes leave of those that are idle.
    pub(super) async fn close(&self) {
        self.room.close();
        self.rollbacks.close();
        self.rollbacks.wait().await;
        let idle = std::mem::take(&mut *self.idle());
        for idle in idle {
            // The server notices as well where the good-bye does not arrive.
            drop(timeout(COURTESY, idle.connection.close()).await);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    /// Whether the connection was made for this lease.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether the connection is gone for good.
    pub(super) fn is_lost(&self) -> bool {
        self.connection.is_none()
    }

    pub(super) fn take_connection(&mut self) -> Result<PgConnection, StoreError> {
        let lost = || unavailable("the connection to the database was lost before", "it answers nothing any more");
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
        let (pool, era, permit) = (Arc::clone(&self.pool), self.era, self.permit.take());
        if !self.in_transaction {
            pool.put(connection, era);
            return;
        }
        // Without a runtime the connection is dropped, which the server takes for a rollback.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let tracker = pool.rollbacks.clone();
        tracker.spawn_on(
            async move {
                let rollback = sqlx::raw_sql("rollback").execute(&mut connection);
                if matches!(timeout(COURTESY, rollback).await, Ok(Ok(_))) {
                    pool.put(connection, era);
                }
                drop(permit);
            },
            &runtime,
        );
    }
}
