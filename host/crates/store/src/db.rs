//! Connections, transactions, parameters and rows.
//!
//! Every statement of this crate goes through [`Session::run`] or [`Session::fetch`], with one text for all databases:
//! `$1` parameters, and only SQL that both SQLite and PostgreSQL support. To add a database, add a variant to the enums
//! in this file and an arm to each match.

mod args;
mod bulk;
mod postgres;
mod row;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqlitePool;
use sqlx::{Sqlite, Transaction};

use crate::StoreError;
use crate::error::of_driver;

pub(crate) use args::{Arg, args, values};
pub(crate) use bulk::BulkInsert;
pub(crate) use postgres::{Limits, Postgres, PostgresSession, connect};
pub(crate) use row::{ColumnValue, FromRow, Row, from_row, invalid_column};

/// How often a transaction is attempted that the database aborts because of a deadlock or a serialization failure. Of
/// two transactions in conflict one succeeds each time.
pub(crate) const ATTEMPTS_MAX: u32 = 5;

/// Runs a transaction, again if the database aborts it in favour of another one. (This is a macro because the compiler
/// cannot prove that the future of a closure over references is `Send`.)
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
    /// One connection writes, so that writers queue in the pool and not at the lock of the file; a few others read.
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
    },
    Postgres(Postgres),
}

/// A connection or transaction that runs statements. If it is dropped without [`Session::commit`], it is rolled back.
pub(crate) enum Session {
    SqliteRead(PoolConnection<Sqlite>),
    SqliteTransaction(Transaction<'static, Sqlite>),
    Postgres(PostgresSession),
}

impl Db {
    /// For single reads.
    pub(crate) async fn read(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { readers, .. } => readers.acquire().await.map(Session::SqliteRead).map_err(of_driver),
            Db::Postgres(postgres) => postgres.read().await.map(Session::Postgres),
        }
    }

    /// For several reads of one consistent snapshot.
    pub(crate) async fn read_consistently(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { readers, .. } => readers.begin().await.map(Session::SqliteTransaction).map_err(of_driver),
            Db::Postgres(postgres) => postgres.read_consistently().await.map(Session::Postgres),
        }
    }

    /// For a scan of a whole table, which may take minutes.
    pub(crate) async fn read_at_length(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { .. } => self.read().await,
            Db::Postgres(postgres) => postgres.read_at_length().await.map(Session::Postgres),
        }
    }

    /// For writes. SQLite takes its lock at once: a transaction that begins with a read could fail at its first write.
    pub(crate) async fn write(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { writer, .. } => {
                writer.begin_with("begin immediate").await.map(Session::SqliteTransaction).map_err(of_driver)
            }
            Db::Postgres(postgres) => postgres.write().await.map(Session::Postgres),
        }
    }

    /// Inserts rows, given as one sequence of values, in one transaction. They are on disk when this returns.
    pub(crate) async fn insert_rows(&self, insert: &'static BulkInsert, values: &[Arg<'_>]) -> Result<(), StoreError> {
        match self {
            Db::Sqlite { .. } => {
                let mut session = self.write().await?;
                session.insert_batches(insert, values).await?;
                session.commit().await
            }
            Db::Postgres(postgres) => postgres.insert_rows(insert, values).await,
        }
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        match self {
            Db::Sqlite { writer, readers } => {
                // Readers first: the last connection to close checkpoints the write-ahead log.
                readers.close().await;
                writer.close().await;
            }
            Db::Postgres(postgres) => postgres.close().await,
        }
    }

    /// All rows of a query.
    pub(crate) async fn all<T: FromRow>(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<T>, StoreError> {
        self.read().await?.all(sql, args).await
    }

    /// The first row of a query.
    pub(crate) async fn one<T: FromRow>(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<Option<T>, StoreError> {
        self.read().await?.one(sql, args).await
    }

    /// Runs one statement that writes. Returns how many rows it changed.
    pub(crate) async fn run(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        self.run_then(sql, args, None).await
    }

    /// Runs one statement that writes and, if it changed any row, a second one in the same transaction. Returns how
    /// many rows the first one changed. Retries the transaction if the database aborted it in favour of another.
    pub(crate) async fn run_then(
        &self,
        sql: &'static str,
        args: &[Arg<'_>],
        then: Option<&'static str>,
    ) -> Result<u64, StoreError> {
        retry!(self.run_once(sql, args, then))
    }

    async fn run_once(
        &self,
        sql: &'static str,
        args: &[Arg<'_>],
        then: Option<&'static str>,
    ) -> Result<u64, StoreError> {
        let mut session = self.write().await?;
        let changed = session.run(sql, args).await?;
        if let Some(then) = then.filter(|_| changed > 0) {
            session.run(then, &[]).await?;
        }
        session.commit().await?;
        Ok(changed)
    }
}

impl Session {
    /// Runs a statement without a result. Returns how many rows it changed.
    pub(crate) async fn run(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        debug_assert_eq!(parameters(sql), args.len(), "SQLite would bind NULL for a missing value: {sql}");
        self.execute(sql, args).await
    }

    async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        #[cfg(test)]
        statement_counts::add(0);
        let connection = match self {
            Session::SqliteRead(connection) => &mut **connection,
            Session::SqliteTransaction(transaction) => &mut **transaction,
            Session::Postgres(session) => return session.execute(sql, args::of_postgres(args)?).await,
        };
        let done = sqlx::query_with(sql, args::of_sqlite(args)?).execute(connection).await.map_err(of_driver)?;
        Ok(done.rows_affected())
    }

    /// Runs a query and fetches all rows of its result.
    pub(crate) async fn fetch(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<Row>, StoreError> {
        debug_assert_eq!(parameters(sql), args.len(), "SQLite would bind NULL for a missing value: {sql}");
        let connection = match self {
            Session::SqliteRead(connection) => &mut **connection,
            Session::SqliteTransaction(transaction) => &mut **transaction,
            Session::Postgres(session) => return session.fetch(sql, args::of_postgres(args)?).await,
        };
        let rows = sqlx::query_with(sql, args::of_sqlite(args)?).fetch_all(connection).await.map_err(of_driver)?;
        #[cfg(test)]
        statement_counts::add(rows.len());
        Ok(rows.into_iter().map(Row::Sqlite).collect())
    }

    /// All rows of a query.
    pub(crate) async fn all<T: FromRow>(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<T>, StoreError> {
        self.fetch(sql, args).await?.iter().map(T::from_row).collect()
    }

    /// The first row of a query.
    pub(crate) async fn one<T: FromRow>(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<T>, StoreError> {
        self.fetch(sql, args).await?.first().map(T::from_row).transpose()
    }

    /// Commits the changes. They are on disk when this returns.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        match self {
            Session::SqliteRead(_) => Ok(()),
            Session::SqliteTransaction(transaction) => transaction.commit().await.map_err(of_driver),
            Session::Postgres(session) => session.commit().await,
        }
    }
}

/// The number of parameters of a statement: the highest `$n`.
fn parameters(sql: &str) -> usize {
    let numbers = sql.split('$').skip(1).filter_map(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<usize>().ok()
    });
    numbers.max().unwrap_or(0)
}

/// How many statements this thread has run, and how many rows it has read.
#[cfg(test)]
pub(crate) mod statement_counts {
    use std::cell::Cell;

    thread_local! {
        static COUNTS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    pub(super) fn add(rows: usize) {
        COUNTS.set((COUNTS.get().0 + 1, COUNTS.get().1 + rows));
    }

    /// Statements and rows since the last call.
    pub(crate) fn take() -> (usize, usize) {
        COUNTS.take()
    }
}
