//! Tests of the order of the steps, and of the time at which the call is recorded.

use std::sync::atomic::Ordering;

use monstrum_egress::Step::{Build, CheckEgress, Redirect, Refresh, Resolve, Respond, Scan, Send};
use monstrum_types::{Failure, FailureCode};

use crate::support::{Call, Server, TOKEN, answer, ok};

#[tokio::test]
async fn a_request_takes_the_steps_in_order() {
    let server = Server::start(|_| ok("hello")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.send().await.unwrap();
    assert_eq!(call.steps(), [Build, CheckEgress, Scan, Resolve, Send, Respond]);
}

#[tokio::test]
async fn a_redirect_repeats_the_first_five_steps_and_a_rejection_refreshes() {
    let server = Server::start(|seen| match seen.line.as_str() {
        "GET /x HTTP/1.1" => answer("302 Found", &[("location", "/y")], b""),
        _ if seen.header("authorization") == Some("Bearer fresh-token") => ok("hello"),
        _ => answer("401 Unauthorized", &[], b""),
    })
    .await;
    let mut call = Call::new(&server.url(), "/x");
    call.scope.follow_redirects = 1;
    call.refresh_into("fresh-token");
    assert_eq!(call.send().await.unwrap().status, 200);
    let five = [Build, CheckEgress, Scan, Resolve, Send];
    assert_eq!(call.steps(), [&five[..], &[Redirect], &five, &[Refresh, Respond]].concat());
    assert_eq!(call.announced.load(Ordering::SeqCst), 1);
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn each_refusal_ends_at_its_step_and_nothing_is_sent() {
    let server = Server::start(|_| ok("")).await;
    let base = server.url();

    let mut call = Call::new(&base, "/a/../b");
    call.assert_refused(FailureCode::Invalid).await;
    assert_eq!(call.steps(), [Build]);

    let mut call = Call::new(&base, "https://elsewhere.example/");
    call.assert_refused(FailureCode::Denied).await;
    assert_eq!(call.steps(), [Build, CheckEgress]);

    let mut call = Call::new(&base, &format!("/x?leak={}", TOKEN.replace('+', "%2B")));
    let failure = call.assert_refused(FailureCode::Denied).await;
    assert_eq!(failure.message, "the request contains a secret of this resource");
    assert_eq!(call.steps(), [Build, CheckEgress, Scan]);

    let mut call = Call::new(&base, "/x");
    call.scope.network.allow_addresses.clear();
    call.assert_refused(FailureCode::Denied).await;
    assert_eq!(call.steps(), [Build, CheckEgress, Scan, Resolve]);

    let mut call = Call::new(&base, "/x");
    call.source.current = Err(monstrum_egress::CredentialState::None);
    call.assert_refused(FailureCode::Unauthenticated).await;
    assert_eq!(call.steps(), [Build, CheckEgress, Scan, Resolve, Send]);

    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn nothing_is_sent_before_the_call_is_recorded() {
    let server = Server::start(|_| ok("")).await;
    let mut call = Call::new(&server.url(), "/x");
    call.announcement = Err(Failure::unsent(FailureCode::Unavailable, format!("no audit for {TOKEN}")));
    let failure = call.send().await.unwrap_err();
    assert_eq!(failure, Failure::unsent(FailureCode::Unavailable, "no audit for [redacted]"));
    assert_eq!(call.announced.load(Ordering::SeqCst), 1);
    assert!(server.seen().is_empty());
}
