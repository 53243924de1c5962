//! Tasks that run to their end, their events, and cancellation.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use support::{Canned, LlmReply, Server};

use super::{Tasks, calls, create, ended, list, outline};
use crate::call::plugins::edit;
use crate::http::made;
use crate::tamper::sqlite;
use crate::world::{eventually, text};

#[tokio::test]
async fn a_task_calls_tools_until_the_model_answers() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([
        calls(&[("github_list_issues", list()), ("github_create_issue", create("From the task"))]),
        LlmReply::says(&["There are issues, ", "and I made one."]),
    ]);
    let task = tasks.run("Look at the issues.").await?;
    assert_eq!((text(&task["status"]), &task["code"]), ("completed", &Value::Null), "{task}");
    assert_eq!(task["result"], "There are issues, and I made one.");
    assert_eq!((&task["steps"], &task["usage"]), (&json!(4), &json!({ "input_tokens": 18, "output_tokens": 6 })));

    let steps = tasks.steps(&task).await?;
    let outline = outline(&steps);
    let call = |tool: &str| format!("call {tool} success");
    let expected = [
        "round success".to_owned(),
        call("github_list_issues"),
        call("github_create_issue"),
        "round success".to_owned(),
    ];
    assert_eq!(outline, expected);
    assert_eq!(steps[2]["params"]["title"], "From the task");
    assert_eq!(steps[3]["text"], task["result"]);
    assert_eq!(steps[0]["model"], "small");
    let created = tasks.world.github.requests().iter().filter(|request| request.method == "POST").count();
    assert_eq!(created, 1);

    // Each round and each call is a call in the audit, with the id of the task.
    for step in &steps {
        let audited = tasks.api().audit(text(&step["request_id"])).await?;
        assert_eq!((&audited["task_id"], &audited["status"]), (&task["id"], &json!("success")), "{audited}");
    }
    // The model reads the instruction, and then the results in frames, in the order in which it asked for them.
    let messages = tasks.messages(1)?;
    let roles: Vec<&str> = messages.iter().map(|message| text(&message["role"])).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
    assert_eq!(messages[1]["content"], "Look at the issues.");
    assert!(text(&messages[3]["content"]).starts_with("<tool-result tool=\"github_list_issues\""), "{messages:?}");
    assert!(text(&messages[4]["content"]).contains("\"status\":\"success\""), "{messages:?}");
    Ok(())
}

#[tokio::test]
async fn a_tool_that_the_model_makes_up_is_refused_and_recorded() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([calls(&[("github_delete_everything", json!({}))]), LlmReply::says(&["I cannot."])]);
    let task = tasks.run("Delete everything.").await?;
    assert_eq!(text(&task["status"]), "completed");
    let steps = tasks.steps(&task).await?;
    assert_eq!(outline(&steps)[1], "call github_delete_everything permission_denied");
    let audited = tasks.api().audit(text(&steps[1]["request_id"])).await?;
    assert_eq!(
        (&audited["tool"], &audited["status"]),
        (&json!("github_delete_everything"), &json!("permission_denied"))
    );
    assert!(tasks.world.github.requests().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_write_without_an_answer_is_uncertain() -> Result<()> {
    let tasks = Tasks::start().await?;
    let failed = async || -> Result<String> {
        tasks.llm.prepare([calls(&[("github_create_issue", create("One"))]), LlmReply::says(&["It failed."])]);
        let task = tasks.run("Create an issue.").await?;
        let steps = tasks.steps(&task).await?;
        ensure!(outline(&steps)[1] == "call github_create_issue error", "{steps:?}");
        Ok(text(&steps[1]["code"]).to_owned())
    };
    // An upstream that answers with an error has not created the issue.
    let invalid = Canned::json(422, &json!({ "message": "Validation Failed" }));
    tasks.world.github.answer("/repos/acme/site/issues", invalid);
    assert_eq!(failed().await?, "plugin");
    tasks.world.github.hang_up_on("POST");
    assert_eq!(failed().await?, "uncertain");
    let last = tasks.llm.requests().len() - 1;
    let messages = tasks.messages(last)?;
    let read = text(&messages.last().context("no message")?["content"]);
    assert!(read.contains("may or may not have taken effect"), "{read}");
    Ok(())
}

#[tokio::test]
async fn a_write_that_is_revoked_while_it_runs_is_uncertain() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.world.github.hold();
    let again = calls(&[("github_create_issue", create("Two"))]);
    tasks.llm.prepare([calls(&[("github_create_issue", create("One"))]), again, LlmReply::says(&["I may not."])]);
    let id = tasks.begin(&json!({ "instruction": "Create." })).await?;
    tasks.world.reached(1).await?;
    tasks.world.rebind(&tasks.github, &json!({ "enabled": false })).await?;
    let task = ended(tasks.api(), &id).await?;
    let steps = tasks.steps(&task).await?;
    let codes: Vec<&str> = steps.iter().map(|step| text(&step["code"])).collect();
    assert_eq!(codes, ["", "uncertain", "", "denied", ""], "the second call was refused before it began: {steps:?}");
    tasks.world.github.release();
    Ok(())
}

/// The configuration of a resource can declare a tool as `read`, but the calls of its plugin can do anything.
#[tokio::test]
async fn a_configured_tool_whose_plugin_makes_calls_is_a_write() -> Result<()> {
    let server = Server::prepare(&["github", "test-caller"])?;
    let (flow, configured) = ("  auth_flow: manual\n", "  auth_flow: manual\n  tool_discovery: configured\n");
    edit(&server.plugins_dir().join("test-caller"), |text| text.replace(flow, configured))?;
    let tasks = Tasks::on(server).await?;
    let tool = json!({ "name": "look", "description": "Looks.", "operation": "caller.look", "effect": "read",
        "input_schema": { "type": "object", "properties": {} } });
    let resource = json!({ "resource_type": "test-caller", "name": "shop", "config": { "tools": [tool] } });
    let resource = made(tasks.api(), "/api/resources", &resource).await?;
    let role = tasks.api().role("looks", &["caller.*"]).await?;
    tasks.api().bind(&tasks.world.bot, &resource, &role, &json!({})).await?;
    let listed = tasks.api().get(&format!("/api/bots/{}/tools", tasks.world.bot)).await?.1;
    let listed = listed["items"].as_array().context("no tools")?;
    let look = listed.iter().find(|tool| tool["name"] == "shop__look").context("the tool is missing")?;
    assert_eq!(look["effect"], "read");
    tasks.llm.prepare([calls(&[("shop__look", json!({}))]), LlmReply::says(&["Done."])]);
    let task = tasks.run("Look.").await?;
    let effect =
        format!("select tool, effect from task_steps where task_id = '{}' and sequence = 2", text(&task["id"]));
    let rows = sqlite(&tasks.world.server.data_dir(), &[&effect]).await?;
    assert_eq!(rows, json!([["shop__look", "write"]]));
    Ok(())
}

#[tokio::test]
async fn events_have_each_step_once_and_continue_after_the_last_one() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.world.github.hold();
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["One ", "more."])]);
    let id = tasks.begin(&json!({ "instruction": "List them." })).await?;
    let path = format!("/api/tasks/{id}/events");
    let response = tasks.api().request(Method::GET, &path).send().await?;
    ensure!(response.status() == 200, "{response:?}");
    let mut body = response.bytes_stream();
    let mut received = String::new();
    while !received.contains("event: call") {
        received += &String::from_utf8_lossy(&body.next().await.context("the stream has ended")??);
    }
    tasks.world.github.release();
    while let Some(bytes) = body.next().await {
        received += &String::from_utf8_lossy(&bytes?);
    }
    let events = events(&received);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "delta").collect();
    assert_eq!(names, ["task", "step", "call", "step", "step", "end"], "{received}");
    let said: String =
        events.iter().filter(|(name, _)| name == "delta").map(|(_, event)| text(&event["text"])).collect();
    assert_eq!(said, "One more.");
    let last = &events.last().context("no events")?.1;
    assert_eq!((text(&last["status"]), text(&last["result"])), ("completed", "One more."));

    // A listener that comes late gets whole steps, and no texts.
    let late = tasks.api().request(Method::GET, &path).header("last-event-id", "1").send().await?.text().await?;
    let late: Vec<String> = self::events(&late).into_iter().map(|(name, _)| name).collect();
    assert_eq!(late, ["task", "step", "step", "end"]);
    let wrong = tasks.api().get(&format!("{path}?after=-1")).await?;
    assert_eq!(wrong.0, 422, "{}", wrong.1);
    Ok(())
}

#[tokio::test]
async fn a_request_that_starts_a_task_can_follow_it() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["Hello."])]);
    let path = format!("/api/bots/{}/tasks", tasks.world.bot);
    let start = async |input: &Value| -> Result<(u16, Vec<(String, Value)>)> {
        let request = tasks.api().request(Method::POST, &path).header("accept", "text/event-stream");
        let response = request.header("idempotency-key", "one").json(input).send().await?;
        Ok((response.status().as_u16(), events(&response.text().await?)))
    };
    let (status, first) = start(&json!({ "instruction": "Greet." })).await?;
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "delta").collect();
    assert_eq!((status, names), (200, vec!["task", "step", "end"]), "{first:?}");
    let task = &first.last().context("no events")?.1;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Hello."));
    // A repeated request follows the same task.
    let (status, again) = start(&json!({ "instruction": "Greet." })).await?;
    assert_eq!((status, &again[0].1["id"]), (200, &task["id"]));
    assert_eq!(tasks.llm.requests().len(), 1);
    assert_eq!(start(&json!({ "instruction": "Another one." })).await?.0, 409);
    Ok(())
}

/// Returns the names and the data of server-sent events.
fn events(text: &str) -> Vec<(String, Value)> {
    let field = |event: &str, name: &str| {
        event.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    let parsed = |event: &str| {
        let (name, data) = (field(event, "event:")?, field(event, "data:")?);
        Some((name, serde_json::from_str(&data).ok()?))
    };
    text.split("\n\n").filter_map(parsed).collect()
}

#[tokio::test]
async fn a_cancelled_task_ends_within_a_second() -> Result<()> {
    let tasks = Tasks::start().await?;
    // The task waits for the model.
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I will go on")]).silent()]);
    let id = tasks.begin(&json!({ "instruction": "Talk." })).await?;
    tasks.llm.is_answering().await;
    let began = Instant::now();
    let (status, _) = tasks.api().delete(&format!("/api/tasks/{id}")).await?;
    ensure!(status == 202, "{status}");
    let task = ended(tasks.api(), &id).await?;
    tasks.llm.is_idle().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((text(&task["status"]), &task["result"]), ("cancelled", &Value::Null));
    let (status, again) = tasks.api().delete(&format!("/api/tasks/{id}")).await?;
    assert_eq!((status, &again["status"]), (200, &json!("cancelled")), "the task stays");

    // The task waits for the upstream of a call that may have taken effect.
    tasks.world.github.hold();
    tasks.llm.prepare([calls(&[("github_create_issue", create("One")), ("github_create_issue", create("Two"))])]);
    let id = tasks.begin(&json!({ "instruction": "Create." })).await?;
    tasks.world.reached(1).await?;
    let began = Instant::now();
    tasks.api().delete(&format!("/api/tasks/{id}")).await?;
    let task = ended(tasks.api(), &id).await?;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(text(&task["status"]), "cancelled");
    let steps = tasks.steps(&task).await?;
    let codes: Vec<&str> = steps.iter().map(|step| text(&step["code"])).collect();
    assert_eq!(codes, ["", "uncertain", "cancelled"], "{steps:?}");
    tasks.world.github.release();
    Ok(())
}

#[tokio::test]
async fn a_task_ends_when_its_time_is_over() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I will go on")]).silent()]);
    let id = tasks.begin(&json!({ "instruction": "Talk.", "limits": { "wall_s": 1 } })).await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "wall_clock"), "{task}");
    Ok(())
}

#[tokio::test]
async fn a_call_of_a_task_waits_for_a_person() -> Result<()> {
    let tasks = Tasks::start().await?;
    let gates = json!([{ "tools": ["github_create_issue"], "action": "ask" }]);
    let path = format!("/api/bots/{}", tasks.world.bot);
    let (status, body) = tasks.api().patch(&path, &json!({ "gates": gates })).await?;
    ensure!(status == 200, "{status} {body}");
    tasks.llm.prepare([calls(&[("github_create_issue", create("Asked"))]), LlmReply::says(&["Created."])]);
    let id = tasks.begin(&json!({ "instruction": "Create an issue." })).await?;
    let approval = eventually("a person is asked", async || {
        let (_, list) = tasks.api().get("/api/approvals?status=pending").await?;
        Ok(list["items"].as_array().and_then(|items| items.first().cloned()))
    })
    .await?;
    assert_eq!(approval["tool"], "github_create_issue");
    assert!(tasks.world.github.requests().is_empty());
    let admin = tasks.api().with_key(&tasks.api().new_key("admin", None).await?);
    let decision = json!({ "decision": "approve", "digest": approval["digest"] });
    let (status, body) = admin.post(&format!("/api/approvals/{}", text(&approval["id"])), &decision).await?;
    ensure!(status == 200, "{status} {body}");
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Created."), "{task}");
    assert_eq!(tasks.world.github.requests().len(), 1);
    Ok(())
}

#[tokio::test]
async fn steps_and_tasks_are_listed_in_bounded_pages() -> Result<()> {
    let tasks = Tasks::start().await?;
    let answer = format!("A{}", "ä".repeat(4096));
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&[answer.as_str()])]);
    let instruction = "x".repeat(5000);
    let task = tasks.run(&instruction).await?;
    let path = format!("/api/tasks/{}/steps", text(&task["id"]));
    let page = async |query: &str| -> Result<(Vec<i64>, Value)> {
        let (status, page) = tasks.api().get(&format!("{path}{query}")).await?;
        ensure!(status == 200, "{status} {page}");
        let items = page["items"].as_array().context("the page has no items")?;
        Ok((items.iter().filter_map(|step| step["sequence"].as_i64()).collect(), page["next_after"].clone()))
    };
    assert_eq!(page("").await?, (vec![1, 2, 3], Value::Null));
    assert_eq!(page("?limit=2").await?, (vec![1, 2], json!(2)));
    assert_eq!(page("?limit=2&after=2").await?, (vec![3], Value::Null));
    assert_eq!(page("?limit=3").await?, (vec![1, 2, 3], Value::Null));
    assert_eq!(page("?after=3").await?, (Vec::new(), Value::Null));
    for wrong in ["?limit=0", "?limit=x", "?after=-1", "?after=x"] {
        assert_eq!(tasks.api().get(&format!("{path}{wrong}")).await?.0, 422, "{wrong}");
    }

    assert_eq!((text(&task["instruction"]), text(&task["result"])), (instruction.as_str(), answer.as_str()));
    for path in ["/api/tasks".to_owned(), format!("/api/bots/{}/tasks", tasks.world.bot)] {
        let (_, listed) = tasks.api().get(&path).await?;
        let listed = &listed["items"][0];
        assert_eq!(listed["instruction"], instruction[..4096]);
        assert_eq!(listed["result"], answer[..4095], "a character is not cut");
    }
    Ok(())
}

#[tokio::test]
async fn a_list_of_tasks_is_read_in_parts() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare((0..23).map(|_| LlmReply::says(&["Yes."])));
    let mut ids = Vec::new();
    for _ in 0..23 {
        ids.insert(0, text(&tasks.run("Is it so?").await?["id"]).to_owned());
    }
    let page = async |query: &str| -> Result<(Vec<String>, Value)> {
        let (_, page) = tasks.api().get(&format!("/api/tasks{query}")).await?;
        let items = page["items"].as_array().context("the page has no items")?;
        Ok((items.iter().map(|task| text(&task["id"]).to_owned()).collect(), page["next_cursor"].clone()))
    };
    assert_eq!(page("").await?, (ids.clone(), Value::Null));
    assert_eq!(page("?limit=23").await?, (ids.clone(), Value::Null));
    let (first, cursor) = page("?limit=22").await?;
    assert_eq!((first.as_slice(), &cursor), (&ids[..22], &json!(ids[21])));
    assert_eq!(page(&format!("?cursor={}", text(&cursor))).await?, (ids[22..].to_vec(), Value::Null));
    Ok(())
}

/// The calls of one round are more than a listener reads at once.
#[tokio::test]
async fn a_listener_reads_a_long_journal_in_pages() -> Result<()> {
    const CALLS: usize = 25;
    let tasks = Tasks::start().await?;
    tasks.world.github.hold();
    let asked: Vec<(&str, Value)> =
        (0..CALLS).map(|number| ("github_create_issue", create(&format!("Issue {number}")))).collect();
    tasks.llm.prepare([calls(&asked), LlmReply::says(&["Done."])]);
    let id = tasks.begin(&json!({ "instruction": "Create them." })).await?;
    let path = format!("/api/tasks/{id}/events");
    let mut body = tasks.api().request(Method::GET, &path).send().await?.bytes_stream();
    let mut received = String::new();
    while received.matches("event: call").count() < CALLS {
        received += &String::from_utf8_lossy(&body.next().await.context("the stream has ended")??);
    }
    tasks.world.github.release();
    while let Some(bytes) = body.next().await {
        received += &String::from_utf8_lossy(&bytes?);
    }
    let late = tasks.api().request(Method::GET, &path).send().await?.text().await?;
    let sequences = |stream: &str| -> Vec<i64> {
        let steps = events(stream).into_iter().filter(|(name, _)| name == "step");
        steps.filter_map(|(_, step)| step["sequence"].as_i64()).collect()
    };
    let all: Vec<i64> = (1..=i64::try_from(CALLS)? + 2).collect();
    for stream in [&received, &late] {
        assert_eq!(sequences(stream), all, "{stream}");
        assert_eq!(events(stream).last().map(|(name, _)| name.as_str()), Some("end"));
    }
    assert_eq!(events(&received).iter().filter(|(name, _)| name == "call").count(), CALLS);
    Ok(())
}
