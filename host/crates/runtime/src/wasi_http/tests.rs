//! The outgoing handler with hosts that respond, fail, wait and panic.

use std::sync::Mutex;

use futures::future::BoxFuture;
use http_body_util::{Empty, Full, StreamBody};
use rstest::rstest;
use tokio::sync::Notify;

use super::*;

/// A host that answers each request with `answer`. If the host has a `gate`, it waits for a notification before each
/// answer.
struct Host {
    answer: Result<HttpResponse, Failure>,
    asked: Mutex<Vec<HttpRequest>>,
    gate: Option<Arc<Notify>>,
}

impl HostCalls for Host {
    fn http_send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        Box::pin(async move {
            self.asked.lock().unwrap().push(request);
            if let Some(gate) = &self.gate {
                gate.notified().await;
            }
            self.answer.clone()
        })
    }

    fn credential_status(&self) -> String {
        "ready".to_owned()
    }
}

fn host(answer: Result<HttpResponse, Failure>) -> Arc<Host> {
    Arc::new(Host { answer, asked: Mutex::default(), gate: None })
}

fn answering(bytes: usize) -> Arc<Host> {
    host(Ok(HttpResponse { status: 200, headers: Vec::new(), body: vec![7; bytes] }))
}

fn outgoing(host: &Arc<Host>) -> Outgoing {
    Outgoing::new(Arc::clone(host) as Arc<dyn HostCalls>)
}

fn empty() -> WasiBody {
    Empty::new().map_err(Error::from).boxed_unsync()
}

fn bytes(bytes: Vec<u8>) -> WasiBody {
    Full::new(Bytes::from(bytes)).map_err(Error::from).boxed_unsync()
}

fn get() -> Request<WasiBody> {
    Request::get("https://api.example/x?y=z").body(empty()).unwrap()
}

fn begin(outgoing: &mut Outgoing, request: Request<WasiBody>) -> Pin<Box<dyn Future<Output = SendResult> + Send>> {
    Pin::from(outgoing.send_request(request, None, Box::new(std::future::ready(Ok(())))))
}

async fn send(host: &Arc<Host>, request: Request<WasiBody>) -> Result<Response<WasiBody>, String> {
    begin(&mut outgoing(host), request).await.map(|(response, _)| response).map_err(|error| format!("{error:?}"))
}

async fn refusal(request: Request<WasiBody>) -> String {
    let host = answering(0);
    let refused = send(&host, request).await.unwrap_err();
    assert!(host.asked.lock().unwrap().is_empty(), "a rejected request was sent");
    refused
}

#[tokio::test]
async fn a_request_is_converted_and_authenticated() {
    let host = answering(3);
    let request = Request::post("https://api.example:8443/a%2Fb?c=d")
        .header("X-Own", "é")
        .header("Content-Length", "2")
        .body(bytes(b"ab".to_vec()))
        .unwrap();
    let mut outgoing = outgoing(&host);
    let options = RequestOptions { first_byte_timeout: Some(Duration::from_millis(1500)), ..RequestOptions::default() };
    let nothing = Box::new(std::future::ready(Ok(())));
    let (answer, _) = Pin::from(outgoing.send_request(request, Some(options), nothing)).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), [7; 3].as_slice());
    let expected = HttpRequest {
        method: "POST".to_owned(),
        url: "https://api.example:8443/a%2Fb?c=d".to_owned(),
        query: Vec::new(),
        headers: vec![("x-own".to_owned(), "é".to_owned())],
        body: Some(b"ab".to_vec()),
        timeout_ms: Some(1500),
        authenticate: true,
    };
    assert_eq!(*host.asked.lock().unwrap(), [expected]);
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let with_body = |body| Request::post("https://api.example/").body(body).unwrap();
    assert_eq!(
        refusal(with_body(bytes(vec![0; REQUEST_BODY_BYTES_MAX + 1]))).await,
        "HttpRequestBodySize(Some(10485761))"
    );
    let trailers = http_body::Frame::trailers(HeaderMap::new());
    let frames = [Ok::<_, Error>(http_body::Frame::data(Bytes::from_static(b"a"))), Ok(trailers)];
    let body = StreamBody::new(futures::stream::iter(frames)).boxed_unsync();
    assert_eq!(refusal(with_body(body)).await, "HttpRequestTrailerSectionSize(None)");
    let broken = StreamBody::new(futures::stream::iter([
        Ok(http_body::Frame::data(Bytes::from_static(b"a"))),
        Err(Error::HttpProtocolError),
    ]));
    assert_eq!(refusal(with_body(broken.boxed_unsync())).await, "HttpProtocolError");
    let header =
        |name: &str, value: &[u8]| Request::get("https://api.example/").header(name, value).body(empty()).unwrap();
    assert_eq!(refusal(header("content-length", b"1")).await, "HttpRequestBodySize(Some(0))");
    assert_eq!(refusal(header("x", b"\xff")).await, "HttpProtocolError");
    assert_eq!(
        refusal(header("x", &[b'x'; REQUEST_HEADER_BYTES_MAX])).await,
        "HttpRequestHeaderSectionSize(Some(32769))"
    );
    let long = format!("https://api.example/{}", "x".repeat(URL_BYTES_MAX));
    assert_eq!(refusal(Request::get(long).body(empty()).unwrap()).await, "HttpRequestUriTooLong");
}

#[rstest]
#[case(FailureCode::Denied, true, "HttpRequestDenied")]
#[case(FailureCode::Unauthenticated, false, "HttpRequestDenied")]
#[case(FailureCode::Invalid, false, "HttpRequestUriInvalid")]
#[case(FailureCode::Dns, false, "DnsError { rcode: None, info_code: None }")]
#[case(FailureCode::Connect, false, "ConnectionRefused")]
#[case(FailureCode::Tls, false, "TlsProtocolError")]
#[case(FailureCode::Timeout, true, "HttpResponseTimeout")]
#[case(FailureCode::Timeout, false, "ConnectionTimeout")]
#[case(FailureCode::TooLarge, true, "HttpResponseBodySize(None)")]
#[case(FailureCode::Limit, false, "ConnectionLimitReached")]
#[case(FailureCode::Unavailable, false, "DestinationUnavailable")]
#[case(FailureCode::Protocol, true, "HttpProtocolError")]
#[case(FailureCode::Internal, false, "InternalError(Some(\"words\"))")]
#[tokio::test]
async fn failures_are_converted_to_the_closest_error(
    #[case] code: FailureCode,
    #[case] sent: bool,
    #[case] name: &str,
) {
    let failure = Failure { sent, ..Failure::unsent(code, "words") };
    assert_eq!(send(&host(Err(failure)), get()).await.unwrap_err(), name);
}

#[tokio::test]
async fn a_redacted_header_does_not_break_the_response() {
    let headers = vec![("x-[redacted]".to_owned(), "[redacted] é".to_owned())];
    let answer = send(&host(Ok(HttpResponse { status: 204, headers, body: Vec::new() })), get()).await.unwrap();
    assert_eq!(answer.headers()["redacted"].as_bytes(), "[redacted] é".as_bytes());
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn both_interfaces_share_the_counters() {
    let mut outgoing = outgoing(&answering(0));
    for _ in 0..crate::HTTP_CALLS_MAX - 1 {
        outgoing.counters.count_http().unwrap();
    }
    assert!(begin(&mut outgoing, get()).await.is_ok());
    let refused = begin(&mut outgoing, get()).await.map(drop).unwrap_err();
    assert!(matches!(refused, Error::ConnectionLimitReached), "{refused:?}");
    assert_eq!(outgoing.counters.count_http().unwrap_err().code, FailureCode::Limit);
}

#[tokio::test]
async fn held_bytes_are_limited_and_released_with_the_body() {
    let mut outgoing = outgoing(&answering(REQUEST_BODY_BYTES_MAX));
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(begin(&mut outgoing, get()).await.unwrap().0);
    }
    let refused = begin(&mut outgoing, get()).await.map(drop).unwrap_err();
    assert!(matches!(refused, Error::HttpResponseBodySize(Some(_))), "{refused:?}");
    let body = Request::post("https://api.example/").body(bytes(vec![0])).unwrap();
    let refused = begin(&mut outgoing, body).await.map(drop).unwrap_err();
    assert!(matches!(refused, Error::ConnectionLimitReached), "{refused:?}");
    drop(answers.pop());
    assert!(begin(&mut outgoing, get()).await.is_ok());
}

#[tokio::test]
async fn concurrent_requests_are_limited() {
    let gate = Arc::new(Notify::new());
    let host =
        Arc::new(Host { gate: Some(Arc::clone(&gate)), answer: answering(0).answer.clone(), asked: Mutex::default() });
    let mut outgoing = outgoing(&host);
    let mut begun: Vec<_> = (0..SENDING_MAX + 2).map(|_| begin(&mut outgoing, get())).collect();
    for request in &mut begun {
        assert!(futures::poll!(request).is_pending());
    }
    assert_eq!(host.asked.lock().unwrap().len(), SENDING_MAX);
    gate.notify_one();
    assert!(begun.remove(0).await.is_ok());
    assert!(futures::poll!(&mut begun[SENDING_MAX - 1]).is_pending());
    assert_eq!(host.asked.lock().unwrap().len(), SENDING_MAX + 1);
}

#[tokio::test]
async fn a_call_ends_after_its_last_request() {
    let gate = Arc::new(Notify::new());
    let host = Arc::new(Host { gate: Some(gate), answer: answering(0).answer.clone(), asked: Mutex::default() });
    let mut outgoing = outgoing(&host);
    let tasks = outgoing.tasks();
    let request = begin(&mut outgoing, get());
    tasks.close();
    let mut end = std::pin::pin!(tasks.wait());
    assert!(futures::poll!(&mut end).is_pending());
    drop(request);
    assert!(futures::poll!(&mut end).is_ready());
}
