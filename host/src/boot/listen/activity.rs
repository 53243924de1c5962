//! What happens on one connection, and whether it has kept the server waiting for too long.
//!
//! A connection waits for its client while no request of it is being answered, or while the client does not take what
//! is to be sent. The time that the server takes itself does not count.
//!
//! What is to be sent has two signs. The socket takes no more bytes; this is all there is in HTTP/1. In HTTP/2 the
//! client may also close the window of a stream while the socket stays writable, so each piece of an answer is followed
//! until its last byte is written.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use bytes::{Buf, Bytes};
use http::Version;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::Patience;
use crate::gateway::Meter;

/// One connection.
pub(super) struct Activity {
    patience: Patience,
    state: Mutex<State>,
}

struct State {
    /// Requests whose answers are not written yet, in the order in which they came.
    answers: BTreeMap<u64, Answer>,
    /// How many requests have come.
    begun: u64,
    waits: Waits,
    /// Runs while the socket takes no more bytes.
    socket: Meter,
    /// How many requests had come when an answer was first sent too slowly.
    begun_at_stall: Option<u64>,
}

/// One answer.
struct Answer {
    /// Its pieces that are not written whole.
    pieces: u32,
    /// Runs while there are such pieces.
    meter: Meter,
    /// The client took it too slowly.
    is_stalled: bool,
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

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Stays,
    /// One of its answers is not read. The others may still be sent, but no request is taken any more.
    Drains,
    /// It is closed, and this is why.
    Ends(&'static str),
}

const NOT_READ: &str = "the answer is read too slowly";

impl Activity {
    /// Of a connection that was just accepted.
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

    /// The head of a request has arrived. It is being answered until the turn is dropped.
    pub(super) fn begin(activity: &Arc<Activity>, version: Version) -> Turn {
        let mut state = activity.state();
        let number = state.begun;
        state.begun += 1;
        let meter = Meter::new(activity.patience.write);
        state.answers.insert(number, Answer { pieces: 0, meter, is_stalled: false });
        Turn { activity: Arc::clone(activity), version, number }
    }

    /// No request has arrived yet.
    pub(super) fn is_without_request(&self) -> bool {
        let state = self.state();
        state.answers.is_empty() && matches!(state.waits, Waits::First(_))
    }

    /// Looks at all limits.
    pub(super) fn judge(&self) -> Verdict {
        let mut state = self.state();
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
        // A client that goes on sending requests must not keep its connection by them.
        let begun = state.begun;
        let before = *state.begun_at_stall.get_or_insert(begun);
        let is_over = state.answers.range(..before).all(|(_, answer)| answer.is_stalled);
        if is_over { Verdict::Ends(NOT_READ) } else { Verdict::Drains }
    }

    /// When to look again. What begins after this has at least the time of a head.
    pub(super) fn next_check(&self) -> Instant {
        let state = self.state();
        let latest = Instant::now() + self.patience.head;
        let waits = self.waits_until(&state).map(|(until, _)| until);
        let answers = state.answers.values().filter_map(|answer| answer.meter.step_ends());
        answers.chain(waits).chain(state.socket.step_ends()).fold(latest, Instant::min)
    }

    /// Until when the connection may go without a request, and what is missing then.
    fn waits_until(&self, state: &State) -> Option<(Instant, &'static str)> {
        if !state.answers.is_empty() {
            return None;
        }
        match state.waits {
            Waits::First(since) | Waits::Head(since) => {
                Some((since + self.patience.head, "no whole head of a request"))
            }
            // The end of the last answer is still being read.
            Waits::Next(_) if state.socket.is_running() => None,
            Waits::Next(since) | Waits::NextOfHttp2(since) => Some((since + self.patience.idle, "no further request")),
        }
    }

    fn read(&self) {
        let mut state = self.state();
        if state.answers.is_empty() && matches!(state.waits, Waits::Next(_)) {
            state.waits = Waits::Head(Instant::now());
        }
    }

    fn written(&self, written: &Poll<io::Result<usize>>) {
        let mut state = self.state();
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        if let Some(answer) = self.activity.state().answers.get_mut(&self.number) {
            change(answer);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.activity.state();
        state.answers.remove(&self.number);
        state.waits = if self.version == Version::HTTP_2 { Waits::NextOfHttp2(now) } else { Waits::Next(now) };
    }
}

/// The body of an answer, with the turn of its request.
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

/// Bytes of an answer that hyper holds until they are written. The turn ends with its last piece.
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

/// The stream of a connection, which notes what is read and written.
pub(super) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Watched<S> {
        Watched { stream, activity }
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.activity.written(&written);
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
