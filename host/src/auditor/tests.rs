//! Entries whose writer answers as it is told.

use monstrum_types::{BotId, FixedClock, RequestId, WorkspaceId};
use serde_json::{Value, json};

use super::*;
use crate::call::Attached;
use crate::call::platform::Asks;

/// An entry, and the queue that a writer would read.
fn entry() -> (Entry, mpsc::Receiver<Pending>) {
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
        params: json!({}),
        task_id: None,
        resource: None,
        language: crate::language::Language::default(),
        context: Value::Null,
        key: None,
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
    assert_eq!(entry.redacted(of_plugin()), of_plugin(), "nothing was asked for");
    start(&entry, &mut rows, Err(AuditUnavailable)).await;
    let told = entry.redacted(of_plugin());
    assert_eq!(
        (told.code, told.message.as_deref()),
        (Some(Code::Unavailable), Some("the audit could not be written; try again"))
    );
    let cancelled = CallOutcome::error(Code::Cancelled, "gone");
    assert_eq!(entry.redacted(cancelled.clone()), cancelled);
    // The plugin asks again, and the audit takes rows again.
    start(&entry, &mut rows, Ok(())).await;
    assert_eq!(entry.redacted(of_plugin()), of_plugin());
}
