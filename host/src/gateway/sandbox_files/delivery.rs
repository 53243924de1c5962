//! The delivery of a sandbox's content to a client. A delivery ends if the client reads too slowly or its key is
//! revoked.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, header};
use monstrum_sandbox::{ByteStream, SandboxError};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use monstrum_core::app::App;
use monstrum_core::operations::Caller;
use monstrum_core::operations::sandbox_files::revoked;
use monstrum_core::sandboxes::Turn;

/// The time limit for a client to read one piece. A sandbox does not count as idle during a download, so without this
/// limit, a client that never reads would keep the sandbox running forever.
const PIECE_MAX: Duration = Duration::from_secs(60);

/// The minimum speed of a request whose body or answer the host holds in memory. At this speed, the largest file takes
/// about two minutes. A client that falls behind delays other clients for at most [`PACE_GRACE`].
const PACE_BYTES_PER_S_MIN: f64 = 131_072.0;
/// The maximum time by which a client may fall behind the minimum speed. A lost packet or a busy client causes a delay
/// of one or two seconds.
const PACE_GRACE: Duration = Duration::from_secs(10);
/// The size of the pieces of an answer.
const PIECE_BYTES: usize = 64 << 10;

/// Returns an answer that is held in memory. The answer keeps its turn until the client has read the answer.
pub(super) fn held(json: Vec<u8>, turn: Option<Turn>, app: &Arc<App>, caller: &Caller) -> Response {
    let mut left = Bytes::from(json);
    let (length, app, caller) = (left.len(), Arc::clone(app), caller.clone());
    let pieces = std::iter::from_fn(move || {
        let piece = left.split_to(left.len().min(PIECE_BYTES));
        // The turn is released after the last piece.
        let _turn = &turn;
        // The piece is copied, because an unsent slice would keep the whole answer in memory.
        (!piece.is_empty()).then(|| Ok(Bytes::copy_from_slice(&piece)))
    });
    let revoked = async move { revoked(&app, &caller).await.reason() };
    let content = until(stream::iter(pieces).boxed(), Pace::AtLeast { since: Instant::now() }, revoked);
    let mut response = Response::new(Body::from_stream(content));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// Enforces the minimum speed of a request body that is held in memory. If the body arrives too slowly, it ends with an
/// error and the returned flag becomes true.
pub(super) fn paced(body: Body) -> (Body, Arc<AtomicBool>) {
    let is_late = Arc::new(AtomicBool::new(false));
    let state = Some((body.into_data_stream(), Pace::AtLeast { since: Instant::now() }, 0, Arc::clone(&is_late)));
    let pieces = stream::unfold(state, async |state| {
        let (mut pieces, pace, came, is_late) = state?;
        match timeout_at(pace.until(came), pieces.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => {
                let came = came + piece.len() as u64;
                Some((Ok(piece), Some((pieces, pace, came, is_late))))
            }
            Ok(Some(Err(error))) => Some((Err(error), None)),
            Err(_) => {
                is_late.store(true, Ordering::Relaxed);
                Some((Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut))), None))
            }
        }
    });
    (Body::from_stream(pieces), is_late)
}

/// The minimum speed of a client.
#[derive(Clone, Copy)]
enum Pace {
    /// Each piece must be read within [`PIECE_MAX`].
    PerPiece,
    /// The average speed since this time must be at least [`PACE_BYTES_PER_S_MIN`].
    AtLeast { since: Instant },
}

impl Pace {
    /// Returns the deadline for the client to read the piece that follows `bytes` bytes.
    fn until(self, bytes: u64) -> Instant {
        match self {
            Pace::PerPiece => Instant::now() + PIECE_MAX,
            #[expect(clippy::cast_precision_loss, reason = "a file is far smaller than 2^52 bytes")]
            Pace::AtLeast { since } => {
                since + PACE_GRACE + Duration::from_secs_f64(bytes as f64 / PACE_BYTES_PER_S_MIN)
            }
        }
    }
}

/// A piece on the way from the sandbox to the client.
enum Piece {
    Content(Result<Bytes, SandboxError>),
    /// The end of the content. If the channel closes without this piece, the download failed.
    End,
}

/// Delivers the content. If the client stops reading, or `caller` loses its rights, the content ends with an error.
pub(super) fn delivered(content: ByteStream, app: &Arc<App>, caller: &Caller) -> ByteStream {
    let (app, caller) = (Arc::clone(app), caller.clone());
    until(content, Pace::PerPiece, async move { revoked(&app, &caller).await.reason() })
}

fn until(
    mut content: ByteStream,
    pace: Pace,
    revoked: impl Future<Output = &'static str> + Send + 'static,
) -> ByteStream {
    let (hand, handed) = mpsc::channel(1);
    tokio::spawn(async move {
        let reason = tokio::select! {
            biased;
            reason = revoked => Some(reason),
            // The client has disconnected.
            () = hand.closed() => None,
            reason = hand_over(&mut content, pace, &hand) => reason,
        };
        if let Some(reason) = reason {
            tracing::warn!(reason, "a download from a sandbox was cancelled");
        }
    });
    let next = async |handed: Option<mpsc::Receiver<Piece>>| {
        let mut handed = handed?;
        match handed.recv().await {
            Some(Piece::Content(Ok(piece))) => Some((Ok(piece), Some(handed))),
            Some(Piece::Content(Err(error))) => Some((Err(error), None)),
            Some(Piece::End) => None,
            None => Some((Err(SandboxError::unavailable("the download was cancelled")), None)),
        }
    };
    stream::unfold(Some(handed), next).boxed()
}

/// Sends all pieces in order. Returns the reason if the client reads too slowly.
async fn hand_over(content: &mut ByteStream, pace: Pace, hand: &mpsc::Sender<Piece>) -> Option<&'static str> {
    let mut sent_bytes = 0;
    loop {
        let (piece, is_last) = match content.next().await {
            Some(piece) => (Piece::Content(piece), false),
            None => (Piece::End, true),
        };
        let length = match &piece {
            Piece::Content(Ok(piece)) => piece.len() as u64,
            Piece::Content(Err(_)) | Piece::End => 0,
        };
        let until = pace.until(sent_bytes);
        sent_bytes += length;
        match timeout_at(until, hand.send(piece)).await {
            Err(_) => return Some("the client reads too slowly"),
            Ok(sent) if sent.is_err() || is_last => return None,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn content(pieces: usize) -> ByteStream {
        stream::iter((0..pieces).map(|_| Ok(Bytes::from_static(b"x")))).boxed()
    }

    async fn count(mut delivered: ByteStream) -> (usize, bool) {
        let mut count = 0;
        while let Some(piece) = delivered.next().await {
            match piece {
                Ok(_) => count += 1,
                Err(_) => return (count, false),
            }
        }
        (count, true)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_read_comes_whole() {
        assert_eq!(count(until(content(0), Pace::PerPiece, pending())).await, (0, true));
        assert_eq!(count(until(content(100), Pace::PerPiece, pending())).await, (100, true));
        let broken = content(2).chain(stream::iter([Err(SandboxError::Conflict("broken".to_owned()))])).boxed();
        assert_eq!(count(until(broken, Pace::PerPiece, pending())).await, (2, false));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_reads_ends_and_is_never_whole() {
        let mut delivered = until(content(100), Pace::PerPiece, pending());
        assert!(delivered.next().await.is_some_and(|piece| piece.is_ok()));
        tokio::time::sleep(PIECE_MAX * 2).await;
        let (read, whole) = count(delivered).await;
        assert!(read < 5 && !whole, "{read} {whole}");
        let slow = until(content(3), Pace::PerPiece, pending());
        let slow = slow.then(|piece| async {
            tokio::time::sleep(PIECE_MAX / 2).await;
            piece
        });
        assert_eq!(count(slow.boxed()).await, (3, true), "a slow client gets the complete content");
    }

    #[tokio::test(start_paused = true)]
    async fn a_revoked_answer_ends_in_the_middle() {
        let (take, taken) = tokio::sync::oneshot::channel();
        let endless = stream::repeat_with(|| Ok(Bytes::from_static(b"x"))).boxed();
        let mut delivered = until(endless, Pace::PerPiece, async move { taken.await.expect("the key is revoked") });
        assert!(delivered.next().await.is_some_and(|piece| piece.is_ok()));
        take.send("its key was deleted or rotated").expect("it goes on until then");
        let (_, whole) = count(delivered).await;
        assert!(!whole);
    }

    /// The client reads 4 KiB of a 15 MB answer every five seconds.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_holds_memory_for_seconds_and_not_for_minutes() {
        let pieces = (0..230).map(|_| Ok(Bytes::from_static(&[b'x'; PIECE_BYTES])));
        let began = Instant::now();
        let held = until(stream::iter(pieces).boxed(), Pace::AtLeast { since: began }, pending());
        let slow = held.then(|piece| async {
            tokio::time::sleep(Duration::from_secs(80)).await;
            piece
        });
        let (_, is_whole) = count(slow.boxed()).await;
        assert!(!is_whole, "the delivery was not cancelled");
        let pieces = (0..230).map(|_| Ok(Bytes::from_static(&[b'x'; PIECE_BYTES])));
        let began = Instant::now();
        let held = until(stream::iter(pieces).boxed(), Pace::AtLeast { since: began }, pending());
        let steady = held.then(|piece| async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            piece
        });
        assert_eq!(count(steady.boxed()).await, (230, true), "160 KiB/s is fast enough");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_coming_ends() {
        let read = async |pieces: usize, each: Duration| {
            let pieces = stream::iter(0..pieces).then(move |_| async move {
                tokio::time::sleep(each).await;
                Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; PIECE_BYTES]))
            });
            let began = Instant::now();
            let (body, is_late) = paced(Body::from_stream(pieces));
            let body = axum::body::to_bytes(body, usize::MAX).await;
            assert_eq!(body.is_err(), is_late.load(Ordering::Relaxed));
            (body.is_ok(), began.elapsed().as_secs())
        };
        assert_eq!(read(100, Duration::from_millis(400)).await, (true, 40));
        assert_eq!(read(100, Duration::from_secs(3600)).await, (false, 10));
        let (is_whole, after) = read(100, Duration::from_secs(4)).await;
        assert!(!is_whole && after < 16, "{after} s");
    }
}
