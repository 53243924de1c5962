//! Tests of chains of encodings in real responses: in chunked or compressed bodies, and in header names and values.

use std::cell::RefCell;
use std::io::Write;
use std::sync::{Arc, Mutex};

use flate2::Compression;
use flate2::write::GzEncoder;
use monstrum_egress::{Redactor, RedactorCell};
use monstrum_types::{HttpResponse, Secret};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

use crate::chains::{Echo, echoes};
use crate::encodings::holds;
use crate::support::{Call, Server};

/// The place of the echo in a response.
#[derive(Clone, Debug)]
enum Place {
    /// A body in chunks of these lengths. If the body is longer, the last length is repeated.
    Body {
        gzip: bool,
        chunks: Vec<usize>,
    },
    HeaderValue,
    HeaderName,
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        2 => (any::<bool>(), prop::collection::vec(1_usize..40, 1..6)).prop_map(|(gzip, chunks)| Place::Body { gzip, chunks }),
        1 => Just(Place::HeaderValue),
        1 => Just(Place::HeaderName),
    ]
}

/// Returns the response, or `None` if this place cannot contain the echo.
fn response(echo: &Echo, encoded: &[u8], place: &Place) -> Option<Vec<u8>> {
    let head = |headers: &[&[u8]]| [&[b"HTTP/1.1 200 OK\r\n".as_slice()], headers, &[b"\r\n"]].concat().concat();
    let in_header = |name: &[u8], value: &[u8]| head(&[b"content-length: 0\r\n", name, b": ", value, b"\r\n"]);
    match place {
        Place::Body { gzip, chunks } => {
            let mut body = echo.text(encoded);
            if *gzip {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(&body).unwrap();
                body = encoder.finish().unwrap();
            }
            let encoding: &[u8] = if *gzip { b"content-encoding: gzip\r\n" } else { b"" };
            Some([head(&[b"transfer-encoding: chunked\r\n", encoding]), chunked(&body, chunks)].concat())
        }
        Place::HeaderValue => {
            let value = [b"<".as_slice(), encoded, b">"].concat();
            http::HeaderValue::from_bytes(&value).is_ok().then(|| in_header(b"x-echo", &value))
        }
        // Header names are in lower case. Base64 in lower case can only be matched as a whole, not decoded.
        Place::HeaderName if echo.has_lines() || echo.is_base64_of_escapes() => None,
        Place::HeaderName => {
            let name = [b"x-".as_slice(), encoded].concat();
            http::HeaderName::from_bytes(&name).is_ok().then(|| in_header(&name, b"1"))
        }
    }
}

fn chunked(body: &[u8], lengths: &[usize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = body;
    let mut lengths = lengths.iter().chain(std::iter::repeat(lengths.last().unwrap()));
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at((*lengths.next().unwrap()).min(rest.len()));
        bytes.extend([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
        rest = after;
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

fn check(echo: &Echo, encoded: &[u8], response: &HttpResponse, place: &Place) {
    match place {
        Place::Body { .. } => {
            assert!(holds(&response.body, b"[redacted]"), "{echo:?}: {response:?}");
            echo.assert_gone(&response.body, encoded);
        }
        Place::HeaderValue => {
            let (_, value) = response.headers.iter().find(|(name, _)| name == "x-echo").unwrap();
            assert!(value.contains("[redacted]"), "{echo:?}: {response:?}");
            echo.assert_gone(value.as_bytes(), encoded);
        }
        Place::HeaderName => {
            let (name, _) = response.headers.iter().find(|(name, _)| name.starts_with("x-")).unwrap();
            assert!(name.contains("[redacted]"), "{echo:?}: {response:?}");
            echo.assert_gone(name.as_bytes(), &encoded.to_ascii_lowercase());
        }
    }
}

#[test]
fn chains_in_responses_are_redacted() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let next: Arc<Mutex<Vec<u8>>> = Arc::default();
    let answers = Arc::clone(&next);
    let server = runtime.block_on(Server::start(move |_| answers.lock().unwrap().clone()));
    let mut call = Call::new(&server.url(), "/x");
    call.request.authenticate = false;
    let egress = call.egress();
    let call = RefCell::new(call);
    let mut runner = TestRunner::new(ProptestConfig { source_file: Some(file!()), ..ProptestConfig::default() });
    let result = runner.run(&(echoes(), places()), |(echo, place)| {
        let Some(encoded) = echo.encoded() else { return Err(TestCaseError::reject("no text")) };
        let Some(bytes) = response(&echo, &encoded, &place) else { return Err(TestCaseError::reject("no header")) };
        *next.lock().unwrap() = bytes;
        let mut call = call.borrow_mut();
        call.redactor = RedactorCell::new(Arc::new(Redactor::new([Secret::new(echo.secret.clone())])));
        let response = runtime.block_on(call.send_by(&egress)).unwrap();
        check(&echo, &encoded, &response, &place);
        Ok(())
    });
    result.unwrap();
}
