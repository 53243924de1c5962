//! Tests of `GET /api/audit/export?format=ocsf`. The schemas in `tests/ocsf` state what OCSF requires of each class.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use jsonschema::Validator;
use reqwest::Method;
use serde_json::{Value, json};
use support::Api;

use crate::http::{send, workspace};
use crate::world::{World, text};

const API_ACTIVITY: &str = include_str!("../../ocsf/api_activity.json");
const ENTITY_MANAGEMENT: &str = include_str!("../../ocsf/entity_management.json");

fn schema(text: &str) -> Result<Validator> {
    Ok(jsonschema::validator_for(&serde_json::from_str(text)?)?)
}

/// Checks each event against the schema of its class.
fn check(events: &[Value]) -> Result<()> {
    let classes = [(6003, schema(API_ACTIVITY)?), (3004, schema(ENTITY_MANAGEMENT)?)];
    for event in events {
        let class = classes.iter().find(|(uid, _)| event["class_uid"] == *uid);
        let (_, schema) = class.with_context(|| format!("an unknown class: {event}"))?;
        let errors: Vec<String> =
            schema.iter_errors(event).map(|error| format!("{}: {error}", error.instance_path())).collect();
        ensure!(errors.is_empty(), "{errors:?}: {event}");
    }
    Ok(())
}

/// Exports the events that match `query`, and checks them.
async fn exported(api: &Api, query: &str) -> Result<Vec<Value>> {
    let request = api.request(Method::GET, &format!("/api/audit/export?format=ocsf{query}"));
    let (status, headers, body) = send(request).await?;
    ensure!(status == 200 && headers["content-type"] == "application/jsonl", "{status} {headers:?}");
    // One line is JSON itself, and the helper has parsed it.
    let events = match body {
        Value::String(lines) => lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?,
        event => vec![event],
    };
    check(&events)?;
    Ok(events)
}

/// Starts a world with a call that was allowed, one that was denied, one that failed, and one that made a child call.
async fn told() -> Result<World> {
    let world = World::with(&["test-caller", "test-echo"]).await?;
    let caller = world.grant_all("test-caller").await?;
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    world.rebind(&caller, &json!({ "allow_calls": ["*"] })).await?;
    let inner = json!({ "tool": "test_echo_run", "params": { "repo": "acme/inner" } });
    for (tool, params) in [
        ("test_echo_run", json!({ "repo": "acme/site" })),
        ("test_echo_run", json!({ "repo": "other/site" })),
        ("test_echo_run", json!({ "colour": "red" })),
        ("test_echo_write", json!({})),
        ("test_caller_call", inner),
    ] {
        world.call(tool, &params).await?;
    }
    Ok(world)
}

/// Returns the members of an event that differ between calls.
fn brief(event: &Value) -> Value {
    json!([
        event["message"],
        event["status_id"],
        event["status_code"],
        event["severity"],
        event["action"],
        event["policy"]["name"],
        event["activity_name"],
    ])
}

#[tokio::test]
async fn calls_are_events_of_api_activity() -> Result<()> {
    let world = told().await?;
    // An operator reads calls but not changes.
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let events = exported(&operator, "").await?;
    let found: Vec<Value> = events.iter().map(brief).collect();
    let expected = [
        json!(["test_echo_run: success", 1, "success", "Informational", "Allowed", null, "Tool Call"]),
        json!(["test_caller_call: success", 1, "success", "Informational", "Allowed", null, "Tool Call"]),
        json!([
            "test_echo_write: permission_denied",
            2,
            "denied",
            "Medium",
            "Denied",
            "role.allowed_operations",
            "Tool Call"
        ]),
        json!(["test_echo_run: error", 2, "invalid_params", "Low", "Denied", "input", "Tool Call"]),
        json!(["test_echo_run: scope_violation", 2, "scope", "Medium", "Denied", "scope.repos", "Tool Call"]),
        json!(["test_echo_run: success", 1, "success", "Informational", "Allowed", null, "Tool Call"]),
    ];
    assert_eq!(found, expected);
    for event in &events {
        let request = text(&event["metadata"]["uid"]);
        let (_, shown) = world.api.get(&format!("/api/audit/{request}")).await?;
        let row = shown["events"].as_array().and_then(|rows| rows.last()).context("a call has no rows")?;
        for name in ["sequence", "writer", "hash", "previous_hash"] {
            assert_eq!(event["unmapped"][name], row[name], "{name} of {event}");
        }
        assert_eq!(event["api"]["request"], json!({ "uid": request, "data": shown["params"] }));
        assert_eq!(event["api"]["service"]["name"], shown["plugin"]);
        assert_eq!(event["resources"][0]["uid"], shown["resource_id"]);
        assert_eq!(event["ai_agent"], json!({ "uid": world.bot, "instance_uid": shown["task_id"] }));
        assert_eq!(event["actor"], json!({ "user": { "uid": world.bot, "type_id": 4, "type": "Service" } }));
    }
    // The child call names the call that made it; the others name none.
    let parents: Vec<Option<&Value>> = events.iter().map(|event| event["unmapped"].get("parent_request_id")).collect();
    assert_eq!(parents, [Some(&events[1]["metadata"]["uid"]), None, None, None, None, None]);
    assert_eq!(
        events[4]["api"]["response"],
        json!({ "error": "scope", "error_message": "Scope violation: Repository other/site is not authorized" })
    );
    assert_eq!(events[5]["api"].get("response"), None);
    Ok(())
}

#[tokio::test]
async fn changes_are_events_of_entity_management() -> Result<()> {
    let world = World::with(&[]).await?;
    let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
    let role = admin.role("reader", &["issue.read"]).await?;
    let path = format!("/api/roles/{role}");
    admin.patch(&path, &json!({ "allowed_operations": ["*"] })).await?;
    admin.role("writer", &["issue.write"]).await?;
    ensure!(admin.patch(&path, &json!({ "name": "writer" })).await?.0 == 409, "the name is free");
    admin.delete(&path).await?;
    let events = exported(&admin, "").await?;
    let of_role = |event: &&Value| event["entity"]["uid"] == json!(role) && event["entity"]["type"] == "role";
    let (_, list) = admin.get("/api/audit/changes?limit=1000").await?;
    let mut found = Vec::new();
    for event in events.iter().filter(of_role) {
        let request = &event["metadata"]["uid"];
        let change = list["items"].as_array().into_iter().flatten().find(|change| change["request_id"] == *request);
        let change = change.context("the change is not listed")?;
        assert_eq!(event["entity"].get("data").unwrap_or(&Value::Null), &change["before"]);
        assert_eq!(event["updated_entity"]["data"], change["after"]);
        let user =
            json!({ "uid": change["key_id"], "credential_uid": change["key_id"], "type_id": 2, "type": "Admin" });
        assert_eq!(event["actor"]["user"], user);
        assert_eq!(event["unmapped"]["hash"].as_str().map(str::len), Some(64));
        found.push(json!([event["metadata"]["event_code"], event["activity_id"], event["status"], event["type_uid"]]));
    }
    let expected = [
        json!(["role.delete", 4, "Success", 300_404]),
        json!(["role.update", 3, "Failure", 300_403]),
        json!(["role.update", 3, "Success", 300_403]),
        json!(["role.create", 1, "Success", 300_401]),
    ];
    assert_eq!(found, expected);
    Ok(())
}

#[tokio::test]
async fn events_are_filtered_like_the_list() -> Result<()> {
    let world = told().await?;
    let count = async |query: &str| anyhow::Ok(exported(&world.api, query).await?.len());
    for (query, expected) in [
        ("&status=permission_denied", 1),
        ("&tool=test_echo_run", 4),
        ("&rule=scope.repos", 1),
        // Changes match the filters too.
        ("&operation=bot.create", 1),
        ("&until=2020-01-01T00:00:00Z", 0),
        ("&since=2099-01-01T00:00:00Z", 0),
        ("&bot_id=019a0000-0000-7000-8000-000000000001", 0),
    ] {
        assert_eq!(count(query).await?, expected, "{query}");
    }
    let all = exported(&world.api, "").await?;
    let failed = exported(&world.api, "&status=error").await?;
    let expected: Vec<&Value> = all.iter().filter(|event| event["unmapped"]["status"] == "error").collect();
    assert_eq!(failed.iter().collect::<Vec<_>>(), expected);
    Ok(())
}

#[tokio::test]
async fn an_export_has_every_row_once_over_many_pages() -> Result<()> {
    let world = World::with(&["test-caller", "test-echo"]).await?;
    let caller = world.grant_all("test-caller").await?;
    world.grant_all("test-echo").await?;
    world.rebind(&caller, &json!({ "allow_calls": ["*"] })).await?;
    let wide = json!({
        "tool": "test_echo_open", "params": { "repo": "acme/site" }, "numbered": true, "times": 100,
    });
    // Each call makes 100 calls. A page of an export has 500 rows.
    for round in 0..6 {
        let answer = world.call("test_caller_call", &wide).await?;
        ensure!(answer["status"] == "success", "{answer}");
        // Changes lie between the pages of calls.
        world.api.role(&format!("role {round}"), &["issue.read"]).await?;
    }
    let events = exported(&world.api, "").await?;
    let ids = |class: u32| -> Vec<&str> {
        let of_class = events.iter().filter(|event| event["class_uid"] == class);
        of_class.map(|event| text(&event["metadata"]["uid"])).collect()
    };
    let (_, _, lines) = send(world.api.request(Method::GET, "/api/audit/export")).await?;
    let calls: Vec<Value> = text(&lines).lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(calls.len(), 606);
    assert_eq!(ids(6003), calls.iter().map(|call| text(&call["request_id"])).collect::<Vec<_>>());
    let (_, list) = world.api.get("/api/audit/changes?limit=1000").await?;
    let changes: Vec<&str> =
        list["items"].as_array().into_iter().flatten().map(|change| text(&change["request_id"])).collect();
    assert_eq!(ids(3004), changes);
    let all: Vec<&str> = events.iter().map(|event| text(&event["metadata"]["uid"])).collect();
    assert!(all.is_sorted_by(|one, other| one > other), "the events are not sorted, the newest first");
    Ok(())
}

#[tokio::test]
async fn an_export_is_of_one_workspace_and_needs_the_right() -> Result<()> {
    let world = told().await?;
    let foreign = workspace(&world.api, "foreign").await?;
    foreign.role("theirs", &["issue.read"]).await?;
    let (own, theirs) = (exported(&world.api, "").await?, exported(&foreign, "").await?);
    let tenants = |events: &[Value]| -> BTreeSet<String> {
        events.iter().map(|event| text(&event["metadata"]["tenant_uid"]).to_owned()).collect()
    };
    let (ours, of_foreign) = (tenants(&own), tenants(&theirs));
    assert_eq!((ours.len(), of_foreign.len()), (1, 1));
    assert!(ours.is_disjoint(&of_foreign));
    assert!(theirs.iter().all(|event| event["class_uid"] == 3004), "the calls of another workspace");
    assert!(exported(&foreign, &format!("&bot_id={}", world.bot)).await?.is_empty());
    let mut statuses = Vec::new();
    for kind in ["bot", "approver"] {
        let bot = (kind == "bot").then_some(world.bot.as_str());
        let api = world.api.with_key(&world.api.new_key(kind, bot).await?);
        statuses.push(api.get("/api/audit/export?format=ocsf").await?.0);
    }
    for query in ["format=xml", "format=ocsf&status=done", "format=ocsf&colour=red"] {
        statuses.push(world.api.get(&format!("/api/audit/export?{query}")).await?.0);
    }
    assert_eq!(statuses, [403, 403, 422, 422, 422]);
    Ok(())
}
