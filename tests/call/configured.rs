//! Tools that are part of a resource's configuration. The tools are checked when the configuration is saved, and
//! governed like the tools of a manifest.

use std::fs;

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use super::plugins::edit;
use crate::http::Answers;
use crate::world::{World, text};

/// Starts a world with a version of `test-echo` in which the configuration of a resource can define tools.
async fn world() -> Result<World> {
    let server = Server::prepare(&["test-echo"])?;
    let folder = server.plugins_dir().join("test-echo");
    edit(&folder, |text| text.replace("  auth_flow: manual\n", "  auth_flow: manual\n  tool_discovery: configured\n"))?;
    ensure!(fs::read_to_string(folder.join("monstrum.yaml"))?.contains("configured"));
    World::on(server).await
}

fn tool(name: &str, operation: &str) -> Value {
    let input = json!({"type": "object", "required": ["repo"], "properties": {"repo": {"type": "string"}, "n": {"type": "integer", "default": 3}}});
    json!({"name": name, "description": "Reads one.", "operation": operation, "input_schema": input, "x-path": "/one"})
}

async fn resource(world: &World, name: &str, tools: &Value) -> Result<(u16, Value)> {
    let new = json!({"resource_type": "test-echo", "name": name, "config": {"tools": tools}});
    world.api.post("/api/resources", &new).await
}

/// Binds the resource to the bot with a role that allows these operations.
async fn bind(world: &World, resource: &Value, operations: &[&str], scopes: &Value) -> Result<()> {
    let role = world.api.role(&format!("role of {}", resource["name"]), operations).await?;
    world.api.bind(&world.bot, text(&resource["id"]), &role, scopes).await.map(drop)
}

#[tokio::test]
async fn they_are_listed_called_and_governed_by_the_name_of_their_resource() -> Result<()> {
    let world = world().await?;
    let (status, shop) =
        resource(&world, "shop", &json!([tool("read", "echo.read"), tool("drop", "echo.drop")])).await?;
    ensure!(status == 201, "{shop}");
    let (status, office) = resource(&world, "office", &json!([tool("read", "echo.read")])).await?;
    ensure!(status == 201, "{office}");
    bind(&world, &shop, &["echo.read"], &json!({"repos": ["acme/*"]})).await?;
    bind(&world, &office, &["echo.*"], &json!({})).await?;

    let own: Vec<String> = world.tools().await?.into_iter().filter(|name| name.contains("__")).collect();
    assert_eq!(own, ["office__read", "shop__read"]);

    let answer = world.call("shop__read", &json!({"repo": "acme/site"})).await?;
    assert_eq!(answer["status"], "success", "{answer}");
    let seen = &answer["data"];
    assert_eq!((&seen["tool_name"], &seen["operation"]), (&json!("read"), &json!("echo.read")));
    assert_eq!(seen["params"], json!({"repo": "acme/site", "n": 3}));
    assert_eq!(seen["resource_id"], shop["id"]);
    assert_eq!(seen["resource_config"]["tools"][0]["x-path"], "/one");
    let record = world.audit_of(&answer).await?;
    assert_eq!((&record["tool"], &record["operation"]), (&json!("shop__read"), &json!("echo.read")));

    let mut told = Vec::new();
    for (tool, params) in [
        ("shop__read", json!({"repo": "evil/site"})),
        ("office__read", json!({"repo": "evil/site"})),
        ("shop__read", json!({"repos": "acme/site"})),
        ("shop__drop", json!({"repo": "acme/site"})),
        ("read", json!({"repo": "acme/site"})),
        ("shop__gone", json!({})),
    ] {
        let answer = world.call(tool, &params).await?;
        told.push(format!("{tool}: {} {}", text(&answer["status"]), text(&answer["message"])));
    }
    assert_snapshot!(told.join("\n"), @r#"
    shop__read: scope_violation Scope violation: Repository evil/site is not authorized
    office__read: success 
    shop__read: error Invalid parameters: /repos: undeclared parameter; /repo: required parameter is missing
    shop__drop: permission_denied Permission denied: tool 'shop__drop' is not available to this bot
    read: permission_denied Permission denied: tool 'read' is not available to this bot
    shop__gone: permission_denied Permission denied: tool 'shop__gone' is not available to this bot
    "#);

    // Tools that are removed from the configuration disappear immediately.
    let path = format!("/api/resources/{}", text(&shop["id"]));
    let (status, body) = world.api.patch(&path, &json!({"config": {}})).await?;
    ensure!(status == 200, "{body}");
    assert_eq!(world.call("shop__read", &json!({"repo": "acme/site"})).await?["status"], "permission_denied");
    Ok(())
}

#[tokio::test]
async fn a_configuration_with_faulty_tools_is_refused() -> Result<()> {
    let world = world().await?;
    let mut answers = Answers::default();
    let mut broken = tool("read", "echo read");
    broken["input_schema"] = json!({"type": "array"});
    answers.add("faults", resource(&world, "shop", &json!([broken, tool("read", "echo.read")])).await?);
    answers.add("a typo", resource(&world, "shop", &json!([{"name": "read", "descripton": "d"}])).await?);
    answers.add("no list", resource(&world, "shop", &json!("read")).await?);
    answers.add("the name", resource(&world, "My shop", &json!([tool("read", "echo.read")])).await?);

    let (status, shop) = resource(&world, "shop", &json!([tool("read", "echo.read")])).await?;
    ensure!(status == 201, "{shop}");
    let path = format!("/api/resources/{}", text(&shop["id"]));
    answers.add("another name", world.api.patch(&path, &json!({"name": "My shop"})).await?);
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let change = json!({"config": {"tools": [tool("drop", "echo.read")]}});
    answers.add("an operator", operator.patch(&path, &change).await?);
    assert_snapshot!(answers, @r#"
    faults: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"the input has 3 errors","request_id":"[id 1]","errors":[{"path":"/config/tools/0/operation","message":"expected a name such as `issue.read`: 1 to 128 letters, digits, `.`, `_`, `-` or `:`"},{"path":"/config/tools/0/input_schema","message":"at `/type`: parameters are an object, so the type must be `object`"},{"path":"/config/tools/1/name","message":"tools[0] already has the name `read`"}]}
    a typo: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/config/tools/0/descripton: unknown field `descripton`, expected one of `name`, `description`, `operation`, `input_schema`, `output_schema`, `cost`, `effect`, `result`","request_id":"[id 2]","errors":[{"path":"/config/tools/0/descripton","message":"unknown field `descripton`, expected one of `name`, `description`, `operation`, `input_schema`, `output_schema`, `cost`, `effect`, `result`"}]}
    no list: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/config/tools: expected a list of tools","request_id":"[id 3]","errors":[{"path":"/config/tools","message":"expected a list of tools"}]}
    the name: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/name: the name of a resource with tools must start with a letter, contain only a-z, 0-9 and `_`, not end with `_` and not contain `__`, because the name becomes part of the tool names","request_id":"[id 4]","errors":[{"path":"/name","message":"the name of a resource with tools must start with a letter, contain only a-z, 0-9 and `_`, not end with `_` and not contain `__`, because the name becomes part of the tool names"}]}
    another name: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/name: the name of a resource with tools must start with a letter, contain only a-z, 0-9 and `_`, not end with `_` and not contain `__`, because the name becomes part of the tool names","request_id":"[id 5]","errors":[{"path":"/name","message":"the name of a resource with tools must start with a letter, contain only a-z, 0-9 and `_`, not end with `_` and not contain `__`, because the name becomes part of the tool names"}]}
    an operator: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"changing the configuration, network or labels of a resource requires an admin key","request_id":"[id 6]"}
    "#);
    Ok(())
}

/// Roles match the names of tools, which start with the name of the resource. An operator who could swap the names of
/// two resources would therefore widen what both bindings permit.
#[tokio::test]
async fn an_operator_does_not_rename_a_resource_whose_name_is_part_of_tool_names() -> Result<()> {
    let world = world().await?;
    let tools = json!([tool("list", "echo.read"), tool("purge", "echo.read")]);
    let new_role = json!({"name": "crm", "allowed_tools": ["crm__*", "billing__list"]});
    let (status, role) = world.api.post("/api/roles", &new_role).await?;
    ensure!(status == 201, "{role}");
    let mut paths = Vec::new();
    for name in ["crm", "billing"] {
        let (status, made) = resource(&world, name, &tools).await?;
        ensure!(status == 201, "{made}");
        world.api.bind(&world.bot, text(&made["id"]), text(&role["id"]), &json!({})).await?;
        paths.push(format!("/api/resources/{}", text(&made["id"])));
    }
    let params = json!({"repo": "acme/site"});
    assert_eq!(world.call("crm__purge", &params).await?["status"], "success");
    assert_eq!(world.call("billing__purge", &params).await?["status"], "permission_denied");

    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let mut answers = Answers::default();
    answers.add("an operator", operator.patch(&paths[0], &json!({"name": "old"})).await?);
    answers.add("an operator", operator.patch(&paths[1], &json!({"name": "crm"})).await?);
    // A client may send back the unchanged name that it has read.
    assert_eq!(operator.patch(&paths[0], &json!({"name": "crm"})).await?.0, 200);
    assert_eq!(world.call("billing__purge", &params).await?["status"], "permission_denied");

    // An admin may rename the resource, and the audit records the change with both names.
    let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
    assert_eq!(admin.patch(&paths[0], &json!({"name": "old"})).await?.0, 200);
    let (_, changes) = world.api.get("/api/audit/changes?limit=1").await?;
    let change = &changes["items"][0];
    assert_eq!((&change["change"], &change["key_kind"]), (&json!("resource.update"), &json!("admin")));
    assert_eq!((&change["before"]["name"], &change["after"]["name"]), (&json!("crm"), &json!("old")));

    // Without the plugin, the host does not know whether the name is part of tool names.
    fs::remove_dir_all(world.server.plugins_dir().join("test-echo"))?;
    world.api.post("/api/plugins/test-echo/reload", &Value::Null).await?;
    answers.add("no plugin", operator.patch(&paths[0], &json!({"name": "crm"})).await?);
    assert_snapshot!(answers, @r#"
    an operator: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"the name of this resource is part of the names of its tools: changing the name requires an admin key","request_id":"[id 1]"}
    an operator: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"the name of this resource is part of the names of its tools: changing the name requires an admin key","request_id":"[id 2]"}
    no plugin: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"no loaded plugin has this resource type, so the name may be part of the names of its tools: changing the name requires an admin key","request_id":"[id 3]"}
    "#);
    Ok(())
}

/// An operator may rename a resource that configures no tools, because no rule matches the name of such a resource.
#[tokio::test]
async fn an_operator_renames_all_other_resources() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let (status, renamed) =
        operator.patch(&format!("/api/resources/{}", bound.resource), &json!({"name": "new"})).await?;
    assert_eq!((status, &renamed["name"]), (200, &json!("new")), "{renamed}");
    Ok(())
}
