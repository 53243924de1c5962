//! PostgreSQL tests: addresses, the schema, and attacks on the audit log with write access to the database.

mod faults;
mod load;
mod locks;
mod tls;

use std::sync::OnceLock;
use std::time::Duration;

use monstrum_store::{AuditKind, Store, StoreError, StoreOptions};
use monstrum_types::RequestId;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::rows::{AppendRows as _, anchor, default_workspace, event, reads_differently};
use crate::support::postgres::Postgres;

/// Returns the server that all tests share, except tests that restart a server. The data of the server does not need to
/// be durable.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::for_all(&["fsync=off", "full_page_writes=off", "max_connections=500"]).unwrap())
}

/// A database on the shared server that only one test uses.
pub(crate) struct Database {
    url: String,
}

impl Database {
    pub(crate) fn create() -> Self {
        Database { url: server().database().unwrap() }
    }

    pub(crate) async fn open(&self) -> Result<Store, StoreError> {
        crate::row_key::keyed(Store::open(self.options()).await?).await
    }

    fn options(&self) -> StoreOptions {
        StoreOptions::from_url(&self.url).unwrap()
    }

    /// Opens a connection that acts as another program.
    pub(crate) async fn intruder(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }
}

impl crate::authentic::Intruder for PgConnection {
    async fn run(&mut self, sql: String) {
        run(self, sql).await;
    }

    async fn columns(&mut self) -> Vec<String> {
        let sql = "select table_name || '.' || column_name as name from information_schema.columns where table_schema = 'public'";
        let rows = sqlx::query(sql).fetch_all(self).await.unwrap();
        rows.iter().map(|row| row.get("name")).collect()
    }
}

async fn run(connection: &mut PgConnection, sql: impl Into<String>) {
    sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(connection).await.unwrap();
}

fn what(result: Result<impl Sized, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable { what, .. }) => what,
        Err(other) => panic!("expected unavailable, not {other:?}"),
        Ok(_) => panic!("expected unavailable, not success"),
    }
}

/// Starts with an active plugin and the schema before the `owners` table was added.
#[tokio::test]
async fn owners_are_filled_once_in_an_older_database() {
    let database = Database::create();
    let mut older = sqlx::migrate!("../../../migrations/postgres");
    older.migrations = older.migrations.iter().filter(|migration| migration.version < 7).cloned().collect();
    let mut intruder = database.intruder().await;
    older.run(&mut intruder).await.unwrap();
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
    assert_eq!(what(store.generation().await), "the database is closed");
    let after = database.open().await.unwrap().snapshot().await.unwrap();
    assert_eq!((after.generation, after.workspaces), (before.generation, before.workspaces));
}

/// The schemas of SQLite and PostgreSQL are written separately and must have the same tables.
#[tokio::test]
async fn the_schema_equals_that_of_sqlite() {
    let sqlite = crate::sqlite::Database::create();
    sqlite.open().await.unwrap().close().await;
    let sql = "select t.name || '.' || c.name || ' ' || lower(c.type) || case c.\"notnull\" or c.pk when 1 then ' not null' \
               else '' end as line from pragma_table_list as t, pragma_table_info(t.name) as c \
               where t.schema = 'main' and t.name not like 'sqlite%' and t.name not like '\\_%' escape '\\'";
    let mut there: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut sqlite.intruder().await).await.unwrap();
    let database = Database::create();
    database.open().await.unwrap().close().await;
    let sql = "select table_name || '.' || column_name || ' ' || replace(data_type, 'bytea', 'blob') \
               || case is_nullable when 'NO' then ' not null' else '' end from information_schema.columns \
               where table_schema = 'public' and table_name not like '\\_%'";
    let mut here: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut database.intruder().await).await.unwrap();
    there.sort();
    here.sort();
    assert_eq!(here, there);
    assert!(here.len() > 100, "{} columns", here.len());
    let loose = "select count(*) from information_schema.columns where table_schema = 'public' \
                 and table_name not like '\\_%' and data_type = 'text' and collation_name is distinct from 'C'";
    let loose: i64 = sqlx::query_scalar(loose).fetch_one(&mut database.intruder().await).await.unwrap();
    assert_eq!(loose, 0, "all text columns have the collation C");
}

#[tokio::test]
async fn concurrent_hosts_create_one_schema() {
    let database = Database::create();
    let opened = futures::future::join_all((0..8).map(|_| database.open())).await;
    for store in opened {
        assert_eq!(store.unwrap().snapshot().await.unwrap().workspaces.len(), 1);
    }
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_rejected() {
    let database = Database::create();
    database.open().await.unwrap().close().await;
    let sql = "insert into _sqlx_migrations (version, description, success, checksum, execution_time) \
               values (9999, 'later', true, '', 0)";
    run(&mut database.intruder().await, sql).await;
    let refused = database.open().await.map(drop).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { found: 9999, .. }), "{refused:?}");
}

#[tokio::test]
async fn a_schema_with_different_migrations_is_rejected() {
    let database = Database::create();
    database.open().await.unwrap().close().await;
    run(&mut database.intruder().await, "update _sqlx_migrations set checksum = ''").await;
    assert!(matches!(database.open().await.map(drop), Err(StoreError::Migration(_))));
}

#[tokio::test]
async fn an_unusable_database_is_reported_without_its_password() {
    let server = Postgres::on_tcp(&["fsync=off"]).unwrap();
    let (port, url) = (server.port(), |database: &str| server.tcp_url(database));
    Store::open(StoreOptions::from_url(&url("postgres")).unwrap()).await.unwrap().close().await;

    server.sql("postgres", "create database latin template template0 encoding 'LATIN1' locale 'C'").unwrap();
    server.sql("postgres", "create database readonly").unwrap();
    server.sql("postgres", "alter database readonly set default_transaction_read_only = on").unwrap();
    let at = |database: &str| format!("database `postgres://postgres@127.0.0.1:{port}/{database}`: ");
    let encoded = url("d").replace("postgres://postgres:", "").replace(&format!("@127.0.0.1:{port}/d"), "");
    for (url, expected) in [
        (url("absent"), at("absent") + "the database does not exist"),
        (url("readonly"), at("readonly") + "the database is read-only"),
        (format!("postgres://postgres:x{encoded}@127.0.0.1:{port}/d"), at("d") + "the database rejected the login"),
        (url("d") + "?sslmode=require", at("d") + "the TLS connection to the database failed"),
    ] {
        let refused = Store::open(StoreOptions::from_url(&url).unwrap()).await.map(drop).unwrap_err();
        let shown = format!("{refused:?}");
        assert!(!shown.contains(server.password()) && !shown.contains(&encoded), "{shown}");
        assert_eq!(what(Err::<(), _>(refused)), expected);
    }
    let latin = Store::open(StoreOptions::from_url(&url("latin")).unwrap()).await.map(drop).unwrap_err();
    assert!(latin.to_string().ends_with("its encoding is LATIN1, but must be UTF8"), "{latin}");
}

/// A server can be configured to confirm commits before they are on disk. The store's sessions override this setting.
#[tokio::test]
async fn commits_are_synchronous_even_if_the_server_disables_it() {
    let database = Database::create();
    let name = database.open().await.unwrap();
    name.close().await;
    run(&mut database.intruder().await, "alter role postgres set synchronous_commit = off").await;
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    run(
        &mut database.intruder().await,
        "create table seen (setting text); \
         create function see() returns trigger language plpgsql as $$ begin \
         insert into seen values (current_setting('synchronous_commit')); return null; end; $$; \
         create trigger see after insert on audit_rows execute function see()",
    )
    .await;
    store.append_rows(&[event(workspace, 1, AuditKind::Finished, RequestId::new())]).await.unwrap();
    let rows = sqlx::query("select setting from seen").fetch_all(&mut database.intruder().await).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get("setting")).collect::<Vec<String>>(), ["on"]);
}

#[tokio::test]
async fn the_audit_rejects_updates_and_deletions() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    store.append_rows(&[event(workspace, 1, AuditKind::Finished, RequestId::new())]).await.unwrap();
    let mut intruder = database.intruder().await;
    for sql in ["update audit_rows set status = 'error'", "delete from audit_rows", "truncate audit_rows"] {
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

/// Edits every column of the table in every way that PostgreSQL allows. After each edit, the row must be unreadable
/// or read as a different row.
#[tokio::test]
async fn an_edit_of_any_column_is_detected() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut intruder = database.intruder().await;
    run(&mut intruder, "drop function audit_rows_refuse() cascade").await;
    let sql = "select column_name::text as name from information_schema.columns where table_name = 'audit_rows'";
    let rows = sqlx::query(sql).fetch_all(&mut intruder).await.unwrap();
    let columns: Vec<String> = rows.iter().map(|row| row.get("name")).collect();
    assert_eq!(columns.len(), 13);

    let row = event(workspace, 1, AuditKind::Finished, RequestId::new());
    let edits = [
        "null",
        "''",
        "'x'",
        "'7'",
        "7",
        "upper(COLUMN)",
        "COLUMN || ' '",
        "COLUMN + 1",
        "'\\x00'",
        "COLUMN || '\\x00'::bytea",
        "substr(COLUMN, 2)",
    ];
    let mut tried = 0;
    for column in &columns {
        for edit in edits {
            run(&mut intruder, "delete from audit_rows").await;
            store.append_rows(std::slice::from_ref(&row)).await.unwrap();
            let edit = edit.replace("COLUMN", column);
            let sql = format!("update audit_rows set {column} = {edit} where {column} is distinct from {edit}");
            match sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut intruder).await {
                Ok(done) if done.rows_affected() == 1 => {}
                _ => continue, // The new value is equal, or the table rejects it.
            }
            tried += 1;
            assert!(reads_differently(&store, &row).await, "{column} = {edit}");
        }
    }
    assert!(tried > 70, "{tried} edits");
}

/// The maximum wait in a test, which is far longer than any wait should take.
const WAIT_MAX: Duration = Duration::from_secs(60);
