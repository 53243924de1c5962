//! Inserting many rows with few statements.

use super::{Arg, Session};
use crate::StoreError;

/// Rows a statement: one for a lonely row, eight and sixty-four for groups. Few texts, so that each is prepared once; and
/// 64 rows of up to 500 columns stay below the 32 766 parameters of SQLite and the 65 535 of PostgreSQL.
const SIZES: [usize; 3] = [64, 8, 1];

/// An insert into one table, as statements for groups of rows.
pub(crate) struct BulkInsert {
    columns: usize,
    sqlite: [(usize, String); 3],
}

impl BulkInsert {
    /// `head` is everything before `values`, and names `columns` columns.
    pub(crate) fn new(head: &str, columns: usize) -> Self {
        BulkInsert { columns, sqlite: SIZES.map(|rows| (rows, sqlite_text(head, columns, rows))) }
    }
}

/// Parameters without numbers: SQLite looks the name of each one up in a list of them all, so that a thousand `$n` cost
/// half a million steps. (Without: 12 us a row of the audit, with: 64 us.)
fn sqlite_text(head: &str, columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    format!("{head} values {}", vec![row; rows].join(", "))
}

impl Session {
    /// Inserts rows whose values stand one after another.
    pub(crate) async fn insert_rows(
        &mut self,
        insert: &'static BulkInsert,
        mut values: &[Arg<'_>],
    ) -> Result<(), StoreError> {
        debug_assert_eq!(values.len() % insert.columns, 0, "every row has all columns");
        let statements = match self {
            Session::SqliteRead(_) | Session::SqliteTransaction(_) => &insert.sqlite,
        };
        for (rows, sql) in statements {
            while let Some((group, rest)) = values.split_at_checked(rows * insert.columns) {
                self.execute(sql, group).await?;
                values = rest;
            }
        }
        Ok(())
    }
}
