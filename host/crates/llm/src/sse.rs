//! An incremental parser of server-sent events, by the HTML standard (section 9.2, "Server-sent events").
//!
//! The parser owns how bytes become events: lines that end with CR LF, LF or CR, comments, the byte order mark, and
//! characters that are cut by the ends of pieces. The events do not depend on how the bytes are cut into pieces. The
//! parser must not know what events contain.
//!
//! There are two differences to the standard. The fields `id` and `retry` are ignored, because a stream of a model is
//! never resumed. [`Parser::finish`] returns an event that lacks its blank line, because some servers close the
//! connection right after the last line.

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The field `event`; empty if the event has none.
    pub name: String,
    /// The lines of the fields `data`, joined by LF.
    pub data: String,
}

/// Why a stream is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line without an end.
    #[error("a line of the event stream is longer than {limit} bytes")]
    LineTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// An event without an end.
    #[error("an event of the event stream has more than {limit} bytes")]
    EventTooLong {
        /// The limit in bytes.
        limit: usize,
    },
}

/// The state between two pieces of a stream.
#[derive(Debug)]
pub struct Parser {
    bytes_max: usize,
    /// The line that has not ended yet.
    line: Vec<u8>,
    is_first_line: bool,
    /// The last byte was a CR, so that an LF belongs to the same end of a line.
    after_cr: bool,
    name: String,
    /// The data of the event that has not ended yet. `None` if the event has no field `data`.
    data: Option<String>,
    failure: Option<SseError>,
}

impl Parser {
    /// Creates a parser that refuses lines and events of more than `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Parser {
            bytes_max,
            line: Vec::new(),
            is_first_line: true,
            after_cr: false,
            name: String::new(),
            data: None,
            failure: None,
        }
    }

    /// Reads the next piece and adds the events that end in it to `events`.
    ///
    /// # Errors
    ///
    /// A line or event is too long. The parser then stays failed; the events before it are in `events`.
    pub fn push(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), SseError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let read = self.read(bytes, events);
        self.failure = read.err();
        read
    }

    fn read(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), SseError> {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
                return self.extend_line(bytes);
            };
            self.extend_line(&bytes[..end])?;
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            events.extend(self.end_line()?);
        }
        Ok(())
    }

    /// Ends the stream. Returns the last event if the stream ended before its blank line. The data of that event may be
    /// cut anywhere.
    ///
    /// # Errors
    ///
    /// The parser has failed, or the last event is too long.
    pub fn finish(mut self) -> Result<Option<Event>, SseError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if !self.line.is_empty() {
            self.end_line()?;
        }
        Ok(self.end_event())
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if bytes.len() > self.bytes_max - self.line.len() {
            return Err(SseError::LineTooLong { limit: self.bytes_max });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// Reads the line that has ended. Returns an event if the line is blank.
    fn end_line(&mut self) -> Result<Option<Event>, SseError> {
        let line = std::mem::take(&mut self.line);
        let mut text = line.as_slice();
        if std::mem::take(&mut self.is_first_line) {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        let event = if text.is_empty() {
            self.end_event()
        } else {
            self.field(text)?;
            None
        };
        // The memory of the line is used again.
        self.line = line;
        self.line.clear();
        Ok(event)
    }

    fn field(&mut self, line: &[u8]) -> Result<(), SseError> {
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                let held = self.data.as_ref().map_or(0, |data| data.len() + 1);
                let value = String::from_utf8_lossy(value);
                if held + value.len() > self.bytes_max {
                    return Err(SseError::EventTooLong { limit: self.bytes_max });
                }
                match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(&value);
                    }
                    None => self.data = Some(value.into_owned()),
                }
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            // A comment has an empty name. Fields with other names are ignored, as the standard says.
            _ => {}
        }
        Ok(())
    }

    fn end_event(&mut self) -> Option<Event> {
        let name = std::mem::take(&mut self.name);
        self.data.take().map(|data| Event { name, data })
    }
}
