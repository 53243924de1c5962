//! The pages of runs: starting one, its steps, what people do with it, and what is refused.

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};

use super::conversations::{HOSTILE, is_safe};
use super::instance::Feed;
use super::{Browser, base, hidden_fields};
use crate::http::made;
use crate::workflows::{definition, definition_with};
use crate::world::{World, eventually, text};

/// A step that waits until the test acts.
const LONG: &str = "{ id: pause, wait: { for: 2h } }";

/// Creates a workflow. Returns its id.
async fn workflow(world: &World, definition: &str) -> Result<String> {
    made(&world.api, "/api/workflows", &json!({ "definition": definition })).await
}

/// Waits until a run has a status. Returns the run.
async fn reached(world: &World, id: &str, status: &str) -> Result<Value> {
    eventually(status, async || {
        let (_, run) = world.api.get(&format!("/api/runs/{id}")).await?;
        Ok((run["status"] == status).then_some(run))
    })
    .await
}

async fn runs(world: &World) -> Result<Vec<Value>> {
    Ok(world.api.get("/api/runs").await?.1["items"].as_array().cloned().unwrap_or_default())
}

/// Returns the last part of the path of a page.
fn id_of(page: &str) -> &str {
    page.rsplit('/').next().unwrap_or_default()
}

#[tokio::test]
async fn a_run_is_started_by_a_form_and_shows_its_steps() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let list = format!("{base}/runs");
    assert!(browser.page(&list).await?.contains("There are no runs yet."));
    let text_of =
        definition_with("release", &world.bot, "{ id: tell, emit: told, data: { note: \"${{ input.note }}\" } }");
    let page = format!("{base}/workflows/{}", workflow(&world, &text_of).await?);
    let form = format!("{page}/run");
    assert!(browser.page(&page).await?.contains(&form));
    for (fields, field) in
        [(&[("input", "{"), ("version", "")][..], "input"), (&[("input", "{}"), ("version", "one")], "version")]
    {
        let answer = browser.submit(&form, &form, fields).await?;
        assert_eq!(answer.status, 422, "{fields:?}: {}", answer.text);
        assert!(answer.text.contains(&format!("id=\"{field}-fault\"")), "{fields:?}: {}", answer.text);
    }
    let hidden = hidden_fields(&browser.page(&form).await?, &form)?;
    let input = json!({ "note": HOSTILE }).to_string();
    let mut fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.push(("input", &input));
    assert_eq!(browser.send(Method::POST, &form, &[("input", "{}")], &[]).await?.status, 403, "a form without a token");
    let started = browser.send(Method::POST, &form, &fields, &[]).await?;
    assert_eq!(started.status, 303, "{}", started.text);
    let again = browser.send(Method::POST, &form, &fields, &[]).await?;
    assert_eq!(again.location(), started.location(), "a form that is sent twice starts one run");
    let run = started.location().to_owned();
    reached(&world, id_of(&run), "completed").await?;
    let shown = browser.page(&run).await?;
    is_safe(&run, &shown)?;
    for part in
        ["Run of release", "status success\">completed", "status success\">succeeded", "tell", "Version 1", "a key"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("data-wait") && !shown.contains("Cancel the run"), "the run has ended: {shown}");
    for path in [&page, &list, &format!("{list}?status=completed"), &format!("{list}?workflow_id={}", id_of(&page))] {
        assert!(browser.page(path).await?.contains(&run), "{path}");
    }
    assert!(browser.page(&format!("{list}?status=failed")).await?.contains("No run matches the filter."));
    assert_eq!(browser.get(&format!("{list}?since=yesterday")).await?.status, 422);
    let whole = browser.get(&format!("{run}/export")).await?;
    assert_eq!(serde_json::from_str::<Value>(&whole.text)?["id"], json!(id_of(&run)));
    let steps = browser.get(&format!("{run}/export?part=steps")).await?;
    assert_eq!(serde_json::from_str::<Value>(&steps.text)?["items"][0]["step"], json!("tell"));
    let disposition = steps.headers.get("content-disposition").context("a download")?;
    assert!(disposition.to_str()?.starts_with("attachment"), "{disposition:?}");
    Ok(())
}

#[tokio::test]
async fn a_run_is_paused_resumed_cancelled_and_run_again() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let workflow = workflow(&world, &definition_with("slow", &world.bot, LONG)).await?;
    let (status, run) = world.api.post(&format!("/api/workflows/{workflow}/runs"), &json!({})).await?;
    anyhow::ensure!(status == 202, "{status} {run}");
    let id = text(&run["id"]).to_owned();
    let page = format!("{base}/runs/{id}");
    reached(&world, &id, "waiting").await?;
    let waiting = browser.page(&page).await?;
    for part in ["The run waits for:", "a time", "data-wait=", "Refresh"] {
        assert!(waiting.contains(part), "{part}: {waiting}");
    }
    let state = browser.page(&format!("{page}/state")).await?;
    assert!(waiting.contains(&format!("data-state=\"{state}\"")), "{state}: {waiting}");
    for action in ["pause", "resume", "retry", "cancel"] {
        let path = format!("{page}/{action}");
        for (fields, headers) in [(&[("_token", "00")][..], &[][..]), (&[], &[("sec-fetch-site", "cross-site")])] {
            assert_eq!(browser.send(Method::POST, &path, fields, headers).await?.status, 403, "{action}");
        }
    }
    reached(&world, &id, "waiting").await?;
    let paused = browser.submit(&page, &format!("{page}/pause"), &[]).await?;
    assert_eq!((paused.status, paused.location()), (303, page.as_str()), "{}", paused.text);
    reached(&world, &id, "paused").await?;
    let shown = browser.page(&page).await?;
    assert!(shown.contains("Resume") && !shown.contains(&format!("{page}/pause")), "{shown}");
    assert_ne!(browser.page(&format!("{page}/state")).await?, state, "the open page is read again");
    browser.submit(&page, &format!("{page}/resume"), &[]).await?;
    reached(&world, &id, "waiting").await?;
    let cancel = format!("{page}/cancel");
    let cancelled = browser.submit(&cancel, &cancel, &[("undo", "on")]).await?;
    assert_eq!((cancelled.status, cancelled.location()), (303, page.as_str()), "{}", cancelled.text);
    reached(&world, &id, "cancelled").await?;
    let shown = browser.page(&page).await?;
    assert!(shown.contains("status stopped\">cancelled") && shown.contains("Run again"), "{shown}");
    let again = browser.submit(&page, &format!("{page}/retry"), &[]).await?;
    assert_eq!((again.status, again.location()), (303, page.as_str()), "{}", again.text);
    let run = reached(&world, &id, "waiting").await?;
    assert_eq!(run["attempt"], json!(2));
    // What a run does not allow is said on its page.
    let hidden = hidden_fields(&browser.page(&page).await?, &format!("{page}/pause"))?;
    let hidden: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    browser.submit(&cancel, &cancel, &[]).await?;
    reached(&world, &id, "cancelled").await?;
    let refused = browser.send(Method::POST, &format!("{page}/pause"), &hidden, &[]).await?;
    assert_eq!((refused.status, refused.location()), (303, page.as_str()), "{}", refused.text);
    assert!(browser.page(&page).await?.contains("notice error"), "the page says why");
    Ok(())
}

#[tokio::test]
async fn a_disabled_workflow_starts_no_run_and_the_input_has_to_fit() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let text_of = format!(
        "{}input: {{ type: object, required: [repo], properties: {{ repo: {{ type: string }} }} }}\n",
        definition("strict", &world.bot)
    );
    let id = workflow(&world, &text_of).await?;
    let form = format!("{base}/workflows/{id}/run");
    let refused = browser.submit(&form, &form, &[("input", "{\"repo\": 1}")]).await?;
    assert_eq!(refused.status, 422, "{}", refused.text);
    assert!(
        refused.text.contains("id=\"input-fault\"") && refused.text.contains("{&#34;repo&#34;: 1}"),
        "{}",
        refused.text
    );
    let missing = browser.submit(&form, &form, &[("input", "{\"repo\": \"a\"}"), ("version", "9")]).await?;
    assert!(matches!(missing.status, 404 | 422), "{} {}", missing.status, missing.text);
    let hidden = hidden_fields(&browser.page(&form).await?, &form)?;
    world.api.patch(&format!("/api/workflows/{id}"), &json!({ "enabled": false })).await?;
    let mut fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.push(("input", "{\"repo\": \"a\"}"));
    let disabled = browser.send(Method::POST, &form, &fields, &[]).await?;
    assert_eq!(disabled.status, 409, "{}", disabled.text);
    assert!(!browser.page(&format!("{base}/workflows/{id}")).await?.contains(&form), "the button is gone");
    assert!(runs(&world).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn only_keys_that_read_runs_see_them() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let workflow = workflow(&world, &definition_with("slow", &world.bot, LONG)).await?;
    let (_, run) = world.api.post(&format!("/api/workflows/{workflow}/runs"), &json!({})).await?;
    let page = format!("{base}/runs/{}", text(&run["id"]));
    reached(&world, text(&run["id"]), "waiting").await?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    assert!(operator.page(&page).await?.contains("Cancel the run"));
    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    let resolve = format!("{page}/steps/pause/resolve");
    let pages = [page.clone(), format!("{base}/runs"), format!("{page}/cancel"), resolve.clone()];
    for path in pages.iter().chain(&[format!("{base}/workflows/{workflow}/run"), format!("{page}/state")]) {
        assert_eq!(approver.get(path).await?.status, 403, "{path}");
    }
    // A step that is not uncertain cannot be resolved, and an answer has to be chosen.
    let unchosen = operator.submit(&resolve, &resolve, &[]).await?;
    assert!(
        unchosen.status == 422 && unchosen.text.contains("id=\"as-fault\""),
        "{} {}",
        unchosen.status,
        unchosen.text
    );
    let unread = operator.submit(&resolve, &resolve, &[("as", "succeeded"), ("data", "{")]).await?;
    assert!(unread.status == 422 && unread.text.contains("id=\"data-fault\""), "{} {}", unread.status, unread.text);
    let certain = operator.submit(&resolve, &resolve, &[("as", "failed")]).await?;
    assert!(matches!(certain.status, 303 | 404 | 422), "{} {}", certain.status, certain.text);
    reached(&world, text(&run["id"]), "waiting").await?;
    let acme = made(&world.api, "/api/workspaces", &json!({ "name": "acme" })).await?;
    let foreign = format!("/console/w/{acme}/runs/{}", text(&run["id"]));
    for path in ["", "/cancel", "/state", "/export", "/steps/pause/resolve"] {
        assert_eq!(browser.get(&format!("{foreign}{path}")).await?.status, 404, "{path}");
    }
    let chinese = browser.send(Method::GET, &page, &[], &[("accept-language", "zh-CN")]).await?;
    assert!(chinese.text.contains("运行正在等待"), "{}", chinese.text);
    Ok(())
}

#[tokio::test]
async fn the_stream_of_a_run_tells_that_it_has_gone_on_and_nothing_else() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let workflow = workflow(&world, &definition_with("slow", &world.bot, LONG)).await?;
    let (_, run) = world.api.post(&format!("/api/workflows/{workflow}/runs"), &json!({})).await?;
    let id = text(&run["id"]);
    reached(&world, id, "waiting").await?;
    let page = format!("{base}/runs/{id}");
    let changes = format!("{page}/changes");
    assert!(browser.page(&page).await?.contains(&format!("data-stream=\"{changes}\"")));
    for site in ["cross-site", "same-site", "none"] {
        assert_eq!(browser.send(Method::GET, &changes, &[], &[("sec-fetch-site", site)]).await?.status, 403, "{site}");
    }
    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    assert_eq!(approver.get(&changes).await?.status, 403);
    assert_eq!(Browser::open(&world)?.get(&changes).await?.status, 303);
    let mut feed = Feed::open(&browser, &changes, &[("sec-fetch-site", "same-origin")]).await?;
    assert_eq!(feed.until("changed").await?.1, json!({}));
    let (status, cancelled) = world.api.post(&format!("/api/runs/{id}/cancel"), &json!({})).await?;
    assert_eq!(status, 202, "{cancelled}");
    assert_eq!(feed.until("over").await?.1, json!({}));
    reached(&world, id, "cancelled").await?;
    assert!(!browser.page(&page).await?.contains("data-stream"), "a run that has ended has no stream");
    Ok(())
}
