//! What can go wrong with the database, in the words that its callers tell apart.

use sqlx::error::DatabaseError;
use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a statement, or the opening of the database, did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A unique constraint, by its name `{table}_{column}_{column}_key` or `{table}_pkey`.
    #[error("a row with the same values exists already (`{constraint}`)")]
    Conflict {
        /// The name of the constraint.
        constraint: String,
    },
    /// The row cannot be deleted: others refer to it.
    #[error("the row is still in use")]
    InUse,
    /// The row refers to one that does not exist, or that belongs to another workspace.
    #[error("the row refers to one that does not exist")]
    UnknownReference,
    /// The database cannot be used at present: locked, full, not writable, gone.
    #[error("{what}")]
    Unavailable {
        /// What stands in the way.
        what: String,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// A later version of Monstrum has written the database.
    #[error(
        "the database is from a newer version of monstrum (its schema is at {found}, this version knows {known}): \
         upgrade monstrum"
    )]
    Newer {
        /// The newest migration of the database.
        found: i64,
        /// The newest migration of this binary.
        known: i64,
    },
    /// An earlier version of Monstrum has written the database, and nothing has brought it up to date yet.
    #[error("the database is from an older version of monstrum (its schema is at {found}, this version has {known})")]
    Older {
        /// The newest migration of the database.
        found: i64,
        /// The newest migration of this binary.
        known: i64,
    },
    /// The schema of the database is not what its migrations made.
    #[error("the schema of the database cannot be brought up to date")]
    Migration(#[source] Cause),
    /// A stored value is not what the column holds, or the file is damaged.
    #[error("the database holds what it should not: {what}")]
    Corrupt {
        /// Which value, or what about the file.
        what: String,
    },
    /// The address of the database is of a kind that this version does not know.
    #[error("cannot use `{scheme}` as a database: expected postgres://…, sqlite:PATH or a path")]
    UnknownScheme {
        /// What stands before the colon; never the rest, which may hold a password.
        scheme: String,
    },
    /// The address of a PostgreSQL database cannot be read.
    #[error("cannot use the address of the database: {what}; expected postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
    Address {
        /// What is the matter; never a part of the address, which may hold a password.
        what: &'static str,
    },
    /// A text holds U+0000, which PostgreSQL cannot store.
    #[error("a text holds U+0000, which cannot be stored")]
    Nul,
    /// The rows of a scope are not those that were sealed, so nothing in it is changed.
    #[error("the rows of scope `{scope}` are not verified: {why}")]
    Unverified {
        /// `instance`, or the id of a workspace.
        scope: String,
        /// What differs.
        why: String,
    },
    /// The database was opened without the key that authenticates its rows.
    #[error("the key that authenticates rows is not at hand")]
    NoRowKey,
    /// A seal could not be made.
    #[error("the seal of a scope cannot be made")]
    Seal(#[source] Cause),
    /// Any other failure of a statement.
    #[error("the database refused a statement")]
    Statement(#[source] Cause),
}

impl StoreError {
    /// The same failure with the place of the database before it, for one that has just been opened.
    pub(crate) fn at(self, place: &str) -> Self {
        match self {
            StoreError::Unavailable { what, source } => {
                StoreError::Unavailable { what: format!("database `{place}`: {what}"), source }
            }
            StoreError::Corrupt { what } => StoreError::Corrupt { what: format!("`{place}`: {what}") },
            other => other,
        }
    }

    /// The failure of a deletion, where a foreign key means that others still point at the row.
    pub(crate) fn of_deletion(self) -> Self {
        match self {
            StoreError::UnknownReference => StoreError::InUse,
            other => other,
        }
    }

    /// Whether the database gave the transaction up for the sake of another one: run anew, as a whole, it can succeed.
    pub(crate) fn is_contention(&self) -> bool {
        const SERIALIZATION_FAILURE: &str = "40001";
        const DEADLOCK: &str = "40P01";
        let StoreError::Unavailable { source, .. } = self else { return false };
        let refused = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
        refused.and_then(DatabaseError::code).is_some_and(|code| code == SERIALIZATION_FAILURE || code == DEADLOCK)
    }
}

pub(crate) fn unavailable(what: &str, source: impl Into<Cause>) -> StoreError {
    StoreError::Unavailable { what: what.to_owned(), source: source.into() }
}

/// The failure behind an error of the driver.
pub(crate) fn of_driver(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(refused) if refused.try_downcast_ref::<PgDatabaseError>().is_some() => {
            of_postgres(refused)
        }
        sqlx::Error::Database(refused) => of_sqlite(refused),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => unavailable("the database cannot be reached", error),
        sqlx::Error::Tls(_) => unavailable("no TLS connection to the database can be made", error),
        sqlx::Error::PoolTimedOut => unavailable("no connection to the database came free in time", error),
        sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => unavailable("the database is closed", error),
        sqlx::Error::ColumnDecode { index, source } => {
            StoreError::Corrupt { what: format!("column {index}: {source}") }
        }
        other => StoreError::Statement(other.into()),
    }
}

/// Whether the connection on which this happened is of no more use.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(refused) = error else {
        return matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_));
    };
    refused.try_downcast_ref::<PgDatabaseError>().is_some_and(|refused| {
        // Statements that a changed schema or another program made void would fail on this connection for ever.
        matches!(refused.severity(), PgSeverity::Fatal | PgSeverity::Panic)
            || matches!(refused.code(), "0A000" | "26000")
            || refused.code().starts_with("08")
    })
}

/// PostgreSQL's SQLSTATE: the first two characters are the class.
fn of_postgres(error: Box<dyn DatabaseError>) -> StoreError {
    let code = error.code().unwrap_or_default().into_owned();
    let what = match code.as_str() {
        "23505" => {
            return StoreError::Conflict { constraint: error.constraint().unwrap_or_default().to_owned() };
        }
        "23503" => return StoreError::UnknownReference,
        "XX001" | "XX002" => return StoreError::Corrupt { what: "the database is damaged".to_owned() },
        "53100" => "the disk is full",
        "53200" => "there is no memory left",
        "53300" => "the database takes no more connections",
        "55P03" => "it is locked by another process or connection",
        "57014" => "the database took too long",
        "57P01" | "57P02" | "57P03" => "the database is shutting down or starting",
        "25006" => "the database is read-only",
        "25P03" => "the database gave up waiting for us",
        "3D000" | "57P04" => "there is no such database",
        "28000" | "28P01" => "the database does not let the user in",
        "42501" => "the user lacks a right in the database",
        "0A000" | "26000" => "the database has changed under way",
        code if code.starts_with("08") => "the database cannot be reached",
        code if code.starts_with("40") => "others changed the same rows at the same time",
        code if code.starts_with("53") => "the database lacks what it needs",
        code if code.starts_with("58") => "the disk failed to read or write",
        _ => return StoreError::Statement(error.into()),
    };
    unavailable(what, sqlx::Error::Database(error))
}

/// SQLite's result codes: the low byte is the kind, the extended code tells constraints apart.
fn of_sqlite(error: Box<dyn DatabaseError>) -> StoreError {
    const UNIQUE: i32 = 2067;
    const PRIMARY_KEY: i32 = 1555;
    const FOREIGN_KEY: i32 = 787;
    let code: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or(1);
    match (code, code & 0xff) {
        (UNIQUE, _) => StoreError::Conflict { constraint: unique_name(error.message()) },
        (PRIMARY_KEY, _) => StoreError::Conflict { constraint: primary_name(error.message()) },
        (FOREIGN_KEY, _) => StoreError::UnknownReference,
        (_, 5 | 6) => unavailable("it is locked by another process or connection", error),
        (_, 13) => unavailable("the disk is full", error),
        (_, 3 | 8) => unavailable("it cannot be written: the file or its folder is read-only", error),
        (_, 10) => unavailable("the disk failed to read or write", error),
        (_, 14) => unavailable("it cannot be opened: the file or its folder cannot be read or written", error),
        (_, 7) => unavailable("there is no memory left", error),
        (_, 11) => StoreError::Corrupt { what: "the file is damaged".to_owned() },
        (_, 26) => StoreError::Corrupt { what: "the file is not an SQLite database".to_owned() },
        _ => StoreError::Statement(error.into()),
    }
}

/// `UNIQUE constraint failed: bots.workspace_id, bots.name` means `bots_workspace_id_name_key`.
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

/// The failure of a migration, in a binary whose newest is `known`.
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
    fn constraints_go_by_the_name_that_postgresql_would_report() {
        let message = "UNIQUE constraint failed: bots.workspace_id, bots.name";
        assert_eq!(unique_name(message), "bots_workspace_id_name_key");
        assert_eq!(primary_name(message), "bots_pkey");
        assert_eq!(unique_name("something new"), "__key");
    }
}
