//! The writer of the audit. It reads rows from the queue and commits the rows of many calls in one transaction.
//!
//! If a write fails, no call runs until the database accepts rows again. The end rows of calls that could not be
//! written are kept in memory and are written first.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use monstrum_store::{AuditKind, AuditRow, Store, StoreError, StoreRow};
use monstrum_types::{Clock, Code, Status, UtcMillis};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::chain::Chain;
use super::heads::{self, Heads, PolicyState};
use super::rollback;
use super::verify::KeyRing;
use super::{AuditUnavailable, Pending};
use crate::meters;

/// The maximum number of rows in a transaction. It is enough for all calls that run at the same time on a small
/// machine.
const BATCH_ROWS_MAX: usize = 512;
/// The size in bytes at which no further row is added to a batch. A disk writes this amount in about 10 ms.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// The estimated size in bytes of a row without its parameters and message.
const ROW_BYTES: usize = 1 << 10;
/// The maximum number of end rows that are kept in memory while the database does not accept rows.
const BACKLOG_ROWS_MAX: usize = 10_000;
/// The interval between signed heads.
const HEAD_INTERVAL: Duration = Duration::from_secs(10);
/// The interval between attempts to write again after a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often the writer checks whether the policy has changed since the last head, so that a head covers each change
/// within a second.
const POLICY_HEAD_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the writer on a dedicated thread, which may block on the disk. (A blocking thread of tokio would keep the
/// paused clock of tests from advancing.)
pub(super) fn on_a_thread(writing: impl Future<Output = ()> + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let (ended, has_ended) = oneshot::channel::<()>();
    std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
        runtime.block_on(writing);
        drop(ended);
    })?;
    Ok(tokio::spawn(async move {
        // The sender is dropped when the writer has ended.
        let _: Result<(), _> = has_ended.await;
    }))
}

/// The task that owns the chain and writes its rows.
pub(super) struct Writer {
    store: Store,
    chain: Chain,
    heads: Heads,
    policy_generation: Arc<AtomicI64>,
    clock: Arc<dyn Clock>,
    healthy: Arc<AtomicBool>,
    backlog: Vec<KeptRow>,
}

/// The end row of a call that could not be written, and the rows of other tables that belong to it.
struct KeptRow {
    row: AuditRow,
    with: Vec<StoreRow>,
}

/// The rows and charges that are written in one transaction.
#[derive(Default)]
struct Batch {
    rows: Vec<AuditRow>,
    with: Vec<StoreRow>,
    /// For each item of `with`, the index in `rows` of the audit row to which it belongs; `None` for a charge.
    row_of: Vec<Option<usize>>,
    bytes: usize,
    waiting: Vec<oneshot::Sender<Result<(), AuditUnavailable>>>,
    /// The callers that wait for a charge, with the index of the charge in `with`.
    charged: Vec<(usize, oneshot::Sender<Result<bool, AuditUnavailable>>)>,
}

impl Batch {
    /// Creates a batch from `first` and the items in the queue, up to the limits of a batch.
    fn fill(first: Pending, queue: &mut mpsc::Receiver<Pending>) -> Batch {
        let mut batch = Batch::default();
        batch.add(first);
        while batch.rows.len() + batch.with.len() < BATCH_ROWS_MAX && batch.bytes < BATCH_BYTES_MAX {
            match queue.try_recv() {
                Ok(pending) => batch.add(pending),
                Err(_) => break,
            }
        }
        batch
    }

    fn add(&mut self, pending: Pending) {
        self.bytes += ROW_BYTES;
        match pending {
            Pending::Row { row, with, committed } => {
                self.bytes += [&row.params, &row.message].into_iter().flatten().map(String::len).sum::<usize>();
                self.bytes += with.iter().map(StoreRow::bytes).sum::<usize>();
                self.row_of.extend(with.iter().map(|_| Some(self.rows.len())));
                self.with.extend(with);
                self.rows.push(*row);
                self.waiting.push(committed);
            }
            Pending::Charge { charge, charged } => {
                self.charged.push((self.with.len(), charged));
                self.with.push(StoreRow::Charge(*charge));
                self.row_of.push(None);
            }
        }
    }

    /// Sends the result to all callers. `written` says for each item of `with` whether it was written.
    fn answer(&mut self, written: &Result<Vec<bool>, AuditUnavailable>) {
        let committed = written.as_ref().map(|_| ()).map_err(|unavailable| *unavailable);
        let mut gone = 0;
        for caller in self.waiting.drain(..) {
            gone += usize::from(caller.send(committed).is_err());
        }
        for (index, caller) in self.charged.drain(..) {
            let is_charged = written.as_ref().map(|written| written[index]).map_err(|unavailable| *unavailable);
            gone += usize::from(caller.send(is_charged).is_err());
        }
        if gone > 0 {
            tracing::debug!(gone, "callers disconnected before their rows were committed");
        }
    }

    /// Answers the callers that wait for a charge with an error, and removes their charges. Returns whether the batch
    /// had charges.
    fn fail_charges(&mut self) -> bool {
        let had_charges = !self.charged.is_empty();
        for (_, caller) in self.charged.drain(..) {
            if caller.send(Err(AuditUnavailable)).is_err() {
                tracing::debug!("a caller disconnected before its charge was committed");
            }
        }
        let mut owners = self.row_of.iter();
        self.with.retain(|_| owners.next().is_some_and(Option::is_some));
        self.row_of.retain(Option::is_some);
        had_charges
    }

    /// Returns the end rows of calls, with the rows of other tables that belong to them. They must be kept, because the
    /// side effects of the calls have happened.
    fn into_ends(self) -> impl Iterator<Item = KeptRow> {
        let mut kept: Vec<_> = self.rows.into_iter().map(|row| KeptRow { row, with: Vec::new() }).collect();
        for (row, index) in self.with.into_iter().zip(self.row_of) {
            if let Some(owner) = index.and_then(|index| kept.get_mut(index)) {
                owner.with.push(row);
            }
        }
        kept.into_iter().filter(|kept| kept.row.kind != AuditKind::Started)
    }
}

impl Writer {
    pub(super) fn new(
        store: Store,
        chain: Chain,
        heads: Heads,
        policy_generation: &Arc<AtomicI64>,
        healthy: &Arc<AtomicBool>,
        clock: &Arc<dyn Clock>,
    ) -> Writer {
        Writer {
            store,
            chain,
            heads,
            policy_generation: Arc::clone(policy_generation),
            clock: Arc::clone(clock),
            healthy: Arc::clone(healthy),
            backlog: Vec::new(),
        }
    }

    /// Writes rows until `closing` is cancelled and the queue is empty.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Pending>, closing: CancellationToken) {
        let mut next_head = tokio::time::interval(HEAD_INTERVAL);
        let mut retry = tokio::time::interval(RETRY_INTERVAL);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut policy_head = tokio::time::interval(POLICY_HEAD_INTERVAL);
        policy_head.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                received = queue.recv() => match received {
                    Some(first) => self.write(Batch::fill(first, &mut queue)).await,
                    None => break,
                },
                _ = next_head.tick() => self.sign_head(),
                _ = policy_head.tick(), if self.heads.lacks_policy(self.policy_generation()) => self.sign_head(),
                () = closing.cancelled(), if !queue.is_closed() => queue.close(),
                _ = retry.tick(), if !self.is_healthy() => self.retry(&mut queue).await,
            }
        }
        self.retry(&mut queue).await;
        self.sign_head();
    }

    fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    fn policy_generation(&self) -> i64 {
        self.policy_generation.load(Ordering::Acquire)
    }

    /// Writes a batch in one transaction, then sends the result to all callers.
    async fn write(&mut self, mut batch: Batch) {
        let began = Instant::now();
        let written = if self.is_healthy() { self.append(&mut batch).await } else { Err(AuditUnavailable) };
        meters::commit(batch.rows.len(), began.elapsed());
        batch.answer(&written);
        if written.is_err() {
            self.keep(batch.into_ends());
        }
        if self.chain.rows_since_head() >= heads::ROWS_PER_HEAD {
            self.sign_head();
        }
    }

    async fn append(&mut self, batch: &mut Batch) -> Result<Vec<bool>, AuditUnavailable> {
        let mut written = self.chain.append(&self.store, &mut batch.rows, &batch.with).await;
        if let Err(error) = &written
            && error.is_rejection()
            && batch.fail_charges()
        {
            // A value of one call must not prevent the rows of other calls.
            tracing::error!(%error, "the database rejected an audit batch; writing its rows again without its charges");
            written = self.chain.append(&self.store, &mut batch.rows, &batch.with).await;
        }
        written.map_err(|error| {
            tracing::error!(%error, "the audit cannot be written; no call runs until the database accepts rows again");
            self.healthy.store(false, Ordering::Release);
            AuditUnavailable
        })
    }

    fn keep(&mut self, ends: impl Iterator<Item = KeptRow>) {
        let room = BACKLOG_ROWS_MAX - self.backlog.len();
        self.backlog.extend(ends.take(room));
    }

    /// Resumes the chain after a failure, unless the database still does not accept rows. Rows that arrive during an
    /// attempt are rejected immediately, because an attempt can take many seconds if the database does not respond, and
    /// calls must not wait for it.
    async fn retry(&mut self, queue: &mut mpsc::Receiver<Pending>) {
        while !self.is_healthy() {
            let mut ends = Vec::new();
            let resumed = {
                let mut resume = pin!(self.resume());
                let mut is_open = true;
                loop {
                    tokio::select! {
                        resumed = &mut resume => break resumed,
                        received = queue.recv(), if is_open => match received {
                            Some(pending) => {
                                let mut refused = Batch::default();
                                refused.add(pending);
                                refused.answer(&Err(AuditUnavailable));
                                ends.extend(refused.into_ends());
                            }
                            None => is_open = false,
                        },
                    }
                }
            };
            let is_complete = ends.is_empty();
            self.keep(ends.into_iter());
            match resumed {
                Ok(()) if is_complete => {
                    tracing::info!("the audit can be written again");
                    self.healthy.store(true, Ordering::Release);
                }
                // The end rows that arrived during the attempt must still be written.
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%error, "the audit still cannot be written");
                    return;
                }
            }
        }
    }

    /// Resumes the chain at its end in the database, because a failed commit may have happened. Then writes the kept
    /// rows that are not in the database yet. An earlier commit may still be running on the database server. It uses
    /// the same sequence numbers as this write, so the database rejects the later of the two and the chain never forks.
    /// The next attempt then reads the end of the chain again.
    async fn resume(&mut self) -> Result<(), StoreError> {
        let written = self.chain.catch_up(&self.store).await?;
        let written: HashSet<_> = written.iter().map(|row| (row.request_id, row.kind)).collect();
        self.backlog.retain(|kept| !written.contains(&(kept.row.request_id, kept.row.kind)));
        while !self.backlog.is_empty() {
            let batch = &self.backlog[..self.backlog.len().min(BATCH_ROWS_MAX)];
            let mut rows: Vec<_> = batch.iter().map(|kept| kept.row.clone()).collect();
            let with: Vec<_> = batch.iter().flat_map(|kept| kept.with.iter().cloned()).collect();
            self.chain.append(&self.store, &mut rows, &with).await?;
            self.backlog.drain(..rows.len());
        }
        Ok(())
    }

    /// Marks the calls that an earlier run of this writer left open as interrupted.
    pub(super) async fn interrupt_open_calls(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let from = self.open_from().await?;
        let open = self.store.open_starts(self.chain.writer(), from).await?;
        self.chain.note(&open);
        for starts in open.chunks(BATCH_ROWS_MAX) {
            let mut rows: Vec<_> = starts.iter().map(|start| interrupted(start, now)).collect();
            self.chain.append(&self.store, &mut rows, &[]).await?;
        }
        if !open.is_empty() {
            tracing::warn!(calls = open.len(), "calls of the previous run were marked as interrupted");
        }
        Ok(())
    }

    /// Returns the first sequence number at which an earlier run may have left a call open. The newest signed head
    /// contains this number. Without a head of this chain, or with a head of another database, returns the first row.
    async fn open_from(&self) -> Result<i64, StoreError> {
        let head = self.heads.earlier().filter(|head| head.writer == self.chain.writer());
        let Some((head, open_from)) = head.and_then(|head| Some((head, head.open_from?))) else { return Ok(0) };
        let keys = self.chain.keys();
        let keys = KeyRing::from([(keys.version(), Arc::clone(keys))]);
        Ok(if rollback::holds(&self.store, &keys, head).await? { open_from } else { 0 })
    }

    pub(super) fn sign_head(&mut self) {
        let policy =
            PolicyState { generation: self.policy_generation(), row_key_version: self.store.row_key_version() };
        if let Err(error) = self.heads.sign(&mut self.chain, policy, self.clock.now()) {
            tracing::error!(%error, "the head of the audit could not be signed and saved");
        }
    }
}

fn interrupted(start: &AuditRow, now: UtcMillis) -> AuditRow {
    AuditRow {
        kind: AuditKind::Interrupted,
        status: Some(Status::Error.as_str().to_owned()),
        code: Some(Code::Interrupted.as_str().to_owned()),
        message: Some("the server ended before the call was finished".to_owned()),
        duration_ms: Some(now.since_ms(start.started_at)),
        at: now,
        ..start.clone()
    }
}

#[cfg(test)]
mod tests;
