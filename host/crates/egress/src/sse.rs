//! Server-sent events (WHATWG HTML, section 9.2) in the body of a response.
//!
//! The bytes of an event are collected, redacted as a whole, and only then decoded and parsed. A secret that an upstream
//! spreads over several events is not found.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_types::{Failure, FailureCode};

use crate::redact::{Redactor, RedactorCell};
use crate::searches::{self, SearchError, Watch};
use crate::stream::StreamedBody;

/// The maximum size of one event: the maximum size of a tool's parameters, which an event may contain.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// One event with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The type of the event, `message` by default.
    pub kind: String,
    /// The lines of data, separated by line feeds.
    pub data: String,
}

/// Reads the events of a body. An event without data is not returned, and an event that the end of the body cuts off is
/// discarded, as the standard requires.
pub struct EventReader {
    body: StreamedBody,
    /// The received bytes that were not split yet.
    chunk: Bytes,
    splitter: Splitter,
    /// The search of the current event. It is kept here so that no event is lost if [`EventReader::next`] is dropped.
    search: Option<BoxFuture<'static, Result<Fields, SearchError>>>,
    last_event_id: String,
    retry_ms: Option<u64>,
}

impl EventReader {
    pub(crate) fn new(body: StreamedBody) -> Self {
        EventReader {
            body,
            chunk: Bytes::new(),
            splitter: Splitter::default(),
            search: None,
            last_event_id: String::new(),
            retry_ms: None,
        }
    }

    /// Returns the next event, or `None` at the end of the body. Dropping the future loses no event.
    ///
    /// # Errors
    ///
    /// Fails if an event or the body is too large, if the deadline has passed, or if an event cannot be searched for
    /// secrets. After a failure, the connection is closed, and the body has ended.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        let next = self.read_next().await;
        if next.is_err() {
            self.body.close();
            (self.chunk, self.splitter, self.search) = (Bytes::new(), Splitter::default(), None);
        }
        next
    }

    async fn read_next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(search) = &mut self.search {
                let fields = self.body.searched(search).await?;
                self.search = None;
                if let Some(event) = self.take(fields) {
                    return Ok(Some(event));
                }
            } else if let Some(block) = self.splitter.split(&mut self.chunk).map_err(too_large)? {
                self.search = Some(redacted(block, self.body.redactor()));
            } else if let Some(chunk) = self.body.chunk().await? {
                self.chunk = chunk;
            } else {
                return Ok(None);
            }
        }
    }

    /// Returns the id of the last event that had an id, or an empty text.
    #[must_use]
    pub fn last_event_id(&self) -> &str {
        &self.last_event_id
    }

    /// Returns the delay after which the server asks clients to reconnect.
    #[must_use]
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    fn take(&mut self, fields: Fields) -> Option<Event> {
        let Fields { kind, data, id, retry_ms } = fields;
        self.retry_ms = retry_ms.or(self.retry_ms);
        if let Some(id) = id {
            self.last_event_id = id;
        }
        let kind = kind.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "message".to_owned());
        Some(Event { kind, data: data? })
    }
}

fn too_large(Oversized: Oversized) -> Failure {
    let message = format!("the response has an event that is larger than {} MiB", EVENT_BYTES_MAX >> 20);
    Failure::sent(FailureCode::TooLarge, message)
}

/// Redacts and parses the lines of an event.
fn redacted(block: Vec<u8>, redactor: &RedactorCell) -> BoxFuture<'static, Result<Fields, SearchError>> {
    let (current, budget) = (redactor.current(), Arc::clone(redactor.budget()));
    async move {
        let bytes = block.len();
        searches::run(bytes, &budget, move |watch| Fields::of(block, &current, watch)).await
    }
    .boxed()
}

/// An event over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Oversized;

/// Splits a stream of bytes into the events that blank lines separate. A line ends with CRLF, LF or CR. The result does
/// not depend on how the stream is cut into chunks.
#[derive(Default)]
struct Splitter {
    /// The complete lines of the current event, each with a line feed, and the beginning of the next line.
    block: Vec<u8>,
    line_start: usize,
    /// Whether the last byte was a CR. A following LF belongs to the same line end.
    is_after_cr: bool,
    is_after_first_line: bool,
}

impl Splitter {
    /// Removes bytes from the beginning of `chunk` until an event is complete, and returns its lines without comments.
    /// Returns `None` if the chunk was consumed before the end of an event.
    fn split(&mut self, chunk: &mut Bytes) -> Result<Option<Vec<u8>>, Oversized> {
        while !chunk.is_empty() {
            if std::mem::take(&mut self.is_after_cr) && chunk[0] == b'\n' {
                *chunk = chunk.split_off(1);
                continue;
            }
            let end = chunk.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let line = chunk.split_to(end.unwrap_or(chunk.len()));
            if self.block.len() + line.len() > EVENT_BYTES_MAX {
                return Err(Oversized);
            }
            self.block.extend_from_slice(&line);
            if end.is_some() {
                self.is_after_cr = chunk[0] == b'\r';
                *chunk = chunk.split_off(1);
                if let Some(block) = self.end_line() {
                    return Ok(Some(block));
                }
            }
        }
        Ok(None)
    }

    /// Ends the current line. Returns the event if the line is blank and the event has lines.
    fn end_line(&mut self) -> Option<Vec<u8>> {
        if !std::mem::replace(&mut self.is_after_first_line, true) && self.block.starts_with(BYTE_ORDER_MARK) {
            self.block.drain(..BYTE_ORDER_MARK.len());
        }
        match self.block.get(self.line_start) {
            None => {
                self.line_start = 0;
                return Some(std::mem::take(&mut self.block)).filter(|block| !block.is_empty());
            }
            // Comments are dropped at once, so that the comments of an idle server do not count towards the limit.
            Some(b':') => self.block.truncate(self.line_start),
            Some(_) => self.block.push(b'\n'),
        }
        self.line_start = self.block.len();
        None
    }
}

/// The fields of an event.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fields {
    kind: Option<String>,
    data: Option<String>,
    id: Option<String>,
    retry_ms: Option<u64>,
}

impl Fields {
    /// Redacts the lines of an event, then parses them.
    fn of(block: Vec<u8>, redactor: &Redactor, watch: &Watch) -> Result<Fields, SearchError> {
        let block = redactor.redact_watched(block, watch)?;
        let (text, is_valid) = match String::from_utf8(block) {
            Ok(text) => (text, true),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), false),
        };
        let (fields, is_joined) = Fields::parse(&text);
        if is_valid && !is_joined {
            return Ok(fields);
        }
        // A secret that contains a line feed, and a text in which invalid UTF-8 was replaced, can match only now.
        let redact = |text: Option<String>| text.map(|text| redactor.redact_text_watched(text, watch)).transpose();
        Ok(Fields { kind: redact(fields.kind)?, data: redact(fields.data)?, id: redact(fields.id)?, ..fields })
    }

    /// Parses lines. Also returns whether the data consists of several lines.
    fn parse(text: &str) -> (Fields, bool) {
        let (mut fields, mut is_joined) = (Fields::default(), false);
        for line in text.split_terminator('\n') {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "event" => fields.kind = Some(value.to_owned()),
                "data" => match &mut fields.data {
                    Some(data) => {
                        is_joined = true;
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => fields.data = Some(value.to_owned()),
                },
                "id" if !value.contains('\0') => fields.id = Some(value.to_owned()),
                // A value that is not a number or is too large is ignored.
                "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                    fields.retry_ms = value.parse().ok().or(fields.retry_ms);
                }
                _ => {}
            }
        }
        (fields, is_joined)
    }
}

#[cfg(test)]
mod tests;
