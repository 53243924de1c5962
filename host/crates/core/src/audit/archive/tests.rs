use std::sync::Arc;

use monstrum_store::{AuditKind, AuditRow, StoreOptions};
use monstrum_types::{RequestId, WorkspaceId};
use monstrum_vault::AuditKeys;
use tempfile::TempDir;

use super::*;
use crate::audit::chain::Chain;
use crate::audit::heads::{Heads, PolicyState};
use crate::audit::rollback::find_rollback;
use crate::audit::{find_anchor_problems, started, verify};
use crate::policy::row_seals;

const NOW: UtcMillis = UtcMillis(1_800_000_000_000);
const LATER: UtcMillis = UtcMillis(NOW.0 + 1_000_000);

/// A data folder with a chain that tests append to.
struct Folder {
    folder: TempDir,
    store: Store,
    keys: KeyRing,
    chain: Chain,
    heads: Heads,
}

impl Folder {
    async fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let store = row_seals::open_for_tests(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        let keys = Arc::new(AuditKeys::generate(1).unwrap());
        let chain = Chain::resume(&store, "node".to_owned(), Arc::clone(&keys)).await.unwrap();
        let keys = KeyRing::from([(1, keys)]);
        let heads = Heads::open(&folder.path().join(HEADS_FILE), &keys).unwrap();
        Folder { folder, store, keys, chain, heads }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn archive_folder(&self) -> PathBuf {
        self.path().join(ARCHIVE_FOLDER)
    }

    /// Appends the start or the end of a call. Each row is one second later than the previous row.
    async fn append(&mut self, request: RequestId, kind: AuditKind) {
        let at = NOW.plus_ms(self.chain.position().sequence * 1000);
        let row = AuditRow { kind, at, ..started(request, WorkspaceId::new(), at) };
        self.chain.append(&self.store, &mut [row], &[]).await.unwrap();
    }

    async fn append_calls(&mut self, calls: usize) {
        for _ in 0..calls {
            self.append(RequestId::new(), AuditKind::Finished).await;
        }
    }

    fn sign(&mut self) {
        let policy = PolicyState { generation: 1, row_key_version: Some(1) };
        self.heads.sign(&mut self.chain, policy, NOW).unwrap();
    }

    async fn open(&self, before: UtcMillis) -> Archive<'_> {
        Archive::open(&self.store, &self.keys, self.path(), &self.archive_folder(), before).await.unwrap()
    }

    /// Archives in segments of at least `segment_rows` rows. Returns the first and the last row of each segment.
    async fn archive(&self, before: UtcMillis, segment_rows: u64) -> Vec<(i64, i64)> {
        let mut archive = self.open(before).await;
        archive.segment_rows = segment_rows;
        let mut segments = Vec::new();
        while let Some(segment) = archive.next().await.unwrap() {
            segment.delete_rows(&self.store, &self.keys, LATER).await.unwrap();
            segments.push((segment.manifest.first_sequence, segment.manifest.last_sequence));
        }
        segments
    }

    async fn problems(&self) -> Vec<String> {
        let report = verify(&self.store, &self.keys, self.path(), None).await.unwrap();
        let problems = report.problems.into_iter().map(|problem| problem.what);
        // The heads record generation 1, but the database of the test has no policy. This problem is ignored.
        problems.filter(|what| !what.starts_with("the policy was signed")).collect()
    }

    async fn archive_problems(&self) -> Vec<String> {
        let report = verify_archive(&self.store, &self.keys, &[self.archive_folder()]).await.unwrap();
        report.problems.into_iter().map(|problem| problem.what).collect()
    }
}

#[tokio::test]
async fn a_chain_is_archived_in_segments_and_goes_on() {
    let mut folder = Folder::new().await;
    folder.append_calls(8).await;
    folder.sign();
    assert_eq!(folder.archive(LATER, 3).await, [(1, 3), (4, 6), (7, 8)]);
    assert_eq!(folder.store.count_events().await.unwrap(), 0);
    // All rows were archived, so the anchor is the end of the chain.
    let keys = Arc::clone(&folder.keys[&1]);
    let resumed = Chain::resume(&folder.store, "node".to_owned(), keys).await.unwrap();
    assert_eq!(resumed.position(), folder.chain.position());
    assert_eq!(folder.chain.catch_up(&folder.store).await.unwrap(), []);
    assert_eq!(folder.chain.position().sequence, 8);
    let older = find_rollback(&folder.store, &folder.keys, folder.path()).await.unwrap();
    assert!(!format!("{older:?}").contains("Row"), "{older:?}");
    assert_eq!(folder.problems().await, [""; 0]);
    folder.append_calls(2).await;
    folder.sign();
    assert_eq!(folder.problems().await, [""; 0]);
    assert_eq!(folder.archive(LATER, 3).await, [(9, 10)]);
    assert_eq!((folder.problems().await, folder.archive_problems().await), (vec![], vec![]));
}

#[tokio::test]
async fn only_old_rows_that_a_head_covers_are_archived() {
    let mut folder = Folder::new().await;
    folder.append_calls(4).await;
    assert_eq!(folder.archive(LATER, 10).await, [], "no head covers them");
    folder.sign();
    folder.append_calls(4).await;
    assert_eq!(folder.archive(NOW, 10).await, [], "all are newer");
    assert_eq!(folder.archive(NOW.plus_ms(2000), 10).await, [(1, 2)]);
    assert_eq!(folder.archive(LATER, 10).await, [(3, 4)], "up to the head");
}

#[tokio::test]
async fn the_start_of_a_call_without_an_end_is_not_archived() {
    use AuditKind::{Finished, Started};
    let mut folder = Folder::new().await;
    let (first, second, open) = (RequestId::new(), RequestId::new(), RequestId::new());
    for (request, kind) in [(first, Started), (second, Started), (first, Finished), (open, Started)] {
        folder.append(request, kind).await;
    }
    folder.sign();
    assert_eq!(folder.archive(LATER, 10).await, [(1, 1)], "the second call has no end");
    folder.append(second, Finished).await;
    folder.append_calls(1).await;
    folder.sign();
    assert_eq!(folder.archive(LATER, 10).await, [(2, 3)], "the third call has no end");
    assert_eq!(folder.archive(LATER, 1).await, []);
    assert_eq!(folder.store.open_starts("node", 0).await.unwrap().len(), 1);
    folder.append(open, Finished).await;
    folder.sign();
    assert_eq!(folder.archive(LATER, 10).await, [(4, 7)]);
    assert_eq!((folder.problems().await, folder.archive_problems().await), (vec![], vec![]));
}

/// On a busy host a call is open at each row. The end of an open call may be newer than the rows to archive, may have no
/// head yet, and may follow many rows later.
#[tokio::test]
async fn segments_end_while_calls_are_open_whose_ends_are_in_the_database() {
    use AuditKind::{Finished, Started};
    let mut folder = Folder::new().await;
    let calls: Vec<RequestId> = (0..40).map(|_| RequestId::new()).collect();
    folder.append(calls[0], Started).await;
    for pair in calls.windows(2) {
        folder.append(pair[1], Started).await;
        folder.append(pair[0], Finished).await;
    }
    folder.sign();
    assert_eq!(folder.archive(NOW.plus_ms(10_000), 4).await, [(1, 4), (5, 8), (9, 10)]);
    assert_eq!(folder.archive(LATER, 60).await, [(11, 70), (71, 77)], "the last call has no end");
    folder.append(calls[39], Finished).await;
    assert_eq!(folder.archive(LATER, 60).await, [(78, 79)], "the end needs no head");
    assert_eq!(folder.store.open_starts("node", 0).await.unwrap().len(), 0);
    assert_eq!((folder.problems().await, folder.archive_problems().await), (vec![], vec![]));
}

#[tokio::test]
async fn a_forged_end_of_a_call_prevents_archiving_its_start() {
    let mut folder = Folder::new().await;
    let call = RequestId::new();
    folder.append(call, AuditKind::Started).await;
    folder.sign();
    // The forged row has the right sequence number and previous hash, but it is not written with the host's key.
    let forged = Arc::new(AuditKeys::generate(1).unwrap());
    folder.chain = Chain::resume(&folder.store, "node".to_owned(), forged).await.unwrap();
    folder.append(call, AuditKind::Finished).await;
    let refused = folder.open(LATER).await.next().await;
    assert!(matches!(refused, Err(ArchiveError::NotAsWritten { sequence: 2, .. })), "{:?}", refused.err());
}

#[tokio::test]
async fn an_interrupted_archive_is_finished() {
    let mut folder = Folder::new().await;
    folder.append_calls(5).await;
    folder.sign();
    let segment = folder.open(NOW.plus_ms(3000)).await.next().await.unwrap().unwrap();
    assert_eq!(segment.manifest.last_sequence, 3);
    let manifest = folder.archive_folder().join(segment.manifest.file_name());
    let before = std::fs::read(&manifest).unwrap();
    // The rows are still in the database.
    assert_eq!((folder.problems().await, folder.archive_problems().await), (vec![], vec![]));
    // A later run writes the same segment again, although it could archive more rows.
    assert_eq!(folder.archive(LATER, 10).await, [(1, 3), (4, 5)]);
    assert_eq!(std::fs::read(&manifest).unwrap(), before);
    assert_eq!((folder.problems().await, folder.archive_problems().await), (vec![], vec![]));
}

#[tokio::test]
async fn a_segment_of_a_lost_state_is_not_overwritten() {
    let mut folder = Folder::new().await;
    folder.append_calls(3).await;
    folder.sign();
    folder.open(LATER).await.next().await.unwrap().unwrap();
    let mut other = Folder::new().await;
    other.keys = folder.keys.clone();
    other.chain = Chain::resume(&other.store, "node".to_owned(), Arc::clone(&folder.keys[&1])).await.unwrap();
    other.append_calls(3).await;
    other.sign();
    let mut archive =
        Archive::open(&other.store, &other.keys, other.path(), &folder.archive_folder(), LATER).await.unwrap();
    let refused = archive.next().await;
    assert!(matches!(refused, Err(ArchiveError::OtherRows { .. })), "{:?}", refused.err());
    assert_eq!(other.store.count_events().await.unwrap(), 3);
}

#[tokio::test]
async fn an_anchor_beyond_the_last_head_is_reported() {
    let mut folder = Folder::new().await;
    folder.append_calls(2).await;
    folder.sign();
    let heads = std::fs::read(folder.path().join(HEADS_FILE)).unwrap();
    folder.append_calls(2).await;
    folder.sign();
    folder.archive(LATER, 10).await;
    std::fs::write(folder.path().join(HEADS_FILE), heads).unwrap();
    let expected = "an anchor covers rows up to 4, but the last signed head covers rows only up to 2";
    assert_eq!(folder.problems().await, [expected]);
    let found = find_anchor_problems(&folder.store, &folder.keys, folder.path()).await.unwrap();
    assert_eq!(found.iter().map(|problem| problem.what.as_str()).collect::<Vec<_>>(), [expected]);
}
