//! Calls that no bot makes: functions of plugins, which infrastructure programs call, and credential checks.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Canned, Server};

use crate::cli::told;
use crate::http::Answers;
use crate::world::{World, text};

const FUNCTIONS: &str = "test-functions";

async fn called(world: &World, function: &str, body: &Value) -> Result<Value> {
    let (status, answer) = world.api.post(&format!("/api/platform/{FUNCTIONS}/{function}"), body).await?;
    ensure!(status == 200, "{function}: {status} {answer}");
    Ok(answer)
}

fn ended(answer: &Value) -> String {
    format!("{} {} {}", text(&answer["status"]), text(&answer["code"]), text(&answer["message"]))
}

/// Creates a resource with the token of the upstream. The upstream responds at /user.
async fn resource(world: &World) -> Result<String> {
    let resource = world.api.resource(FUNCTIONS, "upstream", &world.github.url()).await?;
    world.api.token(&resource, &world.github.token()).await?;
    world.github.answer("/user", Canned::json(200, &json!({"login": "octocat", "echo": world.github.token()})));
    Ok(resource)
}

#[tokio::test]
async fn functions_are_for_root_keys_and_recorded() -> Result<()> {
    let world = World::with(&[FUNCTIONS, "test-echo"]).await?;
    let answer = called(&world, "echo", &json!({"params": {"a": [1]}})).await?;
    assert_eq!(answer["data"], json!({"params": {"a": [1]}, "credential": "None"}), "{answer}");
    let row = world.audit_of(&answer).await?;
    let fields =
        ["bot_id", "resource_id", "tool", "operation", "plugin", "status", "params"].map(|field| row[field].clone());
    let name = json!("platform.test-functions.echo");
    assert_eq!(
        fields,
        [Value::Null, Value::Null, name.clone(), name, json!(FUNCTIONS), json!("success"), json!({"a": [1]})]
    );

    let resource = resource(&world).await?;
    let with = |params: Value| json!({"params": params, "resource_id": resource});
    let answer = called(&world, "fetch", &with(json!({"path": "/user"}))).await?;
    assert_eq!(answer["data"], json!({"login": "octocat", "echo": "[redacted]"}), "{answer}");
    let sent = world.github.take_requests().pop().map(|sent| sent.header("authorization").map(str::to_owned));
    assert_eq!(sent.flatten(), Some(format!("Bearer {}", world.github.token())));
    assert_eq!(world.audit_of(&answer).await?["resource_id"], json!(resource));

    let mut lines = Vec::new();
    let url = format!("{}/user", world.github.url());
    for (function, body) in [
        ("fail", json!({})),
        ("crash", json!({})),
        ("spin", json!({})),
        // A call for no resource has no upstream, so the plugin may send requests only to the origins of the manifest.
        ("fetch", json!({"params": {"path": "/user"}})),
        ("fetch", json!({"params": {"path": url}})),
        ("fetch", with(json!({"path": "https://elsewhere.example/"}))),
    ] {
        lines.push(format!(
            "{function}: {}",
            ended(&called(&world, function, &body).await?).replace(&world.github.url(), "UPSTREAM")
        ));
    }
    assert!(world.github.take_requests().is_empty());
    assert_snapshot!(lines.join("\n"), @r#"
    fail: error plugin an error on purpose
    crash: error trap the plugin crashed
    spin: error fuel the plugin used up its computing budget
    fetch: error plugin this resource has no api_base, so the URL must be absolute
    fetch: error plugin this resource may not connect to the origin `UPSTREAM`
    fetch: error plugin this resource may not connect to the origin `https://elsewhere.example`
    "#);
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn what_is_no_function_or_no_root_key_gets_nowhere() -> Result<()> {
    let world = World::with(&[FUNCTIONS, "test-echo"]).await?;
    world.grant_all(FUNCTIONS).await?;
    let foreign = world.api.resource("test-echo", "echo", &world.github.url()).await?;
    let path = format!("/api/platform/{FUNCTIONS}/echo");
    let mut answers = Answers::default();
    for kind in ["admin", "operator"] {
        let api = world.api.with_key(&world.api.new_key(kind, None).await?);
        answers.add(kind, api.post(&path, &json!({})).await?);
    }
    let bot = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    answers.add("bot", bot.post(&path, &json!({})).await?);
    for (what, path) in [
        ("unknown", "/api/platform/test-functions/nothing"),
        ("a tool", "/api/platform/test-functions/test_functions_get"),
        ("no functions", "/api/platform/test-echo/echo"),
        ("built in", "/api/platform/bot/bot_call_tool"),
        ("no type", "/api/platform/absent/echo"),
    ] {
        answers.add(what, world.api.post(path, &json!({})).await?);
    }
    answers.add("foreign resource", world.api.post(&path, &json!({"resource_id": foreign})).await?);
    answers.add("unknown field", world.api.post(&path, &json!({"parms": {}})).await?);
    assert_snapshot!(answers, @r#"
    admin: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"a root key is required","request_id":"[id 1]"}
    operator: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"a root key is required","request_id":"[id 2]"}
    bot: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"a root key is required","request_id":"[id 3]"}
    unknown: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"the plugin of type `test-functions` has no function `nothing`; available functions: echo, fetch, fail, spin, crash","request_id":"[id 4]"}
    a tool: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"the plugin of type `test-functions` has no function `test_functions_get`; available functions: echo, fetch, fail, spin, crash","request_id":"[id 5]"}
    no functions: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"the plugin of type `test-echo` has no functions","request_id":"[id 6]"}
    built in: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"the plugin of type `bot` has no function `bot_call_tool`; available functions: execute_task, query, status","request_id":"[id 7]"}
    no type: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such resource type","request_id":"[id 8]"}
    foreign resource: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/resource_id: no such resource of this type in this workspace","request_id":"[id 9]","errors":[{"path":"/resource_id","message":"no such resource of this type in this workspace"}]}
    unknown field: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/parms: unknown field `parms`, expected `params` or `resource_id`","request_id":"[id 10]","errors":[{"path":"/parms","message":"unknown field `parms`, expected `params` or `resource_id`"}]}
    "#);
    // A bot cannot call a function as a tool either.
    for name in ["platform.test-functions.echo", "echo"] {
        assert_eq!(world.call(name, &json!({})).await?["code"], "denied");
    }
    Ok(())
}

#[tokio::test]
async fn functions_are_called_on_the_command_line() -> Result<()> {
    let world = World::with(&[FUNCTIONS]).await?;
    let say = |arguments: &'static [&'static str]| told(&world.server, arguments);
    let mut output = Vec::new();
    output.push(say(&["platform", "call", FUNCTIONS, "echo", r#"{"a": 1}"#]).await?);
    output.push(say(&["platform", "call", FUNCTIONS, "fail"]).await?);
    output.push(say(&["platform", "call", FUNCTIONS, "nothing"]).await?);
    assert_snapshot!(output.join("\n"), @r#"
    status   success
    data     {"params":{"a":1},"credential":"None"}
    request  [id 1]
    [exit 0]
    status   error
    code     plugin
    message  an error on purpose
    request  [id 1]
    [exit 1]
    [stderr]
    error: Not found (404)
      the plugin of type `test-functions` has no function `nothing`; available functions: echo, fetch, fail, spin, crash
      request [id 1]
    hint: run `monstrum plugin info NAME` to see the functions of a plugin
    [exit 1]
    "#);
    Ok(())
}

#[tokio::test]
async fn a_credential_is_checked_as_its_type_declares() -> Result<()> {
    let world = World::with(&[FUNCTIONS, "test-echo"]).await?;
    let resource = resource(&world).await?;
    let path = format!("/api/resources/{resource}/credential/test");
    let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
    let mut answers = Answers::default();
    let (status, works) = admin.post(&path, &Value::Null).await?;
    let request_id = text(&works["request_id"]).to_owned();
    answers.add("works", (status, works));
    let row = world.api.audit(&request_id).await?;
    let fields =
        ["bot_id", "resource_id", "tool", "operation", "plugin", "status", "params"].map(|field| row[field].clone());
    let expected = [
        Value::Null,
        json!(resource),
        json!("test_functions_get"),
        json!("functions.get"),
        json!(FUNCTIONS),
        json!("success"),
        json!({"path": "/user"}),
    ];
    assert_eq!(fields, expected);

    world
        .github
        .answer("/user", Canned::json(401, &json!({"message": format!("Bad credentials: {}", world.github.token())})));
    answers.add("refused", admin.post(&path, &Value::Null).await?);
    let bare = world.api.resource(FUNCTIONS, "bare", &world.github.url()).await?;
    answers.add("none", admin.post(&format!("/api/resources/{bare}/credential/test"), &Value::Null).await?);
    let echo = world.api.resource("test-echo", "echo", &world.github.url()).await?;
    answers.add("not declared", admin.post(&format!("/api/resources/{echo}/credential/test"), &Value::Null).await?);
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    answers.add("operator", operator.post(&path, &Value::Null).await?);
    assert_snapshot!(answers, @r#"
    works: 200 {"request_id":"[id 1]","status":"success","duration_ms":"[ms]"}
    refused: 200 {"request_id":"[id 2]","status":"error","code":"plugin","message":"the upstream answered 401: {\"message\":\"Bad credentials: [redacted]\"}","duration_ms":"[ms]"}
    none: 200 {"request_id":"[id 3]","status":"error","code":"unauthenticated","message":"no credential is stored for this resource","duration_ms":"[ms]"}
    not declared: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"the type of this resource declares no credential check","request_id":"[id 4]"}
    operator: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"an admin key is required","request_id":"[id 5]"}
    "#);
    Ok(())
}

/// The check runs with the parameters of the manifest, so a manifest whose check cannot run is rejected.
#[tokio::test]
async fn a_check_that_cannot_be_made_is_refused_with_the_manifest() -> Result<()> {
    let server = Server::prepare(&[FUNCTIONS])?;
    let manifest = server.plugins_dir().join(FUNCTIONS).join("monstrum.yaml");
    let folder = manifest.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    let said = told(&server, &["plugin", "validate", &folder]).await?;
    let functions = said.lines().find(|line| line.trim_start().starts_with("functions ")).unwrap_or_default();
    assert_snapshot!(functions.trim(), @r#"functions    echo, fetch, fail, spin, crash"#);
    let text_of = std::fs::read_to_string(&manifest)?;
    for (check, why) in [
        ("{ tool: test_functions_put }", "this manifest has no tool `test_functions_put`"),
        (
            "{ tool: test_functions_get }",
            "does not match the tool's input_schema: at `/path`: required parameter is missing",
        ),
        (
            "{ tool: test_functions_get, params: { path: /user, more: 1 } }",
            "does not match the tool's input_schema: at `/more`: undeclared parameter",
        ),
        ("{ tool: test_functions_get, params: { path: 1 } }", "does not match the tool's input_schema: at `/path`: "),
    ] {
        std::fs::write(&manifest, text_of.replace("{ tool: test_functions_get, params: { path: /user } }", check))?;
        let said = told(&server, &["plugin", "validate", &folder]).await?;
        ensure!(said.contains(why), "{check}: {said}");
    }
    Ok(())
}
