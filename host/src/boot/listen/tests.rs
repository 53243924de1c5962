//! Clients that keep the server waiting, over real sockets, with little patience.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::future::join_all;
use http::StatusCode;
use tokio::task::JoinHandle;

use super::*;

/// Far longer than anything takes on a machine that is not stuck.
const WAIT_MAX: Duration = Duration::from_secs(60);
const PATIENCE: Patience =
    Patience { head: Duration::from_millis(300), idle: Duration::from_millis(1200), write: Duration::from_millis(600) };

struct Listening {
    address: SocketAddr,
    stop: CancellationToken,
    served: JoinHandle<io::Result<()>>,
}

/// A server with this room and patience, whose `/slow` answers after a second and whose `/large` has no end.
async fn listening(in_all: u32, per_address: u32, patience: Patience) -> Listening {
    let endless = futures::stream::repeat_with(|| io::Result::Ok("x".repeat(1 << 16)));
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/length", post(|body: String| async move { body.len().to_string() }))
        .route(
            "/slow",
            get(|| async {
                sleep(Duration::from_secs(1)).await;
                "at last"
            }),
        )
        .route("/large", get(|| async { Body::from_stream(endless) }))
        .layer(from_fn(marked));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Connections { in_all: NonZeroU32::new(in_all), per_address: Some(per_address) };
    let stop = CancellationToken::new();
    let served = tokio::spawn(serve(listener, router, connections, patience, stop.clone()));
    Listening { address, stop, served }
}

/// A mark that an answer comes from the router.
async fn marked(request: Request, next: Next) -> Response {
    ([("x-router", "yes")], next.run(request).await).into_response()
}

impl Listening {
    /// A connection that has sent this.
    async fn connect(&self, sent: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream
    }
}

/// What comes until the server closes the connection; empty too where it resets it.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = timeout(WAIT_MAX, stream.read_to_end(&mut bytes)).await;
    drop(read.expect("the server closes the connection"));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The next answer of a connection that stays open: its whole text, up to `end`.
async fn answer(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    let mut bytes = [0; 4096];
    while !text.ends_with(end) {
        let read = timeout(WAIT_MAX, stream.read(&mut bytes)).await.expect("an answer comes").unwrap();
        assert!(read > 0, "the connection was closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    text
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test]
async fn heads_that_are_not_finished_in_time_are_closed() {
    let server = listening(100, 0, PATIENCE).await;
    let heads: [&[u8]; 5] = [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nhost: x\r\nx-a: ",
        // A part of what begins HTTP/2, and all of it without a request.
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    let began = Instant::now();
    let closed = join_all(heads.iter().cycle().take(40).map(async |head| {
        let mut stream = server.connect(head).await;
        rest(&mut stream).await.contains("x-router")
    }));
    assert!(closed.await.iter().all(|is_answered| !is_answered));
    assert!(began.elapsed() >= PATIENCE.head, "they have had their time");
}

#[tokio::test]
async fn a_head_of_more_than_64_kib_is_refused_before_it_ends() {
    let server = listening(100, 0, Patience::default()).await;
    let mut head = b"GET / HTTP/1.1\r\nhost: x\r\nx-a: ".to_vec();
    head.resize(HEAD_BYTES_MAX + 4096, b'a');
    let mut stream = server.connect(&head).await;
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let mut head = b"GET / HTTP/1.1\r\nhost: x\r\nx-a: ".to_vec();
    head.resize(HEAD_BYTES_MAX - 4096, b'a');
    head.extend_from_slice(b"\r\nconnection: close\r\n\r\n");
    let mut stream = server.connect(&head).await;
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_connection_between_requests_has_more_time_than_a_head() {
    let server = listening(100, 0, PATIENCE).await;
    let mut stream = server.connect(GET).await;
    answer(&mut stream, "hello").await;
    sleep(PATIENCE.head * 2).await;
    stream.write_all(GET).await.unwrap();
    answer(&mut stream, "hello").await;
    let began = Instant::now();
    stream.write_all(b"GET /").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
    assert!(began.elapsed() < PATIENCE.idle, "a head that has begun has the time of a head");
}

#[tokio::test]
async fn a_quiet_connection_is_closed_in_the_end() {
    let server = listening(100, 0, PATIENCE).await;
    let mut stream = server.connect(GET).await;
    answer(&mut stream, "hello").await;
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn the_time_that_the_server_takes_does_not_count() {
    let server = listening(100, 0, PATIENCE).await;
    let mut stream = server.connect(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
    answer(&mut stream, "at last").await;
}

#[tokio::test]
async fn an_answer_that_is_not_read_ends_the_connection() {
    let server = listening(1, 0, PATIENCE).await;
    let mut deaf = server.connect(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await;
    answer(&mut deaf, "x").await;
    // There is room for one connection. It becomes free although the client stays.
    let until = Instant::now() + WAIT_MAX;
    loop {
        let mut other = server.connect(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        if rest(&mut other).await.ends_with("hello") {
            break;
        }
        assert!(Instant::now() < until, "the connection of the client that does not read is still open");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_connection_for_which_there_is_no_room_is_told_so() {
    let server = listening(3, 2, Patience::default()).await;
    let _held = [server.connect(b"").await, server.connect(b"").await];
    let mut refused = server.connect(GET).await;
    let told = rest(&mut refused).await;
    assert!(told.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{told}");
    assert!(told.contains("\r\nretry-after: 1\r\n") && told.contains("urn:monstrum:error:unavailable"), "{told}");
    assert!(told.contains("from this address"), "{told}");
    // Another address still gets in.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(server.address).await.unwrap();
    other.write_all(GET).await.unwrap();
    answer(&mut other, "hello").await;
}

#[tokio::test]
async fn a_flood_of_refused_connections_does_not_stop_the_server() {
    let server = listening(2, 0, Patience::default()).await;
    let held = [server.connect(b"").await, server.connect(b"").await];
    // They do not read; most are closed without a word.
    let flood = join_all((0..200).map(|_| server.connect(b""))).await;
    drop(held);
    let mut stream = server.connect(GET).await;
    let until = Instant::now() + WAIT_MAX;
    while !rest_of_one(&mut stream).await {
        assert!(Instant::now() < until, "the server has room again");
        sleep(Duration::from_millis(50)).await;
        stream = server.connect(GET).await;
    }
    drop(flood);
}

/// Whether the router answers.
async fn rest_of_one(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    let read = timeout(WAIT_MAX, stream.read(&mut bytes)).await.expect("an answer, or the end");
    read.is_ok_and(|read| String::from_utf8_lossy(&bytes[..read]).contains("x-router"))
}

#[tokio::test]
async fn http_2_is_spoken_to_a_client_that_begins_with_it() {
    // rustls needs a provider even where no TLS is spoken.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let server = listening(100, 0, PATIENCE).await;
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).http2_prior_knowledge().build().unwrap();
    let ask = |path: &str| client.get(format!("http://{}{path}", server.address)).send();
    let answers = join_all([ask("/"), ask("/slow"), ask("/")]).await;
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!((answer.status(), answer.version()), (StatusCode::OK, http::Version::HTTP_2));
    }
}

#[tokio::test]
async fn a_stop_waits_for_answers_but_not_for_clients() {
    let server = listening(100, 0, Patience::default()).await;
    let mut silent = server.connect(b"").await;
    let mut unfinished = server.connect(b"GET / HTTP/1.1\r\n").await;
    let mut idle = server.connect(GET).await;
    answer(&mut idle, "hello").await;
    let mut asks = server.connect(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
    // Until the request is there.
    sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    server.stop.cancel();
    assert!(rest(&mut asks).await.ends_with("at last"));
    assert_eq!(rest(&mut silent).await + &rest(&mut unfinished).await + &rest(&mut idle).await, "");
    server.served.await.unwrap().unwrap();
    assert!(began.elapsed() < Patience::default().head);
    assert!(TcpStream::connect(server.address).await.is_err(), "nothing listens any more");
}
