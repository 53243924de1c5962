//! Resources of type `llm`, and the fields of bots about models and tasks, by the API.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use super::resource;
use crate::cli::{succeed, told};
use crate::http::roles::faults;
use crate::http::{Answers, made};
use crate::world::text;

#[tokio::test]
async fn the_faults_of_a_configuration_are_named() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let url = "https://llm.example/v1";
    let with = |model: &Value, config: &Value| resource("models", url, model, config);
    for (body, path) in [
        (with(&json!({}), &json!({ "models": [] })), "/config/models"),
        (with(&json!({}), &json!({ "models": "small" })), "/config/models"),
        (with(&json!({ "size": 5 }), &json!({})), "/config/models/0"),
        (with(&json!({ "price": { "input": -1, "output": 1 } }), &json!({})), "/config/models/0/price"),
        (with(&json!({ "price": { "input": 1 } }), &json!({})), "/config/models/0/price"),
        (with(&json!({ "context_tokens": 0 }), &json!({})), "/config/models/0/context_tokens"),
        (with(&json!({}), &json!({ "api_base": "https://llm.example/v1?x=1" })), "/config/api_base"),
        (with(&json!({}), &json!({ "idle_s": 0 })), "/config/idle_s"),
        (with(&json!({}), &json!({ "total_s": 3601 })), "/config/total_s"),
        (with(&json!({}), &json!({ "concurrent": 0 })), "/config/concurrent"),
        (with(&json!({}), &json!({ "key_header": "a b" })), "/config/key_header"),
    ] {
        let (status, answer) = api.post("/api/resources", &body).await?;
        let named = text(&answer["errors"][0]["path"]);
        assert!(status == 422 && named.starts_with(path), "{path}: {status} {answer}");
    }
    let mut answers = Answers::default();
    for (label, model) in [
        ("own field", json!({ "extra": { "top_k": 1, "max_tokens": 5 } })),
        ("own field beside one with a slash", json!({ "extra": { "a/b": 1, "n": 2 } })),
        ("longer than its context", json!({ "output_tokens": 9000 })),
        ("two models of one name", json!({ "alias": "small" })),
    ] {
        answers.add(label, faults(api.post("/api/resources", &with(&model, &json!({}))).await?));
    }
    assert_snapshot!(answers, @r#"
    own field: 422 [{"path":"/config/models/0/extra/max_tokens","message":"`extra` of the model cannot have the field `max_tokens`, which the host writes itself; remove it"}]
    own field beside one with a slash: 422 [{"path":"/config/models/0/extra/n","message":"`extra` of the model cannot have the field `n`, which the host writes itself; remove it"}]
    longer than its context: 422 [{"path":"/config/models/0/output_tokens","message":"must not be more than `context_tokens`"}]
    two models of one name: 422 [{"path":"/config/models/0/alias","message":"another model has this name"}]
    "#);
    let whole = json!({
        "alias": "s", "tools": false, "parallel_tools": false, "vision": true, "tool_schema": "plain",
        "price": { "input": 0.5, "cached_input": 0.1, "output": 2 }, "output_field": "max_completion_tokens",
        "extra": { "top_k": 1 },
    });
    let id = made(&api, "/api/resources", &with(&whole, &json!({ "key_header": "api-key", "concurrent": 2 }))).await?;
    let path = format!("/api/resources/{id}");
    let broken = with(&json!({ "extra": { "stream": false } }), &json!({}));
    let (status, answer) = api.patch(&path, &json!({ "config": broken["config"] })).await?;
    assert_eq!((status, text(&answer["errors"][0]["path"])), (422, "/config/models/0/extra/stream"));
    let (_, shown) = api.get(&path).await?;
    assert_eq!(shown["config"]["models"][0]["price"], whole["price"]);
    Ok(())
}

#[tokio::test]
async fn the_fields_of_a_bot_about_models_are_checked_and_need_an_admin_where_they_widen() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let mut answers = Answers::default();
    for body in [
        json!({ "model_fallbacks": ["a/b", "c/d", "e/f", "g/h", "i/j"] }),
        json!({ "model_fallbacks": ["a", "/b", "c/"] }),
        json!({ "task_limits": { "steps": 0, "tokens": 0, "credits": 0, "wall_s": 0 } }),
        json!({ "task_limits": { "steps": 1001, "wall_s": 604_801 } }),
        json!({ "task_limits": { "time": 1 } }),
        json!({ "session_idle_s": 59 }),
    ] {
        let mut new = body.clone();
        new["name"] = json!("x");
        answers.add(&body.to_string(), faults(api.post("/api/bots", &new).await?));
    }
    assert_snapshot!(answers, @r#"
    {"model_fallbacks":["a/b","c/d","e/f","g/h","i/j"]}: 422 [{"path":"/model_fallbacks","message":"must have at most 4 entries"}]
    {"model_fallbacks":["a","/b","c/"]}: 422 [{"path":"/model_fallbacks/0","message":"expected `resource/model`"},{"path":"/model_fallbacks/1","message":"expected `resource/model`"},{"path":"/model_fallbacks/2","message":"expected `resource/model`"}]
    {"task_limits":{"steps":0,"tokens":0,"credits":0,"wall_s":0}}: 422 [{"path":"/task_limits/steps","message":"must be 1 to 1000"},{"path":"/task_limits/tokens","message":"must be at least 1"},{"path":"/task_limits/credits","message":"must be more than 0"},{"path":"/task_limits/wall_s","message":"must be 1 to 604800"}]
    {"task_limits":{"steps":1001,"wall_s":604801}}: 422 [{"path":"/task_limits/steps","message":"must be 1 to 1000"},{"path":"/task_limits/wall_s","message":"must be 1 to 604800"}]
    {"task_limits":{"time":1}}: 422 [{"path":"/task_limits/time","message":"unknown field `time`, expected one of `steps`, `tokens`, `credits`, `wall_s`"}]
    {"session_idle_s":59}: 422 [{"path":"/session_idle_s","message":"must be 60 to 31536000"}]
    "#);
    let operator = api.with_key(&api.new_key("operator", None).await?);
    let free = json!({ "name": "free", "model": "m/a", "model_fallbacks": ["m/b"], "session_idle_s": 60 });
    let bot = format!("/api/bots/{}", made(&operator, "/api/bots", &free).await?);
    for widening in [json!({ "task_limits": { "steps": 5 } }), json!({ "client_tools": true })] {
        assert_eq!(operator.patch(&bot, &widening).await?.0, 403, "{widening}");
        let mut new = widening.clone();
        new["name"] = json!("wide");
        assert_eq!(operator.post("/api/bots", &new).await?.0, 403, "{widening}");
        let (status, changed) = api.patch(&bot, &widening).await?;
        assert_eq!(status, 200, "{changed}");
    }
    let (_, shown) = api.get(&bot).await?;
    let fields = ["model", "model_fallbacks", "task_limits", "session_idle_s", "client_tools"];
    let expected = json!(["m/a", ["m/b"], { "steps": 5 }, 60, true]);
    assert_eq!(json!(fields.map(|field| shown[field].clone())), expected);
    // An export has the fields, and an import of it changes nothing.
    let (_, line) = export_line(&api).await?;
    assert!(
        line.contains(r#""model_fallbacks":["m/b"],"task_limits":{"steps":5},"session_idle_s":60,"client_tools":true"#),
        "{line}"
    );
    let cleared = json!({ "model_fallbacks": null, "task_limits": null, "session_idle_s": null, "client_tools": null });
    let (_, shown) = api.patch(&bot, &cleared).await?;
    let expected = json!(["m/a", [], null, null, false]);
    assert_eq!(json!(fields.map(|field| shown[field].clone())), expected);
    Ok(())
}

/// Returns the status and the text of an export of the workspace.
async fn export_line(api: &support::Api) -> Result<(u16, String)> {
    let response = api.request(reqwest::Method::GET, "/api/export").send().await?;
    Ok((response.status().as_u16(), response.text().await?))
}

/// A resource and a bot with all fields are exported as YAML, and applied on another server.
#[tokio::test]
async fn models_and_the_fields_of_bots_are_exported_and_applied() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let model = json!({ "price": { "input": 0.5, "output": 2 }, "extra": { "top_k": 1 } });
    made(&api, "/api/resources", &resource("models", "https://llm.example/v1", &model, &json!({}))).await?;
    let body = json!({
        "name": "writer", "model": "models/small", "model_fallbacks": ["models/large"],
        "task_limits": { "steps": 5, "credits": 1.5 }, "session_idle_s": 60, "client_tools": true,
    });
    made(&api, "/api/bots", &body).await?;
    let exported = succeed(&server, &["export"]).await?;
    let other = Server::start(&[]).await?;
    std::fs::write(other.home().join("file.yaml"), &exported)?;
    succeed(&other, &["apply", "file.yaml", "--yes"]).await?;
    assert_eq!(succeed(&other, &["export"]).await?, exported);
    let (_, bots) = other.api()?.get("/api/bots").await?;
    for (field, value) in body.as_object().into_iter().flatten() {
        assert_eq!(bots["items"][0][field], *value, "{field}: {exported}");
    }
    let again = told(&other, &["apply", "file.yaml"]).await?;
    assert!(again.contains("the workspace already has this configuration"), "{again}");
    Ok(())
}
