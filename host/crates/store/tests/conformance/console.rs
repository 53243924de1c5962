//! Tests of the sessions and tickets of the console: a key keeps its newest sessions, a ticket is taken once, and forged
//! rows are ignored.

use monstrum_store::{ConsoleSessionRow, ConsoleTicketRow, KeyKind, KeyRow, Store};
use monstrum_types::UtcMillis;
use serde_json::{Value, json};

use crate::authentic::Intruder;
use crate::rows::{self, NOW};

const HOUR_MS: i64 = 3_600_000;
const SESSIONS_MAX: usize = 3;

async fn key(store: &Store, name: &str) -> KeyRow {
    let key = rows::key(None, KeyKind::Root, None, name);
    store.insert_key(&key).await.unwrap();
    key
}

fn session(key: &KeyRow, id: &str, begins_at: UtcMillis) -> ConsoleSessionRow {
    ConsoleSessionRow {
        id: id.to_owned(),
        key_id: key.id,
        key_hash: key.hash.clone(),
        last_used_at: begins_at,
        ends_at: begins_at.plus_ms(12 * HOUR_MS),
        messages: json!([]),
    }
}

fn ticket(key: &KeyRow, id: &str, expires_at: UtcMillis) -> ConsoleTicketRow {
    ConsoleTicketRow { id: id.to_owned(), key_id: key.id, key_hash: key.hash.clone(), expires_at }
}

async fn begin(store: &Store, row: &ConsoleSessionRow) -> bool {
    store.insert_console_session(row, SESSIONS_MAX).await.unwrap()
}

async fn issue(store: &Store, row: &ConsoleTicketRow) -> bool {
    store.insert_console_ticket(row, SESSIONS_MAX).await.unwrap()
}

/// Returns those of the ids that have a session.
async fn known<'i>(store: &Store, ids: &[&'i str]) -> Vec<&'i str> {
    let mut known = Vec::new();
    for id in ids {
        known.extend(store.console_session(id).await.unwrap().map(|_| *id));
    }
    known
}

pub(crate) async fn sessions_are_inserted_updated_and_deleted(store: &Store) {
    let row = session(&key(store, "root").await, "a", NOW);
    let generation = store.generation().await.unwrap();
    assert!(begin(store, &row).await);
    assert_eq!(store.console_session("a").await.unwrap(), Some(row.clone()));
    assert_eq!(store.console_session("b").await.unwrap(), None);
    let used = ConsoleSessionRow { last_used_at: NOW.plus_ms(60_000), messages: json!(["ü"]), ..row.clone() };
    let before = store.update_console_session("a", |_| Some(used.clone())).await.unwrap();
    assert_eq!((before, store.console_session("a").await.unwrap()), (Some(row), Some(used.clone())));
    assert_eq!(store.update_console_session("a", |_| None).await.unwrap(), Some(used.clone()));
    assert_eq!(store.update_console_session("b", |_| Some(used.clone())).await.unwrap(), None);
    assert!(store.delete_console_session("a").await.unwrap());
    assert!(!store.delete_console_session("a").await.unwrap());
    assert_eq!(store.console_session("a").await.unwrap(), None);
    assert_eq!(store.generation().await.unwrap(), generation, "sessions are not part of the policy");
}

pub(crate) async fn a_key_keeps_its_newest_sessions(store: &Store) {
    let (key, other) = (key(store, "root").await, key(store, "other").await);
    assert!(begin(store, &session(&other, "o", NOW.plus_ms(-HOUR_MS))).await);
    for (at, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let begins_at = NOW.plus_ms(i64::try_from(at).unwrap());
        assert!(begin(store, &session(&key, id, begins_at)).await);
        assert!(issue(store, &ticket(&key, id, begins_at.plus_ms(HOUR_MS))).await);
    }
    assert_eq!(known(store, &["a", "b", "c", "d", "o"]).await, ["b", "c", "d", "o"]);
    assert_eq!(store.console_ticket("a", NOW).await.unwrap(), None);
    assert!(store.console_ticket("b", NOW).await.unwrap().is_some());
}

pub(crate) async fn a_rotated_or_deleted_key_gets_no_session(store: &Store) {
    let key = key(store, "root").await;
    let rotated = KeyRow { hash: "new hash".to_owned(), ..key.clone() };
    assert!(store.rotate_key(&key, &rotated.prefix, &rotated.hash).await.unwrap());
    assert!(!begin(store, &session(&key, "a", NOW)).await);
    assert!(!issue(store, &ticket(&key, "a", NOW.plus_ms(HOUR_MS))).await);
    assert!(begin(store, &session(&rotated, "b", NOW)).await);
    assert!(store.delete_key(None, key.id).await.unwrap());
    assert!(!begin(store, &session(&rotated, "c", NOW)).await);
    assert!(!issue(store, &ticket(&rotated, "c", NOW.plus_ms(HOUR_MS))).await);
    assert_eq!(known(store, &["a", "b", "c"]).await, ["b"], "the caller compares the key of a session");
    assert_eq!(store.console_ticket("c", NOW).await.unwrap(), None);
}

pub(crate) async fn messages_and_uses_of_concurrent_requests_are_kept(store: &Store) {
    const REQUESTS: i64 = 8;
    assert!(begin(store, &session(&key(store, "root").await, "a", NOW)).await);
    let request = |number: i64| async move {
        let next = |before: &ConsoleSessionRow| {
            let mut messages = before.messages.as_array().unwrap().clone();
            messages.push(json!(number));
            let last_used_at = before.last_used_at.plus_ms(1);
            Some(ConsoleSessionRow { last_used_at, messages: Value::Array(messages), ..before.clone() })
        };
        store.update_console_session("a", next).await.unwrap();
    };
    futures::future::join_all((0..REQUESTS).map(request)).await;
    let row = store.console_session("a").await.unwrap().unwrap();
    let mut messages: Vec<i64> = row.messages.as_array().unwrap().iter().filter_map(Value::as_i64).collect();
    messages.sort_unstable();
    assert_eq!((messages, row.last_used_at), ((0..REQUESTS).collect(), NOW.plus_ms(REQUESTS)));
}

pub(crate) async fn a_ticket_is_taken_once(store: &Store) {
    let key = key(store, "root").await;
    let row = ticket(&key, "t", NOW.plus_ms(1));
    assert!(issue(store, &row).await);
    assert!(issue(store, &ticket(&key, "expired", NOW)).await);
    assert_eq!(store.console_ticket("t", NOW).await.unwrap(), Some(row.clone()), "a look takes nothing");
    let taken = futures::future::join_all((0..8).map(|_| store.take_console_ticket("t", NOW))).await;
    let taken: Vec<_> = taken.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(taken, [row]);
    assert_eq!(store.console_ticket("t", NOW).await.unwrap(), None);
    for id in ["expired", "absent"] {
        assert_eq!(store.console_ticket(id, NOW).await.unwrap(), None, "{id}");
        assert_eq!(store.take_console_ticket(id, NOW).await.unwrap(), None, "{id}");
    }
}

pub(crate) async fn ended_sessions_and_tickets_are_purged(store: &Store) {
    let key = key(store, "root").await;
    let idle = NOW.plus_ms(-HOUR_MS);
    let ended = ConsoleSessionRow { ends_at: NOW, ..session(&key, "ended", NOW) };
    for row in [ended, session(&key, "idle", idle), session(&key, "used", idle.plus_ms(1))] {
        assert!(begin(store, &row).await);
    }
    assert!(issue(store, &ticket(&key, "expired", NOW)).await);
    assert!(issue(store, &ticket(&key, "valid", NOW.plus_ms(1))).await);
    store.purge_console(NOW, idle).await.unwrap();
    assert_eq!(known(store, &["ended", "idle", "used"]).await, ["used"]);
    let earlier = NOW.plus_ms(-1);
    assert_eq!(store.console_ticket("expired", earlier).await.unwrap(), None);
    assert!(store.console_ticket("valid", earlier).await.unwrap().is_some());
}

/// A session or a ticket that another program has written or edited does not exist for the host.
pub(crate) async fn forged_sessions_and_tickets_log_nobody_in(store: &Store, intruder: &mut impl Intruder) {
    let (admin, root) = (key(store, "admin").await, key(store, "root").await);
    for id in ["idle", "longer", "root", "text", "ours"] {
        assert!(store.insert_console_session(&session(&admin, id, NOW), 9).await.unwrap());
    }
    for id in ["later", "ours"] {
        assert!(issue(store, &ticket(&admin, id, NOW.plus_ms(1))).await);
    }
    let columns = "key_id, key_hash, last_used_at, ends_at, messages, mac";
    for sql in [
        "update console_sessions set last_used_at = last_used_at + 1 where id = 'idle'".to_owned(),
        "update console_sessions set ends_at = ends_at + 1 where id = 'longer'".to_owned(),
        format!("update console_sessions set key_id = '{}', key_hash = '{}' where id = 'root'", root.id, root.hash),
        "update console_sessions set messages = '[1]' where id = 'text'".to_owned(),
        format!(
            "insert into console_sessions (id, {columns}) select 'copy', {columns} from console_sessions where id = 'ours'"
        ),
        format!(
            "insert into console_sessions (id, {columns}) values ('new', '{}', '{}', {}, {}, '[]', null)",
            root.id,
            root.hash,
            NOW.0,
            NOW.plus_ms(HOUR_MS).0
        ),
        "update console_tickets set expires_at = expires_at + 1 where id = 'later'".to_owned(),
        "insert into console_tickets (id, key_id, key_hash, expires_at, mac) \
         select 'copy', key_id, key_hash, expires_at, mac from console_tickets where id = 'ours'"
            .to_owned(),
    ] {
        intruder.run(sql).await;
    }
    let ids = ["copy", "idle", "longer", "new", "ours", "root", "text"];
    assert_eq!(known(store, &ids).await, ["ours"]);
    let next = |row: &ConsoleSessionRow| Some(row.clone());
    for id in ids.into_iter().filter(|id| *id != "ours") {
        assert_eq!(store.update_console_session(id, next).await.unwrap(), None, "{id}");
        assert_eq!(store.console_session(id).await.unwrap(), None, "an update must not make a row authentic: {id}");
    }
    for id in ["copy", "later"] {
        assert_eq!(store.take_console_ticket(id, NOW).await.unwrap(), None, "{id}");
    }
    let refused: Vec<String> = store.verify_rows().await.unwrap().refused.iter().map(ToString::to_string).collect();
    let sessions = ids.into_iter().filter(|id| *id != "ours").map(|id| format!("console_sessions/{id}"));
    let tickets = ["copy", "later"].map(|id| format!("console_tickets/{id}"));
    assert_eq!(refused, sessions.chain(tickets).collect::<Vec<_>>());
    assert_eq!(store.verify_rows().await.unwrap().unverified, [], "no seal counts these rows");
    assert!(store.delete_console_session("new").await.unwrap(), "a forged session can be deleted");
}
