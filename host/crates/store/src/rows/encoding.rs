//! The encoding of a row for its MAC. The encoding consists of the table name, followed by the covered columns in
//! order. Each of these parts is encoded as a type tag, a length and its bytes. Different rows have different
//! encodings, and a row has the same encoding in every database system.

use sha2::{Digest as _, Sha256};

use super::{Authentic, Table};
use crate::StoreError;
use crate::db::{Arg, Kind, Row, invalid_column};

const NULL: u8 = 0;
const INT: u8 = 1;
const FLAG: u8 = 2;
const TEXT: u8 = 3;
const BLOB: u8 = 4;

/// The label of a row's MAC, which identifies the version of the encoding.
pub(crate) const MAC_LABEL: &str = "v1";
/// The label of a row's addend to the sum of its scope.
pub(crate) const SUM_LABEL: &str = "v1 sum";

/// Encodes a row for writing. `values` contains the values of the covered columns.
pub(crate) fn of_values(table: Table, values: &[Arg<'_>]) -> Result<Vec<u8>, StoreError> {
    let spec = table.spec();
    debug_assert_eq!(spec.covered.len(), values.len(), "each covered column of {} needs a value", spec.name);
    let mut bytes = with_table(spec.name);
    for ((column, kind), value) in spec.covered.iter().zip(values) {
        match (value, kind) {
            (Arg::Text(None), Kind::Text) | (Arg::Int(None), Kind::Int) => push(&mut bytes, NULL, &[]),
            (Arg::Text(Some(text)), Kind::Text) => push(&mut bytes, TEXT, text.as_bytes()),
            (Arg::Int(Some(number)), Kind::Int) => push(&mut bytes, INT, &number.to_be_bytes()),
            (Arg::Flag(flag), Kind::Flag) => push(&mut bytes, FLAG, &[u8::from(*flag)]),
            _ => return Err(invalid_column(column, "of the wrong type")),
        }
    }
    Ok(bytes)
}

/// Encodes a row that was read from the database.
pub(crate) fn of_row(table: Table, row: &Row) -> Result<Vec<u8>, StoreError> {
    let spec = table.spec();
    let mut bytes = with_table(spec.name);
    for (column, kind) in spec.covered {
        match kind {
            Kind::Text => match row.get::<Option<String>>(column)? {
                Some(text) => push(&mut bytes, TEXT, text.as_bytes()),
                None => push(&mut bytes, NULL, &[]),
            },
            Kind::Int => match row.get::<Option<i64>>(column)? {
                Some(number) => push(&mut bytes, INT, &number.to_be_bytes()),
                None => push(&mut bytes, NULL, &[]),
            },
            Kind::Flag => push(&mut bytes, FLAG, &[u8::from(row.get::<bool>(column)?)]),
        }
    }
    Ok(bytes)
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
