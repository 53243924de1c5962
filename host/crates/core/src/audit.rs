//! The audit. The entry of a call is opened before the first stage of the call and closed after the last stage. No
//! answer leaves the host before its row is on disk.
//!
//! One task writes all rows of this host in one chain. It writes the rows of many calls in one transaction with one
//! fsync, and each caller waits for its own commit. If a write fails, no call runs until the database accepts rows
//! again. The end rows of calls that could not be written are kept in memory and are written first.

mod anchors;
mod archive;
mod chain;
mod change;
mod feed;
mod heads;
mod reading;
mod redaction;
mod rollback;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Instant;

use monstrum_manifest::Effect;
use monstrum_store::{AuditKind, AuditRow, Charge, Store, StoreError, StoreRow};
use monstrum_types::{
    CallOutcome, Clock, Code, Digest, PluginName, RequestId, ResourceId, Status, UtcMillis, WorkspaceId,
};
use monstrum_vault::AuditKeys;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use self::anchors::{Anchors, find_anchor_problems, oldest_row};
pub use self::archive::{
    ARCHIVE_FOLDER, ARCHIVE_OPERATION, Archive, ArchiveError, ArchiveReport, ArchivedFile, Manifest, Segment,
    verify_archive,
};
pub use self::change::Change;
pub use self::feed::{Feed, FeedCursor, FeedItem, Listening};
pub use self::heads::{HEADS_FILE, Heads, HeadsError};
pub use self::reading::Reading;
pub use self::rollback::{
    AcceptedLoss, Rollback, RollbackError, RollbackList, find_rollback, rows_were_sealed, signed_row_key_version,
};
pub use self::verify::{KeyRing, SinceHead, VerifyError, verify};

use self::chain::Chain;
use self::writer::{Writer, on_a_thread};
use crate::beside;
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::task_step::{TaskOfCall, is_cut};
use crate::checks::is_large;

/// The maximum number of queued rows. When the queue is full, callers wait until it has room.
const QUEUE_ROWS_MAX: usize = 4096;

/// The error for a call that cannot be answered because the audit cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the audit cannot be written; try again later")]
pub struct AuditUnavailable;

/// Opens entries and sends their rows to the writer.
#[derive(Clone)]
pub struct Auditor {
    queue: mpsc::Sender<Pending>,
    healthy: Arc<AtomicBool>,
    closing: CancellationToken,
    /// The sum of the generations of all policy seals. Signed heads contain it.
    policy_generation: Arc<AtomicI64>,
    clock: Arc<dyn Clock>,
}

/// An item in the queue of the writer.
enum Pending {
    /// An audit row, and rows of other tables. They are written in the transaction of the audit row.
    Row { row: Box<AuditRow>, with: Vec<StoreRow>, committed: oneshot::Sender<Result<(), AuditUnavailable>> },
    /// The cost of a call. The writer answers whether the budget has room for the cost.
    Charge { charge: Box<Charge>, charged: oneshot::Sender<Result<bool, AuditUnavailable>> },
}

/// Receives the result of writing a queued row. The channel is closed without a result if the writer has ended.
type Committed = oneshot::Receiver<Result<(), AuditUnavailable>>;

impl Auditor {
    /// Continues the chain of `writer` at its end, marks calls that a previous run left open as interrupted, and starts
    /// the writer task. `policy_generation` is the generation of the policy in the database. The task ends after
    /// [`Auditor::close`].
    pub async fn start(
        store: Store,
        keys: Arc<AuditKeys>,
        heads: Heads,
        writer: String,
        policy_generation: i64,
        clock: Arc<dyn Clock>,
    ) -> Result<(Auditor, tokio::task::JoinHandle<()>), StoreError> {
        let chain = Chain::resume(&store, writer, keys).await?;
        let healthy = Arc::new(AtomicBool::new(true));
        let policy_generation = Arc::new(AtomicI64::new(policy_generation));
        let (queue, rows) = mpsc::channel(QUEUE_ROWS_MAX);
        let is_shared = store.is_shared();
        let mut writer = Writer::new(store, chain, heads, &policy_generation, &healthy, &clock);
        writer.interrupt_open_calls().await?;
        writer.sign_head();
        let closing = CancellationToken::new();
        let writing = writer.run(rows, closing.clone());
        // The statements of a shared database run on its server. The statements of SQLite block the thread, so the
        // writer gets a dedicated thread.
        let no_thread = |source: std::io::Error| StoreError::Unavailable {
            what: "cannot start the thread of the audit writer".to_owned(),
            source: source.into(),
        };
        let task = if is_shared { tokio::spawn(writing) } else { on_a_thread(writing).map_err(no_thread)? };
        Ok((Auditor { queue, healthy, closing, policy_generation, clock }, task))
    }

    /// Stops accepting rows. The writer task writes the queued rows, signs a last head and ends.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Sets the current generation of the policy. A head that records the generation is signed within a second. A
    /// generation that is lower than the current one is ignored.
    pub fn policy_is_at(&self, generation: i64) {
        self.policy_generation.fetch_max(generation, Ordering::AcqRel);
    }

    /// Whether rows can be written.
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    fn must_be_healthy(&self) -> Result<(), AuditUnavailable> {
        if self.is_healthy() { Ok(()) } else { Err(AuditUnavailable) }
    }

    /// The number of queued rows.
    pub fn rows_waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Charges a call if its budget has room. Returns whether the call was charged. The charge is on disk when this
    /// function returns.
    pub async fn charge(&self, charge: Charge) -> Result<bool, AuditUnavailable> {
        self.must_be_healthy()?;
        let (charged, outcome) = oneshot::channel();
        let charge = Box::new(charge);
        self.queue.send(Pending::Charge { charge, charged }).await.map_err(|_| AuditUnavailable)?;
        outcome.await.unwrap_or(Err(AuditUnavailable))
    }

    /// Opens the entry of a call. `secrets` are removed from the rows of the entry.
    pub fn open(&self, call: &IncomingCall, secrets: Arc<CallSecrets>) -> Result<Entry, AuditUnavailable> {
        self.must_be_healthy()?;
        let params = || call.params().text().to_owned();
        let (app_id, user_id) = call.user().map(|(app, user)| (app.to_owned(), user.to_owned())).unzip();
        let row = AuditRow {
            app_id,
            user_id,
            bot_id: call.bot(),
            task_id: Some(call.task_or_request_id()),
            resource_id: call.resource(),
            tool: Some(call.tool().chars().take(TOOL_CHARS_MAX).collect()),
            params: Some(beside::in_place(is_large(call.params().value()), params)),
            parent_request_id: call.lineage().map(|lineage| lineage.parent),
            delegation: call.delegation(),
            ..started(call.request_id(), call.workspace(), self.clock.now())
        };
        let mut entry = self.entry(row, secrets);
        entry.task = call.task().cloned();
        Ok(entry)
    }

    fn entry(&self, row: AuditRow, secrets: Arc<CallSecrets>) -> Entry {
        Entry {
            task: None,
            row: Mutex::new(row),
            secrets,
            started: OnceCell::new(),
            has_asked_to_start: AtomicBool::new(false),
            may_change: AtomicBool::new(true),
            effect: Mutex::new(Effect::Write),
            unanswered: Arc::default(),
            opened: Instant::now(),
            closed: AtomicBool::new(false),
            queue: self.queue.clone(),
            clock: Arc::clone(&self.clock),
        }
    }
}

/// Returns a row `started` with all optional columns empty. The writer fills in its position in the chain.
fn started(request_id: RequestId, workspace: WorkspaceId, now: UtcMillis) -> AuditRow {
    AuditRow {
        writer: String::new(),
        sequence: 0,
        kind: AuditKind::Started,
        request_id,
        workspace_id: Some(workspace),
        bot_id: None,
        app_id: None,
        user_id: None,
        task_id: None,
        resource_id: None,
        tool: None,
        operation: None,
        plugin: None,
        plugin_digest: None,
        status: None,
        code: None,
        message: None,
        rule: None,
        params: None,
        duration_ms: None,
        started_at: now,
        at: now,
        parent_request_id: None,
        delegation: None,
        flags: None,
        key_version: 0,
        previous_hash: [0; 32],
        hash: [0; 32],
    }
}

/// The maximum length of a recorded tool name. Tools have names of at most 64 characters, so a longer name is an error
/// of the caller, and its beginning is sufficient.
const TOOL_CHARS_MAX: usize = 128;

/// The entry of one call.
pub struct Entry {
    /// The columns that are known so far, not redacted.
    row: Mutex<AuditRow>,
    /// The task of the call, if the runner carries out a task with it.
    task: Option<TaskOfCall>,
    secrets: Arc<CallSecrets>,
    started: OnceCell<()>,
    has_asked_to_start: AtomicBool,
    /// Whether the call can change something outside of the host.
    may_change: AtomicBool,
    /// The effect of the tool, without that of the calls below it.
    effect: Mutex<Effect>,
    /// Whether something that the call has sent had no answer. The calls below the call write it too.
    unanswered: Arc<AtomicBool>,
    opened: Instant,
    closed: AtomicBool,
    queue: mpsc::Sender<Pending>,
    clock: Arc<dyn Clock>,
}

/// The plugin, operation and resource of a resolved call.
pub struct Resolved<'a> {
    pub plugin: &'a PluginName,
    pub plugin_digest: Option<&'a Digest>,
    pub operation: &'a str,
    /// The resource. `None` keeps the resource that the caller named. `Some(None)` stands for a resource without a row.
    pub resource: Option<Option<ResourceId>>,
}

impl Entry {
    /// Adds the plugin, operation and resource of the call.
    pub fn resolved(&self, found: &Resolved<'_>) {
        let mut row = self.row.lock();
        row.resource_id = found.resource.unwrap_or(row.resource_id);
        row.operation = Some(found.operation.to_owned());
        row.plugin = Some(found.plugin.to_string());
        row.plugin_digest = found.plugin_digest.map(ToString::to_string);
    }

    /// Whether requests of the call are held back because its row `started` could not be written.
    pub fn is_held_back(&self) -> bool {
        self.has_asked_to_start.load(Ordering::Acquire) && !self.started.initialized()
    }

    /// Returns whether the row `started` is on disk, so that the call may have had effects outside of this host.
    pub fn has_started(&self) -> bool {
        self.started.initialized()
    }

    /// Records whether the tool of the call can change something outside of the host. A call counts as one that can until
    /// this function is called.
    pub fn may_change(&self, may_change: bool) {
        self.may_change.store(may_change, Ordering::Release);
    }

    /// Records the effect of the tool of the call, without that of the calls below it. A call counts as one of the gravest
    /// effect until this function is called.
    pub fn has_effect(&self, effect: Effect) {
        *self.effect.lock() = effect;
    }

    /// Records that the call has sent a request or a command and received no answer, so that its effect is unknown.
    pub fn left_unanswered(&self) {
        self.unanswered.store(true, Ordering::Release);
    }

    /// Returns whether the call or a child call has sent a request or a command and received no answer.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Acquire)
    }

    /// Returns the flag that child calls set if their effect is unknown.
    pub fn unanswered(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.unanswered)
    }

    /// Returns whether the call has ended with `outcome` after a change that it may or may not have made.
    pub fn may_have_changed(&self, outcome: &CallOutcome) -> bool {
        self.has_started()
            && self.may_change.load(Ordering::Acquire)
            && outcome.status != Status::Success
            && (self.is_unanswered() || outcome.code.is_some_and(is_cut))
    }

    /// Commits the row `started`, once. A call must not send data from this host before this function returns. It fails
    /// for a call of a task that another host may have taken over.
    pub async fn started(&self) -> Result<(), AuditUnavailable> {
        self.started_with(Vec::new()).await.map(drop)
    }

    /// Like [`Entry::started`], with rows that are written in the transaction of the row `started`. Returns `false` if
    /// that row was on disk before, so that the rows were not written.
    pub async fn started_with(&self, with: Vec<StoreRow>) -> Result<bool, AuditUnavailable> {
        self.has_asked_to_start.store(true, Ordering::Release);
        self.must_have_lease()?;
        let is_first = AtomicBool::new(false);
        let commit = async || {
            is_first.store(true, Ordering::Release);
            let row = self.redacted_row(self.row(AuditKind::Started)).await;
            self.enqueue(row, with).await?.await.unwrap_or(Err(AuditUnavailable))
        };
        self.started.get_or_try_init(commit).await?;
        if let Some(task) = &self.task {
            let is_child = self.row.lock().parent_request_id.is_some();
            task.lease.has_started(*self.effect.lock(), is_child);
        }
        // The lease may have ended while the row was written.
        self.must_have_lease()?;
        Ok(is_first.into_inner())
    }

    fn must_have_lease(&self) -> Result<(), AuditUnavailable> {
        let has_lease = self.task.as_ref().is_none_or(|task| task.lease.is_in_force());
        if has_lease { Ok(()) } else { Err(AuditUnavailable) }
    }

    /// Queues the row `finished` and closes the entry.
    pub async fn close(&self, outcome: &CallOutcome, with: Vec<StoreRow>) -> Result<QueuedRow, AuditUnavailable> {
        let row = self.finished(outcome);
        let duration_ms = row.duration_ms.unwrap_or_default();
        let row = self.redacted_row(row).await;
        self.closed.store(true, Ordering::Release);
        Ok(QueuedRow { duration_ms, committed: self.enqueue(row, with).await? })
    }

    /// Queues the last row and closes the entry, without waiting. Logs an error if the queue is full.
    fn close_with(&self, row: AuditRow) {
        self.closed.store(true, Ordering::Release);
        let row = Box::new(self.redacted_row_at_once(row).without_nul());
        let (committed, _) = oneshot::channel();
        if self.queue.try_send(Pending::Row { row, with: Vec::new(), committed }).is_err() {
            tracing::error!("the end of a call could not be queued for the audit");
        }
    }

    fn finished(&self, outcome: &CallOutcome) -> AuditRow {
        let mut row = self.row(AuditKind::Finished);
        row.status = Some(outcome.status.as_str().to_owned());
        row.code = outcome.code.map(|code| code.as_str().to_owned());
        row.message = outcome.message.clone();
        row.rule = outcome.rule.clone();
        row.duration_ms = Some(i64::try_from(self.opened.elapsed().as_millis()).unwrap_or(i64::MAX));
        if outcome.output_mismatch {
            row.flags = Some("output_mismatch".to_owned());
        }
        row
    }

    /// Returns a row with the columns that are known so far, not redacted.
    fn row(&self, kind: AuditKind) -> AuditRow {
        let row = self.row.lock().clone();
        AuditRow { kind, at: self.clock.now(), ..row }
    }

    async fn enqueue(&self, row: AuditRow, with: Vec<StoreRow>) -> Result<Committed, AuditUnavailable> {
        let (committed, outcome) = oneshot::channel();
        let row = Box::new(row.without_nul());
        self.queue.send(Pending::Row { row, with, committed }).await.map_err(|_| AuditUnavailable)?;
        Ok(outcome)
    }
}

/// A queued row `finished`.
#[must_use = "no answer may leave before its row is on disk"]
pub struct QueuedRow {
    duration_ms: i64,
    committed: Committed,
}

impl QueuedRow {
    /// Waits until the row is on disk. Returns the duration of the call in milliseconds.
    pub async fn committed(self) -> Result<i64, AuditUnavailable> {
        self.committed.await.unwrap_or(Err(AuditUnavailable))?;
        Ok(self.duration_ms)
    }
}

impl Drop for Entry {
    /// Records the end of a call that panicked, without waiting. Entries of other calls are closed before they are
    /// dropped.
    fn drop(&mut self) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let (is_of_change, is_of_call) = {
            let row = self.row.lock();
            (row.is_of_change(), row.tool.is_some())
        };
        let message = match (is_of_change, is_of_call) {
            (true, _) => "the request was interrupted; the change may have been made",
            (false, true) => "the call failed because of an internal error of the host",
            (false, false) => "the request was interrupted",
        };
        self.close_with(self.finished(&CallOutcome::error(Code::Unavailable, message)));
    }
}
