//! Feeds of calls: each listener receives the calls of its workspace that a filter selects, when they end.
//!
//! One task reads the new rows of all chains for all listeners of this host, and only while there are listeners. It
//! delivers a row to the listeners of the workspace of the row, and to no others. A listener that does not keep up loses
//! calls and learns how many; it never delays the task or other listeners.

mod cursor;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use monstrum_store::{AuditRow, CallFilter, FollowedRow, Store, StoreError};
use monstrum_types::WorkspaceId;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::cursor::FeedCursor;

/// The time between two reads of the audit. People see a call soon enough, and an idle host reads little.
const POLL: Duration = Duration::from_millis(300);
/// The number of rows that are read in one query.
const ROWS_AT_ONCE: u32 = 200;
/// The number of calls that wait for a listener: several seconds of a busy workspace.
const QUEUE_CALLS_MAX: usize = 256;
/// The maximum number of rows, of all workspaces, that a listener reads to resume. A listener that was away for longer
/// reads the list of calls instead.
const RESUME_ROWS_MAX: i64 = 10_000;
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// The feeds of this host.
#[derive(Clone)]
pub struct Feed(Arc<Inner>);

struct Inner {
    store: Store,
    state: Mutex<State>,
    /// Held while the reading begins, so that it begins once.
    beginning: tokio::sync::Mutex<()>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    listeners: HashMap<u64, Listener>,
    last_id: u64,
    is_reading: bool,
    /// How far the task has read each chain.
    position: FeedCursor,
}

struct Listener {
    workspace: WorkspaceId,
    filter: CallFilter,
    queue: mpsc::Sender<FeedItem>,
    /// The number of calls that found no room and that the listener has not learned of.
    lost: u64,
}

/// An item of a feed.
#[derive(Debug)]
pub enum FeedItem {
    /// A call that has ended. After the cursor, the feed continues with the next call.
    Call { row: Box<AuditRow>, cursor: FeedCursor },
    /// Calls were left out because the listener did not keep up, or was away for too long. In the latter case, their
    /// number is unknown.
    Lost { count: Option<u64> },
}

/// The place of one listener, which leaves when this value is dropped.
pub struct Listening {
    inner: Arc<Inner>,
    id: u64,
    workspace: WorkspaceId,
    filter: CallFilter,
    queue: mpsc::Receiver<FeedItem>,
    /// The position from which the queue receives calls.
    begin: FeedCursor,
    resuming: Resuming,
}

/// What a listener that resumes must read itself.
#[derive(Default)]
struct Resuming {
    has_lost: bool,
    /// How far the listener has read.
    position: FeedCursor,
    /// The writers of the chains to read, each with the last row.
    rest: Vec<(String, i64)>,
    found: VecDeque<FeedItem>,
}

impl Feed {
    /// Creates the feeds of a host. Nothing is read before there is a listener.
    pub fn new(store: Store) -> Feed {
        Feed(Arc::new(Inner {
            store,
            state: Mutex::default(),
            beginning: tokio::sync::Mutex::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Ends all feeds, because the host shuts down.
    pub fn close(&self) {
        self.0.closing.cancel();
    }

    /// Waits until the task has ended.
    pub async fn shut_down(&self) {
        self.close();
        self.0.tasks.close();
        if tokio::time::timeout(SHUTDOWN_MAX, self.0.tasks.wait()).await.is_err() {
            tracing::warn!("the feed of calls did not end in time");
        }
    }

    /// Begins a feed with the calls of a workspace that end from now on, or with those that ended after `cursor`.
    pub async fn listen(
        &self,
        workspace: WorkspaceId,
        filter: CallFilter,
        cursor: Option<FeedCursor>,
    ) -> Result<Listening, StoreError> {
        let turn = self.0.beginning.lock().await;
        let (sender, queue) = mpsc::channel(QUEUE_CALLS_MAX);
        let listener = Listener { workspace, filter: filter.clone(), queue: sender, lost: 0 };
        let mut ends = None;
        // The task may end between two steps, so the second step is repeated.
        let (id, begin) = loop {
            {
                let mut state = self.0.state.lock();
                if !state.is_reading
                    && let Some(ends) = ends.take()
                {
                    state.position = ends;
                    state.is_reading = true;
                    self.0.tasks.spawn(Arc::clone(&self.0).read());
                }
                if state.is_reading {
                    break state.add(listener);
                }
            }
            ends = Some(FeedCursor::of(self.0.store.chain_ends().await?));
        };
        drop(turn);
        let resuming = cursor.map_or_else(Resuming::default, |cursor| Resuming::new(cursor, &begin));
        Ok(Listening { inner: Arc::clone(&self.0), id, workspace, filter, queue, begin, resuming })
    }

    /// Returns whether the task reads the audit.
    #[cfg(test)]
    fn is_reading(&self) -> bool {
        self.0.state.lock().is_reading
    }
}

impl Inner {
    /// Reads new rows until there are no listeners.
    async fn read(self: Arc<Self>) {
        let mut has_failed = false;
        loop {
            tokio::select! {
                () = self.closing.cancelled() => {
                    // The queues end, and with them the feeds.
                    self.state.lock().listeners.clear();
                    return;
                }
                () = tokio::time::sleep(POLL) => {}
            }
            match self.read_new().await {
                Ok(()) => has_failed = false,
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::warn!(%error, "the feed of calls cannot read the audit; retrying");
                }
                Err(_) => {}
            }
            let mut state = self.state.lock();
            state.listeners.retain(|_, listener| listener.tell_lost());
            if state.listeners.is_empty() {
                state.is_reading = false;
                return;
            }
        }
    }

    async fn read_new(&self) -> Result<(), StoreError> {
        for end in self.store.chain_ends().await? {
            let mut from = self.state.lock().position.of_writer(&end.writer);
            while from < end.sequence {
                let rows = self.store.followed(&end.writer, from, ROWS_AT_ONCE).await?;
                let Some(last) = rows.last().map(|row| row.sequence) else { break };
                from = last;
                self.state.lock().deliver(&end.writer, rows);
            }
        }
        Ok(())
    }
}

impl State {
    /// Adds a listener. Returns its id and the position from which it receives calls.
    fn add(&mut self, listener: Listener) -> (u64, FeedCursor) {
        self.last_id += 1;
        self.listeners.insert(self.last_id, listener);
        (self.last_id, self.position.clone())
    }

    /// Delivers rows of one chain, and moves the position behind them.
    fn deliver(&mut self, writer: &str, rows: Vec<FollowedRow>) {
        for FollowedRow { sequence, ended } in rows {
            self.position.advance(writer, sequence);
            let Some(row) = ended else { continue };
            for listener in self.listeners.values_mut() {
                if row.workspace_id == Some(listener.workspace) && listener.filter.matches(&row) {
                    listener.send(&row, &self.position);
                }
            }
        }
    }
}

impl Listener {
    fn send(&mut self, row: &AuditRow, position: &FeedCursor) {
        self.tell_lost();
        let item = FeedItem::Call { row: Box::new(row.clone()), cursor: position.clone() };
        if self.lost > 0 || self.queue.try_send(item).is_err() {
            self.lost += 1;
        }
    }

    /// Tells the listener how many calls it has lost, if there is room. Returns whether the listener still exists.
    fn tell_lost(&mut self) -> bool {
        if self.lost > 0 && self.queue.try_send(FeedItem::Lost { count: Some(self.lost) }).is_ok() {
            self.lost = 0;
        }
        !self.queue.is_closed()
    }
}

impl Resuming {
    fn new(cursor: FeedCursor, now: &FeedCursor) -> Resuming {
        let missed = now.iter().map(|(writer, last)| (writer.to_owned(), cursor.of_writer(writer), last));
        let missed: Vec<_> = missed.filter(|(_, from, last)| from < last).collect();
        let rows = missed.iter().fold(0_i64, |sum, (_, from, last)| sum.saturating_add(last.saturating_sub(*from)));
        if rows > RESUME_ROWS_MAX {
            return Resuming { has_lost: true, ..Resuming::default() };
        }
        let rest = missed.into_iter().map(|(writer, _, last)| (writer, last)).collect();
        Resuming { has_lost: false, position: cursor, rest, found: VecDeque::new() }
    }
}

impl Listening {
    /// Returns the position at which this feed began. A listener that resumes with it receives all calls since then.
    pub fn cursor(&self) -> FeedCursor {
        self.begin.clone()
    }

    /// Returns the next item, or `None` when the host shuts down. Cancelling this function loses no item.
    pub async fn next(&mut self) -> Result<Option<FeedItem>, StoreError> {
        if std::mem::take(&mut self.resuming.has_lost) {
            return Ok(Some(FeedItem::Lost { count: None }));
        }
        loop {
            if let Some(item) = self.resuming.found.pop_front() {
                return Ok(Some(item));
            }
            let Some((writer, last)) = self.resuming.rest.last().cloned() else { break };
            let from = self.resuming.position.of_writer(&writer);
            let rows = self.inner.store.followed(&writer, from, ROWS_AT_ONCE).await?;
            let reached = rows.last().map_or(last, |row| row.sequence);
            if reached >= last {
                self.resuming.rest.pop();
            }
            for FollowedRow { sequence, ended } in rows.into_iter().filter(|row| row.sequence <= last) {
                self.resuming.position.advance(&writer, sequence);
                let Some(row) = ended else { continue };
                if row.workspace_id == Some(self.workspace) && self.filter.matches(&row) {
                    let cursor = self.resuming.position.clone();
                    self.resuming.found.push_back(FeedItem::Call { row: Box::new(row), cursor });
                }
            }
        }
        Ok(self.queue.recv().await)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.inner.state.lock().listeners.remove(&self.id);
    }
}
