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
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::message::Message;
use crate::server::Body;

/// The interval at which a stream without events sends a sign of life. It is well below the minute after which clients
/// and proxies give up.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A comment, which clients skip.
const COMMENT: &str = ":\n\n";

/// Sends `answer` as an event as soon as it is available. Until then, the stream contains comments, or notifications
/// about the progress if the client has asked for them. Dropping the body drops `answer`.
pub(crate) fn awaited(answer: BoxFuture<'static, Response<Body>>, message: Message) -> Response<Body> {
    let waiting = Waiting { answer, message, began: Instant::now(), ticks: ticks() };
    response(stream::unfold(Some(waiting), |state| async move {
        let mut waiting = state?;
        tokio::select! {
            response = waiting.answer.as_mut() => Some((last_event(response, &waiting.message).await, None)),
            _ = waiting.ticks.tick() => Some((waiting.sign_of_life(), Some(waiting))),
        }
    }))
}

struct Waiting {
    answer: BoxFuture<'static, Response<Body>>,
    message: Message,
    began: Instant,
    ticks: Interval,
}

impl Waiting {
    fn sign_of_life(&self) -> Bytes {
        match &self.message.progress_token {
            None => Bytes::from_static(COMMENT.as_bytes()),
            Some(token) => {
                let params = json!({"progressToken": token, "progress": self.began.elapsed().as_secs()});
                event(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).to_string())
            }
        }
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
        let chunks = chunks(awaited(answer, message(None))).await;
        assert_eq!(chunks, [COMMENT, COMMENT, "event: message\ndata: {\"id\":1}\n\n"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_a_token_receives_the_seconds_so_far() {
        let answer = late(json_response(StatusCode::OK, &json!({"id": 1})));
        let chunks = chunks(awaited(answer, message(Some(json!("t"))))).await;
        let progress = |seconds: u64| {
            let params = format!("{{\"progressToken\":\"t\",\"progress\":{seconds}}}");
            format!(
                "event: message\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{params}}}\n\n"
            )
        };
        assert_eq!(chunks, [progress(15), progress(30), "event: message\ndata: {\"id\":1}\n\n".to_owned()]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_json_becomes_an_error() {
        let mut answer = json_response(StatusCode::INTERNAL_SERVER_ERROR, &json!(0));
        answer.headers_mut().remove(CONTENT_TYPE);
        let chunks = chunks(awaited(late(answer), message(None))).await;
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
