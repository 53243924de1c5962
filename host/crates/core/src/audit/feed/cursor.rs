//! The position of a feed in the chains of the audit.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use monstrum_store::ChainEnd;

/// The maximum length of a cursor as text. Each host of a database adds about 60 characters.
const TEXT_MAX: usize = 16 * 1024;

/// How far each chain was read. A cursor is not secret, and names no calls: which calls a feed has is decided by the
/// workspace of the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedCursor(BTreeMap<String, i64>);

impl FeedCursor {
    pub(super) fn of(ends: Vec<ChainEnd>) -> FeedCursor {
        FeedCursor(ends.into_iter().map(|end| (end.writer, end.sequence)).collect())
    }

    /// Returns the last row that was read. A chain that is unknown began after the cursor was made.
    pub(super) fn of_writer(&self, writer: &str) -> i64 {
        self.0.get(writer).copied().unwrap_or(0)
    }

    pub(super) fn advance(&mut self, writer: &str, sequence: i64) {
        match self.0.get_mut(writer) {
            Some(position) => *position = sequence,
            None => {
                self.0.insert(writer.to_owned(), sequence);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(writer, sequence)| (writer.as_str(), *sequence))
    }
}

impl fmt::Display for FeedCursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(&self.0).map_err(|_| fmt::Error)?;
        formatter.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

/// The error for a text that is not a cursor.
#[derive(Debug, thiserror::Error)]
#[error("the text is not a cursor of a feed")]
pub struct NotACursor;

impl FromStr for FeedCursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        if text.is_empty() || text.len() > TEXT_MAX {
            return Err(NotACursor);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| NotACursor)?;
        let positions: BTreeMap<String, i64> = serde_json::from_slice(&bytes).map_err(|_| NotACursor)?;
        if positions.values().any(|position| *position < 0) { Err(NotACursor) } else { Ok(FeedCursor(positions)) }
    }
}
