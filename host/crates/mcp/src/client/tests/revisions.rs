//! Servers that reject the newest revision with the error of revision 2026-07-28, which names those that they support.

use super::*;

/// The error with which a server rejects a revision.
fn rejected(supported: &Value) -> Step {
    let error = json!({"code": -32022, "message": "no", "data": {"supported": supported, "requested": STATELESS}});
    answer(400, &json!({"jsonrpc": "2.0", "id": "{id}", "error": error}))
}

#[tokio::test]
async fn a_server_that_supports_the_rejected_revision_is_asked_once_more() {
    let again = || rejected(&json!([STATELESS]));
    let wire = Script::new(vec![again(), discovered(), result(&text_result("a"))]);
    call(&wire, &Connection::default(), false).await.unwrap();
    assert_eq!(wire.methods(), ["server/discover", "server/discover", "tools/call"]);

    let wire = Script::new(vec![again(), again()]);
    let error = call(&wire, &Connection::default(), false).await.unwrap_err();
    assert!(matches!(error, ClientError::Unsupported(_)), "{error}");
    assert_eq!(wire.methods(), ["server/discover", "server/discover"]);
}

#[tokio::test]
async fn the_newest_common_revision_is_used() {
    let supported = json!(["2024-11-05", "2025-03-26", "2025-06-18", 7, "2".repeat(33)]);
    let mut steps = initialized(None, "2025-06-18");
    steps[0] = rejected(&supported);
    steps.push(result(&text_result("a")));
    let wire = Script::new(steps);
    call(&wire, &Connection::default(), false).await.unwrap();
    let (method, params) = &wire.sent()[1];
    assert_eq!((method.as_str(), &params["protocolVersion"]), ("initialize", &json!("2025-06-18")));

    let wire = Script::new(vec![rejected(&json!(["2024-11-05"]))]);
    let error = call(&wire, &Connection::default(), false).await.unwrap_err();
    assert!(matches!(error, ClientError::Unsupported(_)), "{error}");

    // A server that names no revision gets the newest one that begins with `initialize`.
    let mut steps = initialized(None, "2025-11-25");
    steps[0] = rejected(&Value::Null);
    steps.push(result(&text_result("a")));
    let wire = Script::new(steps);
    call(&wire, &Connection::default(), false).await.unwrap();
    assert_eq!(wire.sent()[1].1["protocolVersion"], "2025-11-25");
}
