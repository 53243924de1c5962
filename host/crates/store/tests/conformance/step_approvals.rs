//! Tests of the approvals of steps: they are written with the turns of runs, end once, and wake what waits for them.

use monstrum_store::{
    ApprovalDecision, ApprovalFilter, ApprovalKind, ApprovalRow, ApprovalStatus, AskedApproval, BotRow, InsertedRun,
    NewApproval, NewWake, PendingMax, RunProgress, RunRow, RunStatus, RunStepPhase, RunStepRow, RunStepStatus, Store,
    StoreError,
};
use monstrum_types::{ApprovalId, Clock as _, KeyId, SystemClock, UtcMillis, WakeKey};
use serde_json::json;
use sqlx::Connection as _;

use crate::approvals::{approval, asked, decided};
use crate::authentic::Intruder;
use crate::deliveries;
use crate::rows::{self, NOW, default_workspace, other_workspace};
use crate::runs::{claim, inserted, progress, run, step, wake, workflow};
use crate::sqlite::Database;

const MAX: PendingMax = PendingMax { of_bot: 100, of_workspace: 1_000 };
const EXPIRED: UtcMillis = UtcMillis(NOW.0 + 60_000);

/// Returns an approval for which a step of the run asks. Numbers make different digests.
fn new(run: &RunRow, number: u32) -> NewApproval {
    let row = ApprovalRow {
        kind: ApprovalKind::Step,
        tool: None,
        resource_id: None,
        operation: None,
        effect: None,
        asked_key: None,
        run_id: Some(run.id),
        run_step: Some("ok".to_owned()),
        item: Some("3".to_owned()),
        targets: Some(json!([{ "step": "announce" }])),
        starters: Some(json!([])),
        ..approval(&bot_of(run), number)
    };
    let requested = deliveries::event(run.workspace_id, Some(run.bot_id));
    NewApproval { row, sealed: "question".to_owned(), requested, max: MAX }
}

/// Returns the row of a step of this kind that waits for an approval.
fn waiting(run: &RunRow, name: &str, kind: &str, approval: ApprovalId) -> RunStepRow {
    RunStepRow {
        kind: kind.to_owned(),
        status: RunStepStatus::Waiting,
        approval_id: Some(approval),
        request_id: None,
        ..step(run, name)
    }
}

/// Starts a run whose turn asks for these approvals, with these steps.
async fn asking(store: &Store, name: &str, approvals: &[u32]) -> (RunRow, Vec<NewApproval>) {
    let row = run(&workflow(store, name).await);
    assert_eq!(inserted(store, &row).await, InsertedRun::Inserted);
    let new: Vec<NewApproval> = approvals.iter().map(|number| new(&row, *number)).collect();
    let steps = new.iter().map(|new| waiting(&row, "ok", "approve", new.row.id)).enumerate();
    let steps = steps.map(|(index, step)| RunStepRow { item: index.to_string(), ..step }).collect();
    let turn = claim(store, &wake(&row).key).await;
    let asks = RunProgress { steps, approvals: new.clone(), ..progress(&row, RunStatus::Waiting) };
    store.advance_run(&turn, &asks).await.unwrap();
    (row, new)
}

async fn read(store: &Store, new: &NewApproval) -> ApprovalRow {
    store.approval(new.row.workspace_id, new.row.id).await.unwrap().expect("the row is authentic")
}

fn keys(wakes: &[NewWake]) -> Vec<&str> {
    wakes.iter().map(|wake| wake.key.as_str()).collect()
}

async fn is_due(store: &Store, key: &WakeKey) -> bool {
    let (due, _) = store.due_wakes(1 << 50, None, 1_000, SystemClock.now()).await.unwrap();
    due.iter().any(|wake| wake.key == *key)
}

pub(crate) async fn a_step_asks_in_the_turn_of_its_run_and_the_decision_wakes_the_run(store: &Store) {
    let (run, new) = asking(store, "w", &[1]).await;
    let key = wake(&run).key;
    assert!(!is_due(store, &key).await, "the run rests");
    let pending = read(store, &new[0]).await;
    assert_eq!(ApprovalRow { changed_at: new[0].row.changed_at, ..pending.clone() }, new[0].row);
    assert_eq!(store.approval_params(run.workspace_id, pending.id).await.unwrap().as_deref(), Some("question"));
    assert!(store.event(run.workspace_id, new[0].requested.id).await.unwrap().is_some());
    let before = store.generation().await.unwrap();

    let (key_id, at) = (KeyId::new(), NOW.plus_ms(5));
    let decide = store.decide_approval(&pending, ApprovalDecision::Approve, key_id, Some("go"), at);
    let (approved, wakes) = decide.await.unwrap().expect("the approval is pending");
    assert_eq!(
        (approved.status, approved.decided_by, approved.ended_at),
        (ApprovalStatus::Approved, Some(key_id), Some(at))
    );
    assert_eq!(keys(&wakes), [key.as_str()]);
    assert!(is_due(store, &key).await);
    assert_eq!(decided(store, &pending, ApprovalDecision::Deny).await, None, "the approval is decided");
    // The approval of a step grants nothing by itself, and does not expire after the decision.
    assert!(store.snapshot().await.unwrap().grants.is_empty());
    assert_eq!(store.generation().await.unwrap(), before);
    assert_eq!(store.due_approvals(EXPIRED, 10).await.unwrap(), []);
    assert_eq!(store.expire_approval(&approved, EXPIRED).await.unwrap(), None);
    assert_eq!(store.step_approval(run.workspace_id, &approved.digest).await.unwrap().as_ref(), Some(&approved));
    assert_eq!(store.step_approval(other_workspace(store).await, &approved.digest).await.unwrap(), None);
    let of_call = asked(store, &approval(&bot_of(&run), 7)).await;
    assert_eq!(store.step_approval(run.workspace_id, &of_call.digest).await.unwrap(), None);
}

fn bot_of(run: &RunRow) -> BotRow {
    BotRow { id: run.bot_id, ..rows::bot(run.workspace_id, "b") }
}

/// Steps with calls wait by themselves: after a gate, or because their call has changed.
pub(crate) async fn the_end_of_an_approval_wakes_the_steps_that_wait_for_it(store: &Store) {
    let row = run(&workflow(store, "w").await);
    assert_eq!(inserted(store, &row).await, InsertedRun::Inserted);
    let (first, second) = (new(&row, 1), new(&row, 2));
    let own = |name: &str| waiting(&row, name, "tool", first.row.id);
    let steps = vec![
        own("plain"),
        RunStepRow { item: "3.0".to_owned(), ..own("inner") },
        RunStepRow { item: "1".to_owned(), phase: RunStepPhase::Undo, ..own("undone") },
        RunStepRow { ended_at: Some(NOW), status: RunStepStatus::Failed, ..own("ended") },
        waiting(&row, "other", "tool", second.row.id),
    ];
    let turn = claim(store, &wake(&row).key).await;
    let asks =
        RunProgress { steps, approvals: vec![first.clone(), second.clone()], ..progress(&row, RunStatus::Waiting) };
    store.advance_run(&turn, &asks).await.unwrap();
    let pending = read(store, &first).await;
    let decide = store.decide_approval(&pending, ApprovalDecision::Deny, KeyId::new(), None, NOW.plus_ms(5));
    let (_, wakes) = decide.await.unwrap().unwrap();
    let id = row.id;
    let mut woken = keys(&wakes);
    woken.sort_unstable();
    let expected = [
        format!("run/{id}"),
        format!("step/{id}/inner/3.0"),
        format!("step/{id}/plain"),
        format!("step/{id}/undone/1/undo"),
    ];
    assert_eq!(woken, expected);
    for wake in &wakes {
        assert!(is_due(store, &wake.key).await, "{}", wake.key);
    }

    let pending = read(store, &second).await;
    assert_eq!(store.expire_approval(&pending, NOW.plus_ms(5)).await.unwrap(), None, "the approval has not expired");
    let wakes = store.expire_approval(&pending, EXPIRED).await.unwrap().expect("the approval has expired");
    assert_eq!(keys(&wakes), [format!("run/{id}"), format!("step/{id}/other")]);
    assert_eq!(read(store, &second).await.status, ApprovalStatus::Expired);
    assert_eq!(decided(store, &pending, ApprovalDecision::Approve).await, None);
}

pub(crate) async fn a_turn_that_asks_for_too_much_writes_nothing(store: &Store) {
    let row = run(&workflow(store, "w").await);
    assert_eq!(inserted(store, &row).await, InsertedRun::Inserted);
    let max = PendingMax { of_bot: 1, of_workspace: 9 };
    let approvals: Vec<NewApproval> = [1, 2].map(|number| NewApproval { max, ..new(&row, number) }).to_vec();
    assert_eq!(store.room_for_approvals(row.workspace_id, row.bot_id, max, NOW).await.unwrap(), 1);
    let turn = claim(store, &wake(&row).key).await;
    let asks = RunProgress {
        steps: vec![waiting(&row, "ok", "approve", approvals[0].row.id)],
        approvals: approvals.clone(),
        ..progress(&row, RunStatus::Waiting)
    };
    let refused = store.advance_run(&turn, &asks).await;
    assert!(matches!(refused, Err(StoreError::ChangedMeanwhile)), "{refused:?}");
    assert_eq!(store.run_steps(row.workspace_id, row.id, 9).await.unwrap(), []);
    assert_eq!(store.approval(row.workspace_id, approvals[0].row.id).await.unwrap(), None);
    assert_eq!(store.event(row.workspace_id, approvals[0].requested.id).await.unwrap(), None);

    let asks = RunProgress { approvals: approvals[..1].to_vec(), ..asks };
    store.advance_run(&turn, &asks).await.unwrap();
    assert_eq!(store.room_for_approvals(row.workspace_id, row.bot_id, max, NOW).await.unwrap(), 0);
    assert_eq!(store.room_for_approvals(row.workspace_id, row.bot_id, max, EXPIRED).await.unwrap(), 1);
    let again = store.ask_approval(&new(&row, 3).row, "x", None, max).await.unwrap();
    assert_eq!(again, AskedApproval::Full, "calls and steps share the limit");
}

pub(crate) async fn approvals_for_which_no_step_waits_become_void(store: &Store) {
    let (run, new) = asking(store, "w", &[1, 2, 3]).await;
    let approved = decided(store, &read(store, &new[0]).await, ApprovalDecision::Approve).await.unwrap();
    let of_call = asked(store, &approval(&bot_of(&run), 7)).await;
    let turn = claim(store, &wake(&run).key).await;
    let void = vec![new[0].row.id, new[1].row.id, of_call.id, ApprovalId::new()];
    store.advance_run(&turn, &RunProgress { void, ..progress(&run, RunStatus::Failed) }).await.unwrap();
    assert_eq!(read(store, &new[0]).await, approved, "a decision stays");
    let closed = read(store, &new[1]).await;
    assert_eq!((closed.status, closed.ended_at), (ApprovalStatus::Void, Some(NOW)));
    assert_eq!(decided(store, &closed, ApprovalDecision::Approve).await, None);
    assert_eq!(read(store, &new[2]).await.status, ApprovalStatus::Pending);
    let call = store.approval(run.workspace_id, of_call.id).await.unwrap().unwrap();
    assert_eq!(call.status, ApprovalStatus::Pending, "the approval of a call is not the run's");
    let before = closed.changed_at.plus_ms(-1);
    let changed = store.approvals_changed(run.workspace_id, ApprovalFilter::default(), before, 9).await.unwrap();
    assert_eq!(changed, [closed], "the end is the last change");

    // The run has ended, so that a decision has nothing to wake.
    let pending = read(store, &new[2]).await;
    let decide = store.decide_approval(&pending, ApprovalDecision::Approve, KeyId::new(), None, NOW.plus_ms(20));
    let (_, wakes) = decide.await.unwrap().unwrap();
    assert_eq!(keys(&wakes), Vec::<&str>::new());
}

pub(crate) async fn a_changed_call_makes_its_approval_void_once(store: &Store) {
    let (_, new) = asking(store, "w", &[1, 2]).await;
    let pending = read(store, &new[0]).await;
    assert!(!store.void_step_approval(&pending, NOW.plus_ms(5)).await.unwrap(), "the approval is pending");
    let approved = decided(store, &pending, ApprovalDecision::Approve).await.unwrap();
    let other = ApprovalRow { digest: new[1].row.digest.clone(), ..approved.clone() };
    assert!(!store.void_step_approval(&other, NOW.plus_ms(6)).await.unwrap(), "the approval is of another question");
    assert!(store.void_step_approval(&approved, NOW.plus_ms(6)).await.unwrap());
    assert!(!store.void_step_approval(&approved, NOW.plus_ms(7)).await.unwrap());
    assert_eq!(read(store, &new[0]).await.status, ApprovalStatus::Void);
    // The same question can be asked again.
    let again = ApprovalRow { id: ApprovalId::new(), ..new[0].row.clone() };
    assert!(matches!(store.ask_approval(&again, "question", None, MAX).await.unwrap(), AskedApproval::New(_)));
}

/// The MAC covers every property of a question, and its absence.
pub(crate) async fn an_edited_question_is_rejected(store: &Store, intruder: &mut impl Intruder) {
    let (run, new) = asking(store, "w", &[1]).await;
    let id = new[0].row.id;
    for (column, value) in [
        ("run_id", "'01998a3c-0000-7000-8000-000000000001'"),
        ("run_step", "'other'"),
        ("item", "null"),
        ("item", "'4'"),
        ("targets", "'[]'"),
        ("starters", "'[\"01998a3c-0000-7000-8000-000000000001\"]'"),
        ("approvers", "'[\"operator\"]'"),
    ] {
        let before = intruder_copy(intruder, id).await;
        intruder.run(format!("update approvals set {column} = {value} where id = '{id}'")).await;
        assert_eq!(store.approval(run.workspace_id, id).await.unwrap(), None, "{column} = {value}");
        intruder.run(format!("delete from approvals where id = '{id}'")).await;
        intruder.run(before).await;
        assert_eq!(read(store, &new[0]).await.status, ApprovalStatus::Pending);
        intruder.run("drop table kept_question".to_owned()).await;
    }
    let of_call = asked(store, &approval(&bot_of(&run), 7)).await;
    intruder.run(format!("update approvals set item = '3' where id = '{}'", of_call.id)).await;
    assert_eq!(store.approval(run.workspace_id, of_call.id).await.unwrap(), None);
}

/// Keeps a copy of a row, and returns the statement that puts it back.
async fn intruder_copy(intruder: &mut impl Intruder, id: ApprovalId) -> String {
    intruder.run(format!("create table kept_question as select * from approvals where id = '{id}'")).await;
    "insert into approvals select * from kept_question".to_owned()
}

/// An approval of a release without steps has the same MAC afterwards.
#[tokio::test]
async fn an_approval_of_an_earlier_release_stays_authentic() {
    const COLUMNS: &str = "id, workspace_id, kind, digest, definition, status, bot_id, app_id, user_id, tool, \
                           resource_id, operation, effect, links, labels, gates, approvers, allow_starter, asked_key, \
                           asked_task, request_id, created_at, expires_at, decided_by, decided_at, note, ended_at, \
                           changed_at, sealed, mac";
    let newer = Database::create();
    let store = newer.open().await.unwrap();
    let bot = rows::bot(default_workspace(&store).await, "b");
    store.insert_bot(&bot).await.unwrap();
    let pending = asked(&store, &approval(&bot, 1)).await;
    let granted = asked(&store, &approval(&bot, 2)).await;
    let granted = decided(&store, &granted, ApprovalDecision::Approve).await.unwrap();
    store.close().await;

    let database = Database::create();
    let mut older = database.older(34).await;
    older.run(format!("attach '{}' as newer", newer.path().display())).await;
    for table in ["workspaces", "policy_seals", "instance_keys", "bots", "approval_grants"] {
        older.run(format!("delete from main.{table}")).await;
        older.run(format!("insert into main.{table} select * from newer.{table}")).await;
    }
    older.run(format!("insert into main.approvals ({COLUMNS}) select {COLUMNS} from newer.approvals")).await;
    older.run("detach newer".to_owned()).await;
    older.close().await.unwrap();
    let store = database.open().await.unwrap();
    for row in [pending, granted] {
        let read = store.approval(bot.workspace_id, row.id).await.unwrap();
        assert_eq!(read.as_ref(), Some(&row), "the MAC is valid");
        assert_eq!(store.approval_params(bot.workspace_id, row.id).await.unwrap().as_deref(), Some("sealed"));
    }
    assert_eq!(store.snapshot().await.unwrap().unverified.len(), 0);
}
