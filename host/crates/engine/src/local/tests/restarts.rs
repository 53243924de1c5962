//! Tests of claims: hosts that end, hosts that cannot renew, and wakes that are claimed as they are inserted.

use std::sync::atomic::AtomicBool;

use futures::FutureExt as _;
use monstrum_store::StoreError;

use super::scene::{Scene, done, key, until_cancelled};
use super::*;

const RENEW_MAX_MS: i64 = 20_000;

#[tokio::test]
async fn a_restart_goes_on_with_the_turns_of_the_process_that_ended() {
    let scene = Scene::new(WakeKind::Run, |turn, _| Box::pin(until_cancelled(turn))).await;
    scene.request("a", 0).await;
    scene.search_without_waiting().await;
    scene.wait_until(|scene| scene.ran() == ["a"]).await;
    // The first process is not there any more, but its claim is.
    let next = Scene::beside(&scene, "a", WakeKind::Run, |_, _| done()).await;
    next.search().await;
    assert_eq!(next.ran(), Vec::<String>::new());
    next.local.drop_claims().await.unwrap();
    next.search().await;
    assert_eq!((next.ran(), next.wakes().await.len()), (vec!["a".to_owned()], 0));
}

#[tokio::test]
async fn renewed_claims_keep_other_hosts_away() {
    let scene = Scene::new(WakeKind::Run, |turn, _| Box::pin(until_cancelled(turn))).await;
    let other = Scene::beside(&scene, "b", WakeKind::Run, |_, _| done()).await;
    scene.request("a", 0).await;
    scene.search_without_waiting().await;
    for _ in 0..5 {
        scene.clock.advance_ms(10_000);
        assert!(scene.local.0.renew().await);
        scene.local.0.expire();
        other.search().await;
    }
    assert_eq!((other.ran(), scene.results()), (Vec::new(), Vec::new()));
    // Without renewals, the claim expires.
    scene.clock.advance_ms(30_000);
    other.search().await;
    assert_eq!(other.ran(), ["a"]);
}

#[tokio::test]
async fn a_host_that_cannot_renew_cancels_its_turns() {
    let was_alive = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&was_alive);
    let scene = Scene::new(WakeKind::Run, move |turn, _| {
        let seen = Arc::clone(&seen);
        Box::pin(async move {
            turn.cancelled().await;
            turn.lost().await;
            seen.store(turn.lease().is_alive(), Ordering::SeqCst);
            Err(TurnError::Cancelled)
        })
    })
    .await;
    scene.request("a", 0).await;
    scene.search_without_waiting().await;
    scene.wait_until(|scene| scene.ran() == ["a"]).await;
    scene.local.0.store.close().await;
    scene.clock.advance_ms(RENEW_MAX_MS - 1);
    assert!(!scene.local.0.renew().await, "the database is closed");
    scene.local.0.expire();
    let lease = scene.local.0.state.lock().running[&key(WakeKind::Run, "a")].lease.clone();
    assert!(lease.is_alive() && !lease.is_cancelled());
    scene.clock.advance_ms(1);
    scene.local.0.expire();
    scene.settle().await;
    assert!(!was_alive.load(Ordering::SeqCst));
    assert_eq!(scene.results(), [TurnResult::Cancelled]);
}

/// The host was paused: another host has claimed the wake in the meantime.
#[tokio::test]
async fn a_host_that_lost_its_claim_writes_nothing() {
    let scene = Scene::new(WakeKind::Run, |turn, _| {
        Box::pin(async move {
            turn.cancelled().await;
            Ok(TurnOutcome::Done)
        })
    })
    .await;
    let other = Scene::beside(&scene, "b", WakeKind::Run, |turn, _| Box::pin(until_cancelled(turn))).await;
    scene.request("a", 0).await;
    scene.search_without_waiting().await;
    scene.wait_until(|scene| scene.ran() == ["a"]).await;
    let lease = scene.local.0.state.lock().running[&key(WakeKind::Run, "a")].lease.clone();
    scene.clock.advance_ms(30_000);
    assert!(!lease.is_alive(), "a claim that has expired is not used, even before the host notices it");
    other.search_without_waiting().await;
    other.wait_until(|other| other.ran() == ["a"]).await;
    // The next renewal shows that the claim was replaced.
    assert!(scene.local.0.renew().await);
    scene.settle().await;
    assert_eq!(scene.results(), [TurnResult::Lost]);
    let [wake] = scene.wakes().await.try_into().unwrap();
    assert_eq!(wake.claimed_by.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_turn_that_ignores_its_cancellation_is_dropped() {
    let scene = Scene::new(WakeKind::Run, |_, _| Box::pin(std::future::pending())).await;
    scene.request("a", 0).await;
    scene.search_without_waiting().await;
    scene.wait_until(|scene| scene.ran() == ["a"]).await;
    scene.local.0.state.lock().running[&key(WakeKind::Run, "a")].lease.cancel();
    scene.settle().await;
    assert_eq!(scene.results(), [TurnResult::Cancelled]);
}

#[tokio::test]
async fn a_turn_that_is_asked_to_end_has_not_lost_its_claim() {
    let scene = Scene::new(WakeKind::Run, |turn, _| {
        Box::pin(async move {
            turn.cancelled().await;
            assert!(turn.lost().now_or_never().is_none());
            Err(TurnError::Cancelled)
        })
    })
    .await;
    scene.request("a", 0).await;
    scene.search_without_waiting().await;
    scene.wait_until(|scene| scene.ran() == ["a"]).await;
    scene.local.0.state.lock().running[&key(WakeKind::Run, "a")].lease.cancel();
    scene.settle().await;
    assert_eq!(scene.results(), [TurnResult::Cancelled]);
}

#[tokio::test]
async fn a_wake_that_is_inserted_claimed_runs_on_its_host() {
    let scene = Scene::new(WakeKind::Task, |turn, context| {
        Box::pin(async move {
            context.local.0.store.confirm_claim(turn.claim()).await?;
            Ok(TurnOutcome::Done)
        })
    })
    .await;
    // This host does not drive: another one does.
    scene.local.0.state.lock().drives_until = None;
    let driver = Scene::beside(&scene, "b", WakeKind::Task, |_, _| done()).await;
    let wake = scene.local.reserve(key(WakeKind::Task, "t"), scene.workspace);
    assert_eq!(scene.local.0.store.request_turns(std::slice::from_ref(&wake)).await.unwrap(), [true]);
    driver.search().await;
    assert_eq!(driver.ran(), Vec::<String>::new());
    scene.local.start(&wake);
    scene.settle().await;
    assert_eq!((scene.ran(), scene.results()), (vec!["t".to_owned()], vec![TurnResult::Done]));
    assert_eq!((scene.wakes().await.len(), driver.ran().len()), (0, 0));
    // A second start does nothing, and the key has to be new.
    scene.local.start(&wake);
    scene.settle().await;
    assert_eq!(scene.ran().len(), 1);
}

#[tokio::test]
async fn a_wake_that_is_claimed_before_the_engine_runs_keeps_its_claim() {
    let scene = Scene::new(WakeKind::Task, |turn, _| Box::pin(until_cancelled(turn))).await;
    scene.local.0.state.lock().drives_until = None;
    scene.local.drop_claims().await.unwrap();
    let wake = scene.local.reserve(key(WakeKind::Task, "t"), scene.workspace);
    assert_eq!(scene.local.0.store.request_turns(std::slice::from_ref(&wake)).await.unwrap(), [true]);
    scene.local.start(&wake);
    scene.wait_until(|scene| scene.ran() == ["t"]).await;
    let stop = CancellationToken::new();
    let (engine, stopping) = (scene.local.clone(), stop.clone());
    let running = tokio::spawn(async move { engine.run(stopping).await });
    scene.wait_until(|scene| scene.local.0.state.lock().drives_until.is_some()).await;
    let [row] = scene.wakes().await.try_into().unwrap();
    assert_eq!(row.claimed_by.as_deref(), Some("a"));
    stop.cancel();
    running.await.unwrap();
    assert_eq!(scene.results(), [TurnResult::Cancelled]);
}

#[tokio::test]
async fn a_reserved_wake_that_was_not_started_runs_later() {
    let scene = Scene::new(WakeKind::Task, |_, _| done()).await;
    let wake = scene.local.reserve(key(WakeKind::Task, "t"), scene.workspace);
    let store = &scene.local.0.store;
    assert_eq!(store.request_turns(std::slice::from_ref(&wake)).await.unwrap(), [true]);
    let again = scene.local.reserve(key(WakeKind::Task, "t"), scene.workspace);
    assert_eq!(store.request_turns(std::slice::from_ref(&again)).await.unwrap(), [false]);
    scene.clock.advance_ms(10_000);
    assert!(scene.local.0.renew().await, "a reserved claim is renewed");
    scene.search().await;
    assert_eq!(scene.ran(), Vec::<String>::new());
    scene.clock.advance_ms(30_000);
    assert!(scene.local.0.renew().await);
    scene.search().await;
    assert_eq!(scene.ran(), ["t"]);
    scene.local.start(&wake);
    scene.settle().await;
    assert_eq!(scene.ran().len(), 1, "the reservation has expired");
}

/// A claim whose answer was lost belongs to no turn. The next renewal releases it.
#[tokio::test]
async fn a_claim_without_a_turn_is_released() {
    let scene = Scene::new(WakeKind::Run, |turn, _| Box::pin(until_cancelled(turn))).await;
    scene.request("runs", 0).await;
    scene.search_without_waiting().await;
    scene.request_silently("lost", 0).await;
    let (lost, now) = ((key(WakeKind::Run, "lost"), UtcMillis(0), WakeClaimId::new()), scene.clock.now());
    let [claim] = scene.local.0.store.claim_wakes("a", &[lost], now).await.unwrap().try_into().unwrap();
    assert!(scene.local.0.renew().await);
    let confirmed = scene.local.0.store.confirm_claim(&claim).await;
    assert!(matches!(confirmed, Err(StoreError::LostClaim)), "{confirmed:?}");
    let claimed: Vec<_> = scene.wakes().await.into_iter().filter(|wake| wake.claimed_by.is_some()).collect();
    assert_eq!(claimed.iter().map(|wake| wake.key.id()).collect::<Vec<_>>(), ["runs"]);
}
