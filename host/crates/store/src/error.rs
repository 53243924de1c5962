//! What can go wrong with the database, in the words that its callers tell apart.

use sqlx::error::DatabaseError;
use sqlx::migrate::MigrateError;

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
    #[error("cannot use `{scheme}` as a database: expected a path or sqlite:PATH")]
    UnknownScheme {
        /// What stands before the colon; never the rest, which may hold a password.
        scheme: String,
    },
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
}

fn unavailable(what: &str, source: impl Into<Cause>) -> StoreError {
    StoreError::Unavailable { what: what.to_owned(), source: source.into() }
}

/// The failure behind an error of the driver.
pub(crate) fn of_driver(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(error) => of_sqlite(error),
        sqlx::Error::Io(_) => unavailable("the database cannot be reached", error),
        sqlx::Error::PoolTimedOut => unavailable("no connection to the database came free in time", error),
        sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => unavailable("the database is closed", error),
        sqlx::Error::ColumnDecode { index, source } => {
            StoreError::Corrupt { what: format!("column {index}: {source}") }
        }
        other => StoreError::Statement(other.into()),
    }
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
