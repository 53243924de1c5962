//! Rows of query results, and the decoding of their columns.
//!
//! This crate has its own `FromRow`, because sqlx decodes NULL from SQLite as an empty string, zero or false. In this
//! crate, decoding NULL is an error unless the field is an `Option`. A row therefore decodes to the same values in
//! every database, and an edited column is never mistaken for another value.

use monstrum_types::{Labels, UtcMillis};
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, TypeInfo as _, ValueRef as _};

use crate::StoreError;
use crate::error::of_driver;

/// A row of a query result. Columns are accessed by name. A value of the wrong type is an error.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// A type that is decoded from a whole row.
pub(crate) trait FromRow: Sized {
    fn from_row(row: &Row) -> Result<Self, StoreError>;
}

/// Implements [`FromRow`] for a struct whose fields have the same names as their columns.
macro_rules! from_row {
    ($row:ident { $($column:ident),+ $(,)? }) => {
        impl $crate::db::FromRow for $row {
            fn from_row(row: &$crate::db::Row) -> Result<Self, $crate::StoreError> {
                Ok($row { $($column: row.get(stringify!($column))?),+ })
            }
        }
    };
}
pub(crate) use from_row;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text, including JSON.
    Text,
    Int,
    Flag,
}

/// A type that is decoded from the value of a column.
pub(crate) trait ColumnValue: Sized {
    const KIND: Kind = Kind::Text;

    /// Decodes the value of a column. Returns `None` for NULL.
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError>;
}

/// The type of a field: a [`ColumnValue`], or an `Option` of one if the column may be NULL.
pub(crate) trait Column: Sized {
    const KIND: Kind;

    fn read_column(row: &Row, column: &'static str) -> Result<Self, StoreError>;
}

impl<T: ColumnValue> Column for T {
    const KIND: Kind = T::KIND;

    fn read_column(row: &Row, column: &'static str) -> Result<Self, StoreError> {
        T::read(row, column)?.ok_or_else(|| invalid_column(column, "NULL"))
    }
}

impl<T: ColumnValue> Column for Option<T> {
    const KIND: Kind = T::KIND;

    fn read_column(row: &Row, column: &'static str) -> Result<Self, StoreError> {
        T::read(row, column)
    }
}

macro_rules! native_values {
    ($($value:ty: $kind:ident),+) => { $(
        impl ColumnValue for $value {
            const KIND: Kind = Kind::$kind;

            fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
                match row {
                    Row::Sqlite(row) => row.try_get(column),
                    Row::Postgres(row) => row.try_get(column),
                }
                .map_err(of_driver)
            }
        }
    )+ };
}
native_values!(String: Text, i64: Int, bool: Flag);

/// Bytes. The driver would also decode a text from SQLite, so that two different stored values would be the same bytes.
impl ColumnValue for Vec<u8> {
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        let bytes: Option<Self> = match row {
            Row::Sqlite(row) => row.try_get(column),
            Row::Postgres(row) => row.try_get(column),
        }
        .map_err(of_driver)?;
        match row {
            Row::Sqlite(_) if bytes.is_some() && row.raw(column)?.0 != "blob" => {
                Err(invalid_column(column, "not a blob"))
            }
            _ => Ok(bytes),
        }
    }
}

impl ColumnValue for UtcMillis {
    const KIND: Kind = Kind::Int;

    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        Ok(i64::read(row, column)?.map(UtcMillis))
    }
}

/// A count. Negative values are rejected.
impl ColumnValue for u64 {
    const KIND: Kind = Kind::Int;

    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        let number = i64::read(row, column)?;
        number.map(|number| u64::try_from(number).map_err(|_| invalid_column(column, "negative"))).transpose()
    }
}

/// Labels. A text that cannot be read counts as every label, so that an edited column removes none.
impl ColumnValue for Labels {
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        Ok(String::read(row, column)?.map(|text| Labels::from_text(&text)))
    }
}

/// JSON, which is stored as text.
impl ColumnValue for serde_json::Value {
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        row.parse(column, |text| serde_json::from_str(text).ok())
    }
}

/// Decodes a single number from the column `value`.
impl FromRow for i64 {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        row.get("value")
    }
}

/// Decodes a single string from the column `value`.
impl FromRow for String {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        row.get("value")
    }
}

impl Row {
    pub(crate) fn get<T: Column>(&self, column: &'static str) -> Result<T, StoreError> {
        T::read_column(self, column)
    }

    /// Parses a value that is stored as text. Returns `None` for NULL.
    pub(crate) fn parse<T>(
        &self,
        column: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        let text = String::read(self, column)?;
        text.map(|text| parse(&text).ok_or_else(|| invalid_column(column, "malformed"))).transpose()
    }

    /// Formats a value of any type for display to people.
    pub(crate) fn display(&self, column: &'static str) -> String {
        if let Ok(text) = String::read(self, column) {
            return text.unwrap_or_default();
        }
        let number = i64::read(self, column).map(|number| number.map(|number| number.to_string()).unwrap_or_default());
        number.or_else(|_| self.get::<bool>(column).map(|flag| flag.to_string())).unwrap_or_else(|_| "?".to_owned())
    }

    /// Returns the stored value without conversion, as SQLite's name of its type and its bytes. SQLite can store
    /// values of any type in any column. PostgreSQL cannot, so this fails for PostgreSQL.
    pub(crate) fn raw(&self, column: &'static str) -> Result<(String, Option<Vec<u8>>), StoreError> {
        let Row::Sqlite(row) = self else { return Err(invalid_column(column, "of the wrong type")) };
        let kind = row.try_get_raw(column).map_err(of_driver)?.type_info().name().to_ascii_lowercase();
        let bytes: Option<Vec<u8>> = row.try_get_unchecked(column).map_err(of_driver)?;
        // For NULL, the driver returns the declared type of the column, so `kind` cannot be used.
        Ok((if bytes.is_some() { kind } else { "null".to_owned() }, bytes))
    }
}

pub(crate) fn invalid_column(column: &str, what: &str) -> StoreError {
    StoreError::Corrupt { what: format!("column {column}: {what}") }
}
