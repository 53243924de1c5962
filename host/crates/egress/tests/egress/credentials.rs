//! Tests of the audience and the refresh of credentials.

use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use monstrum_egress::{CredentialState, RedactorCell};
use monstrum_manifest::{BodyRule, InjectRule, PathRule};
use monstrum_types::{Failure, FailureCode, Secret};

use crate::support::{Call, NOW, Server, TOKEN, answer, basic, header, ok, query};

#[tokio::test]
async fn the_credential_is_added_to_authenticated_requests_only() {
    let server = Server::start(|_| ok("")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.send().await.unwrap();
    call.request.authenticate = false;
    call.send().await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0].header("authorization"), Some(format!("Bearer {TOKEN}").as_str()));
    assert_eq!(seen[1].header("authorization"), None);
    assert_eq!(seen[0].header("accept-encoding"), Some("gzip"));
    assert!(seen[0].header("user-agent").unwrap().starts_with("monstrum/"));
}

#[tokio::test]
async fn queries_and_basic_are_added() {
    let server = Server::start(|_| ok("")).await;
    let mut call = Call::new(&server.url(), "/x?a=b");
    call.credential.fields.insert("user".into(), Secret::new("me@example.com".into()));
    call.credential.inject = vec![query("key", "{access_token}"), basic("{user}", "{access_token}")];
    call.send().await.unwrap();
    let seen = &server.seen()[0];
    assert_eq!(seen.line, "GET /x?a=b&key=ghp_S3cr3t%2FT0ken%2Bvalue%3D HTTP/1.1");
    assert_eq!(seen.header("authorization"), Some("Basic bWVAZXhhbXBsZS5jb206Z2hwX1MzY3IzdC9UMGtlbit2YWx1ZT0="));
}

#[tokio::test]
async fn all_rules_are_applied_also_after_a_refresh() {
    let server = Server::start(|seen| match seen.header("x-key") {
        Some("key fresh-token") => ok(""),
        _ => answer("401 Unauthorized", &[], b""),
    })
    .await;
    let mut call = Call::new(&format!("{}/bot{{access_token}}", server.url()), "/send?a=b");
    call.credential.inject = vec![
        header("X-Key", "key {access_token}"),
        header("User-Agent", "agent {access_token}"),
        query("key", "{access_token}"),
        basic("robot", "{access_token}"),
        InjectRule::Body(BodyRule { body: "/auth/key".into(), value: "{access_token}".into() }),
        InjectRule::Path(PathRule { path: "{access_token}".into(), value: "{access_token}".into() }),
    ];
    call.scope.inject = call.credential.inject.clone();
    call.scope.audience = vec![server.url().parse().unwrap()];
    call.credential.audience = call.scope.audience.clone();
    call.request.method = "POST".into();
    call.request.body = Some(br#"{"auth":{"user":"me"},"n":1}"#.to_vec());
    call.refresh_into("fresh-token");
    assert_eq!(call.send().await.unwrap().status, 200);
    let seen = server.seen();
    let escaped = TOKEN.replace('/', "%2F").replace('+', "%2B").replace('=', "%3D");
    for (seen, token, escaped) in [(&seen[0], TOKEN, escaped.as_str()), (&seen[1], "fresh-token", "fresh-token")] {
        assert_eq!(seen.line, format!("POST /bot{escaped}/send?a=b&key={escaped} HTTP/1.1"));
        assert_eq!(seen.header("x-key"), Some(format!("key {token}").as_str()));
        assert_eq!(seen.header("user-agent"), Some(format!("agent {token}").as_str()));
        let pair = STANDARD.encode(format!("robot:{token}"));
        assert_eq!(seen.header("authorization"), Some(format!("Basic {pair}").as_str()));
        assert_eq!(seen.body, format!(r#"{{"auth":{{"user":"me","key":"{token}"}},"n":1}}"#).as_bytes());
    }
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn an_origin_outside_the_audience_gets_no_credential() {
    let server = Server::start(|_| ok("")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.credential.audience = vec!["https://api.example".parse().unwrap()];
    call.send().await.unwrap();
    call.credential.audience.clear();
    call.source.current = Err(CredentialState::Ready);
    call.send().await.unwrap();
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_none()));
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn outside_the_audience_the_state_of_the_credential_is_ignored() {
    let server = Server::start(|_| ok("")).await;
    let states = [
        CredentialState::None,
        CredentialState::Expired,
        CredentialState::NeedsAuthorization,
        CredentialState::Unavailable,
        CredentialState::NotNeeded,
    ];
    for state in states {
        let mut call = Call::new(&server.url(), "/x");
        call.scope.audience = vec!["https://api.example".parse().unwrap()];
        call.source.current = Err(state);
        // In a request without a credential, the plugin may set these headers.
        call.request.headers = vec![("Cookie".into(), "a=b".into()), ("Range".into(), "bytes=0-9".into())];
        call.send().await.unwrap();
        // In a request to an origin in the audience, the plugin may not set these headers, regardless of the state of
        // the credential.
        call.scope.audience = vec![server.url().parse().unwrap()];
        assert_eq!(call.send().await.unwrap_err().code, FailureCode::Denied, "{state:?}");
    }
    // If the request goes to an origin outside the audience, an expired credential neither fails the request nor causes
    // a refresh.
    for refreshable in [true, false] {
        let mut call = Call::new(&server.url(), "/x");
        call.credential.audience = vec!["https://api.example".parse().unwrap()];
        call.credential.refreshable = refreshable;
        call.credential.expires_at = Some(NOW);
        call.send().await.unwrap();
        assert_eq!(call.source.refreshes.load(Ordering::SeqCst), 0);
    }
    assert_eq!(server.seen().len(), states.len() + 2);
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_none()));
}

#[tokio::test]
async fn a_plugin_cannot_set_the_credential_itself() {
    let server = Server::start(|_| ok("")).await;
    for authenticate in [true, false] {
        let mut call = Call::new(&server.url(), "/x");
        call.request.authenticate = authenticate;
        call.request.headers = vec![("authorization".into(), "Bearer of-my-own".into())];
        call.assert_refused(FailureCode::Denied).await;
    }
    // The header of a stored rule is reserved even if the manifest no longer contains the rule.
    let mut call = Call::new(&server.url(), "/x");
    call.scope.inject.clear();
    call.credential.inject = vec![header("X-Key", "{access_token}")];
    call.request.headers = vec![("x-key".into(), "of-my-own".into())];
    call.assert_refused(FailureCode::Denied).await;
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn each_state_without_a_credential_has_its_failure() {
    let server = Server::start(|_| ok("")).await;
    for (state, code, message) in [
        (CredentialState::None, FailureCode::Unauthenticated, "no credential is stored for this resource"),
        (CredentialState::Expired, FailureCode::Unauthenticated, "the credential of this resource has expired"),
        (
            CredentialState::NeedsAuthorization,
            FailureCode::Unauthenticated,
            "an admin must confirm or reauthorize the credential of this resource",
        ),
        (
            CredentialState::Unavailable,
            FailureCode::Unavailable,
            "the credential is temporarily unavailable; try again later",
        ),
    ] {
        let mut call = Call::new(&server.url(), "/x");
        call.source.current = Err(state);
        assert_eq!(call.assert_refused(code).await.message, message);
        // A request that needs no credential is sent.
        call.request.authenticate = false;
        assert!(call.send().await.is_ok());
    }
    let mut call = Call::new(&server.url(), "/x");
    call.source.current = Err(CredentialState::NotNeeded);
    assert!(call.send().await.is_ok());
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_none()));
}

/// Starts a server that rejects all tokens except the fresh one.
async fn picky() -> Server {
    Server::start(|seen| match seen.header("authorization") {
        Some("Bearer fresh-token") => answer("200 OK", &[], &seen.body),
        _ => answer("401 Unauthorized", &[], b"who are you"),
    })
    .await
}

#[tokio::test]
async fn a_rejected_token_is_refreshed_and_the_request_repeated_once() {
    let server = picky().await;
    let mut call = Call::new(&server.url(), "/x");
    call.request.method = "POST".into();
    call.request.body = Some(b"body and soul".to_vec());
    call.refresh_into("fresh-token");
    let response = call.send().await.unwrap();
    assert_eq!((response.status, response.body), (200, b"body and soul".to_vec()));
    assert_eq!((server.seen().len(), call.source.refreshes.load(Ordering::SeqCst)), (2, 1));
    // From now on, both tokens are redacted.
    let text = format!("{TOKEN} fresh-token");
    assert_eq!(call.redactor.current().redact_text(text), "[redacted] [redacted]");
}

#[tokio::test]
async fn a_second_rejection_is_the_response() {
    let server = picky().await;
    let mut call = Call::new(&server.url(), "/x");
    call.refresh_into("also-refused");
    assert_eq!(call.send().await.unwrap().status, 401);
    assert_eq!((server.seen().len(), call.source.refreshes.load(Ordering::SeqCst)), (2, 1));
}

#[tokio::test]
async fn without_a_refresh_the_rejection_is_the_response() {
    let server = picky().await;
    let mut call = Call::new(&server.url(), "/x");
    assert_eq!(call.send().await.unwrap().body, b"who are you");
    // A rejected request without a credential does not cause a refresh.
    call.refresh_into("fresh-token");
    call.request.authenticate = false;
    assert_eq!(call.send().await.unwrap().status, 401);
    assert_eq!((server.seen().len(), call.source.refreshes.load(Ordering::SeqCst)), (2, 0));
}

#[tokio::test]
async fn a_failed_refresh_fails_the_request() {
    let server = picky().await;
    let mut call = Call::new(&server.url(), "/x");
    call.credential.refreshable = true;
    call.source.refreshed = Err(CredentialState::NeedsAuthorization);
    let failure = call.send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Unauthenticated, true));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_token_about_to_expire_is_refreshed_first() {
    for (left_ms, refreshes) in [(60_000, 0), (59_999, 1), (0, 1), (-1, 1)] {
        let server = Server::start(|_| ok("")).await;
        let mut call = Call::new(&server.url(), "/x");
        call.refresh_into("fresh-token");
        call.credential.expires_at = Some(NOW.plus_ms(left_ms));
        call.send().await.unwrap();
        assert_eq!(call.source.refreshes.load(Ordering::SeqCst), refreshes, "{left_ms}");
        let token = if refreshes == 1 { "fresh-token" } else { TOKEN };
        assert_eq!(server.seen()[0].header("authorization"), Some(format!("Bearer {token}").as_str()), "{left_ms}");
    }
}

/// A refresh sends a request, so the call must be recorded before the refresh.
#[tokio::test]
async fn a_token_is_not_refreshed_before_the_call_is_recorded() {
    let server = Server::start(|_| ok("")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.refresh_into("fresh-token");
    call.credential.expires_at = Some(NOW);
    call.announcement = Err(Failure::unsent(FailureCode::Unavailable, "the audit cannot be written"));
    let failure = call.send().await.unwrap_err();
    assert_eq!((failure.code, failure.sent), (FailureCode::Unavailable, false));
    assert_eq!(call.source.refreshes.load(Ordering::SeqCst), 0);
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_valid_token_is_used_if_its_refresh_is_unavailable() {
    for (left_ms, state, is_sent) in [
        (1, CredentialState::Unavailable, true),
        (0, CredentialState::Unavailable, false),
        (1, CredentialState::NeedsAuthorization, false),
    ] {
        let server = Server::start(|_| ok("")).await;
        let mut call = Call::new(&server.url(), "/x");
        call.credential.refreshable = true;
        call.credential.expires_at = Some(NOW.plus_ms(left_ms));
        call.source.refreshed = Err(state);
        assert_eq!(call.send().await.is_ok(), is_sent, "{left_ms} {state:?}");
        assert_eq!(server.seen().len(), usize::from(is_sent), "{left_ms} {state:?}");
    }
}

#[tokio::test]
async fn an_expired_token_that_cannot_be_refreshed_is_not_sent() {
    let server = Server::start(|_| ok("")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.credential.expires_at = Some(NOW);
    call.assert_refused(FailureCode::Unauthenticated).await;
    assert!(server.seen().is_empty());
    // The state of a token is ignored if the request would not contain the token.
    call.credential.audience.clear();
    call.source.current = Err(CredentialState::Ready);
    assert!(call.send().await.is_ok());
    assert_eq!(server.seen()[0].header("authorization"), None);
}

#[tokio::test]
async fn a_secret_that_is_learned_during_the_call_is_searched_too() {
    let server = Server::start(|_| ok("")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.redactor = RedactorCell::default();
    call.request.body = Some(TOKEN.as_bytes().to_vec());
    call.assert_refused(FailureCode::Denied).await;
    assert!(server.seen().is_empty());
}
