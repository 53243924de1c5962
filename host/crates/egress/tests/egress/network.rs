//! Tests of names, addresses, connections, TLS and time-outs.

use std::future::pending;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use monstrum_egress::{Egress, EgressOptions, LookupError, Resolve};
use monstrum_types::FailureCode;

use crate::support::{Call, Names, Server, ok, tls_call, tls_server};

/// The time for which the addresses of a name are kept.
const KEPT_MAX: Duration = Duration::from_secs(30);

const SECURE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecure";

fn named(server: &Server) -> String {
    format!("http://api.example:{}", server.address.port())
}

#[tokio::test]
async fn a_name_is_resolved_once() {
    let server = Server::start(|_| ok("hello")).await;
    let mut call = Call::new(&named(&server), "/x");
    call.names = Names::new(&[("api.example", &[&["127.0.0.1"]])]);
    assert_eq!(call.send().await.unwrap().body, b"hello");
    assert_eq!(call.names.asked.load(Ordering::SeqCst), 1);
    let host = format!("api.example:{}", server.address.port());
    assert_eq!(server.seen()[0].header("host"), Some(host.as_str()));
}

#[tokio::test]
async fn a_name_that_moves_to_a_forbidden_address_is_refused_despite_an_open_connection() {
    let server = Server::start(|_| ok("hello")).await;
    let mut call = Call::new(&named(&server), "/x");
    call.names = Names::new(&[("api.example", &[&["127.0.0.1"], &["169.254.169.254"], &["127.0.0.1", "10.0.0.1"]])]);
    let egress = call.egress();
    call.send_by(&egress).await.unwrap();
    pass(KEPT_MAX).await;
    for _ in 0..2 {
        let failure = call.send_by(&egress).await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (FailureCode::Denied, false));
        assert_eq!(failure.message, "`api.example` has an address to which this resource may not connect");
    }
    assert_eq!((server.seen().len(), call.announced.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_name_that_moves_to_another_server_reaches_that_one() {
    let first = Server::start(|_| ok("first")).await;
    let second = Server::start_at(&format!("127.0.0.2:{}", first.address.port()), |_| ok("second")).await;
    let mut call = Call::new(&named(&first), "/x");
    call.names = Names::new(&[("api.example", &[&["127.0.0.1"], &["127.0.0.2"]])]);
    let egress = call.egress();
    assert_eq!(call.send_by(&egress).await.unwrap().body, b"first");
    assert_eq!(call.send_by(&egress).await.unwrap().body, b"first");
    pass(KEPT_MAX).await;
    assert_eq!(call.send_by(&egress).await.unwrap().body, b"second");
    assert_eq!((second.seen().len(), call.names.asked.load(Ordering::SeqCst)), (1, 2));
}

/// Advances the clock.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Checks that an answer that was checked by the rules of one resource does not serve a resource with other rules.
#[tokio::test]
async fn a_resource_does_not_use_the_answer_of_another_resource() {
    let server = Server::start(|_| ok("hello")).await;
    let mut call = Call::new(&named(&server), "/x");
    call.names = Names::new(&[("api.example", &[&["127.0.0.1"]])]);
    let egress = call.egress();
    call.send_by(&egress).await.unwrap();
    call.scope.network.allow_addresses = vec!["127.0.0.2/32".parse().unwrap()];
    let failure = call.send_by(&egress).await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Denied, false));
    assert_eq!((server.seen().len(), call.names.asked.load(Ordering::SeqCst)), (1, 2));
}

/// Checks that kept connections survive an answer with fewer addresses.
#[tokio::test]
async fn a_connection_is_kept_while_its_address_is_in_the_answer() {
    let server = Server::start(|_| ok("hello")).await;
    let mut call = Call::new(&named(&server), "/x");
    let answers: [&[&str]; 3] = [&["127.0.0.1", "127.0.0.9"], &["127.0.0.1"], &["127.0.0.9", "127.0.0.1"]];
    call.names = Names::new(&[("api.example", &answers)]);
    let egress = call.egress();
    for _ in 0..5 {
        assert_eq!(call.send_by(&egress).await.unwrap().body, b"hello");
        // A connection that is idle for 30 s is closed.
        pass(KEPT_MAX / 2).await;
    }
    assert_eq!((server.connections(), call.names.asked.load(Ordering::SeqCst)), (1, 3));
}

#[tokio::test]
async fn local_names_are_refused_without_a_look_up() {
    for host in ["localhost", "LOCALHOST", "x.localhost"] {
        let mut call = Call::new(&format!("http://{host}"), "/x");
        call.names = Names::new(&[("localhost", &[&["127.0.0.1"]]), ("x.localhost", &[&["127.0.0.1"]])]);
        call.assert_refused(FailureCode::Denied).await;
        assert_eq!(call.names.asked.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn http_is_refused_by_default_even_on_loopback() {
    let mut call = Call::new("http://127.0.0.1:9", "/x");
    call.scope.network.allow_http = false;
    call.assert_refused(FailureCode::Denied).await;
}

#[tokio::test]
async fn unknown_names_fail_as_dns() {
    let mut call = Call::new("https://nobody.example", "/x");
    let failure = call.assert_refused(FailureCode::Dns).await;
    assert_eq!(failure.message, "`nobody.example` could not be resolved");
}

#[tokio::test]
async fn a_closed_port_fails_as_connect_and_unsent() {
    let closed = {
        let server = Server::start(|_| ok("")).await;
        server.address
    };
    let mut call = Call::new(&format!("http://{closed}"), "/x");
    let failure = call.send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Connect, false), "{failure:?}");
    assert_eq!(failure.message, "no connection to `127.0.0.1` could be established");
}

#[tokio::test]
async fn silence_is_a_timeout_of_a_sent_request() {
    let server = Server::start(|_| Vec::new()).await;
    let mut call = Call::new(&server.url(), "/x");
    call.request.timeout_ms = Some(1000);
    let failure = call.send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Timeout, true));
}

struct Silent;

impl Resolve for Silent {
    fn lookup<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        Box::pin(pending())
    }
}

#[tokio::test]
async fn a_look_up_that_takes_too_long_is_a_timeout_and_unsent() {
    let mut call = Call::new("https://slow.example", "/x");
    call.request.timeout_ms = Some(20);
    let egress = Egress::new(EgressOptions { resolver: Arc::new(Silent), ..EgressOptions::default() });
    let failure = call.send_by(&egress).await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Timeout, false));
}

#[tokio::test]
async fn a_trusted_server_is_reached_by_tls() {
    for host in ["tls.example", "127.0.0.1"] {
        let response = tls_call(tls_server(SECURE), host).send().await.unwrap();
        assert_eq!(response.body, b"secure", "{host}");
    }
}

#[tokio::test]
async fn an_untrusted_server_gets_no_request() {
    let mut strange = tls_call(tls_server(SECURE), "tls.example");
    strange.roots.clear();
    let mut renamed = tls_call(tls_server(SECURE), "other.example");
    for call in [&mut strange, &mut renamed] {
        let failure = call.send().await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (FailureCode::Tls, false), "{failure:?}");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_a_tls_failure() {
    let server = Server::start_at("127.0.0.1:0", |_| ok("")).await;
    let speaking = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = speaking.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = speaking.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").unwrap();
        // Reads until the client closes the connection, so that the client receives the response and not a reset.
        stream.read_to_end(&mut Vec::new())
    });
    let failure = tls_call(port, "tls.example").send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Tls, false), "{failure:?}");
    drop((server, thread));
}
