//! Tests with components that exceed a limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;

use super::{
    ALLOCATOR, Bench, ECHO, Host, call_once, call_with, guest, guest_doing, guest_with, request, stop, success,
};
use crate::{CallLimits, RESULT_BYTES_MAX, StopReason};

const LIMITS: CallLimits = CallLimits { fuel: 10_000_000, memory_bytes: 1 << 20, timeout: Duration::from_secs(20) };

async fn stop_of(wasm: Vec<u8>) -> StopReason {
    stop(&call_with(wasm, LIMITS, Arc::new(Host::default())).await)
}

#[rstest]
#[case::in_execute(guest_doing("(loop (br 0))"))]
#[case::through_host_calls(guest_doing(
    "(loop (call $log (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)) (br 0))"
))]
#[case::in_the_allocator(guest_with("(loop (br 0)) unreachable", ECHO))]
#[tokio::test]
async fn endless_computing_uses_up_the_fuel(#[case] wasm: Vec<u8>) {
    let end = call_with(wasm, LIMITS, Arc::new(Host::default())).await;
    assert_eq!(stop(&end), StopReason::Fuel);
    assert_eq!(end.fuel_used, LIMITS.fuel);
}

#[rstest]
#[case::in_execute(guest_doing("(loop (br 0))"))]
#[case::in_the_allocator(guest_with("(loop (br 0)) unreachable", ECHO))]
#[case::in_bulk_operations(guest_doing("(loop (memory.fill (i32.const 0) (i32.const 0) (i32.const 131072)) (br 0))"))]
#[tokio::test]
async fn endless_computing_times_out(#[case] wasm: Vec<u8>) {
    let limits = CallLimits { fuel: u64::MAX, timeout: Duration::from_secs(1), ..LIMITS };
    let component = Bench::new().load(wasm).await;
    let started = Instant::now();
    let end = component.execute(request("{}"), limits, Arc::new(Host::default())).await;
    assert_eq!(stop(&end).message(), "the call took longer than 1 s");
    assert!(end.fuel_used > 0);
    // The 10 seconds cover the time limit of the call, one tick, and a margin for a busy machine.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[rstest]
#[case::page_by_page("(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable")]
#[case::all_at_once("(if (i32.eq (memory.grow (i32.const 65000)) (i32.const -1)) (then unreachable))")]
#[case::beyond_the_type("(if (i32.eq (memory.grow (i32.const -1)) (i32.const -1)) (then unreachable))")]
#[tokio::test]
async fn running_out_of_memory_is_not_reported_as_a_crash(#[case] body: &str) {
    assert_eq!(stop_of(guest_doing(body)).await, StopReason::Memory);
}

#[tokio::test]
async fn failed_growth_stays_counted() {
    // The 2 initial pages and 14 further pages add up to 1 MiB, the memory limit. Failed requests for more memory
    // between the successful requests must not lower the total.
    let body = "
        (loop $more
            (drop (memory.grow (i32.const -1)))
            (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
        (i32.store8 (i32.const 80) (i32.add (i32.const 48) (i32.div_u (memory.size) (i32.const 10))))
        (i32.store8 (i32.const 81) (i32.add (i32.const 48) (i32.rem_u (memory.size) (i32.const 10))))
        (return (call $answer (i32.const 0) (i32.const 80) (i32.const 2)))";
    let end = call_with(guest_doing(body), LIMITS, Arc::new(Host::default())).await;
    assert_eq!(success(&end), json!(16));
}

#[tokio::test]
async fn initial_sizes_of_memories_and_tables_count() {
    let echo_and = |more: &str| guest(&format!("{more} {ECHO}"));
    // 1 MiB is 16 pages, of which the guest has 2.
    assert_eq!(stop_of(echo_and("(memory $big 15)")).await, StopReason::Memory);
    assert_eq!(stop_of(echo_and("(memory $one 7) (memory $other 8)")).await, StopReason::Memory);
    assert_eq!(stop_of(echo_and("(memory $one 13) (table 10000 funcref)")).await, StopReason::Memory);
    let growing_a_table = "
        (table $table 0 funcref)
        (func $grow (if (i32.eq (table.grow $table (ref.null func) (i32.const 60000)) (i32.const -1)) (then unreachable)))";
    let growing = format!(
        "{growing_a_table} (memory $one 10) {}",
        ECHO.replacen("(call $answer", "(call $grow) (call $answer", 1)
    );
    assert_eq!(stop_of(guest(&growing)).await, StopReason::Memory);
    let fitting = echo_and("(memory $one 7) (memory $other 4) (table 10000 funcref)");
    let end = call_with(fitting, LIMITS, Arc::new(Host::default())).await;
    assert_eq!(success(&end), json!({}));
}

#[tokio::test]
async fn the_request_counts_towards_the_memory_limit() {
    let component = Bench::new().load(guest_with(ALLOCATOR, ECHO)).await;
    let params = format!("\"{}\"", "a".repeat(1 << 20));
    let end = component.execute(request(&params), LIMITS, Arc::new(Host::default())).await;
    assert_eq!(stop(&end), StopReason::Memory);
}

/// Creates a guest that returns a text of `length` bytes.
fn answering(length: usize) -> Vec<u8> {
    let pages = length.div_ceil(65536) + 1;
    guest_doing(&format!(
        "(drop (memory.grow (i32.const {pages})))
        (memory.fill (i32.const 100000) (i32.const 97) (i32.const {length}))
        (i32.store8 (i32.const 100000) (i32.const 34))
        (i32.store8 (i32.const {end}) (i32.const 34))
        (return (call $answer (i32.const 0) (i32.const 100000) (i32.const {length})))",
        end = 100_000 + length - 1
    ))
}

#[tokio::test]
async fn a_result_has_at_most_1_mib() {
    assert_eq!(success(&call_once(answering(RESULT_BYTES_MAX)).await).as_str().unwrap().len(), RESULT_BYTES_MAX - 2);
    assert_eq!(stop(&call_once(answering(RESULT_BYTES_MAX + 1)).await), StopReason::ResultTooLarge);
    assert_eq!(stop(&call_once(answering(60 << 20)).await), StopReason::ResultTooLarge);
}

#[tokio::test]
async fn a_list_that_refers_to_the_same_bytes_many_times_is_refused() {
    // The request has 100 000 headers, all with the same name of 64 KiB.
    let body = "
        (drop (memory.grow (i32.const 40)))
        (loop $again
            (i32.store (i32.add (i32.const 200000) (i32.mul (local.get $n) (i32.const 16))) (i32.const 0))
            (i32.store (i32.add (i32.const 200004) (i32.mul (local.get $n) (i32.const 16))) (i32.const 65536))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $n) (i32.const 100000))))
        (call $send (i32.const 64) (i32.const 3) (i32.const 67) (i32.const 1) (i32.const 0) (i32.const 0)
            (i32.const 200000) (i32.const 100000) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 128))";
    let host = Arc::new(Host::default());
    let end = call_with(guest_doing(body), CallLimits::default(), host.clone()).await;
    assert_eq!(stop(&end), StopReason::Trap);
    assert!(host.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_body_over_its_limit_reaches_the_host() {
    // The body has 12 MiB, which exceeds the limit of 10 MiB. The request must reach egress, which rejects it with a
    // failure.
    let body = "
        (drop (memory.grow (i32.const 200)))
        (call $send (i32.const 64) (i32.const 3) (i32.const 67) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 12582912) (i32.const 0) (i32.const 0) (i32.const 1)
            (i32.const 0) (i32.const 0) (i32.const 128))";
    let host = Arc::new(Host::default());
    let end = call_with(guest_doing(body), CallLimits::default(), host.clone()).await;
    assert_eq!(success(&end), json!({}));
    assert_eq!(host.requests.lock().unwrap()[0].body.as_ref().unwrap().len(), 12_582_912);
}

#[tokio::test]
async fn calls_wait_for_a_slot_of_the_pool() {
    let component = Bench::new().load(guest(ECHO)).await;
    let calls: Vec<_> = (0..3000)
        .map(|n| {
            let component = component.clone();
            tokio::spawn(async move {
                component.execute(request(&n.to_string()), CallLimits::default(), Arc::new(Host::default())).await
            })
        })
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(success(&call.await.unwrap()), json!(n));
    }
}
