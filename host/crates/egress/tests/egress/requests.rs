//! Tests that a plugin's request is either rejected or arrives at the resource exactly as the plugin wrote the request.

use std::cell::RefCell;

use monstrum_egress::Egress;
use monstrum_types::{FailureCode, HttpRequest};
use percent_encoding::percent_decode_str;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use serde::Deserialize;
use tokio::runtime::Runtime;

use crate::support::{Call, Seen, Server, corpus, ok};

#[derive(Clone, Debug, Deserialize)]
struct Written {
    method: String,
    url: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

/// Generates URLs from ordinary pieces and from pieces that different parsers interpret differently.
fn urls() -> impl Strategy<Value = String> {
    let pieces = select(vec![
        "/",
        "/",
        "/a",
        "/b.c",
        "..",
        ".",
        "%2e",
        "%2E",
        "%2f",
        "%5c",
        "%00",
        "%0a",
        "%25",
        "%",
        "%zz",
        "\\",
        "?",
        "&",
        "=",
        "#",
        "@",
        ":",
        ":80",
        ";",
        "//",
        "evil.example",
        "127.0.0.1",
        "[::1]",
        "http://",
        "https://",
        " ",
        "\t",
        "\n",
        "\r",
        "é",
        "日",
        "\u{85}",
        "\u{2028}",
        "{x}",
        "|",
        "<",
        "\"",
        "+",
        "~",
        "*",
        "file:",
        "\0",
    ]);
    prop_oneof![
        4 => prop::collection::vec(pieces, 0..8).prop_map(|pieces| format!("/{}", pieces.concat())),
        1 => prop::collection::vec(select(vec!["/a", "?b=c", "%2F", "é", "{}", ";x", "..."]), 0..5)
            .prop_map(|pieces| format!("/x{}", pieces.concat())),
        1 => ".{0,30}",
    ]
}

fn pairs(names: &'static str, values: &'static str) -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec((names, values), 0..3)
}

fn headers() -> impl Strategy<Value = Vec<(String, String)>> {
    let owned = select(vec![
        "Host",
        "host",
        "Content-Length",
        "content_length",
        "Transfer-Encoding",
        "Connection",
        "Keep-Alive",
        "HTTP2-Settings",
        "TE",
        "Expect",
        "Upgrade",
        "X-Forwarded-For",
        "Proxy-Connection",
        "Forwarded",
        "Authorization",
        "Cookie",
        "Range",
    ]);
    let owned = (owned.prop_map(str::to_owned), "[ -~]{0,9}".prop_map(|text| text)).prop_map(|pair| vec![pair]);
    prop_oneof![
        6 => pairs("[xX]-[A-Za-z0-9_-]{1,8}", "[ -~é\t]{0,12}"),
        2 => pairs("[xX]-[a-z]{1,3}", ".{0,12}"),
        1 => pairs(".{0,8}", "[a-z]{0,3}"),
        1 => pairs("[xX]-[a-z]", "[a\r\n\0: ]{0,8}"),
        1 => owned,
    ]
}

fn written() -> impl Strategy<Value = Written> {
    let methods = prop_oneof![
        8 => select(vec!["GET", "POST", "PUT", "PATCH", "DELETE"]).prop_map(str::to_owned),
        1 => select(vec!["get", "CONNECT", "TRACE", "OPTIONS", "", "GET ", "GET /\r\n", "P\u{d6}ST"]).prop_map(str::to_owned),
    ];
    let bodies = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
    (methods, urls(), pairs(".{0,6}", ".{0,9}"), headers(), bodies)
        .prop_map(|(method, url, query, headers, body)| Written { method, url, query, headers, body })
}

/// Computes the expected request target of `written` with all escapes decoded. The computation does not use code of
/// egress.
fn target(written: &Written) -> Vec<u8> {
    let mut text = format!("/v1{}", written.url).into_bytes();
    for (at, (name, value)) in written.query.iter().enumerate() {
        let joint: &[u8] = match text.iter().position(|byte| *byte == b'?') {
            None => b"?",
            Some(_) if at == 0 && (text.ends_with(b"?") || text.ends_with(b"&")) => b"",
            Some(_) => b"&",
        };
        // Query parameters are not encoded yet, so their percent signs are escaped to survive the decoding.
        let plain = |text: &str| text.replace('%', "%25");
        text.extend([joint, plain(name).as_bytes(), b"=", plain(value).as_bytes()].concat());
    }
    percent_encoding::percent_decode(&text).collect()
}

fn arrived(written: &Written, seen: &Seen) {
    let (line, note) = (seen.line.strip_suffix(" HTTP/1.1").unwrap(), format!("{written:?} became {seen:?}"));
    let (method, sent) = line.split_once(' ').unwrap();
    assert_eq!(method, written.method, "{note}");
    assert_eq!(percent_decode_str(sent).collect::<Vec<u8>>(), target(written), "{note}");
    let path = sent.split('?').next().unwrap();
    let decoded = percent_decode_str(path).decode_utf8_lossy().replace('\\', "/");
    assert!(!decoded.split('/').any(|segment| segment == "." || segment == ".."), "{note}");
    assert!(path == "/v1" || path.starts_with("/v1/"), "{note}");
    let own = |name: &str| ["host", "user-agent", "accept-encoding", "accept", "content-length"].contains(&name);
    let others: Vec<(String, &str)> =
        seen.headers.iter().filter(|(name, _)| !own(name)).map(|(name, value)| (name.clone(), value.trim())).collect();
    let wanted: Vec<(String, &str)> =
        written.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.trim())).collect();
    let sorted = |mut all: Vec<(String, &str)>| {
        // A header map keeps only the order of the values of one name, so only that order is compared.
        all.sort_by(|one, other| one.0.cmp(&other.0));
        format!("{all:?}")
    };
    assert_eq!(sorted(others), sorted(wanted), "{note}");
    assert_eq!(seen.body, written.body.clone().unwrap_or_default(), "{note}");
}

struct Bench {
    runtime: Runtime,
    server: Server,
    egress: Egress,
    call: RefCell<Call>,
}

impl Bench {
    fn new() -> Bench {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::start(|_| ok("")));
        let mut call = Call::new(&server.url(), "/");
        call.scope.api_base = Some(format!("{}/v1", server.url()).parse().unwrap());
        call.request.authenticate = false;
        let egress = call.egress();
        Bench { runtime, server, egress, call: RefCell::new(call) }
    }

    /// Checks the request. Returns whether it was sent.
    fn check(&self, written: &Written) -> bool {
        let mut call = self.call.borrow_mut();
        let Written { method, url, query, headers, body } = written.clone();
        call.request = HttpRequest { method, url, query, headers, body, ..HttpRequest::default() };
        let before = self.server.seen().len();
        let result = self.runtime.block_on(call.send_by(&self.egress));
        let seen = self.server.seen();
        match result {
            Ok(_) => {
                assert_eq!(seen.len(), before + 1);
                if written.method != "HEAD" {
                    arrived(written, &seen[before]);
                }
                true
            }
            Err(failure) => {
                assert!(matches!(failure.code, FailureCode::Invalid | FailureCode::Denied), "{written:?}: {failure:?}");
                assert!(!failure.sent && seen.len() == before, "{written:?} was sent: {failure:?}");
                false
            }
        }
    }
}

#[test]
fn the_corpus_of_requests() {
    let bench = Bench::new();
    let all: Vec<Written> = corpus(include_str!("../corpus/requests.jsonl"));
    let sent = all.iter().filter(|written| bench.check(written)).count();
    assert_eq!((all.len(), sent), (27, 7));
}

#[test]
fn a_request_is_refused_or_arrives_as_it_was_written() {
    let bench = Bench::new();
    let sent = RefCell::new(0);
    let mut runner = TestRunner::new(ProptestConfig { source_file: Some(file!()), ..ProptestConfig::default() });
    let cases = runner.config().cases;
    let result = runner.run(&written(), |written| {
        *sent.borrow_mut() += u32::from(bench.check(&written));
        Ok(())
    });
    result.unwrap();
    let sent = sent.into_inner();
    assert!(
        sent * 20 > cases && sent * 20 < cases * 19,
        "{sent} of {cases} requests were sent; at least 5 % must be sent and 5 % rejected"
    );
}
