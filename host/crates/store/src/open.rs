//! Opening of the database: its file, its connections and its schema.

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
use crate::db::{Appender, Db, LOG_BYTES_KEPT, Limits, Postgres, args};
use crate::error::{of_driver, of_migration};
use crate::rows::Rows;

static SQLITE_MIGRATIONS: Migrator = sqlx::migrate!("../../../migrations/sqlite");

/// The number of read connections. Reads are short and few per call. With four connections, a slow audit query does
/// not delay other reads.
const READERS: u32 = 4;

/// The address of the database and the limits for its use.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    location: Location,
    lock_wait: Duration,
    connect_wait: Duration,
    statement_wait: Duration,
    pages_max: Option<u32>,
}

#[derive(Clone, Debug)]
enum Location {
    Sqlite(PathBuf),
    Postgres(Box<PostgresAddress>),
}

impl StoreOptions {
    /// Uses an SQLite file, which is created if it does not exist.
    #[must_use]
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        StoreOptions::new(Location::Sqlite(path.into()))
    }

    fn new(location: Location) -> Self {
        StoreOptions {
            location,
            // This time is longer than any transaction of a host, so only another program can hold a lock for longer.
            lock_wait: Duration::from_secs(5),
            // A server that does not respond within this time is considered unreachable.
            connect_wait: Duration::from_secs(5),
            // The slowest statements read pages of 1000 audit rows.
            statement_wait: Duration::from_secs(10),
            pages_max: None,
        }
    }

    /// Parses the address of a database: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, `sqlite:PATH` or a path.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        match url.split_once(':') {
            Some(("sqlite", path)) => Ok(StoreOptions::sqlite(path.strip_prefix("//").unwrap_or(path))),
            Some(("postgres" | "postgresql", _)) => {
                PostgresAddress::parse(url).map(Box::new).map(Location::Postgres).map(StoreOptions::new)
            }
            Some((scheme, _)) => Err(StoreError::UnknownScheme { scheme: scheme.to_owned() }),
            None => Ok(StoreOptions::sqlite(url)),
        }
    }

    /// Sets the time limit for a write that waits for a lock of another program.
    #[must_use]
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// Sets the time limit for acquiring a connection to a server, whether new or pooled.
    #[must_use]
    pub fn connect_wait(mut self, wait: Duration) -> Self {
        self.connect_wait = wait;
        self
    }

    /// Sets the time limit for a statement on a server.
    #[must_use]
    pub fn statement_wait(mut self, wait: Duration) -> Self {
        self.statement_wait = wait;
        self
    }

    /// Sets the maximum size of an SQLite file, in pages of 4 KiB. A write beyond this size fails as if the disk were
    /// full.
    #[must_use]
    pub fn pages_max(mut self, pages: u32) -> Self {
        self.pages_max = Some(pages);
        self
    }

    fn limits(&self) -> Limits {
        Limits { connect: self.connect_wait, lock: self.lock_wait, statement: self.statement_wait }
    }
}

/// The database. Clones share its connections.
#[derive(Clone)]
pub struct Store {
    pub(crate) db: Db,
    /// The keys that authenticate rows; `None` until the host has unsealed them.
    pub(crate) rows: Option<Arc<Rows>>,
}

impl Store {
    /// Opens the database and migrates its schema.
    pub async fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let location = match &options.location {
            Location::Sqlite(path) => path.display().to_string(),
            Location::Postgres(address) => address.to_string(),
        };
        let opened = async {
            let db = match &options.location {
                Location::Sqlite(path) => open_sqlite(path, &options).await?,
                Location::Postgres(address) => postgres::open(address, options.limits()).await?,
            };
            let store = Store { db, rows: None };
            // Detect a lock of another program now rather than at the first call. Reads may succeed while writes
            // fail.
            store.db.write().await?.commit().await?;
            Ok(store)
        };
        opened.await.map_err(|error: StoreError| error.at(&location))
    }

    /// Opens an existing database for inspection. Creates, migrates and writes nothing.
    pub async fn inspect(options: StoreOptions) -> Result<Self, StoreError> {
        const VERSION: &str = "select max(version) as value from _sqlx_migrations";
        let (location, known) = match &options.location {
            Location::Sqlite(path) => (path.display().to_string(), newest(&SQLITE_MIGRATIONS)),
            Location::Postgres(address) => (address.to_string(), newest(&postgres::MIGRATIONS)),
        };
        let opened = async {
            let db = match &options.location {
                Location::Sqlite(path) => inspect_sqlite(path, &options).await?,
                Location::Postgres(address) => Db::Postgres(Postgres::new(&address.options, options.limits())),
            };
            let store = Store { db, rows: None };
            let found: i64 = store.db.read().await?.one(VERSION, args![]).await?.unwrap_or(0);
            match found.cmp(&known) {
                Ordering::Equal => Ok(store),
                Ordering::Greater => Err(StoreError::Newer { found, known }),
                Ordering::Less => Err(StoreError::Older { found, known }),
            }
        };
        opened.await.map_err(|error: StoreError| error.at(&location))
    }

    /// Returns the number of connections that hosts have to the database. Always returns 0 for an SQLite file, which
    /// only one host uses. Call this function before opening the database, because connections of this process count as
    /// well.
    pub async fn connections_of_servers(options: &StoreOptions) -> Result<u64, StoreError> {
        match &options.location {
            Location::Sqlite(_) => Ok(0),
            Location::Postgres(address) => {
                let counted = postgres::connections_of_servers(address, options.limits()).await;
                counted.map_err(|error| error.at(&address.to_string()))
            }
        }
    }

    /// Returns whether other hosts may use the same database.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.db, Db::Postgres(_))
    }

    /// Closes all connections. SQLite also checkpoints its write-ahead log. Later operations fail with
    /// [`StoreError::Unavailable`].
    pub async fn close(&self) {
        self.db.close().await;
    }
}

/// The number of rows that SQLite's thread may read ahead. The value equals the page size of the audit verification.
const ROWS_AHEAD: usize = 1000;

async fn open_sqlite(path: &Path, options: &StoreOptions) -> Result<Db, StoreError> {
    let path = create_owner_only(path)?;
    let common = sqlite(&path, options);
    let mut writing = common
        .clone()
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", LOG_BYTES_KEPT.to_string())
        // The checkpoint thread copies the log into the database file, so that no commit waits for the copy.
        .pragma("wal_autocheckpoint", "0");
    if let Some(pages) = options.pages_max {
        writing = writing.pragma("max_page_count", pages.to_string());
    }
    let writer = pool(1).connect_with(writing).await.map_err(of_driver)?;
    migrate(&writer).await?;
    let turn = Arc::default();
    let appender = Appender::open(&path, options.lock_wait, options.pages_max, &turn)?;
    let readers = pool(READERS).connect_with(common.pragma("query_only", "on")).await.map_err(of_driver)?;
    Ok(Db::Sqlite { writer, readers, appender: Some(Arc::new(appender)), turn })
}

/// Returns the options that apply to every connection to the file.
fn sqlite(path: &Path, options: &StoreOptions) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(options.lock_wait)
        .foreign_keys(true)
        // Callers read entire results. With a smaller buffer, the caller's thread and SQLite's thread would wake each
        // other for each row.
        .row_buffer_size(ROWS_AHEAD)
        // A schema that another program altered must not call functions with side effects.
        .pragma("trusted_schema", "off")
        .disable_statement_logging()
}

/// Opens a database file for reading only.
async fn inspect_sqlite(path: &Path, options: &StoreOptions) -> Result<Db, StoreError> {
    let reading = sqlite(path, options).create_if_missing(false).pragma("query_only", "on");
    let readers = pool(READERS).connect_with(reading).await.map_err(of_driver)?;
    Ok(Db::Sqlite { writer: readers.clone(), readers, appender: None, turn: Arc::default() })
}

/// Returns the schema version after these migrations.
fn newest(migrations: &Migrator) -> i64 {
    migrations.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Configures a pool that keeps its connections open. Idle connections cost nothing, and their prepared statements
/// stay usable.
///
/// When the disk is full, SQLite itself rolls back the transaction. The driver's own rollback then fails, and the
/// driver still assumes an open transaction. The pool closes such a connection when it is returned, because otherwise
/// one full disk would block all writes until a restart.
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
                    // A rollback may still be queued. The rollback runs before the ping.
                    connection.ping().await?;
                }
                Ok(!connection.is_in_transaction())
            })
        })
}

async fn migrate(writer: &SqlitePool) -> Result<(), StoreError> {
    SQLITE_MIGRATIONS.run(writer).await.map_err(|error| of_migration(error, newest(&SQLITE_MIGRATIONS)))
}

/// Creates the file with access for its owner only, because SQLite would make it readable by all users. SQLite
/// creates its log file with the same permissions.
fn create_owner_only(path: &Path) -> Result<PathBuf, StoreError> {
    let unavailable = |source: std::io::Error| {
        let what = match source.kind() {
            std::io::ErrorKind::NotFound => "the folder of the database does not exist",
            std::io::ErrorKind::StorageFull => "the disk is full",
            _ => "the database cannot be opened: the file or its folder cannot be read or written",
        };
        StoreError::Unavailable { what: what.to_owned(), source: source.into() }
    };
    // Use an absolute path, because SQLite parses a name that starts with `file:` as a URI.
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
        let Db::Sqlite { writer, readers, .. } = &store.db else { unreachable!("it was opened as SQLite") };
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
