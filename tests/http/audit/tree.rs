//! Tests of `GET /api/audit?tree=…`: a call with the calls below it.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::http::roles::faults;
use crate::http::{Answers, workspace};
use crate::world::{World, text};

const MISSING: &str = "019a0000-0000-7000-8000-000000000001";

/// Starts a world in which a call made two calls, each of which made one call. Returns the id of the outermost call.
async fn nested() -> Result<(World, String)> {
    let world = World::with(&["test-caller", "test-echo"]).await?;
    let caller = world.grant_all("test-caller").await?;
    world.grant_all("test-echo").await?;
    world.rebind(&caller, &json!({ "allow_calls": ["*"] })).await?;
    let inner = json!({ "tool": "test_echo_again", "params": { "repo": "acme/site" } });
    let outer = json!({ "tool": "test_caller_call", "params": inner, "times": 2 });
    let answer = world.call("test_caller_call", &outer).await?;
    ensure!(answer["status"] == "success", "{answer}");
    world.call("test_echo_again", &json!({ "repo": "acme/alone" })).await?;
    let root = text(&answer["request_id"]).to_owned();
    Ok((world, root))
}

/// Formats each call as its depth and its tool, in the order of the answer.
fn told(items: &Value) -> String {
    let mut depths: Vec<(String, usize)> = Vec::new();
    for item in items.as_array().into_iter().flatten() {
        let parent = depths.iter().find(|(id, _)| *id == text(&item["parent_request_id"]));
        let depth = parent.map_or(0, |(_, depth)| depth + 1);
        depths.push((text(&item["request_id"]).to_owned(), depth));
    }
    let lines = items.as_array().into_iter().flatten().zip(&depths);
    lines.map(|(item, (_, depth))| format!("{depth} {}", text(&item["tool"]))).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_call_is_listed_with_all_calls_below_it() -> Result<()> {
    let (world, root) = nested().await?;
    let (status, tree) = world.api.get(&format!("/api/audit?tree={root}&limit=200")).await?;
    assert_eq!((status, &tree["next_cursor"], tree.get("omitted")), (200, &Value::Null, None));
    assert_snapshot!(told(&tree["items"]), @"
    0 test_caller_call
    1 test_caller_call
    2 test_echo_again
    1 test_caller_call
    2 test_echo_again
    ");
    assert_eq!(tree["items"][0]["request_id"], json!(root));
    // An item is the same as in the list.
    let (_, list) = world.api.get("/api/audit").await?;
    let listed = list["items"].as_array().into_iter().flatten().find(|item| item["request_id"] == json!(root));
    assert_eq!(listed, Some(&tree["items"][0]));
    // A call within the tree has its own, smaller tree.
    let child = text(&tree["items"][1]["request_id"]);
    let (_, part) = world.api.get(&format!("/api/audit?tree={child}")).await?;
    assert_snapshot!(told(&part["items"]), @"
    0 test_caller_call
    1 test_echo_again
    ");
    Ok(())
}

#[tokio::test]
async fn a_tree_is_limited_and_says_what_it_omits() -> Result<()> {
    let (world, root) = nested().await?;
    let (_, tree) = world.api.get(&format!("/api/audit?tree={root}&limit=3")).await?;
    assert_eq!((tree["items"].as_array().map(Vec::len), &tree["omitted"]), (Some(3), &json!(2)));
    assert_eq!((&tree["items"][0]["request_id"], &tree["next_cursor"]), (&json!(root), &Value::Null));
    // A root call may have 100 child calls, which fit into one tree.
    let wide = json!({
        "tool": "test_echo_open", "params": { "repo": "acme/site" }, "numbered": true, "times": 100,
    });
    let answer = world.call("test_caller_call", &wide).await?;
    let path = format!("/api/audit?tree={}&limit=1000", text(&answer["request_id"]));
    let (_, tree) = world.api.get(&path).await?;
    assert_eq!((tree["items"].as_array().map(Vec::len), tree.get("omitted")), (Some(101), None), "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_tree_needs_a_call_of_the_workspace() -> Result<()> {
    let (world, root) = nested().await?;
    let foreign = workspace(&world.api, "foreign").await?;
    let (_, changes) = world.api.get("/api/audit/changes?limit=1").await?;
    let change = text(&changes["items"][0]["request_id"]).to_owned();
    let of_bot = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    let mut answers = Answers::default();
    answers.add("another workspace", faults(foreign.get(&format!("/api/audit?tree={root}")).await?));
    answers.add("a bot", faults(of_bot.get(&format!("/api/audit?tree={root}")).await?));
    answers.add("a change", faults(world.api.get(&format!("/api/audit?tree={change}")).await?));
    for query in [
        format!("tree={MISSING}"),
        "tree=x".to_owned(),
        format!("tree={MISSING}&status=error"),
        format!("tree={MISSING}&rule=scope.repos"),
        format!("tree={MISSING}&cursor={MISSING}"),
    ] {
        answers.add(&query, faults(world.api.get(&format!("/api/audit?{query}")).await?));
    }
    answers.add("export", (world.api.get(&format!("/api/audit/export?tree={root}")).await?.0, Value::Null));
    assert_snapshot!(answers, @r#"
    another workspace: 404 "no such call"
    a bot: 403 "this operation requires an operator, admin or root key"
    a change: 404 "no such call"
    tree=019a0000-0000-7000-8000-000000000001: 404 "no such call"
    tree=x: 422 [{"path":"tree","message":"expected the request id of a call"}]
    tree=019a0000-0000-7000-8000-000000000001&status=error: 422 [{"path":"tree","message":"cannot be combined with other filters or a cursor"}]
    tree=019a0000-0000-7000-8000-000000000001&rule=scope.repos: 422 [{"path":"tree","message":"cannot be combined with other filters or a cursor"}]
    tree=019a0000-0000-7000-8000-000000000001&cursor=019a0000-0000-7000-8000-000000000001: 422 [{"path":"tree","message":"cannot be combined with other filters or a cursor"}]
    export: 422
    "#);
    Ok(())
}
