//! Tests of the driver: a real database in a folder of the test, and a clock that only the test advances.

mod restarts;
mod row_key;
mod scene;

use std::panic::resume_unwind;

use monstrum_store::AfterTurn;

use self::scene::{START, Scene, again, done, key, until_cancelled};
use super::*;
use crate::handler::{TurnError, TurnOutcome};
use crate::limits::{FIRST_DELAYS, FURTHER_DELAY, TURNS_MAX, TURNS_NOT_STEPS, WORKSPACE_TURNS_MAX};

#[tokio::test]
async fn a_turn_runs_at_its_time() {
    let scene = Scene::new(WakeKind::Run, |_, _| done()).await;
    scene.request("a", 10_000).await;
    scene.advance(9_999).await;
    assert_eq!(scene.ran(), Vec::<String>::new());
    scene.advance(1).await;
    assert_eq!(scene.ran(), ["a"]);
    assert_eq!((scene.wakes().await.len(), scene.results()), (0, vec![TurnResult::Done]));
    scene.advance(60_000).await;
    assert_eq!(scene.ran(), ["a"]);
}

#[tokio::test]
async fn wakes_without_a_signal_are_found() {
    let scene = Scene::new(WakeKind::Run, |_, _| done()).await;
    scene.request_silently("a", 0).await;
    scene.request_silently("later", 120_000).await;
    scene.search().await;
    assert_eq!(scene.ran(), ["a"]);
    // A wake that is due later than the next minute is not in memory; a later search finds it.
    assert_eq!(scene.local.0.state.lock().schedule.next_due(), None);
    scene.clock.advance_ms(60_000);
    scene.search().await;
    assert!(scene.local.0.state.lock().schedule.next_due().is_some());
    scene.advance(60_000).await;
    assert_eq!(scene.ran(), ["a", "later"]);
}

#[tokio::test]
async fn a_resting_key_has_its_next_turn_at_the_time_it_named() {
    let scene = Scene::new(WakeKind::Run, |_, context| {
        Box::pin(async move {
            Ok(if context.number == 1 { TurnOutcome::Rest(START.plus_ms(5_000)) } else { TurnOutcome::Done })
        })
    })
    .await;
    scene.request("a", 0).await;
    scene.advance(0).await;
    let [wake] = scene.wakes().await.try_into().unwrap();
    assert_eq!((wake.due_at, wake.claimed_by, scene.ran().len()), (START.plus_ms(5_000), None, 1));
    scene.advance(4_999).await;
    assert_eq!(scene.ran().len(), 1);
    // A request brings the turn forward.
    scene.request("a", 0).await;
    scene.advance(0).await;
    assert_eq!((scene.ran().len(), scene.wakes().await.len()), (2, 0));
}

#[tokio::test]
async fn a_request_during_a_turn_is_not_lost() {
    let scene = Scene::new(WakeKind::Run, |turn, context| {
        Box::pin(async move {
            if context.number == 1 {
                let wake = again(turn);
                context.local.0.store.request_turns(&[wake]).await?;
            }
            Ok(TurnOutcome::Done)
        })
    })
    .await;
    scene.request("a", 0).await;
    scene.advance(0).await;
    assert_eq!((scene.ran(), scene.wakes().await.len()), (vec!["a".to_owned(), "a".to_owned()], 0));
}

/// The second wake is inserted after the first one was deleted, but before the engine knows that the turn has ended.
#[tokio::test]
async fn a_signal_at_the_end_of_a_turn_is_not_lost() {
    let scene = Scene::new(WakeKind::Run, |turn, context| {
        Box::pin(async move {
            let store = &context.local.0.store;
            let after = store.end_turn(turn.claim(), None, &[], &[]).await?;
            assert_eq!(after, AfterTurn::Asleep);
            if context.number == 1 {
                let wake = again(turn);
                store.request_turns(std::slice::from_ref(&wake)).await?;
                context.local.signal(&[wake]);
                turn.signalled().await;
            }
            Ok(TurnOutcome::Ended(after))
        })
    })
    .await;
    scene.request("a", 0).await;
    scene.advance(0).await;
    assert_eq!((scene.ran().len(), scene.wakes().await.len()), (2, 0));
}

#[tokio::test]
async fn a_thousand_turns_that_panic_stop_no_other_key() {
    let scene = Scene::new(WakeKind::Run, |turn, _| {
        Box::pin(async move {
            // Without the output of the panic hook.
            if turn.key().id().starts_with("bad") { resume_unwind(Box::new("bad")) } else { Ok(TurnOutcome::Done) }
        })
    })
    .await;
    for number in 0..1000 {
        scene.request_silently(&format!("bad{number}"), -1).await;
    }
    scene.request_silently("good", 0).await;
    scene.search().await;
    assert_eq!(scene.ran().iter().filter(|id| *id == "good").count(), 1);
    let results = scene.results();
    let panicked = results.iter().filter(|result| **result == TurnResult::Panicked).count();
    assert_eq!((results.len(), panicked), (1001, 1000));
    let wakes = scene.failing().await;
    assert_eq!(wakes.len(), 1000);
    let second = UtcMillis(scene.clock.now().0 + 1_000);
    assert!(wakes.iter().all(|wake| wake.failures == 1 && wake.due_at == second && wake.claimed_by.is_none()));
    assert_eq!(wakes[0].last_error.as_deref(), Some("the turn panicked"));
    // They are repeated, and stop no other key again.
    scene.request("good", 0).await;
    scene.advance(1_000).await;
    assert_eq!(scene.ran().iter().filter(|id| *id == "good").count(), 2);
    assert!(scene.failing().await.iter().all(|wake| wake.failures == 2));
}

#[tokio::test]
async fn a_turn_that_fails_is_repeated_later_each_time() {
    let scene =
        Scene::new(WakeKind::Run, |_, _| Box::pin(async { Err(TurnError::Failed("no luck".to_owned())) })).await;
    scene.request("a", 0).await;
    scene.advance(0).await;
    for (number, delay) in FIRST_DELAYS.iter().enumerate() {
        let [wake] = scene.failing().await.try_into().unwrap();
        let delay_ms = i64::try_from(delay.as_millis()).unwrap();
        assert_eq!(wake.failures, i64::try_from(number + 1).unwrap());
        assert_eq!(wake.due_at.since_ms(scene.clock.now()), delay_ms);
        assert_eq!(wake.last_error.as_deref(), Some("no luck"));
        scene.clock.advance_ms(delay_ms);
        scene.search().await;
    }
    let [wake] = scene.failing().await.try_into().unwrap();
    let least = i64::try_from(FURTHER_DELAY.as_millis()).unwrap();
    assert!((least..=least * 6 / 5).contains(&wake.due_at.since_ms(scene.clock.now())), "{wake:?}");
    assert_eq!(scene.ran().len(), 5);
}

#[tokio::test]
async fn a_kind_without_a_handler_is_seen_as_failing() {
    let scene = Scene::new(WakeKind::Run, |_, _| done()).await;
    let wake = NewWake { key: key(WakeKind::Event, "e"), ..scene.wake("e", 0) };
    scene.write(&wake).await;
    scene.advance(0).await;
    let [failing] = scene.failing().await.try_into().unwrap();
    assert_eq!(failing.last_error.as_deref(), Some("this version of monstrum has no such turns"));
}

#[tokio::test]
async fn no_workspace_takes_more_than_half_while_another_waits() {
    let scene = Scene::new(WakeKind::Run, |turn, _| Box::pin(until_cancelled(turn))).await;
    let other = scene.other_workspace().await;
    for number in 0..300 {
        scene.request_silently(&format!("large{number}"), -1).await;
    }
    for number in 0..10 {
        scene.write(&NewWake { workspace_id: other, ..scene.wake(&format!("small{number}"), 0) }).await;
    }
    scene.search_without_waiting().await;
    let state = scene.local.0.state.lock();
    let of = |workspace: WorkspaceId| {
        state.running.values().filter(|running| running.claim.workspace_id == workspace).count()
    };
    assert_eq!((of(scene.workspace), of(other)), (TURNS_MAX - 10, 10), "the others wait no longer");
    const { assert!(WORKSPACE_TURNS_MAX < TURNS_MAX - 10) };
}

#[tokio::test]
async fn steps_leave_room_for_other_turns() {
    let scene = Scene::new(WakeKind::Run, |_, _| done()).await;
    scene.handle(WakeKind::Step, |turn, _| Box::pin(until_cancelled(turn)));
    for number in 0..TURNS_MAX {
        scene.write(&NewWake { key: key(WakeKind::Step, &format!("r/s{number}")), ..scene.wake("-", -1) }).await;
    }
    scene.search_without_waiting().await;
    assert_eq!(scene.local.0.state.lock().running.len(), TURNS_MAX - TURNS_NOT_STEPS);
    scene.request("decides", 0).await;
    scene.search_without_waiting().await;
    scene.wait_until(|scene| scene.results() == [TurnResult::Done]).await;
}

#[tokio::test]
async fn a_stop_asks_turns_to_end_and_releases_their_claims() {
    let scene = Scene::new(WakeKind::Task, |turn, _| Box::pin(until_cancelled(turn))).await;
    let stop = CancellationToken::new();
    let run = tokio::spawn({
        let (local, stop) = (scene.local.clone(), stop.clone());
        async move { local.run(stop).await }
    });
    scene.write(&NewWake { key: key(WakeKind::Task, "t"), ..scene.wake("t", 0) }).await;
    scene.wait_until(|scene| !scene.ran().is_empty()).await;
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(20), run).await.unwrap().unwrap();
    assert_eq!(scene.results(), [TurnResult::Cancelled]);
    let [wake] = scene.wakes().await.try_into().unwrap();
    assert_eq!((wake.claimed_by, wake.failures), (None, 0));
    // A stopped engine starts nothing.
    let reserved = scene.local.reserve(key(WakeKind::Task, "u"), scene.workspace);
    scene.local.0.store.request_turns(std::slice::from_ref(&reserved)).await.unwrap();
    scene.local.start(&reserved);
    assert_eq!(scene.ran(), ["t"]);
}
