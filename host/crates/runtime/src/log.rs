//! The log of one call: the lines that the plugin writes with `log.write`, its standard output and standard error, and
//! the reason for a crash.
//!
//! The log has a size limit. Lines over the limit are dropped and counted. The lines are not redacted yet: callers must
//! redact them before use.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use monstrum_types::words;
use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// The maximum number of log lines of one call. With the maximum size of a line, the log of a call has at most 4 MiB.
pub const LOG_LINES_MAX: usize = 1000;

/// The maximum size of one line in bytes, message and fields together. Stack traces of interpreters fit into this
/// limit.
pub const LOG_LINE_BYTES_MAX: usize = 4 << 10;

/// The number of bytes that a stream accepts at once. A guest that prints more bytes must write the remaining bytes in
/// a further call.
const STREAM_CHUNK_BYTES: usize = 64 << 10;

words! {
    /// The severity of a line.
    pub enum LogLevel {
        /// Details for the author.
        Debug = "debug",
        /// Information; also the level of standard output.
        Info = "info",
        /// Warnings; also the level of standard error.
        Warn = "warn",
        /// Errors.
        Error = "error",
    }
}

words! {
    /// The source of a line.
    pub enum LogSource {
        /// The plugin, with `log.write`.
        Plugin = "plugin",
        /// The plugin's standard output.
        Stdout = "stdout",
        /// The plugin's standard error.
        Stderr = "stderr",
        /// The host, which logs the reason for a crash.
        Host = "host",
    }
}

/// One line of a plugin's log, not yet redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The source of the line.
    pub source: LogSource,
    /// The severity of the line.
    pub level: LogLevel,
    /// The message.
    pub message: String,
    /// The fields, which should be a JSON object. The host does not parse them.
    pub fields: Option<String>,
    /// Whether the line was truncated.
    pub cut: bool,
}

/// The lines of one call, and the unfinished lines of its streams.
#[derive(Default)]
pub(crate) struct CallLog {
    lines: Vec<LogLine>,
    dropped: u64,
    stdout: PartialLine,
    stderr: PartialLine,
}

#[derive(Default)]
struct PartialLine {
    bytes: Vec<u8>,
    cut: bool,
}

impl CallLog {
    pub(crate) fn write(&mut self, source: LogSource, level: LogLevel, message: &str, fields: &str) {
        let kept = message.floor_char_boundary(LOG_LINE_BYTES_MAX);
        let fields_fit = kept + fields.len() <= LOG_LINE_BYTES_MAX;
        self.push(LogLine {
            source,
            level,
            message: message[..kept].to_owned(),
            fields: (fields_fit && !fields.is_empty()).then(|| fields.to_owned()),
            cut: kept < message.len() || !fields_fit,
        });
    }

    fn print(&mut self, stream: Stream, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.partial(stream).extend(&bytes[..end]);
            self.end_line(stream);
            bytes = &bytes[end + 1..];
        }
        self.partial(stream).extend(bytes);
    }

    /// Removes and returns the lines and the number of dropped lines.
    pub(crate) fn take(&mut self) -> (Vec<LogLine>, u64) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if !self.partial(stream).bytes.is_empty() {
                self.end_line(stream);
            }
        }
        (std::mem::take(&mut self.lines), std::mem::take(&mut self.dropped))
    }

    fn partial(&mut self, stream: Stream) -> &mut PartialLine {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    fn end_line(&mut self, stream: Stream) {
        let PartialLine { mut bytes, cut } = std::mem::take(self.partial(stream));
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        let (source, level) = match stream {
            Stream::Stdout => (LogSource::Stdout, LogLevel::Info),
            Stream::Stderr => (LogSource::Stderr, LogLevel::Warn),
        };
        let text = String::from_utf8_lossy(&bytes);
        // Replacing invalid UTF-8 can make the text longer than the limit.
        let kept = text.floor_char_boundary(LOG_LINE_BYTES_MAX);
        let cut = cut || kept < text.len();
        self.push(LogLine { source, level, message: text[..kept].to_owned(), fields: None, cut });
    }

    fn push(&mut self, line: LogLine) {
        if self.lines.len() < LOG_LINES_MAX {
            self.lines.push(line);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

impl PartialLine {
    fn extend(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(LOG_LINE_BYTES_MAX - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..kept]);
        self.cut |= kept < bytes.len();
    }
}

/// The log of a running call, shared by the guest's streams and the host.
#[derive(Clone, Default)]
pub(crate) struct SharedLog(Arc<Mutex<CallLog>>);

impl SharedLog {
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut CallLog) -> R) -> R {
        work(&mut self.0.lock())
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// A standard stream of the guest. The stream is always ready and never fails, so that a full log does not cause the
/// guest to fail.
#[derive(Clone)]
pub(crate) struct LogStream {
    log: SharedLog,
    stream: Stream,
}

impl LogStream {
    pub(crate) fn new(log: SharedLog, stream: Stream) -> Self {
        LogStream { log, stream }
    }
}

impl IsTerminal for LogStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LogStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // Only WASI 0.3 uses this method, and WASI 0.3 is not linked.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for LogStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.log.with(|log| log.print(self.stream, &bytes));
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(STREAM_CHUNK_BYTES)
    }
}

impl Pollable for LogStream {
    fn ready<'this, 'ready>(&'this mut self) -> Pin<Box<dyn Future<Output = ()> + Send + 'ready>>
    where
        'this: 'ready,
        Self: 'ready,
    {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(lines: &[LogLine]) -> Vec<&str> {
        lines.iter().map(|line| line.message.as_str()).collect()
    }

    #[test]
    fn streams_become_lines() {
        let mut log = CallLog::default();
        log.print(Stream::Stdout, b"one\r\ntw");
        log.print(Stream::Stderr, b"oh\n\n");
        log.print(Stream::Stdout, b"o\nrest \xff");
        let (lines, dropped) = log.take();
        assert_eq!(messages(&lines), ["one", "oh", "", "two", "rest \u{fffd}"]);
        assert_eq!(lines[0].level, LogLevel::Info);
        assert_eq!(lines[1].level, LogLevel::Warn);
        assert_eq!(dropped, 0);
        assert_eq!(log.take().0, []);
    }

    #[test]
    fn long_lines_are_cut_and_marked() {
        let mut log = CallLog::default();
        let long = "é".repeat(LOG_LINE_BYTES_MAX);
        log.write(LogSource::Plugin, LogLevel::Debug, &long, "{}");
        log.write(LogSource::Plugin, LogLevel::Debug, "short", &format!("{{\"a\":\"{long}\"}}"));
        log.write(LogSource::Plugin, LogLevel::Debug, "short", r#"{"a":1}"#);
        for chunk in long.as_bytes().chunks(1000) {
            log.print(Stream::Stdout, chunk);
        }
        log.print(Stream::Stdout, b"\n");
        log.print(Stream::Stdout, &[0xff; LOG_LINE_BYTES_MAX]);
        let (lines, _) = log.take();
        assert!(lines.iter().all(|line| line.message.len() <= LOG_LINE_BYTES_MAX));
        assert_eq!(lines.iter().map(|line| line.cut).collect::<Vec<_>>(), [true, true, false, true, true]);
        assert_eq!(lines[1].fields, None);
        assert_eq!(lines[2].fields.as_deref(), Some(r#"{"a":1}"#));
    }

    #[test]
    fn lines_over_the_limit_are_dropped_and_counted() {
        let mut log = CallLog::default();
        for _ in 0..LOG_LINES_MAX - 1 {
            log.write(LogSource::Plugin, LogLevel::Info, "x", "");
        }
        log.print(Stream::Stdout, b"last\nover\n");
        log.write(LogSource::Plugin, LogLevel::Info, "over", "");
        log.print(Stream::Stderr, b"over");
        let (lines, dropped) = log.take();
        assert_eq!(lines.len(), LOG_LINES_MAX);
        assert_eq!(lines.last().unwrap().message, "last");
        assert_eq!(dropped, 3);
    }
}
