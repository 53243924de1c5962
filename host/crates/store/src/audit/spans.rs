//! Scans of parts of a chain on any thread, for verification by several threads.
//!
//! A scanner has a separate SQLite connection, and reads rows of version 2 without copying them. The columns of a row
//! are compared with the bytes of its text. If this comparison fails, the text is decoded and compared again. If that
//! fails too, the scan ends, and the caller checks the row in a scan of the whole chain.

use std::path::Path;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row, params};

use super::AuditRow;
use super::first::hash_of_hex;
use crate::db::args;
use crate::error::of_rusqlite;
use crate::{Store, StoreError};

const SPAN: &str = "select sequence, hash, body, kind, flags, request_id, workspace_id, bot_id, tool, operation, status, \
    started_at, writer from audit_rows where writer = ?1 and sequence >= ?2 and sequence <= ?3 order by sequence";
const LAST: &str = "select sequence as value from audit_rows where writer = $1 and sequence <= $2 \
    order by sequence desc limit 1";

/// A row whose columns agree with its text.
#[derive(Clone, Copy, Debug)]
pub struct SpanRow<'a> {
    pub sequence: i64,
    pub hash: &'a [u8; 32],
    /// The canonical text, which the hash covers after the previous hash.
    pub body: &'a [u8],
    pub previous_hash: [u8; 32],
    pub key_version: u32,
}

/// A connection for scans. Only one thread can use it at a time.
pub struct SpanScanner(Connection);

impl Store {
    /// Opens a scanner. Returns `None` if the database is not an SQLite file.
    pub async fn span_scanner(&self) -> Result<Option<SpanScanner>, StoreError> {
        if self.is_shared() {
            return Ok(None);
        }
        let sql = "select file as value from pragma_database_list where name = 'main'";
        let path: Option<String> = self.db.one(sql, args![]).await?;
        path.filter(|path| !path.is_empty()).map(|path| SpanScanner::open(Path::new(&path))).transpose()
    }

    /// Returns the sequence number of the last row of version 2 of a chain, for scans of spans.
    pub async fn last_of_version_2(&self, writer: &str) -> Result<Option<i64>, StoreError> {
        self.db.one(LAST, args![writer, i64::MAX]).await
    }
}

impl SpanScanner {
    fn open(path: &Path) -> Result<SpanScanner, StoreError> {
        let open = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(path, flags)?;
            // A schema that another program altered must not call functions with side effects.
            connection.pragma_update(None, "trusted_schema", "off")?;
            Ok(SpanScanner(connection))
        };
        open().map_err(of_rusqlite)
    }

    /// Passes the rows of a chain from `first` to `last` to `check`, in order, until `check` returns `false`. Returns
    /// whether all of these rows exist, their columns agree with their texts, and `check` returned `true` for each.
    /// Blocks the thread.
    pub fn all(
        &mut self,
        writer: &str,
        (first, last): (i64, i64),
        mut check: impl FnMut(SpanRow<'_>) -> bool,
    ) -> Result<bool, StoreError> {
        let mut statement = self.0.prepare_cached(SPAN).map_err(of_rusqlite)?;
        let mut rows = statement.query(params![writer, first, last]).map_err(of_rusqlite)?;
        let mut expected = first;
        while let Some(row) = rows.next().map_err(of_rusqlite)? {
            let Some(columns) = Columns::of(row) else { return Ok(false) };
            let Some(row) = columns.as_written(writer) else { return Ok(false) };
            if row.sequence != expected || !check(row) {
                return Ok(false);
            }
            expected += 1;
        }
        Ok(expected == last + 1)
    }
}

/// The columns of a row, each with the type that a host writes.
struct Columns<'a> {
    sequence: i64,
    hash: &'a [u8; 32],
    body: &'a [u8],
    kind: &'a [u8],
    flags: Option<&'a [u8]>,
    request_id: &'a [u8; 16],
    workspace_id: Option<&'a [u8; 16]>,
    bot_id: Option<&'a [u8; 16]>,
    tool: Option<&'a [u8]>,
    operation: Option<&'a [u8]>,
    status: &'a [u8],
    started_at: i64,
    writer: &'a [u8],
}

impl<'a> Columns<'a> {
    /// Returns the columns of a row, or `None` if a column has a type that a host does not write.
    fn of(row: &'a Row<'_>) -> Option<Columns<'a>> {
        let value = |index| row.get_ref(index).ok();
        let text = |index| match value(index)? {
            ValueRef::Text(text) => Some(text),
            _ => None,
        };
        let optional = |index| match value(index)? {
            ValueRef::Text(text) => Some(Some(text)),
            ValueRef::Null => Some(None),
            _ => None,
        };
        let integer = |index| match value(index)? {
            ValueRef::Integer(number) => Some(number),
            _ => None,
        };
        let id = |index| match value(index)? {
            ValueRef::Blob(bytes) => Some(Some(bytes.try_into().ok()?)),
            ValueRef::Null => Some(None),
            _ => None,
        };
        let hash = match value(1)? {
            ValueRef::Blob(bytes) => bytes.try_into().ok()?,
            _ => return None,
        };
        Some(Columns {
            sequence: integer(0)?,
            hash,
            body: text(2)?,
            kind: text(3)?,
            flags: optional(4)?,
            request_id: id(5)??,
            workspace_id: id(6)?,
            bot_id: id(7)?,
            tool: optional(8)?,
            operation: optional(9)?,
            status: text(10)?,
            started_at: integer(11)?,
            writer: text(12)?,
        })
    }

    /// Returns the row if its columns agree with its text. The hash of the row is not verified.
    fn as_written(&self, writer: &str) -> Option<SpanRow<'a>> {
        if self.writer != writer.as_bytes() {
            return None;
        }
        let (previous_hash, key_version) = self.compared().or_else(|| self.decoded())?;
        Some(SpanRow { sequence: self.sequence, hash: self.hash, body: self.body, previous_hash, key_version })
    }

    /// Compares the columns with the text without decoding it. Returns the previous hash and the version of the audit
    /// key, or `None` if the columns do not match or the comparison requires decoding.
    ///
    /// The names of fields are found by their bytes: within a string of canonical JSON, a quotation mark follows a
    /// backslash, so `,"name":` occurs only as a name. Names are sorted, so the search for each name begins after the
    /// previous field. If the text is not canonical JSON, a value may be wrong, but then the hash of the row is wrong
    /// too, because a host hashes only canonical texts.
    fn compared(&self) -> Option<([u8; 32], u32)> {
        let mut fields = Fields { rest: self.body };
        fields.is_id(&names::BOT_ID, self.bot_id)?;
        fields.is_text(&names::FLAGS, self.flags)?;
        let key_version = fields.integer(&names::KEY_VERSION)?;
        fields.is_text(&names::KIND, Some(self.kind))?;
        fields.is_text(&names::OPERATION, self.operation)?;
        let previous_hash = hash_of_hex(std::str::from_utf8(fields.text(&names::PREVIOUS_HASH)??).ok()?)?;
        fields.is_id(&names::REQUEST_ID, Some(self.request_id))?;
        let has = |is: bool| is.then_some(());
        has(fields.integer(&names::SEQUENCE)? == self.sequence)?;
        has(fields.integer(&names::STARTED_AT)? == self.started_at)?;
        match self.kind {
            b"started" => has(self.status == b"running")?,
            b"interrupted" => has(self.status == b"interrupted")?,
            b"finished" => fields.is_text(&names::STATUS, Some(self.status))?,
            _ => return None,
        }
        fields.is_text(&names::TOOL, self.tool)?;
        has(fields.integer(&names::V)? == 2)?;
        fields.is_id(&names::WORKSPACE_ID, self.workspace_id)?;
        fields.is_text(&names::WRITER, Some(self.writer))?;
        Some((previous_hash, u32::try_from(key_version).ok()?))
    }

    /// Decodes the text and compares the columns with it. Returns the previous hash and the version of the audit key,
    /// or `None` if they do not match.
    fn decoded(&self) -> Option<([u8; 32], u32)> {
        let row = AuditRow::of_body(std::str::from_utf8(self.body).ok()?, *self.hash).ok()?;
        let text = |text: &Option<String>| text.as_ref().map(|text| text.as_bytes().to_vec());
        let agrees = row.writer.as_bytes() == self.writer
            && row.sequence == self.sequence
            && row.kind.as_str().as_bytes() == self.kind
            && text(&row.flags).as_deref() == self.flags
            && row.request_id.as_bytes() == self.request_id
            && row.workspace_id.as_ref().map(|id| id.as_bytes()) == self.workspace_id
            && row.bot_id.as_ref().map(|id| id.as_bytes()) == self.bot_id
            && text(&row.tool).as_deref() == self.tool
            && text(&row.operation).as_deref() == self.operation
            && row.call_status().unwrap_or_default().as_bytes() == self.status
            && row.started_at.0 == self.started_at;
        agrees.then_some((row.previous_hash, u32::try_from(row.key_version).ok()?))
    }
}

/// The names of the compared fields.
mod names {
    use super::{Finder, LazyLock};

    macro_rules! names {
        ($($name:ident = $text:literal),+ $(,)?) => {
            $(pub(super) static $name: LazyLock<Finder<'static>> =
                LazyLock::new(|| Finder::new(concat!(",\"", $text, "\":")));)+
        };
    }
    names! {
        BOT_ID = "bot_id",
        FLAGS = "flags",
        KEY_VERSION = "key_version",
        KIND = "kind",
        OPERATION = "operation",
        PREVIOUS_HASH = "previous_hash",
        REQUEST_ID = "request_id",
        SEQUENCE = "sequence",
        STARTED_AT = "started_at",
        STATUS = "status",
        TOOL = "tool",
        V = "v",
        WORKSPACE_ID = "workspace_id",
        WRITER = "writer",
    }
}

/// The part of a text that has not been read yet. Fields are read in order.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Moves to the value of a field. Returns whether the field exists.
    fn find(&mut self, name: &Finder<'_>) -> bool {
        match name.find(self.rest) {
            Some(at) => {
                self.rest = &self.rest[at + name.needle().len()..];
                true
            }
            None => false,
        }
    }

    /// Returns the string of a field, or `Some(None)` if the field is absent. Returns `None` if the value requires
    /// decoding, for example because the string has an escaped character.
    fn text(&mut self, name: &Finder<'_>) -> Option<Option<&'a [u8]>> {
        if !self.find(name) {
            return Some(None);
        }
        let value = self.rest.strip_prefix(b"\"")?;
        let end = memchr::memchr2(b'"', b'\\', value)?;
        if value[end] == b'\\' {
            return None;
        }
        self.rest = &value[end + 1..];
        Some(Some(&value[..end]))
    }

    fn is_text(&mut self, name: &Finder<'_>, expected: Option<&[u8]>) -> Option<()> {
        (self.text(name)? == expected).then_some(())
    }

    fn is_id(&mut self, name: &Finder<'_>, expected: Option<&[u8; 16]>) -> Option<()> {
        let mut text = [0; 36];
        let expected = expected.map(|id| hyphenated(id, &mut text));
        (self.text(name)? == expected).then_some(())
    }

    /// Returns an integer field, or `None` if the field is absent or its value is not an integer that a double can
    /// represent.
    fn integer(&mut self, name: &Finder<'_>) -> Option<i64> {
        if !self.find(name) {
            return None;
        }
        let digits = self.rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'-')?;
        std::str::from_utf8(&self.rest[..digits]).ok()?.parse().ok()
    }
}

/// Writes the text of an id in hyphenated form.
fn hyphenated<'a>(id: &[u8; 16], text: &'a mut [u8; 36]) -> &'a [u8] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut at = 0;
    for (index, byte) in id.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text[at] = b'-';
            at += 1;
        }
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 15)];
        at += 2;
    }
    text
}
