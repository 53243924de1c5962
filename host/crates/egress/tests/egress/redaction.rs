//! Tests that a secret that the upstream echoes does not reach the plugin, regardless of the encoding of the secret and
//! its place in the response.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use monstrum_egress::{RedactorCell, SearchBudget};
use monstrum_types::{FailureCode, Secret};

use crate::support::{Call, Server, TOKEN, answer, basic};

fn each(write: impl Fn(u8) -> String) -> String {
    TOKEN.bytes().map(write).collect()
}

fn echoes() -> Vec<Vec<u8>> {
    let text = |text: String| text.into_bytes();
    vec![
        text(TOKEN.to_owned()),
        text(TOKEN.replace('/', "%2F").replace('+', "%2b").replace('=', "%3D")),
        text(each(|byte| format!("%{byte:02X}"))),
        text(each(|byte| format!("%{byte:02x}"))),
        text(STANDARD.encode(TOKEN)),
        text(STANDARD.encode(format!("x{TOKEN}"))),
        text(STANDARD.encode(format!("xy{TOKEN}z"))),
        text(URL_SAFE_NO_PAD.encode(TOKEN)),
        text(URL_SAFE_NO_PAD.encode(format!("me:{TOKEN}"))),
        text(hex::encode(TOKEN)),
        text(hex::encode_upper(TOKEN)),
        text(TOKEN.replace('/', "\\/")),
        text(each(|byte| format!("\\u{byte:04x}"))),
        text(each(|byte| format!("\\u{byte:04X}"))),
        text(TOKEN.replace('+', "&#43;").replace('/', "&#x2F;").replace('=', "&#x3D;")),
        text(each(|byte| format!("&#{byte};"))),
        text(each(|byte| format!("&#{byte}"))),
        text(each(|byte| format!("&#x{byte:x};"))),
        text(TOKEN.replace('+', "&plus;").replace('/', "&sol;").replace('=', "&equals;").replace('_', "&lowbar;")),
        text(each(|byte| format!("\\x{byte:02x}"))),
        text(each(|byte| format!("\\u{{{byte:x}}}"))),
        TOKEN.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        TOKEN.encode_utf16().flat_map(u16::to_be_bytes).collect(),
    ]
}

/// Asserts by an independent search that no 12 consecutive bytes of the echo are left.
fn assert_clean(bytes: &[u8], echo: &[u8]) {
    let shown = String::from_utf8_lossy(bytes);
    for part in echo.windows(12) {
        assert!(!bytes.windows(12).any(|window| window == part), "{shown} contains a part of {echo:?}");
    }
    assert!(shown.contains("[redacted]"), "{shown}");
}

#[tokio::test]
async fn echoes_in_bodies_are_replaced() {
    for echo in echoes() {
        let body = [b"{\"a\": \"".as_slice(), &echo, b"\"}"].concat();
        let server = Server::start(move |_| answer("200 OK", &[], &body)).await;
        let response = Call::new(&server.url(), "/x").send().await.unwrap();
        assert_clean(&response.body, &echo);
    }
}

#[tokio::test]
async fn echoes_in_large_bodies_are_replaced() {
    let mut body = vec![b'x'; 1_000_000];
    body.extend_from_slice(TOKEN.as_bytes());
    let server = Server::start(move |_| answer("200 OK", &[], &body)).await;
    let response = Call::new(&server.url(), "/x").send().await.unwrap();
    assert!(response.body.ends_with(b"xx[redacted]"));
}

#[tokio::test]
async fn echoes_in_header_values_are_replaced() {
    for echo in echoes() {
        let Ok(value) = String::from_utf8(echo.clone()) else { continue };
        if value.contains('\0') {
            continue;
        }
        let server = Server::start(move |_| answer("200 OK", &[("x-echo", &value)], b"")).await;
        let response = Call::new(&server.url(), "/x").send().await.unwrap();
        let (_, value) = response.headers.iter().find(|(name, _)| name == "x-echo").unwrap();
        assert_clean(value.as_bytes(), &echo);
    }
}

#[tokio::test]
async fn echoes_in_header_names_are_replaced_ignoring_case() {
    const NAME: &str = "Secret-As-A-Header-Name";
    let mut call = Call::new("http://127.0.0.1", "/x");
    call.credential.fields.insert("access_token".into(), Secret::new(NAME.into()));
    let server = Server::start(|_| answer("200 OK", &[(NAME, "x")], b"")).await;
    call.scope.api_base = Some(server.url().parse().unwrap());
    call.credential.audience = vec![server.url().parse().unwrap()];
    call.scope.audience = call.credential.audience.clone();
    let response = call.send().await.unwrap();
    assert!(response.headers.contains(&("[redacted]".into(), "x".into())), "{:?}", response.headers);
}

#[tokio::test]
async fn values_derived_from_a_secret_are_redacted() {
    let server = Server::start(|seen| answer("200 OK", &[], seen.header("authorization").unwrap().as_bytes())).await;
    let mut call = Call::new(&server.url(), "/x");
    call.credential.fields.insert("user".into(), Secret::new("me@example.com".into()));
    call.credential.plain_fields.insert("user".into());
    call.credential.inject = vec![basic("{user}", "{access_token}")];
    assert_eq!(call.send().await.unwrap().body, b"Basic [redacted]");
}

#[tokio::test]
async fn similar_values_are_not_replaced() {
    let body = format!("{}x 8f14e45fceea167a5a36dedd4bea2543 {}", &TOKEN[..10], TOKEN.to_lowercase());
    let sent = body.clone();
    let server = Server::start(move |_| answer("200 OK", &[], sent.as_bytes())).await;
    let response = Call::new(&server.url(), "/x").send().await.unwrap();
    assert_eq!(String::from_utf8(response.body).unwrap(), body);
}

/// Searches are charged to the call's budget and end when the budget is exhausted.
#[tokio::test]
async fn searches_are_charged_to_the_call() {
    let server = Server::start(|_| answer("200 OK", &[], &[b'x'; 100_000])).await;
    let mut call = Call::new(&server.url(), "/x");
    let budget = |fuel| RedactorCell::default().with_budget(SearchBudget::of_fuel(fuel));
    call.redactor = budget(60_000);
    assert_eq!(call.send().await.unwrap().body.len(), 100_000);
    let used = call.redactor.budget().fuel_used();
    assert!((50_000..60_000).contains(&used), "{used}");
    let failure = call.send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Limit, true));
    call.redactor = budget(40_000);
    call.request.method = "POST".into();
    call.request.body = Some(vec![b'y'; 100_000]);
    let failure = call.send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Limit, false));
}
