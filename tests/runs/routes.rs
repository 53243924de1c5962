//! The routes of runs, with whole answers.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};

use super::{run_is, run_that_waits, started, waiting};
use crate::http::roles::faults;
use crate::http::{Answers, made, send};
use crate::tamper::sqlite;
use crate::world::{World, text};
use support::Api;

const ABSENT: &str = "01939d2c-7f6a-7000-8000-000000000001";

async fn show(api: &Api, path: &str) -> Result<Value> {
    let (status, shown) = api.get(path).await?;
    ensure!(status == 200, "{path}: {status} {shown}");
    Ok(shown)
}

async fn ask(api: &Api, run: &str, what: &str) -> Result<(u16, Value)> {
    api.post(&format!("/api/runs/{run}/{what}"), &json!({})).await
}

/// Returns the changes of runs in the audit, oldest first.
async fn changes(api: &Api) -> Result<Vec<String>> {
    let changes = show(api, "/api/audit/changes?limit=1000").await?;
    let names = changes["items"].as_array().into_iter().flatten().filter_map(|change| change["change"].as_str());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("run.")).map(str::to_owned).collect();
    names.reverse();
    Ok(names)
}

#[tokio::test]
async fn a_run_is_started_shown_and_listed() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let workflow = made(api, "/api/workflows", &waiting("release", &world.bot)).await?;
    let run = started(api, &workflow, &json!({ "repo": "acme/web" })).await?;
    let id = text(&run["id"]);
    let key = show(api, "/api/me").await?;
    let mut expected = json!({
        "id": id, "workflow_id": workflow, "workflow": "release", "version": 1, "bot_id": world.bot, "status": "queued",
        "attempt": 1, "input": { "repo": "acme/web" }, "labels": [], "started_by": { "kind": "key", "id": key["key_id"] },
        "created_at": run["created_at"], "started_at": null, "ended_at": null,
    });
    assert_eq!(run, expected);

    let waits = run_is(api, id, "waiting").await?;
    expected["status"] = json!("waiting");
    expected["started_at"] = waits["started_at"].clone();
    expected["waiting_for"] = json!([{ "step": "go", "kind": "event", "id": "custom.go" }]);
    assert_eq!(waits, expected);
    let steps = format!("/api/runs/{id}/steps");
    let listed = show(api, &steps).await?;
    let step = json!({
        "step": "go", "attempt": 1, "run_attempt": 1, "kind": "wait", "status": "waiting",
        "params": { "event": "custom.go", "match": {} }, "started_at": listed["items"][0]["started_at"], "ended_at": null,
    });
    assert_eq!(listed, json!({ "items": [step], "next_cursor": null }));
    let page = json!({ "items": [waits], "next_cursor": null });
    for query in [
        format!("/api/workflows/{workflow}/runs"),
        "/api/runs".to_owned(),
        format!("/api/runs?status=waiting&workflow_id={workflow}&started_by={}", text(&key["key_id"])),
        format!("/api/runs?since={}", text(&run["created_at"])),
    ] {
        assert_eq!(show(api, &query).await?, page, "{query}");
    }
    for query in ["status=completed", &format!("workflow_id={ABSENT}"), "started_by=x", "since=2100-01-01T00:00:00Z"] {
        assert_eq!(show(api, &format!("/api/runs?{query}")).await?["items"], json!([]), "{query}");
    }

    let (status, event) = api.post("/api/events", &json!({ "name": "go", "data": { "by": "a person" } })).await?;
    assert_eq!(status, 201, "{event}");
    let completed = run_is(api, id, "completed").await?;
    let expected = json!({
        "id": id, "workflow_id": workflow, "workflow": "release", "version": 1, "bot_id": world.bot,
        "status": "completed", "attempt": 1, "input": { "repo": "acme/web" }, "output": { "repo": "acme/web" },
        "labels": completed["labels"], "started_by": { "kind": "key", "id": key["key_id"] },
        "created_at": run["created_at"], "started_at": waits["started_at"], "ended_at": completed["ended_at"],
    });
    assert_eq!(completed, expected);
    assert!(completed["ended_at"].is_string());
    let ended = show(api, &steps).await?["items"][0].clone();
    assert_eq!((text(&ended["status"]), &ended["data"]["data"]["by"]), ("succeeded", &json!("a person")), "{ended}");
    assert_eq!(changes(api).await?, ["run.start"]);
    Ok(())
}

#[tokio::test]
async fn runs_that_cannot_start_are_refused() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let workflow = made(api, "/api/workflows", &waiting("release", &world.bot)).await?;
    let runs = format!("/api/workflows/{workflow}/runs");
    let input = json!({ "repo": "acme/web" });
    let mut answers = Answers::default();
    for (label, body) in [
        ("no input", json!({})),
        ("wrong input", json!({ "input": { "repo": 1 } })),
        ("unknown version", json!({ "input": input, "version": 2 })),
        ("version zero", json!({ "input": input, "version": 0 })),
        ("version null", json!({ "input": input, "version": null })),
        ("unknown field", json!({ "inputs": input })),
    ] {
        let (status, answer) = faults(api.post(&runs, &body).await?);
        let paths = answer.as_array().into_iter().flatten().map(|fault| fault["path"].clone());
        answers.add(label, (status, paths.collect()));
    }
    assert_snapshot!(answers, @r#"
    no input: 422 ["/input"]
    wrong input: 422 ["/input/repo"]
    unknown version: 422 ["/version"]
    version zero: 422 ["/version"]
    version null: 422 ["/version"]
    unknown field: 422 ["/inputs"]
    "#);
    assert_eq!(api.post(&format!("/api/workflows/{ABSENT}/runs"), &json!({})).await?.0, 404);
    assert_eq!(api.get(&format!("/api/workflows/{ABSENT}/runs")).await?.0, 404);
    for query in ["status=done", "since=yesterday", "workflow_id=x", "bot_id=x"] {
        assert_eq!(api.get(&format!("/api/runs?{query}")).await?.0, 422, "{query}");
    }
    assert_eq!(api.patch(&format!("/api/workflows/{workflow}"), &json!({ "enabled": false })).await?.0, 200);
    let (status, refused) = api.post(&runs, &json!({ "input": input })).await?;
    assert_eq!((status, text(&refused["detail"])), (409, "the workflow is disabled; enable it first"));
    assert_eq!(show(api, "/api/runs").await?["items"], json!([]));
    assert_eq!(changes(api).await?, Vec::<String>::new());
    Ok(())
}

/// A workflow that skips starts no run beyond its limit, and says so.
#[tokio::test]
async fn a_run_beyond_the_limit_of_a_workflow_that_skips_is_refused() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let steps = "  - { id: go, wait: { event: custom.go } }";
    let definition =
        format!("workflow: one\nbot: {}\nconcurrency: {{ max: 1, full: skip }}\nsteps:\n{steps}\n", world.bot);
    let workflow = made(api, "/api/workflows", &json!({ "definition": definition })).await?;
    let first = started(api, &workflow, &json!({})).await?;
    let runs = format!("/api/workflows/{workflow}/runs");
    let (status, refused) = api.post(&runs, &json!({})).await?;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(ask(api, text(&first["id"]), "cancel").await?.0, 202);
    run_is(api, text(&first["id"]), "cancelled").await?;
    assert_eq!(api.post(&runs, &json!({})).await?.0, 202);
    Ok(())
}

#[tokio::test]
async fn people_pause_resume_cancel_and_retry_a_run() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let (_, run) = run_that_waits(api, "release", &world.bot, "acme/web").await?;
    let id = text(&run["id"]);
    assert_eq!((ask(api, id, "resume").await?.0, ask(api, id, "retry").await?.0), (409, 409));
    let (status, _) = ask(api, id, "pause").await?;
    assert_eq!(status, 202);
    run_is(api, id, "paused").await?;
    assert_eq!(ask(api, id, "pause").await?.0, 202, "a second time changes nothing");
    assert_eq!(ask(api, id, "resume").await?.0, 202);
    run_is(api, id, "waiting").await?;
    let cancel = format!("/api/runs/{id}/cancel");
    assert_eq!(api.post(&cancel, &json!({ "undo": 1 })).await?.0, 422);
    assert_eq!(send(api.request(Method::POST, &cancel)).await?.0, 202, "the body may be missing");
    let cancelled = run_is(api, id, "cancelled").await?;
    assert_eq!((&cancelled["attempt"], cancelled.get("output")), (&json!(1), None));
    for what in ["pause", "resume", "cancel"] {
        assert_eq!(ask(api, id, what).await?.0, 409, "{what} after the end");
    }
    let resolve = json!({ "as": "succeeded" });
    for (step, body, expected) in [
        ("go", resolve.clone(), 409),
        ("absent", resolve, 409),
        ("go", json!({ "as": "failed", "data": 1 }), 422),
        ("go", json!({ "as": "maybe" }), 422),
        ("go", json!({}), 422),
    ] {
        let (status, refused) = api.post(&format!("/api/runs/{id}/steps/{step}/resolve"), &body).await?;
        assert_eq!(status, expected, "{step} {body}: {refused}");
    }
    let (status, again) = ask(api, id, "retry").await?;
    assert_eq!((status, &again["attempt"], &again["ended_at"]), (202, &json!(2), &Value::Null), "{again}");
    run_is(api, id, "waiting").await?;
    let steps = show(api, &format!("/api/runs/{id}/steps")).await?;
    let told =
        steps["items"].as_array().into_iter().flatten().map(|step| (&step["run_attempt"], text(&step["status"])));
    assert_eq!(told.collect::<Vec<_>>(), [(&json!(1), "cancelled"), (&json!(2), "waiting")], "{steps}");
    for what in ["cancel", "pause", "resume", "retry"] {
        assert_eq!(ask(api, ABSENT, what).await?.0, 404, "{what}");
    }
    assert_eq!(changes(api).await?, ["run.start", "run.pause", "run.resume", "run.cancel", "run.retry"]);
    Ok(())
}

#[tokio::test]
async fn a_repeated_request_starts_one_run() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let workflow = made(api, "/api/workflows", &waiting("release", &world.bot)).await?;
    let path = format!("/api/workflows/{workflow}/runs");
    let start = async |repo: &str| {
        let request = api.request(Method::POST, &path).header("idempotency-key", "k");
        send(request.json(&json!({ "input": { "repo": repo } }))).await
    };
    let (status, _, first) = start("a").await?;
    assert_eq!(status, 202, "{first}");
    let (status, headers, again) = start("a").await?;
    assert_eq!((status, again), (202, first));
    assert!(headers.contains_key("idempotent-replayed"));
    assert_eq!(start("b").await?.0, 409);
    assert_eq!(show(api, "/api/runs").await?["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}

/// A bot key starts, reads and cancels the runs of its bot, whose input may be the text of a stranger.
#[tokio::test]
async fn a_bot_key_reaches_the_runs_of_its_bot() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let workflow = made(api, "/api/workflows", &waiting("release", &world.bot)).await?;
    let other = api.bot("other").await?;
    let key = async |bot: &str| -> Result<Api> {
        let body = json!({ "name": bot, "kind": "bot", "bot_id": bot });
        Ok(api.with_key(text(&api.post("/api/keys", &body).await?.1["key"])))
    };
    let (own, other) = (key(&world.bot).await?, key(&other).await?);
    let run = started(&own, &workflow, &json!({ "repo": "acme/web" })).await?;
    let id = text(&run["id"]);
    assert_eq!(run["labels"], json!(["untrusted"]));
    let by_operator = started(api, &workflow, &json!({ "repo": "acme/web" })).await?;
    assert_eq!(by_operator["labels"], json!([]));
    run_is(&own, id, "waiting").await?;
    let (runs, steps) = (format!("/api/workflows/{workflow}/runs"), format!("/api/runs/{id}/steps"));
    for path in [&runs, &steps, &format!("/api/runs/{}", text(&by_operator["id"]))] {
        assert_eq!((own.get(path).await?.0, other.get(path).await?.0), (200, 404), "{path}");
    }
    assert_eq!(show(&own, "/api/runs").await?["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(show(&other, "/api/runs").await?["items"], json!([]));
    assert_eq!(other.post(&runs, &json!({ "input": { "repo": "a" } })).await?.0, 404);
    assert_eq!((ask(&other, id, "cancel").await?.0, other.get(&format!("/api/runs/{id}/events")).await?.0), (404, 404));
    for what in ["pause", "resume", "retry"] {
        assert_eq!(ask(&own, id, what).await?.0, 403, "{what}");
    }
    let resolve = format!("/api/runs/{id}/steps/go/resolve");
    assert_eq!(own.post(&resolve, &json!({ "as": "succeeded" })).await?.0, 403);
    let approver = api.with_key(&api.new_key("approver", None).await?);
    assert_eq!((approver.get("/api/runs").await?.0, ask(&approver, id, "cancel").await?.0), (403, 403));
    assert_eq!(ask(&own, id, "cancel").await?.0, 202);
    run_is(&own, id, "cancelled").await?;
    Ok(())
}

/// Returns the names and the ids of the events of a stream, and its text.
async fn events(api: &Api, path: &str, after: Option<&str>) -> Result<(Vec<String>, Vec<String>, String)> {
    let mut request = api.request(Method::GET, path);
    if let Some(after) = after {
        request = request.header("last-event-id", after);
    }
    let stream = request.send().await?.text().await?;
    let field = |name: &str| {
        let values = stream.lines().filter_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()));
        values.collect::<Vec<String>>()
    };
    Ok((field("event:"), field("id:"), stream))
}

#[tokio::test]
async fn a_listener_continues_where_it_was() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let (_, run) = run_that_waits(api, "release", &world.bot, "acme/web").await?;
    let id = text(&run["id"]);
    assert_eq!(ask(api, id, "cancel").await?.0, 202);
    run_is(api, id, "cancelled").await?;
    let path = format!("/api/runs/{id}/events");
    let (names, ids, stream) = events(api, &path, None).await?;
    assert_eq!(names, ["run", "step", "end"], "{stream}");
    let last = ids.last().context("an event has an id")?;
    let (names, _, stream) = events(api, &path, Some(last)).await?;
    assert_eq!(names, ["run", "end"], "{stream}");
    let request = api.request(Method::GET, &path).header("last-event-id", "x");
    assert_eq!(send(request).await?.0, 422);
    assert_eq!(api.get(&format!("/api/runs/{ABSENT}/events")).await?.0, 404);
    Ok(())
}

/// A run that another program has edited is shown without its content, and hides no others.
#[tokio::test]
async fn an_edited_run_is_marked() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let (_, edited) = run_that_waits(&world.api, "release", &world.bot, "acme/web").await?;
    let (_, other) = run_that_waits(&world.api, "other", &world.bot, "acme/web").await?;
    let id = text(&edited["id"]).to_owned();
    let folder = world.server.data_dir();
    world.server.kill().await?;
    sqlite(&folder, &[&format!("update runs set version = 2, labels = '' where id = '{id}'")]).await?;
    world.server.launch().await?;
    world.api = world.server.api()?;
    let api = &world.api;
    let shown = show(api, &format!("/api/runs/{id}")).await?;
    let error = json!({ "code": "record", "message": "the record of the run cannot be opened" });
    assert_eq!((&shown["error"], &shown["labels"], shown.get("input")), (&error, &json!(["*"]), None), "{shown}");
    let listed = show(api, "/api/runs").await?;
    assert_eq!(listed["items"], json!([other, shown]));
    for what in ["cancel", "pause"] {
        let (status, refused) = ask(api, &id, what).await?;
        assert_eq!((status, text(&refused["detail"])), (409, "the run was edited by another program"), "{what}");
    }
    Ok(())
}
