//! PostgreSQL connections, transactions and time limits.
//!
//! Every wait has a limit. The server enforces its own limits, and the client also applies a timeout to each
//! statement in case the server or the network does not respond. A failed connection is never reused. A lost
//! connection also invalidates all idle connections, because the server may have restarted.

mod pool;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use self::pool::{Lease, Pool};
use super::args::{columns_of_postgres, of_postgres};
use super::{Arg, BulkInsert, Row, retry};
use crate::error::{is_lost, of_driver, unavailable};
use crate::{StoreError, StoreRow};

/// The number of read connections. Reads are short and few per call. With six, a slow audit query does not delay
/// others.
const READERS: usize = 6;
/// The number of write connections. A few are enough, because changes queue for the row lock on `settings` anyway.
const WRITERS: usize = 4;
/// The number of connections for audit events, which have a single writer.
const EVENT_WRITERS: usize = 1;

/// Time limits for operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For opening a connection, or waiting for a free one.
    pub(crate) connect: Duration,
    /// For waiting for a lock that another session holds.
    pub(crate) lock: Duration,
    /// For running a statement.
    pub(crate) statement: Duration,
}

/// The time that a statement may take in addition to the server's own limit, so that the server can report its
/// timeout.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// The time limit for table scans. Audit verification counts the audit rows; ten minutes are enough for a few hundred
/// million rows.
const AT_LENGTH: Duration = Duration::from_secs(600);
const BEGIN_AT_LENGTH: &str = "begin read only; set local statement_timeout = '600s'";

impl Limits {
    fn answer(self) -> Duration {
        self.statement + ANSWER_GRACE
    }

    /// Returns the SQL statements that configure a session.
    ///
    /// They override `synchronous_commit = off`, because a confirmed commit must be on disk. They disable JIT
    /// compilation, which does not pay off for such short statements. TCP keepalives let the server close the
    /// sessions of a dead host and release their locks.
    fn setup(self) -> String {
        let (lock, statement) = (self.lock.as_millis(), self.statement.as_millis());
        format!(
            "set lock_timeout = {lock}; set statement_timeout = {statement}; \
             set idle_in_transaction_session_timeout = {statement}; \
             set tcp_keepalives_idle = 30; set tcp_keepalives_interval = 10; set tcp_keepalives_count = 3; \
             set default_transaction_isolation = 'read committed'; set jit = off; \
             set client_min_messages = warning; \
             select set_config('synchronous_commit', 'on', false) \
             where current_setting('synchronous_commit') = 'off'"
        )
    }
}

/// A PostgreSQL database. Clones share its connections.
#[derive(Clone)]
pub(crate) struct Postgres {
    readers: Arc<Pool>,
    writers: Arc<Pool>,
    events: Arc<Pool>,
}

/// A leased connection, with its transaction if one is open.
pub(crate) struct PostgresSession {
    lease: Lease,
    limit: Duration,
    /// Whether a statement has failed. At `commit`, the server would then roll back but still report success.
    failed: bool,
}

impl Postgres {
    /// Creates the pools. They open connections on demand.
    pub(crate) fn new(options: &PgConnectOptions, limits: Limits) -> Self {
        let generation = Arc::default();
        let pool = |size| Arc::new(Pool::new(options.clone(), limits, size, &generation));
        let (readers, writers, events) = (pool(READERS), pool(WRITERS), pool(EVENT_WRITERS));
        Postgres { readers, writers, events }
    }

    pub(crate) async fn read(&self) -> Result<PostgresSession, StoreError> {
        self.readers.session().await
    }

    pub(crate) async fn read_consistently(&self) -> Result<PostgresSession, StoreError> {
        self.readers.transaction("begin isolation level repeatable read read only").await
    }

    /// Begins a transaction for a scan of a whole table.
    pub(crate) async fn read_at_length(&self) -> Result<PostgresSession, StoreError> {
        let mut session = self.readers.transaction(BEGIN_AT_LENGTH).await?;
        session.limit = AT_LENGTH + ANSWER_GRACE;
        Ok(session)
    }

    pub(crate) async fn write(&self) -> Result<PostgresSession, StoreError> {
        self.writers.transaction("begin").await
    }

    /// Inserts rows and writes `with` in one transaction. Rows alone take a single statement, which needs no separate
    /// transaction.
    pub(crate) async fn append<const COLUMNS: usize>(
        &self,
        insert: &'static BulkInsert,
        rows: &[[Arg<'_>; COLUMNS]],
        with: &[StoreRow],
    ) -> Result<Vec<bool>, StoreError> {
        if with.is_empty() {
            self.events.session().await?.execute(insert.postgres(), columns_of_postgres(rows)?).await?;
            return Ok(Vec::new());
        }
        retry!(self.append_once(insert, rows, with))
    }

    async fn append_once<const COLUMNS: usize>(
        &self,
        insert: &'static BulkInsert,
        rows: &[[Arg<'_>; COLUMNS]],
        with: &[StoreRow],
    ) -> Result<Vec<bool>, StoreError> {
        let mut session = self.events.transaction("begin").await?;
        let mut written = vec![true; with.len()];
        // All hosts lock the rows in the same order, so that their transactions do not wait for each other in a circle.
        let mut order: Vec<usize> = (0..with.len()).collect();
        order.sort_by_key(|index| with[*index].lock_order());
        for index in order {
            for (sql, args) in with[index].statements() {
                if written[index] {
                    written[index] = session.execute(sql, of_postgres(&args)?).await? > 0;
                }
            }
        }
        if !rows.is_empty() {
            session.execute(insert.postgres(), columns_of_postgres(rows)?).await?;
        }
        session.commit().await?;
        Ok(written)
    }

    pub(crate) async fn close(&self) {
        for pool in [&self.readers, &self.writers, &self.events] {
            pool.close().await;
        }
    }
}

impl Pool {
    async fn session(self: &Arc<Self>) -> Result<PostgresSession, StoreError> {
        Ok(PostgresSession { lease: self.lease().await?, limit: self.limits().answer(), failed: false })
    }

    /// Begins a transaction. If an idle connection fails at `begin`, tries the next connection, which is safe because
    /// no statement has run yet.
    async fn transaction(self: &Arc<Self>, begin: &'static str) -> Result<PostgresSession, StoreError> {
        loop {
            let mut session = self.session().await?;
            let is_new = session.lease.is_new();
            match session.control(begin).await {
                Ok(()) => {
                    session.lease.in_transaction = true;
                    return Ok(session);
                }
                Err(_) if session.lease.is_lost() && !is_new => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl PostgresSession {
    pub(crate) async fn execute(&mut self, sql: &'static str, arguments: PgArguments) -> Result<u64, StoreError> {
        let done =
            self.with_connection(async |connection| sqlx::query_with(sql, arguments).execute(connection).await).await?;
        Ok(done.rows_affected())
    }

    pub(crate) async fn fetch(&mut self, sql: &'static str, arguments: PgArguments) -> Result<Vec<Row>, StoreError> {
        let rows: Vec<PgRow> = self
            .with_connection(async |connection| sqlx::query_with(sql, arguments).fetch_all(connection).await)
            .await?;
        Ok(rows.into_iter().map(Row::Postgres).collect())
    }

    /// Commits the transaction. If the connection is lost during the commit, the changes may or may not have been
    /// made.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::Statement("an earlier statement of the transaction failed".into()));
        }
        if self.lease.in_transaction {
            self.control("commit").await?;
            self.lease.in_transaction = false;
        }
        Ok(())
    }

    async fn control(&mut self, sql: &'static str) -> Result<(), StoreError> {
        self.with_connection(async |connection| sqlx::raw_sql(sql).execute(connection).await).await?;
        Ok(())
    }

    /// Uses the connection, with a timeout. Meanwhile, the connection is removed from the lease. If the future is
    /// dropped before it completes, the connection is therefore dropped as well, because its state would be unknown.
    async fn with_connection<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let mut connection = self.lease.take_connection()?;
        match tokio::time::timeout(self.limit, work(&mut connection)).await {
            Ok(Ok(done)) => {
                self.lease.put_connection(connection);
                Ok(done)
            }
            Ok(Err(error)) => {
                self.failed = true;
                if is_lost(&error) {
                    self.lease.report_lost();
                } else {
                    self.lease.put_connection(connection);
                }
                Err(of_driver(error))
            }
            Err(late) => {
                self.failed = true;
                Err(unavailable("the database did not answer in time", late))
            }
        }
    }
}

/// Opens and configures a connection.
pub(crate) async fn connect(options: &PgConnectOptions, limits: Limits) -> Result<PgConnection, StoreError> {
    let connected = async {
        let mut connection = options.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(limits.setup())).execute(&mut connection).await?;
        Ok(connection)
    };
    match tokio::time::timeout(limits.connect, connected).await {
        Ok(connected) => connected.map_err(of_driver),
        Err(late) => Err(unavailable("the database did not answer in time", late)),
    }
}
