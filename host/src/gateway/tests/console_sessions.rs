//! Tests of the sessions of the console, with a clock that the test sets, and of requests with the key of a session.

use monstrum_core::console_sessions::{
    ConsoleError, ConsoleSessions, IDLE_MS, MESSAGE_BYTES_MAX, MESSAGES_MAX, Message, NewSession, SESSION_MS,
    SESSIONS_OF_KEY_MAX, Visit,
};
use monstrum_types::{Clock as _, FixedClock, RequestId, SystemClock};

use super::*;
use crate::gateway::http::extract::ConsoleKey;

const MINUTE_MS: i64 = 60_000;

/// A server, and sessions with a clock of their own.
struct Scene {
    server: Server,
    clock: Arc<FixedClock>,
    sessions: ConsoleSessions,
}

impl Scene {
    async fn start() -> Scene {
        let server = Server::start(false).await;
        let clock = Arc::new(FixedClock::new(SystemClock.now()));
        let app = server.app();
        let sessions =
            ConsoleSessions::new(app.store.clone(), Arc::clone(&app.policy), app.auditor.clone(), clock.clone());
        Scene { server, clock, sessions }
    }

    async fn open(&self, key: &str) -> Result<NewSession, ConsoleError> {
        self.sessions.open(RequestId::new(), key).await
    }

    /// Logs in and returns the token.
    async fn log_in(&self, key: &str) -> String {
        self.open(key).await.map(|new| new.token.expose().to_owned()).map_err(|error| error.to_string()).unwrap()
    }

    async fn lives(&self, token: &str, visit: Visit) -> bool {
        self.sessions.find(token, visit).await.unwrap().is_some()
    }

    /// Creates a ticket for the key with this text.
    async fn ticket(&self, key: &str, ttl_s: u32) -> String {
        let hash = monstrum_core::policy::api_key::hash(key);
        self.sessions.new_ticket(&hash, ttl_s).await.unwrap().token.expose().to_owned()
    }

    async fn enter(&self, ticket: &str) -> Result<NewSession, ConsoleError> {
        self.sessions.enter(RequestId::new(), ticket).await
    }

    /// Returns the recorded log-ins, oldest first: their status, the kind of the key, and the state after them.
    async fn recorded(&self) -> Vec<(String, Value, Value)> {
        let answer = self.server.ask(&self.server.root, Method::GET, "/api/audit/changes?limit=1000", None).await;
        let items = answer.body["items"].as_array().unwrap().iter().rev();
        let log_ins = items.filter(|item| item["change"] == "console.login");
        log_ins.map(|item| (item["status"].to_string(), item["key_kind"].clone(), item["after"].clone())).collect()
    }

    /// Creates a key and returns its id and text.
    async fn named_key(&self, kind: &str) -> (String, String) {
        let made = self.server.post("/api/keys", json!({"name": format!("the {kind}"), "kind": kind})).await.body;
        (made["id"].as_str().unwrap().to_owned(), made["key"].as_str().unwrap().to_owned())
    }
}

/// Returns the text of the error of a log-in.
fn refusal(result: Result<NewSession, ConsoleError>) -> String {
    result.err().unwrap().to_string()
}

#[tokio::test]
async fn people_log_in_and_programs_do_not() {
    let scene = Scene::start().await;
    for kind in ["root", "admin", "operator", "approver"] {
        let (id, key) = scene.named_key(kind).await;
        let NewSession { token, session } = scene.open(&key).await.ok().unwrap();
        assert_eq!((session.kind.as_str(), session.workspace.is_none()), (kind, kind == "root"));
        assert_eq!(session.ends_at.since_ms(scene.clock.now()), SESSION_MS);
        let found = scene.sessions.find(token.expose(), Visit::Page).await.unwrap().unwrap();
        assert_eq!((found.key_id.to_string(), &*found.key_name), (id, format!("the {kind}").as_str()));
        assert_eq!(found.key_hash, monstrum_core::policy::api_key::hash(&key));
    }
    let bot = scene.server.bot("b").await;
    let bot = scene.server.key("bot", Some(&bot)).await;
    let expected = "a bot key cannot log in to the console; use a root, admin, operator or approver key";
    assert_eq!(refusal(scene.open(&bot).await), expected);
    let hash = monstrum_core::policy::api_key::hash(&bot);
    assert!(matches!(scene.sessions.new_ticket(&hash, 60).await, Err(ConsoleError::Kind(_))));
    for key in ["", "mk_", "mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "\0"] {
        assert_eq!(refusal(scene.open(key).await), "unknown API key");
        assert!(!scene.lives(key, Visit::Page).await);
    }
}

#[tokio::test]
async fn a_session_ends_after_an_hour_without_use() {
    let scene = Scene::start().await;
    let token = scene.log_in(&scene.server.root).await;
    scene.clock.advance_ms(IDLE_MS - 1);
    assert!(scene.lives(&token, Visit::Page).await, "a page keeps the session alive");
    scene.clock.advance_ms(IDLE_MS - 1);
    assert!(scene.lives(&token, Visit::Quiet).await);
    scene.clock.advance_ms(1);
    assert!(!scene.lives(&token, Visit::Quiet).await, "a live page does not keep the session alive");
    assert!(!scene.lives(&token, Visit::Page).await, "a session that has ended does not begin again");
}

#[tokio::test]
async fn a_use_is_written_once_a_minute() {
    let scene = Scene::start().await;
    let token = scene.log_in(&scene.server.root).await;
    let id = hex::encode(monstrum_core::policy::api_key::hash(&token));
    let began = scene.clock.now();
    let store = &scene.server.app().store;
    let mut written = Vec::new();
    for advance_ms in [MINUTE_MS - 1, 1, MINUTE_MS - 1] {
        scene.clock.advance_ms(advance_ms);
        assert!(scene.lives(&token, Visit::Page).await);
        written.push(store.console_session(&id).await.unwrap().unwrap().last_used_at.since_ms(began));
    }
    assert_eq!(written, [0, MINUTE_MS, MINUTE_MS]);
}

#[tokio::test]
async fn a_session_ends_after_twelve_hours_of_use() {
    let scene = Scene::start().await;
    let token = scene.log_in(&scene.server.root).await;
    for _ in 0..SESSION_MS / (IDLE_MS / 2) - 1 {
        scene.clock.advance_ms(IDLE_MS / 2);
        assert!(scene.lives(&token, Visit::Page).await);
    }
    scene.clock.advance_ms(IDLE_MS / 2 - 1);
    assert!(scene.lives(&token, Visit::Page).await);
    scene.clock.advance_ms(1);
    assert!(!scene.lives(&token, Visit::Page).await);
    let store = &scene.server.app().store;
    let id = hex::encode(monstrum_core::policy::api_key::hash(&token));
    assert!(store.console_session(&id).await.unwrap().is_some());
    scene.sessions.purge().await.unwrap();
    assert_eq!(store.console_session(&id).await.unwrap(), None);
}

#[tokio::test]
async fn a_session_ends_with_its_log_out_and_with_the_rotation_or_deletion_of_its_key() {
    let scene = Scene::start().await;
    let token = scene.log_in(&scene.server.root).await;
    scene.sessions.close(&token).await.unwrap();
    assert!(!scene.lives(&token, Visit::Page).await);

    let (id, key) = scene.named_key("admin").await;
    let (token, ticket) = (scene.log_in(&key).await, scene.ticket(&key, 600).await);
    assert_eq!(&*scene.sessions.peek_ticket(&ticket).await.unwrap().unwrap().key_name, "the admin");
    let rotated = scene.server.ask(&scene.server.root, Method::POST, &format!("/api/keys/{id}/rotate"), None).await;
    let key = rotated.body["key"].as_str().unwrap();
    assert!(!scene.lives(&token, Visit::Page).await, "the key was rotated");
    assert!(scene.sessions.peek_ticket(&ticket).await.unwrap().is_none());
    assert!(matches!(scene.enter(&ticket).await, Err(ConsoleError::UnknownTicket)));

    let (token, ticket) = (scene.log_in(key).await, scene.ticket(key, 600).await);
    scene.server.ask(&scene.server.root, Method::DELETE, &format!("/api/keys/{id}"), None).await;
    assert!(!scene.lives(&token, Visit::Page).await, "the key was deleted");
    assert!(matches!(scene.enter(&ticket).await, Err(ConsoleError::UnknownTicket)));
    let hash = monstrum_core::policy::api_key::hash(key);
    assert!(matches!(scene.sessions.new_ticket(&hash, 60).await, Err(ConsoleError::UnknownKey)));
}

#[tokio::test]
async fn the_oldest_of_seventeen_sessions_ends() {
    let scene = Scene::start().await;
    let mut tokens = Vec::new();
    for _ in 0..=SESSIONS_OF_KEY_MAX {
        tokens.push(scene.log_in(&scene.server.root).await);
        scene.clock.advance_ms(1);
    }
    let mut ended = Vec::new();
    for (number, token) in tokens.iter().enumerate() {
        if !scene.lives(token, Visit::Page).await {
            ended.push(number);
        }
    }
    assert_eq!(ended, [0]);
}

#[tokio::test]
async fn a_ticket_logs_in_once_and_until_it_expires() {
    let scene = Scene::start().await;
    let ticket = scene.ticket(&scene.server.root, 60).await;
    for _ in 0..2 {
        let key = scene.sessions.peek_ticket(&ticket).await.unwrap().unwrap();
        assert_eq!(key.kind.as_str(), "root");
    }
    let entered = futures::future::join_all((0..4).map(|_| scene.enter(&ticket))).await;
    let (entered, refused): (Vec<_>, Vec<_>) = entered.into_iter().partition(Result::is_ok);
    assert_eq!((entered.len(), refused.len()), (1, 3));
    assert!(refused.into_iter().all(|result| matches!(result, Err(ConsoleError::UnknownTicket))));
    assert!(scene.sessions.peek_ticket(&ticket).await.unwrap().is_none());

    let ticket = scene.ticket(&scene.server.root, 60).await;
    scene.clock.advance_ms(60_000);
    assert!(scene.sessions.peek_ticket(&ticket).await.unwrap().is_none());
    assert!(matches!(scene.enter(&ticket).await, Err(ConsoleError::UnknownTicket)));
}

#[tokio::test]
async fn a_session_keeps_its_newest_messages_for_the_next_page() {
    let scene = Scene::start().await;
    let (token, other) = (scene.log_in(&scene.server.root).await, scene.log_in(&scene.server.root).await);
    let message = |text: String| Message { is_error: false, text };
    let put = async |text: String| scene.sessions.put_message(&token, message(text)).await.unwrap();
    for number in 0..=MESSAGES_MAX {
        put(format!("saved {number}")).await;
    }
    put("ü".repeat(MESSAGE_BYTES_MAX)).await;
    scene.sessions.put_message(&token, Message { is_error: true, text: "a\0b".to_owned() }).await.unwrap();
    scene.sessions.put_message("no session", message("lost".to_owned())).await.unwrap();
    assert_eq!(scene.sessions.take_messages(&other).await.unwrap(), []);
    let taken = scene.sessions.take_messages(&token).await.unwrap();
    let (cut, last) = (&taken[MESSAGES_MAX - 2], &taken[MESSAGES_MAX - 1]);
    assert_eq!((taken.len(), taken[0].text.as_str()), (MESSAGES_MAX, "saved 3"));
    assert!(cut.text.len() <= MESSAGE_BYTES_MAX && cut.text.ends_with("ü…"), "{}", cut.text.len());
    assert_eq!(last, &Message { is_error: true, text: "ab".to_owned() });
    assert_eq!(scene.sessions.take_messages(&token).await.unwrap(), []);
}

#[tokio::test]
async fn log_ins_and_misses_are_recorded() {
    const MISSES: usize = 15;
    let scene = Scene::start().await;
    scene.log_in(&scene.server.root).await;
    let ticket = scene.ticket(&scene.server.root, 60).await;
    scene.enter(&ticket).await.ok().unwrap();
    let recorded = scene.recorded().await;
    let by: Vec<_> = recorded.iter().map(|(status, kind, after)| (status.as_str(), kind, &after["by"])).collect();
    let (root, key, link) = (json!("root"), json!("key"), json!("link"));
    assert_eq!(by, [("\"success\"", &root, &key), ("\"success\"", &root, &link)]);
    assert!(!format!("{recorded:?}").contains(&ticket));

    let misses = async |count| {
        futures::future::join_all((0..count).map(|_| scene.open("mk_wrong"))).await;
        let recorded = scene.recorded().await.into_iter();
        recorded.filter_map(|(status, _, after)| Some((status, after["misses"].as_u64()?))).collect::<Vec<_>>()
    };
    let one = ("\"error\"".to_owned(), 1);
    let first = misses(MISSES).await;
    assert_eq!(first, vec![one.clone(); 10], "the other misses of the minute have no row");
    scene.clock.advance_ms(MINUTE_MS);
    let next = misses(1).await;
    assert_eq!(next.last().unwrap().1, 1 + (MISSES - 10) as u64, "the next row counts them");
    // A log-in waits for no miss.
    scene.log_in(&scene.server.root).await;
    misses(MISSES).await;
    scene.sessions.purge().await.unwrap();
    let all = misses(0).await;
    assert_eq!(all.iter().map(|(_, count)| count).sum::<u64>(), 2 * MISSES as u64 + 1);
}

/// The console sends requests to the router itself. The key of a session takes the place of the header, and ends with it.
#[tokio::test]
async fn a_request_of_the_console_acts_with_the_key_of_its_session() {
    let scene = Scene::start().await;
    let (id, key) = scene.named_key("operator").await;
    let hash = monstrum_core::policy::api_key::hash(&key);
    let ask = async |path: &str, headers: &[(&str, &str)], key_hash: Option<[u8; 32]>| {
        let host = scene.server.running.address.to_string();
        let mut request = Request::builder().uri(path).header(header::HOST, host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        if let Some(hash) = key_hash {
            request.extensions_mut().insert(ConsoleKey::new(hash));
        }
        scene.server.send(request).await.status
    };
    assert_eq!(ask("/api/bots", &[], Some(hash)).await, StatusCode::OK);
    assert_eq!(ask("/api/keys", &[], Some(hash)).await, StatusCode::FORBIDDEN, "an operator");
    let root = format!("Bearer {}", scene.server.root);
    let with_root = [("authorization", root.as_str())];
    assert_eq!(ask("/api/keys", &with_root, Some(hash)).await, StatusCode::FORBIDDEN, "the header adds no right");
    assert_eq!(ask("/api/bots", &[("monstrum-workspace", "default")], Some(hash)).await, StatusCode::OK);
    assert_eq!(ask("/api/bots", &[("monstrum-workspace", "absent")], Some(hash)).await, StatusCode::NOT_FOUND);
    assert_eq!(ask("/api/bots", &[], Some([7; 32])).await, StatusCode::UNAUTHORIZED);
    // The token of a session is not an API key, and the API ignores cookies.
    let token = scene.log_in(&key).await;
    let (bearer, cookie) = (format!("Bearer {token}"), format!("monstrum={token}; __Host-monstrum={token}"));
    for headers in [[("authorization", bearer.as_str())], [("cookie", cookie.as_str())]] {
        assert_eq!(ask("/api/bots", &headers, None).await, StatusCode::UNAUTHORIZED, "{headers:?}");
    }
    let hash_text = hex::encode(hash);
    assert_eq!(ask("/api/bots", &[("consolekey", hash_text.as_str())], None).await, StatusCode::UNAUTHORIZED);
    scene.server.ask(&scene.server.root, Method::POST, &format!("/api/keys/{id}/rotate"), None).await;
    assert_eq!(ask("/api/bots", &[], Some(hash)).await, StatusCode::UNAUTHORIZED, "the key was rotated");
}
