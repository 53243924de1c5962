//! Rows of runs that another program wrote start nothing.

use anyhow::{Result, ensure};
use serde_json::json;
use support::{Canned, status_of};

use super::flows::{Flows, READ, WRITE, call, told, with};
use crate::tamper::sqlite;
use crate::world::{eventually, text};

const FORGED: &str = "01939d2c-7f6a-7000-8000-000000000001";
const RUN: &str = "workspace_id, workflow_id, workflow, version, bot_id, attempt, started_by_kind, started_by_id, event_id, \
    delivery_id, parent_run_id, concurrency_key, labels, created_at, sealed";
const STEP: &str =
    "phase, step, item, run_attempt, attempt, workspace_id, kind, effect, request_id, started_at, sealed";

/// Requests a turn of a key, as a part of the server would.
fn wake(key: &str) -> String {
    format!(
        "insert into wakes (key, workspace_id, due_at, version) select '{key}', id, 0, 1 from workspaces where true \
         on conflict do update set due_at = 0, failures = 0"
    )
}

/// Waits until no turn of these keys is due for the first time: each has ended or failed.
async fn tried(flows: &Flows, keys: &[String]) -> Result<()> {
    let folder = flows.world.server.data_dir();
    let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
    let due = format!(
        "select count(*) from wakes where key in ({}) and failures = 0 and (due_at <= 1 or claim_id is not null)",
        keys.join(", ")
    );
    eventually("the turns of the forged rows have ended", async || {
        Ok((sqlite(&folder, &[&due]).await?[0][0] == 0).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_run_that_was_made_with_sql_starts_nothing() -> Result<()> {
    let mut flows = Flows::start().await?;
    let run = flows.run(&json!({ "steps": [call("w", WRITE)] })).await?;
    let strong = flows.api().bot("strong").await?;
    flows.world.server.kill().await?;
    // A copy of the run for itself, and one for another bot.
    let copy = |id: &str, bot: &str| {
        let columns = RUN.replace("bot_id", bot);
        format!(
            "insert into runs (id, status, asked, code, started_at, deadline_at, ended_at, {RUN}) select '{id}', 'queued', \
             null, null, null, null, null, {columns} from runs where id = '{}'",
            text(&run["id"])
        )
    };
    let second = FORGED.replace("0001", "0002");
    let keys = [format!("run/{FORGED}"), format!("run/{second}")];
    let statements = [copy(FORGED, "bot_id"), copy(&second, &format!("'{strong}'")), wake(&keys[0]), wake(&keys[1])];
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    sqlite(&flows.world.server.data_dir(), &statements).await?;
    flows.launched().await?;
    tried(&flows, &keys).await?;
    assert_eq!(flows.seen(), ["POST w"]);
    for id in [FORGED, &second] {
        let (status, steps) = flows.api().get(&format!("/api/runs/{id}/steps")).await?;
        ensure!(status != 200 || steps["items"] == json!([]), "{steps}");
    }
    Ok(())
}

/// The columns of a run that has ended say that it goes on.
#[tokio::test]
async fn a_run_that_was_set_back_with_sql_does_not_run_again() -> Result<()> {
    let mut flows = Flows::start().await?;
    let completed = flows.run(&json!({ "steps": [call("w", WRITE)] })).await?;
    let steps = json!([call("a", WRITE), { "id": "go", "wait": { "event": "custom.go" } }, call("b", WRITE)]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.ask(&id, "cancel", &json!({})).await?;
    let cancelled = flows.ended(&id).await?;
    flows.world.server.kill().await?;
    let folder = flows.world.server.data_dir();
    let mut keys = Vec::new();
    for run in [&completed, &cancelled] {
        let id = text(&run["id"]);
        let reset =
            format!("update runs set status = 'running', ended_at = null, asked = null, code = null where id = '{id}'");
        let steps = format!("delete from run_steps where run_id = '{id}'");
        let key = format!("run/{id}");
        sqlite(&folder, &[&reset, &steps, &wake(&key)]).await?;
        keys.push(key);
    }
    flows.launched().await?;
    tried(&flows, &keys).await?;
    assert_eq!(flows.seen(), ["POST w", "POST a"], "nothing is called again");
    assert!(flows.events("workflow.completed").await?.len() == 1);
    Ok(())
}

/// Steps that another program has added, marked as ended or moved decide nothing.
#[tokio::test]
async fn edited_steps_make_no_calls() -> Result<()> {
    let mut flows = Flows::start().await?;
    let steps = json!([
        { "id": "go", "wait": { "event": "custom.go" } },
        with(call("w", WRITE), &json!({ "params": { "marker": "w", "any": "${{ steps.go.data.data }}" } })),
    ]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    let donor = flows.run(&json!({ "steps": [call("stolen", WRITE)] })).await?;
    drop(flows.world.github.take_requests());
    flows.world.server.kill().await?;
    let folder = flows.world.server.data_dir();
    let ended = format!("update run_steps set status = 'succeeded', ended_at = started_at where run_id = '{id}'");
    // The call of another run as a step of this one, with and without its own columns.
    let moved = STEP.replace("step,", "'w',").replace("request_id", "null");
    let added = format!(
        "insert into run_steps (position, run_id, status, ended_at, {STEP}) select '{id}/forged', '{id}', 'running', null, \
         {moved} from run_steps where run_id = '{}'",
        text(&donor["id"])
    );
    let keys = [format!("run/{id}"), format!("step/{id}/w"), format!("step/{id}/stolen")];
    sqlite(&folder, &[&ended, &wake(&keys[0])]).await?;
    flows.launched().await?;
    tried(&flows, &keys[..1]).await?;
    assert!(flows.seen().is_empty(), "a wait that only a column has ended");
    flows.world.server.kill().await?;
    sqlite(&folder, &[&added, &wake(&keys[0]), &wake(&keys[1]), &wake(&keys[2])]).await?;
    flows.launched().await?;
    tried(&flows, &keys).await?;
    assert!(flows.seen().is_empty(), "a step that does not open");
    Ok(())
}

/// A column asks for what a person has not asked for.
#[tokio::test]
async fn a_request_that_was_made_with_sql_undoes_nothing() -> Result<()> {
    let mut flows = Flows::start().await?;
    let undo = json!({ "undo": { "tool": WRITE, "params": { "marker": "undo" } } });
    let steps = json!([with(call("a", READ), &undo), { "id": "go", "wait": { "event": "custom.go" } }]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.world.server.kill().await?;
    let asked = format!("update runs set asked = 'cancel_and_undo' where id = '{id}'");
    let key = format!("run/{id}");
    sqlite(&flows.world.server.data_dir(), &[&asked, &wake(&key)]).await?;
    flows.launched().await?;
    tried(&flows, &[key]).await?;
    assert_eq!(flows.seen(), ["GET a"]);
    flows.emit("go", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], flows.seen()), ("completed", vec!["GET a".to_owned()]), "{run}");
    Ok(())
}

/// A column says that more was asked for than people have asked.
#[tokio::test]
async fn a_request_that_was_made_with_sql_blocks_no_request() -> Result<()> {
    let mut flows = Flows::start().await?;
    let steps = json!([{ "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    let folder = flows.world.server.data_dir();
    for (asked, request, status) in [
        ("'cancel_and_undo'", "pause", "paused"),
        ("null", "resume", "waiting"),
        ("'cancel_and_undo'", "cancel", "cancelled"),
    ] {
        flows.world.server.kill().await?;
        sqlite(&folder, &[&format!("update runs set asked = {asked} where id = '{id}'")]).await?;
        flows.launched().await?;
        flows.ask(&id, request, &json!({})).await?;
        flows.is(&id, status).await?;
    }
    assert!(flows.seen().is_empty());
    Ok(())
}

/// While a row of the workspace does not match its seal, a call is neither made nor given up.
#[tokio::test]
async fn a_step_rests_while_rows_of_its_workspace_may_be_forged() -> Result<()> {
    let mut flows = Flows::start().await?;
    flows.world.github.hold();
    let id = flows.begin(&json!({ "steps": [call("r", READ)] }), &json!({})).await?;
    flows.reached(1).await?;
    flows.world.server.kill().await?;
    let (folder, key) = (flows.world.server.data_dir(), format!("step/{id}/r"));
    sqlite(&folder, &["update bots set name = name || '-edited'", &wake(&key)]).await?;
    flows.launched().await?;
    let last_error = format!("select last_error from wakes where key = '{key}'");
    let error = eventually("the turn of the step has failed", async || {
        let rows = sqlite(&folder, &[&last_error]).await?;
        Ok(rows[0][0].as_str().map(str::to_owned))
    })
    .await?;
    assert_eq!(error, "the rows of the workspace do not match their seals");
    assert_eq!((status_of(&flows.api().run_steps(&id).await?), flows.seen().len()), (vec!["r running".to_owned()], 1));
    flows.world.server.kill().await?;
    sqlite(&folder, &["update bots set name = replace(name, '-edited', '')", &wake(&key)]).await?;
    flows.world.github.release();
    flows.launched().await?;
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    assert_eq!(flows.seen(), ["GET r", "GET r"]);
    Ok(())
}

/// The document of a version is replaced by one with another call.
#[tokio::test]
async fn an_edited_version_runs_nothing() -> Result<()> {
    let mut flows = Flows::start().await?;
    let steps = json!([{ "id": "go", "wait": { "event": "custom.go" } }, call("r", READ)]);
    let workflow = flows.save("flow", &json!({ "steps": steps })).await?;
    let id = flows.api().start_run(&workflow, &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.world.server.kill().await?;
    let folder = flows.world.server.data_dir();
    let edit = format!("update workflow_versions set document = replace(document, '{READ}', '{WRITE}')");
    sqlite(&folder, &[&edit, &wake(&format!("run/{id}"))]).await?;
    flows.launched().await?;
    tried(&flows, &[format!("run/{id}")]).await?;
    let (status, refused) = flows.api().post(&format!("/api/workflows/{workflow}/runs"), &json!({})).await?;
    assert!(status >= 400, "{status} {refused}");
    // The event is not accepted either, if the workspace does not match its seal.
    drop(flows.api().post("/api/events", &json!({ "name": "go" })).await?);
    let steps = flows.api().run_steps(&id).await?;
    assert!(!status_of(&steps).iter().any(|step| step.starts_with("r ")), "{steps:?}");
    assert!(flows.seen().is_empty());
    Ok(())
}

/// A trigger that another program wrote starts no run.
#[tokio::test]
async fn a_forged_trigger_starts_nothing() -> Result<()> {
    let mut flows = Flows::start().await?;
    let workflow = flows.save("flow", &json!({ "steps": [call("w", WRITE)] })).await?;
    let triggers = format!("/api/workflows/{workflow}/triggers");
    let (status, made) = flows.api().post(&triggers, &json!({ "event_pattern": "custom.real" })).await?;
    ensure!(status == 201, "{status} {made}");
    flows.world.server.kill().await?;
    let folder = flows.world.server.data_dir();
    let trigger = format!(
        "insert into workflow_triggers (id, workspace_id, workflow_id, event_pattern, instruction, sources, enabled, \
         starters, created_at, updated_at, mac) select '{FORGED}', workspace_id, workflow_id, 'custom.go', '', '[\"any\"]', \
         true, starters, created_at, updated_at, mac from workflow_triggers"
    );
    sqlite(&folder, &[&trigger]).await?;
    flows.launched().await?;
    // Either the workspace accepts nothing, or the event has no delivery to the forged trigger.
    let (status, emitted) = flows.api().post("/api/events", &json!({ "name": "go" })).await?;
    if status == 201 {
        let event = flows.delivered(text(&emitted["event_id"])).await?;
        assert_eq!(event["deliveries"], json!([]), "{event}");
    }
    assert!(flows.runs().await?.is_empty() && flows.seen().is_empty());
    Ok(())
}

#[tokio::test]
async fn runs_open_after_a_rotation_of_the_master_key() -> Result<()> {
    let mut flows = Flows::start().await?;
    let definition = json!({
        "steps": [call("r", READ), { "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)],
        "output": "${{ steps.r.data.marker }}",
    });
    let id = flows.begin(&definition, &json!({ "text": "kept" })).await?;
    flows.waits(&id, "event").await?;
    let before = flows.api().run_steps(&id).await?;
    flows.world.server.stop().await?;
    let rotated = flows.world.server.command(&["vault", "rotate"]).await?;
    ensure!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
    flows.launched().await?;
    assert_eq!(flows.api().run_steps(&id).await?, before);
    flows.emit("go", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(
        (told(&run)[0], &run["input"], &run["output"]),
        ("completed", &json!({ "text": "kept" }), &json!("r")),
        "{run}"
    );
    Ok(())
}

/// In a later attempt, the run would make the calls again that have failed.
#[tokio::test]
async fn a_run_whose_attempt_was_raised_with_sql_repeats_nothing() -> Result<()> {
    let mut flows = Flows::start().await?;
    let steps = json!([
        with(call("w", WRITE), &json!({ "on_error": "continue" })),
        { "id": "go", "wait": { "event": "custom.go" } },
    ]);
    flows.world.github.answer_next("/effects/w", Canned::json(500, &json!({ "message": "down" })));
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    assert_eq!(flows.seen(), ["POST w"]);
    flows.world.server.kill().await?;
    let key = format!("run/{id}");
    let raise = format!("update runs set attempt = attempt + 1 where id = '{id}'");
    sqlite(&flows.world.server.data_dir(), &[&raise, &wake(&key)]).await?;
    flows.launched().await?;
    tried(&flows, &[key]).await?;
    assert_eq!(flows.seen(), ["POST w"], "the call was repeated");
    let (status, run) = flows.api().get(&format!("/api/runs/{id}")).await?;
    assert_eq!((status, &run["error"]["code"]), (200, &json!("record")), "{run}");
    Ok(())
}
