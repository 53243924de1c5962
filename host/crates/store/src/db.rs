//! The way to the database: connections, transactions, values and rows.
//!
//! Every statement of this crate goes through [`Session::run`] or [`Session::fetch`], as one text for every kind of
//! database: `$1` parameters, and nothing that SQLite and PostgreSQL do not both know. A further kind of database is a
//! further variant of the enums in this file and an arm in each match.

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
pub(crate) use row::{FromRow, Row, unfit};

/// How often a change is tried that meets others which wait for each other; one of such a pair succeeds each time.
pub(crate) const ATTEMPTS_MAX: u32 = 5;

/// A database that is open.
#[derive(Clone)]
pub(crate) enum Db {
    /// One connection that writes, so that writers queue here and not at the file's lock, and a few that read.
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
    },
    Postgres(Postgres),
}

/// A connection or transaction on which statements run. Dropped without [`Session::commit`], it changes nothing.
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

    /// For several reads that must see one state of the database.
    pub(crate) async fn read_consistently(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { readers, .. } => readers.begin().await.map(Session::SqliteTransaction).map_err(of_driver),
            Db::Postgres(postgres) => postgres.read_consistently().await.map(Session::Postgres),
        }
    }

    /// For a read that walks a whole table, which may take minutes.
    pub(crate) async fn read_at_length(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { .. } => self.read().await,
            Db::Postgres(postgres) => postgres.read_at_length().await.map(Session::Postgres),
        }
    }

    /// For writes. SQLite's lock is taken at once: a transaction that reads first could fail when it comes to write.
    pub(crate) async fn write(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { writer, .. } => {
                writer.begin_with("begin immediate").await.map(Session::SqliteTransaction).map_err(of_driver)
            }
            Db::Postgres(postgres) => postgres.write().await.map(Session::Postgres),
        }
    }

    /// Inserts rows whose values stand one after another, all or none. When this returns they are on disk.
    pub(crate) async fn insert_rows(&self, insert: &'static BulkInsert, values: &[Arg<'_>]) -> Result<(), StoreError> {
        match self {
            Db::Sqlite { .. } => {
                let mut session = self.write().await?;
                session.insert_groups(insert, values).await?;
                session.commit().await
            }
            Db::Postgres(postgres) => postgres.insert_rows(insert, values).await,
        }
    }

    /// Ends all connections.
    pub(crate) async fn close(&self) {
        match self {
            Db::Sqlite { writer, readers } => {
                // Readers first: the last connection to leave writes the log back into the file.
                readers.close().await;
                writer.close().await;
            }
            Db::Postgres(postgres) => postgres.close().await,
        }
    }

    /// One read that gives rows.
    pub(crate) async fn all<T: FromRow>(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<T>, StoreError> {
        self.read().await?.all(sql, args).await
    }

    /// One read that gives a row or none.
    pub(crate) async fn one<T: FromRow>(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<Option<T>, StoreError> {
        self.read().await?.one(sql, args).await
    }

    /// One statement that writes; how many rows it changed.
    pub(crate) async fn run(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        self.run_then(sql, args, None).await
    }

    /// One statement that writes, and where it changed anything another in the same transaction; how many rows the
    /// first changed. A transaction that the database gave up for the sake of another is run anew, as a whole.
    pub(crate) async fn run_then(
        &self,
        sql: &'static str,
        args: &[Arg<'_>],
        then: Option<&'static str>,
    ) -> Result<u64, StoreError> {
        let mut attempt = 1;
        loop {
            match self.run_once(sql, args, then).await {
                Err(error) if error.is_contention() && attempt < ATTEMPTS_MAX => attempt += 1,
                done => return done,
            }
        }
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
    /// Runs a statement that gives no rows; how many it changed.
    pub(crate) async fn run(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        debug_assert_eq!(parameters(sql), args.len(), "SQLite would bind NULL for a missing value: {sql}");
        self.execute(sql, args).await
    }

    async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        #[cfg(test)]
        counted::add(0);
        let connection = match self {
            Session::SqliteRead(connection) => &mut **connection,
            Session::SqliteTransaction(transaction) => &mut **transaction,
            Session::Postgres(session) => return session.execute(sql, args::of_postgres(args)?).await,
        };
        let done = sqlx::query_with(sql, args::of_sqlite(args)?).execute(connection).await.map_err(of_driver)?;
        Ok(done.rows_affected())
    }

    /// Runs a statement that gives rows.
    pub(crate) async fn fetch(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<Row>, StoreError> {
        debug_assert_eq!(parameters(sql), args.len(), "SQLite would bind NULL for a missing value: {sql}");
        let connection = match self {
            Session::SqliteRead(connection) => &mut **connection,
            Session::SqliteTransaction(transaction) => &mut **transaction,
            Session::Postgres(session) => return session.fetch(sql, args::of_postgres(args)?).await,
        };
        let rows = sqlx::query_with(sql, args::of_sqlite(args)?).fetch_all(connection).await.map_err(of_driver)?;
        #[cfg(test)]
        counted::add(rows.len());
        Ok(rows.into_iter().map(Row::Sqlite).collect())
    }

    /// The rows of a query.
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

    /// Makes the changes last: when this returns, they are on disk.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        match self {
            Session::SqliteRead(_) => Ok(()),
            Session::SqliteTransaction(transaction) => transaction.commit().await.map_err(of_driver),
            Session::Postgres(session) => session.commit().await,
        }
    }
}

/// How many parameters a statement has: the highest `$n`.
fn parameters(sql: &str) -> usize {
    let numbers = sql.split('$').skip(1).filter_map(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<usize>().ok()
    });
    numbers.max().unwrap_or(0)
}

/// What this thread has asked of a database.
#[cfg(test)]
pub(crate) mod counted {
    use std::cell::Cell;

    thread_local! {
        static ASKED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    pub(super) fn add(rows: usize) {
        ASKED.set((ASKED.get().0 + 1, ASKED.get().1 + rows));
    }

    /// How many statements were run and how many rows were read since the last question.
    pub(crate) fn take() -> (usize, usize) {
        ASKED.take()
    }
}
