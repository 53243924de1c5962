//! Names, labels, scopes and limits of resources whose tools come from outside.

use anyhow::Result;
use insta::assert_snapshot;
use monstrum_core::pins::Definitions;
use serde_json::{Value, json};

use super::{Outside, tool};
use crate::http::roles::faults;
use crate::http::{Answers, made};
use crate::world::text;

fn server(name: &str, extra: &Value) -> Value {
    let mut config = json!({ "url": "https://mcp.example/mcp" });
    if let (Some(config), Some(extra)) = (config.as_object_mut(), extra.as_object()) {
        config.extend(extra.clone());
    }
    json!({ "resource_type": "mcp", "name": name, "config": config })
}

#[tokio::test]
async fn a_resource_with_tools_of_outside_has_a_name_for_tools_and_a_valid_configuration() -> Result<()> {
    let outside = Outside::start(Definitions::Review).await?;
    let mut answers = Answers::default();
    for name in ["Tracker", "a__b", "a_", "mcp", "agent", "web_x", &"n".repeat(41)] {
        let answer = outside.api.post("/api/resources", &server(name, &json!({}))).await?;
        answers.add(name, faults(answer));
    }
    for extra in [
        json!({ "url": "ftp://mcp.example" }),
        json!({ "definitions": "trusted" }),
        json!({ "timeout_s": 0 }),
        json!({ "timeout_s": 601 }),
        json!({ "refresh_s": 59 }),
        json!({ "concurrent": 65 }),
        json!({ "key_header": "a b" }),
        json!({ "dimensions": {} }),
        json!({ "dimensions": [{ "key": "repos" }] }),
        json!({ "dimensions": [{ "key": "repos", "param_paths": [] }] }),
        json!({ "dimensions": [{ "key": "repos", "param_paths": ["_x"] }] }),
        json!({ "dimensions": [{ "key": "r", "param_paths": ["x"] }, { "key": "r", "param_paths": ["y"] }] }),
    ] {
        answers.add(&extra.to_string(), faults(outside.api.post("/api/resources", &server("x", &extra)).await?));
    }
    assert_snapshot!(answers, @r#"
    Tracker: 422 [{"path":"/name","message":"the name of a resource of this type must start with a letter, contain only a-z, 0-9 and `_`, not end with `_` and not contain `__`, because the name becomes part of the tool names"}]
    a__b: 422 [{"path":"/name","message":"the name of a resource of this type must start with a letter, contain only a-z, 0-9 and `_`, not end with `_` and not contain `__`, because the name becomes part of the tool names"}]
    a_: 422 [{"path":"/name","message":"the name of a resource of this type must start with a letter, contain only a-z, 0-9 and `_`, not end with `_` and not contain `__`, because the name becomes part of the tool names"}]
    mcp: 422 [{"path":"/name","message":"tool names that start with `mcp_` are reserved for the platform; choose another name"}]
    agent: 422 [{"path":"/name","message":"tool names that start with `agent_` are reserved for the platform; choose another name"}]
    web_x: 422 [{"path":"/name","message":"tool names that start with `web_` are reserved for the platform; choose another name"}]
    nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn: 422 [{"path":"/name","message":"the name of a resource of this type must have at most 40 characters"}]
    {"url":"ftp://mcp.example"}: 422 [{"path":"/config/url","message":"expected an http or https URL"}]
    {"definitions":"trusted"}: 422 [{"path":"/config/definitions","message":"expected one of `review`, `first`"}]
    {"timeout_s":0}: 422 [{"path":"/config/timeout_s","message":"0 is less than the minimum of 1"}]
    {"timeout_s":601}: 422 [{"path":"/config/timeout_s","message":"601 is greater than the maximum of 600"}]
    {"refresh_s":59}: 422 [{"path":"/config/refresh_s","message":"59 is less than the minimum of 60"}]
    {"concurrent":65}: 422 [{"path":"/config/concurrent","message":"65 is greater than the maximum of 64"}]
    {"key_header":"a b"}: 422 [{"path":"/config/key_header","message":"\"a b\" does not match \"^[A-Za-z0-9_-]{1,64}$\""}]
    {"dimensions":{}}: 422 [{"path":"/config/dimensions","message":"the value is not of type \"array\""}]
    {"dimensions":[{"key":"repos"}]}: 422 [{"path":"/config/dimensions/0/param_paths","message":"required parameter is missing"}]
    {"dimensions":[{"key":"repos","param_paths":[]}]}: 422 [{"path":"/config/dimensions/0/param_paths","message":"must not be empty, because the dimension would not check anything"}]
    {"dimensions":[{"key":"repos","param_paths":["_x"]}]}: 422 [{"path":"/config/dimensions/0/param_paths/0","message":"parameters that start with `_` are reserved for the platform"}]
    {"dimensions":[{"key":"r","param_paths":["x"]},{"key":"r","param_paths":["y"]}]}: 422 [{"path":"/config/dimensions/1/key","message":"duplicate entry `r`"}]
    "#);
    outside.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn results_of_outside_are_untrusted_until_an_admin_says_otherwise() -> Result<()> {
    let outside = Outside::start(Definitions::Review).await?;
    let path = format!("/api/resources/{}", outside.resource);
    assert_eq!(outside.api.get(&path).await?.1["labels"], json!(["untrusted"]));
    let operator = outside.api.with_key(&outside.api.new_key("operator", None).await?);
    assert_eq!(operator.patch(&path, &json!({ "labels": [] })).await?.0, 403);
    assert_eq!(operator.patch(&path, &json!({ "name": "other" })).await?.0, 403, "the name is part of tool names");
    assert_eq!(outside.api.patch(&path, &json!({ "labels": [] })).await?.1["labels"], json!([]));
    let agent = made(&outside.api, "/api/resources", &json!({ "resource_type": "agent", "name": "lab" })).await?;
    let (_, agent) = outside.api.get(&format!("/api/resources/{agent}")).await?;
    assert_eq!((&agent["labels"], text(&agent["discovery"]["status"])), (&json!(["untrusted"]), "never"));
    outside.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_renamed_resource_renames_its_tools_if_the_names_fit() -> Result<()> {
    let outside = Outside::start(Definitions::First).await?;
    outside.declare(&[tool(&"t".repeat(50), "1"), tool("a", "1")]).await?;
    let path = format!("/api/resources/{}", outside.resource);
    let long = faults(outside.api.patch(&path, &json!({ "name": "a_rather_long_name" })).await?);
    assert_eq!((long.0, text(&long.1[0]["path"])), (422, "/name"), "{}", long.1);
    assert_eq!(outside.api.patch(&path, &json!({ "name": "board" })).await?.0, 200);
    assert!(outside.seen().await?.contains(&"board__a mcp.write".to_owned()));
    assert!(!outside.may_call("tracker__a").await?);
    outside.host.stop().await;
    Ok(())
}

/// The dimensions in the configuration restrict the arguments of tools like those of a manifest.
#[tokio::test]
async fn scope_dimensions_restrict_the_arguments_of_tools() -> Result<()> {
    let outside = Outside::start(Definitions::First).await?;
    outside.declare(&[tool("a", "1")]).await?;
    let path = format!("/api/resources/{}", outside.resource);
    let dimensions = json!([{ "key": "repos", "param_paths": ["repo"] }]);
    let config = json!({ "url": "https://mcp.example/mcp", "dimensions": dimensions });
    assert_eq!(outside.api.patch(&path, &json!({ "config": config })).await?.0, 200);
    let (_, bindings) = outside.api.get(&format!("/api/bots/{}/resources", outside.bot)).await?;
    let binding = format!("/api/bots/{}/resources/{}", outside.bot, text(&bindings["items"][0]["id"]));
    let (status, body) = outside.api.patch(&binding, &json!({ "scope_constraints": { "orgs": ["acme"] } })).await?;
    assert_eq!(status, 422, "{body}");
    let (status, body) = outside.api.patch(&binding, &json!({ "scope_constraints": { "repos": ["acme/*"] } })).await?;
    assert_eq!(status, 200, "{body}");
    let foreign = outside.api.check(&outside.bot, "tracker__a", &json!({ "repo": "other/x" })).await?;
    let own = outside.api.check(&outside.bot, "tracker__a", &json!({ "repo": "acme/x" })).await?;
    assert_eq!((&foreign["decision"], &own["decision"]), (&json!("deny"), &json!("allow")), "{foreign} {own}");
    let config = json!({ "url": "https://mcp.example/mcp" });
    assert_eq!(outside.api.patch(&path, &json!({ "config": config })).await?.0, 200);
    let without = outside.api.check(&outside.bot, "tracker__a", &json!({ "repo": "acme/x" })).await?;
    assert_eq!(without["decision"], "deny", "a scope without its dimension denies every tool");
    outside.host.stop().await;
    Ok(())
}
