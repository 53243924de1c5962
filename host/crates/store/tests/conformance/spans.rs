//! Tests of scans of spans, which verification uses for SQLite.

use monstrum_store::{AuditKind, AuditRow, Store};
use monstrum_types::RequestId;

use crate::rows::{AppendRows as _, canonical, default_workspace, event};
use crate::sqlite::Database;

/// The fields of a row that a scan passes to its check.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    sequence: i64,
    hash: [u8; 32],
    body: String,
    previous_hash: [u8; 32],
    key_version: u32,
}

impl Seen {
    fn of(row: &AuditRow) -> Seen {
        Seen {
            sequence: row.sequence,
            hash: row.hash,
            body: canonical(row),
            previous_hash: row.previous_hash,
            key_version: u32::try_from(row.key_version).unwrap(),
        }
    }
}

/// Scans the rows from `first` to `last`. Returns the rows, and whether all of them exist.
async fn scan(store: &Store, first: i64, last: i64) -> (Vec<Seen>, bool) {
    let mut seen = Vec::new();
    let mut scanner = store.span_scanner().await.unwrap().unwrap();
    let all = scanner.all("node-1", (first, last), |row| {
        let body = String::from_utf8(row.body.to_vec()).unwrap();
        let (sequence, previous_hash, key_version) = (row.sequence, row.previous_hash, row.key_version);
        seen.push(Seen { sequence, hash: *row.hash, body, previous_hash, key_version });
        true
    });
    (seen, all.unwrap())
}

/// Returns whether a scan of this row passes exactly this row.
pub(crate) async fn passes(store: &Store, row: &AuditRow) -> bool {
    let (seen, all) = scan(store, row.sequence, row.sequence).await;
    all && seen == [Seen::of(row)]
}

#[tokio::test]
async fn rows_with_any_text_are_passed_as_they_were_written() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let texts = [
        "",
        ",",
        "\"",
        "\\",
        "\\\"",
        ",\"kind\":\"started\",\"sequence\":7",
        "\",\"previous_hash\":\"00\",\"v\":1",
        "x\",",
        "ünïcödé \u{1}\u{7f} 😀",
        r#"{"writer":"other","request_id":"x"}"#,
    ];
    let mut rows = Vec::new();
    for text in texts {
        for field in 0..9 {
            let sequence = rows.len() as i64 + 1;
            let mut row = event(workspace, sequence, AuditKind::Finished, RequestId::new());
            row.previous_hash = [sequence as u8; 32];
            let columns = [
                &mut row.tool,
                &mut row.operation,
                &mut row.status,
                &mut row.flags,
                &mut row.params,
                &mut row.message,
                &mut row.code,
                &mut row.task_id,
                &mut row.rule,
            ];
            *columns.into_iter().nth(field).unwrap() = Some(text.to_owned());
            rows.push(row);
        }
    }
    for kind in [AuditKind::Started, AuditKind::Interrupted, AuditKind::Finished] {
        let sequence = rows.len() as i64 + 1;
        rows.push(AuditRow {
            workspace_id: None,
            bot_id: None,
            tool: None,
            operation: None,
            flags: None,
            status: None,
            ..event(workspace, sequence, kind, RequestId::new())
        });
    }
    store.append_rows(&rows).await.unwrap();
    let last = rows.len() as i64;
    let (seen, all) = scan(&store, 1, last).await;
    assert!(all, "{} of {last} rows", seen.len());
    assert_eq!(seen, rows.iter().map(Seen::of).collect::<Vec<_>>());
    assert_eq!(store.last_of_version_2("node-1").await.unwrap(), Some(last));
    assert_eq!(store.last_of_version_2("node-2").await.unwrap(), None);
    assert!(!scan(&store, 1, last + 1).await.1, "a row is missing at the end");
    assert!(!scan(&store, 0, last).await.1, "a row is missing at the beginning");
    let mut scanner = store.span_scanner().await.unwrap().unwrap();
    let mut passed = 0;
    let all = scanner.all("node-1", (1, last), |row| {
        passed += 1;
        row.sequence < 3
    });
    assert_eq!((all.unwrap(), passed), (false, 3), "the check ends the scan");
}

#[tokio::test]
async fn a_missing_row_ends_a_span() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let rows = [1, 2, 4].map(|sequence| event(workspace, sequence, AuditKind::Finished, RequestId::new()));
    store.append_rows(&rows).await.unwrap();
    let (seen, all) = scan(&store, 1, 4).await;
    assert_eq!((seen.len(), all), (2, false));
}
