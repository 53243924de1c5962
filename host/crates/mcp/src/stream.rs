//! Answers as streams of events (`text/event-stream`).

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::message::Message;
use crate::server::Body;

/// The interval at which a stream without events sends a sign of life. It is well below the minute after which clients
/// and proxies give up.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A comment, which clients skip.
const COMMENT: &str = ":\n\n";

/// Sends `answer` as an event as soon as it is available. Until then, the stream contains comments, or notifications
/// about the progress if the client has asked for them: one for each of `messages`, and one after some time without a
/// message. Dropping the body drops `answer`.
pub(crate) fn awaited(
    answer: BoxFuture<'static, Response<Body>>,
    message: Message,
    messages: mpsc::Receiver<String>,
) -> Response<Body> {
    let waiting = Waiting { answer, message, messages, began: Instant::now(), progress: None, ticks: ticks() };
    response(stream::unfold(Some(waiting), |state| async move {
        let mut waiting = state?;
        tokio::select! {
            biased;
            response = waiting.answer.as_mut() => Some((last_event(response, &waiting.message).await, None)),
            Some(message) = waiting.messages.recv() => {
                waiting.ticks.reset();
                Some((waiting.sign_of_life(Some(message)), Some(waiting)))
            }
            _ = waiting.ticks.tick() => Some((waiting.sign_of_life(None), Some(waiting))),
        }
    }))
}

struct Waiting {
    answer: BoxFuture<'static, Response<Body>>,
    message: Message,
    /// The messages about the progress of the call.
    messages: mpsc::Receiver<String>,
    began: Instant,
    /// The progress in the last notification. It must grow with each notification.
    progress: Option<u64>,
    ticks: Interval,
}

impl Waiting {
    fn sign_of_life(&mut self, text: Option<String>) -> Bytes {
        let Some(token) = &self.message.progress_token else { return Bytes::from_static(COMMENT.as_bytes()) };
        let seconds = self.began.elapsed().as_secs();
        let progress = self.progress.map_or(seconds, |last| seconds.max(last + 1));
        self.progress = Some(progress);
        let mut params = json!({"progressToken": token, "progress": progress});
        if let Some(text) = text {
            params["message"] = json!(text);
        }
        event(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).to_string())
    }
}

/// Returns the event of an answer that rmcp has written as JSON.
async fn last_event(response: Response<Body>, message: &Message) -> Bytes {
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let body = match response.into_body().collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(never) => match never {},
    };
    match std::str::from_utf8(&body) {
        Ok(text) if is_json => event(text),
        _ => {
            let error = json!({"code": -32603, "message": "the call could not be answered"});
            event(&json!({"jsonrpc": "2.0", "id": message.id, "error": error}).to_string())
        }
    }
}

/// Sends a notification for each change of the tool list, until `changes` ends.
#[must_use]
pub fn list_changes(changes: BoxStream<'static, ()>) -> Response<Body> {
    let first = stream::once(async { Bytes::from_static(COMMENT.as_bytes()) });
    let rest = stream::unfold((changes, ticks()), |(mut changes, mut ticks)| async move {
        tokio::select! {
            change = changes.next() => {
                change?;
                let notification = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
                Some((event(&notification.to_string()), (changes, ticks)))
            }
            _ = ticks.tick() => Some((Bytes::from_static(COMMENT.as_bytes()), (changes, ticks))),
        }
    });
    response(first.chain(rest))
}

fn ticks() -> Interval {
    let mut ticks = tokio::time::interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns an event with `data`, which contains no line breaks.
fn event(data: &str) -> Bytes {
    Bytes::from(format!("event: message\ndata: {data}\n\n"))
}

fn response(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let frames = chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that buffer answers would delay the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::Value;

    use super::*;
    use crate::message::Method;
    use crate::server::json_response;

    fn message(progress_token: Option<Value>) -> Message {
        Message { id: Some(json!(1)), method: Method::Other, progress_token, has_revision: false, may_wait: false }
    }

    async fn chunks(response: Response<Body>) -> Vec<String> {
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        let stream = response.into_body().into_data_stream();
        stream.map(|chunk| String::from_utf8_lossy(&chunk.unwrap()).into_owned()).collect().await
    }

    fn late(response: Response<Body>) -> BoxFuture<'static, Response<Body>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(40)).await;
            response
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_follows_comments() {
        let answer = late(json_response(StatusCode::OK, &json!({"id": 1})));
        let chunks = chunks(awaited(answer, message(None), silent())).await;
        assert_eq!(chunks, [COMMENT, COMMENT, "event: message\ndata: {\"id\":1}\n\n"]);
    }

    /// Returns messages of a call that reports no progress.
    fn silent() -> mpsc::Receiver<String> {
        mpsc::channel(1).1
    }

    /// Returns the notification about a progress. `rest` are its last members.
    fn progress(seconds: u64, rest: &str) -> String {
        let params = format!("{{\"progressToken\":\"t\",\"progress\":{seconds}{rest}}}");
        format!(
            "event: message\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{params}}}\n\n"
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_a_token_receives_the_seconds_so_far() {
        let answer = late(json_response(StatusCode::OK, &json!({"id": 1})));
        let chunks = chunks(awaited(answer, message(Some(json!("t"))), silent())).await;
        assert_eq!(chunks, [progress(15, ""), progress(30, ""), "event: message\ndata: {\"id\":1}\n\n".to_owned()]);
    }

    /// The progress grows with each notification, as the specification requires.
    #[tokio::test(start_paused = true)]
    async fn a_client_with_a_token_receives_the_messages_of_the_call() {
        let answer = late(json_response(StatusCode::OK, &json!({"id": 1})));
        let (sender, messages) = mpsc::channel(4);
        tokio::spawn(async move {
            for (after_ms, message) in [(0, "first"), (1_900, "second"), (1_000, "third\nline"), (10, "fourth")] {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                sender.send(message.to_owned()).await.unwrap();
            }
            // The sender outlives the call.
            std::future::pending::<()>().await;
        });
        let chunks = chunks(awaited(answer, message(Some(json!("t"))), messages)).await;
        let told = |seconds: u64, text: &str| progress(seconds, &format!(",\"message\":\"{text}\""));
        assert_eq!(
            chunks,
            [
                told(0, "first"),
                told(1, "second"),
                told(2, "third\\nline"),
                told(3, "fourth"),
                progress(17, ""),
                progress(32, ""),
                "event: message\ndata: {\"id\":1}\n\n".to_owned(),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_json_becomes_an_error() {
        let mut answer = json_response(StatusCode::INTERNAL_SERVER_ERROR, &json!(0));
        answer.headers_mut().remove(CONTENT_TYPE);
        let chunks = chunks(awaited(late(answer), message(None), silent())).await;
        assert!(chunks.last().unwrap().contains("\"id\":1,\"error\":{\"code\":-32603"), "{chunks:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_notifications_between_comments() {
        let changes = stream::once(tokio::time::sleep(Duration::from_secs(20)));
        let chunks = chunks(list_changes(changes.boxed())).await;
        let notification =
            "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
        assert_eq!(chunks, [COMMENT, COMMENT, notification]);
    }
}
