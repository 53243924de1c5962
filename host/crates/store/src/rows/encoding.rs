//! The bytes that a MAC is over: the name of the table and the columns under the MAC in their order, each as the tag of
//! its type and its bytes with their length before them, so that no two rows give the same bytes, and both kinds of
//! database give the same for the same row.

use super::tables::{Kind, Table};
use crate::StoreError;
use crate::db::{Arg, Row, unfit};

const NULL: u8 = 0;
const INT: u8 = 1;
const FLAG: u8 = 2;
const TEXT: u8 = 3;
const BLOB: u8 = 4;

/// The label of a row's MAC, which says in which form its bytes are.
pub(crate) const MAC_LABEL: &str = "v1";
/// The label of what a row adds to the sum of its scope.
pub(crate) const SUM_LABEL: &str = "v1 sum";

/// The bytes of a row that is written. `values` are those of the columns under the MAC.
pub(crate) fn of_values(table: Table, values: &[Arg<'_>]) -> Result<Vec<u8>, StoreError> {
    let spec = table.spec();
    debug_assert_eq!(spec.covered.len(), values.len(), "every column of {} under the MAC has a value", spec.name);
    let mut bytes = begun(spec.name);
    for ((column, kind), value) in spec.covered.iter().zip(values) {
        match (value, kind) {
            (Arg::Text(None), Kind::Text) | (Arg::Int(None), Kind::Int) => push(&mut bytes, NULL, &[]),
            (Arg::Text(Some(text)), Kind::Text) => push(&mut bytes, TEXT, text.as_bytes()),
            (Arg::Int(Some(number)), Kind::Int) => push(&mut bytes, INT, &number.to_be_bytes()),
            (Arg::Flag(flag), Kind::Flag) => push(&mut bytes, FLAG, &[u8::from(*flag)]),
            _ => return Err(unfit(column, "of another type than its column")),
        }
    }
    Ok(bytes)
}

/// The bytes of a row that was read.
pub(crate) fn of_row(table: Table, row: &Row) -> Result<Vec<u8>, StoreError> {
    let spec = table.spec();
    let mut bytes = begun(spec.name);
    for (column, kind) in spec.covered {
        match kind {
            Kind::Text => match row.text_opt(column)? {
                Some(text) => push(&mut bytes, TEXT, text.as_bytes()),
                None => push(&mut bytes, NULL, &[]),
            },
            Kind::Int => match row.int_opt(column)? {
                Some(number) => push(&mut bytes, INT, &number.to_be_bytes()),
                None => push(&mut bytes, NULL, &[]),
            },
            Kind::Flag => push(&mut bytes, FLAG, &[u8::from(row.flag(column)?)]),
        }
    }
    Ok(bytes)
}

fn begun(table: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    push(&mut bytes, BLOB, table.as_bytes());
    bytes
}

fn push(bytes: &mut Vec<u8>, tag: u8, value: &[u8]) {
    bytes.push(tag);
    bytes.extend_from_slice(&(value.len() as u64).to_be_bytes());
    bytes.extend_from_slice(value);
}
