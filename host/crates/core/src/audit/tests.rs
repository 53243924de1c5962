//! Tests of entries. The test plays the role of the writer.

use std::time::Duration;

use monstrum_egress::{INLINE_SEARCH_BYTES_MAX, Redactor};
use monstrum_types::{BotId, FixedClock, RequestId, Secret, TaskId, WorkspaceId};
use serde_json::{Value, json};

use super::*;
use crate::call_types::call_secrets::tests::HeldSearches;
use crate::call_types::task_step::{Origin, TaskLease, TaskPosition};

/// Returns an entry and the queue from which a writer would read its rows.
fn entry() -> (Entry, mpsc::Receiver<Pending>) {
    entry_of(json!({}))
}

fn entry_of(params: Value) -> (Entry, mpsc::Receiver<Pending>) {
    let (queue, rows) = mpsc::channel(8);
    let healthy = Arc::new(AtomicBool::new(true));
    let auditor = Auditor {
        queue,
        healthy,
        closing: CancellationToken::new(),
        policy_generation: Arc::default(),
        clock: Arc::new(FixedClock::default()),
    };
    let call = IncomingCall::bot_tool(RequestId::new(), WorkspaceId::new(), BotId::new(), "tool".to_owned(), params);
    (auditor.open(&call, Arc::default()).unwrap(), rows)
}

fn row_of(pending: Option<Pending>) -> (AuditRow, oneshot::Sender<Result<(), AuditUnavailable>>) {
    match pending {
        Some(Pending::Row { row, committed, .. }) => (*row, committed),
        _ => panic!("no row is pending"),
    }
}

async fn start(entry: &Entry, rows: &mut mpsc::Receiver<Pending>, answer: Result<(), AuditUnavailable>) {
    let answered = async { row_of(rows.recv().await).1.send(answer).unwrap() };
    let (started, ()) = tokio::join!(entry.started(), answered);
    assert_eq!(started, answer);
}

#[tokio::test]
async fn requests_are_held_back_until_the_row_is_written() {
    let (entry, mut rows) = entry();
    assert!(!entry.is_held_back(), "there was no request");
    start(&entry, &mut rows, Err(AuditUnavailable)).await;
    assert!(entry.is_held_back());
    // The plugin retries after the audit accepts rows again.
    start(&entry, &mut rows, Ok(())).await;
    assert!(!entry.is_held_back());
}

/// The lease of a task, which the test ends, and the calls that have started.
struct TestLease(AtomicBool, Mutex<Vec<(Effect, bool)>>);

impl TaskLease for TestLease {
    fn is_in_force(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn origin(&self) -> Origin {
        Origin::Task(TaskPosition::first(TaskId::new()))
    }

    fn has_started(&self, effect: Effect, is_child: bool) {
        self.1.lock().push((effect, is_child));
    }
}

#[tokio::test]
async fn a_call_of_a_task_sends_nothing_after_its_lease_has_ended() {
    let lease = Arc::new(TestLease(AtomicBool::new(true), Mutex::default()));
    let (mut entry, mut rows) = entry();
    entry.task = Some(TaskOfCall { step: None, lease: Arc::clone(&lease) as _ });
    entry.has_effect(Effect::Idempotent);
    let committed = async {
        let (_, committed) = row_of(rows.recv().await);
        // The lease ends while the row is written.
        lease.0.store(false, Ordering::Release);
        committed.send(Ok(())).unwrap();
    };
    let (started, ()) = tokio::join!(entry.started(), committed);
    assert_eq!((started, entry.has_started()), (Err(AuditUnavailable), true));
    assert_eq!(entry.started().await, Err(AuditUnavailable));
    assert!(rows.try_recv().is_err(), "no other row is written");
    // The row is on disk, so the task must know of it.
    assert_eq!(*lease.1.lock(), [(Effect::Idempotent, false)]);
}

#[tokio::test]
async fn a_started_call_that_was_cut_may_have_changed_something() {
    let (entry, mut rows) = entry();
    let failed = |code| CallOutcome::error(code, "x");
    assert!(!entry.may_have_changed(&failed(Code::Timeout)), "nothing has left the host");
    start(&entry, &mut rows, Ok(())).await;
    assert!(entry.may_have_changed(&failed(Code::Timeout)));
    assert!(!entry.may_have_changed(&failed(Code::Plugin)), "the upstream has answered");
    entry.unanswered().store(true, Ordering::Release);
    assert!(entry.may_have_changed(&failed(Code::Plugin)));
    assert!(!entry.may_have_changed(&CallOutcome::success((&json!({})).into())));
    entry.may_change(false);
    assert!(!entry.may_have_changed(&failed(Code::Plugin)));
}

const SECRET: &str = "s3cr3t-t0ken/x";

/// Returns a text that is too long to be searched in place.
fn large() -> String {
    format!("{} {SECRET} {}", "x".repeat(INLINE_SEARCH_BYTES_MAX), "y".repeat(INLINE_SEARCH_BYTES_MAX))
}

fn know_secret(secrets: &CallSecrets) {
    secrets.redact_with(Arc::new(Redactor::new([Secret::new(SECRET.to_owned())])));
}

#[tokio::test]
async fn rows_contain_no_secrets() {
    for text in [format!("a {SECRET} b"), large()] {
        let (entry, mut rows) = entry_of(json!({ "text": text }));
        know_secret(&entry.secrets);
        start(&entry, &mut rows, Ok(())).await;
        let closing = async { entry.close(&CallOutcome::error(Code::Plugin, "x"), Vec::new()).await.unwrap() };
        let (_, row) = tokio::join!(closing, rows.recv());
        let params = row_of(row).0.params.unwrap();
        assert!(!params.contains(SECRET), "{params}");
        assert_eq!(params.contains("\"first\""), text.len() > INLINE_SEARCH_BYTES_MAX, "{params}");
    }
}

#[tokio::test(start_paused = true)]
async fn parameters_that_cannot_be_searched_in_time_are_withheld() {
    let (entry, _rows) = entry();
    know_secret(&entry.secrets);
    let held = HeldSearches::begin().await;
    let row = AuditRow { params: Some(large()), ..entry.row(AuditKind::Finished) };
    let mut redacted = std::pin::pin!(entry.redacted_row(row));
    assert!(futures::poll!(redacted.as_mut()).is_pending());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(members(&redacted.await.params.unwrap()), ["digest", "bytes"]);
    held.end().await;
}

#[test]
fn a_row_that_is_queued_at_once_has_no_large_parameters() {
    let (entry, mut rows) = entry_of(json!({ "text": large() }));
    know_secret(&entry.secrets);
    // The entry is dropped without being closed, as after a panic.
    drop(entry);
    let params = row_of(rows.try_recv().ok()).0.params.unwrap();
    assert_eq!(members(&params), ["digest", "bytes"]);
}

/// Returns the names of the members of an object.
fn members(json: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(json).unwrap();
    value.as_object().unwrap().keys().cloned().collect()
}
