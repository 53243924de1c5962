//! The SQLite connection of the audit's writer. Its statements run on the thread of the caller, so that a row costs no
//! hop to another thread.

use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, Statement, ToSql, TransactionBehavior};

use super::{Arg, BulkInsert, checked};
use crate::error::{closed, of_rusqlite};
use crate::{StoreError, StoreRow};

/// The number of prepared statements: the insert of a row, and those of [`StoreRow`].
const STATEMENTS_MAX: usize = 8;

/// The connection. It is `None` after it was closed.
pub(crate) struct Appender(Mutex<Option<Connection>>);

impl Appender {
    /// Opens the connection. The file exists and is in WAL mode, which is a property of the file.
    pub(crate) fn open(path: &Path, lock_wait: Duration, pages_max: Option<u32>) -> Result<Appender, StoreError> {
        let open = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(lock_wait)?;
            connection.pragma_update(None, "foreign_keys", "on")?;
            // A schema that another program altered must not call functions with side effects.
            connection.pragma_update(None, "trusted_schema", "off")?;
            // A confirmed commit is on disk.
            connection.pragma_update(None, "synchronous", "full")?;
            if let Some(pages) = pages_max {
                connection.pragma_update(None, "max_page_count", pages)?;
            }
            connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
            Ok(connection)
        };
        open().map(|connection| Appender(Mutex::new(Some(connection)))).map_err(of_rusqlite)
    }

    /// Inserts rows and writes `with` in one transaction, which is on disk when this returns.
    pub(crate) fn append<'a, const COLUMNS: usize>(
        &self,
        insert: &BulkInsert,
        rows: impl Iterator<Item = [Arg<'a>; COLUMNS]>,
        with: &[StoreRow],
    ) -> Result<Vec<bool>, StoreError> {
        let mut connection = self.0.lock();
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
        for row in rows {
            for (index, arg) in row.iter().enumerate() {
                bind(&mut statement, index + 1, arg)?;
            }
            statement.raw_execute().map_err(of_rusqlite)?;
        }
        drop(statement);
        transaction.commit().map_err(of_rusqlite)?;
        Ok(written)
    }

    /// Closes the connection. Later operations fail as unavailable.
    pub(crate) fn close(&self) {
        drop(self.0.lock().take());
    }
}

/// Runs a statement with `$1` parameters. Returns the number of changed rows.
fn run_named(statement: &mut Statement<'_>, args: &[Arg<'_>]) -> Result<usize, StoreError> {
    for (number, arg) in args.iter().enumerate() {
        // SQLite numbers parameters in the order in which their names first appear.
        let index = statement.parameter_index(&format!("${}", number + 1)).map_err(of_rusqlite)?;
        bind(statement, index.ok_or(StoreError::Statement("a value has no parameter".into()))?, arg)?;
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
