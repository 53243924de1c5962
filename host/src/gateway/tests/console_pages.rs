//! Tests of pages of the console that depend on the state of the server.

use monstrum_core::console_sessions::ConsoleSessions;
use monstrum_types::{Clock as _, FixedClock, RequestId, SystemClock};

use super::*;

/// Starts a server whose start-up scan is complete.
async fn started() -> Server {
    let server = Server::start(false).await;
    // The API answers after the scan.
    server.ask(&server.root, Method::GET, "/api/workspaces", None).await;
    server
}

#[tokio::test]
async fn a_page_that_is_read_while_the_server_starts_reads_itself_again() {
    let server = started().await;
    server.app().scanned.send_replace(false);
    for path in ["/console", "/console/login", "/console/w/default/bots"] {
        let answer = server.ask("", Method::GET, path, None).await;
        assert_eq!(
            (answer.status, &answer.headers[header::REFRESH]),
            (StatusCode::SERVICE_UNAVAILABLE, &"2".parse().unwrap())
        );
        assert!(answer.headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/html"), "{answer:?}");
        assert!(answer.body.as_str().unwrap().contains("The server is starting"), "{answer:?}");
    }
    // A form is not sent again.
    let form = [("sec-fetch-site", "same-origin"), ("content-type", "application/x-www-form-urlencoded")];
    let answer = server.ask_with("", Method::POST, "/console/login", None, &form).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!answer.headers.contains_key(header::REFRESH), "{answer:?}");
    server.app().scanned.send_replace(true);
    let answer = server.ask("", Method::GET, "/console/login", None).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(!answer.headers.contains_key(header::REFRESH));
}

#[tokio::test]
async fn an_open_live_page_does_not_use_its_session() {
    let server = started().await;
    let app = server.app();
    let earlier = Arc::new(FixedClock::new(SystemClock.now().plus_ms(-600_000)));
    let sessions = ConsoleSessions::new(app.store.clone(), Arc::clone(&app.policy), app.auditor.clone(), earlier);
    let token = sessions.open(RequestId::new(), &server.root).await.ok().unwrap().token;
    let id = hex::encode(monstrum_core::policy::api_key::hash(token.expose()));
    let used = async || app.store.console_session(&id).await.unwrap().unwrap().last_used_at;
    let cookie = format!("monstrum={}", token.expose());
    let before = used().await;
    // The answer to a HEAD request has no body, so it ends.
    let stream = "/console/w/default/activity/live/events";
    let answer = server.ask_with("", Method::HEAD, stream, None, &[("cookie", &cookie)]).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(used().await, before);
    let page = "/console/w/default/activity/live";
    let answer = server.ask_with("", Method::GET, page, None, &[("cookie", &cookie)]).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert!(used().await > before, "a person who opens the page uses the session");
}
