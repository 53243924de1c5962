//! Tests of runs: they are started once, and their turns write everything or nothing.

mod steps;

use monstrum_store::{
    AdvancedRun, AfterTurn, ChildOfStep, ChildRefusal, EndedRunStep, InsertedRun, NewChild, NewWake, Page,
    ResolvedRunStep, RetriedRun, RunFilter, RunProgress, RunRequest, RunRoom, RunRow, RunStarter, RunStatus,
    RunStepPhase, RunStepRow, RunStepStatus, RunStepStop, RunsMax, SealedColumn, Store, StoreError, StoreRow,
    WakeClaim, WorkflowRow,
};
use monstrum_types::{
    Clock as _, KeyId, Labels, RequestId, RunId, SystemClock, UtcMillis, WakeClaimId, WakeKey, WakeKind,
};

use crate::rows::{NOW, default_workspace, other_workspace};
use crate::workflows;

pub(crate) use steps::{a_step_waits_for_an_approval_without_a_turn, a_turn_finds_the_open_attempt_of_its_step};

pub(crate) const MAX: RunsMax = RunsMax { of_workspace: 9, queued: 9, of_key: None };
/// The end of time for these tests: no wake is due later.
pub(crate) const LATER: UtcMillis = UtcMillis(4_102_444_800_000);

pub(crate) async fn workflow(store: &Store, name: &str) -> WorkflowRow {
    let bot = workflows::bot(store, default_workspace(store).await, name).await;
    let row = workflows::workflow(&bot, name);
    workflows::inserted(store, &row).await;
    row
}

pub(crate) fn run(workflow: &WorkflowRow) -> RunRow {
    RunRow {
        id: RunId::new(),
        workspace_id: workflow.workspace_id,
        workflow_id: workflow.id,
        workflow: workflow.name.clone(),
        version: 1,
        bot_id: workflow.bot_id,
        status: RunStatus::Queued,
        attempt: 1,
        started_by_kind: RunStarter::Key,
        started_by_id: "k".to_owned(),
        event_id: None,
        delivery_id: None,
        parent_run_id: None,
        concurrency_key: None,
        asked: None,
        code: None,
        labels: Labels::none(),
        created_at: NOW,
        started_at: None,
        deadline_at: None,
        ended_at: None,
        sealed: "sealed".to_owned(),
    }
}

pub(crate) fn wake(run: &RunRow) -> NewWake {
    let key = WakeKey::new(WakeKind::Run, run.id).unwrap();
    NewWake { key, workspace_id: run.workspace_id, due_at: UtcMillis(0), claim: None }
}

fn wake_of_step(step: &RunStepRow) -> NewWake {
    let key = WakeKey::new(WakeKind::Step, format!("{}/{}", step.run_id, step.step)).unwrap();
    NewWake { key, workspace_id: step.workspace_id, due_at: UtcMillis(0), claim: None }
}

pub(crate) async fn inserted(store: &Store, run: &RunRow) -> InsertedRun {
    store.insert_run(run, &wake(run), MAX).await.unwrap()
}

pub(crate) async fn claim(store: &Store, key: &WakeKey) -> WakeClaim {
    let wakes = [(key.clone(), LATER, WakeClaimId::new())];
    store.claim_wakes("node", &wakes, SystemClock.now()).await.unwrap().remove(0)
}

pub(crate) fn step(run: &RunRow, name: &str) -> RunStepRow {
    RunStepRow {
        run_id: run.id,
        phase: RunStepPhase::Do,
        step: name.to_owned(),
        item: String::new(),
        run_attempt: 1,
        attempt: 1,
        workspace_id: run.workspace_id,
        kind: "tool".to_owned(),
        status: RunStepStatus::Running,
        effect: Some("write".to_owned()),
        code: None,
        request_id: Some(RequestId::new()),
        task_id: None,
        child_run_id: None,
        approval_id: None,
        stopping: None,
        wait_until: None,
        wait_event: None,
        started_at: NOW,
        ended_at: None,
        sealed: "params".to_owned(),
    }
}

fn end(step: &RunStepRow, claim: &WakeClaim, status: RunStepStatus) -> EndedRunStep {
    EndedRunStep {
        key: step.key(),
        wake: claim.key.clone(),
        claim: claim.id,
        status,
        code: None,
        ended_at: NOW.plus_ms(5),
        sealed: "result".to_owned(),
    }
}

pub(crate) fn progress<'a>(run: &'a RunRow, status: RunStatus) -> RunProgress<'a> {
    RunProgress {
        read: run,
        start: None,
        status,
        code: None,
        labels: &run.labels,
        started_at: Some(NOW),
        deadline_at: Some(LATER),
        ended_at: status.has_ended().then_some(NOW.plus_ms(9)),
        sealed: &run.sealed,
        ended: Vec::new(),
        stopped: Vec::new(),
        resealed: Vec::new(),
        steps: Vec::new(),
        children: Vec::new(),
        wakes: Vec::new(),
        events: Vec::new(),
        approvals: Vec::new(),
        asked_again: Vec::new(),
        void: Vec::new(),
        next: None,
        now: NOW,
    }
}

/// Writes the progress of a run that wakes no other.
async fn advanced(store: &Store, turn: &WakeClaim, progress: &RunProgress<'_>) -> AfterTurn {
    match store.advance_run(turn, progress).await.unwrap() {
        AdvancedRun::Done { after, woken } if woken.is_empty() => after,
        other => panic!("{other:?}"),
    }
}

async fn read(store: &Store, run: &RunRow) -> RunRow {
    store.run(run.workspace_id, run.id).await.unwrap().unwrap()
}

async fn steps(store: &Store, run: &RunRow) -> Vec<RunStepRow> {
    store.run_steps(run.workspace_id, run.id, 100).await.unwrap()
}

/// Starts a run with one step, whose call runs. Returns the claim of the step.
pub(crate) async fn running(store: &Store, run: &RunRow, step: &RunStepRow) -> WakeClaim {
    assert_eq!(inserted(store, run).await, InsertedRun::Inserted);
    let turn = claim(store, &wake(run).key).await;
    let begun =
        RunProgress { steps: vec![step.clone()], wakes: vec![wake_of_step(step)], ..progress(run, RunStatus::Running) };
    assert_eq!(advanced(store, &turn, &begun).await, AfterTurn::Asleep);
    claim(store, &wake_of_step(step).key).await
}

pub(crate) async fn runs_are_inserted_listed_and_deleted_with_their_workflow(store: &Store) {
    let (one, two) = (workflow(store, "one").await, workflow(store, "two").await);
    let [first, second] = [run(&one), RunRow { created_at: NOW.plus_ms(1), ..run(&two) }];
    assert_eq!(inserted(store, &first).await, InsertedRun::Inserted);
    assert_eq!(inserted(store, &second).await, InsertedRun::Inserted);
    let third = run(&one);
    for full in [RunsMax { of_workspace: 2, ..MAX }, RunsMax { queued: 2, ..MAX }] {
        assert_eq!(store.insert_run(&third, &wake(&third), full).await.unwrap(), InsertedRun::Full);
    }
    assert_eq!(read(store, &first).await, first);
    let list =
        async |filter: RunFilter<'_>| store.runs(one.workspace_id, &filter, &Page::first(9)).await.unwrap().items;
    assert_eq!(list(RunFilter::default()).await, [second.clone(), first.clone()]);
    let of_workflow = RunFilter { workflow: Some(one.id), ..RunFilter::default() };
    assert_eq!(list(of_workflow).await, std::slice::from_ref(&first));
    let of_bot = RunFilter { bot: Some(two.bot_id), started_by: Some("k"), ..RunFilter::default() };
    assert_eq!(list(of_bot).await, std::slice::from_ref(&second));
    let later = RunFilter { since: Some(NOW.plus_ms(1)), status: Some(RunStatus::Queued), ..RunFilter::default() };
    assert_eq!(list(later).await, std::slice::from_ref(&second));
    let ended = RunFilter { status: Some(RunStatus::Completed), ..RunFilter::default() };
    assert_eq!(list(ended).await, []);
    let foreign = other_workspace(store).await;
    assert_eq!(store.run(foreign, first.id).await.unwrap(), None);
    assert!(store.runs(foreign, &RunFilter::default(), &Page::first(9)).await.unwrap().items.is_empty());
    assert_eq!(store.count_sealed(SealedColumn::Runs).await.unwrap(), 2);

    let busy = store.delete_workflow(one.workspace_id, one.id, NOW).await;
    assert!(matches!(busy, Err(StoreError::InUse)), "a run goes on: {busy:?}");
    let turn = claim(store, &wake(&first).key).await;
    store.advance_run(&turn, &progress(&first, RunStatus::Cancelled)).await.unwrap();
    assert_eq!(store.forget_runs(NOW.plus_ms(9)).await.unwrap(), 0);
    assert!(store.delete_workflow(one.workspace_id, one.id, NOW).await.unwrap());
    assert_eq!(store.run(one.workspace_id, first.id).await.unwrap(), None);
    let turn = claim(store, &wake(&second).key).await;
    store.advance_run(&turn, &progress(&second, RunStatus::Completed)).await.unwrap();
    assert_eq!(store.forget_runs(NOW.plus_ms(10)).await.unwrap(), 1);
}

pub(crate) async fn a_workflow_that_skips_starts_no_run_beyond_its_limit(store: &Store) {
    let (row, other) = (workflow(store, "one").await, workflow(store, "other").await);
    let keyed = |key: &str| RunRow { concurrency_key: Some(key.to_owned()), ..run(&row) };
    let max = RunsMax { of_key: Some(1), ..MAX };
    let insert = async |run: &RunRow| store.insert_run(run, &wake(run), max).await.unwrap();
    let first = keyed("a");
    assert_eq!(insert(&first).await, InsertedRun::Inserted);
    let second = keyed("a");
    assert_eq!(insert(&second).await, InsertedRun::Skipped);
    assert_eq!(store.run(second.workspace_id, second.id).await.unwrap(), None);
    assert_eq!(insert(&keyed("b")).await, InsertedRun::Inserted, "another key");
    let of_other = RunRow { concurrency_key: Some("a".to_owned()), ..run(&other) };
    assert_eq!(insert(&of_other).await, InsertedRun::Inserted, "another workflow");
    let turn = claim(store, &wake(&first).key).await;
    store.advance_run(&turn, &progress(&first, RunStatus::Completed)).await.unwrap();
    assert_eq!(insert(&second).await, InsertedRun::Inserted);
}

pub(crate) async fn a_run_starts_once_and_only_of_an_enabled_workflow(store: &Store) {
    let row = workflow(store, "a").await;
    let delivered = |id: &str| RunRow { delivery_id: Some(id.to_owned()), ..run(&row) };
    assert_eq!(inserted(store, &delivered("d")).await, InsertedRun::Inserted);
    let again = delivered("d");
    let twice = store.insert_run(&again, &wake(&again), MAX).await;
    assert!(matches!(twice, Err(StoreError::Conflict { .. })), "{twice:?}");
    // The name and the bot of a run are those of its workflow.
    let strong = workflow(store, "strong").await;
    let steered = RunRow { bot_id: strong.bot_id, workflow: strong.name, ..run(&row) };
    assert_eq!(inserted(store, &steered).await, InsertedRun::Inserted);
    let kept = read(store, &steered).await;
    assert_eq!((kept.bot_id, &kept.workflow), (row.bot_id, &row.name));
    let foreign = RunRow { workspace_id: other_workspace(store).await, ..run(&row) };
    assert_eq!(inserted(store, &foreign).await, InsertedRun::Disabled);
    let disabled = WorkflowRow { enabled: false, updated_at: NOW.plus_ms(1), ..row.clone() };
    assert!(store.update_workflow(&disabled, NOW, None).await.unwrap());
    assert_eq!(inserted(store, &run(&row)).await, InsertedRun::Disabled);
}

pub(crate) async fn a_turn_of_a_run_writes_all_or_nothing(store: &Store) {
    let row = run(&workflow(store, "a").await);
    let first = step(&row, "first");
    let of_step = running(store, &row, &first).await;
    assert_eq!(steps(store, &row).await, std::slice::from_ref(&first));
    assert_eq!(store.open_run_step(&first.key()).await.unwrap(), Some(first.clone()));
    store.request_turns(&[wake(&row)]).await.unwrap();
    let turn = claim(store, &wake(&row).key).await;
    let (read_run, read_steps) = store.begin_run_turn(&turn, row.id).await.unwrap().unwrap();
    assert_eq!((read_run.status, read_steps), (RunStatus::Running, vec![first.clone()]));

    let stops =
        RunProgress { stopped: vec![(first.key(), RunStepStop::Timeout)], ..progress(&row, RunStatus::Running) };
    assert_eq!(advanced(store, &turn, &stops).await, AfterTurn::Asleep);
    assert_eq!(steps(store, &row).await[0].stopping, Some(RunStepStop::Timeout));
    store.request_turns(&[wake(&row)]).await.unwrap();
    let turn = claim(store, &wake(&row).key).await;

    // The call ends while the turn decides to cancel its step: the turn must decide again.
    store.append(&[], &[StoreRow::RunStep(Box::new(end(&first, &of_step, RunStepStatus::Succeeded)))]).await.unwrap();
    let late = RunProgress {
        ended: vec![end(&first, &turn, RunStepStatus::Cancelled)],
        steps: vec![step(&row, "second")],
        ..progress(&row, RunStatus::Cancelled)
    };
    let refused = store.advance_run(&turn, &late).await;
    assert!(matches!(refused, Err(StoreError::ChangedMeanwhile)), "{refused:?}");
    let kept = steps(store, &row).await;
    assert_eq!((kept.len(), kept[0].status, kept[0].sealed.as_str()), (1, RunStepStatus::Succeeded, "result"));
    assert_eq!(read(store, &row).await.status, RunStatus::Running);

    // A host whose claim was replaced writes nothing.
    let lost = WakeClaim { id: WakeClaimId::new(), ..turn.clone() };
    let refused = store.advance_run(&lost, &progress(&row, RunStatus::Completed)).await;
    assert!(matches!(refused, Err(StoreError::LostClaim)), "{refused:?}");
    assert!(matches!(store.begin_run_turn(&lost, row.id).await, Err(StoreError::LostClaim)));
    let done = advanced(store, &turn, &progress(&row, RunStatus::Completed)).await;
    assert_eq!(done, AfterTurn::Asleep);
    store.request_turns(&[wake(&row)]).await.unwrap();
    let turn = claim(store, &wake(&row).key).await;
    assert_eq!(store.begin_run_turn(&turn, row.id).await.unwrap(), None, "an ended run has no turns");
}

pub(crate) async fn the_end_of_a_step_is_written_by_the_turn_that_has_the_claim(store: &Store) {
    let row = run(&workflow(store, "a").await);
    let first = step(&row, "first");
    let of_step = running(store, &row, &first).await;
    let written = async |end: EndedRunStep| {
        store.append(&[], &[StoreRow::RunStep(Box::new(end)), StoreRow::Wake(wake(&row))]).await.unwrap()
    };
    let lost = WakeClaim { id: WakeClaimId::new(), ..of_step.clone() };
    assert_eq!(written(end(&first, &lost, RunStepStatus::Succeeded)).await, [false, true]);
    assert_eq!(steps(store, &row).await, std::slice::from_ref(&first));
    assert_eq!(written(end(&first, &of_step, RunStepStatus::Uncertain)).await, [true, true]);
    assert_eq!(written(end(&first, &of_step, RunStepStatus::Succeeded)).await, [false, true], "an end is the only one");
    assert_eq!(store.open_run_step(&first.key()).await.unwrap(), None);
    let latest = store.latest_run_step(row.workspace_id, row.id, "first", "").await.unwrap().unwrap();
    assert_eq!(latest.status, RunStepStatus::Uncertain);
    let record = store.sealed_records(SealedColumn::RunSteps, None, 9).await.unwrap().records.remove(0);
    assert_eq!(record.key, [format!("{}/do/first//000001/000001", row.id)]);
}

pub(crate) async fn the_steps_of_a_run_are_read_in_pages(store: &Store) {
    let row = run(&workflow(store, "a").await);
    let named = |name: &str, ms: i64| RunStepRow { started_at: NOW.plus_ms(ms), ..step(&row, name) };
    let block = RunStepRow { kind: "each".to_owned(), ..named("block", 1) };
    let ended = |step: RunStepRow, status, ms| RunStepRow { status, ended_at: Some(NOW.plus_ms(ms)), ..step };
    let again = RunStepRow { attempt: 2, ..named("b", 2) };
    let all = [
        ended(named("a", 0), RunStepStatus::Succeeded, 5),
        ended(named("b", 0), RunStepStatus::Uncertain, 1),
        block,
        again,
        ended(named("c", 2), RunStepStatus::Uncertain, 9),
    ];
    assert_eq!(inserted(store, &row).await, InsertedRun::Inserted);
    let turn = claim(store, &wake(&row).key).await;
    let begun = RunProgress { steps: all.to_vec(), next: Some(LATER), ..progress(&row, RunStatus::Running) };
    store.advance_run(&turn, &begun).await.unwrap();
    for limit in [1, 2, 5] {
        let (mut read, mut cursor) = (Vec::new(), None);
        loop {
            let page = store.run_step_page(row.workspace_id, row.id, &Page { limit, cursor }).await.unwrap();
            read.extend(page.items);
            cursor = page.next_cursor.map(|cursor| cursor.to_string().parse().unwrap());
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(read, all, "{limit}");
    }
    let names = |steps: Vec<RunStepRow>| steps.into_iter().map(|step| (step.step, step.attempt)).collect::<Vec<_>>();
    let waiting = store.waiting_run_steps(row.workspace_id, row.id, 1, 9).await.unwrap();
    assert_eq!(names(waiting), [("b".to_owned(), 2), ("c".to_owned(), 1)]);
    let heads = store.run_step_heads(row.workspace_id, row.id, NOW.plus_ms(5)).await.unwrap();
    let positions: Vec<String> = [&all[0], &all[2], &all[3], &all[4]].map(|step| step.key().position()).to_vec();
    assert_eq!(heads.iter().map(|head| head.position.clone()).collect::<Vec<_>>(), positions);
    assert_eq!((heads[0].status, heads[0].ended_at), (RunStepStatus::Succeeded, Some(NOW.plus_ms(5))));
    let at = async |workspace, position: &str| store.run_step_at(workspace, row.id, position).await.unwrap();
    assert_eq!(at(row.workspace_id, &positions[3]).await.as_ref(), Some(&all[4]));
    let foreign = other_workspace(store).await;
    assert_eq!(at(foreign, &positions[3]).await, None);
    assert_eq!(store.run_step_page(foreign, row.id, &Page::first(9)).await.unwrap().items, []);
    assert_eq!(store.run_step_heads(foreign, row.id, NOW).await.unwrap(), []);
    assert_eq!(store.waiting_run_steps(foreign, row.id, 1, 9).await.unwrap(), []);
}

pub(crate) async fn people_pause_cancel_resolve_and_retry_runs(store: &Store) {
    let row = run(&workflow(store, "a").await);
    let first = step(&row, "first");
    let of_step = running(store, &row, &first).await;
    let ask = async |asked: RunRequest| {
        let before = read(store, &row).await;
        store.ask_run(&before, asked, asked.as_str(), &wake(&row)).await.unwrap()
    };
    let resume = async || store.resume_run(&read(store, &row).await, "resumed", &wake(&row)).await.unwrap();
    assert!(ask(RunRequest::Pause).await);
    let paused = read(store, &row).await;
    assert_eq!((paused.asked, paused.sealed.as_str()), (Some(RunRequest::Pause), "pause"));
    assert!(!store.ask_run(&row, RunRequest::Cancel, "stale", &wake(&row)).await.unwrap(), "the record has changed");
    assert!(!store.resume_run(&row, "stale", &wake(&row)).await.unwrap(), "the record has changed");
    assert!(resume().await);
    let resumed = read(store, &row).await;
    assert_eq!((resumed.asked, resumed.sealed.as_str()), (None, "resumed"));
    // The caller reads in the record what may be asked, so whatever the column says, a person can cancel the run.
    assert!(ask(RunRequest::CancelAndUndo).await && ask(RunRequest::Cancel).await);
    assert_eq!(read(store, &row).await.asked, Some(RunRequest::Cancel));
    assert!(ask(RunRequest::CancelAndUndo).await);
    let foreign = other_workspace(store).await;
    let current = read(store, &row).await;
    let stolen = RunRow { workspace_id: foreign, ..current.clone() };
    assert!(!store.ask_run(&stolen, RunRequest::CancelAndUndo, "stolen", &wake(&row)).await.unwrap());

    store.append(&[], &[StoreRow::RunStep(Box::new(end(&first, &of_step, RunStepStatus::Uncertain)))]).await.unwrap();
    let turn = claim(store, &wake(&row).key).await;
    // A turn that has not read the request of the person decides again.
    let blind = store.advance_run(&turn, &progress(&row, RunStatus::Failed)).await;
    assert!(matches!(blind, Err(StoreError::ChangedMeanwhile)), "{blind:?}");
    let failed = RunProgress { code: Some("uncertain"), ..progress(&current, RunStatus::Failed) };
    store.advance_run(&turn, &failed).await.unwrap();
    let ended = read(store, &row).await;
    assert_eq!((ended.code.as_deref(), ended.asked), (Some("uncertain"), Some(RunRequest::CancelAndUndo)));
    assert!(!ask(RunRequest::Pause).await && !resume().await, "the run has ended");
    let uncertain = steps(store, &row).await.remove(0);
    let resolve = async |run: &RunRow, step: &RunStepRow| {
        let (status, ended_at) = (RunStepStatus::Failed, NOW.plus_ms(9));
        let said =
            ResolvedRunStep { run: (run, "heard"), step: (step, "said"), status, code: Some("failed"), ended_at };
        store.resolve_run_step(&said, &wake(&row)).await.unwrap()
    };
    assert!(!resolve(&RunRow { workspace_id: foreign, ..ended.clone() }, &uncertain).await);
    assert!(!resolve(&ended, &first).await, "the record of the step has changed");
    assert!(!resolve(&current, &RunStepRow { run_id: RunId::new(), ..uncertain.clone() }).await);
    assert!(resolve(&ended, &uncertain).await && !resolve(&ended, &uncertain).await, "a person decides once");
    let resolved = steps(store, &row).await.remove(0);
    assert_eq!((resolved.status, resolved.ended_at), (RunStepStatus::Failed, Some(NOW.plus_ms(9))));
    assert_eq!((resolved.code.as_deref(), resolved.sealed.as_str()), (Some("failed"), "said"));
    let retry = async |before: &RunRow, max| store.retry_run(before, "again", &wake(before), max).await.unwrap();
    assert_eq!(retry(&ended, MAX).await, RetriedRun::Changed, "the record of the run has changed");
    let ended = read(store, &row).await;
    assert_eq!(retry(&ended, RunsMax { queued: 0, ..MAX }).await, RetriedRun::Full);
    assert_eq!(retry(&ended, MAX).await, RetriedRun::Retried);
    assert_eq!(retry(&ended, MAX).await, RetriedRun::Changed);
    let again = read(store, &row).await;
    assert_eq!((again.status, again.attempt, again.sealed.as_str()), (RunStatus::Queued, 2, "again"));
    assert_eq!((again.ended_at, again.asked, again.code), (None, None, None));
}

/// Lets a queued run take its turn with room for so many runs.
async fn start(store: &Store, run: &RunRow, room: RunRoom) -> AdvancedRun {
    let turn = claim(store, &wake(run).key).await;
    let starts = RunProgress { start: Some(room), ..progress(run, RunStatus::Running) };
    store.advance_run(&turn, &starts).await.unwrap()
}

fn woken(advanced: &AdvancedRun) -> Vec<String> {
    match advanced {
        AdvancedRun::Done { woken, .. } | AdvancedRun::NoRoom { woken, .. } => {
            woken.iter().map(|wake| wake.key.id().to_owned()).collect()
        }
        AdvancedRun::Refused { .. } => panic!("{advanced:?}"),
    }
}

pub(crate) async fn a_run_starts_when_there_is_room(store: &Store) {
    let (one, two) = (workflow(store, "one").await, workflow(store, "two").await);
    let keyed = |workflow: &WorkflowRow| RunRow { concurrency_key: Some("all".to_owned()), ..run(workflow) };
    let runs = [keyed(&one), keyed(&one), keyed(&two), run(&two)];
    for row in &runs {
        assert_eq!(inserted(store, row).await, InsertedRun::Inserted);
    }
    let [first, second, third, fourth] = &runs;
    let room = RunRoom { running: 2, started: 9, of_key: Some(1), look_again_at: LATER };
    assert_eq!(woken(&start(store, first, room).await), [] as [&str; 0], "no run has asked for room yet");
    // The second run lacks the room of its workflow, and the fourth that of the workspace.
    assert!(matches!(start(store, second, room).await, AdvancedRun::NoRoom { after: AfterTurn::Due(LATER), .. }));
    assert_eq!(read(store, second).await, *second, "the run is still queued");
    assert!(matches!(start(store, third, room).await, AdvancedRun::Done { .. }));
    assert!(matches!(start(store, fourth, room).await, AdvancedRun::NoRoom { .. }));
    // A run that waits gives up its room of the workspace, and keeps that of its workflow.
    store.request_turns(&[wake(third)]).await.unwrap();
    let turn = claim(store, &wake(third).key).await;
    let third = read(store, third).await;
    let waits = store.advance_run(&turn, &progress(&third, RunStatus::Waiting)).await.unwrap();
    assert_eq!(woken(&waits), [fourth.id.to_string()]);
    let started = RunRoom { running: 9, started: 2, of_key: None, look_again_at: LATER };
    assert!(matches!(start(store, fourth, started).await, AdvancedRun::NoRoom { .. }), "two runs have started");
    // The end of a run gives up both.
    store.request_turns(&[wake(first)]).await.unwrap();
    let turn = claim(store, &wake(first).key).await;
    let first = read(store, first).await;
    let ended = store.advance_run(&turn, &progress(&first, RunStatus::Completed)).await.unwrap();
    assert_eq!(woken(&ended), [fourth.id.to_string(), second.id.to_string()]);
    // A woken run that is cancelled passes its room on.
    let turn = claim(store, &wake(second).key).await;
    let cancelled = store.advance_run(&turn, &progress(second, RunStatus::Cancelled)).await.unwrap();
    assert_eq!(woken(&cancelled), [fourth.id.to_string()]);
    assert!(matches!(start(store, fourth, room).await, AdvancedRun::Done { .. }));
}

pub(crate) async fn a_run_starts_its_child_in_the_same_transaction(store: &Store) {
    let parent = run(&workflow(store, "parent").await);
    let called = workflow(store, "called").await;
    let child = RunRow { parent_run_id: Some(parent.id), ..run(&called) };
    let first = RunStepRow { kind: "workflow".to_owned(), child_run_id: Some(child.id), ..step(&parent, "first") };
    assert_eq!(inserted(store, &parent).await, InsertedRun::Inserted);
    let turn = claim(store, &wake(&parent).key).await;
    let with = |max: RunsMax| {
        let child = NewChild::Run(Box::new(child.clone()), wake(&child), max);
        RunProgress {
            steps: vec![first.clone()],
            children: vec![ChildOfStep { step: first.key(), child }],
            ..progress(&parent, RunStatus::Waiting)
        }
    };
    let full = store.advance_run(&turn, &with(RunsMax { queued: 0, ..MAX })).await.unwrap();
    assert_eq!(full, AdvancedRun::Refused { step: first.key(), why: ChildRefusal::Full });
    assert!(steps(store, &parent).await.is_empty(), "nothing was written");
    assert_eq!(advanced(store, &turn, &with(MAX)).await, AfterTurn::Asleep);
    assert_eq!(read(store, &child).await.parent_run_id, Some(parent.id));
    assert_eq!(steps(store, &parent).await, [first]);
    claim(store, &wake(&child).key).await;
}

pub(crate) async fn a_key_that_is_gone_wakes_its_runs(store: &Store) {
    let (row, key) = (workflow(store, "a").await, KeyId::new());
    let of = |kind, id: String| RunRow { started_by_kind: kind, started_by_id: id, ..run(&row) };
    let own = of(RunStarter::Key, key.to_string());
    let others = [of(RunStarter::Key, KeyId::new().to_string()), of(RunStarter::Trigger, key.to_string())];
    for row in [&own, &others[0], &others[1]] {
        assert_eq!(inserted(store, row).await, InsertedRun::Inserted);
    }
    let woken = async |workspace| store.wake_runs_of_key(workspace, key, NOW).await.unwrap();
    let wakes = woken(own.workspace_id).await;
    assert_eq!(wakes.iter().map(|wake| wake.key.id().to_owned()).collect::<Vec<_>>(), [own.id.to_string()]);
    assert_eq!(woken(other_workspace(store).await).await, []);
    assert_eq!(store.count_unended_runs().await.unwrap(), [(RunStatus::Queued, 3)]);
    let turn = claim(store, &wake(&own).key).await;
    store.advance_run(&turn, &progress(&own, RunStatus::Cancelled)).await.unwrap();
    assert_eq!(woken(own.workspace_id).await, [], "an ended run has no turns");
    assert_eq!(store.count_unended_runs().await.unwrap(), [(RunStatus::Queued, 2)]);
}
