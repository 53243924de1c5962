//! The activity of one connection, and its time limits.
//!
//! The time limits cover the time that a connection waits for its client: while no request is being answered, and while
//! the client does not read an answer. The time that the server needs for an answer does not count.
//!
//! A client that does not read is detected in two ways. In HTTP/1, the socket accepts no more bytes. In HTTP/2, the
//! client can also keep the flow-control window of a stream closed while the socket stays writable. So each piece of an
//! answer is tracked until its last byte is written.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use bytes::{Buf, Bytes};
use http::Version;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::Patience;
use crate::gateway::Meter;

/// The activity of one connection.
pub(super) struct Activity {
    patience: Patience,
    state: Mutex<State>,
}

struct State {
    /// The answers that are not completely written, keyed by the number of the request.
    answers: BTreeMap<u64, Answer>,
    /// The number of requests so far.
    begun: u64,
    waits: Waits,
    /// The meter of the socket, which runs while the socket accepts no more bytes.
    socket: Meter,
    /// The value of `begun` when a client first read an answer too slowly.
    begun_at_stall: Option<u64>,
}

/// One answer.
struct Answer {
    /// The pieces that are not completely written.
    pieces: u32,
    /// The meter of this answer, which runs while pieces are unwritten.
    meter: Meter,
    /// Whether the client has read this answer too slowly.
    is_stalled: bool,
}

/// The event for which a connection waits while no request is being answered.
#[derive(Clone, Copy)]
enum Waits {
    /// The first head. The wait starts when the connection is accepted.
    First(Instant),
    /// The end of a head that has begun to arrive (HTTP/1.1). The wait starts with the first byte of the head.
    Head(Instant),
    /// The first byte of the next request (HTTP/1.1).
    Next(Instant),
    /// The next request (HTTP/2). A received byte does not start the time limit of a head, because the byte may belong
    /// to a frame of another kind.
    NextOfHttp2(Instant),
}

/// The verdict about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Stays,
    /// The client does not read an answer. The server still sends the answers to other requests, but accepts no new
    /// request.
    Drains,
    /// The connection is closed for this reason.
    Ends(&'static str),
}

const NOT_READ: &str = "the client reads an answer too slowly";

impl Activity {
    /// Creates the state of a new connection.
    pub(super) fn new(patience: Patience) -> Activity {
        let state = State {
            answers: BTreeMap::new(),
            begun: 0,
            waits: Waits::First(Instant::now()),
            socket: Meter::new(patience.write),
            begun_at_stall: None,
        };
        Activity { patience, state: Mutex::new(state) }
    }

    /// Starts a request whose head has arrived. Dropping the returned turn ends the request.
    pub(super) fn begin(activity: &Arc<Activity>, version: Version) -> Turn {
        let mut state = activity.state.lock();
        let number = state.begun;
        state.begun += 1;
        let meter = Meter::new(activity.patience.write);
        state.answers.insert(number, Answer { pieces: 0, meter, is_stalled: false });
        Turn { activity: Arc::clone(activity), version, number }
    }

    /// Returns whether no request has arrived yet.
    pub(super) fn is_without_request(&self) -> bool {
        let state = self.state.lock();
        state.answers.is_empty() && matches!(state.waits, Waits::First(_))
    }

    /// Checks all limits.
    pub(super) fn judge(&self) -> Verdict {
        let mut state = self.state.lock();
        if state.socket.is_too_slow() {
            return Verdict::Ends(NOT_READ);
        }
        if let Some((until, why)) = self.waits_until(&state)
            && until <= Instant::now()
        {
            return Verdict::Ends(why);
        }
        let mut has_stalled = false;
        for answer in state.answers.values_mut() {
            answer.is_stalled |= answer.meter.is_too_slow();
            has_stalled |= answer.is_stalled;
        }
        if !has_stalled {
            return Verdict::Stays;
        }
        // Requests that arrive after the stall must not keep the connection open.
        let begun = state.begun;
        let before = *state.begun_at_stall.get_or_insert(begun);
        let is_over = state.answers.range(..before).all(|(_, answer)| answer.is_stalled);
        if is_over { Verdict::Ends(NOT_READ) } else { Verdict::Drains }
    }

    /// Returns the time of the next check: the end of the earliest current limit, but at most the limit of a head from
    /// now, because a wait that begins later cannot end sooner.
    pub(super) fn next_check(&self) -> Instant {
        let state = self.state.lock();
        let latest = Instant::now() + self.patience.head;
        let waits = self.waits_until(&state).map(|(until, _)| until);
        let answers = state.answers.values().filter_map(|answer| answer.meter.step_ends());
        answers.chain(waits).chain(state.socket.step_ends()).fold(latest, Instant::min)
    }

    /// Returns the deadline of the current wait for a request, and the reason for closing the connection at that time.
    fn waits_until(&self, state: &State) -> Option<(Instant, &'static str)> {
        if !state.answers.is_empty() {
            return None;
        }
        match state.waits {
            Waits::First(since) | Waits::Head(since) => {
                Some((since + self.patience.head, "the request head did not arrive in time"))
            }
            // The client still reads the end of the last answer.
            Waits::Next(_) if state.socket.is_running() => None,
            Waits::Next(since) | Waits::NextOfHttp2(since) => {
                Some((since + self.patience.idle, "no further request arrived in time"))
            }
        }
    }

    fn read(&self) {
        let mut state = self.state.lock();
        if state.answers.is_empty() && matches!(state.waits, Waits::Next(_)) {
            state.waits = Waits::Head(Instant::now());
        }
    }

    fn written(&self, written: &Poll<io::Result<usize>>) {
        let mut state = self.state.lock();
        match written {
            Poll::Pending => state.socket.start(),
            Poll::Ready(Ok(bytes)) => {
                let was_full = state.socket.pause();
                state.socket.add(*bytes);
                if was_full && matches!(state.waits, Waits::Next(_)) {
                    state.waits = Waits::Next(Instant::now());
                }
            }
            Poll::Ready(Err(_)) => {}
        }
    }
}

/// A request that is being answered.
pub(super) struct Turn {
    activity: Arc<Activity>,
    version: Version,
    number: u64,
}

impl Turn {
    fn change(&self, change: impl FnOnce(&mut Answer)) {
        if let Some(answer) = self.activity.state.lock().answers.get_mut(&self.number) {
            change(answer);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.activity.state.lock();
        state.answers.remove(&self.number);
        state.waits = if self.version == Version::HTTP_2 { Waits::NextOfHttp2(now) } else { Waits::Next(now) };
    }
}

/// The body of an answer. Each piece of the body keeps the turn of the request until the piece is written.
pub(super) struct Tracked {
    body: Body,
    turn: Arc<Turn>,
}

impl Tracked {
    pub(super) fn new(body: Body, turn: Turn) -> Tracked {
        Tracked { body, turn: Arc::new(turn) }
    }
}

impl HttpBody for Tracked {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(|bytes| Piece::new(bytes, &self.turn)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of an answer that hyper holds until they are written. The turn ends when its last piece is dropped.
pub(super) struct Piece {
    bytes: Bytes,
    turn: Arc<Turn>,
}

impl Piece {
    fn new(bytes: Bytes, turn: &Arc<Turn>) -> Piece {
        turn.change(|answer| {
            answer.pieces += 1;
            answer.meter.start();
        });
        Piece { bytes, turn: Arc::clone(turn) }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
        self.turn.change(|answer| answer.meter.add(bytes));
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.turn.change(|answer| {
            answer.pieces -= 1;
            if answer.pieces == 0 {
                answer.meter.pause();
            }
        });
    }
}

/// The stream of a connection, which tracks reads and writes. It holds the permit `H` of the connection, because the stream
/// of a WebSocket outlives the HTTP connection.
pub(super) struct Watched<S, H> {
    stream: S,
    activity: Arc<Activity>,
    _held: H,
}

impl<S, H> Watched<S, H> {
    pub(super) fn new(stream: S, activity: Arc<Activity>, held: H) -> Watched<S, H> {
        Watched { stream, activity, _held: held }
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.activity.written(&written);
        written
    }
}

impl<S: AsyncRead + Unpin, H: Unpin> AsyncRead for Watched<S, H> {
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

impl<S: AsyncWrite + Unpin, H: Unpin> AsyncWrite for Watched<S, H> {
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
