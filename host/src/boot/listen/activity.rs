//! What happens on one connection, and whether it has kept the server waiting for too long.
//!
//! A connection waits for its client while no request of it is being answered, or while the client does not read. The
//! time that the server takes itself does not count.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::Version;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Patience;

/// One connection.
pub(super) struct Activity {
    patience: Patience,
    state: Mutex<State>,
}

struct State {
    /// Requests whose answers are not written yet.
    answering: u32,
    waits: Waits,
    /// Since when the client has read nothing of what is to be written.
    blocked_since: Option<Instant>,
}

/// For what a connection waits while no request is being answered.
#[derive(Clone, Copy)]
enum Waits {
    /// The first head, since the connection was accepted.
    First(Instant),
    /// The rest of a head, of HTTP/1.1.
    Head(Instant),
    /// Another request, of HTTP/1.1.
    Next(Instant),
    /// Another request, of HTTP/2, where bytes need not belong to one.
    NextOfHttp2(Instant),
}

impl Activity {
    /// Of a connection that was just accepted.
    pub(super) fn new(patience: Patience) -> Activity {
        let state = State { answering: 0, waits: Waits::First(Instant::now()), blocked_since: None };
        Activity { patience, state: Mutex::new(state) }
    }

    /// The head of a request has arrived. It is being answered until the turn is dropped.
    pub(super) fn begin(activity: &Arc<Activity>, version: Version) -> Turn {
        activity.state().answering += 1;
        Turn { activity: Arc::clone(activity), version }
    }

    /// No request has arrived yet.
    pub(super) fn is_without_request(&self) -> bool {
        let state = self.state();
        state.answering == 0 && matches!(state.waits, Waits::First(_))
    }

    /// Why the connection is to be closed, if it is.
    pub(super) fn expired(&self) -> Option<&'static str> {
        let (until, why) = self.until()?;
        (until <= Instant::now()).then_some(why)
    }

    /// When to ask again. What begins after this has at least the time of a head.
    pub(super) fn next_check(&self) -> Instant {
        let shortest = self.patience.head.min(self.patience.write);
        let latest = Instant::now() + shortest;
        self.until().map_or(latest, |(until, _)| until.min(latest))
    }

    /// Until when the connection may stay as it is.
    fn until(&self) -> Option<(Instant, &'static str)> {
        let state = self.state();
        let Patience { head, idle, write } = self.patience;
        let waits = match state.waits {
            _ if state.answering > 0 => None,
            Waits::First(since) | Waits::Head(since) => Some((since + head, "no whole head of a request")),
            Waits::Next(since) | Waits::NextOfHttp2(since) => Some((since + idle, "no further request")),
        };
        let blocked = state.blocked_since.map(|since| (since + write, "the answer is not read"));
        [waits, blocked].into_iter().flatten().min_by_key(|(until, _)| *until)
    }

    fn read(&self) {
        let mut state = self.state();
        if state.answering == 0 && matches!(state.waits, Waits::Next(_)) {
            state.waits = Waits::Head(Instant::now());
        }
    }

    fn written(&self, is_blocked: bool) {
        let mut state = self.state();
        if is_blocked {
            state.blocked_since.get_or_insert_with(Instant::now);
        } else {
            state.blocked_since = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered.
pub(super) struct Turn {
    activity: Arc<Activity>,
    version: Version,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.activity.state();
        state.answering -= 1;
        state.waits = if self.version == Version::HTTP_2 { Waits::NextOfHttp2(now) } else { Waits::Next(now) };
    }
}

/// The body of an answer, with the turn of its request.
pub(super) struct Tracked {
    body: Body,
    _turn: Turn,
}

impl Tracked {
    pub(super) fn new(body: Body, turn: Turn) -> Tracked {
        Tracked { body, _turn: turn }
    }
}

impl HttpBody for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The stream of a connection, which notes what is read and written.
pub(super) struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, activity: Arc<Activity>) -> Watched {
        Watched { stream, activity }
    }

    fn note<T>(&self, written: Poll<T>) -> Poll<T> {
        self.activity.written(written.is_pending());
        written
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.activity.read();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
