//! PostgreSQL: connections, transactions and time limits.
//!
//! Every wait has a limit: the server enforces its own, and each statement also has a time-out here in case the server
//! or the network does not answer. A connection that failed is never used again, and one lost connection invalidates
//! all idle ones, because the server may have restarted.

mod pool;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use self::pool::{Lease, Pool};
use super::args::columns_of_postgres;
use super::{Arg, BulkInsert, Row};
use crate::StoreError;
use crate::error::{is_lost, of_driver, unavailable};

/// Reads are short and few per call; with six, a slow page of the audit does not delay the others.
const READERS: usize = 6;
/// Changes queue for the row of `settings` anyway.
const WRITERS: usize = 4;
/// The audit has one writer, with a connection of its own.
const EVENT_WRITERS: usize = 1;

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// To open a connection, or to wait for a free one.
    pub(crate) connect: Duration,
    /// To wait for a lock of another session.
    pub(crate) lock: Duration,
    /// To run a statement.
    pub(crate) statement: Duration,
}

/// How much longer than the server's own limit a statement may take, so that the server can report its time-out.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// For scans: verification counts the rows of the audit, and ten minutes are enough for a few hundred million.
const AT_LENGTH: Duration = Duration::from_secs(600);
const BEGIN_AT_LENGTH: &str = "begin read only; set local statement_timeout = '600s'";

impl Limits {
    fn answer(self) -> Duration {
        self.statement + ANSWER_GRACE
    }

    /// The settings of a session.
    ///
    /// `synchronous_commit = off` is overridden, because a confirmed commit must be on disk. JIT compilation never pays
    /// for statements this short. Keepalives let the server drop the sessions of a dead host, and their locks.
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

/// A database of a PostgreSQL server. A clone shares its connections.
#[derive(Clone)]
pub(crate) struct Postgres {
    readers: Arc<Pool>,
    writers: Arc<Pool>,
    events: Arc<Pool>,
}

/// A leased connection, and its transaction if one is open.
pub(crate) struct PostgresSession {
    lease: Lease,
    limit: Duration,
    /// A statement failed. The server would roll back at `commit` and still report success.
    failed: bool,
}

impl Postgres {
    /// Opens no connection yet; the pools open them on demand.
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

    /// For a scan of a whole table.
    pub(crate) async fn read_at_length(&self) -> Result<PostgresSession, StoreError> {
        let mut session = self.readers.transaction(BEGIN_AT_LENGTH).await?;
        session.limit = AT_LENGTH + ANSWER_GRACE;
        Ok(session)
    }

    pub(crate) async fn write(&self) -> Result<PostgresSession, StoreError> {
        self.writers.transaction("begin").await
    }

    /// Inserts rows, given as one sequence of values, with one statement, which is its own transaction.
    pub(crate) async fn insert_rows(&self, insert: &'static BulkInsert, values: &[Arg<'_>]) -> Result<(), StoreError> {
        debug_assert_eq!(values.len() % insert.columns(), 0, "every row has all columns");
        let arguments = columns_of_postgres(values, insert.columns())?;
        self.events.session().await?.execute(insert.postgres(), arguments).await?;
        Ok(())
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

    /// A session in a transaction. If an idle connection fails at `begin`, nothing has happened yet, so the next one is
    /// tried.
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

    /// If the connection is lost during the commit, the changes may or may not have been made.
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

    /// Uses the connection, with a time-out. The connection is out of the lease meanwhile, so that a future that is
    /// dropped before its end also drops the connection, whose state would be unknown.
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

/// Opens a connection.
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
