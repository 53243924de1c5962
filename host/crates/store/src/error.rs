//! Database errors, classified into the kinds that callers distinguish.

use sqlx::error::DatabaseError;
use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error of a statement, or of opening the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A unique constraint was violated. Constraint names are `{table}_{column}_{column}_key` or `{table}_pkey`.
    #[error("a row with the same values already exists (constraint `{constraint}`)")]
    Conflict {
        /// The name of the constraint.
        constraint: String,
    },
    /// The row cannot be deleted, because other rows reference it.
    #[error("the row cannot be deleted, because other rows refer to it")]
    InUse,
    /// The row references a row that does not exist or belongs to another workspace.
    #[error("the row refers to a row that does not exist or belongs to another workspace")]
    UnknownReference,
    /// A row to replace is missing, or was changed since the caller read it.
    #[error("the row was changed or deleted in the meantime")]
    ChangedMeanwhile,
    /// The claim under which a turn runs was replaced, or its wake was deleted, so the turn must not write anything.
    #[error("another host has taken over the turn")]
    LostClaim,
    /// The database is currently unusable because, for example, it is locked, full, read-only or unreachable.
    #[error("{what}")]
    Unavailable {
        /// The reason.
        what: String,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// A later version of Monstrum has migrated the database.
    #[error(
        "the database is from a newer version of monstrum (its schema version is {found}, this version \
         supports up to {known}): upgrade monstrum"
    )]
    Newer {
        /// The newest migration of the database.
        found: i64,
        /// The newest migration of this binary.
        known: i64,
    },
    /// An earlier version of Monstrum wrote the database, which has not been migrated yet.
    #[error(
        "the database is from an older version of monstrum (its schema version is {found}, this version \
         expects {known}): start `monstrum serve` to migrate the database"
    )]
    Older {
        /// The newest migration of the database.
        found: i64,
        /// The newest migration of this binary.
        known: i64,
    },
    /// The schema of the database cannot be migrated.
    #[error("the schema of the database cannot be migrated")]
    Migration(#[source] Cause),
    /// A stored value is invalid, or the database is damaged.
    #[error("the database is corrupt: {what}")]
    Corrupt {
        /// The invalid column and the error in it, or a description of the damage.
        what: String,
    },
    /// The address of the database has an unknown scheme.
    #[error("cannot use `{scheme}` as a database: expected postgres://…, sqlite:PATH or a path")]
    UnknownScheme {
        /// The scheme of the address. The message omits the remaining address, because it may contain a password.
        scheme: String,
    },
    /// The address of a PostgreSQL database is invalid.
    #[error("cannot use the database address: {what}; expected postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
    Address {
        /// The reason. The text contains no part of the address, because any part may belong to the password.
        what: &'static str,
    },
    /// A string contains U+0000, which PostgreSQL cannot store.
    #[error("a string contains U+0000, which the database cannot store")]
    Nul,
    /// The rows of a scope do not match its seal, or its seal is missing or invalid, so the rows cannot be changed.
    #[error("the rows of scope `{scope}` failed verification: {why}")]
    Unverified {
        /// The scope: `instance`, or the id of a workspace.
        scope: String,
        /// A description of the difference.
        why: String,
    },
    /// The database was opened without the key that authenticates its rows.
    #[error("the key that authenticates rows is missing")]
    NoRowKey,
    /// A seal could not be encrypted.
    #[error("failed to encrypt the seal of a scope")]
    Seal(#[source] Cause),
    /// A statement failed for any other reason.
    #[error("the database rejected a statement")]
    Statement(#[source] Cause),
}

impl StoreError {
    /// Adds the location of the database to an error that occurred while opening it.
    pub(crate) fn at(self, location: &str) -> Self {
        match self {
            StoreError::Unavailable { what, source } => {
                StoreError::Unavailable { what: format!("database `{location}`: {what}"), source }
            }
            StoreError::Corrupt { what } => StoreError::Corrupt { what: format!("`{location}`: {what}") },
            other => other,
        }
    }

    /// Converts an error of a deletion. A violated foreign key then means that the row is still in use.
    pub(crate) fn of_deletion(self) -> Self {
        match self {
            StoreError::UnknownReference => StoreError::InUse,
            other => other,
        }
    }

    /// Returns whether the database rejected a value and rolled the transaction back. The other values of the
    /// transaction can then be written in a new transaction.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        matches!(
            self,
            StoreError::Nul | StoreError::Statement(_) | StoreError::Conflict { .. } | StoreError::UnknownReference
        )
    }

    /// Returns whether the database aborted the transaction because of a conflict with another transaction, so that a
    /// retry can succeed.
    pub(crate) fn is_contention(&self) -> bool {
        const SERIALIZATION_FAILURE: &str = "40001";
        const DEADLOCK: &str = "40P01";
        let StoreError::Unavailable { source, .. } = self else { return false };
        let error = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
        error.and_then(DatabaseError::code).is_some_and(|code| code == SERIALIZATION_FAILURE || code == DEADLOCK)
    }
}

pub(crate) fn unavailable(what: &str, source: impl Into<Cause>) -> StoreError {
    StoreError::Unavailable { what: what.to_owned(), source: source.into() }
}

/// Classifies an error of the driver.
pub(crate) fn of_driver(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(error) if error.try_downcast_ref::<PgDatabaseError>().is_some() => of_postgres(error),
        sqlx::Error::Database(error) => of_sqlite(error),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => unavailable("the database cannot be reached", error),
        sqlx::Error::Tls(_) => unavailable("the TLS connection to the database failed", error),
        sqlx::Error::PoolTimedOut => unavailable("all connections to the database are in use", error),
        sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => unavailable("the database is closed", error),
        sqlx::Error::ColumnDecode { index, source } => {
            StoreError::Corrupt { what: format!("column {index}: {source}") }
        }
        other => StoreError::Statement(other.into()),
    }
}

/// Returns whether this error makes its connection unusable.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else {
        return matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_));
    };
    error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| {
        // SQLSTATE 0A000 and 26000: prepared statements that a schema change invalidated would keep failing on the
        // connection.
        matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic)
            || matches!(error.code(), "0A000" | "26000")
            || error.code().starts_with("08")
    })
}

/// Classifies an error by its SQLSTATE code. The first two characters of the code are its class.
fn of_postgres(error: Box<dyn DatabaseError>) -> StoreError {
    let code = error.code().unwrap_or_default().into_owned();
    let what = match code.as_str() {
        "23505" => {
            return StoreError::Conflict { constraint: error.constraint().unwrap_or_default().to_owned() };
        }
        "23503" => return StoreError::UnknownReference,
        "XX001" | "XX002" => return StoreError::Corrupt { what: "the database is damaged".to_owned() },
        "53100" => "the disk is full",
        "53200" => "the database is out of memory",
        "53300" => "the database has reached its connection limit",
        "55P03" => "the database is locked by another process or connection",
        "57014" => "the statement timed out",
        "57P01" | "57P02" | "57P03" => "the database is shutting down or starting",
        "25006" => "the database is read-only",
        "25P03" => "the database terminated an idle transaction",
        "3D000" | "57P04" => "the database does not exist",
        "28000" | "28P01" => "the database rejected the login",
        "42501" => "the database user lacks a privilege",
        "0A000" | "26000" => "the schema of the database has changed",
        code if code.starts_with("08") => "the database cannot be reached",
        code if code.starts_with("40") => "another transaction changed the same rows",
        code if code.starts_with("53") => "the database is out of resources",
        code if code.starts_with("58") => "a disk read or write failed",
        _ => return StoreError::Statement(error.into()),
    };
    unavailable(what, sqlx::Error::Database(error))
}

fn of_sqlite(error: Box<dyn DatabaseError>) -> StoreError {
    let code: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or(1);
    let message = error.message().to_owned();
    of_result_code(code, &message, error)
}

/// Classifies an error of the driver of the audit's connection.
pub(crate) fn of_rusqlite(error: rusqlite::Error) -> StoreError {
    match &error {
        rusqlite::Error::SqliteFailure(failure, message) => {
            let (code, message) = (failure.extended_code, message.clone().unwrap_or_default());
            of_result_code(code, &message, error)
        }
        _ => StoreError::Statement(error.into()),
    }
}

/// Returns the error for a closed database.
pub(crate) fn closed() -> StoreError {
    unavailable("the database is closed", sqlx::Error::PoolClosed)
}

/// Returns the error for a write to a database that is open for reading only.
pub(crate) fn read_only() -> StoreError {
    unavailable("the database is open for reading only", std::io::Error::from(std::io::ErrorKind::PermissionDenied))
}

/// Classifies an error by SQLite's result code. The low byte is the kind of error; the extended code distinguishes
/// constraints.
fn of_result_code(code: i32, message: &str, error: impl Into<Cause>) -> StoreError {
    const UNIQUE: i32 = 2067;
    const PRIMARY_KEY: i32 = 1555;
    const FOREIGN_KEY: i32 = 787;
    match (code, code & 0xff) {
        (UNIQUE, _) => StoreError::Conflict { constraint: unique_name(message) },
        (PRIMARY_KEY, _) => StoreError::Conflict { constraint: primary_name(message) },
        (FOREIGN_KEY, _) => StoreError::UnknownReference,
        (_, 5 | 6) => unavailable("the database is locked by another process or connection", error),
        (_, 13) => unavailable("the disk is full", error),
        (_, 3 | 8) => unavailable("the database cannot be written: the file or its folder is read-only", error),
        (_, 10) => unavailable("a disk read or write failed", error),
        (_, 14) => {
            unavailable("the database cannot be opened: the file or its folder cannot be read or written", error)
        }
        (_, 7) => unavailable("the host is out of memory", error),
        (_, 11) => StoreError::Corrupt { what: "the file is damaged".to_owned() },
        (_, 26) => StoreError::Corrupt { what: "the file is not an SQLite database".to_owned() },
        _ => StoreError::Statement(error.into()),
    }
}

/// Derives the constraint name that PostgreSQL would use. For example, `UNIQUE constraint failed: bots.workspace_id,
/// bots.name` becomes `bots_workspace_id_name_key`.
fn unique_name(message: &str) -> String {
    let (table, columns) = failed_columns(message);
    format!("{table}_{}_key", columns.join("_"))
}

fn primary_name(message: &str) -> String {
    format!("{}_pkey", failed_columns(message).0)
}

fn failed_columns(message: &str) -> (&str, Vec<&str>) {
    let list = message.rsplit_once(": ").map_or("", |(_, list)| list);
    let pairs: Vec<_> = list.split(", ").filter_map(|pair| pair.split_once('.')).collect();
    (pairs.first().map_or("", |(table, _)| table), pairs.iter().map(|(_, column)| *column).collect())
}

/// Classifies an error of a migration. `known` is the newest migration of this binary.
pub(crate) fn of_migration(error: MigrateError, known: i64) -> StoreError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => match of_driver(error) {
            StoreError::Statement(source) => StoreError::Migration(source),
            other => other,
        },
        MigrateError::VersionMissing(found) if found > known => StoreError::Newer { found, known },
        other => StoreError::Migration(other.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_have_the_names_that_postgresql_reports() {
        let message = "UNIQUE constraint failed: bots.workspace_id, bots.name";
        assert_eq!(unique_name(message), "bots_workspace_id_name_key");
        assert_eq!(primary_name(message), "bots_pkey");
        assert_eq!(unique_name("something new"), "__key");
    }
}
