//! Redirects: followed only when asked, checked like requests, and never with the credential to another origin.

use std::sync::atomic::Ordering;

use monstrum_types::FailureCode;

use crate::support::{Call, Server, TOKEN, answer, ok};

fn found(location: &str) -> Vec<u8> {
    answer("302 Found", &[("location", location)], b"moved")
}

/// Sends every request on to `location`, but for those to `/end`.
async fn leading_to(location: String) -> Server {
    Server::start(move |seen| if seen.line.contains(" /end") { ok("end") } else { found(&location) }).await
}

#[tokio::test]
async fn a_redirect_is_handed_over_unless_following_is_asked_for() {
    let server = leading_to(format!("/end?token={TOKEN}")).await;
    let response = Call::new(&server.url(), "/x").send().await.unwrap();
    assert_eq!((response.status, response.body.as_slice()), (302, b"moved".as_slice()));
    assert!(response.headers.contains(&("location".into(), "/end?token=[redacted]".into())));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn the_credential_goes_along_on_the_same_origin() {
    let server = leading_to("/end".into()).await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.follow_redirects = 1;
    assert_eq!(call.send().await.unwrap().body, b"end");
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_some()));
    assert_eq!(call.announced.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn another_origin_gets_no_credential_and_neither_does_the_way_back() {
    let home = leading_to("/end".into()).await;
    let back = format!("{}/end", home.url());
    let away = Server::start(move |_| found(&back)).await;
    let away_url = format!("{}/away", away.url());
    let home_again = Server::start(move |_| found(&away_url)).await;
    let mut call = Call::new(&home_again.url(), "/x");
    call.scope.egress = vec![away.url().parse().unwrap(), home.url().parse().unwrap()];
    // All three are in the audience: it is the redirect that takes the credential away.
    call.credential.audience.extend(call.scope.egress.clone());
    call.scope.audience = call.credential.audience.clone();
    call.scope.follow_redirects = 5;
    assert_eq!(call.send().await.unwrap().body, b"end");
    assert!(home_again.seen()[0].header("authorization").is_some());
    assert!(away.seen()[0].header("authorization").is_none());
    assert!(home.seen()[0].header("authorization").is_none());
}

#[tokio::test]
async fn only_so_many_are_followed() {
    let server = Server::start(|_| found("/again")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.follow_redirects = 3;
    assert_eq!(call.send().await.unwrap().status, 302);
    assert_eq!(server.seen().len(), 4);
}

#[tokio::test]
async fn a_hop_is_checked_like_a_request() {
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
async fn an_allowed_hop_to_a_forbidden_address_is_refused() {
    let server = leading_to("http://[::1]/".into()).await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.follow_redirects = 1;
    call.scope.egress = vec!["http://[::1]".parse().unwrap()];
    let failure = call.send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Denied, true));
}

#[tokio::test]
async fn a_post_is_repeated_only_where_the_status_says_so() {
    for (status, line, body) in [
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
