//! Tests of responses that are read while they arrive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::{RESPONSE_BODY_BYTES_MAX, Redactor, RedactorCell, Step, StreamedResponse};
use monstrum_types::{Failure, FailureCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::support::{Call, Server, TOKEN, answer, ok};

async fn opened(call: &mut Call) -> Result<StreamedResponse, Failure> {
    call.source.current = Ok(Arc::new(call.credential.clone()));
    let before = || -> BoxFuture<'_, Result<(), Failure>> {
        call.announced.fetch_add(1, Ordering::SeqCst);
        async { call.announcement.clone() }.boxed()
    };
    let redactor = Arc::new(RedactorCell::new(Arc::new(Redactor::new(call.credential.secret_values()))));
    let deadline = Instant::now() + Duration::from_secs(300);
    call.egress().open(&call.scope, &call.source, &redactor, call.request.clone(), deadline, &before).await
}

/// A server for one request. The test sends the parts of the response, and learns when the client has closed the
/// connection.
struct Parts {
    url: String,
    parts: mpsc::UnboundedSender<String>,
    closed: tokio::task::JoinHandle<()>,
}

impl Parts {
    async fn start() -> Parts {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (parts, mut to_send) = mpsc::unbounded_channel::<String>();
        let closed = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (mut reader, mut writer) = stream.into_split();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert_ne!(reader.read_buf(&mut request).await.unwrap(), 0);
            }
            let writing = async {
                while let Some(part) = to_send.recv().await {
                    writer.write_all(part.as_bytes()).await.unwrap();
                }
                std::future::pending::<()>().await;
            };
            let closed = async { while reader.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {} };
            tokio::select! {
                () = writing => {}
                () = closed => {}
            }
        });
        Parts { url, parts, closed }
    }

    fn send(&self, part: &str) {
        self.parts.send(part.to_owned()).unwrap();
    }

    fn send_chunk(&self, text: &str) {
        self.send(&format!("{:x}\r\n{text}\r\n", text.len()));
    }

    fn send_head(&self) {
        self.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    }
}

#[tokio::test]
async fn events_are_read_while_the_response_arrives() {
    let server = Parts::start().await;
    server.send_head();
    let mut call = Call::new(&server.url, "/events");
    let response = opened(&mut call).await.unwrap();
    assert_eq!((response.status, call.announced.load(Ordering::SeqCst)), (200, 1));
    assert_eq!(response.headers, [("content-type".to_owned(), "text/event-stream".to_owned())]);
    let mut events = response.body.events();
    server.send_chunk(&format!("data: before {}", &TOKEN[..9]));
    server.send_chunk(&format!("{} after\n\n", &TOKEN[9..]));
    assert_eq!(events.next().await.unwrap().unwrap().data, "before [redacted] after");
    server.send_chunk("event: last\ndata: {}\n\n");
    assert_eq!(events.next().await.unwrap().unwrap().kind, "last");
    server.send("0\r\n\r\n");
    assert_eq!(events.next().await, Ok(None));
    let expected = [Step::Build, Step::CheckEgress, Step::Scan, Step::Resolve, Step::Send, Step::Respond];
    assert_eq!(call.steps(), expected);
}

/// The caller of an unredacted body redacts the texts that it puts together from the pieces.
#[tokio::test]
async fn an_unredacted_body_arrives_in_pieces_under_the_same_limits() {
    let server = Parts::start().await;
    server.send("HTTP/1.1 503 Later\r\nretry-after: 7\r\ntransfer-encoding: chunked\r\n\r\n");
    let response = opened(&mut Call::new(&server.url, "/events")).await.unwrap();
    assert_eq!((response.status, response.retry_after_ms), (503, Some(7_000)));
    let mut body = response.body.at_most(30).unredacted();
    server.send_chunk(&TOKEN[..9]);
    assert_eq!(body.next().await.unwrap().unwrap(), &TOKEN.as_bytes()[..9]);
    server.send_chunk(&"x".repeat(30));
    assert_eq!(body.next().await.unwrap_err().code, FailureCode::TooLarge);
    assert_eq!(body.next().await, Ok(None));
    tokio::time::timeout(Duration::from_secs(10), server.closed).await.unwrap().unwrap();
}

#[tokio::test]
async fn dropping_the_response_closes_the_connection() {
    for is_read in [false, true] {
        let server = Parts::start().await;
        server.send_head();
        server.send_chunk("data: a\n\n");
        let mut events = opened(&mut Call::new(&server.url, "/events")).await.unwrap().body.events();
        if is_read {
            assert_eq!(events.next().await.unwrap().unwrap().data, "a");
        }
        drop(events);
        tokio::time::timeout(Duration::from_secs(10), server.closed).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_deadline_applies_to_the_body() {
    let server = Parts::start().await;
    server.send_head();
    server.send_chunk("data: a\n\ndata: b");
    let mut call = Call::new(&server.url, "/events");
    call.request.timeout_ms = Some(2_000);
    let mut events = opened(&mut call).await.unwrap().body.events();
    assert_eq!(events.next().await.unwrap().unwrap().data, "a");
    let failure = events.next().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Timeout, true));
    assert_eq!(events.next().await, Ok(None));
    tokio::time::timeout(Duration::from_secs(10), server.closed).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_breaks_is_a_failure() {
    let cut = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 100\r\n\r\ndata: a\n\ndata".to_vec();
    let server = Server::start(move |_| cut.clone()).await;
    let mut events = opened(&mut Call::new(&server.url(), "/x")).await.unwrap().body.events();
    assert_eq!(events.next().await.unwrap().unwrap().data, "a");
    let failure = events.next().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Protocol, true));
    assert_eq!(events.next().await, Ok(None));
}

#[tokio::test]
async fn a_whole_body_is_redacted() {
    let server = Server::start(|seen| {
        assert_eq!(seen.header("accept-encoding"), Some("identity"));
        let headers = [("set-cookie", "a=b"), ("x-echo", TOKEN), ("content-encoding", "identity")];
        answer("400 Bad Request", &headers, format!("no {TOKEN}").as_bytes())
    })
    .await;
    let response = opened(&mut Call::new(&server.url(), "/x")).await.unwrap();
    assert_eq!((response.status, response.headers), (400, vec![("x-echo".to_owned(), "[redacted]".to_owned())]));
    assert_eq!(response.body.read().await.unwrap(), b"no [redacted]");
}

#[tokio::test]
async fn a_response_without_a_body_has_no_events() {
    let server = Server::start(|seen| match seen.line.as_str() {
        "HEAD /x HTTP/1.1" => b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
    })
    .await;
    for (method, status) in [("HEAD", 200), ("GET", 204)] {
        let mut call = Call::new(&server.url(), "/x");
        call.request.method = method.to_owned();
        let response = opened(&mut call).await.unwrap();
        assert_eq!(response.status, status);
        assert_eq!(response.body.events().next().await, Ok(None));
    }
}

#[tokio::test]
async fn content_encodings_are_refused_at_the_head() {
    for encoding in ["gzip", "x-gzip", "br", "identity, gzip"] {
        let server = Server::start(move |_| answer("200 OK", &[("content-encoding", encoding)], b"x")).await;
        let failure = opened(&mut Call::new(&server.url(), "/x")).await.err().unwrap();
        assert_eq!((failure.code, failure.sent), (FailureCode::Protocol, true), "{encoding}");
    }
}

#[tokio::test]
async fn a_body_over_10_mib_is_refused() {
    let declared = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\nx", RESPONSE_BODY_BYTES_MAX + 1).into_bytes();
    let server = Server::start(move |_| declared.clone()).await;
    let failure = opened(&mut Call::new(&server.url(), "/x")).await.err().unwrap();
    assert_eq!((failure.code, failure.sent), (FailureCode::TooLarge, true));
    let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    let body = |length| [&head[..], &vec![b'x'; length]].concat();
    let (most, more) = (body(RESPONSE_BODY_BYTES_MAX), body(RESPONSE_BODY_BYTES_MAX + 1));
    let server = Server::start(move |seen| if seen.line.contains("most") { most.clone() } else { more.clone() }).await;
    let most = opened(&mut Call::new(&server.url(), "/most")).await.unwrap().body.read().await;
    assert_eq!(most.unwrap().len(), RESPONSE_BODY_BYTES_MAX);
    let more = opened(&mut Call::new(&server.url(), "/more")).await.unwrap().body.read().await;
    assert_eq!(more.unwrap_err().code, FailureCode::TooLarge);
}

/// Checks that opening has the same refusals as sending, with nothing sent.
#[tokio::test]
async fn refusals_are_those_of_send() {
    let server = Server::start(|_| ok("")).await;
    let base = server.url();
    let refused = async |mut call: Call, code: FailureCode| {
        let failure = opened(&mut call).await.err().unwrap();
        assert_eq!((failure.code, failure.sent), (code, false), "{failure:?}");
        assert_eq!(call.announced.load(Ordering::SeqCst), 0);
    };
    refused(Call::new(&base, "/a/../b"), FailureCode::Invalid).await;
    refused(Call::new(&base, "https://elsewhere.example/"), FailureCode::Denied).await;
    refused(Call::new(&base, &format!("/x?leak={}", TOKEN.replace('+', "%2B"))), FailureCode::Denied).await;
    let mut call = Call::new(&base, "/x");
    call.scope.network.allow_addresses.clear();
    refused(call, FailureCode::Denied).await;
    let mut call = Call::new(&base, "/x");
    call.announcement = Err(Failure::unsent(FailureCode::Unavailable, format!("no audit for {TOKEN}")));
    let failure = opened(&mut call).await.err().unwrap();
    assert_eq!(failure, Failure::unsent(FailureCode::Unavailable, "no audit for [redacted]"));
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn redirects_and_refreshes_precede_the_body() {
    let server = Server::start(|seen| match seen.line.as_str() {
        "GET /x HTTP/1.1" => answer("302 Found", &[("location", "/y")], b""),
        _ if seen.header("authorization") == Some("Bearer fresh-token") => ok("data: fresh-token\n\n"),
        _ => answer("401 Unauthorized", &[], b""),
    })
    .await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.follow_redirects = 1;
    call.refresh_into("fresh-token");
    let mut events = opened(&mut call).await.unwrap().body.events();
    assert_eq!(events.next().await.unwrap().unwrap().data, "[redacted]");
    assert_eq!(server.seen().len(), 3);
}
