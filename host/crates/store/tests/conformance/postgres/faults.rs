//! Failures of the server and the network: callers receive an error, and later calls succeed without a restart.

use std::time::{Duration, Instant};

use monstrum_store::{AuditKind, AuditRow, Store, StoreOptions};
use monstrum_types::RequestId;

use super::{Database, WAIT_MAX, run, server, what};
use crate::rows::{AppendRows as _, bot, default_workspace, event, role};
use crate::support::disk::Disk;
use crate::support::postgres::Postgres;
use crate::support::proxy::{Proxy, Way};

#[tokio::test]
async fn a_locked_table_is_reported() {
    let database = Database::create();
    let store = crate::row_key::open(database.options().lock_wait(Duration::from_millis(20))).await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut intruder = database.intruder().await;
    run(&mut intruder, "begin; lock table bots in share row exclusive mode").await;
    let generation = store.generation().await.unwrap();
    assert_eq!(
        what(store.insert_bot(&bot(workspace, "b")).await),
        "the database is locked by another process or connection"
    );
    assert!(store.snapshot().await.unwrap().bots.is_empty(), "reads still work");
    store.append_rows(&[event(workspace, 1, AuditKind::Finished, RequestId::new())]).await.unwrap();
    run(&mut intruder, "rollback").await;
    assert_eq!(store.generation().await.unwrap(), generation);
    store.insert_bot(&bot(workspace, "b")).await.unwrap();
}

#[tokio::test]
async fn a_slow_statement_times_out() {
    let database = Database::create();
    let options = database.options().statement_wait(Duration::from_secs(1)).lock_wait(Duration::from_secs(4));
    let store = crate::row_key::open(options).await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut intruder = database.intruder().await;
    run(&mut intruder, "begin; lock table audit_rows").await;
    let row = event(workspace, 1, AuditKind::Finished, RequestId::new());
    assert_eq!(what(store.append_rows(std::slice::from_ref(&row)).await), "the statement timed out");
    assert_eq!(what(store.last("node-1").await), "the statement timed out");
    // A scan of the whole audit log may take longer than other statements, but waiting for a lock may not.
    assert_eq!(what(store.count_events().await), "the database is locked by another process or connection");
    run(&mut intruder, "rollback").await;
    store.append_rows(&[row]).await.unwrap();
}

/// Reads and changes wait for a free connection up to a time limit. Writes to the audit log do not wait, because only
/// they use the connection of the audit log.
#[tokio::test]
async fn waits_for_busy_connections_time_out() {
    let database = Database::create();
    let options = database.options().connect_wait(Duration::from_secs(2)).lock_wait(Duration::from_secs(8));
    let store = crate::row_key::open(options).await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut intruder = database.intruder().await;
    run(&mut intruder, "begin; lock table bots, roles").await;
    let began = Instant::now();
    let (bot, role) = (bot(workspace, "b"), role(workspace, "r"));
    let reads = futures::future::join_all((0..12).map(|_| store.bot(workspace, bot.id)));
    let changes = async {
        let errors = futures::future::join_all((0..12).map(|_| store.insert_role(&role))).await;
        (errors, began.elapsed())
    };
    let audited = async {
        for sequence in 1..=5 {
            store.append_rows(&[event(workspace, sequence, AuditKind::Finished, RequestId::new())]).await.unwrap();
        }
        began.elapsed()
    };
    let (reads, (changes, changed), audited) = tokio::join!(reads, changes, audited);
    assert!(
        audited < changed,
        "audit writes took {audited:?} and seem to wait for the lock like changes, which took {changed:?}"
    );
    let mut errors: Vec<_> = reads.into_iter().map(what).chain(changes.into_iter().map(what)).collect();
    errors.sort();
    errors.dedup();
    // Changes in one workspace also wait for its seal. Several waits in one statement can reach the time limit for
    // statements before the limit for locks.
    let known = [
        "the database is locked by another process or connection",
        "all connections to the database are in use",
        "the statement timed out",
    ];
    assert!(errors.iter().all(|what| known.contains(&what.as_str())), "{errors:?}");
    assert!(known[..2].iter().all(|known| errors.iter().any(|what| what == known)), "{errors:?}");
    run(&mut intruder, "rollback").await;
    store.insert_role(&role).await.unwrap();
}

#[tokio::test]
async fn a_deadlocked_transaction_is_retried() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut row = bot(workspace, "b");
    store.insert_bot(&row).await.unwrap();
    let (mut intruder, mut onlooker) = (database.intruder().await, database.intruder().await);
    // The other program locks the `settings` row and then the bot. The store locks them in the opposite order, which
    // causes a deadlock.
    run(&mut intruder, "set deadlock_timeout = '10s'; begin; update settings set generation = generation where id = 1")
        .await;
    row.description = "changed".to_owned();
    let changing = tokio::spawn({
        let (store, row) = (store.clone(), row.clone());
        async move { store.update_bot(&row, crate::rows::NOW).await }
    });
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
                   and wait_event_type = 'Lock'";
    // Poll on an existing connection. The store detects the deadlock after one second, and the other program must be
    // waiting before then.
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut onlooker).await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    run(&mut intruder, "update bots set name = name; commit").await;
    assert!(changing.await.unwrap().unwrap());
    assert_eq!(store.bot(workspace, row.id).await.unwrap(), Some(row));
}

#[tokio::test]
async fn a_full_disk_is_reported_and_writes_stay_atomic() {
    let disk = Disk::new().unwrap();
    let server = Postgres::start(&["autovacuum=off"]).unwrap();
    let url = disk.database(&server, "small").unwrap();
    let store = crate::row_key::open(StoreOptions::from_url(&url).unwrap()).await.unwrap();
    let workspace = default_workspace(&store).await;
    disk.fill(&server, "small").unwrap();

    let generation = store.generation().await.unwrap();
    let mut large = bot(workspace, "large");
    // Use random text, which the server cannot compress.
    large.description = (0..20_000).map(|_| RequestId::new().to_string()).collect();
    assert_eq!(what(store.insert_bot(&large).await), "the disk is full");
    assert_eq!(store.generation().await.unwrap(), generation);
    let params = Some(large.description.clone());
    let group = [1, 2].map(|n| event(workspace, n, AuditKind::Finished, RequestId::new()));
    let group = group.map(|row| AuditRow { params: params.clone(), ..row });
    assert_eq!(what(store.append_rows(&group).await), "the disk is full");
    assert_eq!(store.count_events().await.unwrap(), 0);

    disk.free(&server, "small").unwrap();
    store.append_rows(&group).await.unwrap();
    store.insert_bot(&large).await.unwrap();
    assert_eq!(store.generation().await.unwrap(), generation + 1);
    store.close().await;
}

/// Creates a proxy in front of a database, and a store that connects through it with short time limits.
async fn behind_a_proxy() -> (Proxy, Store) {
    let proxy = Proxy::to(server().socket()).await.unwrap();
    let database = server().database().unwrap();
    let name = database.split(['/', '?']).nth(3).unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port());
    let options = StoreOptions::from_url(&url).unwrap();
    let migrated = crate::row_key::open(options.clone()).await.unwrap();
    migrated.close().await;
    let options = options.connect_wait(Duration::from_secs(2)).statement_wait(Duration::from_secs(1));
    (proxy, crate::row_key::open(options).await.unwrap())
}

#[tokio::test]
async fn an_unresponsive_server_times_out_and_is_used_again() {
    let (proxy, store) = behind_a_proxy().await;
    let workspace = default_workspace(&store).await;
    proxy.set(Way::Swallows);
    let began = Instant::now();
    let row = event(workspace, 1, AuditKind::Finished, RequestId::new());
    let bot = bot(workspace, "b");
    let (read, change, append) =
        tokio::join!(store.generation(), store.insert_bot(&bot), store.append_rows(std::slice::from_ref(&row)));
    for error in [what(read), what(change), what(append)] {
        assert_eq!(error, "the database did not answer in time");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    proxy.set(Way::Open);
    store.insert_bot(&bot).await.unwrap();
    store.append_rows(&[row]).await.unwrap();
}

#[tokio::test]
async fn a_cut_network_is_reported_and_used_again() {
    let (proxy, store) = behind_a_proxy().await;
    let workspace = default_workspace(&store).await;
    for round in 1..=3 {
        proxy.set(Way::Cut);
        let row = event(workspace, round, AuditKind::Finished, RequestId::new());
        assert_eq!(what(store.append_rows(std::slice::from_ref(&row)).await), "the database cannot be reached");
        assert_eq!(what(store.generation().await), "the database cannot be reached");
        proxy.set(Way::Open);
        store.append_rows(&[row]).await.unwrap();
        store.insert_bot(&bot(workspace, &round.to_string())).await.unwrap();
    }
}

/// If the response to a commit is lost, only the database knows whether the commit succeeded.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_can_be_looked_up() {
    let (proxy, store) = behind_a_proxy().await;
    let workspace = default_workspace(&store).await;
    let rows = [1, 2].map(|n| event(workspace, n, AuditKind::Finished, RequestId::new()));
    store.append_rows(&rows[..1]).await.unwrap();
    proxy.set(Way::LosesAnswers);
    assert_eq!(what(store.append_rows(&rows[1..]).await), "the database cannot be reached");
    assert!(proxy.has_lost_answers());
    proxy.set(Way::Open);
    let until = Instant::now() + WAIT_MAX;
    while store.last("node-1").await.unwrap() != Some(rows[1].clone()) {
        assert!(Instant::now() < until, "the row does not appear");
    }
    let again = store.append_rows(&rows[1..]).await;
    assert!(matches!(&again, Err(monstrum_store::StoreError::Conflict { .. })), "{again:?}");
}

#[tokio::test]
async fn connections_that_the_server_closed_fail_only_their_current_statement() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let workspace = default_workspace(&store).await;
    let mut intruder = database.intruder().await;
    for round in 1..=5 {
        // Fill the pools with connections.
        futures::future::join_all((0..12).map(|_| store.generation())).await;
        run(
            &mut intruder,
            "select pg_terminate_backend(pid) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid()",
        )
        .await;
        // A change that fails at `begin` on a dead connection is retried on another connection.
        store.insert_bot(&bot(workspace, &round.to_string())).await.unwrap();
        store.append_rows(&[event(workspace, round, AuditKind::Finished, RequestId::new())]).await.unwrap();
        assert_eq!(store.generation().await.unwrap(), store.snapshot().await.unwrap().generation);
    }
}
