//! Tests of connection limits, refusals and the stop, over real sockets. `patience_tests.rs` tests the time limits.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::join_all;
use http::StatusCode;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;

/// The time limit of each wait. A wait on a working machine takes far less time.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Limits that exceed the duration of any test, so that a busy machine does not cause a time-out.
const PATIENCE: Patience = Patience {
    head: Duration::from_secs(600),
    idle: Duration::from_secs(600),
    write: Pace { bytes_min: 1, span: Duration::from_secs(600) },
};

struct Listening {
    address: SocketAddr,
    stop: CancellationToken,
    served: JoinHandle<io::Result<()>>,
    /// The signal that a request for `/held` has arrived.
    held: Arc<Notify>,
    /// The signal that releases the answer to a request for `/held`.
    release: Arc<Notify>,
}

/// Starts a server with these connection limits. The answer to `/held` waits for the signal `release`.
async fn listening(in_all: u32, per_address: u32) -> Listening {
    let (held, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (has_come, released) = (Arc::clone(&held), Arc::clone(&release));
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/held",
            get(|| async move {
                has_come.notify_one();
                released.notified().await;
                "at last"
            }),
        )
        .layer(from_fn(marked));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Connections { in_all: NonZeroU32::new(in_all), per_address: Some(per_address) };
    let stop = CancellationToken::new();
    let served = tokio::spawn(serve(listener, router, connections, PATIENCE, stop.clone()));
    Listening { address, stop, served, held, release }
}

/// Marks an answer of the router with a header.
async fn marked(request: Request, next: Next) -> Response {
    ([("x-router", "yes")], next.run(request).await).into_response()
}

impl Listening {
    /// Opens a connection and sends these bytes.
    async fn connect(&self, sent: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream
    }
}

/// Reads until the server closes or resets the connection. Returns what was received until then.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = timeout(WAIT_MAX, stream.read_to_end(&mut bytes)).await;
    drop(read.expect("the server closes the connection"));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the next answer of a connection that stays open, up to `end`.
async fn answer(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    let mut bytes = [0; 4096];
    while !text.ends_with(end) {
        let read = timeout(WAIT_MAX, stream.read(&mut bytes)).await.expect("the server answers in time").unwrap();
        assert!(read > 0, "the connection was closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    text
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test]
async fn a_head_of_more_than_64_kib_is_refused_before_it_ends() {
    let server = listening(100, 0).await;
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
async fn a_connection_for_which_there_is_no_room_is_told_so() {
    let server = listening(3, 2).await;
    let _held = [server.connect(b"").await, server.connect(b"").await];
    let mut refused = server.connect(GET).await;
    let told = rest(&mut refused).await;
    assert!(told.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{told}");
    assert!(told.contains("\r\nretry-after: 1\r\n") && told.contains("urn:monstrum:error:unavailable"), "{told}");
    assert!(told.contains("from this address"), "{told}");
    // A connection from another address is still accepted.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(server.address).await.unwrap();
    other.write_all(GET).await.unwrap();
    answer(&mut other, "hello").await;
}

#[tokio::test]
async fn a_flood_of_refused_connections_does_not_stop_the_server() {
    let server = listening(2, 0).await;
    let held = [server.connect(b"").await, server.connect(b"").await];
    // These clients do not read. Most of their connections are closed without an answer.
    let flood = join_all((0..200).map(|_| server.connect(b""))).await;
    drop(held);
    let mut stream = server.connect(GET).await;
    let until = Instant::now() + WAIT_MAX;
    while !rest_of_one(&mut stream).await {
        assert!(Instant::now() < until, "the server accepts connections again");
        sleep(Duration::from_millis(50)).await;
        stream = server.connect(GET).await;
    }
    drop(flood);
}

/// Returns whether the answer comes from the router. A refused connection gets its answer before the router, or none.
async fn rest_of_one(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    let read = timeout(WAIT_MAX, stream.read(&mut bytes)).await.expect("an answer, or the end");
    read.is_ok_and(|read| String::from_utf8_lossy(&bytes[..read]).contains("x-router"))
}

#[tokio::test]
async fn http_2_is_spoken_to_a_client_that_begins_with_it() {
    // The client needs a TLS provider even though no connection uses TLS.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let server = listening(100, 0).await;
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).http2_prior_knowledge().build().unwrap();
    let ask = |path: &str| client.get(format!("http://{}{path}", server.address)).send();
    let held = async {
        let first = ask("/");
        server.held.notified().await;
        let first = first.await;
        server.release.notify_one();
        first
    };
    let (slow, quick) = tokio::join!(ask("/held"), held);
    let answers = [slow, quick];
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!((answer.status(), answer.version()), (StatusCode::OK, http::Version::HTTP_2));
    }
}

#[tokio::test]
async fn a_stop_waits_for_answers_but_not_for_clients() {
    let server = listening(100, 0).await;
    let mut silent = server.connect(b"").await;
    let mut unfinished = server.connect(b"GET / HTTP/1.1\r\n").await;
    let mut idle = server.connect(GET).await;
    answer(&mut idle, "hello").await;
    let mut asks = server.connect(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n").await;
    server.held.notified().await;
    server.stop.cancel();
    // Only the stop can have closed these connections, because the server's time limits are far longer than the test.
    assert_eq!(rest(&mut silent).await + &rest(&mut unfinished).await + &rest(&mut idle).await, "");
    assert!(!server.served.is_finished(), "a request is still being answered");
    server.release.notify_one();
    assert!(rest(&mut asks).await.ends_with("at last"));
    server.served.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "the server no longer listens");
}

/// With a larger buffer, the server could not detect for minutes that the client does not read.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_kernel_holds_little_of_an_answer_that_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    prepare(&stream);
    assert_eq!(socket2::SockRef::from(&stream).tcp_notsent_lowat().unwrap(), UNSENT_BYTES_MAX);
    assert!(stream.nodelay().unwrap());
}
