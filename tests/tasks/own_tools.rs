//! The tools that the runner has for a model: reading on in long results, and finding tools among many.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Canned, LlmReply, Server};

use super::{Tasks, calls, list, outline};
use crate::call::plugins::edit;
use crate::http::made;
use crate::world::text;

/// Returns the names of the tools in a request to the model.
fn offered(tasks: &Tasks, request: usize) -> Vec<String> {
    let body = tasks.llm.requests()[request].json();
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| text(&tool["function"]["name"]).to_owned()).collect()
}

#[tokio::test]
async fn a_model_reads_on_in_a_truncated_result() -> Result<()> {
    let tasks = Tasks::start().await?;
    let issues = json!([{ "number": 1, "title": "Long", "body": "y".repeat(60_000) }]);
    tasks.world.github.answer("/repos/acme/site/issues", Canned::json(200, &issues));
    let read = |params: Value| calls(&[("task_read_result", params)]);
    tasks.llm.prepare([
        calls(&[("github_list_issues", list())]),
        read(json!({ "step": 2, "offset": 49_500 })),
        read(json!({ "step": 2, "pointer": "/0/title" })),
        read(json!({ "step": 1 })),
        read(json!({ "step": 2, "pointer": "/0/titel" })),
        read(json!({ "step": 2, "of": 3 })),
        LlmReply::says(&["Read."]),
    ]);
    let task = tasks.run("Read the issues.").await?;
    assert_eq!(text(&task["status"]), "completed", "{task}");
    let steps = tasks.steps(&task).await?;
    assert_eq!(outline(&steps)[3], "call task_read_result success");
    assert_eq!(steps[1]["result"], issues);
    let part = &steps[3]["result"];
    let rest = text(&part["text"]);
    assert!(rest.starts_with("yyy") && rest.ends_with("}]"), "{rest}");
    assert_eq!(part["bytes"], json!(49_500 + rest.len()));
    assert_eq!((&part["offset"], &part["next_offset"]), (&json!(49_500), &Value::Null));
    assert_eq!(steps[5]["result"]["text"], "\"Long\"");
    let failed: Vec<&str> = [7, 9, 11].map(|step: usize| text(&steps[step]["code"])).to_vec();
    assert_eq!(failed, ["invalid_params"; 3], "{steps:?}");

    // The tool is offered once there is something to read, and each of its calls is in the audit.
    assert!(!offered(&tasks, 0).contains(&"task_read_result".to_owned()));
    assert!(offered(&tasks, 1).contains(&"task_read_result".to_owned()));
    let audited = tasks.api().audit(text(&steps[3]["request_id"])).await?;
    assert_eq!((&audited["tool"], &audited["status"]), (&json!("task_read_result"), &json!("success")), "{audited}");
    assert_eq!(audited["task_id"], task["id"]);
    Ok(())
}

#[tokio::test]
async fn the_tools_of_the_runner_are_unknown_elsewhere() -> Result<()> {
    let tasks = Tasks::start().await?;
    for tool in ["task_read_result", "task_find_tools", "task_call_tool"] {
        let answer = tasks.world.call(tool, &json!({ "step": 1 })).await?;
        assert_eq!((text(&answer["status"]), text(&answer["code"])), ("permission_denied", "denied"), "{answer}");
    }
    let listed = tasks.world.tools().await?;
    assert!(listed.iter().all(|tool| !tool.starts_with("task_")), "{listed:?}");
    Ok(())
}

#[tokio::test]
async fn a_tool_among_three_hundred_is_found_and_called() -> Result<()> {
    let server = Server::prepare(&["github", "test-echo"])?;
    let (flow, configured) = ("  auth_flow: manual\n", "  auth_flow: manual\n  tool_discovery: configured\n");
    edit(&server.plugins_dir().join("test-echo"), |text| text.replace(flow, configured))?;
    let tasks = Tasks::on(server).await?;
    let role = tasks.api().role("echoes", &["echo.*"]).await?;
    for shelf in 0..3 {
        let tool = |number: usize| {
            let (name, operation) = (format!("row_{number}"), if number == 7 { "echo.drop" } else { "echo.read" });
            let description = if number == 50 { "Waters the tomatoes." } else { "Does something else." };
            json!({ "name": name, "description": description, "operation": operation,
                    "input_schema": { "type": "object", "properties": { "litres": { "type": "integer" } } } })
        };
        let tools: Vec<Value> = (0..100).map(tool).collect();
        let name = format!("shelf{shelf}");
        let resource = json!({ "resource_type": "test-echo", "name": name, "config": { "tools": tools } });
        let resource = made(tasks.api(), "/api/resources", &resource).await?;
        tasks.api().bind(&tasks.world.bot, &resource, &role, &json!({})).await?;
    }
    let names = tasks.world.tools().await?;
    ensure!(names.len() > 300, "{}", names.len());
    let watering = names.iter().find(|name| name.ends_with("__row_50")).context("no such tool")?.clone();
    tasks.llm.prepare([
        calls(&[("task_find_tools", json!({ "query": "water tomatoes waters" }))]),
        calls(&[("task_call_tool", json!({ "tool": watering, "params": { "litres": 3 } }))]),
        calls(&[("task_call_tool", json!({ "tool": watering, "params": { "litres": "many" } }))]),
        calls(&[("task_call_tool", json!({ "tool": "shelf0__made_up", "params": {} }))]),
        calls(&[("task_call_tool", json!({ "params": {} }))]),
        LlmReply::says(&["Watered."]),
    ]);
    let task = tasks.run("Water the tomatoes.").await?;
    assert_eq!(text(&task["status"]), "completed", "{task}");
    assert_eq!(offered(&tasks, 0), ["task_find_tools", "task_call_tool"]);
    let steps = tasks.steps(&task).await?;
    let found = steps[1]["result"]["tools"].as_array().context("nothing was found")?;
    assert_eq!(found.len(), 3, "one of each shelf: {found:?}");
    assert!(found.iter().any(|tool| tool["tool"] == watering.as_str()), "{found:?}");
    assert_eq!(found[0]["parameters"]["properties"]["litres"]["type"], "integer");
    // Each call is judged and recorded as a call of the tool itself.
    let expected = [
        format!("call {watering} success"),
        format!("call {watering} error"),
        "call shelf0__made_up permission_denied".to_owned(),
        "call task_call_tool error".to_owned(),
    ];
    assert_eq!([3, 5, 7, 9].map(|step: usize| outline(&steps)[step].clone()), expected);
    assert_eq!(steps[3]["params"], json!({ "litres": 3 }));
    let audited = tasks.api().audit(text(&steps[3]["request_id"])).await?;
    assert_eq!(audited["tool"], watering.as_str());
    // The model reads the result as that of the tool that it has called.
    let messages = tasks.messages(2)?;
    let read = text(&messages.last().context("no message")?["content"]);
    assert!(read.starts_with(&format!("<tool-result tool=\"{watering}\"")), "{read}");
    Ok(())
}
