//! Tests that redirects are followed only if enabled, are checked like requests, and never send the credential to
//! another origin.

use std::sync::atomic::Ordering;

use monstrum_types::FailureCode;

use crate::support::{Call, Names, Seen, Server, TOKEN, answer, ok, tls_call, tls_server};

fn found(location: &str) -> Vec<u8> {
    answer("302 Found", &[("location", location)], b"moved")
}

/// Starts a server that redirects all requests to `location`, except requests to `/end`.
async fn leading_to(location: String) -> Server {
    Server::start(move |seen| if seen.line.contains(" /end") { ok("end") } else { found(&location) }).await
}

#[tokio::test]
async fn a_redirect_is_returned_unless_following_is_enabled() {
    let server = leading_to(format!("/end?token={TOKEN}")).await;
    let response = Call::new(&server.url(), "/x").send().await.unwrap();
    assert_eq!((response.status, response.body.as_slice()), (302, b"moved".as_slice()));
    assert!(response.headers.contains(&("location".into(), "/end?token=[redacted]".into())));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn the_credential_is_sent_to_the_same_origin() {
    let server = leading_to("/end".into()).await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.follow_redirects = 1;
    assert_eq!(call.send().await.unwrap().body, b"end");
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_some()));
    assert_eq!(call.announced.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_credential_is_not_sent_to_another_origin_nor_after_a_redirect_back() {
    let home = leading_to("/end".into()).await;
    let back = format!("{}/end", home.url());
    let away = Server::start(move |_| found(&back)).await;
    let away_url = format!("{}/away", away.url());
    let home_again = Server::start(move |_| found(&away_url)).await;
    let mut call = Call::new(&home_again.url(), "/x");
    call.scope.egress = vec![away.url().parse().unwrap(), home.url().parse().unwrap()];
    // All three origins are in the audience, so the redirect itself removes the credential.
    call.credential.audience.extend(call.scope.egress.clone());
    call.scope.audience = call.credential.audience.clone();
    call.scope.follow_redirects = 5;
    assert_eq!(call.send().await.unwrap().body, b"end");
    assert!(home_again.seen()[0].header("authorization").is_some());
    assert!(away.seen()[0].header("authorization").is_none());
    assert!(home.seen()[0].header("authorization").is_none());
}

#[tokio::test]
async fn the_number_of_redirects_is_limited() {
    let server = Server::start(|_| found("/again")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.follow_redirects = 3;
    assert_eq!(call.send().await.unwrap().status, 302);
    assert_eq!(server.seen().len(), 4);
}

#[tokio::test]
async fn a_redirect_is_checked_like_a_request() {
    for (location, code) in [
        ("http://169.254.169.254/latest/meta-data/".to_owned(), FailureCode::Denied),
        ("https://evil.example/".to_owned(), FailureCode::Denied),
        ("http://localhost/".to_owned(), FailureCode::Denied),
        ("//user:pass@127.0.0.1/".to_owned(), FailureCode::Invalid),
        ("ftp://127.0.0.1/".to_owned(), FailureCode::Invalid),
        ("/%2e%2e%2fadmin".to_owned(), FailureCode::Invalid),
        (format!("/end?token={TOKEN}"), FailureCode::Denied),
    ] {
        let server = leading_to(location.clone()).await;
        let mut call = Call::new(&server.url(), "/x");
        call.scope.follow_redirects = 1;
        let failure = call.send().await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (code, true), "{location}: {failure:?}");
        assert!(!failure.message.contains(TOKEN));
        assert_eq!(server.seen().len(), 1, "{location}");
    }
}

#[tokio::test]
async fn a_redirect_to_a_forbidden_address_is_refused() {
    let server = leading_to("http://[::1]/".into()).await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.follow_redirects = 1;
    call.scope.egress = vec!["http://[::1]".parse().unwrap()];
    let failure = call.send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Denied, true));
}

#[tokio::test]
async fn a_location_is_resolved_against_the_url_of_the_request() {
    let server = Server::start(|_| ok("end")).await;
    for (location, line) in [
        ("end", "GET /a/end HTTP/1.1"),
        ("./end", "GET /a/end HTTP/1.1"),
        ("../end", "GET /end HTTP/1.1"),
        ("/end", "GET /end HTTP/1.1"),
        ("?end=%2f", "GET /a/x?end=%2f HTTP/1.1"),
        ("end#fragment", "GET /a/end HTTP/1.1"),
        ("//AUTHORITY/end", "GET /end HTTP/1.1"),
        ("http://AUTHORITY", "GET / HTTP/1.1"),
        ("HTTP://AUTHORITY/end", "GET /end HTTP/1.1"),
    ] {
        let location = location.replace("AUTHORITY", &server.address.to_string());
        let first =
            Server::start(move |seen| if seen.line == "GET /a/x?q HTTP/1.1" { found(&location) } else { ok("end") })
                .await;
        let mut call = Call::new(&first.url(), "/a/x?q");
        call.scope.egress = vec![server.url().parse().unwrap()];
        call.scope.follow_redirects = 1;
        assert_eq!(call.send().await.unwrap().body, b"end");
        let seen = [first.seen(), server.seen()].concat();
        assert!(seen.iter().any(|seen| seen.line == line), "{line}: {seen:?}");
    }
}

#[tokio::test]
async fn an_invalid_location_is_not_followed() {
    for (location, code) in [
        (b"http://".as_slice(), FailureCode::Invalid),
        (b"http://[", FailureCode::Invalid),
        (b"http://127.0.0.1:99999/", FailureCode::Invalid),
        (b"http://2130706433/", FailureCode::Invalid),
        (b"http://127.0.0.1.:80/", FailureCode::Invalid),
        (b"/a b", FailureCode::Invalid),
        (b"/a\tb", FailureCode::Invalid),
        (b"\\\\127.0.0.1/", FailureCode::Invalid),
        (b"/a%0d%0aX-Injected: y", FailureCode::Invalid),
        (b"/a%00", FailureCode::Invalid),
        (b"/\xff\xfe", FailureCode::Protocol),
        (b"/a\r b", FailureCode::Protocol),
        (b"data:text/plain,x", FailureCode::Invalid),
        (b"file:///etc/passwd", FailureCode::Invalid),
    ] {
        let mut bytes = b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: ".to_vec();
        bytes.extend_from_slice(location);
        bytes.extend_from_slice(b"\r\n\r\n");
        let server = Server::start(move |_| bytes.clone()).await;
        let mut call = Call::new(&server.url(), "/x");
        call.scope.follow_redirects = 3;
        let failure = call.send().await.unwrap_err();
        let shown = String::from_utf8_lossy(location);
        assert_eq!((failure.code, failure.sent), (code, true), "{shown}: {failure:?}");
        assert_eq!(server.seen().len(), 1, "{shown}");
    }
}

#[tokio::test]
async fn a_response_without_location_or_with_another_status_is_returned() {
    for bytes in [
        answer("302 Found", &[], b"as it is"),
        answer("300 Multiple Choices", &[("location", "/end")], b"as it is"),
        answer("201 Created", &[("location", "/end")], b"as it is"),
        answer("304 Not Modified", &[("location", "/end")], b""),
    ] {
        let server = Server::start(move |_| bytes.clone()).await;
        let mut call = Call::new(&server.url(), "/x");
        call.scope.follow_redirects = 3;
        call.send().await.unwrap();
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_redirect_to_a_name_is_resolved_and_checked() {
    for answer in [&["10.0.0.1"][..], &["127.0.0.1", "10.0.0.1"], &["::1"], &["::ffff:127.0.0.1"]] {
        let server = leading_to("http://next.example/".into()).await;
        let mut call = Call::new(&server.url(), "/x");
        call.names = Names::new(&[("next.example", &[answer])]);
        call.scope.egress = vec!["http://next.example".parse().unwrap()];
        call.scope.follow_redirects = 1;
        let failure = call.send().await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (FailureCode::Denied, true), "{answer:?}");
        assert_eq!(call.names.asked.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_redirect_to_http_is_refused_unless_allowed() {
    let end =
        Server::start(|seen| if seen.header("authorization").is_some() { ok("with") } else { ok("without") }).await;
    for (allow_http, body) in [(false, None), (true, Some(b"without".to_vec()))] {
        let moved = format!("HTTP/1.1 302 Found\r\nlocation: {}/end\r\ncontent-length: 0\r\n\r\n", end.url());
        let mut call = tls_call(tls_server(moved), "tls.example");
        call.scope.network.allow_http = allow_http;
        call.scope.egress = vec![end.url().parse().unwrap()];
        call.credential.audience.push(end.url().parse().unwrap());
        call.scope.audience = call.credential.audience.clone();
        call.scope.follow_redirects = 1;
        let result = call.send().await;
        assert_eq!(result.as_ref().ok().map(|response| &response.body), body.as_ref(), "{result:?}");
        assert!(result.is_ok() || result.is_err_and(|failure| failure.code == FailureCode::Denied));
    }
    assert_eq!(end.seen().len(), 1);
}

#[tokio::test]
async fn credential_headers_of_a_plugin_do_not_cross_origins() {
    let away = Server::start(|_| ok("end")).await;
    let to = format!("{}/end", away.url());
    let server = Server::start(move |_| found(&to)).await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.egress = vec![away.url().parse().unwrap()];
    call.scope.follow_redirects = 1;
    call.scope.inject.clear();
    call.request.authenticate = false;
    call.request.headers = ["Authorization", "Cookie", "X-Other"].map(|name| (name.into(), "a=b".into())).into();
    call.send().await.unwrap();
    let has = |seen: &Seen| ["authorization", "cookie", "x-other"].map(|name| seen.header(name).is_some());
    assert_eq!(has(&server.seen()[0]), [true, true, true]);
    assert_eq!(has(&away.seen()[0]), [false, false, true]);
}

#[tokio::test]
async fn a_post_is_repeated_only_for_some_statuses() {
    for (status, line, body) in [
        ("301 Moved Permanently", "GET /end HTTP/1.1", ""),
        ("302 Found", "GET /end HTTP/1.1", ""),
        ("303 See Other", "GET /end HTTP/1.1", ""),
        ("307 Temporary Redirect", "POST /end HTTP/1.1", "body"),
        ("308 Permanent Redirect", "POST /end HTTP/1.1", "body"),
    ] {
        let server = Server::start(move |seen| {
            if seen.line.contains(" /end") { ok("end") } else { answer(status, &[("location", "/end")], b"") }
        })
        .await;
        let mut call = Call::new(&server.url(), "/x");
        call.scope.follow_redirects = 1;
        call.request.method = "POST".into();
        call.request.body = Some(b"body".to_vec());
        assert_eq!(call.send().await.unwrap().body, b"end");
        let seen = &server.seen()[1];
        assert_eq!((seen.line.as_str(), seen.body.as_slice()), (line, body.as_bytes()), "{status}");
    }
}
