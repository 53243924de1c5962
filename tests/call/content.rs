//! Results of content blocks: the host checks their form before the caller gets them.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::world::{World, text};

#[tokio::test]
async fn content_results_are_checked() -> Result<()> {
    let world = World::with(&["test-content"]).await?;
    world.grant_all("test-content").await?;
    let of = |content: Value, structured: Value| json!({ "content": content, "structured": structured });
    let image = json!({"type": "image", "mimeType": "image/png", "data": "iVBORw=="});
    let results = [
        of(json!([{"type": "text", "text": "one"}, image]), json!({"number": 1})),
        of(json!([]), json!({"number": "one"})),
        json!({ "content": [] }),
        of(json!([{"type": "image", "mimeType": "image/png", "data": "<svg>"}]), json!({"number": 1})),
        of(json!([{"type": "script", "text": "one"}]), json!({"number": 1})),
        json!({ "number": 1 }),
        json!("one"),
    ];
    let mut lines = Vec::new();
    for result in results {
        let answer = world.call("test_content_run", &json!({ "result": result })).await?;
        // The call has no effects outside the host, so it has one row.
        let ended = &world.audit_of(&answer).await?["events"][0];
        lines.push(match answer["status"].as_str() {
            Some("success") => {
                assert_eq!(answer["data"], result, "the data are unchanged");
                format!("success {}", ended["flags"])
            }
            _ => format!("{} {}: {}", answer["status"], answer["code"], text(&answer["message"])),
        });
        assert_eq!(ended["status"], answer["status"]);
    }
    assert_snapshot!(lines.join("\n"), @r#"
    success null
    success "output_mismatch"
    success "output_mismatch"
    "error" "bad_result": the plugin returned invalid content: content[0].data: expected base64
    "error" "bad_result": the plugin returned invalid content: content[0].type: expected `text`, `image`, `audio`, `resource` or `resource_link`
    "error" "bad_result": the plugin returned invalid content: content: expected a list of content blocks
    "error" "bad_result": the plugin returned invalid content: expected an object with `content`
    "#);
    Ok(())
}

#[tokio::test]
async fn lists_of_tools_show_effect_and_result() -> Result<()> {
    let world = World::with(&["test-content"]).await?;
    world.grant_all("test-content").await?;
    let (_, listed) = world.api.get(&format!("/api/bots/{}/tools", world.bot)).await?;
    let shown = |tool: &Value| [&tool["name"], &tool["effect"], &tool["result"]].map(ToString::to_string).join(" ");
    let tools = |items: &Value| {
        let mut lines: Vec<String> = items.as_array().into_iter().flatten().map(shown).collect();
        lines.sort();
        lines.join("\n")
    };
    let (_, contract) = world.api.get("/api/resource-types/test-content").await?;
    assert_eq!(tools(&listed["items"]), tools(&contract["tools"]));
    assert_snapshot!(tools(&listed["items"]), @r#"
    "test_content_run" "read" "content"
    "#);
    Ok(())
}
