//! The SQLite connection of the audit writer. Statements run on the caller's thread, so that writing a row does not
//! require a switch to another thread.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, Statement, ToSql, TransactionBehavior};

use super::checkpointer::{Checkpointer, LOG_BYTES_KEPT};
use super::{Arg, BulkInsert, checked};
use crate::error::{closed, of_rusqlite};
use crate::{StoreError, StoreRow};

/// The maximum number of cached prepared statements: the insert statement for audit rows, and the statements of
/// [`StoreRow`].
const STATEMENTS_MAX: usize = 16;

/// The connection of the audit writer, and the thread that checkpoints the write-ahead log.
pub(crate) struct Appender {
    /// The connection; `None` after it has been closed.
    connection: Mutex<Option<Connection>>,
    checkpointer: Checkpointer,
}

impl Appender {
    /// Opens the connection. The file must already exist and be in WAL mode, which SQLite records in the file. Every
    /// transaction that writes to the file must hold `turn`.
    pub(crate) fn open(
        path: &Path,
        lock_wait: Duration,
        pages_max: Option<u32>,
        turn: &Arc<tokio::sync::Mutex<()>>,
    ) -> Result<Appender, StoreError> {
        let open = || {
            let connection = connect(path)?;
            connection.busy_timeout(lock_wait)?;
            connection.pragma_update(None, "foreign_keys", "on")?;
            // Confirm a commit only after it is on disk.
            connection.pragma_update(None, "synchronous", "full")?;
            if let Some(pages) = pages_max {
                connection.pragma_update(None, "max_page_count", pages)?;
            }
            connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
            connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
            Ok((connection, connect(path)?))
        };
        let (connection, copying) = open().map_err(of_rusqlite)?;
        let checkpointer = Checkpointer::start(copying, Arc::clone(turn), path)?;
        Ok(Appender { connection: Mutex::new(Some(connection)), checkpointer })
    }

    /// Inserts `rows` and writes `with` in one transaction, which is on disk when this function returns. Returns, for
    /// each item of `with`, whether it was written.
    pub(crate) fn append<'a, const COLUMNS: usize>(
        &self,
        insert: &BulkInsert,
        rows: impl Iterator<Item = [Arg<'a>; COLUMNS]>,
        with: &[StoreRow],
    ) -> Result<Vec<bool>, StoreError> {
        let mut connection = self.connection.lock();
        let connection = connection.as_mut().ok_or_else(closed)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(of_rusqlite)?;
        let mut written = Vec::with_capacity(with.len());
        for row in with {
            let mut is_written = true;
            for (sql, args) in row.statements() {
                if is_written {
                    let mut statement = transaction.prepare_cached(sql).map_err(of_rusqlite)?;
                    is_written = run_named(&mut statement, &args)? > 0;
                }
            }
            written.push(is_written);
        }
        let mut statement = transaction.prepare_cached(insert.sqlite()).map_err(of_rusqlite)?;
        let mut bytes = 0;
        for row in rows {
            bytes += row.iter().map(Arg::bytes).sum::<usize>();
            for (index, arg) in row.iter().enumerate() {
                bind(&mut statement, index + 1, arg)?;
            }
            statement.raw_execute().map_err(of_rusqlite)?;
        }
        drop(statement);
        transaction.commit().map_err(of_rusqlite)?;
        self.checkpointer.wrote(bytes);
        Ok(written)
    }

    /// Ends the thread that checkpoints the log. Later commits still succeed.
    pub(crate) async fn end_checkpoints(&self) {
        self.checkpointer.close().await;
    }

    /// Closes the connection. Later operations fail with [`StoreError::Unavailable`].
    pub(crate) fn close(&self) {
        drop(self.connection.lock().take());
    }
}

/// Opens a connection whose commits never checkpoint the log.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // A schema that another program altered must not call functions with side effects.
    connection.pragma_update(None, "trusted_schema", "off")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(connection)
}

/// Runs a statement whose parameters are named `$1`, `$2` and so on, and returns the number of changed rows.
fn run_named(statement: &mut Statement<'_>, args: &[Arg<'_>]) -> Result<usize, StoreError> {
    for (number, arg) in args.iter().enumerate() {
        // SQLite numbers parameters in the order in which their names first appear.
        let index = statement.parameter_index(&format!("${}", number + 1)).map_err(of_rusqlite)?;
        bind(statement, index.ok_or(StoreError::Statement("the statement has no parameter for a value".into()))?, arg)?;
    }
    statement.raw_execute().map_err(of_rusqlite)
}

fn bind(statement: &mut Statement<'_>, index: usize, arg: &Arg<'_>) -> Result<(), StoreError> {
    let mut bind = |value: &dyn ToSql| statement.raw_bind_parameter(index, value).map_err(of_rusqlite);
    match arg {
        Arg::Text(text) => bind(&checked(text)?),
        Arg::Int(number) => bind(number),
        Arg::Flag(flag) => bind(flag),
        Arg::Bytes(bytes) => bind(bytes),
    }
}
