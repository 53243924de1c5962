//! Inserts of many rows with few statements.

use super::{Arg, Session};
use crate::StoreError;

/// How many rows a statement of SQLite inserts. Few sizes, so that each statement is prepared once; and 64 rows of up
/// to 500 columns stay below the limit of 32 766 parameters.
const SIZES: [usize; 3] = [64, 8, 1];

/// An insert into one table, as statements for batches of rows.
pub(crate) struct BulkInsert {
    columns: usize,
    sqlite: [(usize, String); 3],
    postgres: String,
}

impl BulkInsert {
    /// `head` is the statement up to `values`. `types` are the types of its columns, each `text` or `bigint`.
    pub(crate) fn new(head: &str, types: &[&str]) -> Self {
        let columns = types.len();
        let sqlite = SIZES.map(|rows| (rows, sqlite_text(head, columns, rows)));
        BulkInsert { columns, sqlite, postgres: postgres_text(head, types) }
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// The statement for any number of rows, with one array parameter per column.
    pub(super) fn postgres(&'static self) -> &'static str {
        &self.postgres
    }
}

/// Parameters without numbers: SQLite looks up each named parameter in a list of all of them, so that a thousand `$n`
/// take half a million steps. (An audit row takes 12 us without numbers and 64 us with them.)
fn sqlite_text(head: &str, columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    format!("{head} values {}", vec![row; rows].join(", "))
}

/// One statement, planned once, for batches of every size. It is its own transaction and takes one round trip.
fn postgres_text(head: &str, types: &[&str]) -> String {
    let arrays: Vec<_> = types.iter().enumerate().map(|(index, kind)| format!("${}::{kind}[]", index + 1)).collect();
    format!("{head} select * from unnest({})", arrays.join(", "))
}

impl Session {
    /// Inserts rows, given as one sequence of values, in batches.
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
