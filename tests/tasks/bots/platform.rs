//! The platform functions with which a root key gives bots tasks.

use super::*;

fn path(function: &str) -> String {
    format!("/api/platform/bot/{function}")
}

#[tokio::test]
async fn a_root_key_gives_bots_tasks() -> Result<()> {
    let pair = Pair::start().await?;
    let call = async |function: &str, params: Value| -> Result<Value> {
        let (status, answer) = pair.api().post(&path(function), &json!({ "params": params })).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(answer)
    };
    pair.of_helper.prepare([LlmReply::says(&["Done."]), LlmReply::says(&["Yes."])]);
    let set =
        call("execute_task", json!({ "bot_id": pair.helper, "instruction": "Do it.", "params": { "n": 1 } })).await?;
    let id = set["data"]["task_id"].as_str().with_context(|| set.to_string())?;
    let task = ended(pair.api(), id).await?;
    assert_eq!((&task["parent_task_id"], &task["bot_id"]), (&Value::Null, &json!(pair.helper)), "{task}");
    let told = call("status", json!({ "bot_id": pair.helper, "task_id": id })).await?;
    assert_eq!(told["data"], json!({ "status": "completed", "result": "Done." }), "{told}");
    let answer = call("query", json!({ "bot_id": pair.helper, "question": "Is it so?" })).await?;
    assert_eq!(answer["data"], json!({ "answer": "Yes." }), "{answer}");
    for (answer, function) in [(&set, "execute_task"), (&told, "status"), (&answer, "query")] {
        let row = pair.tasks.world.audit_of(answer).await?;
        let expected = json!([format!("platform.bot.{function}"), "bot", "success", null]);
        let fields = ["tool", "plugin", "status", "bot_id"].map(|field| row[field].clone());
        assert_eq!(Value::from(fields.to_vec()), expected, "{row}");
    }
    let steps = steps(pair.api(), id).await?;
    let round = pair.api().audit(text(&steps[0]["request_id"])).await?;
    assert_eq!((&round["bot_id"], &round["delegation"]), (&json!(pair.helper), &Value::Null), "{round}");
    Ok(())
}

#[tokio::test]
async fn other_keys_and_wrong_parameters_are_refused() -> Result<()> {
    let pair = Pair::start().await?;
    let params = json!({ "bot_id": pair.helper, "instruction": "Do it." });
    for (kind, bot) in [("admin", None), ("operator", None), ("bot", Some(pair.helper.as_str()))] {
        let api = pair.api().with_key(&pair.api().new_key(kind, bot).await?);
        let (status, answer) = api.post(&path("execute_task"), &json!({ "params": params })).await?;
        assert_eq!(status, 403, "{kind}: {answer}");
    }
    let foreign = workspace(pair.api(), "foreign").await?;
    let elsewhere = foreign.bot("elsewhere").await?;
    let (_, link_row) = pair.api().get(&pair.path_of_link()).await?;
    let resource = &link_row["resource_id"];
    pair.tasks.llm.prepare([LlmReply::says(&["Yes."])]);
    let of_other_bot = pair.tasks.run("Is it so?").await?;
    let refused = async |function: &str, body: Value| -> Result<String> {
        let (status, answer) = pair.api().post(&path(function), &body).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(told(&answer))
    };
    for (function, body, expected) in [
        ("execute_task", json!({ "params": { "bot_id": elsewhere, "instruction": "x" } }), "/bot_id: no such bot"),
        ("query", json!({ "params": { "bot_id": elsewhere, "question": "x" } }), "/bot_id: no such bot"),
        ("execute_task", json!({ "params": { "instruction": "x" } }), "missing field `bot_id`"),
        ("query", json!({ "params": { "bot_id": pair.helper } }), "missing field `question`"),
        ("query", json!({ "params": { "bot_id": pair.helper, "question": " " } }), "/question: must not be empty"),
        ("query", json!({ "params": { "bot_id": pair.helper, "question": "x", "narrow": {} } }), "/narrow: undeclared"),
        (
            "query",
            json!({ "params": { "bot_id": pair.helper, "question": "x" }, "resource_id": resource }),
            "/resource_id",
        ),
        ("status", json!({ "params": { "bot_id": pair.helper, "task_id": of_other_bot["id"] } }), "/task_id"),
        ("status", json!({ "params": { "bot_id": pair.helper, "task_id": "7" } }), "/task_id"),
    ] {
        let told = refused(function, body.clone()).await?;
        assert!(told.starts_with("error invalid_params") && told.contains(expected), "{body}: {told}");
    }
    assert!(pair.of_helper.requests().is_empty());
    Ok(())
}
