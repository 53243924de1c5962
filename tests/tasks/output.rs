//! Tasks whose answer has to fit a JSON Schema.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use support::LlmReply;

use super::{Tasks, calls, ended, list};
use crate::world::text;

fn counts() -> Value {
    json!({ "type": "object", "required": ["issues"], "additionalProperties": false,
            "properties": { "issues": { "type": "integer", "minimum": 0 } } })
}

fn input() -> Value {
    json!({ "instruction": "Count the issues.", "output_schema": counts() })
}

/// Returns what the model has read last before it wrote its answer number `request`.
fn last(tasks: &Tasks, request: usize) -> Result<String> {
    Ok(text(&tasks.messages(request)?.last().context("no message")?["content"]).to_owned())
}

#[tokio::test]
async fn an_answer_in_another_form_is_mended() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([
        LlmReply::says(&["There are 2."]),
        calls(&[("github_list_issues", list())]),
        LlmReply::says(&["{\"issues\": \"two\"}"]),
        LlmReply::says(&["\n{\"issues\": 2}\n"]),
    ]);
    let task = ended(tasks.api(), &tasks.begin(&input()).await?).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "{\"issues\": 2}"), "{task}");
    let system = text(&tasks.messages(0)?[0]["content"]).to_owned();
    assert!(system.contains("\"issues\""), "the model reads the schema: {system}");
    assert!(last(&tasks, 1)?.contains("it is not JSON"), "{}", last(&tasks, 1)?);
    assert!(last(&tasks, 3)?.contains("at `/issues`: "), "{}", last(&tasks, 3)?);
    Ok(())
}

#[tokio::test]
async fn the_third_answer_in_another_form_fails_the_task() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare((0..4).map(|number| LlmReply::says(&[&format!("{{\"issues\": -{number}1}}")])));
    let task = ended(tasks.api(), &tasks.begin(&input()).await?).await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "model_output"), "{task}");
    assert_eq!(tasks.llm.requests().len(), 3);

    // The last step leaves no try.
    tasks.llm.prepare([LlmReply::says(&["none"])]);
    let mut one = input();
    one["limits"] = json!({ "steps": 1 });
    let task = ended(tasks.api(), &tasks.begin(&one).await?).await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "model_output"), "{task}");
    Ok(())
}

#[tokio::test]
async fn a_schema_is_checked_when_the_task_is_started() -> Result<()> {
    let tasks = Tasks::start().await?;
    let path = format!("/api/bots/{}/tasks", tasks.world.bot);
    for schema in [
        json!([]),
        json!({ "type": "nothing" }),
        json!({ "$ref": "https://example.com/schema" }),
        json!({ "description": "x".repeat(64 << 10) }),
    ] {
        let (status, refused) =
            tasks.api().post(&path, &json!({ "instruction": "x", "output_schema": schema })).await?;
        assert_eq!((status, text(&refused["errors"][0]["path"])), (422, "/output_schema"), "{refused}");
    }
    assert!(tasks.llm.requests().is_empty());
    Ok(())
}
