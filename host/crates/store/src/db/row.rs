//! Rows and what is read from them.

use monstrum_types::UtcMillis;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, TypeInfo as _, ValueRef as _};

use crate::StoreError;
use crate::error::of_driver;

/// A row that a query gave. Columns go by name; a value of another type than the column's is an error.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// What can be read from a row.
pub(crate) trait FromRow: Sized {
    fn from_row(row: &Row) -> Result<Self, StoreError>;
}

/// A single number, under the column name `value`.
impl FromRow for i64 {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        row.int("value")
    }
}

impl Row {
    pub(crate) fn text_opt(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
            Row::Postgres(row) => row.try_get(column).map_err(of_driver),
        }
    }

    pub(crate) fn int_opt(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
            Row::Postgres(row) => row.try_get(column).map_err(of_driver),
        }
    }

    pub(crate) fn flag(&self, column: &'static str) -> Result<bool, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
            Row::Postgres(row) => row.try_get(column).map_err(of_driver),
        }
    }

    pub(crate) fn bytes(&self, column: &'static str) -> Result<Vec<u8>, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
            Row::Postgres(row) => row.try_get(column).map_err(of_driver),
        }
    }

    /// A value of any type as text, for people.
    pub(crate) fn shown(&self, column: &'static str) -> String {
        if let Ok(text) = self.text_opt(column) {
            return text.unwrap_or_default();
        }
        let number = self.int_opt(column).map(|number| number.map(|number| number.to_string()).unwrap_or_default());
        number.or_else(|_| self.flag(column).map(|flag| flag.to_string())).unwrap_or_else(|_| "?".to_owned())
    }

    /// A value as it stands there: its type by the name that SQLite has for it, and its bytes. PostgreSQL has only
    /// values of the column's type, which are read as such.
    pub(crate) fn raw(&self, column: &'static str) -> Result<(String, Option<Vec<u8>>), StoreError> {
        let Row::Sqlite(row) = self else { return Err(unfit(column, "of another type than its column")) };
        let kind = row.try_get_raw(column).map_err(of_driver)?.type_info().name().to_ascii_lowercase();
        let bytes: Option<Vec<u8>> = row.try_get_unchecked(column).map_err(of_driver)?;
        // What the driver says of no value is the type of its column.
        Ok((if bytes.is_some() { kind } else { "null".to_owned() }, bytes))
    }

    pub(crate) fn bytes_opt(&self, column: &'static str) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get(column).map_err(of_driver),
            Row::Postgres(row) => row.try_get(column).map_err(of_driver),
        }
    }

    pub(crate) fn text(&self, column: &'static str) -> Result<String, StoreError> {
        self.text_opt(column)?.ok_or_else(|| missing(column))
    }

    pub(crate) fn int(&self, column: &'static str) -> Result<i64, StoreError> {
        self.int_opt(column)?.ok_or_else(|| missing(column))
    }

    pub(crate) fn time(&self, column: &'static str) -> Result<UtcMillis, StoreError> {
        self.int(column).map(UtcMillis)
    }

    pub(crate) fn time_opt(&self, column: &'static str) -> Result<Option<UtcMillis>, StoreError> {
        Ok(self.int_opt(column)?.map(UtcMillis))
    }

    /// An id or a name.
    pub(crate) fn id<T: TryFrom<String>>(&self, column: &'static str) -> Result<T, StoreError> {
        self.id_opt(column)?.ok_or_else(|| missing(column))
    }

    pub(crate) fn id_opt<T: TryFrom<String>>(&self, column: &'static str) -> Result<Option<T>, StoreError> {
        let text = self.text_opt(column)?;
        text.map(|text| T::try_from(text).map_err(|_| unfit(column, "not of the right form"))).transpose()
    }

    pub(crate) fn json(&self, column: &'static str) -> Result<serde_json::Value, StoreError> {
        self.json_opt(column)?.ok_or_else(|| missing(column))
    }

    pub(crate) fn json_opt(&self, column: &'static str) -> Result<Option<serde_json::Value>, StoreError> {
        let text = self.text_opt(column)?;
        text.map(|text| serde_json::from_str(&text).map_err(|_| unfit(column, "not JSON"))).transpose()
    }
}

pub(crate) fn unfit(column: &str, what: &str) -> StoreError {
    StoreError::Corrupt { what: format!("column {column}: {what}") }
}

fn missing(column: &str) -> StoreError {
    unfit(column, "no value")
}
