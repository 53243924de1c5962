//! SQLite tests: the database file, its failures, and attacks on the audit log with write access to the file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monstrum_store::{AuditKind, AuditRow, CallFilter, Page, Store, StoreError, StoreOptions};
use monstrum_types::RequestId;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::rows::{AppendRows as _, anchor, bot, canonical, chain, default_workspace, event, reads_differently};
use crate::spans::passes;

/// A database in a temporary folder that only one test uses.
pub(crate) struct Database {
    folder: tempfile::TempDir,
}

impl Database {
    pub(crate) fn create() -> Self {
        Database { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) async fn open(&self) -> Result<Store, StoreError> {
        crate::row_key::keyed(Store::open(self.options()).await?).await
    }

    fn options(&self) -> StoreOptions {
        StoreOptions::sqlite(self.path())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("monstrum.db")
    }

    /// Creates a database of an earlier release: with the migrations before this one.
    pub(crate) async fn older(&self, version: i64) -> SqliteConnection {
        let mut older = sqlx::migrate!("../../../migrations/sqlite");
        older.migrations = older.migrations.iter().filter(|migration| migration.version < version).cloned().collect();
        let options = SqliteConnectOptions::new().filename(self.path()).foreign_keys(false).create_if_missing(true);
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        older.run(&mut connection).await.unwrap();
        connection
    }

    /// Opens a connection that acts as another program.
    pub(crate) async fn intruder(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path()).foreign_keys(false);
        SqliteConnection::connect_with(&options).await.unwrap()
    }
}

impl crate::authentic::Intruder for SqliteConnection {
    async fn run(&mut self, sql: String) {
        run(self, sql).await;
    }

    async fn columns(&mut self) -> Vec<String> {
        let sql = "select m.name || '.' || p.name as name from sqlite_master m join pragma_table_info(m.name) p where m.type = 'table' and m.name not like 'sqlite%'";
        let rows = sqlx::query(sql).fetch_all(self).await.unwrap();
        rows.iter().map(|row| row.get("name")).collect()
    }
}

async fn run(connection: &mut SqliteConnection, sql: impl Into<String>) {
    sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(connection).await.unwrap();
}

/// A task with a limit of credits reads its usage before each round, so the read must not visit the other tasks of the bot.
#[tokio::test]
async fn the_usage_of_a_task_is_found_by_an_index() {
    let database = Database::create();
    database.open().await.unwrap().close().await;
    let sql = "explain query plan select tokens from usage_rows where workspace_id = 'w' and bot_id = 'b' \
               and task_id = 't' order by month desc limit 9";
    let rows = sqlx::query(sql).fetch_all(&mut database.intruder().await).await.unwrap();
    let plan: String = rows[0].get("detail");
    assert_eq!(plan, "SEARCH usage_rows USING INDEX usage_rows_task (bot_id=? AND task_id=?)");
}

/// While 100 MiB of rows are written, the checkpoint thread copies them into the file. The commits do not copy them.
#[tokio::test]
async fn the_log_stays_small_while_rows_are_written() {
    const BATCHES: i64 = 100;
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    for sequence in 1..=BATCHES {
        let params = Some("x".repeat(1 << 20));
        let row = AuditRow { params, ..event(workspace, sequence, AuditKind::Finished, RequestId::new()) };
        store.append_rows(&[row]).await.unwrap();
    }
    let log = database.folder.path().join("monstrum.db-wal");
    let bytes = fs::metadata(&log).unwrap().len();
    assert!(bytes < 64 << 20, "the log has {bytes} bytes");
    store.close().await;
    assert!(!log.exists(), "the last connection copies the log and deletes it");
    let store = database.open().await.unwrap();
    assert_eq!(store.count_events().await.unwrap(), BATCHES);
}

fn what(result: Result<impl Sized, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable { what, .. }) => what,
        Err(other) => panic!("expected unavailable, not {other:?}"),
        Ok(_) => panic!("expected unavailable, not success"),
    }
}

#[tokio::test]
async fn only_the_owner_can_access_the_file_and_its_log() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    store.insert_bot(&bot(workspace, "b")).await.unwrap();
    let mut files = 0;
    for file in fs::read_dir(database.folder.path()).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        files += 1;
    }
    assert_eq!(files, 3, "the database, its log and the index of the log");
    store.close().await;
    assert_eq!(fs::read_dir(database.folder.path()).unwrap().count(), 1, "the log was checkpointed");
    assert_eq!(what(store.generation().await), "the database is closed");
}

/// Starts with an active plugin and the schema before the `owners` table was added.
#[tokio::test]
async fn owners_are_filled_once_in_an_older_database() {
    let database = Database::create();
    let mut intruder = database.older(7).await;
    run(&mut intruder, crate::owners::OLDER_ROWS).await;
    intruder.close().await.unwrap();
    crate::owners::owners_are_filled_once(&database.open().await.unwrap()).await;
}

#[tokio::test]
async fn rows_are_still_there_after_reopening() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let before = store.snapshot().await.unwrap();
    store.close().await;
    let after = database.open().await.unwrap().snapshot().await.unwrap();
    assert_eq!((after.generation, after.workspaces), (before.generation, before.workspaces));
}

#[tokio::test]
async fn a_locked_database_is_reported() {
    let database = Database::create();
    let store = crate::row_key::open(database.options().lock_wait(Duration::from_millis(20))).await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut intruder = database.intruder().await;
    run(&mut intruder, "begin immediate").await;
    assert_eq!(
        what(store.insert_bot(&bot(workspace, "b")).await),
        "the database is locked by another process or connection"
    );
    assert_eq!(
        what(store.append_rows(&[event(workspace, 1, AuditKind::Finished, RequestId::new())]).await),
        "the database is locked by another process or connection"
    );
    assert!(store.snapshot().await.unwrap().bots.is_empty(), "reads still work");
    run(&mut intruder, "rollback").await;
    store.insert_bot(&bot(workspace, "b")).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_locked_at_the_start_is_reported() {
    let database = Database::create();
    fs::write(database.path(), "").unwrap();
    let mut intruder = database.intruder().await;
    run(&mut intruder, "create table t (x); begin exclusive").await;
    let opened = Store::open(database.options().lock_wait(Duration::from_millis(20))).await;
    let path = database.path().display().to_string();
    assert_eq!(what(opened), format!("database `{path}`: the database is locked by another process or connection"));
}

#[tokio::test]
async fn a_full_disk_is_reported_and_writes_stay_atomic() {
    let database = Database::create();
    // The empty schema occupies about 245 pages of 4 KiB.
    let store = crate::row_key::open(database.options().pages_max(330)).await.unwrap();
    let workspace = default_workspace(&store).await;
    let generation = store.generation().await.unwrap();
    let mut large = bot(workspace, "large");
    large.description = "x".repeat(1024 * 1024);
    assert_eq!(what(store.insert_bot(&large).await), "the disk is full");
    assert_eq!(store.generation().await.unwrap(), generation);

    let event = |sequence, bytes| AuditRow {
        params: Some("x".repeat(bytes)),
        ..event(workspace, sequence, AuditKind::Finished, RequestId::new())
    };
    let group = [event(1, 10), event(2, 1024 * 1024)];
    assert_eq!(what(store.append_rows(&group).await), "the disk is full");
    assert_eq!(store.count_events().await.unwrap(), 0);
    store.append_rows(&group[..1]).await.unwrap();
}

#[tokio::test]
async fn a_read_only_folder_is_reported() {
    let database = Database::create();
    fs::set_permissions(database.folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
    // Root bypasses folder permissions, except on kernel file systems such as `/sys`.
    let is_enforced = fs::write(database.folder.path().join("probe"), "").is_err();
    let path = if is_enforced { database.path() } else { PathBuf::from("/sys/kernel/monstrum.db") };
    assert_eq!(
        what(Store::open(StoreOptions::sqlite(&path)).await),
        format!(
            "database `{}`: the database cannot be opened: the file or its folder cannot be read or written",
            path.display()
        )
    );
}

#[tokio::test]
async fn a_missing_folder_is_reported() {
    let database = Database::create();
    let path = database.folder.path().join("absent/monstrum.db");
    assert_eq!(
        what(Store::open(StoreOptions::sqlite(&path)).await),
        format!("database `{}`: the folder of the database does not exist", path.display())
    );
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_left_alone() {
    let database = Database::create();
    let text = "not a database, but longer than its header of one hundred bytes".repeat(10);
    fs::write(database.path(), &text).unwrap();
    let refused = database.open().await.map(drop).unwrap_err();
    assert!(matches!(&refused, StoreError::Corrupt { .. }), "{refused:?}");
    assert!(refused.to_string().ends_with("the file is not an SQLite database"), "{refused}");
    assert_eq!(fs::read_to_string(database.path()).unwrap(), text);
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_rejected() {
    let database = Database::create();
    database.open().await.unwrap().close().await;
    let mut intruder = database.intruder().await;
    let sql = "insert into _sqlx_migrations (version, description, success, checksum, execution_time) \
               values (9999, 'later', true, x'00', 0)";
    run(&mut intruder, sql).await;
    let refused = database.open().await.map(drop).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { found: 9999, .. }), "{refused:?}");
    assert!(refused.to_string().ends_with("upgrade monstrum"));
}

#[tokio::test]
async fn a_schema_with_different_migrations_is_rejected() {
    let database = Database::create();
    database.open().await.unwrap().close().await;
    run(&mut database.intruder().await, "update _sqlx_migrations set checksum = x'00'").await;
    assert!(matches!(database.open().await.map(drop), Err(StoreError::Migration(_))));
}

#[test]
fn an_address_with_an_unknown_scheme_is_rejected_without_showing_it() {
    let refused = StoreOptions::from_url("mysql://user:password@host/db").unwrap_err();
    assert_eq!(refused.to_string(), "cannot use `mysql` as a database: expected postgres://…, sqlite:PATH or a path");
    for url in ["sqlite:/tmp/x.db", "sqlite:///tmp/x.db", "/tmp/x.db"] {
        assert!(format!("{:?}", StoreOptions::from_url(url).unwrap()).contains("\"/tmp/x.db\""), "{url}");
    }
}

#[tokio::test]
async fn a_file_name_that_looks_like_a_uri_is_a_file_name() {
    let database = Database::create();
    let path = database.folder.path().join("file:a?mode=memory&x=%41#.db");
    Store::open(StoreOptions::sqlite(&path)).await.unwrap();
    assert!(Path::new(&path).exists());
}

#[tokio::test]
async fn the_audit_rejects_updates_and_deletions() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    store.append_rows(&[event(workspace, 1, AuditKind::Finished, RequestId::new())]).await.unwrap();
    let mut intruder = database.intruder().await;
    for sql in ["update audit_rows set status = 'error'", "delete from audit_rows"] {
        let refused = sqlx::raw_sql(sql).execute(&mut intruder).await.unwrap_err();
        assert!(refused.to_string().contains("audit_rows is append-only"), "{refused}");
    }
}

#[tokio::test]
async fn an_anchor_permits_only_the_deletion_of_rows_before_it() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let rows = [1, 2, 3].map(|number| event(workspace, number, AuditKind::Finished, RequestId::new()));
    store.append_rows(&rows).await.unwrap();
    store.replace_with_anchor(&anchor(1, 1)).await.unwrap();
    let mut intruder = database.intruder().await;
    for (table, sql) in [
        ("audit_rows", "delete from audit_rows"),
        ("audit_rows", "delete from audit_rows where sequence = 2"),
        ("audit_anchors", "update audit_anchors set last_sequence = 3"),
        ("audit_anchors", "delete from audit_anchors"),
    ] {
        let refused = sqlx::raw_sql(sql).execute(&mut intruder).await.unwrap_err();
        assert!(refused.to_string().contains(&format!("{table} is append-only")), "{sql}: {refused}");
    }
    assert_eq!(store.count_events().await.unwrap(), 2);
}

/// Inserts a row of version 1, as earlier releases did.
async fn insert_of_version_1(intruder: &mut SqliteConnection, row: &AuditRow) {
    let mut columns: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&row.canonical_of_version_1()).unwrap();
    columns.remove("v");
    columns.insert("previous_hash".to_owned(), hex::encode(row.previous_hash).into());
    columns.insert("hash".to_owned(), hex::encode(row.hash).into());
    let names: Vec<_> = columns.keys().cloned().collect();
    let marks = vec!["?"; names.len()].join(", ");
    let sql = format!("insert into audit_events ({}) values ({marks})", names.join(", "));
    let mut insert = sqlx::query(AssertSqlSafe(sql));
    for value in columns.values() {
        insert = match value.as_i64() {
            Some(number) => insert.bind(number),
            None => insert.bind(value.as_str().unwrap()),
        };
    }
    insert.execute(intruder).await.unwrap();
}

/// A call can begin while an earlier release runs and end after an upgrade to this release.
#[tokio::test]
async fn rows_of_both_versions_are_one_list_and_one_chain() {
    use AuditKind::{Finished, Interrupted, Started};
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut intruder = database.intruder().await;
    let ids: Vec<RequestId> = (0..6).map(|_| RequestId::new()).collect();
    let old = [
        event(workspace, 1, Finished, ids[0]),
        event(workspace, 2, Started, ids[1]),
        event(workspace, 3, Started, ids[2]),
        event(workspace, 4, Finished, ids[3]),
    ];
    // Rows of version 1 name no user.
    let old = old.map(|row| AuditRow { app_id: None, user_id: None, ..row });
    for row in &old {
        insert_of_version_1(&mut intruder, row).await;
    }
    assert_eq!(store.last("node-1").await.unwrap().as_ref(), Some(&old[3]));
    assert_eq!(store.open_starts("node-1", 0).await.unwrap(), [old[1].clone(), old[2].clone()]);
    let new = [
        event(workspace, 5, Interrupted, ids[1]),
        event(workspace, 6, Started, ids[4]),
        event(workspace, 7, Finished, ids[5]),
    ];
    store.append_rows(&new).await.unwrap();
    let rows: Vec<_> = chain(&store, "node-1", 2).await.into_iter().map(|row| row.unwrap()).collect();
    let sequences: Vec<_> = rows.iter().map(|row| row.row.sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(rows[3].canonical, old[3].canonical_of_version_1());
    assert_eq!(rows[4].canonical, canonical(&new[0]).into_bytes());
    assert_eq!(store.last("node-1").await.unwrap().as_ref(), Some(&new[2]));
    assert_eq!(store.open_starts("node-1", 0).await.unwrap(), [old[2].clone(), new[1].clone()]);
    assert_eq!(store.events(workspace, ids[1]).await.unwrap(), [old[1].clone(), new[0].clone()]);
    assert_eq!((store.count_events().await.unwrap(), store.writers().await.unwrap()), (7, vec!["node-1".to_owned()]));
    let listed = async |filter: CallFilter, limit| {
        let (mut listed, mut page) = (Vec::new(), Page::first(limit));
        loop {
            let found = store.calls(workspace, &filter, &page).await.unwrap();
            assert!(found.items.len() <= limit as usize);
            listed.extend(found.items.iter().map(|row| row.sequence));
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return listed,
            }
        }
    };
    for limit in 1..8 {
        assert_eq!(listed(CallFilter::default(), limit).await, [7, 6, 4, 3, 5, 1], "{limit} per page");
        let running = CallFilter { status: Some("running".to_owned()), ..CallFilter::default() };
        assert_eq!(listed(running, limit).await, [6, 3], "{limit} per page");
        let bot = CallFilter { bot_id: old[0].bot_id, ..CallFilter::default() };
        assert_eq!(listed(bot, limit).await, [1], "{limit} per page");
        let resource = CallFilter { resource_id: old[0].resource_id, ..CallFilter::default() };
        assert_eq!(listed(resource, limit).await, [1], "{limit} per page");
    }
    let tree = store.call_tree(workspace, ids[1], 200).await.unwrap();
    assert_eq!(tree.rows, [new[0].clone()], "the end of version 2 of a call that began in version 1");
    assert_eq!(store.call_tree(workspace, ids[0], 200).await.unwrap().rows.len(), 1);
}

/// Edits every column of the table in every way that SQLite allows. After each edit, the row must be unreadable or
/// read as a different row.
#[tokio::test]
async fn an_edit_of_any_column_is_detected() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut intruder = database.intruder().await;
    run(&mut intruder, "drop trigger audit_rows_no_update; drop trigger audit_rows_no_delete").await;
    let rows = sqlx::query("select name from pragma_table_info('audit_rows')").fetch_all(&mut intruder).await.unwrap();
    let columns: Vec<String> = rows.iter().map(|row| row.get("name")).collect();
    assert_eq!(columns.len(), 13);

    let row = event(workspace, 1, AuditKind::Finished, RequestId::new());
    let edits = ["null", "''", "'x'", "x'00'", "7", "7.5", "upper(COLUMN)", "COLUMN || ' '", "cast(COLUMN as blob)"];
    let mut tried = 0;
    for column in &columns {
        for edit in edits {
            run(&mut intruder, "delete from audit_rows").await;
            store.append_rows(std::slice::from_ref(&row)).await.unwrap();
            let edit = edit.replace("COLUMN", column);
            let sql = format!("update audit_rows set {column} = {edit} where {column} is not {edit}");
            match sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut intruder).await {
                Ok(done) if done.rows_affected() == 1 => {}
                _ => continue, // The new value is equal, or the table rejects it.
            }
            tried += 1;
            assert!(reads_differently(&store, &row).await, "{column} = {edit}");
            assert!(!passes(&store, &row).await, "{column} = {edit}");
        }
    }
    assert!(tried > 100, "{tried} edits");
}

#[tokio::test]
async fn an_unreadable_row_is_reported_in_its_place() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let rows: Vec<_> = (1..=3).map(|n| event(workspace, n, AuditKind::Finished, RequestId::new())).collect();
    store.append_rows(&rows).await.unwrap();
    let mut intruder = database.intruder().await;
    run(&mut intruder, "drop trigger audit_rows_no_update").await;
    run(&mut intruder, "update audit_rows set body = 'x' where sequence = 2").await;
    run(&mut intruder, "update audit_rows set sequence = 'x' where sequence = 3").await;

    let rows = chain(&store, "node-1", 1).await;
    let places: Vec<_> = rows.iter().map(|row| row.as_ref().map(|row| row.row.sequence)).collect();
    assert_eq!(places[0], Ok(1));
    assert_eq!(places[1].unwrap_err().sequence, Some(2));
    assert_eq!(places[2].unwrap_err().sequence, None);
    assert_eq!(places.len(), 3, "a row without a position ends the chain");
}

/// SQLite can store a blob in a text column. Such a value must not affect other rows or a rotation.
#[tokio::test]
async fn a_blob_instead_of_text_does_not_hide_other_rows() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let (workspace, other) = (default_workspace(&store).await, crate::rows::other_workspace(&store).await);
    let (here, there) = (crate::rows::bound(&store, workspace).await, crate::rows::bound(&store, other).await);
    let mut intruder = database.intruder().await;
    run(&mut intruder, format!("update credentials set sealed = x'00' where workspace_id = '{workspace}'")).await;
    run(&mut intruder, "insert into credentials select x'00', workspace_id, resource_id, 'x', subject_id, auth_method, \
        sealed, key_version, given_for, status, expires_at, created_at, updated_at, refreshing_until, mac from credentials limit 1").await;
    run(&mut intruder, format!("update policy_seals set sealed = x'00' where scope = '{workspace}'")).await;
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.bindings, [there.binding]);
    assert_eq!(snapshot.unverified.len(), 1, "{:?}", snapshot.unverified);
    assert!(store.credentials(workspace, &monstrum_store::Page::first(9)).await.unwrap().items.is_empty());
    let refused = store.insert_role(&crate::rows::role(workspace, "s")).await;
    assert!(matches!(refused, Err(StoreError::Unverified { .. })), "{refused:?}");
    let walked = store.sealed_records(monstrum_store::SealedColumn::Credentials, None, 9).await.unwrap();
    let sealed: Vec<_> = walked.records.iter().map(|row| (row.key[0].clone(), row.sealed.clone())).collect();
    let mut expected = vec![
        (here.credential.id.to_string(), String::new()),
        (there.credential.id.to_string(), there.credential.sealed),
    ];
    expected.sort();
    assert_eq!(sealed, expected);
}

/// Another program inserts rows before, between and after the records. The rows do not all fit on one page.
#[tokio::test]
async fn rows_with_an_unreadable_key_do_not_hide_sealed_records() {
    const COLUMN: monstrum_store::SealedColumn = monstrum_store::SealedColumn::InstanceKeys;
    const FORGED: u64 = 9;
    let database = Database::create();
    let store = database.open().await.unwrap();
    for name in ["audit", "other"] {
        let row = monstrum_store::InstanceKeyRow {
            name: name.to_owned(),
            version: 1,
            sealed: format!("sealed {name}"),
            created_at: crate::rows::NOW,
        };
        assert!(store.insert_instance_key(&row).await.unwrap());
    }
    let mut intruder = database.intruder().await;
    for name in
        ["cast(x'01ff' as text)", "cast(x'62ff' as text)", "cast(x'7aff' as text)", "x'00'", "'c' || char(0)", "''"]
    {
        for version in 0..FORGED {
            run(&mut intruder, format!("insert into instance_keys values ({name}, {version}, 'x', 0)")).await;
        }
    }
    for limit in [1, 2, 4, 100] {
        let (mut names, mut unnamed, mut behind) = (Vec::new(), 0, None::<Vec<String>>);
        loop {
            let page = store.sealed_records(COLUMN, behind.as_deref(), limit).await.unwrap();
            unnamed += page.unnamed.len() as u64;
            let Some(last) = page.records.last() else { break };
            behind = Some(last.key.clone());
            assert!(page.records.len() <= limit as usize);
            names.extend(page.records.into_iter().map(|record| record.key[0].clone()));
        }
        names.retain(|name| !name.is_empty());
        assert_eq!((names, unnamed), (["audit", "other", "rows"].map(str::to_owned).to_vec(), 5 * FORGED), "{limit}");
    }
    assert_eq!(store.count_sealed_out_of_reach(COLUMN).await.unwrap(), 0);
    let there = crate::rows::bound(&store, default_workspace(&store).await).await;
    run(&mut intruder, format!("update credentials set id = '' where id = '{}'", there.credential.id)).await;
    assert_eq!(store.count_sealed_out_of_reach(monstrum_store::SealedColumn::Credentials).await.unwrap(), 1);
}

/// The valid rows can still be sealed after an attacker adds invalid ones, which can be deleted.
#[tokio::test]
async fn unreadable_rows_do_not_prevent_sealing() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let there = crate::rows::bound(&store, workspace).await;
    let mut intruder = database.intruder().await;
    let forge = |id: &str, name: &str| {
        format!(
            "insert into roles (id, workspace_id, name, scope_constraints, created_at, updated_at, mac) \
             select {id}, workspace_id, {name}, '{{}}', 0, 0, mac from roles where id = '{}'",
            there.role.id
        )
    };
    let hex: String = there.role.id.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
    // The id in the last forged row is a blob with the same bytes as the id of the valid role.
    for (id, name) in [("x'00'", "'a'"), ("cast(x'01ff' as text)", "'b'"), ("'c' || char(0)", "'c'"), ("null", "'d'")] {
        run(&mut intruder, forge(id, name)).await;
    }
    run(&mut intruder, forge("'e'", "x'00'")).await;
    run(&mut intruder, forge(&format!("x'{hex}'"), "'f'")).await;
    run(&mut intruder, "update bots set name = 'edited'").await;
    let scope = monstrum_store::Scope::Workspace(workspace);
    let shown = store.scope_rows(scope).await.unwrap();
    let refused: Vec<_> = shown.iter().filter(|row| !row.is_counted).map(|row| row.name.clone()).collect();
    assert_eq!(refused.len(), 6, "{refused:?}");
    let counted = shown.len() as u64 - 6;
    assert_eq!(store.seal_scope(scope, &shown, &[]).await.unwrap(), counted);
    let verified = store.verify_rows().await.unwrap();
    assert_eq!((verified.unverified.len(), verified.refused.len()), (0, 6), "the forged rows are rejected");
    let shown = store.scope_rows(scope).await.unwrap();
    assert_eq!(store.seal_scope(scope, &shown, &refused).await.unwrap(), counted);
    assert_eq!(crate::authentic::problems(&store).await, Vec::<String>::new());
    let roles = store.roles(workspace, &monstrum_store::Page::first(9)).await.unwrap().items;
    assert_eq!(roles.iter().map(|role| role.id).collect::<Vec<_>>(), [there.role.id]);
}

/// Text that is not valid UTF-8 sorts before every id, so a page may have no valid id to continue from.
#[tokio::test]
async fn rows_with_an_unreadable_id_do_not_end_a_list() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let honest = [crate::rows::role(workspace, "a"), crate::rows::role(workspace, "b")];
    for role in &honest {
        store.insert_role(role).await.unwrap();
    }
    let mut intruder = database.intruder().await;
    for number in 10..40 {
        for id in [format!("cast(x'01ff{number}' as text)"), format!("'!{number}' || char(0)")] {
            let forged = format!(
                "insert into roles (id, workspace_id, name, scope_constraints, created_at, updated_at, mac) \
                 select {id}, workspace_id, id || {id}, '{{}}', 0, 0, mac from roles where name = 'a'"
            );
            run(&mut intruder, forged).await;
        }
    }
    for limit in [1, 2, 7, 100] {
        let (mut listed, mut page) = (Vec::new(), monstrum_store::Page::first(limit));
        loop {
            let answer = store.roles(workspace, &page).await.unwrap();
            assert!(answer.items.len() <= limit as usize);
            listed.extend(answer.items);
            page.cursor = answer.next_cursor;
            if page.cursor.is_none() {
                break;
            }
        }
        assert_eq!(listed, honest, "{limit}");
    }
}
