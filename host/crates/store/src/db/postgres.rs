//! PostgreSQL: its connections, and how long anything may take.
//!
//! Whatever the server does, or the network on the way to it, every wait ends: the server is told its limits, and we keep
//! watch ourselves in case it does not answer at all. A connection on which anything went wrong is never used again, and
//! the first that is lost takes along all that were idle, for a server that was started anew knows none of them.

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

/// Reads are short and most of a call needs none; six keep a slow page of the audit from holding up the others.
const READERS: usize = 6;
/// Changes wait for each other's row of `settings` anyway.
const WRITERS: usize = 4;
/// The audit has one writer, with a connection that nobody else can keep busy.
const EVENT_WRITERS: usize = 1;

/// How long anything may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For a connection, new or free.
    pub(crate) connect: Duration,
    /// For a lock that another session holds.
    pub(crate) lock: Duration,
    /// For a statement.
    pub(crate) statement: Duration,
}

/// The server has this much longer than its own limit to say that it has reached it.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Verification counts the rows of the audit; ten minutes are enough for a few hundred million.
const AT_LENGTH: Duration = Duration::from_secs(600);
const BEGIN_AT_LENGTH: &str = "begin read only; set local statement_timeout = '600s'";

impl Limits {
    fn answer(self) -> Duration {
        self.statement + ANSWER_GRACE
    }

    /// What a session begins with.
    ///
    /// A server that is set to confirm commits before they are on disk is overruled, and plans for statements as short
    /// as ours are never worth compiling. Keepalives let the server drop what a dead host left open, with its locks.
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

/// A database of a PostgreSQL server. Cloning it is cheap and gives the same one.
#[derive(Clone)]
pub(crate) struct Postgres {
    readers: Arc<Pool>,
    writers: Arc<Pool>,
    events: Arc<Pool>,
}

/// A connection of a server and, once it is opened, its transaction.
pub(crate) struct PostgresSession {
    lease: Lease,
    limit: Duration,
    /// Nothing that a failed transaction holds can be committed; the server would call its end a success all the same.
    failed: bool,
}

impl Postgres {
    /// Connections are made when they are needed.
    pub(crate) fn new(options: &PgConnectOptions, limits: Limits) -> Self {
        let era = Arc::default();
        let pool = |size| Arc::new(Pool::new(options.clone(), limits, size, &era));
        let (readers, writers, events) = (pool(READERS), pool(WRITERS), pool(EVENT_WRITERS));
        Postgres { readers, writers, events }
    }

    pub(crate) async fn read(&self) -> Result<PostgresSession, StoreError> {
        self.readers.session().await
    }

    pub(crate) async fn read_consistently(&self) -> Result<PostgresSession, StoreError> {
        self.readers.transaction("begin isolation level repeatable read read only").await
    }

    /// For a read that walks a whole table.
    pub(crate) async fn read_at_length(&self) -> Result<PostgresSession, StoreError> {
        let mut session = self.readers.transaction(BEGIN_AT_LENGTH).await?;
        session.limit = AT_LENGTH + ANSWER_GRACE;
        Ok(session)
    }

    pub(crate) async fn write(&self) -> Result<PostgresSession, StoreError> {
        self.writers.transaction("begin").await
    }

    /// Inserts rows whose values stand one after another by one statement, which is a transaction by itself.
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

    /// A session in a transaction. A connection that turns out to be dead at its first word has done nothing yet, so
    /// another one is taken.
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
        let done = self.answered(async |connection| sqlx::query_with(sql, arguments).execute(connection).await).await?;
        Ok(done.rows_affected())
    }

    pub(crate) async fn fetch(&mut self, sql: &'static str, arguments: PgArguments) -> Result<Vec<Row>, StoreError> {
        let rows: Vec<PgRow> =
            self.answered(async |connection| sqlx::query_with(sql, arguments).fetch_all(connection).await).await?;
        Ok(rows.into_iter().map(Row::Postgres).collect())
    }

    /// When the connection is lost here, the changes may have been made or not.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::Statement("the transaction has failed before".into()));
        }
        if self.lease.in_transaction {
            self.control("commit").await?;
            self.lease.in_transaction = false;
        }
        Ok(())
    }

    async fn control(&mut self, sql: &'static str) -> Result<(), StoreError> {
        self.answered(async |connection| sqlx::raw_sql(sql).execute(connection).await).await?;
        Ok(())
    }

    /// Does something with the connection, and gives up when there is no answer. The connection is out of the lease for
    /// that time: whoever drops this future half-way drops a connection with it that nobody could use any more.
    async fn answered<T>(
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

/// A new connection, or why there is none.
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
