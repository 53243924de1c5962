//! What single steps do: calls of tools, events, and steps that stop a run.

use anyhow::Result;
use serde_json::{Value, json};
use support::{Canned, FakeGithub, status_of};

use super::flows::{Flows, PLUGIN, READ, WRITE, call, told, with};
use crate::world::text;

#[tokio::test]
async fn a_run_is_shown_as_a_whole_with_its_step() -> Result<()> {
    let flows = Flows::start().await?;
    let definition = json!({
        "input": { "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } },
        "steps": [with(call("one", WRITE), &json!({ "params": { "marker": "one", "any": "${{ input.n }}" } }))],
        "output": { "n": "${{ steps.one.data.any }}", "text": "n is ${{ steps.one.data.any }}" },
    });
    let workflow = flows.save("release", &definition).await?;
    let (status, queued) =
        flows.api().post(&format!("/api/workflows/{workflow}/runs"), &json!({ "input": { "n": 7 } })).await?;
    assert_eq!(status, 202, "{queued}");
    let run = flows.ended(text(&queued["id"])).await?;
    let expected = json!({
        "id": queued["id"], "workflow_id": workflow, "workflow": "release", "version": 1, "bot_id": flows.world.bot,
        "status": "completed", "attempt": 1, "input": { "n": 7 }, "output": { "n": 7, "text": "n is 7" },
        "labels": run["labels"], "started_by": { "kind": "key", "id": run["started_by"]["id"] },
        "created_at": queued["created_at"], "started_at": run["started_at"], "ended_at": run["ended_at"],
    });
    assert_eq!(run, expected);
    let steps = flows.steps(&run).await?;
    let [step] = steps.as_slice() else { panic!("the run has one step: {steps:?}") };
    assert_eq!(
        (text(&step["kind"]), text(&step["status"]), &step["attempt"], &step["run_attempt"]),
        ("tool", "succeeded", &json!(1), &json!(1)),
        "{step}"
    );
    assert_eq!(step["data"]["answer"], json!({ "marker": "one" }), "{step}");
    assert_eq!(step["data"]["task_id"], run["id"], "the plugin reads the id of the run");

    // The upstream and the audit name the call by the same id.
    let request_id = text(&step["request_id"]);
    assert_eq!((flows.seen(), flows.keys("one")), (vec!["POST one".to_owned()], vec![request_id.to_owned()]));
    let row = flows.api().audit(request_id).await?;
    assert_eq!(
        (&row["task_id"], text(&row["tool"]), text(&row["status"]), &row["bot_id"]),
        (&run["id"], WRITE, "success", &json!(flows.world.bot)),
        "{row}"
    );
    assert_eq!(flows.runs().await?.len(), 1);
    let completed = flows.events("workflow.completed").await?;
    assert_eq!(completed.len(), 1);
    let event = &completed[0];
    assert_eq!((text(&event["source_type"]), text(&event["source_id"])), ("workflow", workflow.as_str()), "{event}");
    assert_eq!((&event["data"]["run_id"], &event["data"]["output"]), (&run["id"], &run["output"]), "{event}");
    assert_eq!((&event["data"]["version"], &event["bot_id"]), (&json!(1), &json!(flows.world.bot)), "{event}");
    assert_eq!(flows.api().verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn input_that_does_not_fit_starts_nothing() -> Result<()> {
    let flows = Flows::start().await?;
    let definition = json!({
        "input": { "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } },
        "steps": [call("one", WRITE)],
    });
    let workflow = flows.save("flow", &definition).await?;
    let path = format!("/api/workflows/{workflow}/runs");
    for (body, place) in [
        (json!({}), "/input"),
        (json!({ "input": { "n": "7" } }), "/input/n"),
        (json!({ "input": { "n": 7 }, "version": 2 }), "/version"),
        (json!({ "inputs": {} }), "/inputs"),
    ] {
        let (status, refused) = flows.api().post(&path, &body).await?;
        let at = text(&refused["errors"][0]["path"]);
        assert!(status == 422 && at.starts_with(place), "{body}: {status} {refused}");
    }
    assert_eq!(flows.runs().await?, Vec::<Value>::new());
    assert!(flows.seen().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_run_emits_events_of_its_bot() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([
        call("one", READ),
        { "id": "tell", "emit": "released", "data": { "of": "${{ steps.one.data.marker }}", "run": "${{ run.id }}" } },
    ]);
    let run = flows.run(&json!({ "steps": steps, "output": "${{ steps.tell.data.event_id }}" })).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    let released = flows.events("custom.released").await?;
    assert_eq!(released.len(), 1);
    let event = &released[0];
    assert_eq!((&event["id"], &event["bot_id"]), (&run["output"], &json!(flows.world.bot)), "{event}");
    assert_eq!(event["data"], json!({ "of": "one", "run": run["id"] }), "{event}");
    assert_eq!(event["metadata"]["run_id"], run["id"], "{event}");
    Ok(())
}

#[tokio::test]
async fn a_run_is_stopped_by_a_step() -> Result<()> {
    let flows = Flows::start().await?;
    let stop = |status: &str| {
        json!({
            "steps": [
                with(call("one", READ), &json!({ "undo": { "tool": WRITE, "params": { "marker": "undone" } } })),
                { "id": "end", "stop": status, "message": "enough of ${{ steps.one.data.marker }}", "output": { "x": 1 } },
                call("never", WRITE),
            ],
        })
    };
    let run = flows.run(&stop("completed")).await?;
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &json!({ "x": 1 })), "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["one succeeded", "end succeeded"]);
    assert_eq!(flows.seen(), ["GET one"], "a run that is completed undoes nothing");

    let run = flows.run(&stop("failed")).await?;
    assert_eq!(told(&run), ["failed", "stopped", "end"], "{run}");
    assert_eq!(text(&run["error"]["message"]), "enough of one");
    assert_eq!(flows.seen(), ["GET one", "GET one", "POST undone"]);
    let failed = flows.events("workflow.failed").await?;
    assert_eq!(failed.len(), 1);
    let data = &failed[0]["data"];
    assert_eq!((&data["run_id"], text(&data["status"])), (&run["id"], "failed"), "{data}");
    assert_eq!((text(&data["error"]["code"]), text(&data["error"]["step"])), ("stopped", "end"), "{data}");
    Ok(())
}

/// The same request starts one run.
#[tokio::test]
async fn a_repeated_request_starts_one_run() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &json!({ "steps": [call("one", WRITE)] })).await?;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let path = format!("/api/workflows/{workflow}/runs");
        let request = flows.api().request(reqwest::Method::POST, &path).header("idempotency-key", "k");
        let answer = request.json(&json!({})).send().await?;
        assert_eq!(answer.status(), 202);
        ids.push(text(&answer.json::<Value>().await?["id"]).to_owned());
    }
    assert_eq!(ids[0], ids[1]);
    flows.ended(&ids[0]).await?;
    assert_eq!((flows.seen().len(), flows.runs().await?.len()), (1, 1));
    Ok(())
}

/// A definition has the id of its run only in expressions; a caller cannot claim to be a run.
#[tokio::test]
async fn only_the_server_makes_calls_of_its_runs() -> Result<()> {
    let flows = Flows::start().await?;
    let run = flows.run(&json!({ "steps": [call("one", READ)] })).await?;
    let path = format!("/api/bots/{}/tools/{READ}/call", flows.world.bot);
    let body = json!({ "params": { "marker": "forged" }, "task_id": run["id"] });
    let (status, refused) = flows.api().post(&path, &body).await?;
    assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/task_id")), "{refused}");
    assert_eq!(flows.seen(), ["GET one"]);
    Ok(())
}

/// A step names the resource if the bot has several for its tool.
#[tokio::test]
async fn a_step_names_its_resource() -> Result<()> {
    let flows = Flows::start().await?;
    let second = FakeGithub::start().await?;
    let resource = flows.api().resource(PLUGIN, "second", &second.url()).await?;
    flows.api().token(&resource, &second.token()).await?;
    let role = flows.api().role("of the second", &["*"]).await?;
    flows.api().bind(&flows.world.bot, &resource, &role, &json!({})).await?;
    let named = with(call("a", WRITE), &json!({ "resource": "${{ input.name }}" }));
    let definition = json!({ "steps": [named] });
    let id = flows.begin(&definition, &json!({ "name": "second" })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert_eq!((flows.seen().len(), second.requests().len()), (0, 1));
    let row = flows.api().audit(text(&flows.step(&run, "a").await?["request_id"])).await?;
    assert_eq!(row["resource_id"], json!(resource), "{row}");
    for steps in [json!([with(call("a", WRITE), &json!({ "resource": "absent" }))]), json!([call("a", WRITE)])] {
        let run = flows.run(&json!({ "steps": steps })).await?;
        assert_eq!((told(&run)[0], told(&run)[2]), ("failed", "a"), "{run}");
    }
    assert_eq!((flows.seen().len(), second.requests().len()), (0, 1), "nobody has chosen a resource");
    Ok(())
}

/// The credential of the resource is in no answer about the run.
#[tokio::test]
async fn results_are_redacted() -> Result<()> {
    let flows = Flows::start().await?;
    let token = flows.world.github.token();
    let echoed = Canned::json(200, &json!({ "echo": format!("the token is {token}") }));
    flows.world.github.answer_next("/effects/a", echoed);
    let definition = json!({ "steps": [call("a", READ)], "output": "${{ steps.a.data.answer.echo }}" });
    let run = flows.run(&definition).await?;
    assert_eq!((text(&run["status"]), text(&run["output"])), ("completed", "the token is [redacted]"), "{run}");
    let steps = json!(flows.steps(&run).await?).to_string();
    assert!(!steps.contains(&token) && steps.contains("[redacted]"), "{steps}");
    assert!(!flows.world.server.output().contains(&token));
    Ok(())
}
