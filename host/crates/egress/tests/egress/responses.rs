//! Tests with responses of hostile or broken upstreams.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use monstrum_egress::{RESPONSE_BODY_BYTES_MAX, RESPONSE_HEADER_BYTES_MAX};
use monstrum_types::{Failure, FailureCode, HttpResponse};

use crate::support::{Call, Server, TOKEN, answer, ok};

async fn answered(bytes: Vec<u8>) -> Result<HttpResponse, Failure> {
    let server = Server::start(move |_| bytes.clone()).await;
    Call::new(&server.url(), "/x").send().await
}

async fn fails_with(bytes: Vec<u8>) -> FailureCode {
    let failure = answered(bytes).await.unwrap_err();
    assert!(failure.sent, "{failure:?}");
    failure.code
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn value<'a>(response: &'a HttpResponse, name: &str) -> Option<&'a str> {
    response.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

#[tokio::test]
async fn a_response_is_returned() {
    let response =
        answered(answer("418 I'm a teapot", &[("X-Kind", "tea"), ("x-kind", "green")], b"short")).await.unwrap();
    assert_eq!((response.status, response.body.as_slice()), (418, b"short".as_slice()));
    let kinds = [("x-kind".into(), "tea".into()), ("x-kind".into(), "green".into())];
    assert_eq!(response.headers, [&[("content-length".into(), "5".into())][..], &kinds].concat());
}

#[tokio::test]
async fn cookies_and_echoed_authorization_are_dropped() {
    let headers = [
        ("set-cookie", "a=b"),
        ("Set-Cookie", "c=d"),
        ("authorization", "Bearer x"),
        ("proxy-authenticate", "x"),
        ("Proxy-Anything", "x"),
        ("x-kept", "y"),
    ];
    let response = answered(answer("200 OK", &headers, b"")).await.unwrap();
    let names: Vec<&str> = response.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["content-length", "x-kept"]);
}

#[tokio::test]
async fn gzip_is_decoded_and_redacted() {
    let body = gzip(format!("before {TOKEN} after").as_bytes());
    for encoding in ["gzip", "x-gzip", "GZIP"] {
        let response = answered(answer("200 OK", &[("content-encoding", encoding)], &body)).await.unwrap();
        assert_eq!(response.body, b"before [redacted] after");
        assert_eq!(value(&response, "content-encoding"), None);
        assert_eq!(value(&response, "content-length"), Some("23"));
    }
    let empty = answered(answer("200 OK", &[("content-encoding", "gzip")], b"")).await.unwrap();
    assert!(empty.body.is_empty());
}

#[tokio::test]
async fn other_encodings_and_broken_ones_are_refused() {
    for encoding in ["br", "deflate", "zstd", "gzip, gzip", "compress", "\u{e9}"] {
        let bytes = answer("200 OK", &[("content-encoding", encoding)], &gzip(b"x"));
        assert_eq!(fails_with(bytes).await, FailureCode::Protocol, "{encoding}");
    }
    let whole = gzip(&[b'x'; 5000]);
    for broken in [&whole[..whole.len() - 4], &whole[..5], b"not gzip"] {
        let bytes = answer("200 OK", &[("content-encoding", "gzip")], broken);
        assert_eq!(fails_with(bytes).await, FailureCode::Protocol);
    }
}

/// The host cannot search a body for secrets if the host does not decode its transfer encoding.
#[tokio::test]
async fn a_transfer_encoding_other_than_chunked_is_refused() {
    let packed = gzip(format!("before {TOKEN} after").as_bytes());
    let chunked = [format!("{:x}\r\n", packed.len()).as_bytes(), &packed, b"\r\n0\r\n\r\n"].concat();
    for (headers, body) in [
        ("transfer-encoding: gzip, chunked", &chunked),
        ("transfer-encoding: gzip\r\ntransfer-encoding: chunked", &chunked),
        ("transfer-encoding: gzip", &packed),
        ("transfer-encoding: gzip\r\ncontent-encoding: gzip", &packed),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{headers}\r\n\r\n");
        let failure = answered([head.as_bytes(), body].concat()).await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (FailureCode::Protocol, true), "{headers}");
        assert_eq!(failure.message, "the response has a transfer encoding that the host does not decode", "{headers}");
    }
    let plain = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n".to_vec();
    assert_eq!(answered(plain).await.unwrap().body, b"ab");
}

#[tokio::test]
async fn bodies_have_at_most_10_mib_in_all_framings() {
    let most = vec![b'x'; RESPONSE_BODY_BYTES_MAX];
    assert_eq!(answered(answer("200 OK", &[], &most)).await.unwrap().body.len(), most.len());
    let more = vec![b'x'; RESPONSE_BODY_BYTES_MAX + 1];
    assert_eq!(fails_with(answer("200 OK", &[], &more)).await, FailureCode::TooLarge);
    let unending = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".as_slice(), &more].concat();
    assert_eq!(fails_with(unending).await, FailureCode::TooLarge);
    let claimed = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\nx".to_vec();
    assert_eq!(fails_with(claimed).await, FailureCode::TooLarge);
}

#[tokio::test]
async fn a_decompression_bomb_is_refused() {
    let bomb = gzip(&vec![0; RESPONSE_BODY_BYTES_MAX + 1]);
    assert!(bomb.len() < RESPONSE_BODY_BYTES_MAX / 100);
    assert_eq!(fails_with(answer("200 OK", &[("content-encoding", "gzip")], &bomb)).await, FailureCode::TooLarge);
    let most = gzip(&vec![0; RESPONSE_BODY_BYTES_MAX]);
    assert!(answered(answer("200 OK", &[("content-encoding", "gzip")], &most)).await.is_ok());
}

#[tokio::test]
async fn headers_are_limited() {
    let long = "x".repeat(RESPONSE_HEADER_BYTES_MAX);
    assert_eq!(fails_with(answer("200 OK", &[("x-long", &long)], b"")).await, FailureCode::TooLarge);
    let many = vec![("x-many", "y"); 1000];
    assert_eq!(fails_with(answer("200 OK", &many, b"")).await, FailureCode::Protocol);
}

#[tokio::test]
async fn a_response_that_is_not_http_is_refused() {
    for bytes in [
        b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 10\r\n\r\nshort".to_vec(),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
    ] {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(fails_with(bytes).await, FailureCode::Protocol, "{text}");
    }
}

#[tokio::test]
async fn the_response_of_head_has_no_body() {
    let server = Server::start(|_| answer("200 OK", &[("content-encoding", "br")], b"")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.request.method = "HEAD".into();
    let response = call.send().await.unwrap();
    assert_eq!((response.body.len(), value(&response, "content-encoding")), (0, Some("br")));
}

#[tokio::test]
async fn a_failure_has_the_time_to_wait() {
    let headers = [("content-encoding", "br"), ("retry-after", "7")];
    let failure = answered(answer("429 Too Many Requests", &headers, b"x")).await.unwrap_err();
    assert_eq!(failure.retry_after_ms, Some(7000));
    let failure = answered(answer("200 OK", &headers, b"x")).await.unwrap_err();
    assert_eq!(failure.retry_after_ms, None);
}

#[tokio::test]
async fn requests_arrive_as_they_were_written() {
    let server = Server::start(|_| ok("")).await;
    let mut call = Call::new(&format!("{}/api/v3/", server.url()), "/repos/a%2Fb?x=%2f&y");
    call.credential.audience = vec![server.url().parse().unwrap()];
    call.request.method = "PATCH".into();
    call.request.query = vec![("q".into(), "a b/c".into())];
    call.request.headers = vec![("Accept".into(), "application/json".into()), ("X-Two".into(), "é".into())];
    call.request.body = Some(b"\x00\xffbytes".to_vec());
    call.send().await.unwrap();
    let seen = &server.seen()[0];
    assert_eq!(seen.line, "PATCH /api/v3/repos/a%2Fb?x=%2f&y&q=a%20b%2Fc HTTP/1.1");
    assert_eq!((seen.header("accept"), seen.header("x-two")), (Some("application/json"), Some("é")));
    assert_eq!(seen.body, b"\x00\xffbytes");
}
