//! The encoding of a row for its MAC. The encoding consists of the table name, followed by the covered columns in
//! order, followed by the name and the value of each optional column that is not null, in order. Each of these parts is
//! encoded as a type tag, a length and its bytes. Different rows have different encodings, and a row has the same
//! encoding in every database system. A row whose optional columns are all null has the same encoding as before these
//! columns existed.

use sha2::{Digest as _, Sha256};

use super::{Authentic, Table};
use crate::StoreError;
use crate::db::{Arg, Kind, Row, invalid_column};

const NULL: u8 = 0;
const INT: u8 = 1;
const FLAG: u8 = 2;
const TEXT: u8 = 3;
const BLOB: u8 = 4;
/// The name of an optional column, which precedes the value of the column.
const NAME: u8 = 5;

/// The label of a row's MAC, which identifies the version of the encoding.
pub(crate) const MAC_LABEL: &str = "v1";
/// The label of a row's addend to the sum of its scope.
pub(crate) const SUM_LABEL: &str = "v1 sum";

/// Encodes a row for writing. `values` contains the values of the covered columns, followed by the values of the optional
/// columns.
pub(crate) fn of_values(table: Table, values: &[Arg<'_>]) -> Result<Vec<u8>, StoreError> {
    let spec = table.spec();
    let columns = spec.covered.len() + spec.optional.len();
    debug_assert_eq!(columns, values.len(), "each covered and optional column of {} needs a value", spec.name);
    let (covered, optional) = values.split_at(spec.covered.len().min(values.len()));
    let mut bytes = with_table(spec.name);
    for ((column, kind), value) in spec.covered.iter().zip(covered) {
        push_value(&mut bytes, column, *kind, value)?;
    }
    for ((column, kind), value) in spec.optional.iter().zip(optional) {
        if !matches!(value, Arg::Text(None) | Arg::Int(None)) {
            push(&mut bytes, NAME, column.as_bytes());
            push_value(&mut bytes, column, *kind, value)?;
        }
    }
    Ok(bytes)
}

/// Encodes a row that was read from the database.
pub(crate) fn of_row(table: Table, row: &Row) -> Result<Vec<u8>, StoreError> {
    let spec = table.spec();
    let mut bytes = with_table(spec.name);
    for (column, kind) in spec.covered {
        push_value(&mut bytes, column, *kind, &value(row, column, *kind)?)?;
    }
    for (column, kind) in spec.optional {
        let value = value(row, column, *kind)?;
        if !matches!(value, Arg::Text(None) | Arg::Int(None)) {
            push(&mut bytes, NAME, column.as_bytes());
            push_value(&mut bytes, column, *kind, &value)?;
        }
    }
    Ok(bytes)
}

/// Reads a column of a row from the database.
fn value(row: &Row, column: &'static str, kind: Kind) -> Result<Arg<'static>, StoreError> {
    Ok(match kind {
        Kind::Text => Arg::Text(row.get::<Option<String>>(column)?.map(Into::into)),
        Kind::Int => Arg::Int(row.get(column)?),
        Kind::Flag => Arg::Flag(row.get(column)?),
    })
}

fn push_value(bytes: &mut Vec<u8>, column: &'static str, kind: Kind, value: &Arg<'_>) -> Result<(), StoreError> {
    match (value, kind) {
        (Arg::Text(None), Kind::Text) | (Arg::Int(None), Kind::Int) => push(bytes, NULL, &[]),
        (Arg::Text(Some(text)), Kind::Text) => push(bytes, TEXT, text.as_bytes()),
        (Arg::Int(Some(number)), Kind::Int) => push(bytes, INT, &number.to_be_bytes()),
        (Arg::Flag(flag), Kind::Flag) => push(bytes, FLAG, &[u8::from(*flag)]),
        _ => return Err(invalid_column(column, "of the wrong type")),
    }
    Ok(())
}

/// Returns the SHA-256 of a row's encoding. Fails if a text of the row cannot be stored.
pub(crate) fn digest<T: Authentic>(row: &T) -> Result<[u8; 32], StoreError> {
    let values = row.covered();
    let has_nul = |value: &Arg<'_>| matches!(value, Arg::Text(Some(text)) if text.contains('\0'));
    if values.iter().any(has_nul) {
        return Err(StoreError::Nul);
    }
    Ok(Sha256::digest(of_values(T::TABLE, &values)?).into())
}

/// Returns the SHA-256 of the encoding of a row that was read from the database.
pub(super) fn digest_of_row(table: Table, row: &Row) -> Result<[u8; 32], StoreError> {
    Ok(Sha256::digest(of_row(table, row)?).into())
}

fn with_table(table: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    push(&mut bytes, BLOB, table.as_bytes());
    bytes
}

fn push(bytes: &mut Vec<u8>, tag: u8, value: &[u8]) {
    bytes.push(tag);
    bytes.extend_from_slice(&(value.len() as u64).to_be_bytes());
    bytes.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::values;

    fn part(tag: u8, value: &[u8]) -> Vec<u8> {
        let length = (value.len() as u64).to_be_bytes();
        [&[tag], length.as_slice(), value].concat()
    }

    fn role(gates: Option<&str>) -> Vec<u8> {
        let gates = gates.map(str::to_owned);
        let none: Option<String> = None;
        let values = values!["id", "workspace", "name", &none, "[]", "{}", 1_i64, 2_i64, &gates];
        of_values(Table::Roles, &values).unwrap()
    }

    /// Rows that were written before the column `gates` existed have this encoding.
    #[test]
    fn a_null_in_an_optional_column_is_not_encoded() {
        let texts = [part(TEXT, b"id"), part(TEXT, b"workspace"), part(TEXT, b"name")];
        let lists = [part(NULL, b""), part(TEXT, b"[]"), part(TEXT, b"{}")];
        let times = [part(INT, &1_i64.to_be_bytes()), part(INT, &2_i64.to_be_bytes())];
        let before = [&[part(BLOB, b"roles")], texts.as_slice(), &lists, &times].concat().concat();
        assert_eq!(role(None), before);
        let gates = [part(NAME, b"gates"), part(TEXT, b"[1]")].concat();
        assert_eq!(role(Some("[1]")), [before.clone(), gates].concat());
        assert_ne!(role(Some("")), before);
    }
}
