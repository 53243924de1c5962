//! Tests of feeds over a real database.

use std::sync::Arc;

use monstrum_store::{AuditKind, StoreOptions};
use monstrum_types::{RequestId, UtcMillis};
use monstrum_vault::AuditKeys;
use tempfile::TempDir;

use super::*;
use crate::audit::chain::Chain;
use crate::audit::started;
use crate::policy::row_seals;

const NOW: UtcMillis = UtcMillis(1_800_000_000_000);
/// A time-out that is far longer than a delivery takes.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A chain that tests append to, and its feeds.
struct World {
    store: Store,
    chain: Chain,
    feed: Feed,
    ours: WorkspaceId,
    theirs: WorkspaceId,
    _folder: TempDir,
}

impl World {
    async fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let store = row_seals::open_for_tests(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        let keys = Arc::new(AuditKeys::generate(1).unwrap());
        let chain = Chain::resume(&store, "node".to_owned(), keys).await.unwrap();
        let feed = Feed::new(store.clone());
        World { store, chain, feed, ours: WorkspaceId::new(), theirs: WorkspaceId::new(), _folder: folder }
    }

    /// Appends a call with this tool.
    async fn call(&mut self, workspace: WorkspaceId, tool: &str) {
        self.row(workspace, tool, AuditKind::Finished).await;
    }

    async fn row(&mut self, workspace: WorkspaceId, tool: &str, kind: AuditKind) {
        let row = AuditRow { kind, tool: Some(tool.to_owned()), ..started(RequestId::new(), workspace, NOW) };
        self.chain.append(&self.store, &mut [row], &[]).await.unwrap();
    }

    async fn listen(&self, cursor: Option<FeedCursor>) -> Listening {
        self.feed.listen(self.ours, CallFilter::default(), cursor).await.unwrap()
    }
}

/// Returns the next item: the tool of a call or the number of lost calls, and the cursor.
async fn next(listening: &mut Listening) -> (String, Option<FeedCursor>) {
    let item = tokio::time::timeout(WAIT_MAX, listening.next()).await.expect("no item arrived").unwrap();
    match item {
        Some(FeedItem::Call { row, cursor }) => (row.tool.unwrap_or_default(), Some(cursor)),
        Some(FeedItem::Lost { count }) => (format!("lost {count:?}"), None),
        None => ("end".to_owned(), None),
    }
}

#[tokio::test]
async fn each_call_is_an_item_at_its_end() {
    let mut world = World::new().await;
    let (ours, theirs) = (world.ours, world.theirs);
    world.call(ours, "before").await;
    let mut listening = world.listen(None).await;
    world.row(ours, "a", AuditKind::Started).await;
    world.call(theirs, "foreign").await;
    world.call(ours, "b").await;
    world.row(ours, "c", AuditKind::Interrupted).await;
    assert_eq!(next(&mut listening).await.0, "b");
    let (tool, cursor) = next(&mut listening).await;
    assert_eq!(tool, "c");
    let mut other = world.feed.listen(theirs, CallFilter::default(), None).await.unwrap();
    world.call(theirs, "theirs").await;
    world.call(ours, "d").await;
    assert_eq!((next(&mut listening).await.0, next(&mut other).await.0), ("d".to_owned(), "theirs".to_owned()));
    // A cursor of one workspace leads to no calls of another.
    let mut stolen = world.feed.listen(theirs, CallFilter::default(), cursor).await.unwrap();
    assert_eq!(next(&mut stolen).await.0, "theirs");
}

#[tokio::test]
async fn a_listener_resumes_after_its_cursor() {
    let mut world = World::new().await;
    let ours = world.ours;
    let mut listening = world.listen(None).await;
    world.call(ours, "a").await;
    let cursor = next(&mut listening).await.1.unwrap();
    drop(listening);
    for tool in ["b", "c"] {
        world.call(ours, tool).await;
    }
    let text = cursor.to_string();
    let mut listening = world.listen(Some(text.parse().unwrap())).await;
    world.call(ours, "d").await;
    for tool in ["b", "c", "d"] {
        assert_eq!(next(&mut listening).await.0, tool);
    }
    let filter = CallFilter { tool: Some("c".to_owned()), ..CallFilter::default() };
    let mut filtered = world.feed.listen(ours, filter, Some(cursor)).await.unwrap();
    world.call(ours, "e").await;
    world.call(ours, "c").await;
    assert_eq!((next(&mut filtered).await.0, next(&mut filtered).await.0), ("c".to_owned(), "c".to_owned()));
}

#[tokio::test]
async fn the_audit_is_read_while_there_are_listeners() {
    let world = World::new().await;
    assert!(!world.feed.is_reading());
    let listening = world.listen(None).await;
    let second = world.listen(None).await;
    assert!(world.feed.is_reading());
    drop((listening, second));
    let ended = async {
        while world.feed.is_reading() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, ended).await.expect("the task goes on without listeners");
    let mut again = world.listen(None).await;
    assert!(world.feed.is_reading());
    world.feed.shut_down().await;
    assert_eq!(next(&mut again).await.0, "end");
}

#[tokio::test]
async fn a_slow_listener_learns_how_many_calls_it_lost() {
    let mut world = World::new().await;
    let ours = world.ours;
    let (mut slow, mut quick) = (world.listen(None).await, world.listen(None).await);
    for n in 0..QUEUE_CALLS_MAX + 10 {
        world.call(ours, &n.to_string()).await;
        if n % 100 == 99 {
            for earlier in n - 99..=n {
                assert_eq!(next(&mut quick).await.0, earlier.to_string());
            }
        }
    }
    for last in 200..QUEUE_CALLS_MAX + 10 {
        assert_eq!(next(&mut quick).await.0, last.to_string());
    }
    for n in 0..QUEUE_CALLS_MAX {
        assert_eq!(next(&mut slow).await.0, n.to_string());
    }
    assert_eq!(next(&mut slow).await.0, "lost Some(10)");
    world.call(ours, "after").await;
    assert_eq!(next(&mut slow).await.0, "after");
}

#[test]
fn a_listener_that_was_away_for_too_long_begins_now() {
    let now = FeedCursor::of(vec![monstrum_store::ChainEnd { writer: "a".to_owned(), sequence: RESUME_ROWS_MAX + 1 }]);
    assert!(Resuming::new(FeedCursor::default(), &now).has_lost);
    let mut cursor = FeedCursor::default();
    cursor.advance("a", 1);
    let resuming = Resuming::new(cursor, &now);
    assert_eq!((resuming.has_lost, resuming.rest), (false, vec![("a".to_owned(), RESUME_ROWS_MAX + 1)]));
    // A cursor of an older copy of the database is behind every row.
    let mut ahead = FeedCursor::default();
    ahead.advance("a", RESUME_ROWS_MAX + 2);
    assert!(Resuming::new(ahead, &now).rest.is_empty());
}

#[test]
fn other_texts_are_no_cursors() {
    for text in ["", "x", "e30=", "W10", "eyJhIjotMX0", &"A".repeat(20_000)] {
        assert!(text.parse::<FeedCursor>().is_err(), "{text}");
    }
    assert_eq!("eyJhIjoxfQ".parse::<FeedCursor>().unwrap().to_string(), "eyJhIjoxfQ");
}
