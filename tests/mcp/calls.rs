//! `tools/call`: outcomes, metadata and cancellation.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use super::Scene;
use crate::http::{Answers, send};
use crate::locked::Locked;
use crate::stable::stable;
use crate::world::{eventually, text};

#[tokio::test]
async fn outcomes_are_results_that_a_model_can_read() -> Result<()> {
    let scene = Scene::start().await?;
    let mut answers = Vec::new();
    for (tool, arguments) in [
        ("test_echo_mismatch", json!({"repo": "acme/site"})),
        ("test_echo_write", json!({"kind": "feature"})),
        ("test_echo_run", json!({"repo": 5})),
        ("test_echo_unhandled", json!({})),
        ("absent", json!({})),
        ("Not A Name", json!({})),
    ] {
        let mut answer = scene.client.call(tool, &arguments).await?;
        // The echo contains ids and times of this run.
        if let Some(text) = answer["content"][0]["text"].as_str().filter(|text| text.contains("request_id")) {
            answer["content"][0]["text"] = json!(text.lines().next());
        }
        answers.push(json!({"tool": tool, "answer": answer}));
    }
    let answers = stable(&Value::Array(answers));
    let lines: Vec<String> = answers.as_array().into_iter().flatten().map(Value::to_string).collect();
    assert_snapshot!(lines.join("\n"), @r#"
    {"tool":"test_echo_mismatch","answer":{"resultType":"complete","content":[{"type":"text","text":"The call succeeded, but its result does not match the tool's output schema:"}],"isError":true}}
    {"tool":"test_echo_write","answer":{"resultType":"complete","content":[{"type":"text","text":"Scope violation: Kind feature is not authorized"}],"isError":true,"_meta":{"monstrum/status":"scope_violation","monstrum/code":"scope","monstrum/request_id":"[id 1]"}}}
    {"tool":"test_echo_run","answer":{"resultType":"complete","content":[{"type":"text","text":"Invalid parameters: /repo: 5 is not of type \"string\""}],"isError":true,"_meta":{"monstrum/status":"error","monstrum/code":"invalid_params","monstrum/request_id":"[id 2]"}}}
    {"tool":"test_echo_unhandled","answer":{"resultType":"complete","content":[{"type":"text","text":"Unknown operation: nothing.run"}],"isError":true,"_meta":{"monstrum/status":"error","monstrum/code":"plugin","monstrum/request_id":"[id 3]"}}}
    {"tool":"absent","answer":{"resultType":"complete","content":[{"type":"text","text":"Permission denied: tool 'absent' is not available to this bot"}],"isError":true,"_meta":{"monstrum/status":"permission_denied","monstrum/code":"denied","monstrum/request_id":"[id 4]"}}}
    {"tool":"Not A Name","answer":{"resultType":"complete","content":[{"type":"text","text":"Permission denied: tool 'Not A Name' is not available to this bot"}],"isError":true,"_meta":{"monstrum/status":"permission_denied","monstrum/code":"denied","monstrum/request_id":"[id 5]"}}}
    "#);

    let success = scene.client.call("test_echo_run", &json!({"repo": "acme/site"})).await?;
    let data = &success["structuredContent"];
    assert_eq!((&success["isError"], &data["params"]), (&json!(false), &json!({"repo": "acme/site"})));
    let told: Value = serde_json::from_str(text(&success["content"][0]["text"]))?;
    assert_eq!(&told, data, "the text is the data");
    // The call is in the audit like one over HTTP.
    let row = scene.world.api.audit(text(&data["request_id"])).await?;
    assert_eq!((&row["tool"], &row["status"]), (&json!("test_echo_run"), &json!("success")));
    Ok(())
}

/// While another process locks the database, the audit cannot be written, so no call runs. The answer is not a result,
/// because no call was judged.
#[tokio::test]
async fn a_call_that_cannot_be_recorded_is_answered_with_503() -> Result<()> {
    let scene = Scene::start().await?;
    let mut session = scene.client.clone();
    session.initialize("2025-11-25").await?;
    let params = json!({"name": "test_echo_fetch", "arguments": {"path": "/echo"}});
    let stateless = || send(scene.client.stateless("tools/call", &params));
    let locked = Locked::hold(&scene.world.server.data_dir().join("monstrum.db")).await?;
    let in_session = send(session.legacy(&json!(2), "tools/call", &params));
    let (stateless_answer, session_answer) = tokio::try_join!(stateless(), in_session)?;
    for (status, headers, body) in [stateless_answer, session_answer] {
        assert_eq!((status, &headers["retry-after"]), (503, &"1".parse()?), "{body}");
        assert_eq!(body["type"], "urn:monstrum:error:unavailable", "{body}");
        assert_eq!(body["detail"], "the audit cannot be written; try again later", "{body}");
    }
    assert_eq!(scene.world.github.requests().len(), 0, "a call that is not recorded reached the upstream");
    locked.release().await?;
    eventually("calls succeed again", async || {
        let (_, _, body) = stateless().await?;
        Ok((body["result"]["isError"] == false).then_some(()))
    })
    .await
}

#[tokio::test]
async fn the_metadata_names_the_conversation_and_the_task() -> Result<()> {
    let scene = Scene::start().await?;
    let call = |meta: Value| {
        let params = json!({"name": "test_echo_run", "arguments": {"repo": "acme/site"}, "_meta": meta});
        send(scene.client.stateless("tools/call", &params))
    };
    let chat = json!({"app_id": "app", "user_id": "7", "chat_id": "c"});
    let (_, _, answer) = call(json!({"monstrum/chat": chat, "monstrum/task_id": "t1"})).await?;
    let echo = &answer["result"]["structuredContent"];
    assert_eq!((&echo["task_id"], &echo["context"]), (&json!("t1"), &json!({ "chat": chat })), "{answer}");
    let mut answers = Answers::default();
    for (what, meta) in [
        ("task", json!({"monstrum/task_id": 5})),
        ("empty task", json!({"monstrum/task_id": ""})),
        ("chat", json!({"monstrum/chat": {"app_id": "app"}})),
        ("empty chat", json!({"monstrum/chat": {"app_id": "", "user_id": "7", "chat_id": "c"}})),
    ] {
        let (status, _, body) = call(meta).await?;
        answers.add(what, (status, body));
    }
    for (what, change) in [("state", json!({"requestState": "x"})), ("arguments", json!({"arguments": [1]}))] {
        let mut params = json!({"name": "test_echo_run", "arguments": {"repo": "acme/site"}});
        params.as_object_mut().context("an object")?.extend(change.as_object().cloned().unwrap_or_default());
        let (status, _, body) = send(scene.client.stateless("tools/call", &params)).await?;
        answers.add(what, (status, body));
    }
    assert_snapshot!(answers, @r#"
    task: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`monstrum/task_id` in `_meta` must be a string"}}
    empty task: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"/task_id: must not be empty"}}
    chat: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`monstrum/chat` in `_meta`: missing field `user_id`"}}
    empty chat: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"/chat/app_id: must be 1 to 256 bytes long and must not contain control characters"}}
    state: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    arguments: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the parameters of `tools/call` do not have the required form"}}
    "#);
    Ok(())
}

/// Returns the newest call of the tool in the audit, if it has ended.
pub(super) async fn ended(scene: &Scene, tool: &str) -> Result<Option<Value>> {
    let (_, rows) = scene.world.api.get(&format!("/api/audit?tool={tool}&limit=1")).await?;
    Ok(rows["items"].get(0).filter(|row| row["status"] != "started" && !row["code"].is_null()).cloned())
}

#[tokio::test]
async fn a_client_that_closes_its_response_ends_its_call() -> Result<()> {
    let scene = Scene::start().await?;
    scene.world.github.hold();
    let params = json!({"name": "test_echo_fetch", "arguments": {"path": "/user"}});
    let request = scene.client.stateless("tools/call", &params);
    let call = tokio::spawn(send(request));
    scene.world.reached(1).await?;
    call.abort();
    let row = eventually("the call has ended", async || ended(&scene, "test_echo_fetch").await).await?;
    assert_eq!((&row["status"], &row["code"]), (&json!("error"), &json!("cancelled")), "{row}");
    scene.world.github.release();
    Ok(())
}

#[tokio::test]
async fn a_notification_cancels_the_call_of_its_session_only() -> Result<()> {
    let scene = Scene::start().await?;
    scene.world.github.hold();
    let (mut one, mut other) = (scene.client.clone(), scene.client.clone());
    one.initialize("2025-11-25").await?;
    other.initialize("2025-11-25").await?;
    let params = json!({"name": "test_echo_fetch", "arguments": {"path": "/user"}});
    let call = tokio::spawn(send(one.legacy(&json!("a"), "tools/call", &params)));
    scene.world.reached(1).await?;
    let cancel = json!({"requestId": "a", "reason": "the user pressed Escape"});
    assert_eq!(other.notify("notifications/cancelled", &cancel).await?, 202);
    assert_eq!(one.notify("notifications/cancelled", &json!({"requestId": 7})).await?, 202);
    assert!(ended(&scene, "test_echo_fetch").await?.is_none() && !call.is_finished());
    assert_eq!(one.notify("notifications/cancelled", &cancel).await?, 202);
    let (status, _, body) = call.await??;
    assert_eq!((status, body), (202, json!("")), "a cancelled call has no answer");
    let row = eventually("the call has ended", async || ended(&scene, "test_echo_fetch").await).await?;
    assert_eq!(row["code"], "cancelled", "{row}");
    scene.world.github.release();
    Ok(())
}

/// Content blocks reach the client unchanged. The structured data must match the tool's output schema.
#[tokio::test]
async fn content_blocks_are_passed_on() -> Result<()> {
    let scene = Scene::on(Server::prepare(&["test-echo", "test-content"])?).await?;
    scene.world.grant_all("test-content").await?;
    let blocks = json!([
        {"type": "text", "text": "one"},
        {"type": "image", "mimeType": "image/png", "data": "iVBORw=="},
        {"type": "resource_link", "uri": "https://example.com/", "name": "c"},
    ]);
    let call = async |structured: Value| {
        let result = json!({"content": blocks, "structured": structured});
        scene.client.call("test_content_run", &json!({ "result": result })).await
    };
    let answer = call(json!({"number": 1})).await?;
    assert_eq!((&answer["content"], &answer["structuredContent"]), (&blocks, &json!({"number": 1})), "{answer}");
    assert_eq!(answer["isError"], json!(false));
    let answer = call(json!({"number": "one"})).await?;
    assert_eq!((&answer["isError"], answer.get("structuredContent")), (&json!(true), None), "{answer}");
    assert!(text(&answer["content"][0]["text"]).starts_with("The call succeeded, but its result"), "{answer}");
    let answer = scene.client.call("test_content_run", &json!({"result": {"content": [{"type": "script"}]}})).await?;
    assert_eq!(
        (&answer["isError"], &answer["_meta"]["monstrum/code"]),
        (&json!(true), &json!("bad_result")),
        "{answer}"
    );
    Ok(())
}

/// The library logs whole messages, so no filter may enable its log lines.
#[tokio::test]
async fn the_log_contains_no_parameters_and_results() -> Result<()> {
    let server = Server::prepare(&["test-echo"])?.argument("--log").argument("info,rmcp=trace");
    let scene = Scene::on(server).await?;
    let arguments = json!({"repo": "acme/marker"});
    scene.client.call("test_echo_run", &arguments).await?;
    let mut session = scene.client.clone();
    session.initialize("2025-11-25").await?;
    let call = json!({"name": "test_echo_run", "arguments": arguments});
    assert_eq!(send(session.legacy(&json!(1), "tools/call", &call)).await?.0, 200);
    let log = scene.world.server.output();
    assert!(log.contains("listening") && !log.contains("marker") && !log.contains("rmcp"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_call_belongs_to_the_trace_of_its_client() -> Result<()> {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let server = Server::prepare(&["test-echo"])?.argument("--log-format=json").variable("MONSTRUM_LOG", "debug");
    let mut scene = Scene::on(server).await?;
    for parent in [format!("00-{TRACE}-b7ad6b7169203331-01"), "00-forged\ntext-b7ad6b7169203331-01".to_owned()] {
        let meta = json!({"traceparent": parent});
        let params = json!({"name": "test_echo_run", "arguments": {"repo": "acme/site"}, "_meta": meta});
        assert_eq!(scene.client.ask("tools/call", &params).await?["isError"], false);
    }
    scene.world.server.stop().await?;
    let output = scene.world.server.output();
    let lines = output.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>()?;
    let traces = lines.iter().filter(|line| line["message"] == "call ended").map(|line| {
        let mut spans = line["spans"].as_array().into_iter().flatten();
        spans.find(|span| span["name"] == "trace").map_or(Value::Null, |span| span["trace.id"].clone())
    });
    assert_eq!(traces.collect::<Vec<_>>(), [json!(TRACE), Value::Null]);
    assert!(!output.contains("forged"), "{output}");
    Ok(())
}
