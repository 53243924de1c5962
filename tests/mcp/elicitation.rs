//! Approvals for clients that can open a URL for their user: `input_required` and `requestState` in revision
//! 2026-07-28, and the error -32042 in revision 2025-11-25.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Response;
use serde_json::{Map, Value, json};

use super::approvals::{PERSONS, approve, gated, pending};
use super::{Client, Scene};
use crate::http::{Answers, send};
use crate::stable::stable;
use crate::tamper::sqlite;
use crate::world::{eventually, text};

const TOOL: &str = "test_echo_run";

fn arguments() -> Value {
    json!({"repo": "acme/site"})
}

/// Calls the tool as a client that opens URLs. Members of `more` are added to the parameters. Returns the JSON-RPC
/// answer, also if it is an event of a stream.
async fn call(client: &Client, more: &Value) -> Result<Value> {
    read(send_call(client, more).await?).await
}

async fn send_call(client: &Client, more: &Value) -> Result<Response> {
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    let mut meta = json!({"io.modelcontextprotocol/clientCapabilities": capabilities});
    let mut params = Map::from_iter([("name".to_owned(), json!(TOOL)), ("arguments".to_owned(), arguments())]);
    params.extend(more.as_object().cloned().unwrap_or_default());
    if let (Some(Value::Object(own)), Value::Object(meta)) = (params.remove("_meta"), &mut meta) {
        meta.extend(own);
    }
    params.insert("_meta".to_owned(), meta);
    Ok(client.stateless("tools/call", &Value::Object(params)).send().await?)
}

async fn read(response: Response) -> Result<Value> {
    let is_stream = response.headers()["content-type"] == "text/event-stream";
    let body = response.text().await?;
    let last = body.lines().rev().find_map(|line| line.strip_prefix("data: "));
    Ok(serde_json::from_str(if is_stream { last.context("the stream has no event")? } else { &body })?)
}

/// Makes the first call, which asks for an approval. Returns the request state.
async fn ask(client: &Client) -> Result<String> {
    let asked = call(client, &json!({})).await?;
    ensure!(asked["result"]["resultType"] == "input_required", "{asked}");
    Ok(text(&asked["result"]["requestState"]).to_owned())
}

/// Repeats the call as a client whose user has given this answer to the request.
async fn repeat(client: &Client, state: &str, action: &str, meta: &Value) -> Result<Value> {
    call(client, &repeated(state, action, meta)).await
}

fn repeated(state: &str, action: &str, meta: &Value) -> Value {
    let responses = json!({"approval": {"action": action}});
    json!({"requestState": state, "inputResponses": responses, "_meta": meta})
}

/// A wait that is shorter than the usual one, for tests in which the wait ends without a decision.
fn briefly() -> Value {
    json!({"monstrum/wait_for_approval_s": 1})
}

async fn decide(scene: &Scene, decision: &str, note: Option<&str>) -> Result<u16> {
    let approval = pending(scene).await?.context("no approval is pending")?;
    let body = json!({"decision": decision, "digest": approval["digest"], "note": note});
    Ok(scene.world.api.post(&format!("/api/approvals/{}", text(&approval["id"])), &body).await?.0)
}

/// Returns the number of calls of the tool that succeeded, by the audit.
async fn runs(scene: &Scene) -> Result<usize> {
    let (status, rows) = scene.world.api.get("/api/audit?limit=100").await?;
    ensure!(status == 200, "{status} {rows}");
    let rows = rows["items"].as_array().into_iter().flatten();
    Ok(rows.filter(|row| row["tool"] == TOOL && row["status"] == "success").count())
}

#[tokio::test]
async fn a_call_runs_once_after_a_person_has_approved_it() -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let asked = call(&scene.client, &json!({})).await?;
    let approval = pending(&scene).await?.context("no approval is pending")?;
    let state = text(&asked["result"]["requestState"]).to_owned();
    let url = text(&asked["result"]["inputRequests"]["approval"]["params"]["url"]);
    assert!(url.starts_with("https://people.example/") && url.ends_with(text(&approval["id"])), "{url}");
    let (id, url) = (text(&approval["id"]).to_owned(), url.to_owned());
    let shown = asked.to_string().replace(&state, "[state]").replace(&url, "[url]").replace(&id, "[approval]");
    assert_snapshot!(stable(&serde_json::from_str(&shown)?), @r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"approval":{"method":"elicitation/create","params":{"mode":"url","message":"A person must approve the call of the tool `test_echo_run`. Open the page to read and decide.","url":"[url]","elicitationId":"[approval]"}}},"requestState":"[state]","_meta":{"monstrum/status":"approval_required","monstrum/code":"approval","monstrum/request_id":"[id 1]"}}}"#);

    // The client repeats the call at once, and the call waits for the person.
    let waiting = send_call(&scene.client, &repeated(&state, "accept", &json!({}))).await?;
    assert_eq!(&waiting.headers()["content-type"], "text/event-stream", "the call waits");
    approve(&scene).await?;
    let done = read(waiting).await?;
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert_eq!(done["result"]["structuredContent"]["params"], arguments(), "{done}");

    let request = text(&done["result"]["structuredContent"]["request_id"]).to_owned();
    let again = repeat(&scene.client, &state, "accept", &json!({})).await?;
    assert_eq!(again["result"]["isError"], true, "a request state is good for one call: {again}");
    assert!(text(&again["result"]["content"][0]["text"]).contains(&request), "{again}");
    assert_eq!(pending(&scene).await?, None, "the repeated call asks for nothing");
    assert_eq!(runs(&scene).await?, 1);
    Ok(())
}

#[tokio::test]
async fn the_answer_of_a_client_decides_nothing() -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let state = ask(&scene.client).await?;
    let accepted = repeat(&scene.client, &state, "accept", &briefly()).await?;
    assert_eq!(accepted["result"]["resultType"], "input_required", "{accepted}");
    let state = text(&accepted["result"]["requestState"]).to_owned();
    for action in ["decline", "cancel"] {
        let declined = repeat(&scene.client, &state, action, &json!({})).await?;
        assert_eq!(declined["result"]["isError"], true, "{declined}");
        assert!(text(&declined["result"]["content"][0]["text"]).contains("declined"), "{declined}");
    }
    assert!(pending(&scene).await?.is_some(), "the approval still waits for a person");
    approve(&scene).await?;
    let declined = repeat(&scene.client, &state, "decline", &json!({})).await?;
    assert_eq!((&declined["result"]["isError"], runs(&scene).await?), (&json!(true), 0), "{declined}");
    let accepted = repeat(&scene.client, &state, "accept", &json!({})).await?;
    assert_eq!((&accepted["result"]["isError"], runs(&scene).await?), (&json!(false), 1), "{accepted}");
    Ok(())
}

#[tokio::test]
async fn a_request_state_is_good_for_its_call_only() -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let api = &scene.world.api;
    let other_bot = api.bot("other").await?;
    let root = Client::new(api, &scene.world.bot);
    let (state, of_root) = (ask(&scene.client).await?, ask(&root).await?);
    approve(&scene).await?;
    let end = state.len() - 1;
    let forged = format!("{}{}", &state[..end], if state.ends_with('0') { "1" } else { "0" });
    let another_approval = {
        let mut parts: Vec<&str> = state.split('.').collect();
        let id = changed_id(parts.get(1).context("an id")?);
        parts[1] = &id;
        parts.join(".")
    };
    let chat = json!({"monstrum/chat": {"app_id": "app", "user_id": "7", "chat_id": "c"}});
    let mut answers = Answers::default();
    for (what, client, state, more) in [
        ("forged", &scene.client, forged.as_str(), json!({})),
        ("of another approval", &scene.client, &another_approval, json!({})),
        ("garbage", &scene.client, "garbage", json!({})),
        ("empty", &scene.client, "", json!({})),
        ("of another key", &scene.client, &of_root, json!({})),
        ("of another bot", &Client::new(api, &other_bot), &of_root, json!({})),
        ("of another tool", &scene.client, &state, json!({"name": "test_echo_write"})),
        ("of other arguments", &scene.client, &state, json!({"arguments": {"repo": "acme/other"}})),
        ("of another user", &scene.client, &state, json!({"_meta": chat})),
        ("too long a wait", &scene.client, &state, json!({"_meta": {"monstrum/wait_for_approval_s": 301}})),
    ] {
        let mut params = json!({"requestState": state, "inputResponses": {"approval": {"action": "accept"}}});
        params.as_object_mut().context("an object")?.extend(more.as_object().cloned().unwrap_or_default());
        answers.add(what, (200, call(client, &params).await?));
    }
    let mut session = scene.client.clone();
    session.initialize_with("2025-11-25", &json!({"elicitation": {"url": {}}})).await?;
    let params = json!({"name": TOOL, "arguments": arguments(), "requestState": state});
    let (status, _, body) = send(session.legacy(&json!(1), "tools/call", &params)).await?;
    answers.add("in an earlier revision", (status, body));
    assert_snapshot!(answers, @r#"
    forged: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    of another approval: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    garbage: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    empty: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    of another key: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    of another bot: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    of another tool: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    of other arguments: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    of another user: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` was not issued for this call or has expired"}}
    too long a wait: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"/wait_for_approval_s: must be from 0 to 300"}}
    in an earlier revision: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"`requestState` requires revision 2026-07-28"}}
    "#);
    assert_eq!(runs(&scene).await?, 0);
    let own = repeat(&scene.client, &state, "accept", &json!({})).await?;
    assert_eq!(own["result"]["isError"], false, "{own}");
    Ok(())
}

/// Returns the id with another last digit.
fn changed_id(id: &str) -> String {
    let end = id.len() - 1;
    format!("{}{}", &id[..end], if id.ends_with('0') { "1" } else { "0" })
}

#[tokio::test]
async fn a_denied_or_void_approval_is_told_and_runs_nothing() -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let state = ask(&scene.client).await?;
    assert_eq!(decide(&scene, "deny", Some("not on a Friday")).await?, 200);
    let denied = repeat(&scene.client, &state, "accept", &json!({})).await?;
    assert_eq!(denied["result"]["_meta"]["monstrum/status"], "permission_denied", "{denied}");
    assert!(text(&denied["result"]["content"][0]["text"]).contains("not on a Friday"), "{denied}");

    let scene = gated(Some(PERSONS)).await?;
    let state = ask(&scene.client).await?;
    let path = format!("/api/resources/{}", scene.binding.resource);
    let mut network = scene.world.api.get(&path).await?.1["network"].clone();
    network["allow_addresses"] = json!(["127.0.0.0/8", "10.0.0.0/8"]);
    let (status, body) = scene.world.api.patch(&path, &json!({ "network": network })).await?;
    ensure!(status == 200, "{status} {body}");
    assert_eq!(decide(&scene, "approve", None).await?, 409);
    let void = repeat(&scene.client, &state, "accept", &json!({})).await?;
    assert_eq!(void["result"]["isError"], true, "{void}");
    assert!(text(&void["result"]["content"][0]["text"]).contains("void"), "{void}");
    assert_eq!(runs(&scene).await?, 0);
    Ok(())
}

#[tokio::test]
async fn an_approval_that_is_edited_in_the_database_runs_nothing() -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let state = ask(&scene.client).await?;
    let statements = [
        "update approvals set status = 'approved'",
        "insert into approval_grants (id, workspace_id, digest, expires_at, mac) \
         select id, workspace_id, digest, expires_at, mac from approvals",
        "update settings set generation = generation + 1",
    ];
    for statement in statements {
        sqlite(&scene.world.server.data_dir(), &["begin immediate", statement, "commit"]).await?;
        let answer = repeat(&scene.client, &state, "accept", &briefly()).await?;
        assert_ne!(answer["result"]["isError"], false, "{statement}: {answer}");
    }
    Ok(())
}

#[tokio::test]
async fn a_wait_ends_with_its_key() -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let state = ask(&scene.client).await?;
    let meta = json!({"monstrum/wait_for_approval_s": 300});
    let waiting = send_call(&scene.client, &repeated(&state, "accept", &meta)).await?;
    assert_eq!(&waiting.headers()["content-type"], "text/event-stream", "the call waits");
    let (_, keys) = scene.world.api.get("/api/keys").await?;
    let key = keys["items"].as_array().into_iter().flatten().find(|key| key["kind"] == "bot").cloned();
    scene.world.api.delete(&format!("/api/keys/{}", text(&key.unwrap_or_default()["id"]))).await?;
    let answer = read(waiting).await?;
    assert_eq!(answer["result"]["_meta"]["monstrum/status"], "permission_denied", "{answer}");
    Ok(())
}

#[tokio::test]
async fn only_a_client_that_declares_it_and_a_server_with_a_url_ask_for_a_url() -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let plain = scene.client.call(TOOL, &arguments()).await?;
    assert_eq!((&plain["resultType"], &plain["isError"]), (&json!("complete"), &json!(true)), "{plain}");
    let without = gated(None).await?;
    let plain = call(&without.client, &json!({})).await?;
    assert_eq!(plain["result"]["isError"], true, "{plain}");
    assert!(text(&plain["result"]["content"][0]["text"]).contains("monstrum approval approve"), "{plain}");
    Ok(())
}

#[tokio::test]
async fn the_revision_2025_11_25_asks_by_an_error() -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let urls = json!({"elicitation": {"url": {}}});
    let params = json!({"name": TOOL, "arguments": arguments()});
    let mut client = scene.client.clone();
    client.initialize_with("2025-11-25", &urls).await?;
    let (status, _, asked) = send(client.legacy(&json!(1), "tools/call", &params)).await?;
    let id = text(&pending(&scene).await?.context("no approval is pending")?["id"]).to_owned();
    let url = text(&asked["error"]["data"]["elicitations"][0]["url"]).to_owned();
    assert!(url.starts_with("https://people.example/") && url.ends_with(&id), "{asked}");
    let mut answers = Answers::default();
    let shown = asked.to_string().replace(&url, "[url]").replace(&id, "[approval]");
    answers.add("asked", (status, serde_json::from_str(&shown)?));
    for (what, revision, capabilities) in
        [("an earlier revision", "2025-06-18", urls), ("forms only", "2025-11-25", json!({"elicitation": {}}))]
    {
        let mut client = scene.client.clone();
        client.initialize_with(revision, &capabilities).await?;
        let (status, _, answer) = send(client.legacy(&json!(1), "tools/call", &params)).await?;
        answers.add(what, (status, json!({"isError": answer["result"]["isError"]})));
    }
    assert_snapshot!(answers, @r#"
    asked: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"A person must approve the call of the tool `test_echo_run`. Open the page to read and decide.","data":{"elicitations":[{"mode":"url","elicitationId":"[approval]","url":"[url]","message":"A person must approve the call of the tool `test_echo_run`. Open the page to read and decide."}]}}}
    an earlier revision: 200 {"isError":true}
    forms only: 200 {"isError":true}
    "#);
    approve(&scene).await?;
    let done = eventually("the call succeeds", async || {
        let (_, _, answer) = send(client.legacy(&json!(1), "tools/call", &params)).await?;
        Ok((answer["result"]["isError"] == false).then_some(answer))
    });
    done.await?;
    assert_eq!(runs(&scene).await?, 1);
    Ok(())
}
