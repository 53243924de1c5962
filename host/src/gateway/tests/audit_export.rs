//! Tests of the body of an export of the audit, over many pages.

use futures::StreamExt as _;

use super::*;

/// More calls than a page of an export has.
const CALLS: usize = 520;

async fn called() -> Server {
    let server = Server::start(false).await;
    let bot = server.bot("own").await;
    let path = format!("/api/bots/{bot}/tools/absent/call");
    for _ in 0..CALLS {
        let called = server.post(&path, json!({"params": {}})).await;
        assert_eq!(called.body["status"], "permission_denied", "{called:?}");
    }
    server
}

/// Returns the lines that an export has sent, and whether its body has ended without an error. `at_first` runs after the
/// first line.
async fn lines(server: &Server, key: &str, at_first: impl AsyncFnOnce()) -> (usize, bool) {
    let request = server.request(key, Method::GET, "/api/audit/export?format=ocsf&tool=absent", &[]);
    let response = server.respond(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body().into_data_stream();
    let first = body.next().await.unwrap().unwrap();
    assert!(first.ends_with(b"}\n"), "{first:?}");
    at_first().await;
    let (mut count, mut is_whole) = (1, true);
    while let Some(line) = body.next().await {
        match line {
            Ok(_) => count += 1,
            Err(_) => is_whole = false,
        }
    }
    (count, is_whole)
}

#[tokio::test]
async fn an_export_that_is_interrupted_does_not_end_cleanly() {
    let server = called().await;
    assert_eq!(lines(&server, &server.root, async || {}).await, (CALLS, true));
    // The key of the caller ends during the export.
    let operator = server.key("operator", None).await;
    let revoked = lines(&server, &operator, async || {
        let keys = server.ask(&server.root, Method::GET, "/api/keys", None).await.body;
        let key = keys["items"].as_array().unwrap().iter().find(|key| key["kind"] == "operator").unwrap();
        let path = format!("/api/keys/{}", key["id"].as_str().unwrap());
        let deleted = server.ask(&server.root, Method::DELETE, &path, None).await;
        assert!(deleted.status.is_success(), "{deleted:?}");
    });
    let (count, is_whole) = revoked.await;
    assert!(count < CALLS && !is_whole, "{count} lines, whole: {is_whole}");
    // The database fails during the export.
    let (count, is_whole) = lines(&server, &server.root, async || server.app().store.close().await).await;
    assert!(count < CALLS && !is_whole, "{count} lines, whole: {is_whole}");
}
