//! A command as server-sent events: the output while the command runs, and one last event with the answer. If the
//! client disconnects, the command ends.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use monstrum_api::tools::CallResult;
use monstrum_core::app::App;
use monstrum_core::call_types::incoming::{Attachments, IncomingCall};
use monstrum_core::operations::{OperationError, calls};
use monstrum_sandbox::{Chunk, Stream as Of};
use serde_json::json;
use tokio::sync::mpsc;

use crate::gateway::http::problem::Problem;

/// The maximum number of pieces of output that are buffered for the client. If the buffer is full, the command waits.
const PIECES_MAX: usize = 16;

type Running = Pin<Box<dyn Future<Output = Result<CallResult, OperationError>> + Send>>;

/// Returns a stream that starts the call when its first event is requested. Dropping the stream cancels the call.
pub(super) fn events(app: Arc<App>, call: IncomingCall) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let (feed, pieces) = mpsc::channel(PIECES_MAX);
    let call = call.with_attachments(Attachments { feed: Some(feed), ..Attachments::default() });
    let request_id = call.request_id().to_string();
    let running: Running = Box::pin(async move { calls::run(&app, call).await });
    let events = Events { request_id, pieces, running: Some(running), ended: None, text: Default::default() };
    let events = stream::unfold(events, |mut events| async move { Some((Ok(events.next().await?), events)) });
    Sse::new(events).keep_alive(KeepAlive::default())
}

struct Events {
    request_id: String,
    pieces: mpsc::Receiver<Chunk>,
    running: Option<Running>,
    /// The last event, which is sent after the remaining output.
    ended: Option<Event>,
    text: [Text; 2],
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        while let Some(running) = &mut self.running {
            tokio::select! {
                biased;
                Some(piece) = self.pieces.recv() => {
                    if let Some(event) = self.output(&piece) {
                        return Some(event);
                    }
                }
                ended = running => {
                    self.running = None;
                    self.ended = Some(end(ended, &self.request_id));
                }
            }
        }
        // The call has ended, so the channel contains all its remaining output.
        while let Ok(piece) = self.pieces.try_recv() {
            if let Some(event) = self.output(&piece) {
                return Some(event);
            }
        }
        for of in [Of::Stdout, Of::Stderr] {
            let rest = self.text[index(of)].rest();
            if !rest.is_empty() {
                return Some(event(of, &rest));
            }
        }
        self.ended.take()
    }

    fn output(&mut self, piece: &Chunk) -> Option<Event> {
        let text = self.text[index(piece.stream)].take(&piece.bytes);
        (!text.is_empty()).then(|| event(piece.stream, &text))
    }
}

fn index(of: Of) -> usize {
    match of {
        Of::Stdout => 0,
        Of::Stderr => 1,
    }
}

fn event(of: Of, text: &str) -> Event {
    let name = match of {
        Of::Stdout => "stdout",
        Of::Stderr => "stderr",
    };
    Event::default().event(name).data(json!({ "text": text }).to_string())
}

/// Returns the answer or the error as an event, because the status of the response has already been sent.
fn end(ended: Result<CallResult, OperationError>, request_id: &str) -> Event {
    match ended {
        Ok(answer) => {
            let text = serde_json::to_string(&answer).expect("an answer is plain JSON");
            Event::default().event("end").data(text)
        }
        Err(error) => Event::default().event("error").data(Problem::from(error).text(request_id)),
    }
}

/// Converts one stream of bytes to text. If a character is split between two pieces, its first bytes are buffered until
/// the second piece arrives.
#[derive(Default)]
struct Text(Vec<u8>);

impl Text {
    /// Adds bytes and returns the complete characters. Invalid bytes become U+FFFD.
    fn take(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let mut text = String::new();
        let mut whole = 0;
        for chunk in self.0.utf8_chunks() {
            text.push_str(chunk.valid());
            whole += chunk.valid().len();
            let is_unfinished = whole + chunk.invalid().len() == self.0.len() && is_a_beginning(chunk.invalid());
            if !chunk.invalid().is_empty() && !is_unfinished {
                text.push(char::REPLACEMENT_CHARACTER);
                whole += chunk.invalid().len();
            }
        }
        self.0.drain(..whole);
        text
    }

    /// Returns the buffered bytes as text at the end of the stream.
    fn rest(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

/// Returns whether more bytes could complete a character.
fn is_a_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_whole_over_the_borders_of_pieces() {
        let whole = "a é 用 💬 z".as_bytes();
        for size in 1..=whole.len() {
            let mut text = Text::default();
            let taken: String = whole.chunks(size).map(|piece| text.take(piece)).collect();
            assert_eq!((taken.as_str(), text.rest().as_str()), ("a é 用 💬 z", ""), "pieces of {size}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_do_not_hold_up_what_is() {
        let mut text = Text::default();
        assert_eq!(text.take(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(text.take(b"\xf0\x9f"), "");
        assert_eq!(text.take(b"x"), "\u{fffd}x");
        assert_eq!(text.take(b"\xe7\x94"), "");
        assert_eq!(text.rest(), "\u{fffd}");
        assert_eq!(text.rest(), "");
    }
}
