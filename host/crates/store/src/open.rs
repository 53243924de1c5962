//! Opening the database: its file, its connections, its schema.

mod postgres;

use std::cmp::Ordering;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::StoreError;
use crate::address::PostgresAddress;
use crate::db::{Db, Limits, Postgres, args};
use crate::error::{of_driver, of_migration};
use crate::rows::Rows;

static SQLITE_MIGRATIONS: Migrator = sqlx::migrate!("../../../migrations/sqlite");

/// Reads are short and most of a call needs none; four keep a slow page of the audit from holding up the others.
const READERS: u32 = 4;

/// The log is cut back to this after a checkpoint, so that one large transaction does not hold the disk for ever.
const LOG_BYTES_KEPT: &str = "67108864";

/// Where the database is, and how to use it.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    place: Place,
    lock_wait: Duration,
    connect_wait: Duration,
    statement_wait: Duration,
    pages_max: Option<u32>,
}

#[derive(Clone, Debug)]
enum Place {
    Sqlite(PathBuf),
    Postgres(Box<PostgresAddress>),
}

impl StoreOptions {
    /// An SQLite file, made where there is none.
    #[must_use]
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        StoreOptions::new(Place::Sqlite(path.into()))
    }

    fn new(place: Place) -> Self {
        StoreOptions {
            place,
            // Five seconds outlast every transaction of our own; what holds a lock longer is another program.
            lock_wait: Duration::from_secs(5),
            // A server that does not answer in that time is as good as none: callers are told so, and ask again.
            connect_wait: Duration::from_secs(5),
            // The longest are pages of the audit and its verification, of a thousand rows each.
            statement_wait: Duration::from_secs(10),
            pages_max: None,
        }
    }

    /// A database by its address: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, `sqlite:PATH` or a path.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        match url.split_once(':') {
            Some(("sqlite", path)) => Ok(StoreOptions::sqlite(path.strip_prefix("//").unwrap_or(path))),
            Some(("postgres" | "postgresql", _)) => {
                PostgresAddress::parse(url).map(Box::new).map(Place::Postgres).map(StoreOptions::new)
            }
            Some((scheme, _)) => Err(StoreError::UnknownScheme { scheme: scheme.to_owned() }),
            None => Ok(StoreOptions::sqlite(url)),
        }
    }

    /// How long a write waits for another program's lock.
    #[must_use]
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// How long anyone waits for a connection to a server.
    #[must_use]
    pub fn connect_wait(mut self, wait: Duration) -> Self {
        self.connect_wait = wait;
        self
    }

    /// How long a statement of a server may take.
    #[must_use]
    pub fn statement_wait(mut self, wait: Duration) -> Self {
        self.statement_wait = wait;
        self
    }

    /// The most pages of 4 KiB that an SQLite file may grow to; beyond, the disk counts as full.
    #[must_use]
    pub fn pages_max(mut self, pages: u32) -> Self {
        self.pages_max = Some(pages);
        self
    }

    fn limits(&self) -> Limits {
        Limits { connect: self.connect_wait, lock: self.lock_wait, statement: self.statement_wait }
    }
}

/// The database. Cloning it is cheap and gives the same one.
#[derive(Clone)]
pub struct Store {
    pub(crate) db: Db,
    /// The key that authenticates rows; `None` until the host has opened it.
    pub(crate) rows: Option<Arc<Rows>>,
}

impl Store {
    /// Opens the database and brings its schema up to date.
    pub async fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let place = match &options.place {
            Place::Sqlite(path) => path.display().to_string(),
            Place::Postgres(address) => address.to_string(),
        };
        let opened = async {
            let db = match &options.place {
                Place::Sqlite(path) => open_sqlite(path, &options).await?,
                Place::Postgres(address) => postgres::open(address, options.limits()).await?,
            };
            let store = Store { db, rows: None };
            // Reading may work where writing does not: another program's lock is found now, not at the first call.
            store.db.write().await?.commit().await?;
            Ok(store)
        };
        opened.await.map_err(|error: StoreError| error.at(&place))
    }

    /// Opens a database that is there, to look at it: nothing is made, brought up to date or written.
    pub async fn inspect(options: StoreOptions) -> Result<Self, StoreError> {
        const VERSION: &str = "select max(version) as value from _sqlx_migrations";
        let (place, known) = match &options.place {
            Place::Sqlite(path) => (path.display().to_string(), newest(&SQLITE_MIGRATIONS)),
            Place::Postgres(address) => (address.to_string(), newest(&postgres::MIGRATIONS)),
        };
        let opened = async {
            let db = match &options.place {
                Place::Sqlite(path) => inspect_sqlite(path, &options).await?,
                Place::Postgres(address) => Db::Postgres(Postgres::new(&address.options, options.limits())),
            };
            let store = Store { db, rows: None };
            let found: i64 = store.db.read().await?.one(VERSION, args![]).await?.unwrap_or(0);
            match found.cmp(&known) {
                Ordering::Equal => Ok(store),
                Ordering::Greater => Err(StoreError::Newer { found, known }),
                Ordering::Less => Err(StoreError::Older { found, known }),
            }
        };
        opened.await.map_err(|error: StoreError| error.at(&place))
    }

    /// How many connections servers have to the database at present; none where it is a file, which one folder uses. Ask
    /// before the database is opened: afterwards the process's own connections count as well.
    pub async fn connections_of_servers(options: &StoreOptions) -> Result<u64, StoreError> {
        match &options.place {
            Place::Sqlite(_) => Ok(0),
            Place::Postgres(address) => {
                let counted = postgres::connections_of_servers(address, options.limits()).await;
                counted.map_err(|error| error.at(&address.to_string()))
            }
        }
    }

    /// Whether other hosts may use the same database.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.db, Db::Postgres(_))
    }

    /// Ends all connections; SQLite writes its log back into the file. Later use fails as unavailable.
    pub async fn close(&self) {
        self.db.close().await;
    }
}

/// Rows that SQLite's thread may be ahead of whoever reads them: a page of the audit's verification.
const ROWS_AHEAD: usize = 1000;

async fn open_sqlite(path: &Path, options: &StoreOptions) -> Result<Db, StoreError> {
    let path = create_private(path)?;
    let common = sqlite(&path, options);
    let mut writing = common
        .clone()
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", LOG_BYTES_KEPT);
    if let Some(pages) = options.pages_max {
        writing = writing.pragma("max_page_count", pages.to_string());
    }
    let writer = pool(1).connect_with(writing).await.map_err(of_driver)?;
    migrate(&writer).await?;
    let readers = pool(READERS).connect_with(common.pragma("query_only", "on")).await.map_err(of_driver)?;
    Ok(Db::Sqlite { writer, readers })
}

/// What every connection to the file has in common.
fn sqlite(path: &Path, options: &StoreOptions) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(options.lock_wait)
        .foreign_keys(true)
        // Every result is taken whole; with less room the two threads would wake each other for each row.
        .row_buffer_size(ROWS_AHEAD)
        // A schema that someone else altered may not call functions with side effects.
        .pragma("trusted_schema", "off")
        .disable_statement_logging()
}

/// A file for reading only, whatever is asked of it.
async fn inspect_sqlite(path: &Path, options: &StoreOptions) -> Result<Db, StoreError> {
    let reading = sqlite(path, options).create_if_missing(false).pragma("query_only", "on");
    let readers = pool(READERS).connect_with(reading).await.map_err(of_driver)?;
    Ok(Db::Sqlite { writer: readers.clone(), readers })
}

/// The version of the schema that these migrations end with.
fn newest(migrations: &Migrator) -> i64 {
    migrations.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// A pool that keeps its connections: they cost nothing at rest, and their prepared statements are worth keeping.
///
/// After a full disk SQLite has rolled back by itself, and the driver, whose own rollback then fails, believes for ever
/// that a transaction is open. Such a connection is thrown away when it comes back; without that, one full disk would
/// end all writing until a restart.
fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .min_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                if connection.is_in_transaction() {
                    // A rollback may still be on its way; it is done before the ping is.
                    connection.ping().await?;
                }
                Ok(!connection.is_in_transaction())
            })
        })
}

async fn migrate(writer: &SqlitePool) -> Result<(), StoreError> {
    let known = SQLITE_MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0);
    SQLITE_MIGRATIONS.run(writer).await.map_err(|error| of_migration(error, known))
}

/// Makes the file readable for its owner only, before SQLite would make it readable for all; its log follows suit.
fn create_private(path: &Path) -> Result<PathBuf, StoreError> {
    let unavailable = |source: std::io::Error| {
        let what = match source.kind() {
            std::io::ErrorKind::NotFound => "its folder does not exist",
            std::io::ErrorKind::StorageFull => "the disk is full",
            _ => "it cannot be opened: the file or its folder cannot be read or written",
        };
        StoreError::Unavailable { what: what.to_owned(), source: source.into() }
    };
    // An absolute path, for SQLite takes a name that begins with `file:` for an address.
    let path = std::path::absolute(path).map_err(unavailable)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(unavailable)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pragma(pool: &SqlitePool, sql: &'static str) -> String {
        sqlx::query_scalar::<_, i64>(sql).fetch_one(pool).await.unwrap().to_string()
    }

    #[tokio::test]
    async fn commits_reach_the_disk_and_readers_only_read() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreOptions::sqlite(folder.path().join("monstrum.db"))).await.unwrap();
        let Db::Sqlite { writer, readers } = &store.db else { unreachable!("it was opened as SQLite") };
        assert_eq!(pragma(writer, "pragma synchronous").await, "2", "full");
        for pool in [writer, readers] {
            assert_eq!(pragma(pool, "pragma foreign_keys").await, "1");
            assert_eq!(pragma(pool, "pragma trusted_schema").await, "0");
            assert_eq!(pragma(pool, "pragma busy_timeout").await, "5000");
        }
        let refused = sqlx::query("delete from settings").execute(readers).await.unwrap_err();
        assert!(refused.to_string().contains("readonly"), "{refused}");
    }
}
