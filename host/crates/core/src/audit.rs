//! The audit: an entry is opened before anything else of a call and closed last, and no answer leaves before its row is
//! on disk.
//!
//! One task writes all rows of this host in one chain: many calls, one transaction, one fsync, and each caller waits
//! for its own commit. When the database refuses, no call runs until it takes rows again; ends of calls that could not
//! be written are kept and written first.

mod chain;
mod change;
mod heads;
mod reading;
mod redaction;
mod rollback;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use monstrum_store::{AuditKind, AuditRow, Store, StoreError};
use monstrum_types::{
    CallOutcome, Clock, Code, Digest, PluginName, RequestId, ResourceId, Status, UtcMillis, WorkspaceId,
};
use monstrum_vault::AuditKeys;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use self::change::Change;
pub use self::heads::{HEADS_FILE, Heads, HeadsError};
pub use self::reading::Reading;
pub use self::rollback::{
    AcceptedLoss, Rollback, RollbackError, RollbackList, find_rollback, rows_were_sealed, signed_row_key_version,
};
pub use self::verify::{KeyRing, Problem, Report, VerifyError, verify};

use self::chain::Chain;
use self::heads::PolicyState;
use crate::beside;
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::IncomingCall;
use crate::checks::is_large;
use crate::meters;

/// Rows of one transaction: enough for every call that can run at once on a small machine.
const BATCH_ROWS_MAX: usize = 512;
/// Rows that wait to be written; more callers wait for room.
const QUEUE_ROWS_MAX: usize = 4096;
/// Ends of calls kept while the database refuses them.
const BACKLOG_ROWS_MAX: usize = 10_000;
/// How often a head is signed, and how often an audit that failed is tried again.
const HEAD_INTERVAL: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often the writer looks whether the policy has changed since the last head, so that a head covers each change
/// within a second.
const POLICY_HEAD_INTERVAL: Duration = Duration::from_millis(500);

/// The audit cannot be written, so the call cannot be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the audit cannot be written at present")]
pub struct AuditUnavailable;

/// Opens entries and sends their rows to the writer.
#[derive(Clone)]
pub struct Auditor {
    queue: mpsc::Sender<Pending>,
    healthy: Arc<AtomicBool>,
    closing: CancellationToken,
    /// The sum of the generations of all policy seals, which heads are signed for.
    policy_generation: Arc<AtomicI64>,
    clock: Arc<dyn Clock>,
}

struct Pending {
    row: AuditRow,
    committed: oneshot::Sender<Result<(), AuditUnavailable>>,
}

impl Pending {
    /// Tells the caller that the row is not written, and hands the row back.
    fn refuse(self) -> AuditRow {
        if self.committed.send(Err(AuditUnavailable)).is_err() {
            tracing::debug!("a caller went away before its row was refused");
        }
        self.row
    }
}

/// What becomes of a row that is queued; nothing comes where the writer is gone.
type Committed = oneshot::Receiver<Result<(), AuditUnavailable>>;

impl Auditor {
    /// Takes up the chain of `writer` where it ended, marks calls that a previous run left open as interrupted, and
    /// starts the task that writes. The policy in the database is at `policy_generation`. The task ends after
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
        let mut task = Writer {
            store,
            chain,
            heads,
            policy_generation: Arc::clone(&policy_generation),
            clock: Arc::clone(&clock),
            healthy: Arc::clone(&healthy),
            backlog: Vec::new(),
        };
        task.interrupt_open_calls().await?;
        task.sign_head();
        let closing = CancellationToken::new();
        let task = tokio::spawn(task.run(rows, closing.clone()));
        Ok((Auditor { queue, healthy, closing, policy_generation, clock }, task))
    }

    /// Takes no more rows; the task writes what is queued, signs a last head and ends.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Signs a head for this state of the policy within a second. An older state than the last one is ignored.
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

    /// Rows that wait to be written.
    pub fn rows_waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Opens the entry of a call, whose rows are searched for `secrets`.
    pub fn open(&self, call: &IncomingCall, secrets: Arc<CallSecrets>) -> Result<Entry, AuditUnavailable> {
        self.must_be_healthy()?;
        let lineage = call.lineage();
        let params = || serde_json::to_string(call.params()).expect("a JSON value has a text");
        let row = AuditRow {
            bot_id: call.bot(),
            task_id: Some(call.task_or_request_id()),
            resource_id: call.resource(),
            tool: Some(call.tool().chars().take(TOOL_CHARS_MAX).collect()),
            params: Some(beside::in_place(is_large(call.params()), params)),
            parent_request_id: lineage.map(|lineage| lineage.parent),
            delegation: lineage.and_then(|lineage| lineage.delegation()),
            ..started(call.request_id(), call.workspace(), self.clock.now())
        };
        Ok(self.entry(row, secrets))
    }

    fn entry(&self, row: AuditRow, secrets: Arc<CallSecrets>) -> Entry {
        Entry {
            row: Mutex::new(row),
            secrets,
            started: OnceCell::new(),
            has_asked_to_start: AtomicBool::new(false),
            opened: Instant::now(),
            closed: AtomicBool::new(false),
            queue: self.queue.clone(),
            clock: Arc::clone(&self.clock),
        }
    }
}

/// The row of something that begins, of which nothing else is known. The writer gives it its place.
fn started(request_id: RequestId, workspace: WorkspaceId, now: UtcMillis) -> AuditRow {
    AuditRow {
        writer: String::new(),
        sequence: 0,
        kind: AuditKind::Started,
        request_id,
        workspace_id: Some(workspace),
        bot_id: None,
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

/// A tool's name has 64 characters at most; what is longer is a caller's mistake of which the start is enough.
const TOOL_CHARS_MAX: usize = 128;

/// The entry of one call.
pub struct Entry {
    /// What is known so far, with secrets.
    row: Mutex<AuditRow>,
    secrets: Arc<CallSecrets>,
    started: OnceCell<()>,
    has_asked_to_start: AtomicBool,
    opened: Instant,
    closed: AtomicBool,
    queue: mpsc::Sender<Pending>,
    clock: Arc<dyn Clock>,
}

/// What a call was resolved to.
pub struct Resolved<'a> {
    pub plugin: &'a PluginName,
    pub plugin_digest: Option<&'a Digest>,
    pub operation: &'a str,
    /// The resource, which is `None` inside if it is not a stored one. The outer `None` keeps the one that the caller named.
    pub resource: Option<Option<ResourceId>>,
}

impl Entry {
    /// Adds what resolving the call has found.
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

    /// Commits the row `started`, once. Nothing of a call may leave this host before.
    pub async fn started(&self) -> Result<(), AuditUnavailable> {
        self.has_asked_to_start.store(true, Ordering::Release);
        let commit = async || {
            let row = self.redacted_row(self.row(AuditKind::Started)).await;
            self.enqueue(row).await?.await.unwrap_or(Err(AuditUnavailable))
        };
        self.started.get_or_try_init(commit).await.copied()
    }

    /// Queues the end of the call, which closes the entry.
    pub async fn close(&self, outcome: &CallOutcome) -> Result<QueuedRow, AuditUnavailable> {
        let row = self.finished(outcome);
        let duration_ms = row.duration_ms.unwrap_or_default();
        let row = self.redacted_row(row).await;
        self.closed.store(true, Ordering::Release);
        Ok(QueuedRow { duration_ms, committed: self.enqueue(row).await? })
    }

    /// Queues the last row without waiting for it.
    fn close_with(&self, row: AuditRow) {
        self.closed.store(true, Ordering::Release);
        let row = self.redacted_row_at_once(row).without_nul();
        let (committed, _) = oneshot::channel();
        if self.queue.try_send(Pending { row, committed }).is_err() {
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

    /// What is known, with its secrets.
    fn row(&self, kind: AuditKind) -> AuditRow {
        let row = self.row.lock().clone();
        AuditRow { kind, at: self.clock.now(), ..row }
    }

    async fn enqueue(&self, row: AuditRow) -> Result<Committed, AuditUnavailable> {
        let (committed, outcome) = oneshot::channel();
        let row = row.without_nul();
        self.queue.send(Pending { row, committed }).await.map_err(|_| AuditUnavailable)?;
        Ok(outcome)
    }
}

/// The end of a call that waits to be written.
#[must_use = "no answer may leave before its row is on disk"]
pub struct QueuedRow {
    duration_ms: i64,
    committed: Committed,
}

impl QueuedRow {
    /// Waits until the row is on disk and says how long the call took, in milliseconds.
    pub async fn committed(self) -> Result<i64, AuditUnavailable> {
        self.committed.await.unwrap_or(Err(AuditUnavailable))?;
        Ok(self.duration_ms)
    }
}

impl Drop for Entry {
    /// An entry that is dropped without being closed belongs to a call that panicked: its end is recorded without waiting.
    fn drop(&mut self) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let (is_of_change, is_of_call) = {
            let row = self.row.lock();
            (row.is_of_change(), row.tool.is_some())
        };
        let message = match (is_of_change, is_of_call) {
            (true, _) => "the request was broken off; the change may have been made",
            (false, true) => "the call failed on the host's side",
            (false, false) => "the request was broken off",
        };
        self.close_with(self.finished(&CallOutcome::error(Code::Unavailable, message)));
    }
}

/// The task that owns the chain.
struct Writer {
    store: Store,
    chain: Chain,
    heads: Heads,
    policy_generation: Arc<AtomicI64>,
    clock: Arc<dyn Clock>,
    healthy: Arc<AtomicBool>,
    backlog: Vec<AuditRow>,
}

impl Writer {
    async fn run(mut self, mut rows: mpsc::Receiver<Pending>, closing: CancellationToken) {
        let mut next_head = tokio::time::interval(HEAD_INTERVAL);
        let mut retry = tokio::time::interval(RETRY_INTERVAL);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut policy_head = tokio::time::interval(POLICY_HEAD_INTERVAL);
        policy_head.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                received = rows.recv_many(&mut batch, BATCH_ROWS_MAX) => {
                    if received == 0 {
                        break;
                    }
                    self.write(batch).await;
                }
                _ = next_head.tick() => self.sign_head(),
                _ = policy_head.tick(), if self.heads.lacks_policy(self.policy_generation()) => self.sign_head(),
                () = closing.cancelled(), if !rows.is_closed() => rows.close(),
                _ = retry.tick(), if !self.is_healthy() => self.retry(&mut rows).await,
            }
        }
        self.retry(&mut rows).await;
        self.sign_head();
    }

    fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    fn policy_generation(&self) -> i64 {
        self.policy_generation.load(Ordering::Acquire)
    }

    /// One transaction for all of `batch`, then one answer to each.
    async fn write(&mut self, batch: Vec<Pending>) {
        let began = Instant::now();
        let (rows, waiting): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|pending| (pending.row, pending.committed)).unzip();
        let committed = if self.is_healthy() { self.append(&rows).await } else { Err(AuditUnavailable) };
        meters::commit(rows.len(), began.elapsed());
        if committed.is_err() {
            self.keep(rows);
        }
        for caller in waiting {
            if caller.send(committed).is_err() {
                tracing::debug!("a caller went away before its row was committed");
            }
        }
        if self.chain.rows_since_head() >= heads::ROWS_PER_HEAD {
            self.sign_head();
        }
    }

    async fn append(&mut self, rows: &[AuditRow]) -> Result<(), AuditUnavailable> {
        let (chained, next) = self.chain.extend(rows);
        match self.store.append(&chained).await {
            Ok(()) => {
                self.chain.advance(next);
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the audit cannot be written; no call runs until it can");
                self.healthy.store(false, Ordering::Release);
                Err(AuditUnavailable)
            }
        }
    }

    /// Ends of calls are worth keeping: their side effects have happened.
    fn keep(&mut self, rows: Vec<AuditRow>) {
        let ends = rows.into_iter().filter(|row| row.kind != AuditKind::Started);
        let room = BACKLOG_ROWS_MAX - self.backlog.len();
        self.backlog.extend(ends.take(room));
    }

    /// Resumes the chain after a failure, unless the database still refuses. Rows that come meanwhile are refused at once:
    /// a database that does not answer takes many seconds for each attempt, and no call waits for one.
    async fn retry(&mut self, rows: &mut mpsc::Receiver<Pending>) {
        while !self.is_healthy() {
            let mut ends = Vec::new();
            let resumed = {
                let mut resume = pin!(self.resume());
                let mut is_open = true;
                loop {
                    let mut batch = Vec::new();
                    tokio::select! {
                        resumed = &mut resume => break resumed,
                        received = rows.recv_many(&mut batch, BATCH_ROWS_MAX), if is_open => {
                            is_open = received > 0;
                            ends.extend(batch.into_iter().map(Pending::refuse));
                        }
                    }
                }
            };
            let is_complete = ends.is_empty();
            self.keep(ends);
            match resumed {
                Ok(()) if is_complete => {
                    tracing::info!("the audit can be written again");
                    self.healthy.store(true, Ordering::Release);
                }
                // Ends of calls that came in during the attempt are still to be written.
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%error, "the audit still cannot be written");
                    return;
                }
            }
        }
    }

    /// Takes the chain up where the database really is, since a failed commit may have happened or not, and writes what
    /// was kept and is not there yet. A commit that is still under way in a server takes the same places in the chain as
    /// this one: whichever comes second is refused, so that the chain never forks, and the next attempt finds out.
    async fn resume(&mut self) -> Result<(), StoreError> {
        let written = self.chain.catch_up(&self.store).await?;
        let written: HashSet<_> = written.iter().map(|row| (row.request_id, row.kind)).collect();
        self.backlog.retain(|row| !written.contains(&(row.request_id, row.kind)));
        while !self.backlog.is_empty() {
            let batch = self.backlog.len().min(BATCH_ROWS_MAX);
            let (chained, next) = self.chain.extend(&self.backlog[..batch]);
            self.store.append(&chained).await?;
            self.chain.advance(next);
            self.backlog.drain(..batch);
        }
        Ok(())
    }

    /// Calls that a previous run of this writer began and never ended.
    async fn interrupt_open_calls(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let open = self.store.open_starts(self.chain.writer()).await?;
        for starts in open.chunks(BATCH_ROWS_MAX) {
            let rows: Vec<_> = starts.iter().map(|start| interrupted(start, now)).collect();
            let (chained, next) = self.chain.extend(&rows);
            self.store.append(&chained).await?;
            self.chain.advance(next);
        }
        if !open.is_empty() {
            tracing::warn!(calls = open.len(), "calls of the previous run were interrupted");
        }
        Ok(())
    }

    fn sign_head(&mut self) {
        let policy =
            PolicyState { generation: self.policy_generation(), row_key_version: self.store.row_key_version() };
        if let Err(error) = self.heads.sign(&mut self.chain, policy, self.clock.now()) {
            tracing::error!(%error, "the head of the audit could not be signed");
        }
    }
}

fn interrupted(start: &AuditRow, now: UtcMillis) -> AuditRow {
    AuditRow {
        kind: AuditKind::Interrupted,
        status: Some(Status::Error.as_str().to_owned()),
        code: Some(Code::Interrupted.as_str().to_owned()),
        message: Some("the server ended before the call was done".to_owned()),
        duration_ms: Some(now.since_ms(start.started_at)),
        at: now,
        ..start.clone()
    }
}
