//! What a sandbox gives to a client that has to keep reading it, and may no longer have it once its key is gone.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, header};
use monstrum_sandbox::{ByteStream, SandboxError};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::standing::{TakenBack, taken_back};
use crate::app::App;
use crate::gateway::extract::Caller;
use crate::lanes::Place;

/// How long a client may take for one piece. A sandbox does not idle as long as it is read, so that one who never reads
/// would keep it awake for ever.
const PIECE_MAX: Duration = Duration::from_secs(60);

/// How long a whole answer may take that is in the host's memory.
const HELD_MAX: Duration = Duration::from_secs(120);
/// The pieces in which it goes.
const PIECE_BYTES: usize = 64 << 10;

/// An answer that takes up memory until its client has read it, and so long keeps its turn.
pub(super) fn held(answer: &impl Serialize, turn: Place, app: &Arc<App>, caller: &Caller) -> Response {
    let mut left = Bytes::from(serde_json::to_vec(answer).expect("an answer has nothing that JSON has not"));
    let (length, app, caller) = (left.len(), Arc::clone(app), caller.clone());
    let pieces = std::iter::from_fn(move || {
        let piece = left.split_to(left.len().min(PIECE_BYTES));
        // It goes with the last piece.
        let _turn = &turn;
        // A copy: a piece that is not sent yet would keep the whole.
        (!piece.is_empty()).then(|| Ok(Bytes::copy_from_slice(&piece)))
    });
    let content = until(stream::iter(pieces).boxed(), async move {
        let taken_back = timeout(HELD_MAX, taken_back(&app, &caller)).await;
        taken_back.map_or("its client reads too slowly", TakenBack::reason)
    });
    let mut response = Response::new(Body::from_stream(content));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// On the way from the sandbox to the client.
enum Piece {
    Content(Result<Bytes, SandboxError>),
    /// After it there is nothing: that the way ends without it is an error.
    End,
}

/// The content, as long as it is read and `caller` may have it. Otherwise it ends with an error.
pub(super) fn delivered(content: ByteStream, app: &Arc<App>, caller: &Caller) -> ByteStream {
    let (app, caller) = (Arc::clone(app), caller.clone());
    until(content, async move { taken_back(&app, &caller).await.reason() })
}

fn until(mut content: ByteStream, taken_back: impl Future<Output = &'static str> + Send + 'static) -> ByteStream {
    let (hand, handed) = mpsc::channel(1);
    tokio::spawn(async move {
        let reason = tokio::select! {
            biased;
            reason = taken_back => Some(reason),
            // Then nobody needs to be told anything.
            () = hand.closed() => None,
            reason = hand_over(&mut content, &hand) => reason,
        };
        if let Some(reason) = reason {
            tracing::warn!(reason, "a download from a sandbox was ended");
        }
    });
    let next = async |handed: Option<mpsc::Receiver<Piece>>| {
        let mut handed = handed?;
        match handed.recv().await {
            Some(Piece::Content(Ok(piece))) => Some((Ok(piece), Some(handed))),
            Some(Piece::Content(Err(error))) => Some((Err(error), None)),
            Some(Piece::End) => None,
            None => Some((Err(SandboxError::Unavailable("the download was ended".to_owned())), None)),
        }
    };
    stream::unfold(Some(handed), next).boxed()
}

/// Everything, in order; or why not.
async fn hand_over(content: &mut ByteStream, hand: &mpsc::Sender<Piece>) -> Option<&'static str> {
    loop {
        let (piece, is_last) = match content.next().await {
            Some(piece) => (Piece::Content(piece), false),
            None => (Piece::End, true),
        };
        match timeout(PIECE_MAX, hand.send(piece)).await {
            Err(_) => return Some("its client does not read"),
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
        assert_eq!(count(until(content(0), pending())).await, (0, true));
        assert_eq!(count(until(content(100), pending())).await, (100, true));
        let broken = content(2).chain(stream::iter([Err(SandboxError::Conflict("broken".to_owned()))])).boxed();
        assert_eq!(count(until(broken, pending())).await, (2, false));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_reads_ends_and_is_never_whole() {
        let mut delivered = until(content(100), pending());
        assert!(delivered.next().await.is_some_and(|piece| piece.is_ok()));
        tokio::time::sleep(PIECE_MAX * 2).await;
        let (read, whole) = count(delivered).await;
        assert!(read < 5 && !whole, "{read} {whole}");
        let slow = until(content(3), pending());
        let slow = slow.then(|piece| async {
            tokio::time::sleep(PIECE_MAX / 2).await;
            piece
        });
        assert_eq!(count(slow.boxed()).await, (3, true), "slowly is not never");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_back_ends_in_the_middle() {
        let (take, taken) = tokio::sync::oneshot::channel();
        let endless = stream::repeat_with(|| Ok(Bytes::from_static(b"x"))).boxed();
        let mut delivered = until(endless, async move { taken.await.expect("it is taken back") });
        assert!(delivered.next().await.is_some_and(|piece| piece.is_ok()));
        take.send("its key is gone").expect("it goes on until then");
        let (_, whole) = count(delivered).await;
        assert!(!whole);
    }
}
