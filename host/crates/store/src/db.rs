//! Database connections, transactions, parameters and rows.
//!
//! All statements of this crate run through [`Session::run`] or [`Session::fetch`], except for the statements of
//! [`Db::append`]. The same SQL text is used for all databases: its parameters are named `$1`, `$2` and so on, and it
//! uses only SQL that both SQLite and PostgreSQL support. To add a database, add a variant to the enums in this file
//! and an arm to each match.

mod appender;
mod args;
mod bulk;
mod checkpointer;
mod postgres;
mod row;

use std::sync::Arc;

use monstrum_types::UtcMillis;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqlitePool;
use sqlx::{Sqlite, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::{of_driver, read_only};
use crate::{StoreError, StoreRow};

use self::args::checked;

pub(crate) use appender::Appender;
pub(crate) use args::{Arg, args, values};
pub(crate) use bulk::BulkInsert;
pub(crate) use checkpointer::LOG_BYTES_KEPT;
pub(crate) use postgres::{Limits, Postgres, PostgresSession, connect};
pub(crate) use row::{Column, ColumnValue, FromRow, Kind, Row, from_row, invalid_column};

/// The maximum number of attempts for a transaction that the database aborts because of a deadlock or a serialization
/// failure. At each attempt, one of two conflicting transactions succeeds.
pub(crate) const ATTEMPTS_MAX: u32 = 5;

/// The statements that read the clock of a database, in milliseconds since 1970. The databases share no function for it.
const NOW_OF_SQLITE: &str = "select cast((julianday('now') - 2440587.5) * 86400000 as integer) as value";
const NOW_OF_POSTGRES: &str = "select cast(extract(epoch from clock_timestamp()) * 1000 as bigint) as value";

/// Runs a transaction, and retries it if the database aborts it because of a conflict with another transaction. (This
/// is a macro because the compiler cannot prove that the future of a closure over references is `Send`.)
macro_rules! retry {
    ($transaction:expr) => {{
        let mut attempt = 1;
        loop {
            let done: Result<_, $crate::StoreError> = $transaction.await;
            match done {
                Err(error) if error.is_contention() && attempt < $crate::db::ATTEMPTS_MAX => attempt += 1,
                done => break done,
            }
        }
    }};
}
pub(crate) use retry;

/// An open database.
#[derive(Clone)]
pub(crate) enum Db {
    /// A connection for writes, several connections for reads, and a connection for the audit. If the connection for
    /// the audit is missing, the database is open for reading only. A writer holds `turn`, so that other writers wait
    /// for `turn` instead of the file lock, for which SQLite would sleep between attempts.
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
        appender: Option<Arc<Appender>>,
        turn: Arc<Mutex<()>>,
    },
    Postgres(Postgres),
}

/// A connection or transaction that runs statements. Dropping it without [`Session::commit`] rolls the transaction
/// back.
pub(crate) enum Session {
    SqliteRead(PoolConnection<Sqlite>),
    SqliteTransaction { transaction: Transaction<'static, Sqlite>, _turn: Option<OwnedMutexGuard<()>> },
    Postgres(PostgresSession),
}

impl Db {
    /// Acquires a session for independent reads.
    pub(crate) async fn read(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { readers, .. } => readers.acquire().await.map(Session::SqliteRead).map_err(of_driver),
            Db::Postgres(postgres) => postgres.read().await.map(Session::Postgres),
        }
    }

    /// Begins a transaction for several reads of one consistent snapshot.
    pub(crate) async fn read_consistently(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { readers, .. } => {
                let transaction = readers.begin().await.map_err(of_driver)?;
                Ok(Session::SqliteTransaction { transaction, _turn: None })
            }
            Db::Postgres(postgres) => postgres.read_consistently().await.map(Session::Postgres),
        }
    }

    /// Acquires a session for a scan of a whole table, which may take minutes.
    pub(crate) async fn read_at_length(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { .. } => self.read().await,
            Db::Postgres(postgres) => postgres.read_at_length().await.map(Session::Postgres),
        }
    }

    /// Begins a transaction for writes. SQLite acquires its write lock immediately, because a transaction that begins
    /// with a read could fail at its first write.
    pub(crate) async fn write(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { writer, turn, .. } => {
                let turn = Arc::clone(turn).lock_owned().await;
                let transaction = writer.begin_with("begin immediate").await.map_err(of_driver)?;
                Ok(Session::SqliteTransaction { transaction, _turn: Some(turn) })
            }
            Db::Postgres(postgres) => postgres.write().await.map(Session::Postgres),
        }
    }

    /// Inserts rows and writes `with` in one transaction. The transaction is on disk when this function returns.
    /// Returns, for each element of `with`, whether the element was written. With SQLite, this function blocks the
    /// thread.
    pub(crate) async fn append<'a, const COLUMNS: usize>(
        &self,
        insert: &'static BulkInsert,
        rows: impl Iterator<Item = [Arg<'a>; COLUMNS]>,
        with: &[StoreRow],
    ) -> Result<Vec<bool>, StoreError> {
        match self {
            Db::Sqlite { appender, turn, .. } => {
                let appender = appender.as_ref().ok_or_else(read_only)?;
                let _turn = turn.lock().await;
                appender.append(insert, rows, with)
            }
            Db::Postgres(postgres) => postgres.append(insert, &rows.collect::<Vec<_>>(), with).await,
        }
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        match self {
            Db::Sqlite { writer, readers, appender, turn } => {
                // Close the writer last, because the last connection to close checkpoints the write-ahead log.
                readers.close().await;
                if let Some(appender) = appender {
                    appender.end_checkpoints().await;
                }
                let _turn = turn.lock().await;
                if let Some(appender) = appender {
                    appender.close();
                }
                writer.close().await;
            }
            Db::Postgres(postgres) => postgres.close().await,
        }
    }

    /// Returns all rows of a query.
    pub(crate) async fn all<T: FromRow>(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<T>, StoreError> {
        self.read().await?.all(sql, args).await
    }

    /// Returns the first row of a query.
    pub(crate) async fn one<T: FromRow>(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<Option<T>, StoreError> {
        self.read().await?.one(sql, args).await
    }

    /// Runs a single statement that writes, and returns the number of changed rows. Retries the statement if the
    /// database aborts its transaction because of a conflict with another transaction.
    pub(crate) async fn run(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        retry!(async {
            let mut session = self.write().await?;
            let changed = session.run(sql, args).await?;
            session.commit().await?;
            Ok(changed)
        })
    }
}

impl Session {
    /// Runs a statement that returns no rows. Returns the number of changed rows.
    pub(crate) async fn run(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        debug_assert_eq!(parameters(sql), args.len(), "SQLite would bind NULL for a missing value: {sql}");
        self.execute(sql, args).await
    }

    async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        #[cfg(test)]
        statement_counts::add(0);
        let connection = match self {
            Session::SqliteRead(connection) => &mut **connection,
            Session::SqliteTransaction { transaction, .. } => &mut **transaction,
            Session::Postgres(session) => return session.execute(sql, args::of_postgres(args)?).await,
        };
        let done = sqlx::query_with(sql, args::of_sqlite(args)?).execute(connection).await.map_err(of_driver)?;
        Ok(done.rows_affected())
    }

    /// Runs a query and returns all rows of its result.
    pub(crate) async fn fetch(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<Row>, StoreError> {
        debug_assert_eq!(parameters(sql), args.len(), "SQLite would bind NULL for a missing value: {sql}");
        let connection = match self {
            Session::SqliteRead(connection) => &mut **connection,
            Session::SqliteTransaction { transaction, .. } => &mut **transaction,
            Session::Postgres(session) => return session.fetch(sql, args::of_postgres(args)?).await,
        };
        let rows = sqlx::query_with(sql, args::of_sqlite(args)?).fetch_all(connection).await.map_err(of_driver)?;
        #[cfg(test)]
        statement_counts::add(rows.len());
        Ok(rows.into_iter().map(Row::Sqlite).collect())
    }

    /// Returns the current time by the clock of the database.
    pub(crate) async fn now(&mut self) -> Result<UtcMillis, StoreError> {
        let sql = match self {
            Session::SqliteRead(_) | Session::SqliteTransaction { .. } => NOW_OF_SQLITE,
            Session::Postgres(_) => NOW_OF_POSTGRES,
        };
        let rows = self.fetch(sql, &[]).await?;
        let now = rows.first().ok_or_else(|| invalid_column("value", "missing"))?;
        now.get("value")
    }

    /// Returns all rows of a query.
    pub(crate) async fn all<T: FromRow>(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<T>, StoreError> {
        self.fetch(sql, args).await?.iter().map(T::from_row).collect()
    }

    /// Returns the first row of a query.
    pub(crate) async fn one<T: FromRow>(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<T>, StoreError> {
        self.fetch(sql, args).await?.first().map(T::from_row).transpose()
    }

    /// Commits the transaction. The changes are on disk when this function returns.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        match self {
            Session::SqliteRead(_) => Ok(()),
            Session::SqliteTransaction { transaction, .. } => transaction.commit().await.map_err(of_driver),
            Session::Postgres(session) => session.commit().await,
        }
    }
}

/// Returns the number of parameters of a statement, which is the highest `n` of all `$n`.
fn parameters(sql: &str) -> usize {
    let numbers = sql.split('$').skip(1).filter_map(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<usize>().ok()
    });
    numbers.max().unwrap_or(0)
}

/// Counters for the statements that the current thread has run and the rows that it has read.
#[cfg(test)]
pub(crate) mod statement_counts {
    use std::cell::Cell;

    thread_local! {
        static COUNTS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    pub(super) fn add(rows: usize) {
        COUNTS.set((COUNTS.get().0 + 1, COUNTS.get().1 + rows));
    }

    /// Returns the numbers of statements and rows since the previous call.
    pub(crate) fn take() -> (usize, usize) {
        COUNTS.take()
    }
}
