//! Tests of what starts and continues runs: deliveries to triggers, events, and the ends of tasks.

use monstrum_store::{
    BotRow, DeliveryEnd, DeliveryReason, DeliveryRow, DeliveryStatus, EndedDelivery, EventRow, InsertedRun,
    InsertedTrigger, NewRun, NewWake, RetriedDelivery, RunProgress, RunRow, RunStatus, RunStepRow, RunsMax,
    StartedDelivery, Store, StoreError, TargetKind, TaskEnd, TaskStatus, TasksMax, WakeClaim, WorkflowRow,
    WorkflowTriggerRow, wake_of,
};
use monstrum_types::{BotId, DeliveryId, UtcMillis, WakeKey, WakeKind};
use serde_json::json;

use crate::deliveries::{bot, claim, delivery, dispatched, event, generation, key_of, read};
use crate::rows::{NOW, other_workspace};
use crate::runs::{MAX, inserted, progress, run, step, wake, workflow};
use crate::{tasks, workflows};

fn to_trigger(event: &EventRow, workflow: &WorkflowRow, target: &str) -> DeliveryRow {
    DeliveryRow {
        id: DeliveryId::new(),
        workspace_id: event.workspace_id,
        event_id: event.id,
        target_kind: TargetKind::Trigger,
        target_id: target.to_owned(),
        bot_id: workflow.bot_id,
        root_event_id: event.root_event_id,
        status: DeliveryStatus::Pending,
        attempts: 0,
        next_at: None,
        reason: None,
        invalid_paths: None,
        task_id: None,
        run_id: None,
        created_at: NOW,
        pending_since: NOW,
        ended_at: None,
    }
}

fn delivered(workflow: &WorkflowRow, delivery: &DeliveryRow, max: RunsMax) -> NewRun {
    let delivery_id = Some(delivery.id.to_string());
    let row = RunRow { delivery_id, event_id: Some(delivery.event_id), ..run(workflow) };
    NewRun { wake: wake(&row), row, max }
}

async fn start(store: &Store, delivery: &DeliveryRow, run: &NewRun) -> StartedDelivery {
    let turn = claim(store, &key_of(delivery)).await;
    let generation = generation(store, delivery.workspace_id).await;
    let started = store.start_run_delivery(&turn, delivery, run, generation).await.unwrap();
    if !matches!(started, StartedDelivery::Started { .. }) {
        store.release_claims(&[(turn.key, turn.id)]).await.unwrap();
    }
    started
}

async fn rest(store: &Store, delivery: &DeliveryRow) {
    let turn = claim(store, &key_of(delivery)).await;
    let rest = DeliveryEnd::Pending { next_at: None, wake_at: UtcMillis(4_102_444_800_000) };
    let generation = generation(store, delivery.workspace_id).await;
    let ended = store.end_delivery(&turn, delivery, &rest, generation, NOW).await.unwrap();
    assert!(matches!(ended, EndedDelivery::Ended { next: None, .. }), "{ended:?}");
}

/// Returns the keys of this kind that are due.
async fn due(store: &Store, kind: WakeKind) -> Vec<WakeKey> {
    let (due, _) = store.due_wakes(0, None, 100, NOW.plus_ms(100)).await.unwrap();
    due.into_iter().map(|due| due.key).filter(|key| key.kind() == kind).collect()
}

pub(crate) async fn a_delivery_starts_one_run(store: &Store) {
    let workflow = workflow(store, "one").await;
    let event = event(workflow.workspace_id, None);
    let row = to_trigger(&event, &workflow, "t");
    assert_eq!(dispatched(store, &event, std::slice::from_ref(&row)).await, [key_of(&row)]);
    let (first, second) = (delivered(&workflow, &row, MAX), delivered(&workflow, &row, MAX));
    let turn = claim(store, &key_of(&row)).await;
    let older = generation(store, workflow.workspace_id).await - 1;
    let started = store.start_run_delivery(&turn, &row, &first, older).await.unwrap();
    assert_eq!(started, StartedDelivery::Behind);
    assert_eq!(store.run(workflow.workspace_id, first.row.id).await.unwrap(), None);
    store.release_claims(&[(turn.key.clone(), turn.id)]).await.unwrap();
    let lost = store.start_run_delivery(&turn, &row, &first, older + 1).await;
    assert!(matches!(lost, Err(StoreError::LostClaim)), "{lost:?}");

    let started = start(store, &row, &first).await;
    assert!(matches!(started, StartedDelivery::Started { next: None, .. }), "{started:?}");
    let done = read(store, &row).await;
    assert_eq!((done.status, done.run_id, done.task_id), (DeliveryStatus::Done, Some(first.row.id), None));
    let kept = store.run(workflow.workspace_id, first.row.id).await.unwrap().unwrap();
    assert_eq!((kept.delivery_id, kept.event_id), (first.row.delivery_id.clone(), Some(event.id)));
    // Another turn of the delivery starts nothing.
    let again = NewWake { key: key_of(&row), workspace_id: workflow.workspace_id, due_at: NOW, claim: None };
    store.request_turns(&[again]).await.unwrap();
    assert_eq!(start(store, &row, &second).await, StartedDelivery::Gone);
    assert_eq!(store.run(workflow.workspace_id, second.row.id).await.unwrap(), None);
}

pub(crate) async fn a_delivery_without_room_waits_for_the_end_of_a_run(store: &Store) {
    let workflow = workflow(store, "one").await;
    let other_bot = bot(store, "other").await;
    let events = [event(workflow.workspace_id, None), event(workflow.workspace_id, None)];
    let to_bot = delivery(&events[0], &BotRow { id: workflow.bot_id, ..other_bot }, "s");
    let rows = [to_trigger(&events[0], &workflow, "t"), to_trigger(&events[1], &workflow, "t")];
    dispatched(store, &events[0], &[to_bot.clone(), rows[0].clone()]).await;
    dispatched(store, &events[1], &rows[1..]).await;
    let one = RunsMax { of_workspace: 1, ..MAX };
    let running = run(&workflow);
    assert_eq!(inserted(store, &running).await, InsertedRun::Inserted);
    for row in &rows {
        assert_eq!(start(store, row, &delivered(&workflow, row, one)).await, StartedDelivery::NoRoom);
        rest(store, row).await;
    }
    rest(store, &to_bot).await;
    assert_eq!(due(store, WakeKind::Delivery).await, []);
    let turn = claim(store, &wake(&running).key).await;
    store.advance_run(&turn, &progress(&running, RunStatus::Completed)).await.unwrap();
    assert_eq!(due(store, WakeKind::Delivery).await, [key_of(&rows[0])], "the oldest one to a trigger");
    let started = start(store, &rows[0], &delivered(&workflow, &rows[0], one)).await;
    let StartedDelivery::Started { next: Some(next), .. } = started else { panic!("{started:?}") };
    assert_eq!(next.key, key_of(&rows[1]), "there may be room for one more");
}

pub(crate) async fn a_delivery_that_cannot_start_a_run_is_dead(store: &Store) {
    let workflow = workflow(store, "one").await;
    let workspace = workflow.workspace_id;
    let event = event(workspace, None);
    let rows = [to_trigger(&event, &workflow, "a"), to_trigger(&event, &workflow, "b")];
    dispatched(store, &event, &rows).await;
    let keyed = RunRow { concurrency_key: Some("k".to_owned()), ..run(&workflow) };
    assert_eq!(inserted(store, &keyed).await, InsertedRun::Inserted);
    let mut skipped = delivered(&workflow, &rows[0], RunsMax { of_key: Some(1), ..MAX });
    skipped.row.concurrency_key = Some("k".to_owned());
    assert_eq!(start(store, &rows[0], &skipped).await, StartedDelivery::Skipped);
    let invalid_paths = vec!["/repo".to_owned(), String::new()];
    let turn = claim(store, &key_of(&rows[0])).await;
    let misfit = DeliveryEnd::Misfit { invalid_paths };
    let current = generation(store, workspace).await;
    store.end_delivery(&turn, &rows[0], &misfit, current, NOW).await.unwrap();
    let dead = read(store, &rows[0]).await;
    assert_eq!((dead.status, dead.reason), (DeliveryStatus::Dead, Some(DeliveryReason::Input)));
    assert_eq!(dead.invalid_paths, Some(json!(["/repo", ""])));
    let retried = store.retry_delivery(workspace, dead.id, NOW).await.unwrap();
    assert!(matches!(retried, RetriedDelivery::Pending(_)), "{retried:?}");
    assert_eq!(read(store, &dead).await.invalid_paths, None);
    let disabled = WorkflowRow { enabled: false, updated_at: NOW.plus_ms(1), ..workflow.clone() };
    assert!(store.update_workflow(&disabled, NOW, None).await.unwrap());
    let started = start(store, &rows[1], &delivered(&workflow, &rows[1], MAX)).await;
    assert_eq!(started, StartedDelivery::Disabled);
    assert_eq!(read(store, &rows[1]).await.status, DeliveryStatus::Pending);
}

pub(crate) async fn deliveries_have_a_turn_when_their_trigger_is_disabled_or_deleted(store: &Store) {
    let workflow = workflow(store, "one").await;
    let workspace = workflow.workspace_id;
    let (one, two) = (workflows::trigger(&workflow), workflows::trigger(&workflow));
    for trigger in [&one, &two] {
        assert_eq!(store.insert_workflow_trigger(trigger, 9).await.unwrap(), InsertedTrigger::Inserted);
    }
    let event = event(workspace, None);
    let rows = [&one, &two].map(|trigger| to_trigger(&event, &workflow, &trigger.id.to_string()));
    dispatched(store, &event, &rows).await;
    let all_rest = async || {
        for row in &rows {
            rest(store, row).await;
        }
        assert_eq!(due(store, WakeKind::Delivery).await, []);
    };
    all_rest().await;
    let disabled = WorkflowTriggerRow { enabled: false, updated_at: NOW.plus_ms(1), ..one.clone() };
    assert!(store.update_workflow_trigger(&disabled, NOW).await.unwrap());
    assert_eq!(due(store, WakeKind::Delivery).await, [key_of(&rows[0])]);
    all_rest().await;
    assert!(store.delete_workflow_trigger(workspace, workflow.id, two.id, NOW).await.unwrap());
    assert_eq!(due(store, WakeKind::Delivery).await, [key_of(&rows[1])]);
    all_rest().await;
    let stopped = WorkflowRow { enabled: false, updated_at: NOW.plus_ms(1), ..workflow.clone() };
    assert!(store.update_workflow(&stopped, NOW, None).await.unwrap());
    assert_eq!(due(store, WakeKind::Delivery).await, [key_of(&rows[0])]);
    all_rest().await;
    assert!(store.delete_workflow(workspace, workflow.id, NOW.plus_ms(1)).await.unwrap());
    assert_eq!(due(store, WakeKind::Delivery).await, [key_of(&rows[0])], "the only trigger that was left");
}

/// Lets a run wait for events of a type in one step.
async fn waiting(store: &Store, run: &RunRow, event_type: &str) -> RunStepRow {
    assert_eq!(inserted(store, run).await, InsertedRun::Inserted);
    let step = RunStepRow {
        kind: "wait".to_owned(),
        request_id: None,
        wait_event: Some(event_type.to_owned()),
        ..step(run, "wait")
    };
    let turn = claim(store, &wake(run).key).await;
    let begun = RunProgress { steps: vec![step.clone()], ..progress(run, RunStatus::Waiting) };
    store.advance_run(&turn, &begun).await.unwrap();
    step
}

pub(crate) async fn an_event_wakes_the_runs_that_wait_for_it(store: &Store) {
    let (one, two) = (workflow(store, "one").await, workflow(store, "two").await);
    let workspace = one.workspace_id;
    let [first, other_type, other_bot] = [run(&one), run(&one), run(&two)];
    waiting(store, &first, "custom.paid").await;
    waiting(store, &other_type, "custom.sent").await;
    waiting(store, &other_bot, "custom.paid").await;
    assert_eq!(store.count_event_waits(workspace, "custom.paid").await.unwrap(), 2);
    let elsewhere = other_workspace(store).await;
    assert_eq!(store.count_event_waits(elsewhere, "custom.paid").await.unwrap(), 0);
    let emitted = async |bot: Option<BotId>| {
        let event = event(workspace, bot);
        dispatched(store, &event, &[]).await;
        let keys = due(store, WakeKind::Run).await;
        for key in &keys {
            let turn: WakeClaim = claim(store, key).await;
            store.end_turn(&turn, None, &[], &[]).await.unwrap();
        }
        keys
    };
    assert_eq!(emitted(Some(one.bot_id)).await, [wake(&first).key], "an event of one bot");
    assert_eq!(emitted(Some(BotId::new())).await, []);
    let mut both = [wake(&first).key, wake(&other_bot).key];
    both.sort();
    assert_eq!(emitted(None).await, both, "an event of the platform");
    let foreign = event(elsewhere, None);
    dispatched(store, &foreign, &[]).await;
    assert_eq!(due(store, WakeKind::Run).await, []);
}

pub(crate) async fn events_are_searched_by_type_position_and_time(store: &Store) {
    let workflow = workflow(store, "one").await;
    let workspace = workflow.workspace_id;
    let at = |ms| EventRow { created_at: NOW.plus_ms(ms), ..event(workspace, None) };
    let (early, first, second) = (at(1), at(5), at(9));
    let other = EventRow { event_type: "custom.sent".to_owned(), ..at(9) };
    let waits = at(9);
    assert!(store.insert_event(&waits).await.unwrap(), "it is not dispatched");
    for event in [&early, &first, &other, &second] {
        dispatched(store, event, &[]).await;
    }
    let found = async |sequence, since, limit| {
        let since = NOW.plus_ms(since);
        let events = store.events_of_type(workspace, "custom.paid", (sequence, since), limit).await.unwrap();
        events.into_iter().map(|event| (event.sequence, event.row.id)).collect::<Vec<_>>()
    };
    assert_eq!(found(0, 5, 9).await, [(Some(2), first.id), (Some(4), second.id)]);
    assert_eq!(found(0, 0, 1).await, [(Some(1), early.id)]);
    assert_eq!(found(2, 0, 9).await, [(Some(4), second.id)]);
    let elsewhere = store.events_of_type(other_workspace(store).await, "custom.paid", (0, NOW), 9).await.unwrap();
    assert!(elsewhere.is_empty());
}

pub(crate) async fn the_end_of_a_task_wakes_the_run_of_its_step(store: &Store) {
    let workflow = workflow(store, "one").await;
    let run = run(&workflow);
    assert_eq!(inserted(store, &run).await, InsertedRun::Inserted);
    let bot = BotRow { id: workflow.bot_id, ..bot(store, "other").await };
    let task = monstrum_store::TaskRow { session_id: None, ..tasks::task(&bot, monstrum_types::SessionId::new()) };
    let key = WakeKey::new(WakeKind::Task, task.id).unwrap();
    let task_wake = NewWake { key: key.clone(), workspace_id: bot.workspace_id, due_at: UtcMillis(0), claim: None };
    let max = TasksMax { of_workspace: 9, of_tree: None };
    store.insert_task(&task, None, &task_wake, max).await.unwrap();
    let step = RunStepRow { task_id: Some(task.id), request_id: None, ..step(&run, "triage") };
    let turn = claim(store, &wake(&run).key).await;
    let begun = RunProgress { steps: vec![step], ..progress(&run, RunStatus::Waiting) };
    store.advance_run(&turn, &begun).await.unwrap();
    assert_eq!(due(store, WakeKind::Run).await, []);
    let turn = claim(store, &key).await;
    let (status, sealed) = (TaskStatus::Completed, "sealed".to_owned());
    let end = TaskEnd { task_id: task.id, status, code: None, ended_at: NOW, sealed };
    let event = event(bot.workspace_id, Some(bot.id));
    let ended = store.end_task(&turn, &end, &event).await.unwrap();
    let keys: Vec<WakeKey> = ended.wakes.into_iter().map(|wake| wake.key).collect();
    assert_eq!(keys, [wake_of(&event).key, wake(&run).key]);
    assert_eq!(due(store, WakeKind::Run).await, [wake(&run).key]);
}
