//! Tests of successful calls, and of the isolation of calls from each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::BoxFuture;
use monstrum_types::{Failure, HttpRequest, HttpResponse};
use serde_json::json;
use tokio::sync::mpsc;

use super::{Bench, ECHO, Host, call_once, call_with, guest, guest_doing, request, stop, success};
use crate::{CallLimits, ExecuteResult, HTTP_CALLS_MAX, HostCalls, LOG_LINES_MAX, LogLevel, LogSource, StopReason};

#[tokio::test]
async fn a_guest_receives_its_request_and_returns_a_result() {
    let component = Bench::new().load(guest(ECHO)).await;
    let call =
        |params: &'static str| component.execute(request(params), CallLimits::default(), Arc::new(Host::default()));
    let end = call(r#"{"text":"grüße"}"#).await;
    assert_eq!(success(&end), json!({"text": "grüße"}));
    assert_eq!((end.log.len(), end.log_dropped), (0, 0));
    assert!(end.fuel_used > 0);
    assert_eq!(call(r#"{"text":"grüße"}"#).await.fuel_used, end.fuel_used);
}

#[tokio::test]
async fn all_three_kinds_of_results_are_returned() {
    let answering = |kind: u32| {
        guest(&format!(
            r#"(func (export "execute") (param i32) (result i32)
                (call $answer (i32.const {kind}) (i32.const 64) (i32.const 3)))"#
        ))
    };
    assert_eq!(call_once(answering(0)).await.outcome, Err(StopReason::BadResult));
    assert_eq!(call_once(answering(1)).await.outcome, Ok(ExecuteResult::Error("GET".to_owned())));
    assert_eq!(call_once(answering(2)).await.outcome, Ok(ExecuteResult::ScopeViolation("GET".to_owned())));
}

#[tokio::test]
async fn every_call_has_a_fresh_instance() {
    let component = Bench::new()
        .load(guest(
            r#"(global $calls (mut i32) (i32.const 0))
            (func (export "execute") (param i32) (result i32)
                (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
                (i32.store8 (i32.const 80) (i32.add (i32.const 48) (i32.add (global.get $calls) (i32.load8_u (i32.const 81)))))
                (i32.store8 (i32.const 81) (i32.const 5))
                (call $answer (i32.const 0) (i32.const 80) (i32.const 1)))"#,
        ))
        .await;
    for _ in 0..20 {
        let end = component.execute(request("{}"), CallLimits::default(), Arc::new(Host::default())).await;
        assert_eq!(success(&end), json!(1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_looping_call_does_not_block_others() {
    let bench = Bench::new();
    let looping = bench.load(guest_doing("(loop (br 0))")).await;
    let echo = bench.load(guest(ECHO)).await;
    let endless = CallLimits { fuel: u64::MAX, ..CallLimits::default() };
    let host: Arc<dyn HostCalls> = Arc::new(Host::default());
    let stuck: Vec<_> = (0..4)
        .map(|_| {
            let (looping, host) = (looping.clone(), Arc::clone(&host));
            tokio::spawn(async move { looping.execute(request("{}"), endless, host).await })
        })
        .collect();
    for n in 0..50 {
        let end = echo.execute(request(&n.to_string()), CallLimits::default(), Arc::clone(&host)).await;
        assert_eq!(success(&end), json!(n));
    }
    for task in &stuck {
        assert!(!task.is_finished());
        task.abort();
    }
}

#[tokio::test]
async fn http_requests_reach_the_host_unchanged_and_are_counted() {
    let host = Arc::new(Host::default());
    // The guest sends 60 requests and returns how many failed.
    let wasm = guest(
        r#"(func (export "execute") (param i32) (result i32) (local $n i32) (local $failed i32)
            (loop $again
                (call $get)
                (local.set $failed (i32.add (local.get $failed) (i32.load8_u (i32.const 128))))
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (br_if $again (i32.lt_u (local.get $n) (i32.const 60))))
            (i32.store8 (i32.const 80) (i32.const 49))
            (i32.store8 (i32.const 81) (i32.add (i32.const 38) (local.get $failed)))
            (call $answer (i32.const 0) (i32.const 80) (i32.const 2)))"#,
    );
    let end = call_with(wasm, CallLimits::default(), host.clone()).await;
    assert_eq!(success(&end), json!(10));
    let requests = host.requests.lock().unwrap();
    assert_eq!(requests.len(), HTTP_CALLS_MAX as usize);
    let expected =
        HttpRequest { method: "GET".to_owned(), url: "/".to_owned(), authenticate: true, ..HttpRequest::default() };
    assert_eq!(requests[0], expected);
}

#[tokio::test]
async fn reading_the_state_of_the_credential_is_not_limited() {
    let host = Arc::new(Host::default());
    let wasm = guest_doing(
        "(loop $again (call $status (i32.const 128)) (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $n) (i32.const 1500))))",
    );
    assert_eq!(success(&call_with(wasm, CallLimits::default(), host.clone()).await), json!({}));
    assert_eq!(host.statuses.load(Ordering::Relaxed), 1500);
}

#[tokio::test]
async fn log_lines_are_kept_up_to_the_limit() {
    let wasm = guest_doing(
        "(loop $again
            (call $log (i32.const 2) (i32.const 64) (i32.const 4) (i32.const 72) (i32.const 2))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $n) (i32.const 1200))))",
    );
    let end = call_once(wasm).await;
    assert_eq!((end.log.len(), end.log_dropped), (LOG_LINES_MAX, 200));
    let line = &end.log[0];
    assert_eq!((line.source, line.level, line.message.as_str()), (LogSource::Plugin, LogLevel::Warn, "GET/"));
    assert_eq!(line.fields.as_deref(), Some("{}"));
    assert!(!line.cut);
}

#[tokio::test]
async fn a_trap_ends_only_its_own_call_and_is_logged() {
    let component = Bench::new()
        .load(guest(
            r#"(func (export "execute") (param $request i32) (result i32)
                (if (i32.eq (i32.load offset=44 (local.get $request)) (i32.const 4)) (then unreachable))
                (call $answer (i32.const 0) (i32.const 72) (i32.const 2)))"#,
        ))
        .await;
    let call =
        |params: &'static str| component.execute(request(params), CallLimits::default(), Arc::new(Host::default()));
    let crashed = call("null").await;
    assert_eq!(stop(&crashed), StopReason::Trap);
    let line = crashed.log.last().unwrap();
    assert_eq!((line.source, line.level), (LogSource::Host, LogLevel::Error));
    assert!(line.message.contains("unreachable"), "{}", line.message);
    assert_eq!(success(&call("{}").await), json!({}));
}

#[tokio::test]
async fn exit_and_endless_recursion_are_crashes() {
    assert_eq!(stop(&call_once(guest_doing("(call $exit (i32.const 0))")).await), StopReason::Trap);
    assert_eq!(stop(&call_once(guest_doing("(call $exit (i32.const 1))")).await), StopReason::Trap);
    let recursing = format!(
        "{} {}",
        "(func $deeper (call $deeper) (call $deeper))",
        ECHO.replacen("(call $answer", "(call $deeper) (call $answer", 1)
    );
    assert_eq!(stop(&call_once(guest(&recursing)).await), StopReason::Trap);
}

#[tokio::test]
async fn a_result_outside_of_memory_is_a_crash() {
    let wasm = guest(
        r#"(func (export "execute") (param i32) (result i32)
            (call $answer (i32.const 0) (i32.const -65536) (i32.const 1024)))"#,
    );
    assert_eq!(stop(&call_once(wasm).await), StopReason::Trap);
}

/// A host that panics on HTTP requests.
struct Panicking;

impl HostCalls for Panicking {
    fn http_send(&self, _: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        Box::pin(async { panic!("deliberate panic of a test") })
    }

    fn credential_status(&self) -> String {
        "none".to_owned()
    }
}

#[tokio::test]
async fn a_panic_of_the_host_ends_only_its_own_call() {
    let component = Bench::new()
        .load(guest_doing(
            "(call $log (i32.const 0) (i32.const 64) (i32.const 4) (i32.const 0) (i32.const 0)) (call $get)",
        ))
        .await;
    let end = component.execute(request("{}"), CallLimits::default(), Arc::new(Panicking)).await;
    assert_eq!((stop(&end), end.fuel_used, end.log.len()), (StopReason::Internal, 0, 1));
    let end = component.execute(request("{}"), CallLimits::default(), Arc::new(Host::default())).await;
    assert_eq!(success(&end), json!({}));
}

/// A host that never responds to HTTP requests. The host reports when a request starts and when the request is dropped.
struct Silent(mpsc::UnboundedSender<&'static str>);

struct GivenUp<'host>(&'host Silent);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.0.send("given up").unwrap();
    }
}

impl HostCalls for Silent {
    fn http_send(&self, _: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        Box::pin(async {
            let _given_up = GivenUp(self);
            self.0.send("begun").unwrap();
            std::future::pending().await
        })
    }

    fn credential_status(&self) -> String {
        "none".to_owned()
    }
}

#[tokio::test]
async fn dropping_a_call_drops_its_requests() {
    let (events, mut heard) = mpsc::unbounded_channel();
    let component = Bench::new().load(guest_doing("(call $get)")).await;
    let call = component.execute(request("{}"), CallLimits::default(), Arc::new(Silent(events)));
    tokio::select! {
        end = call => panic!("{end:?}"),
        event = heard.recv() => assert_eq!(event, Some("begun")),
    }
    assert_eq!(heard.recv().await, Some("given up"));
    assert_eq!(heard.recv().await, None);
}

#[tokio::test]
async fn waiting_times_out_and_uses_no_fuel() {
    let (events, mut heard) = mpsc::unbounded_channel();
    let component = Bench::new().load(guest_doing("(call $get)")).await;
    let limits = CallLimits { timeout: std::time::Duration::from_secs(1), ..CallLimits::default() };
    let end = component.execute(request("{}"), limits, Arc::new(Silent(events))).await;
    assert_eq!(stop(&end).message(), "the call took longer than 1 s");
    assert!(end.fuel_used < 1000, "{}", end.fuel_used);
    assert_eq!(heard.recv().await, Some("begun"));
    assert_eq!(heard.recv().await, Some("given up"));
}
