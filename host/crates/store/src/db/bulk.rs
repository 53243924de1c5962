//! Inserting many rows with few statements.

use super::{Arg, Session};
use crate::StoreError;

/// Rows a statement of SQLite: one for a lonely row, eight and sixty-four for groups. Few texts, so that each is prepared
/// once; and 64 rows of up to 500 columns stay below its 32 766 parameters.
const SIZES: [usize; 3] = [64, 8, 1];

/// An insert into one table, as statements for groups of rows.
pub(crate) struct BulkInsert {
    columns: usize,
    sqlite: [(usize, String); 3],
    postgres: String,
}

impl BulkInsert {
    /// `head` is everything before `values`, and names as many columns as `types`. Those are `text` and `bigint`.
    pub(crate) fn new(head: &str, types: &[&str]) -> Self {
        let columns = types.len();
        let sqlite = SIZES.map(|rows| (rows, sqlite_text(head, columns, rows)));
        BulkInsert { columns, sqlite, postgres: postgres_text(head, types) }
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// The statement for any number of rows, which takes an array a column.
    pub(super) fn postgres(&'static self) -> &'static str {
        &self.postgres
    }
}

/// Parameters without numbers: SQLite looks the name of each one up in a list of them all, so that a thousand `$n` cost
/// half a million steps. (Without: 12 us a row of the audit, with: 64 us.)
fn sqlite_text(head: &str, columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    format!("{head} values {}", vec![row; rows].join(", "))
}

/// One text, planned once, for groups of every size: a group is one statement, which is a transaction by itself and
/// takes one round trip.
fn postgres_text(head: &str, types: &[&str]) -> String {
    let arrays: Vec<_> = types.iter().enumerate().map(|(index, kind)| format!("${}::{kind}[]", index + 1)).collect();
    format!("{head} select * from unnest({})", arrays.join(", "))
}

impl Session {
    /// Inserts rows whose values stand one after another, in groups.
    pub(super) async fn insert_groups(
        &mut self,
        insert: &'static BulkInsert,
        mut values: &[Arg<'_>],
    ) -> Result<(), StoreError> {
        debug_assert_eq!(values.len() % insert.columns, 0, "every row has all columns");
        for (rows, sql) in &insert.sqlite {
            while let Some((group, rest)) = values.split_at_checked(rows * insert.columns) {
                self.execute(sql, group).await?;
                values = rest;
            }
        }
        Ok(())
    }
}
