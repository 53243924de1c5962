//! Tests with slow clients, over streams in memory. The clock is paused and advances only while every task waits, so
//! the tests use the real time limits and do not depend on the speed of the machine.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use h2::client::SendRequest;
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;

use super::*;

const PATIENCE: Patience = Patience {
    head: Duration::from_secs(10),
    idle: Duration::from_secs(75),
    write: Pace { bytes_min: 30 << 10, span: Duration::from_secs(30) },
};
/// The seconds until a client that reads nothing is detected: one span, and up to one step of the meter (5 s).
const STALL: std::ops::RangeInclusive<u64> = 30..=35;
const LARGE: usize = 1 << 20;
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
const GET_LARGE: &[u8] = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n";

/// The server's side of one connection.
struct Served {
    task: JoinHandle<()>,
    began: Instant,
}

impl Served {
    /// Waits until the server closes the connection. Returns the seconds since the connection began.
    async fn ended(self) -> u64 {
        timeout(Duration::from_hours(24), self.task).await.expect("the connection ends").unwrap();
        self.began.elapsed().as_secs()
    }
}

/// Opens a connection whose buffer holds 1 KiB. `/large` answers with one buffer of 1 MiB, `/stream` with a piece of
/// 100 bytes every 100 s, and `/slow` after 300 s.
fn connected() -> (DuplexStream, Served) {
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/large", get(|| async { "x".repeat(LARGE) }))
        .route(
            "/stream",
            get(|| async {
                Body::from_stream(futures::stream::unfold(0, |count| async move {
                    sleep(Duration::from_secs(100)).await;
                    (count < 10).then(|| (io::Result::Ok("x".repeat(100)), count + 1))
                }))
            }),
        )
        .route(
            "/slow",
            get(|| async {
                sleep(Duration::from_secs(300)).await;
                "at last"
            }),
        );
    let room = Room::new(Connections { in_all: None, per_address: None }, 1024);
    let seat = room.enter(IpAddr::from([127, 0, 0, 1])).unwrap();
    let server = Server { router, patience: PATIENCE, stop: CancellationToken::new() };
    let (client, stream) = tokio::io::duplex(1 << 10);
    (client, Served { task: tokio::spawn(server.connection(stream, seat)), began: Instant::now() })
}

/// Reads at this pace until the server closes the connection. Returns the number of bytes read.
async fn read(client: &mut DuplexStream, bytes_per_s: usize) -> usize {
    let mut buffer = vec![0; bytes_per_s];
    let mut whole = 0;
    loop {
        match client.read(&mut buffer).await {
            Ok(0) | Err(_) => return whole,
            Ok(bytes) => {
                whole += bytes;
                #[expect(clippy::cast_precision_loss, reason = "both are small")]
                sleep(Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64)).await;
            }
        }
    }
}

/// Reads the next answer of a connection that stays open, up to `end`.
async fn answer(client: &mut DuplexStream, end: &str) {
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut bytes = [0; 4096];
        let read = client.read(&mut bytes).await.unwrap();
        assert!(read > 0, "the connection was closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
}

#[tokio::test(start_paused = true)]
async fn heads_that_are_not_finished_in_time_are_closed() {
    let heads: [&[u8]; 5] = [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nhost: x\r\nx-a: ",
        // A part of the HTTP/2 preface, and the complete preface without a request.
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    for head in heads {
        let (mut client, served) = connected();
        client.write_all(head).await.unwrap();
        assert_eq!(served.ended().await, 10, "{}", head.escape_ascii());
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_dribbles_has_no_more_time_than_any_other() {
    let (mut client, served) = connected();
    tokio::spawn(async move {
        while client.write_all(b"G").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    assert_eq!(served.ended().await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_connection_between_requests_has_more_time_than_a_head() {
    let (mut client, served) = connected();
    client.write_all(GET).await.unwrap();
    answer(&mut client, "hello").await;
    sleep(Duration::from_secs(74)).await;
    client.write_all(GET).await.unwrap();
    answer(&mut client, "hello").await;
    sleep(Duration::from_secs(20)).await;
    client.write_all(b"GET /").await.unwrap();
    assert_eq!(served.ended().await, 74 + 20 + 10, "the limit of a head applies once the head has begun");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_connection_is_closed_in_the_end() {
    let (mut client, served) = connected();
    client.write_all(GET).await.unwrap();
    answer(&mut client, "hello").await;
    assert_eq!(served.ended().await, 75);
}

#[tokio::test(start_paused = true)]
async fn the_time_that_the_server_takes_does_not_count() {
    for (path, end) in [("slow", "at last"), ("stream", "0\r\n\r\n")] {
        let (mut client, _served) = connected();
        client.write_all(format!("GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        answer(&mut client, end).await;
        client.write_all(GET).await.unwrap();
        answer(&mut client, "hello").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_ends_the_connection() {
    let (mut client, served) = connected();
    client.write_all(GET_LARGE).await.unwrap();
    let ended = served.ended().await;
    assert!(STALL.contains(&ended), "{ended} s");
}

#[tokio::test(start_paused = true)]
async fn answers_of_which_only_heads_are_not_read_end_the_connection() {
    let (mut client, served) = connected();
    tokio::spawn(async move {
        while client.write_all(GET).await.is_ok() {}
        std::future::pending::<()>().await;
    });
    let ended = served.ended().await;
    assert!(STALL.contains(&ended), "{ended} s");
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_a_large_answer_whole() {
    let (mut client, served) = connected();
    client.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let bytes = read(&mut client, 1200).await;
    assert!(bytes > LARGE, "{bytes} bytes");
    let ended = served.ended().await;
    assert!(ended > 800, "{ended} s");
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_half_the_pace_is_cut() {
    let (mut client, served) = connected();
    client.write_all(GET_LARGE).await.unwrap();
    let bytes = read(&mut client, 512).await;
    assert!(bytes < 32 << 10, "{bytes} bytes");
    served.ended().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_read_slowly_leaves_the_whole_time_for_another_request() {
    let (mut client, served) = connected();
    client.write_all(GET_LARGE).await.unwrap();
    let mut left = LARGE;
    while left > 0 {
        let mut bytes = [0; 1 << 10];
        let read = client.read(&mut bytes).await.unwrap();
        assert!(read > 0, "the connection was closed {left} bytes before the end");
        left = left.saturating_sub(read);
        sleep(Duration::from_millis(700)).await;
    }
    sleep(Duration::from_secs(60)).await;
    client.write_all(GET).await.unwrap();
    answer(&mut client, "hello").await;
    served.ended().await;
}

/// Connects an HTTP/2 client with this window for each stream. The client answers pings and opens a window as its
/// answer is read.
async fn http2(window: u32) -> (SendRequest<bytes::Bytes>, Served) {
    let (client, served) = connected();
    let mut builder = h2::client::Builder::new();
    let (requests, connection) = builder.initial_window_size(window).handshake(client).await.unwrap();
    tokio::spawn(connection);
    (requests.ready().await.unwrap(), served)
}

async fn ask(requests: &mut SendRequest<bytes::Bytes>, path: &str) -> h2::RecvStream {
    let request = Request::get(format!("http://x{path}")).body(()).unwrap();
    requests.send_request(request, true).unwrap().0.await.unwrap().into_body()
}

/// Reads a complete answer at this pace. Returns the number of bytes of the answer.
async fn read_http2(mut body: h2::RecvStream, bytes_per_s: u32) -> Result<usize, h2::Error> {
    let mut whole = 0;
    while let Some(bytes) = body.data().await {
        let bytes = bytes?.len();
        whole += bytes;
        sleep(Duration::from_secs(1) * u32::try_from(bytes).unwrap() / bytes_per_s).await;
        body.flow_control().release_capacity(bytes)?;
    }
    Ok(whole)
}

#[tokio::test(start_paused = true)]
async fn an_http_2_client_that_opens_no_window_is_ended() {
    // With a window of one byte, hyper passes the whole answer to h2. With a window of zero, the answer stays in its
    // body.
    for window in [0, 1, 1 << 14] {
        let (mut requests, served) = http2(window).await;
        let body = ask(&mut requests, "/large").await;
        let ended = served.ended().await;
        assert!(STALL.contains(&ended), "{ended} s with a window of {window}");
        drop(body);
    }
}

#[tokio::test(start_paused = true)]
async fn an_http_2_client_that_opens_its_window_slowly_gets_a_large_answer_whole() {
    for window in [1 << 10, 1 << 12, (1 << 16) - 1] {
        let (mut requests, _served) = http2(window).await;
        let body = ask(&mut requests, "/large").await;
        let began = Instant::now();
        assert_eq!(read_http2(body, 2 << 10).await.unwrap(), LARGE, "with a window of {window}");
        assert!(began.elapsed() > Duration::from_secs(400));
    }
}

#[tokio::test(start_paused = true)]
async fn an_http_2_client_that_opens_its_window_too_slowly_is_ended() {
    let (mut requests, served) = http2(1 << 12).await;
    let body = ask(&mut requests, "/large").await;
    read_http2(body, 512).await.expect_err("the answer is cut off");
    let ended = served.ended().await;
    assert!(ended <= 60, "{ended} s");
}

#[tokio::test(start_paused = true)]
async fn an_http_2_answer_that_takes_long_to_make_is_not_ended() {
    let (mut requests, _served) = http2(1 << 14).await;
    for (path, bytes) in [("/slow", 7), ("/stream", 1000)] {
        let body = ask(&mut requests, path).await;
        assert_eq!(read_http2(body, 1 << 20).await.unwrap(), bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_answer_lets_the_others_of_its_connection_finish_and_takes_no_new_request() {
    let (mut requests, served) = http2(1 << 14).await;
    let stalled = ask(&mut requests, "/large").await;
    let slow = ask(&mut requests, "/slow").await;
    assert_eq!(read_http2(slow, 1 << 20).await.unwrap(), 7);
    let another = requests.ready().await.expect_err("the server accepts no further request");
    assert!(another.is_go_away(), "{another}");
    let ended = served.ended().await;
    assert!((300..=310).contains(&ended), "{ended} s");
    drop(stalled);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_events_has_a_line_a_minute() {
    let mut log = LogInterval::default();
    let mut lines = Vec::new();
    for _ in 0..150 {
        for _ in 0..1000 {
            lines.extend(log.count());
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(lines, [1, 60_000, 60_000], "each line counts the events since the previous line");
}
