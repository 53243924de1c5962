use std::time::Duration;

use super::*;
use crate::client::{DeclaredList, ListLimits};

const LIMITS: ListLimits = ListLimits { tools_max: 512, bytes_max: 2 << 20 };

async fn list(pages: Vec<Value>) -> (Result<DeclaredList, ClientError>, Script) {
    let wire = Script::new([discovered()].into_iter().chain(pages.iter().map(result)).collect());
    (Connection::default().list_tools(&wire, LIMITS).await, wire)
}

fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}})
}

#[tokio::test]
async fn pages_are_joined_and_only_known_members_are_kept() {
    let full = json!({
        "name": "full", "title": "Full", "description": "d", "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}, "icons": [], "_meta": {"a": 1},
    });
    let (listed, wire) = list(vec![
        json!({"tools": [full], "nextCursor": "2", "ttlMs": 9000}),
        json!({"tools": [tool("b")], "nextCursor": "3", "ttlMs": 5000}),
        json!({"tools": [], "nextCursor": ""}),
    ])
    .await;
    let listed = listed.unwrap();
    let names: Vec<&str> = listed.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((names, listed.ttl), (vec!["full", "b"], Some(Duration::from_secs(5))));
    let members: Vec<&String> = listed.tools[0].definition.keys().collect();
    assert_eq!(members, ["name", "title", "description", "inputSchema", "outputSchema", "annotations"]);
    assert_eq!(listed.server.name.as_deref(), Some("notes"));
    let cursors: Vec<Value> = wire.sent()[1..].iter().map(|(_, params)| params["cursor"].clone()).collect();
    assert_eq!(cursors, [Value::Null, json!("2"), json!("3")]);
}

#[tokio::test]
async fn lists_that_exceed_a_limit_are_refused() {
    let many = |count: usize, prefix: &str| -> Vec<Value> {
        (0..count).map(|number| tool(&format!("{prefix}{number}"))).collect()
    };
    assert_eq!(list(vec![json!({ "tools": many(512, "a") })]).await.0.unwrap().tools.len(), 512);
    let single = |count: usize| -> Vec<Value> {
        let page = |number: usize| json!({"tools": [tool(&number.to_string())], "nextCursor": number.to_string()});
        (0..count).map(page).chain([json!({"tools": []})]).collect()
    };
    assert_eq!(list(single(512)).await.0.unwrap().tools.len(), 512, "a page may have one tool");
    let half = || tool(&"x".repeat(1 << 20));
    let endless: Vec<Value> = (0..100).map(|page| json!({"tools": [], "nextCursor": page.to_string()})).collect();
    for (pages, expected) in [
        (vec![json!({ "tools": many(513, "a") })], "the MCP server has more than 512 tools"),
        (
            vec![json!({"tools": many(300, "a"), "nextCursor": "2"}), json!({ "tools": many(300, "b") })],
            "the MCP server has more than 512 tools",
        ),
        (vec![json!({ "tools": [half(), half()] })], "the tool list of the MCP server is larger than 2048 KiB"),
        (
            vec![json!({"tools": [half()], "nextCursor": "2"}), json!({ "tools": [half()] })],
            "the tool list of the MCP server is larger than 2048 KiB",
        ),
        (single(513), "the MCP server has more than 512 tools"),
        (endless, "the tool list of the MCP server has more than 64 pages without tools"),
    ] {
        assert_eq!(list(pages).await.0.unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn malformed_lists_are_refused() {
    let circle = |cursor: &str| json!({"tools": [], "nextCursor": cursor});
    for (pages, expected) in [
        (vec![circle("a"), circle("b"), circle("a")], "the pages of the tool list repeat"),
        (vec![json!({})], "a page of the tool list has no list `tools`"),
        (vec![json!({"tools": [5]})], "tool 0 of the list is not an object"),
        (vec![json!({"tools": [tool("a"), {"title": "b"}]})], "tool 1 of the list has no name"),
        (vec![json!({"tools": [tool("a"), tool("a")]})], "the tool `a` is declared twice"),
        (vec![json!({"tools": [], "nextCursor": 5})], "the cursor of the next page is not a short text"),
        (vec![json!({"tools": [], "nextCursor": "x".repeat(5000)})], "the cursor of the next page is not a short text"),
    ] {
        let error = list(pages).await.0.unwrap_err().to_string();
        assert_eq!(error, format!("the MCP server sent an invalid answer: {expected}"));
    }
}
