//! Bots that give each other tasks come to an end, and do not block each other.

use support::Server;

use super::*;

/// Lets the only bot with a model give itself tasks.
async fn alone() -> Result<Tasks> {
    let tasks = Tasks::start().await?;
    link(tasks.api(), (&tasks.world.bot, &tasks.world.bot), &json!({})).await?;
    Ok(tasks)
}

#[tokio::test]
async fn a_chain_of_tasks_has_four_at_most() -> Result<()> {
    let tasks = alone().await?;
    let mut replies: Vec<LlmReply> = (1..=4).map(|depth| query(&format!("Question {depth}"))).collect();
    replies.extend((1..=4).rev().map(|depth| LlmReply::says(&[format!("Answer {depth}").as_str()])));
    tasks.llm.prepare(replies);
    let first = tasks.run("Question 0").await?;
    assert_eq!(text(&first["result"]), "Answer 1", "{first}");
    let (_, list) = tasks.api().get("/api/tasks").await?;
    let chain = list["items"].as_array().context("no tasks")?;
    let parents: Vec<&Value> = chain.iter().map(|task| &task["parent_task_id"]).collect();
    let expected = [&chain[1]["id"], &chain[2]["id"], &chain[3]["id"], &Value::Null];
    assert_eq!(parents, expected, "{list}");
    let last = steps(tasks.api(), text(&chain[0]["id"])).await?;
    assert_eq!((outline(&last)[1].as_str(), text(&last[1]["code"])), ("call bot_query error", "limit"), "{last:?}");
    assert!(text(&last[1]["message"]).contains("at most 4 are allowed"), "{last:?}");
    Ok(())
}

#[tokio::test]
async fn a_tree_of_tasks_has_32_at_most() -> Result<()> {
    let pair = Pair::start().await?;
    let set: Vec<(&str, Value)> =
        (0..32).map(|number| ("bot_execute_task", json!({ "instruction": format!("Task {number}") }))).collect();
    pair.tasks.llm.prepare([calls(&set), LlmReply::says(&["Set."])]);
    pair.of_helper.prepare((0..31).map(|_| LlmReply::says(&["Done."])));
    let task = pair.tasks.run("Set many tasks.").await?;
    let steps = pair.tasks.steps(&task).await?;
    let set = steps.iter().filter(|step| step["tool"] == "bot_execute_task" && step["status"] == "success");
    assert_eq!(set.count(), 31, "{steps:?}");
    let last = &steps[32];
    assert_eq!((text(&last["status"]), text(&last["code"])), ("error", "limit"), "{last}");
    // The next tree has room.
    pair.of_helper.prepare([LlmReply::says(&["Done."])]);
    pair.execute("One more.").await?;
    Ok(())
}

/// The bot runs 16 tasks at once. Each of them asks the same bot, whose tasks need places too.
#[tokio::test]
async fn tasks_that_wait_for_tasks_of_the_same_bot_end() -> Result<()> {
    const TASKS: usize = 18;
    let tasks = alone().await?;
    // It does not matter which task reads which answer: each question is one task more, and each task has one answer.
    tasks.llm.prepare((0..TASKS).map(|number| query(&format!("Question {number}"))));
    tasks.llm.prepare((0..2 * TASKS).map(|_| LlmReply::says(&["Yes."])));
    let mut ids = Vec::new();
    for _ in 0..TASKS {
        ids.push(tasks.begin(&json!({ "instruction": "Ask yourself." })).await?);
    }
    for id in &ids {
        let task = ended(tasks.api(), id).await?;
        assert_eq!(text(&task["status"]), "completed", "{task}");
    }
    Ok(())
}

#[tokio::test]
async fn a_query_holds_no_room_that_other_calls_need() -> Result<()> {
    let server = Server::prepare(&["github"])?.argument("--max-calls-per-bot=1");
    let pair = Pair::on(Tasks::on(server).await?, &json!({})).await?;
    pair.of_helper.prepare([silent()]);
    let path = format!("/api/bots/{}/tools/bot_query/call", pair.tasks.world.bot);
    let request = pair.api().request(Method::POST, &path).json(&json!({ "params": { "question": "Well?" } }));
    let call = tokio::spawn(request.send());
    pair.of_helper.is_answering().await;
    let listed = pair.tasks.world.call("github_list_issues", &list()).await?;
    assert_eq!(text(&listed["status"]), "success", "{listed}");
    call.abort();
    pair.of_helper.is_idle().await;
    Ok(())
}

#[tokio::test]
async fn a_binding_limits_the_time_of_a_query() -> Result<()> {
    let pair = Pair::with(&json!({ "limits": { "timeout_s": 1 } })).await?;
    pair.of_helper.prepare([silent()]);
    let late = pair.tasks.world.call("bot_query", &json!({ "question": "Well?" })).await?;
    assert_eq!((text(&late["status"]), text(&late["code"])), ("error", "timeout"), "{late}");
    let child = ended(pair.api(), text(&pair.newest().await?["id"])).await?;
    assert_eq!(text(&child["status"]), "cancelled", "{child}");
    Ok(())
}
