//! Tests of tasks, their steps and their sessions: the transactions of turns, and the limits of sessions.

use std::collections::HashSet;

use monstrum_store::{
    AfterTurn, ApprovalDecision, ApprovalRow, AuditKind, BotRow, DeletedSessions, EndedStep, EventRow, InsertedTask,
    NewClaim, NewSession, NewWake, Page, SandboxRow, SandboxStatus, SealedColumn, SessionFilter, SessionRow, Store,
    StoreError, TaskEnd, TaskFilter, TaskProgress, TaskRow, TaskStatus, TaskStepKind, TaskStepRow, TasksMax, WakeClaim,
};
use monstrum_types::{
    Clock as _, EventId, KeyId, Labels, RequestId, SessionId, SystemClock, TaskId, UtcMillis, WakeClaimId, WakeKey,
    WakeKind,
};

use crate::approvals;
use crate::rows::{self, AppendRows as _, NOW, default_workspace, other_workspace};
use crate::sandboxes::{of_app, sandbox};

const MAX: TasksMax = TasksMax { of_workspace: 3, of_tree: None };

fn now() -> UtcMillis {
    SystemClock.now()
}

async fn bot(store: &Store, name: &str) -> BotRow {
    let row = rows::bot(default_workspace(store).await, name);
    store.insert_bot(&row).await.unwrap();
    row
}

fn event(bot: &BotRow, event_type: &str) -> EventRow {
    let id = EventId::new();
    EventRow {
        id,
        workspace_id: bot.workspace_id,
        event_type: event_type.to_owned(),
        source_type: "task".to_owned(),
        source_id: "t".to_owned(),
        bot_id: Some(bot.id),
        root_event_id: id,
        depth: 0,
        links: "{}".to_owned(),
        created_at: NOW,
        sealed: "sealed".to_owned(),
    }
}

fn session(bot: &BotRow, chat: &str) -> NewSession {
    let row = SessionRow {
        id: SessionId::new(),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        app_id: "app".to_owned(),
        user_id: "ada".to_owned(),
        chat_id: chat.to_owned(),
        created_at: NOW,
        used_at: NOW,
        expired_at: None,
        labels: Labels::none(),
    };
    NewSession { row, created: event(bot, "session.created"), after: None }
}

/// Returns the row of a new task of a session.
pub(super) fn task(bot: &BotRow, session_id: SessionId) -> TaskRow {
    TaskRow {
        id: TaskId::new(),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        session_id: Some(session_id),
        parent_id: None,
        status: TaskStatus::Queued,
        code: None,
        key_id: Some(KeyId::new()),
        steps: 0,
        input_tokens: 0,
        output_tokens: 0,
        created_at: NOW,
        started_at: None,
        cancelled_at: None,
        ended_at: None,
        waiting_for: None,
        waiting_since: None,
        waited_ms: 0,
        labels: Labels::none(),
        sealed: "sealed".to_owned(),
        app_id: None,
        chat_id: None,
    }
}

fn wake(task: &TaskRow) -> NewWake {
    let key = WakeKey::new(WakeKind::Task, task.id).unwrap();
    NewWake { key, workspace_id: task.workspace_id, due_at: UtcMillis(0), claim: None }
}

async fn inserted(store: &Store, task: &TaskRow, new: Option<&NewSession>) -> InsertedTask {
    store.insert_task(task, new, &wake(task), MAX).await.unwrap()
}

async fn claim(store: &Store, task: &TaskRow) -> WakeClaim {
    let wakes = [(wake(task).key, UtcMillis(0), WakeClaimId::new())];
    store.claim_wakes("node", &wakes, now()).await.unwrap().remove(0)
}

fn step(task: &TaskRow, sequence: i64, kind: TaskStepKind) -> TaskStepRow {
    let is_round = kind == TaskStepKind::Round;
    TaskStepRow {
        task_id: task.id,
        sequence,
        workspace_id: task.workspace_id,
        kind,
        request_id: Some(RequestId::new()),
        tool: (!is_round).then(|| "echo".to_owned()),
        effect: (!is_round).then(|| "read".to_owned()),
        status: is_round.then(|| "success".to_owned()),
        started_at: NOW,
        ended_at: is_round.then_some(NOW),
        sealed: format!("step {sequence}"),
    }
}

fn end_of(task: &TaskRow, sequence: i64, claim: &WakeClaim) -> EndedStep {
    EndedStep {
        task_id: task.id,
        sequence,
        wake: claim.key.clone(),
        claim: claim.id,
        status: "success".to_owned(),
        ended_at: NOW,
        sealed: format!("end {sequence}"),
    }
}

fn end(task: &TaskRow) -> TaskEnd {
    let (status, sealed) = (TaskStatus::Completed, "result".to_owned());
    TaskEnd { task_id: task.id, status, code: None, ended_at: NOW, sealed }
}

async fn run_to_end(store: &Store, task: &TaskRow, bot: &BotRow, ended_at: UtcMillis) {
    let claim = claim(store, task).await;
    store.begin_task_turn(&claim, task.id, NOW).await.unwrap().unwrap();
    let end = TaskEnd { ended_at, ..end(task) };
    store.end_task(&claim, &end, &event(bot, "task.completed")).await.unwrap();
}

async fn steps(store: &Store, task: &TaskRow) -> Vec<TaskStepRow> {
    store.task_steps(task.workspace_id, task.id, 0, 100).await.unwrap()
}

pub(crate) async fn a_session_runs_one_task_at_a_time(store: &Store) {
    let bot = bot(store, "one").await;
    let new = session(&bot, "chat");
    let (first, second) = (task(&bot, new.row.id), task(&bot, new.row.id));
    assert_eq!(inserted(store, &first, Some(&new)).await, InsertedTask::Inserted);
    assert_eq!(inserted(store, &second, None).await, InsertedTask::Busy);
    let again = session(&bot, "chat");
    assert_eq!(inserted(store, &task(&bot, again.row.id), Some(&again)).await, InsertedTask::Busy);
    assert_eq!(store.delete_session(&new.row).await.unwrap(), DeletedSessions::Busy);
    run_to_end(store, &first, &bot, NOW).await;
    assert_eq!(inserted(store, &second, None).await, InsertedTask::Inserted);
    // The next session of the conversation replaces one that has expired. A session with a running task does not expire.
    let next = NewSession { after: Some((new.row.id, event(&bot, "session.expired"))), ..session(&bot, "chat") };
    assert_eq!(inserted(store, &task(&bot, next.row.id), Some(&next)).await, InsertedTask::Busy);
    assert!(store.is_session_busy(bot.workspace_id, new.row.id).await.unwrap());
    let open = store.session_of_chat(bot.workspace_id, "app", "chat").await.unwrap().unwrap();
    assert_eq!((open.id, open.expired_at, open.used_at), (new.row.id, None, NOW));
    run_to_end(store, &second, &bot, NOW.plus_ms(9)).await;
    let open = store.session_of_chat(bot.workspace_id, "app", "chat").await.unwrap().unwrap();
    assert_eq!(open.used_at, NOW.plus_ms(9), "the end of the last task");
    assert!(!store.is_session_busy(bot.workspace_id, new.row.id).await.unwrap());
    assert_eq!(inserted(store, &task(&bot, next.row.id), Some(&next)).await, InsertedTask::Inserted);
    assert_eq!(inserted(store, &task(&bot, new.row.id), None).await, InsertedTask::NoSession);
    let open = store.session_of_chat(bot.workspace_id, "app", "chat").await.unwrap().unwrap();
    assert_eq!(open.id, next.row.id);
    let other = session(&bot, "other");
    assert_eq!(inserted(store, &task(&bot, other.row.id), Some(&other)).await, InsertedTask::Inserted);
    let third = session(&bot, "third");
    assert_eq!(inserted(store, &task(&bot, third.row.id), Some(&third)).await, InsertedTask::Inserted);
    let full = session(&bot, "full");
    assert_eq!(inserted(store, &task(&bot, full.row.id), Some(&full)).await, InsertedTask::Full);
    assert_eq!(store.session(bot.workspace_id, full.row.id).await.unwrap(), None, "nothing was written");
    let ended = TaskFilter { status: Some(TaskStatus::Completed), ..TaskFilter::default() };
    let listed = store.tasks(bot.workspace_id, ended, &Page::first(10)).await.unwrap();
    let listed: HashSet<TaskId> = listed.items.iter().map(|task| task.id).collect();
    assert_eq!(listed, HashSet::from([first.id, second.id]));
    let of_ada = SessionFilter { user: Some("ada".to_owned()), ..SessionFilter::default() };
    let page = store.sessions(bot.workspace_id, &of_ada, &Page::first(2)).await.unwrap();
    assert_eq!((page.items.len(), page.items[0].id), (2, third.row.id));
    let foreign = other_workspace(store).await;
    assert_eq!(store.task(foreign, first.id).await.unwrap(), None);
    assert_eq!(store.session(foreign, new.row.id).await.unwrap(), None);
    assert!(store.is_task(first.id).await.unwrap() && !store.is_task(TaskId::new()).await.unwrap());
}

/// Returns the labels of a task and of its session.
async fn labels_of(store: &Store, task: &TaskRow) -> [String; 2] {
    let row = store.task(task.workspace_id, task.id).await.unwrap().unwrap();
    let session = store.session(task.workspace_id, task.session_id.unwrap()).await.unwrap().unwrap();
    [row.labels, session.labels].map(|labels| labels.to_string())
}

pub(crate) async fn labels_of_a_session_only_grow(store: &Store) {
    let bot = bot(store, "one").await;
    let new = session(&bot, "chat");
    let first = task(&bot, new.row.id);
    inserted(store, &first, Some(&new)).await;
    let claim = claim(store, &first).await;
    store.begin_task_turn(&claim, first.id, NOW).await.unwrap().unwrap();
    let read = async |labels: Option<&str>| {
        let labels = labels.map(Labels::from_text);
        let progress = TaskProgress { task_id: first.id, input_tokens: 1, output_tokens: 1, labels, steps: Vec::new() };
        assert!(store.advance_task(&claim, &progress).await.unwrap());
    };
    read(Some("a b")).await;
    read(None).await;
    assert_eq!(labels_of(store, &first).await, ["a b", "a b"]);
    read(Some("c")).await;
    assert_eq!(labels_of(store, &first).await, ["c", "a b c"]);
    store.end_task(&claim, &end(&first), &event(&bot, "task.completed")).await.unwrap();
    // The next session of the conversation has the labels of the one that it replaces, although its row names others.
    let mut next = NewSession { after: Some((new.row.id, event(&bot, "session.expired"))), ..session(&bot, "chat") };
    next.row.labels = Labels::from_text("d");
    let second = task(&bot, next.row.id);
    assert_eq!(inserted(store, &second, Some(&next)).await, InsertedTask::Inserted);
    assert_eq!(labels_of(store, &second).await, ["", "a b c d"]);
}

pub(crate) async fn a_session_with_labels_is_kept_as_long_as_the_sandbox(store: &Store) {
    let bot = bot(store, "one").await;
    let begun = async |chat: &str, labels: &str, has_sandbox: bool| {
        let mut new = session(&bot, chat);
        new.row.labels = Labels::from_text(labels);
        let task = task(&bot, new.row.id);
        assert_eq!(inserted(store, &task, Some(&new)).await, InsertedTask::Inserted);
        run_to_end(store, &task, &bot, NOW).await;
        if has_sandbox {
            sandbox_of_ada(store, &bot, chat).await;
        }
        new.row.id
    };
    let kept = begun("kept", "private", true).await;
    begun("unlabelled", "", true).await;
    begun("empty", "private", false).await;
    assert_eq!(store.forget_tasks(NOW.plus_ms(1)).await.unwrap(), 3);
    assert_eq!(store.forget_sessions(NOW.plus_ms(1)).await.unwrap(), 2);
    assert!(store.session(bot.workspace_id, kept).await.unwrap().is_some());
}

pub(crate) async fn the_time_for_which_a_task_waits_is_kept(store: &Store) {
    let bot = bot(store, "one").await;
    let new = session(&bot, "chat");
    let task = task(&bot, new.row.id);
    inserted(store, &task, Some(&new)).await;
    let first = claim(store, &task).await;
    store.begin_task_turn(&first, task.id, NOW).await.unwrap().unwrap();
    let shown = async || {
        let row = store.task(task.workspace_id, task.id).await.unwrap().unwrap();
        (row.status, row.waiting_for, row.waited_ms)
    };
    let at = |ms: i64| NOW.plus_ms(ms);
    store.set_task_waiting(&first, task.id, Some("approval/a"), at(10)).await.unwrap();
    // The task waits for something else now, without a break.
    store.set_task_waiting(&first, task.id, Some("approval/b"), at(20)).await.unwrap();
    assert_eq!(shown().await, (TaskStatus::Waiting, Some("approval/b".to_owned()), 0));
    store.set_task_waiting(&first, task.id, None, at(110)).await.unwrap();
    assert_eq!(shown().await, (TaskStatus::Running, None, 100));
    store.set_task_waiting(&first, task.id, Some("approval/c"), at(200)).await.unwrap();
    // The host stops, and another one continues.
    store.release_claims(&[(first.key.clone(), first.id)]).await.unwrap();
    let second = claim(store, &task).await;
    let lost = store.set_task_waiting(&first, task.id, None, at(250)).await;
    assert!(matches!(lost, Err(StoreError::LostClaim)), "{lost:?}");
    let resumed = store.begin_task_turn(&second, task.id, at(300)).await.unwrap().unwrap();
    assert_eq!((resumed.status, resumed.waiting_for, resumed.waited_ms), (TaskStatus::Running, None, 200));
    store.set_task_waiting(&second, task.id, Some("approval/d"), at(400)).await.unwrap();
    store.end_task(&second, &end(&task), &event(&bot, "task.completed")).await.unwrap();
    store.set_task_waiting(&second, task.id, Some("approval/e"), at(500)).await.unwrap_err();
    assert_eq!(shown().await, (TaskStatus::Completed, None, 200));
}

pub(crate) async fn steps_are_written_by_the_turn_that_has_the_claim(store: &Store) {
    let bot = bot(store, "one").await;
    let new = session(&bot, "chat");
    let task = task(&bot, new.row.id);
    inserted(store, &task, Some(&new)).await;
    let first = claim(store, &task).await;
    let begun = store.begin_task_turn(&first, task.id, NOW).await.unwrap().unwrap();
    assert_eq!((begun.status, begun.started_at), (TaskStatus::Running, Some(NOW)));
    let planned =
        [step(&task, 1, TaskStepKind::Round), step(&task, 2, TaskStepKind::Call), step(&task, 3, TaskStepKind::Call)];
    let (labels, of_round) = (Some(Labels::from_text("private")), planned.to_vec());
    let progress = TaskProgress { task_id: task.id, input_tokens: 5, output_tokens: 2, labels, steps: of_round };
    assert!(store.advance_task(&first, &progress).await.unwrap());
    assert_eq!(steps(store, &task).await, planned);
    assert_eq!(labels_of(store, &task).await, ["private", "private"]);
    store.end_task_steps(&[end_of(&task, 2, &first)]).await.unwrap();
    // A step ends once.
    let again = EndedStep { sealed: "other".to_owned(), ..end_of(&task, 2, &first) };
    store.end_task_steps(&[again]).await.unwrap();
    assert_eq!(steps(store, &task).await[1].sealed, "end 2");

    store.release_claims(&[(first.key.clone(), first.id)]).await.unwrap();
    let second = claim(store, &task).await;
    store.end_task_steps(&[end_of(&task, 3, &first)]).await.unwrap();
    assert_eq!(steps(store, &task).await[2].status, None, "the claim was replaced");
    assert!(matches!(store.advance_task(&first, &progress).await, Err(StoreError::LostClaim)));
    let begun = store.begin_task_turn(&first, task.id, NOW).await;
    assert!(matches!(begun, Err(StoreError::LostClaim)), "{begun:?}");
    let ended = store.end_task(&first, &end(&task), &event(&bot, "task.completed")).await;
    assert!(matches!(ended, Err(StoreError::LostClaim)), "{ended:?}");
    let resumed = store.begin_task_turn(&second, task.id, NOW.plus_ms(9)).await.unwrap().unwrap();
    assert_eq!((resumed.started_at, resumed.steps), (Some(NOW), 2));
    assert_eq!((resumed.input_tokens, resumed.output_tokens), (5, 2));
    store.end_task_steps(&[end_of(&task, 3, &second)]).await.unwrap();
    assert_eq!(steps(store, &task).await[2].status.as_deref(), Some("success"));

    assert!(store.is_task_wanted(task.workspace_id, task.id).await.unwrap());
    assert!(store.cancel_task(task.workspace_id, task.id, NOW).await.unwrap());
    assert!(!store.is_task_wanted(task.workspace_id, task.id).await.unwrap());
    assert!(!store.cancel_task(task.workspace_id, task.id, NOW).await.unwrap(), "it is being cancelled");
    store.end_task(&second, &end(&task), &event(&bot, "task.completed")).await.unwrap();
    let row = store.task(task.workspace_id, task.id).await.unwrap().unwrap();
    assert_eq!((row.status, row.steps, row.sealed.as_str()), (TaskStatus::Completed, 3, "result"));
    assert_eq!(store.earlier_tasks(&TaskRow { id: TaskId::new(), ..row.clone() }, 9).await.unwrap(), [row]);
    let records = store.sealed_records(SealedColumn::TaskSteps, None, 10).await.unwrap().records;
    assert_eq!(records.iter().map(|record| record.sealed.as_str()).collect::<Vec<_>>(), ["step 1", "end 2", "end 3"]);
    assert_eq!(store.count_sealed(SealedColumn::Tasks).await.unwrap(), 1);

    assert_eq!(store.forget_tasks(NOW).await.unwrap(), 0);
    assert_eq!(store.forget_sessions(NOW.plus_ms(1)).await.unwrap(), 0, "the session has a task");
    assert_eq!(store.forget_tasks(NOW.plus_ms(1)).await.unwrap(), 1);
    assert!(steps(store, &task).await.is_empty());
    let other = ended_session(store, &bot, "other", None).await;
    assert_eq!(store.forget_sessions(NOW).await.unwrap(), 0, "the session was used at this time");
    assert_eq!(store.forget_sessions(NOW.plus_ms(1)).await.unwrap(), 1);
    assert_eq!(store.session(bot.workspace_id, new.row.id).await.unwrap(), None);
    assert!(store.delete_bot(bot.workspace_id, bot.id).await.unwrap());
    assert_eq!(store.session(bot.workspace_id, other.id).await.unwrap(), None);
}

pub(crate) async fn a_call_whose_start_may_be_in_an_archive_counts_as_started(store: &Store) {
    let workspace = default_workspace(store).await;
    let (started, other) = (RequestId::new(), RequestId::new());
    let has_started = async |request, since| store.has_started(workspace, request, since).await.unwrap();
    store.append_rows(&[rows::event(workspace, 1, AuditKind::Started, started)]).await.unwrap();
    assert!(has_started(started, NOW).await && !has_started(other, NOW).await);
    store.replace_with_anchor(&rows::anchor(1, 1)).await.unwrap();
    assert!(has_started(started, NOW).await);
    assert!(!has_started(started, NOW.plus_ms(1)).await, "the archive ends before the call was planned");
}

/// A tree counts the tasks that have ended, and no task of another tree.
pub(crate) async fn a_tree_of_tasks_has_a_maximum(store: &Store) {
    let bot = bot(store, "one").await;
    let root = TaskRow { session_id: None, ..task(&bot, SessionId::new()) };
    assert_eq!(inserted(store, &root, None).await, InsertedTask::Inserted);
    run_to_end(store, &root, &bot, NOW).await;
    let max = TasksMax { of_tree: Some((root.id, 3)), ..MAX };
    let below = async |parent: &TaskRow, max: TasksMax| {
        let child = TaskRow { id: TaskId::new(), parent_id: Some(parent.id), ..root.clone() };
        let inserted = store.insert_task(&child, None, &wake(&child), max).await.unwrap();
        (child, inserted)
    };
    let (child, inserted) = below(&root, max).await;
    assert_eq!(inserted, InsertedTask::Inserted);
    run_to_end(store, &child, &bot, NOW).await;
    assert_eq!(store.task(bot.workspace_id, child.id).await.unwrap().unwrap().parent_id, Some(root.id));
    let (grandchild, inserted) = below(&child, max).await;
    assert_eq!(inserted, InsertedTask::Inserted);
    for parent in [&root, &child, &grandchild] {
        assert_eq!(below(parent, max).await.1, InsertedTask::TreeFull);
    }
    let other = TasksMax { of_tree: Some((TaskId::new(), 3)), ..MAX };
    assert_eq!(below(&root, other).await.1, InsertedTask::Inserted);
}

/// The clock of the host that inserts the task is an hour late. Other hosts share a database of PostgreSQL only, whose
/// clock counts.
pub(crate) async fn the_claim_of_a_new_task_follows_the_clock_for_wakes(store: &Store) {
    let bot = bot(store, "one").await;
    let new = session(&bot, "chat");
    let task = task(&bot, new.row.id);
    let late = now().plus_ms(-3_600_000);
    let claim = NewClaim { id: WakeClaimId::new(), node: "late".to_owned(), until: late.plus_ms(30_000) };
    let wake = NewWake { due_at: late, claim: Some(claim), ..wake(&task) };
    assert_eq!(store.insert_task(&task, Some(&new), &wake, MAX).await.unwrap(), InsertedTask::Inserted);
    let taken = store.claim_wakes("other", &[(wake.key, UtcMillis(0), WakeClaimId::new())], now()).await.unwrap();
    assert_eq!(taken.is_empty(), store.is_shared(), "{taken:?}");
    let wakes = store.wakes(bot.workspace_id, false, &Page::first(10)).await.unwrap().items;
    let row = wakes.into_iter().find(|row| row.key.kind() == WakeKind::Task).unwrap();
    assert_eq!(row.due_at == late, !store.is_shared());
}

/// Inserts a session of a conversation after another one, with a task that has ended.
async fn ended_session(store: &Store, bot: &BotRow, chat: &str, after: Option<SessionId>) -> SessionRow {
    let after = after.map(|id| (id, event(bot, "session.expired")));
    let new = NewSession { after, ..session(bot, chat) };
    let task = task(bot, new.row.id);
    assert_eq!(inserted(store, &task, Some(&new)).await, InsertedTask::Inserted);
    run_to_end(store, &task, bot, NOW).await;
    new.row
}

async fn is_deleting(store: &Store, row: &SandboxRow) -> bool {
    store.sandbox(row.workspace_id, row.id).await.unwrap().unwrap().status == SandboxStatus::Deleting
}

async fn sandbox_of_ada(store: &Store, bot: &BotRow, chat: &str) -> SandboxRow {
    let row = SandboxRow { user_id: Some("ada".to_owned()), ..sandbox(bot, chat) };
    assert!(store.insert_sandbox(&row).await.unwrap());
    row
}

pub(crate) async fn a_session_is_deleted_with_the_sandbox_that_no_open_session_uses(store: &Store) {
    let (one, two) = (bot(store, "one").await, bot(store, "two").await);
    let expired = ended_session(store, &one, "chat", None).await;
    let open = ended_session(store, &one, "chat", Some(expired.id)).await;
    let used = sandbox_of_ada(store, &one, "chat").await;
    assert_eq!(store.delete_session(&expired).await.unwrap(), DeletedSessions::Deleted);
    assert_eq!(store.delete_session(&expired).await.unwrap(), DeletedSessions::Absent);
    assert!(!is_deleting(store, &used).await, "the open session uses the sandbox");
    assert_eq!(store.delete_session(&open).await.unwrap(), DeletedSessions::Deleted);
    assert!(is_deleting(store, &used).await);
    assert_eq!(store.session(one.workspace_id, open.id).await.unwrap(), None);
    // The sandbox of a conversation may belong to another bot.
    let session = ended_session(store, &one, "other", None).await;
    let of_two = sandbox_of_ada(store, &two, "other").await;
    assert_eq!(store.delete_session(&session).await.unwrap(), DeletedSessions::Deleted);
    assert!(!is_deleting(store, &of_two).await);
}

pub(crate) async fn conversations_are_deleted_unless_a_task_of_them_runs(store: &Store) {
    let (one, two) = (bot(store, "one").await, bot(store, "two").await);
    let workspace = one.workspace_id;
    let expired = ended_session(store, &one, "a", None).await;
    let open = ended_session(store, &one, "a", Some(expired.id)).await;
    let other = ended_session(store, &two, "b", None).await;
    let (of_a, of_b) = (sandbox_of_ada(store, &one, "a").await, sandbox_of_ada(store, &two, "b").await);
    let running = task(&two, other.id);
    assert_eq!(inserted(store, &running, None).await, InsertedTask::Inserted);
    let delete = async |bot, chat| store.delete_conversations(workspace, of_app(bot, chat)).await.unwrap();
    let exists = async |row: &SessionRow| store.session(workspace, row.id).await.unwrap().is_some();
    assert_eq!(delete(None, Some("b")).await, None);
    assert_eq!(delete(None, None).await, None);
    assert!(exists(&expired).await && exists(&open).await && exists(&other).await);
    assert!(!is_deleting(store, &of_a).await && !is_deleting(store, &of_b).await);
    let foreign = other_workspace(store).await;
    assert_eq!(store.delete_conversations(foreign, of_app(None, None)).await.unwrap(), Some(0));
    assert_eq!(delete(Some(two.id), Some("a")).await, Some(0), "a conversation of another bot");
    assert!(exists(&open).await);
    assert_eq!(delete(Some(one.id), Some("a")).await, Some(1));
    assert!(!exists(&expired).await && !exists(&open).await && exists(&other).await);
    run_to_end(store, &running, &two, NOW).await;
    assert_eq!(delete(None, None).await, Some(1));
    assert!(!exists(&other).await && is_deleting(store, &of_b).await);
    assert_eq!(store.task(workspace, running.id).await.unwrap(), None);
}

/// A task of a client that keeps the conversation, and a task of another bot, have no session.
pub(crate) async fn tasks_without_a_session_are_deleted_with_their_conversation(store: &Store) {
    let (one, two) = (bot(store, "one").await, bot(store, "two").await);
    let workspace = one.workspace_id;
    let of_chat = |bot: &BotRow, chat: Option<&str>| TaskRow {
        session_id: None,
        app_id: chat.map(|_| "app".to_owned()),
        chat_id: chat.map(str::to_owned),
        ..task(bot, SessionId::new())
    };
    let delete = async |bot, chat| store.delete_conversations(workspace, of_app(bot, chat)).await.unwrap();
    let exists = async |task: &TaskRow| store.task(workspace, task.id).await.unwrap().is_some();
    let [first, below, of_none] = [of_chat(&one, Some("a")), of_chat(&two, Some("a")), of_chat(&one, None)];
    for task in [&first, &below, &of_none] {
        assert_eq!(inserted(store, task, None).await, InsertedTask::Inserted);
        assert_eq!(store.task(workspace, task.id).await.unwrap().as_ref(), Some(task));
    }
    assert_eq!(delete(None, Some("a")).await, None, "both run");
    run_to_end(store, &first, &one, NOW).await;
    assert_eq!(delete(None, Some("a")).await, None, "the task of the other bot runs");
    assert_eq!(delete(None, None).await, None);
    assert_eq!(delete(None, Some("b")).await, Some(0), "another conversation");
    assert!(exists(&first).await && exists(&below).await);
    assert_eq!(delete(Some(one.id), Some("a")).await, Some(0));
    assert!(!exists(&first).await && exists(&below).await, "the tasks of the caller's bot");
    run_to_end(store, &below, &two, NOW).await;
    assert_eq!(delete(None, None).await, Some(0));
    assert!(!exists(&below).await && exists(&of_none).await);
}

/// Listeners read a task again only if its state has changed, so each write that they can see changes it.
pub(crate) async fn each_write_of_a_turn_changes_the_state_of_its_task(store: &Store) {
    let bot = bot(store, "one").await;
    let new = session(&bot, "chat");
    let task = task(&bot, new.row.id);
    inserted(store, &task, Some(&new)).await;
    let mut seen = Vec::new();
    let mut changes = async |what: &str| {
        let state = store.task_state(task.workspace_id, task.id).await.unwrap().unwrap();
        assert!(!seen.contains(&state), "{what}");
        seen.push(state);
    };
    changes("the beginning").await;
    let claim = claim(store, &task).await;
    store.begin_task_turn(&claim, task.id, NOW).await.unwrap().unwrap();
    changes("a turn").await;
    let steps = vec![step(&task, 1, TaskStepKind::Round), step(&task, 2, TaskStepKind::Call)];
    let progress = TaskProgress { task_id: task.id, input_tokens: 0, output_tokens: 0, labels: None, steps };
    assert!(store.advance_task(&claim, &progress).await.unwrap());
    changes("a round").await;
    store.set_task_waiting(&claim, task.id, Some("approval/1"), NOW).await.unwrap();
    changes("a wait").await;
    store.set_task_waiting(&claim, task.id, Some("approval/2"), NOW).await.unwrap();
    changes("another wait").await;
    let ended = EndedStep {
        task_id: task.id,
        sequence: 2,
        wake: claim.key.clone(),
        claim: claim.id,
        status: "success".to_owned(),
        ended_at: NOW,
        sealed: "end".to_owned(),
    };
    store.end_task_steps(&[ended]).await.unwrap();
    changes("the end of a call").await;
    assert!(store.cancel_task(task.workspace_id, task.id, NOW).await.unwrap());
    changes("a cancellation").await;
    store.end_task(&claim, &end(&task), &event(&bot, "task.completed")).await.unwrap();
    changes("the end").await;
    assert_eq!(store.task_state(other_workspace(store).await, task.id).await.unwrap(), None);
}

/// One task has asked, and another one waits for the same approval. A third one waits for nothing.
pub(crate) async fn a_decision_wakes_the_tasks_that_wait_for_it(store: &Store) {
    let bot = bot(store, "one").await;
    let tasks = [(); 3].map(|()| TaskRow { session_id: None, ..task(&bot, SessionId::new()) });
    let far = now().plus_ms(3_600_000);
    let row = approvals::approval(&bot, 1);
    let row = ApprovalRow { asked_task: Some(tasks[0].id.to_string()), expires_at: far, created_at: now(), ..row };
    let asked = approvals::asked(store, &row).await;
    for (task, waits_for) in tasks.iter().zip(["approval/other", &format!("approval/{}", asked.id), "approval/other"]) {
        inserted(store, task, None).await;
        let claim = claim(store, task).await;
        store.begin_task_turn(&claim, task.id, NOW).await.unwrap().unwrap();
        let after = store.park_task(&claim, task.id, waits_for, far, NOW.plus_ms(1)).await.unwrap();
        assert_eq!(after, AfterTurn::Due(far));
        let state = store.task_state(task.workspace_id, task.id).await.unwrap().unwrap();
        assert_eq!((state.status, state.waiting_for.as_deref()), (TaskStatus::Waiting, Some(waits_for)));
    }
    assert_eq!(store.due_wakes(0, None, 9, now()).await.unwrap().0, []);
    assert!(approvals::decided(store, &asked, ApprovalDecision::Deny).await.is_some());
    let mut due: Vec<WakeKey> =
        store.due_wakes(0, None, 9, now()).await.unwrap().0.into_iter().map(|due| due.key).collect();
    due.sort();
    let mut expected = [wake(&tasks[0]).key, wake(&tasks[1]).key];
    expected.sort();
    assert_eq!(due, expected);
    // The time of the wait does not count.
    let claim = claim(store, &tasks[0]).await;
    let row = store.begin_task_turn(&claim, tasks[0].id, NOW.plus_ms(3_600_001)).await.unwrap().unwrap();
    assert_eq!((row.status, row.waited_ms), (TaskStatus::Running, 3_600_000));
    // A decision that comes before the end of the turn is not lost.
    let other = ApprovalRow { asked_task: Some(tasks[0].id.to_string()), ..approvals::approval(&bot, 2) };
    let other = approvals::asked(store, &other).await;
    assert!(approvals::decided(store, &other, ApprovalDecision::Approve).await.is_some());
    let after = store.park_task(&claim, tasks[0].id, "approval/other", far, NOW.plus_ms(3_600_002)).await.unwrap();
    assert_eq!(after, AfterTurn::Again);
}
