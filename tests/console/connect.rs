//! The approval of a plugin version, the health of a resource, and the way back from an authorization.

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use super::{Answer, Browser, base, hidden_fields};
use crate::call::plugins::edit;
use crate::http::made;
use crate::oauth::Authorizing;
use crate::world::{World, text};

/// Changes the manifest of the GitHub plugin and reads its folder again. The new version waits.
pub(crate) async fn grown(world: &World, change: impl FnOnce(String) -> String) -> Result<()> {
    edit(&world.server.plugins_dir().join("github"), change)?;
    let (_, entry) = world.api.post("/api/plugins/github/reload", &Value::Null).await?;
    ensure!(entry["status"] == "needs_approval", "{entry}");
    Ok(())
}

/// Sends the form of a page as it is.
async fn sent(browser: &Browser, page: &str, action: &str) -> Result<Answer> {
    let fields = hidden_fields(page, action)?;
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    browser.send(Method::POST, action, &fields, &[]).await
}

#[tokio::test]
async fn a_plugin_version_is_approved_by_its_differences() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    grown(&world, |manifest| {
        let manifest = manifest.replace("version: 1.0.0", "version: 1.1.0");
        let manifest = manifest.replace("param_paths: [repo, owner_repo]", "param_paths: [repo, owner_repo, target]");
        let manifest = manifest.replace("capabilities: [http]", "capabilities: [http, tools]");
        let manifest = manifest.replace("Create a new issue in a", "<img src=x onerror=alert(1)>");
        manifest.replace("    - method: token\n", "    - method: token\n      audience: [\"https://*.example.com\"]\n")
    })
    .await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let plugin = format!("{}/plugins/github", base(&world).await?);
    let page = browser.page(&plugin).await?;
    let (_, diff) = world.api.get("/api/plugins/github/diff").await?;
    let amber = page.matches("class=\"notice denied\"").count();
    assert_eq!(Some(amber), diff["grows"].as_array().map(Vec::len), "one amber sentence for each: {page}");
    for told in [
        "capability <code>tools</code>",
        "also checks <code>target</code>",
        "https://*.example.com",
        "github_create_issue",
        "&#60;img src=x",
        "Create a new issue in a GitHub repository.",
        text(&diff["to"]["digest"]),
        text(&diff["to"]["manifest_digest"]),
        text(&diff["from"]["manifest_digest"]),
        text(&diff["touches"]["bindings"][0]["bot"]),
        &format!("/resources/{}\"", bound.resource),
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
    assert!(!page.contains("<img src=x"), "the text of a manifest is text: {page}");

    // A key that may not approve sees what grows, and no form.
    let action = format!("{plugin}/approve");
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let shown = operator.page(&plugin).await?;
    assert!(shown.contains("capability <code>tools</code>") && !shown.contains(&action), "{shown}");

    // Another version waits now. It is shown, and not approved.
    grown(&world, |manifest| manifest.replace("version: 1.1.0", "version: 1.2.0")).await?;
    let changed = sent(&browser, &page, &action).await?;
    assert_eq!(changed.status, 409, "{}", changed.text);
    let (_, diff) = world.api.get("/api/plugins/github/diff").await?;
    assert!(changed.text.contains("role=\"alert\"") && changed.text.contains("1.2.0"), "{}", changed.text);
    assert!(changed.text.contains(text(&diff["to"]["manifest_digest"])), "{}", changed.text);
    assert_eq!(world.api.get("/api/plugins/github").await?.1["version"], "1.0.0");
    let done = sent(&browser, &changed.text, &action).await?;
    assert_eq!((done.status, done.location()), (303, plugin.as_str()), "{}", done.text);
    assert_eq!(world.api.get("/api/plugins/github").await?.1["version"], "1.2.0");
    assert!(!browser.page(&plugin).await?.contains(&action), "no version waits any more");
    Ok(())
}

#[tokio::test]
async fn a_resource_shows_its_health() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    let browser = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let base = base(&world).await?;
    let resource = format!("{base}/resources/{}", bound.resource);
    let fresh = browser.page(&resource).await?;
    assert!(fresh.contains("no calls") && fresh.contains("none among the newest"), "{fresh}");
    let params = json!({ "repo": "acme/site" });
    world.call("github_get_repo", &params).await?;
    ensure!(world.api.delete(&format!("/api/resources/{}/credential", bound.resource)).await?.0 == 204);
    let failed = world.call("github_get_repo", &params).await?;
    ensure!(failed["status"] == "error", "{failed}");
    let page = browser.page(&resource).await?;
    assert!(page.contains("1 of 2 calls succeeded") && page.contains("50 %"), "{page}");
    let request = format!("{base}/activity/{}", text(&failed["request_id"]));
    assert!(page.contains(&format!("href=\"{request}\"")), "{page}");
    let message = text(&failed["message"]).split('\'').next().unwrap_or_default();
    assert!(page.contains(message), "{message}: {page}");
    assert!(browser.page(&request).await?.contains("github_get_repo"));
    Ok(())
}

#[tokio::test]
async fn the_sandbox_of_a_switch_has_no_page_and_no_link() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bot = made(&world.api, "/api/bots", &json!({ "name": "coder", "use_agent_sandbox": true })).await?;
    let bound = world.grant_all("test-echo").await?;
    let binding = json!({ "resource_id": bound.resource, "permissions": { "allowed_tools": ["*"] } });
    made(&world.api, &format!("/api/bots/{bot}/resources"), &binding).await?;
    let (_, access) = world.api.get(&format!("/api/bots/{bot}/access")).await?;
    let items = access["items"].as_array().context("the tools are a list")?;
    let (of_switch, stored): (Vec<&Value>, Vec<&Value>) =
        items.iter().partition(|item| item["switch"] == "use_agent_sandbox");
    assert!(!of_switch.is_empty() && !stored.is_empty(), "{access}");
    assert!(stored.iter().all(|item| item.get("switch").is_none()), "{access}");
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let page = browser.page(&format!("{base}/bots/{bot}?hidden=1")).await?;
    for item in of_switch {
        let [resource, binding] = [&item["resource"]["id"], &item["binding_id"]].map(text);
        assert_eq!(browser.get(&format!("{base}/resources/{resource}")).await?.status, 404);
        assert!(!page.contains(&format!("/resources/{resource}")), "{page}");
        assert!(!page.contains(&format!("/bindings/{binding}")), "{page}");
    }
    assert!(page.contains(&format!("class=\"button\" href=\"{base}/bots/{bot}/settings\"")), "{page}");
    assert!(page.contains(&format!("href=\"{base}/resources/{}\"", bound.resource)), "{page}");
    Ok(())
}

#[tokio::test]
async fn an_authorization_leads_back_to_its_resource() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let world = &authorizing.world;
    let browser = Browser::log_in(world, world.api.key()).await?;
    let resource = authorizing.path("").replace("/api", &base(world).await?);
    let resource = resource.trim_end_matches('/');
    let form = format!("{resource}/credential?method=oauth2_auth_code");
    let page = browser.submit(&form, &format!("{resource}/authorize"), &[]).await?;
    assert_eq!(page.status, 200, "{}", page.text);
    let begin = page.text.split("href=\"").find(|part| part.contains("/oauth/begin/")).context("a link to begin")?;
    let begin = begin.split('"').next().context("an address")?;
    let (callback, cookie) = authorizing.answered_from(begin).await?;
    let last = authorizing.open(&callback, Some(&cookie)).await?;
    assert_eq!(last.status, 200, "{}", last.text);
    assert!(last.text.contains(&format!("<a href=\"{resource}\">")), "{}", last.text);
    assert!(browser.page(resource).await?.contains("status success"), "the credential is ready");
    Ok(())
}
