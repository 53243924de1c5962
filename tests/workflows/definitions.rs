//! Definitions of workflows, and their versions.

use anyhow::Result;
use reqwest::Method;
use serde_json::{Value, json};

use super::{changes, definition, definition_with, new_workflow, show, workflow};
use crate::http::{made, send};
use crate::world::{World, text};

#[tokio::test]
async fn a_workflow_is_saved_versioned_and_deleted() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let (status, created) = api.post("/api/workflows", &new_workflow("release", "tester")).await?;
    assert_eq!(status, 201, "{created}");
    let expected = json!({
        "id": created["id"], "name": "release", "bot_id": world.bot, "version": 1, "enabled": true,
        "definition": definition("release", "tester"), "warnings": [], "created_at": created["created_at"],
        "updated_at": created["created_at"],
    });
    assert_eq!(created, expected, "the bot of a definition can be named");
    let path = format!("/api/workflows/{}", text(&created["id"]));
    assert_eq!(show(api, &path).await?, created);

    // The same document makes no version, whatever else the request changes.
    let (status, same) = api.patch(&path, &new_workflow("release", "tester")).await?;
    assert_eq!((status, &same), (200, &created));
    let mut both = new_workflow("release", "tester");
    both["enabled"] = json!(false);
    let (_, disabled) = api.patch(&path, &both).await?;
    assert_eq!((&disabled["version"], &disabled["enabled"]), (&json!(1), &json!(false)));
    // Another spelling of the bot is the same bot.
    let second = definition_with("release", &world.bot, "{ id: tell, emit: other }");
    let (status, changed) = api.patch(&path, &json!({ "definition": second })).await?;
    assert_eq!((status, &changed["version"], &changed["enabled"]), (200, &json!(2), &json!(false)), "{changed}");
    assert_eq!(show(api, &path).await?, changed);
    let object = json!({ "workflow": "release", "bot": world.bot, "steps": [{ "id": "tell", "emit": "third" }] });
    let (status, changed) = api.patch(&path, &json!({ "definition": object })).await?;
    assert_eq!((status, &changed["version"], &changed["definition"]), (200, &json!(3), &object), "{changed}");

    let versions = show(api, &format!("{path}/versions")).await?;
    let numbers: Vec<i64> =
        versions["items"].as_array().into_iter().flatten().filter_map(|item| item["version"].as_i64()).collect();
    assert_eq!(numbers, [3, 2, 1]);
    let first = show(api, &format!("{path}/versions/1")).await?;
    let expected = json!({
        "version": 1, "digest": first["digest"], "saved_by": first["saved_by"], "created_at": created["created_at"],
        "definition": definition("release", "tester"),
    });
    assert_eq!((&first, &first["saved_by"]["kind"]), (&expected, &json!("key")));
    assert_eq!(show(api, &format!("{path}/versions/3")).await?["definition"], object);
    for absent in ["0", "4", "-1", "x", "99999999999999999999"] {
        assert_eq!(api.get(&format!("{path}/versions/{absent}")).await?.0, 404, "{absent}");
    }

    let listed = show(api, "/api/workflows").await?;
    let summary = json!({
        "id": created["id"], "name": "release", "bot_id": world.bot, "version": 3, "enabled": false,
        "created_at": created["created_at"], "updated_at": changed["updated_at"],
    });
    assert_eq!(listed, json!({ "items": [summary], "next_cursor": null }));
    assert_eq!(api.delete(&format!("/api/bots/{}", world.bot)).await?.0, 409, "a bot with workflows");
    assert_eq!(api.delete(&path).await?.0, 204);
    assert_eq!((api.get(&path).await?.0, api.delete(&path).await?.0), (404, 404));
    assert_eq!(api.get(&format!("{path}/versions/1")).await?.0, 404);
    let mut saved = changes(api).await?;
    saved.retain(|change| change.starts_with("workflow."));
    let expected = ["workflow.delete", "workflow.update", "workflow.update", "workflow.update", "workflow.create"];
    assert_eq!(saved, expected, "what changes nothing is not recorded");
    assert_eq!(api.delete(&format!("/api/bots/{}", world.bot)).await?.0, 204);
    Ok(())
}

#[tokio::test]
async fn the_name_and_the_bot_of_a_workflow_never_change() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let other = api.bot("other").await?;
    let path = workflow(api, "release", &world.bot).await?;
    let before = show(api, &path).await?;
    for (definition, place) in
        [(definition("renamed", &world.bot), "/workflow"), (definition("release", &other), "/bot")]
    {
        let (status, refused) = api.patch(&path, &json!({ "definition": definition })).await?;
        assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!(place)), "{refused}");
    }
    assert_eq!(show(api, &path).await?, before);
    // A name is unique in the workspace, also for another bot.
    let (status, taken) = api.post("/api/workflows", &new_workflow("release", &other)).await?;
    assert_eq!((status, text(&taken["detail"])), (409, "the name is already used in this workspace"));
    Ok(())
}

#[tokio::test]
async fn errors_of_a_definition_have_their_places() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let faulty = format!(
        "workflow: release\nbot: {}\nstepz: 1\nsteps:\n  - {{ id: a, emit: x, needs: [b] }}\n  - {{ id: a }}\n",
        world.bot
    );
    for path in ["/api/workflows", "/api/workflows/validate"] {
        let (status, refused) = api.post(path, &json!({ "definition": faulty })).await?;
        let errors = refused["errors"].as_array().cloned().unwrap_or_default();
        assert_eq!((status, text(&refused["type"])), (422, "urn:monstrum:error:invalid"), "{refused}");
        assert!(errors.len() >= 3, "every error is named: {refused}");
        let at = |line: u64| errors.iter().any(|error| error["line"] == line && error["column"].as_u64() > Some(0));
        assert!(at(3) && at(5) && at(6), "{refused}");
        assert!(errors.iter().all(|error| !text(&error["message"]).is_empty()), "{refused}");
        // The text of a definition in YAML is the body.
        let request = api.request(Method::POST, path).header("content-type", "application/yaml; charset=utf-8");
        let (status, _, in_yaml) = send(request.body(faulty.clone())).await?;
        assert_eq!((status, &in_yaml["errors"]), (422, &refused["errors"]));
    }
    for (body, place) in [
        (json!({ "definition": 1 }), "/definition"),
        (json!({ "definition": ["workflow"] }), "/definition"),
        (json!({}), "/definition"),
        (json!({ "definition": definition("release", "nobody") }), "/bot"),
        (
            json!({ "definition": { "workflow": "release", "bot": "nobody", "steps": [{ "id": "a", "emit": "b" }] } }),
            "/bot",
        ),
    ] {
        let (status, refused) = api.post("/api/workflows", &body).await?;
        let errors = refused["errors"].as_array().cloned().unwrap_or_default();
        assert!(status == 422 && errors.iter().any(|error| error["path"] == place), "{body}: {refused}");
    }
    let request = api.request(Method::POST, "/api/workflows").header("content-type", "application/yaml");
    assert_eq!(send(request.body(vec![0xff])).await?.0, 422, "not UTF-8");
    assert_eq!(show(api, "/api/workflows").await?["items"], json!([]), "nothing was saved");
    Ok(())
}

#[tokio::test]
async fn a_definition_is_checked_without_being_saved() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let valid = json!({ "name": "release", "bot_id": world.bot, "warnings": [] });
    let body = definition("release", &world.bot);
    let answer = api.post("/api/workflows/validate", &json!({ "definition": body })).await?;
    assert_eq!(answer, (200, valid.clone()));
    let request = api.request(Method::POST, "/api/workflows/validate").header("content-type", "application/yaml");
    let (status, _, answer) = send(request.body(body)).await?;
    assert_eq!((status, answer), (200, valid));
    assert_eq!(show(api, "/api/workflows").await?["items"], json!([]));
    assert!(!changes(api).await?.iter().any(|change| change.starts_with("workflow")));
    Ok(())
}

/// A tool that the bot has not is a warning, because an admin may bind it later.
#[tokio::test]
async fn a_tool_that_the_bot_does_not_have_is_a_warning() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let api = &world.api;
    let step = "{ id: run, tool: test_echo_run, params: { repo: acme/web } }";
    let body = json!({ "definition": definition_with("release", &world.bot, step) });
    let (status, created) = api.post("/api/workflows", &body).await?;
    assert_eq!(status, 201, "{created}");
    let warnings = created["warnings"].as_array().cloned().unwrap_or_default();
    assert_eq!((warnings.len(), &warnings[0]["line"]), (1, &json!(4)), "{created}");
    assert!(warnings[0]["message"].as_str().is_some_and(|message| message.contains("test_echo_run")), "{created}");
    let path = format!("/api/workflows/{}", text(&created["id"]));
    assert_eq!(show(api, &path).await?["warnings"], created["warnings"]);
    world.grant_all("test-echo").await?;
    assert_eq!(show(api, &path).await?["warnings"], json!([]), "warnings are about the bot of now");
    // What cannot be right for the tool is an error.
    let wrong = definition_with("other", &world.bot, "{ id: run, tool: test_echo_run, params: { repo: 5 } }");
    let (status, refused) = api.post("/api/workflows", &json!({ "definition": wrong })).await?;
    assert_eq!(status, 422, "{refused}");
    assert_eq!(refused["errors"][0]["line"], json!(4), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_repeated_request_creates_one_workflow() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let create = async || -> Result<(u16, Value)> {
        let request = api.request(Method::POST, "/api/workflows").header("idempotency-key", "k");
        let (status, _, answer) = send(request.json(&new_workflow("release", &world.bot))).await?;
        Ok((status, answer))
    };
    let first = create().await?;
    assert_eq!((first.0, create().await?), (201, first.clone()));
    let of_bot = show(api, &format!("/api/workflows?bot_id={}", world.bot)).await?;
    assert_eq!(of_bot["items"].as_array().map(Vec::len), Some(1));
    let other = made(api, "/api/bots", &json!({ "name": "other" })).await?;
    assert_eq!(show(api, &format!("/api/workflows?bot_id={other}")).await?["items"], json!([]));
    assert_eq!(api.get("/api/workflows?bot_id=x").await?.0, 422);
    Ok(())
}

/// A workflow that runs itself through others is refused, and so is one that runs so many that the search would be long.
#[tokio::test]
async fn workflows_do_not_run_each_other_in_a_circle_or_without_end() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let runs = |name: &str, called: &str| {
        let block = format!("{{ id: c, each: [1], steps: [{{ id: run, workflow: {called} }}] }}");
        json!({ "definition": definition_with(name, &world.bot, &block) })
    };
    made(api, "/api/workflows", &runs("second", "third")).await?;
    made(api, "/api/workflows", &runs("third", "first")).await?;
    let (status, refused) = api.post("/api/workflows", &runs("first", "second")).await?;
    let message = text(&refused["errors"][0]["message"]).to_owned();
    assert!(status == 422 && message.contains("`first` would run itself"), "{refused}");

    let many = |count: usize| {
        let steps: Vec<Value> =
            (0..count).map(|at| json!({ "id": format!("s{at}"), "workflow": format!("w{at}") })).collect();
        json!({ "definition": { "workflow": "many", "bot": world.bot, "steps": steps } })
    };
    let (status, refused) = api.post("/api/workflows/validate", &many(33)).await?;
    let message = text(&refused["errors"][0]["message"]).to_owned();
    assert!(status == 422 && message.contains("more than 32 other workflows"), "{refused}");
    let (status, valid) = api.post("/api/workflows/validate", &many(32)).await?;
    assert_eq!((status, valid["warnings"].as_array().map(Vec::len)), (200, Some(32)), "{valid}");
    Ok(())
}

/// Written with a line for each value, a small object could be larger than any definition.
#[tokio::test]
async fn a_definition_that_is_too_large_is_refused() -> Result<()> {
    let world = World::with(&[]).await?;
    let mut deep = json!(vec![1; 60_000]);
    for _ in 0..40 {
        deep = json!([deep]);
    }
    for large in [json!({ "steps": deep }), json!({ "steps": "x".repeat(300_000) }), json!("x".repeat(300_000))] {
        let (status, refused) = world.api.post("/api/workflows", &json!({ "definition": large })).await?;
        let message = text(&refused["errors"][0]["message"]).to_owned();
        assert_eq!((status, message.as_str()), (422, "the definition has more than 256 KiB"));
    }
    Ok(())
}
