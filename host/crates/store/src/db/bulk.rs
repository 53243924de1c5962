//! Insertion of many rows into one table.

/// The statements that insert rows into a table.
pub(crate) struct BulkInsert {
    sqlite: String,
    postgres: String,
}

impl BulkInsert {
    /// Creates the statements. `columns` contains the names and the PostgreSQL types of the columns: `text`, `bigint`
    /// or `bytea`.
    pub(crate) fn new(table: &str, columns: &[(&str, &str)]) -> Self {
        let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
        let head = format!("insert into {table} ({})", names.join(", "));
        let arrays: Vec<_> =
            columns.iter().enumerate().map(|(index, (_, kind))| format!("${}::{kind}[]", index + 1)).collect();
        BulkInsert {
            sqlite: format!("{head} values ({})", vec!["?"; columns.len()].join(", ")),
            postgres: format!("{head} select * from unnest({})", arrays.join(", ")),
        }
    }

    /// Returns the SQLite statement for one row. Its parameters have no numbers, because SQLite searches the list of
    /// all parameters for each named one.
    pub(super) fn sqlite(&self) -> &str {
        &self.sqlite
    }

    /// Returns the PostgreSQL statement for any number of rows, which has one array parameter per column. It is
    /// planned once, needs no separate transaction and takes one round trip.
    pub(super) fn postgres(&'static self) -> &'static str {
        &self.postgres
    }
}
