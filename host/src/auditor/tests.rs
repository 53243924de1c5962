//! Entries whose writer answers as it is told.

use monstrum_egress::INLINE_SEARCH_BYTES_MAX;
use monstrum_types::{BotId, FixedClock, JsonText, RequestId, Secret, WorkspaceId};
use serde_json::{Value, json};

use super::*;
use crate::call::Attached;
use crate::call::platform::Asks;

/// An entry, and the queue that a writer would read.
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
    let call = IncomingCall {
        request_id: RequestId::new(),
        workspace: WorkspaceId::new(),
        bot: Some(BotId::new()),
        asks: Asks::Tool,
        tool: "tool".to_owned(),
        params,
        task_id: None,
        resource: None,
        language: crate::language::Language::default(),
        context: Value::Null,
        key: None,
        key_hash: None,
        under: None,
        attached: Attached::default(),
    };
    (auditor.open(&call).unwrap(), rows)
}

async fn start(entry: &Entry, rows: &mut mpsc::Receiver<Pending>, answer: Result<(), AuditUnavailable>) {
    let answered = async { rows.recv().await.unwrap().committed.send(answer).unwrap() };
    let (started, ()) = tokio::join!(entry.started(), answered);
    assert_eq!(started, answer);
}

#[tokio::test]
async fn a_request_that_was_held_back_is_not_the_plugins_fault() {
    let of_plugin = || CallOutcome::error(Code::Plugin, "the request failed");
    let (entry, mut rows) = entry();
    assert_eq!(entry.redacted(of_plugin()).await, of_plugin(), "nothing was asked for");
    start(&entry, &mut rows, Err(AuditUnavailable)).await;
    let told = entry.redacted(of_plugin()).await;
    assert_eq!(
        (told.code, told.message.as_deref()),
        (Some(Code::Unavailable), Some("the audit could not be written; try again"))
    );
    let cancelled = CallOutcome::error(Code::Cancelled, "gone");
    assert_eq!(entry.redacted(cancelled.clone()).await, cancelled);
    // The plugin asks again, and the audit takes rows again.
    start(&entry, &mut rows, Ok(())).await;
    assert_eq!(entry.redacted(of_plugin()).await, of_plugin());
}

const SECRET: &str = "s3cr3t-t0ken/x";

/// More than is searched in place.
fn large() -> String {
    format!("{} {SECRET} {}", "x".repeat(INLINE_SEARCH_BYTES_MAX), "y".repeat(INLINE_SEARCH_BYTES_MAX))
}

fn knowing(entry: &Entry) {
    entry.redact_with(Arc::new(Redactor::new([Secret::new(SECRET.to_owned())])));
}

#[tokio::test]
async fn small_and_large_texts_of_a_call_leave_without_its_secrets() {
    for text in [format!("a {SECRET} b"), large()] {
        let (entry, mut rows) = entry_of(json!({ "text": text }));
        knowing(&entry);
        let outcome = CallOutcome {
            message: Some(text.clone()),
            ..CallOutcome::success(JsonText::from(&json!({ "text": text })))
        };
        let told = entry.redacted(outcome).await;
        let expected = text.replace(SECRET, "[redacted]");
        assert_eq!(told.message.as_deref(), Some(expected.as_str()));
        assert_eq!(told.data.unwrap().value(), json!({ "text": expected }));
        assert_eq!(entry.redacted_texts(vec![text.clone(), text.clone()]).await.unwrap(), [expected.as_str(); 2]);
        assert_eq!(entry.redacted_bytes(text.clone().into_bytes()).await.unwrap(), expected.as_bytes());
        start(&entry, &mut rows, Ok(())).await;
        let closing = async { entry.close(&CallOutcome::error(Code::Plugin, "x")).await.unwrap() };
        let (_, row) = tokio::join!(closing, rows.recv());
        let params = row.unwrap().row.params.unwrap();
        assert!(!params.contains(SECRET), "{params}");
        assert_eq!(params.contains("\"first\""), text.len() > INLINE_SEARCH_BYTES_MAX, "{params}");
    }
}

/// A runtime of one thread that is never blocked: while the search of a large text runs, other tasks go on.
#[tokio::test]
async fn a_large_text_is_searched_beside_the_workers() {
    let (entry, _rows) = entry();
    knowing(&entry);
    // Text that is slow to search, by the megabyte.
    let text = "\\".repeat(2 << 20);
    let mut search = std::pin::pin!(entry.redacted_texts(vec![text]));
    assert!(futures::poll!(search.as_mut()).is_pending(), "the search is on a thread of its own");
    search.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_searched_in_time_is_withheld() {
    let (entry, _rows) = entry();
    knowing(&entry);
    entry.search_until(tokio::time::Instant::now() + Duration::from_secs(30));
    // All turns are taken by searches that end later than the call.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let turns = std::thread::available_parallelism().unwrap().get();
    let began = Arc::new(tokio::sync::Semaphore::new(0));
    let held: Vec<_> = (0..turns)
        .map(|_| {
            let (released, has_begun) = (Arc::clone(&released), Arc::clone(&began));
            tokio::spawn(async move {
                let budget = Arc::default();
                let search = monstrum_egress::search(INLINE_SEARCH_BYTES_MAX + 1, &budget, move |_| {
                    has_begun.add_permits(1);
                    // Until the sender is dropped.
                    released.lock().unwrap().recv().unwrap_err();
                    Ok(())
                });
                search.await
            })
        })
        .collect();
    drop(began.acquire_many(u32::try_from(turns).unwrap()).await.unwrap());
    let mut asked =
        std::pin::pin!(entry.redacted(CallOutcome { message: Some(large()), ..CallOutcome::error(Code::Plugin, "") }));
    for after_s in [0, 39] {
        tokio::time::advance(Duration::from_secs(after_s)).await;
        assert!(futures::poll!(asked.as_mut()).is_pending(), "there is time left after {after_s} s");
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    let told = asked.await;
    assert_eq!(
        (told.code, told.message.as_deref()),
        (Some(Code::Timeout), Some("the answer could not be searched for secrets in time"))
    );
    let row = AuditRow { params: Some(large()), ..entry.row(AuditKind::Finished) };
    let mut asked = std::pin::pin!(entry.redacted_row(row));
    assert!(futures::poll!(asked.as_mut()).is_pending());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(members(&asked.await.params.unwrap()), ["digest", "bytes"]);
    drop(release);
    for search in held {
        search.await.unwrap().unwrap();
    }
}

#[test]
fn a_row_that_nothing_can_wait_for_has_no_large_parameters() {
    let (entry, mut rows) = entry_of(json!({ "text": large() }));
    knowing(&entry);
    // As after a panic.
    drop(entry);
    let params = rows.try_recv().unwrap().row.params.unwrap();
    assert_eq!(members(&params), ["digest", "bytes"]);
}

/// The names of the members of an object.
fn members(json: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(json).unwrap();
    value.as_object().unwrap().keys().cloned().collect()
}
