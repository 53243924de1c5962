use std::path::PathBuf;

use monstrum_store::StoreOptions;
use monstrum_types::{FixedClock, RequestId, WorkspaceId};
use monstrum_vault::AuditKeys;
use tempfile::TempDir;

use super::*;
use crate::audit::{HEADS_FILE, started};
use crate::policy::row_seals;

const NOW: UtcMillis = UtcMillis(1_800_000_000_000);

/// A database with one chain, and the file of its heads.
struct Audit {
    folder: TempDir,
    store: Store,
    keys: Arc<AuditKeys>,
}

impl Audit {
    async fn new() -> Audit {
        let folder = tempfile::tempdir().unwrap();
        let store = row_seals::open_for_tests(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        Audit { folder, store, keys: Arc::new(AuditKeys::generate(1).unwrap()) }
    }

    fn heads_file(&self) -> PathBuf {
        self.folder.path().join(HEADS_FILE)
    }

    /// Begins another run of the writer.
    async fn run(&self) -> Writer {
        let chain = Chain::resume(&self.store, "node".to_owned(), Arc::clone(&self.keys)).await.unwrap();
        let ring = KeyRing::from([(1, Arc::clone(&self.keys))]);
        let heads = Heads::open(&self.heads_file(), &ring).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(NOW));
        Writer::new(self.store.clone(), chain, heads, &Arc::default(), &Arc::default(), &clock)
    }

    /// Returns the sequence numbers of the rows `started` of calls that have not ended.
    async fn open(&self) -> Vec<i64> {
        self.store.open_starts("node", 0).await.unwrap().iter().map(|row| row.sequence).collect()
    }
}

/// Appends a row. All rows belong to the same workspace.
async fn append(writer: &mut Writer, request: RequestId, kind: AuditKind) {
    let workspace: WorkspaceId = "01939d2c-7f6a-7000-8000-000000000001".parse().unwrap();
    let row = AuditRow { kind, ..started(request, workspace, NOW) };
    writer.chain.append(&writer.store, &mut [row], &[]).await.unwrap();
}

#[tokio::test]
async fn a_start_ends_the_calls_that_the_newest_head_and_later_rows_left_open() {
    use AuditKind::{Finished, Started};
    let audit = Audit::new().await;
    let mut writer = audit.run().await;
    let (ended, open, later) = (RequestId::new(), RequestId::new(), RequestId::new());
    for (request, kind) in [(ended, Started), (open, Started), (ended, Finished)] {
        append(&mut writer, request, kind).await;
    }
    writer.sign_head();
    append(&mut writer, later, Started).await;
    drop(writer);
    assert_eq!(audit.open().await, [2, 4]);

    let mut writer = audit.run().await;
    assert_eq!(writer.open_from().await.unwrap(), 2);
    writer.interrupt_open_calls().await.unwrap();
    assert_eq!(audit.open().await, [0; 0]);
    writer.sign_head();
    drop(writer);
    assert_eq!(audit.run().await.open_from().await.unwrap(), 7, "all calls have ended");
}

#[tokio::test]
async fn a_head_of_another_database_does_not_shorten_the_search() {
    let audit = Audit::new().await;
    let mut writer = audit.run().await;
    append(&mut writer, RequestId::new(), AuditKind::Started).await;
    append(&mut writer, RequestId::new(), AuditKind::Finished).await;
    drop(writer);

    // The other database has the same keys and the same writer, but other rows.
    let other = Audit { keys: Arc::clone(&audit.keys), ..Audit::new().await };
    let mut writer = other.run().await;
    append(&mut writer, RequestId::new(), AuditKind::Finished).await;
    writer.sign_head();
    std::fs::copy(other.heads_file(), audit.heads_file()).unwrap();
    let mut writer = audit.run().await;
    assert_eq!(writer.heads.earlier().unwrap().open_from, Some(2));
    assert_eq!(writer.open_from().await.unwrap(), 0);
    writer.interrupt_open_calls().await.unwrap();
    assert_eq!(audit.open().await, [0; 0]);
}
