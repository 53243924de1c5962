//! Tests of wakes, chores and events: of several claimers one wins, no request is lost, and a host that lost its claim
//! writes nothing.

use monstrum_store::{
    AfterTurn, BotRow, Charge, DueWake, EventRow, NewClaim, NewWake, Page, PayerLimits, SealedColumn, Store,
    StoreError, StoreRow, WakeClaim, WakeRow,
};
use monstrum_types::{BotId, Clock as _, EventId, SystemClock, UtcMillis, WakeClaimId, WakeKey, WakeKind, WorkspaceId};

use crate::rows::{self, default_workspace, other_workspace};

fn now() -> UtcMillis {
    SystemClock.now()
}

fn key(id: &str) -> WakeKey {
    WakeKey::new(WakeKind::Task, id).unwrap()
}

/// Returns a request for a turn that is due in `in_ms`. The two databases read different clocks of the same machine, so
/// times differ by seconds at least.
fn request(workspace_id: WorkspaceId, id: &str, in_ms: i64) -> NewWake {
    NewWake { key: key(id), workspace_id, due_at: now().plus_ms(in_ms), claim: None }
}

async fn write(store: &Store, wake: NewWake) -> bool {
    store.request_turns(&[wake]).await.unwrap()[0]
}

async fn claim(store: &Store, node: &str, id: &str) -> Option<WakeClaim> {
    let wakes = [(key(id), UtcMillis(0), WakeClaimId::new())];
    let claims = store.claim_wakes(node, &wakes, now()).await.unwrap();
    assert!(claims.iter().all(|claim| claim.id == wakes[0].2 && claim.key == wakes[0].0));
    claims.into_iter().next()
}

async fn all(store: &Store, workspace: WorkspaceId) -> Vec<WakeRow> {
    store.wakes(workspace, false, &Page::first(100)).await.unwrap().items
}

async fn due(store: &Store, ahead_ms: i64) -> Vec<String> {
    let (due, _) = store.due_wakes(ahead_ms, None, 100, now()).await.unwrap();
    due.iter().map(|wake| wake.key.id().to_owned()).collect()
}

pub(crate) async fn of_eight_claimers_of_a_wake_one_wins(store: &Store) {
    let workspace = default_workspace(store).await;
    for round in 0..10 {
        let id = format!("t{round}");
        assert!(write(store, request(workspace, &id, -1_000)).await);
        let claimers = (0..8).map(|number| {
            let (store, id) = (store.clone(), id.clone());
            tokio::spawn(async move { claim(&store, &format!("host{number}"), &id).await })
        });
        let mut won = Vec::new();
        for claimer in claimers.collect::<Vec<_>>() {
            won.extend(claimer.await.unwrap());
        }
        let [winner] = won.try_into().unwrap();
        assert_eq!((winner.version, winner.failures, winner.workspace_id), (1, 0, workspace));
        assert_eq!(store.end_turn(&winner, None, &[], &[]).await.unwrap(), AfterTurn::Asleep);
    }
    assert_eq!(all(store, workspace).await, Vec::new());
}

pub(crate) async fn only_wakes_that_are_due_and_unclaimed_are_claimed(store: &Store) {
    let workspace = default_workspace(store).await;
    for (id, in_ms) in [("c", 30_000), ("b", -5_000), ("a", -9_000), ("d", 90_000)] {
        assert!(write(store, request(workspace, id, in_ms)).await);
    }
    assert_eq!(
        (due(store, 0).await, due(store, 60_000).await),
        (vec!["a".into(), "b".into()], ["a", "b", "c"].map(str::to_owned).to_vec())
    );
    let (first, _) = store.due_wakes(60_000, None, 1, now()).await.unwrap();
    let (rest, _) = store.due_wakes(60_000, first.last(), 9, now()).await.unwrap();
    assert_eq!(rest.iter().map(|wake: &DueWake| wake.key.id()).collect::<Vec<_>>(), ["b", "c"]);
    let count = store.count_due_wakes(now()).await.unwrap();
    assert!(count.wakes == 2 && (9_000..60_000).contains(&count.oldest_ms), "{count:?}");
    assert_eq!(claim(store, "one", "c").await, None, "it is not due");
    assert!(claim(store, "one", "a").await.is_some());
    assert_eq!(claim(store, "two", "a").await, None, "it is claimed");
    assert_eq!(claim(store, "two", "missing").await, None);
    assert_eq!(due(store, 0).await, ["b"]);
    // The host that wrote a wake knows its time. Its clock may be ahead of the clock of the database.
    let early = [(key("c"), now().plus_ms(30_000), WakeClaimId::new())];
    assert_eq!(store.claim_wakes("one", &early, now()).await.unwrap().len(), 1);
}

pub(crate) async fn a_request_brings_a_wake_forward(store: &Store) {
    let (workspace, other) = (default_workspace(store).await, other_workspace(store).await);
    let first = request(workspace, "t", 60_000);
    let (later, earlier) = (first.due_at.plus_ms(5_000), first.due_at.plus_ms(-65_000));
    for (due_at, expected) in [(first.due_at, first.due_at), (later, first.due_at), (earlier, earlier)] {
        assert!(write(store, NewWake { due_at, ..first.clone() }).await);
        assert_eq!(all(store, workspace).await[0].due_at, expected);
    }
    assert_eq!(claim(store, "one", "t").await.unwrap().version, 3);
    assert!(!write(store, request(other, "t", 0)).await, "the key belongs to another workspace");
    assert!(!write(store, request(WorkspaceId::new(), "u", 0)).await, "the workspace does not exist");
    assert_eq!((all(store, workspace).await.len(), all(store, other).await.len()), (1, 0));
}

pub(crate) async fn a_request_during_a_turn_is_kept(store: &Store) {
    let workspace = default_workspace(store).await;
    for next in [None, Some(now().plus_ms(60_000))] {
        write(store, request(workspace, "t", -1_000)).await;
        let turn = claim(store, "one", "t").await.unwrap();
        write(store, request(workspace, "t", 30_000)).await;
        assert_eq!(store.end_turn(&turn, next, &[], &[]).await.unwrap(), AfterTurn::Again);
        assert_eq!(due(store, 0).await, ["t"]);
        let turn = claim(store, "two", "t").await.unwrap();
        let after = store.end_turn(&turn, next, &[], &[]).await.unwrap();
        assert_eq!(after, next.map_or(AfterTurn::Asleep, AfterTurn::Due));
        assert_eq!(all(store, workspace).await.first().map(|wake| wake.due_at), next);
    }
}

/// The host `one` was paused. Its claim has expired, and the host `two` has claimed the wake.
pub(crate) async fn a_lost_claim_writes_nothing(store: &Store) {
    let workspace = default_workspace(store).await;
    let expired = NewClaim { id: WakeClaimId::new(), node: "one".to_owned(), until: now().plus_ms(-1_000) };
    let wake = NewWake { claim: Some(expired.clone()), ..request(workspace, "t", -2_000) };
    assert!(write(store, wake).await);
    let lost = WakeClaim { id: expired.id, key: key("t"), workspace_id: workspace, version: 1, failures: 0 };
    store.confirm_claim(&lost).await.unwrap();
    let turn = claim(store, "two", "t").await.unwrap();
    let other = request(workspace, "other", 0);
    let ended = store.end_turn(&lost, None, &[event(workspace)], &[other]).await;
    assert!(matches!(ended, Err(StoreError::LostClaim)), "{ended:?}");
    let confirmed = store.confirm_claim(&lost).await;
    assert!(matches!(confirmed, Err(StoreError::LostClaim)), "{confirmed:?}");
    assert_eq!(store.fail_turn(&lost, 0, "late", now()).await.unwrap(), None);
    store.release_claims(&[(lost.key.clone(), lost.id)]).await.unwrap();
    let rows = all(store, workspace).await;
    assert_eq!(
        rows.iter().map(|row| (row.key.id(), row.claimed_by.as_deref())).collect::<Vec<_>>(),
        [("t", Some("two"))]
    );
    assert_eq!(store.count_sealed(SealedColumn::Events).await.unwrap(), 0);
    let event = event(workspace);
    store.end_turn(&turn, None, std::slice::from_ref(&event), &[request(workspace, "other", 0)]).await.unwrap();
    // The event has a turn of its own.
    assert_eq!(
        all(store, workspace).await.iter().map(|row| row.key.id().to_owned()).collect::<Vec<_>>(),
        [event.id.to_string(), "other".to_owned()]
    );
    assert_eq!(store.count_sealed(SealedColumn::Events).await.unwrap(), 1);
    let ended = store.end_turn(&turn, None, &[], &[]).await;
    assert!(matches!(ended, Err(StoreError::LostClaim)), "a turn ends once: {ended:?}");
}

pub(crate) async fn failed_turns_are_counted_until_one_succeeds(store: &Store) {
    let workspace = default_workspace(store).await;
    write(store, request(workspace, "bad", -1_000)).await;
    write(store, request(workspace, "good", -1_000)).await;
    for failures in 0..3 {
        let turn = claim(store, "one", "bad").await.unwrap();
        assert_eq!(turn.failures, failures);
        let text = format!("{}\0{failures}", "é".repeat(600));
        let due_at = store.fail_turn(&turn, -500, &text, now()).await.unwrap().unwrap();
        let failing = store.wakes(workspace, true, &Page::first(100)).await.unwrap().items;
        let [row] = failing.try_into().unwrap();
        assert_eq!((row.key.id(), row.failures, row.due_at), ("bad", failures + 1, due_at));
        assert_eq!((row.last_error, row.claimed_by), (Some("é".repeat(500)), None));
    }
    let turn = claim(store, "one", "bad").await.unwrap();
    store.end_turn(&turn, Some(now().plus_ms(60_000)), &[], &[]).await.unwrap();
    assert_eq!(store.wakes(workspace, true, &Page::first(100)).await.unwrap().items, Vec::new());
    assert_eq!(all(store, workspace).await.len(), 2);
    let page = store.wakes(workspace, false, &Page::first(1)).await.unwrap();
    assert_eq!((page.items[0].key.id(), page.next_cursor), ("bad", Some(key("bad"))));
}

pub(crate) async fn claims_are_renewed_released_and_dropped(store: &Store) {
    let workspace = default_workspace(store).await;
    for (id, node) in [("a", "one"), ("b", "one"), ("c", "two")] {
        write(store, request(workspace, id, -1_000)).await;
        claim(store, node, id).await.unwrap();
    }
    let until = all(store, workspace).await[0].claimed_until.unwrap();
    // With SQLite, the caller's clock counts.
    let held = store.renew_claims("one", now().plus_ms(5_000)).await.unwrap();
    let mut keys: Vec<_> = held.iter().map(|(key, _)| key.id()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b"]);
    let renewed = all(store, workspace).await[0].claimed_until.unwrap();
    assert!(renewed >= until, "{renewed} {until}");
    store.release_claims(&held[..1]).await.unwrap();
    assert_eq!(due(store, 0).await, [held[0].0.id()]);
    // A start drops the claims of the host. With SQLite there is one host, so it drops all.
    let dropped = store.drop_claims("one").await.unwrap();
    assert_eq!(dropped, if store.is_shared() { 1 } else { 2 });
    let claimed: Vec<_> = all(store, workspace).await.into_iter().filter_map(|row| row.claimed_by).collect();
    assert_eq!(claimed, if store.is_shared() { vec!["two".to_owned()] } else { Vec::new() });
}

pub(crate) async fn a_wake_is_inserted_claimed_only_if_its_key_is_new(store: &Store) {
    let workspace = default_workspace(store).await;
    let new_claim = || NewClaim { id: WakeClaimId::new(), node: "one".to_owned(), until: now().plus_ms(30_000) };
    let claimed = NewWake { claim: Some(new_claim()), ..request(workspace, "t", -1_000) };
    assert!(write(store, claimed.clone()).await);
    assert_eq!(claim(store, "two", "t").await, None);
    assert!(!write(store, NewWake { claim: Some(new_claim()), ..claimed.clone() }).await);
    let id = claimed.claim.unwrap().id;
    let turn = WakeClaim { id, key: claimed.key, workspace_id: workspace, version: 1, failures: 0 };
    assert_eq!(store.end_turn(&turn, None, &[], &[]).await.unwrap(), AfterTurn::Asleep);
}

pub(crate) async fn wakes_are_deleted_with_their_workspace(store: &Store) {
    let other = other_workspace(store).await;
    write(store, request(other, "t", -1_000)).await;
    assert!(store.insert_event(&event(other)).await.unwrap());
    let turn = claim(store, "one", "t").await.unwrap();
    assert!(store.delete_workspace(other).await.unwrap());
    assert_eq!((all(store, other).await, due(store, 0).await), (Vec::new(), Vec::new()));
    let ended = store.end_turn(&turn, None, &[], &[]).await;
    assert!(matches!(ended, Err(StoreError::LostClaim)), "{ended:?}");
    assert_eq!(store.count_sealed(SealedColumn::Events).await.unwrap(), 0);
}

fn event(workspace_id: WorkspaceId) -> EventRow {
    let id = EventId::new();
    EventRow {
        id,
        workspace_id,
        event_type: "task.completed".to_owned(),
        source_type: "task".to_owned(),
        source_id: "t".to_owned(),
        bot_id: Some(BotId::new()),
        root_event_id: id,
        depth: 0,
        links: r#"{"task_id":"t"}"#.to_owned(),
        created_at: now(),
        sealed: "sealed".to_owned(),
    }
}

/// The rows are written in one transaction: a row that the database rejects leaves none of them.
pub(crate) async fn wakes_and_events_are_written_with_charges(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot: BotRow = rows::bot(workspace, "bot");
    store.insert_bot(&bot).await.unwrap();
    let charge = |bot_id| {
        let month = "2026-11".to_owned();
        let charge = Charge {
            workspace_id: workspace,
            bot_id,
            user: None,
            task_id: None,
            month,
            tokens: 5,
            credits_millionths: 1,
            limits: PayerLimits::default(),
        };
        StoreRow::Charge(charge)
    };
    let first = event(workspace);
    let wake = |id: &str| StoreRow::Wake(request(workspace, id, -1_000));
    let rows = [wake("b"), StoreRow::Event(Box::new(first.clone())), charge(bot.id), wake("a"), charge(BotId::new())];
    assert_eq!(store.append(&[], &rows).await.unwrap(), [true, true, true, true, false]);
    assert_eq!(store.event(workspace, first.id).await.unwrap(), Some(first.clone()));
    assert_eq!(store.event(WorkspaceId::new(), first.id).await.unwrap(), None);
    let of_event = first.id.to_string();
    assert_eq!(all(store, workspace).await.iter().map(|row| row.key.id()).collect::<Vec<_>>(), [&of_event, "a", "b"]);
    // The second event has the id of the first one.
    let rejected = store.append(&[], &[wake("c"), StoreRow::Event(Box::new(first.clone()))]).await;
    assert!(matches!(rejected, Err(StoreError::Conflict { .. } | StoreError::Statement(_))), "{rejected:?}");
    assert_eq!(all(store, workspace).await.len(), 3);
    let gone = StoreRow::Event(Box::new(event(WorkspaceId::new())));
    assert_eq!(store.append(&[], &[gone]).await.unwrap(), [false]);
}

pub(crate) async fn events_are_sealed_records_and_are_forgotten(store: &Store) {
    let workspace = default_workspace(store).await;
    let old = EventRow { created_at: UtcMillis(1_000), bot_id: None, ..event(workspace) };
    let new = event(workspace);
    assert!(store.insert_event(&old).await.unwrap() && store.insert_event(&new).await.unwrap());
    let page = store.sealed_records(SealedColumn::Events, None, 100).await.unwrap();
    let record = page.records.iter().find(|record| record.key == [old.id.to_string()]).unwrap();
    let (workspace_text, id) = (workspace.to_string(), old.id.to_string());
    let bound = [workspace_text.as_str(), "task.completed", "task", "t", "", &id, "0", &old.links];
    assert_eq!((record.bound.iter().map(String::as_str).collect::<Vec<_>>(), page.records.len()), (bound.to_vec(), 2));
    let replaced =
        store.replace_sealed(SealedColumn::Events, &[(record.clone(), "again".to_owned())], 2).await.unwrap();
    assert_eq!((replaced, store.event(workspace, old.id).await.unwrap().unwrap().sealed.as_str()), (1, "again"));
    assert_eq!(store.forget_events(UtcMillis(1_001)).await.unwrap(), 1);
    assert_eq!(store.event(workspace, old.id).await.unwrap(), None);
    assert!(store.event(workspace, new.id).await.unwrap().is_some());
}

pub(crate) async fn one_host_holds_a_chore(store: &Store) {
    const LEASE_MS: i64 = 60_000;
    let hold = async |node: &str, lease_ms| store.hold_chore("automation", node, lease_ms).await.unwrap();
    let claimers = (0..8).map(|number| {
        let store = store.clone();
        tokio::spawn(async move { store.hold_chore("raced", &number.to_string(), LEASE_MS).await.unwrap() })
    });
    let mut won = 0;
    for claimer in claimers.collect::<Vec<_>>() {
        won += usize::from(claimer.await.unwrap().is_some());
    }
    assert_eq!(won, 1);
    assert_eq!((hold("a", LEASE_MS).await, hold("b", LEASE_MS).await), (Some(1), None));
    assert_eq!((hold("a", LEASE_MS).await, hold("b", LEASE_MS).await), (Some(1), None), "a renewal keeps the fence");
    store.release_chore("automation", "b").await.unwrap();
    assert_eq!(hold("b", LEASE_MS).await, None, "only the holder releases it");
    assert_eq!(store.hold_chore("other", "b", LEASE_MS).await.unwrap(), Some(1));
    store.release_chore("automation", "a").await.unwrap();
    // The lease of `b` ends at once.
    assert_eq!((hold("b", 0).await, hold("a", LEASE_MS).await), (Some(2), Some(3)));
}
