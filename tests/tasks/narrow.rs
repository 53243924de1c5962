//! What the starter of a task narrows.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::LlmReply;

use super::{Tasks, calls, create, ended, list, outline};
use crate::world::text;

#[tokio::test]
async fn a_narrowed_task_may_do_less_than_its_bot() -> Result<()> {
    let tasks = Tasks::start().await?;
    let narrow = json!({ "allowed_tools": ["github_list_*"], "scope_constraints": { "repos": ["acme/*"] } });
    tasks.llm.prepare([
        calls(&[
            ("github_create_issue", create("Not mine")),
            ("github_list_issues", json!({ "repo": "other/secret" })),
            ("github_list_issues", list()),
        ]),
        LlmReply::says(&["I may only look."]),
    ]);
    let id = tasks.begin(&json!({ "instruction": "Work.", "narrow": narrow })).await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["result"]), &task["narrow"]), ("I may only look.", &narrow), "{task}");
    let steps = tasks.steps(&task).await?;
    let expected = [
        "round success",
        "call github_create_issue permission_denied",
        "call github_list_issues scope_violation",
        "call github_list_issues success",
        "round success",
    ];
    assert_eq!(outline(&steps), expected);
    for step in &steps {
        let row = tasks.api().audit(text(&step["request_id"])).await?;
        assert_eq!((&row["delegation"], &row["status"]), (&json!([{ "narrow": narrow }]), &step["status"]), "{row}");
    }
    assert_eq!(tasks.world.github.requests().len(), 1);
    let request = tasks.llm.requests()[0].json();
    let names: Vec<&str> =
        request["tools"].as_array().into_iter().flatten().map(|tool| text(&tool["function"]["name"])).collect();
    assert!(names.iter().all(|name| name.starts_with("github_list_")) && !names.is_empty(), "{names:?}");

    // The next task of the bot is not narrowed.
    tasks.llm.prepare([calls(&[("github_create_issue", create("Mine"))]), LlmReply::says(&["Created."])]);
    let task = tasks.run("Create.").await?;
    assert_eq!(
        (&task["narrow"], outline(&tasks.steps(&task).await?)[1].as_str()),
        (&Value::Null, "call github_create_issue success")
    );
    Ok(())
}

#[tokio::test]
async fn a_narrowed_task_stays_narrowed_after_a_crash() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I begin")]).silent()]);
    let narrow = json!({ "allowed_tools": ["github_list_*"] });
    let id = tasks.begin(&json!({ "instruction": "Work.", "narrow": narrow })).await?;
    tasks.llm.is_answering().await;
    tasks.llm.prepare([calls(&[("github_create_issue", create("Not mine"))]), LlmReply::says(&["I may not."])]);
    tasks.killed().await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["result"]), &task["narrow"]), ("I may not.", &narrow), "{task}");
    assert_eq!(outline(&tasks.steps(&task).await?)[1], "call github_create_issue permission_denied");
    assert!(tasks.world.github.requests().is_empty());
    Ok(())
}

/// Nothing is wider than what the bot may do.
#[tokio::test]
async fn narrow_grants_nothing() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.world.rebind(&tasks.github, &json!({ "scope_constraints": { "repos": ["acme/site"] } })).await?;
    tasks.llm.prepare([
        calls(&[("github_list_issues", json!({ "repo": "acme/api" })), ("github_list_issues", list())]),
        LlmReply::says(&["One of both."]),
    ]);
    let narrow = json!({ "allowed_tools": ["*"], "scope_constraints": { "repos": ["*"] } });
    let id = tasks.begin(&json!({ "instruction": "Look.", "narrow": narrow })).await?;
    let task = ended(tasks.api(), &id).await?;
    let steps = tasks.steps(&task).await?;
    assert_eq!(outline(&steps)[1..3], ["call github_list_issues scope_violation", "call github_list_issues success"]);
    // A key that the type of a tool does not have denies the tool, as in a delegation.
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["I may not."])]);
    let narrow = json!({ "scope_constraints": { "projects": ["X"] } });
    let id = tasks.begin(&json!({ "instruction": "Look.", "narrow": narrow })).await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!(outline(&tasks.steps(&task).await?)[1], "call github_list_issues scope_violation");
    Ok(())
}

#[tokio::test]
async fn a_wrong_narrow_starts_no_task() -> Result<()> {
    let tasks = Tasks::start().await?;
    let path = format!("/api/bots/{}/tasks", tasks.world.bot);
    for (narrow, at) in [
        (json!({ "allowed_tools": ["a", "x".repeat(4097)] }), "/narrow/allowed_tools/1"),
        (json!({ "allowed_tools": vec!["a"; 201] }), "/narrow/allowed_tools"),
        (json!({ "scope_constraints": { "a/b": ["x".repeat(4097)] } }), "/narrow/scope_constraints/a~1b/0"),
        (json!({ "allowed_tools": "a" }), "/narrow/allowed_tools"),
        (json!({ "gates": [] }), "/narrow/gates"),
    ] {
        let (status, refused) = tasks.api().post(&path, &json!({ "instruction": "x", "narrow": narrow })).await?;
        assert_eq!((status, text(&refused["errors"][0]["path"])), (422, at), "{refused}");
    }
    let (_, list) = tasks.api().get("/api/tasks").await?;
    ensure!(list["items"] == json!([]), "{list}");
    Ok(())
}
