//! The way to the database: connections, transactions, values and rows.
//!
//! Every statement of this crate goes through [`Session::execute`] or [`Session::fetch`], as one text for every kind of
//! database: `$1` parameters, and nothing that SQLite and PostgreSQL do not both know. A further kind of database is a
//! further variant of the enums in this file and an arm in each match.

mod bulk;

use std::borrow::Cow;

use monstrum_types::UtcMillis;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteArguments, SqlitePool, SqliteRow};
use sqlx::{Arguments as _, Row as _, Sqlite, Transaction};

use crate::StoreError;
use crate::error::of_driver;

pub(crate) use bulk::BulkInsert;

/// A database that is open.
#[derive(Clone)]
pub(crate) enum Db {
    /// One connection that writes, so that writers queue here and not at the file's lock, and a few that read.
    Sqlite { writer: SqlitePool, readers: SqlitePool },
}

/// A connection or transaction on which statements run. Dropped without [`Session::commit`], it changes nothing.
pub(crate) enum Session {
    SqliteRead(PoolConnection<Sqlite>),
    SqliteTransaction(Transaction<'static, Sqlite>),
}

impl Db {
    /// For single reads.
    pub(crate) async fn read(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { readers, .. } => readers.acquire().await.map(Session::SqliteRead).map_err(of_driver),
        }
    }

    /// For several reads that must see one state of the database.
    pub(crate) async fn read_consistently(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { readers, .. } => readers.begin().await.map(Session::SqliteTransaction).map_err(of_driver),
        }
    }

    /// For writes. The lock is taken at once: a transaction that reads first could fail when it comes to write.
    pub(crate) async fn write(&self) -> Result<Session, StoreError> {
        match self {
            Db::Sqlite { writer, .. } => {
                writer.begin_with("begin immediate").await.map(Session::SqliteTransaction).map_err(of_driver)
            }
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
        let mut session = self.write().await?;
        let changed = session.run(sql, args).await?;
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
        let connection = match self {
            Session::SqliteRead(connection) => &mut **connection,
            Session::SqliteTransaction(transaction) => &mut **transaction,
        };
        let done = sqlx::query_with(sql, sqlite_arguments(args)?).execute(connection).await.map_err(of_driver)?;
        Ok(done.rows_affected())
    }

    /// Runs a statement that gives rows.
    pub(crate) async fn fetch(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<Row>, StoreError> {
        debug_assert_eq!(parameters(sql), args.len(), "SQLite would bind NULL for a missing value: {sql}");
        let connection = match self {
            Session::SqliteRead(connection) => &mut **connection,
            Session::SqliteTransaction(transaction) => &mut **transaction,
        };
        let rows = sqlx::query_with(sql, sqlite_arguments(args)?).fetch_all(connection).await.map_err(of_driver)?;
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

/// A value of a statement. A missing one still has a type: PostgreSQL wants to know it.
pub(crate) enum Arg<'a> {
    Text(Option<Cow<'a, str>>),
    Int(Option<i64>),
    Flag(bool),
    Bytes(&'a [u8]),
}

fn sqlite_arguments(args: &[Arg<'_>]) -> Result<SqliteArguments, StoreError> {
    let mut arguments = SqliteArguments::default();
    arguments.reserve(args.len(), 0);
    for arg in args {
        match arg {
            Arg::Text(text) => arguments.add(text.as_deref()),
            Arg::Int(number) => arguments.add(*number),
            Arg::Flag(flag) => arguments.add(*flag),
            Arg::Bytes(bytes) => arguments.add(*bytes),
        }
        .map_err(StoreError::Statement)?;
    }
    Ok(arguments)
}

/// The values of a statement, in order.
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::db::Arg::from($value)),*] };
}
pub(crate) use args;

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Arg::Text(Some(Cow::Borrowed(text)))
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(text: &'a String) -> Self {
        Arg::from(text.as_str())
    }
}

impl<'a> From<&'a Option<String>> for Arg<'a> {
    fn from(text: &'a Option<String>) -> Self {
        Arg::Text(text.as_deref().map(Cow::Borrowed))
    }
}

impl From<i64> for Arg<'_> {
    fn from(number: i64) -> Self {
        Arg::Int(Some(number))
    }
}

impl From<Option<i64>> for Arg<'_> {
    fn from(number: Option<i64>) -> Self {
        Arg::Int(number)
    }
}

impl From<UtcMillis> for Arg<'_> {
    fn from(time: UtcMillis) -> Self {
        Arg::Int(Some(time.0))
    }
}

impl From<Option<UtcMillis>> for Arg<'_> {
    fn from(time: Option<UtcMillis>) -> Self {
        Arg::Int(time.map(|time| time.0))
    }
}

impl From<bool> for Arg<'_> {
    fn from(flag: bool) -> Self {
        Arg::Flag(flag)
    }
}

impl<'a> From<&'a [u8]> for Arg<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Arg::Bytes(bytes)
    }
}

impl From<&serde_json::Value> for Arg<'_> {
    fn from(json: &serde_json::Value) -> Self {
        Arg::Text(Some(Cow::Owned(json.to_string())))
    }
}

impl From<&Option<serde_json::Value>> for Arg<'_> {
    fn from(json: &Option<serde_json::Value>) -> Self {
        Arg::Text(json.as_ref().map(|json| Cow::Owned(json.to_string())))
    }
}

macro_rules! ids {
    ($($id:ident),+) => { $(
        impl From<monstrum_types::$id> for Arg<'_> {
            fn from(id: monstrum_types::$id) -> Self {
                Arg::Text(Some(Cow::Owned(id.to_string())))
            }
        }
        impl From<Option<monstrum_types::$id>> for Arg<'_> {
            fn from(id: Option<monstrum_types::$id>) -> Self {
                Arg::Text(id.map(|id| Cow::Owned(id.to_string())))
            }
        }
    )+ };
}
ids!(WorkspaceId, BotId, ResourceId, BindingId, RoleId, CredentialId, KeyId, RequestId);

macro_rules! names {
    ($($name:ident),+) => { $(
        impl<'a> From<&'a monstrum_types::$name> for Arg<'a> {
            fn from(name: &'a monstrum_types::$name) -> Self {
                Arg::from(name.as_str())
            }
        }
    )+ };
}
names!(PluginName, ResourceTypeId, Digest);

/// A row that a query gave. Columns go by name; a value of another type than the column's is an error.
pub(crate) enum Row {
    Sqlite(SqliteRow),
}

/// What can be read from a row.
pub(crate) trait FromRow: Sized {
    fn from_row(row: &Row) -> Result<Self, StoreError>;
}

/// A single number, under the column name `value`.
impl FromRow for i64 {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        row.int("value")
    }
}

impl Row {
    pub(crate) fn text_opt(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
        }
    }

    pub(crate) fn int_opt(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
        }
    }

    pub(crate) fn flag(&self, column: &'static str) -> Result<bool, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
        }
    }

    pub(crate) fn bytes(&self, column: &'static str) -> Result<Vec<u8>, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
        }
    }

    pub(crate) fn text(&self, column: &'static str) -> Result<String, StoreError> {
        self.text_opt(column)?.ok_or_else(|| missing(column))
    }

    pub(crate) fn int(&self, column: &'static str) -> Result<i64, StoreError> {
        self.int_opt(column)?.ok_or_else(|| missing(column))
    }

    pub(crate) fn time(&self, column: &'static str) -> Result<UtcMillis, StoreError> {
        self.int(column).map(UtcMillis)
    }

    pub(crate) fn time_opt(&self, column: &'static str) -> Result<Option<UtcMillis>, StoreError> {
        Ok(self.int_opt(column)?.map(UtcMillis))
    }

    /// An id or a name.
    pub(crate) fn id<T: TryFrom<String>>(&self, column: &'static str) -> Result<T, StoreError> {
        self.id_opt(column)?.ok_or_else(|| missing(column))
    }

    pub(crate) fn id_opt<T: TryFrom<String>>(&self, column: &'static str) -> Result<Option<T>, StoreError> {
        let text = self.text_opt(column)?;
        text.map(|text| T::try_from(text).map_err(|_| unfit(column, "not of the right form"))).transpose()
    }

    pub(crate) fn json(&self, column: &'static str) -> Result<serde_json::Value, StoreError> {
        self.json_opt(column)?.ok_or_else(|| missing(column))
    }

    pub(crate) fn json_opt(&self, column: &'static str) -> Result<Option<serde_json::Value>, StoreError> {
        let text = self.text_opt(column)?;
        text.map(|text| serde_json::from_str(&text).map_err(|_| unfit(column, "not JSON"))).transpose()
    }
}

pub(crate) fn unfit(column: &str, what: &str) -> StoreError {
    StoreError::Corrupt { what: format!("column {column}: {what}") }
}

fn missing(column: &str) -> StoreError {
    unfit(column, "no value")
}
