//! Tests of the turns of steps: they find the open attempt, and let it wait for an approval.

use monstrum_store::{ApprovalDecision, ParkedRunStep};
use monstrum_types::ApprovalId;

use super::*;
use crate::approvals::{approval, asked, decided};

fn parked<'a>(step: &RunStepRow, approval: ApprovalId, (before, sealed): (&'a str, &'a str)) -> ParkedRunStep<'a> {
    ParkedRunStep { key: step.key(), approval, before, sealed, look_at: LATER }
}

pub(crate) async fn a_turn_finds_the_open_attempt_of_its_step(store: &Store) {
    let row = run(&workflow(store, "a").await);
    let first = RunStepRow { item: "3".to_owned(), ..step(&row, "first") };
    let of_step = running(store, &row, &first).await;
    let open = async |workspace, phase, step: &str, item: &str| {
        store.open_step(workspace, row.id, (phase, step, item)).await.unwrap()
    };
    let (found_run, found) = open(row.workspace_id, RunStepPhase::Do, "first", "3").await.unwrap();
    assert_eq!((found_run.id, found_run.status, found), (row.id, RunStatus::Running, first.clone()));
    let foreign = other_workspace(store).await;
    for (workspace, phase, step, item) in [
        (foreign, RunStepPhase::Do, "first", "3"),
        (row.workspace_id, RunStepPhase::Undo, "first", "3"),
        (row.workspace_id, RunStepPhase::Do, "firs", "3"),
        (row.workspace_id, RunStepPhase::Do, "first", ""),
        (row.workspace_id, RunStepPhase::Do, "first", "3.0"),
    ] {
        assert_eq!(open(workspace, phase, step, item).await, None, "{workspace} {phase} {step} {item}");
    }
    let ended = end(&first, &of_step, RunStepStatus::Failed);
    assert_eq!(store.end_run_step(&of_step, &ended, &wake(&row)).await.unwrap(), AfterTurn::Asleep);
    assert_eq!(open(row.workspace_id, RunStepPhase::Do, "first", "3").await, None);
    let again = store.end_run_step(&of_step, &ended, &wake(&row)).await;
    assert!(matches!(again, Err(StoreError::LostClaim)), "{again:?}");
    claim(store, &wake(&row).key).await;
}

pub(crate) async fn a_step_waits_for_an_approval_without_a_turn(store: &Store) {
    let row = run(&workflow(store, "a").await);
    let first = step(&row, "first");
    let of_step = running(store, &row, &first).await;
    let bot = workflows::bot(store, row.workspace_id, "asking").await;
    let approval = asked(store, &approval(&bot, 1)).await;
    let park = async |claim: &WakeClaim, records| {
        store.park_run_step(claim, &parked(&first, approval.id, records), &wake(&row)).await
    };
    assert_eq!(park(&of_step, ("other", "waits")).await.unwrap(), None, "the attempt has changed");
    let lost = WakeClaim { id: WakeClaimId::new(), ..of_step.clone() };
    let refused = park(&lost, ("params", "waits")).await;
    assert!(matches!(refused, Err(StoreError::LostClaim)), "{refused:?}");
    assert_eq!(park(&of_step, ("params", "waits")).await.unwrap(), Some(AfterTurn::Due(LATER)));
    let waits = &steps(store, &row).await[0];
    assert_eq!((waits.status, waits.approval_id), (RunStepStatus::Waiting, Some(approval.id)));
    assert_eq!((waits.sealed.as_str(), waits.started_at, waits.ended_at), ("waits", NOW, None));
    // The run learns that its step waits.
    claim(store, &wake(&row).key).await;

    let of_step = claim(store, &wake_of_step(&first).key).await;
    let go_on =
        async |claim: &WakeClaim, records| store.continue_run_step(claim, &first.key(), records, 7, &wake(&row)).await;
    assert!(!go_on(&of_step, ("params", "runs")).await.unwrap(), "the attempt has changed");
    let refused = go_on(&lost, ("waits", "runs")).await;
    assert!(matches!(refused, Err(StoreError::LostClaim)), "{refused:?}");
    assert!(go_on(&of_step, ("waits", "runs")).await.unwrap());
    let runs = &steps(store, &row).await[0];
    assert_eq!((runs.status, runs.sealed.as_str()), (RunStepStatus::Running, "runs"));
    assert_eq!(runs.started_at, NOW.plus_ms(7), "the time of the wait does not count");

    // The decision comes before the attempt waits, so that the attempt looks at once.
    let denied = asked(store, &crate::approvals::approval(&bot, 2)).await;
    decided(store, &denied, ApprovalDecision::Deny).await.expect("the approval is pending");
    let late = parked(&first, denied.id, ("runs", "waits"));
    let after = store.park_run_step(&of_step, &late, &wake(&row)).await.unwrap();
    assert_eq!(after, Some(AfterTurn::Due(UtcMillis(0))));
}
