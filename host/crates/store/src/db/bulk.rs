//! Insertion of many rows with few statements.

use super::{Arg, Session};
use crate::StoreError;

/// The numbers of rows that a single SQLite statement inserts. There are only a few sizes, so that each statement is
/// prepared only once. With up to 500 columns, 64 rows stay below SQLite's limit of 32,766 parameters.
const SIZES: [usize; 3] = [64, 8, 1];

/// A bulk insert into one table: statements for batches of rows.
pub(crate) struct BulkInsert {
    columns: usize,
    sqlite: [(usize, String); 3],
    postgres: String,
}

impl BulkInsert {
    /// Creates the statements. `head` is the part of the statement before `values`. `types` contains the types of its
    /// columns, each `text` or `bigint`.
    pub(crate) fn new(head: &str, types: &[&str]) -> Self {
        let columns = types.len();
        let sqlite = SIZES.map(|rows| (rows, sqlite_text(head, columns, rows)));
        BulkInsert { columns, sqlite, postgres: postgres_text(head, types) }
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the PostgreSQL statement for any number of rows, which has one array parameter per column.
    pub(super) fn postgres(&'static self) -> &'static str {
        &self.postgres
    }
}

/// Builds an SQLite statement with parameters without numbers. SQLite searches the list of all parameters for each
/// named one, so a thousand `$n` parameters take half a million steps. (An audit row takes 12 µs without numbers and
/// 64 µs with them.)
fn sqlite_text(head: &str, columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    format!("{head} values {}", vec![row; rows].join(", "))
}

/// Builds a single PostgreSQL statement for batches of any size, which is planned once. It needs no separate
/// transaction and takes one round trip.
fn postgres_text(head: &str, types: &[&str]) -> String {
    let arrays: Vec<_> = types.iter().enumerate().map(|(index, kind)| format!("${}::{kind}[]", index + 1)).collect();
    format!("{head} select * from unnest({})", arrays.join(", "))
}

impl Session {
    /// Inserts rows in batches. `values` contains the values of all rows, one row after another.
    pub(super) async fn insert_batches(
        &mut self,
        insert: &'static BulkInsert,
        mut values: &[Arg<'_>],
    ) -> Result<(), StoreError> {
        debug_assert_eq!(values.len() % insert.columns, 0, "every row has all columns");
        for (rows, sql) in &insert.sqlite {
            while let Some((batch, rest)) = values.split_at_checked(rows * insert.columns) {
                self.execute(sql, batch).await?;
                values = rest;
            }
        }
        Ok(())
    }
}
