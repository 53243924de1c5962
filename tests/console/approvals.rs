//! Approvals: who may decide, what the others see, and the ways to an approval; and a denied call that is checked again.

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::json;

use super::{Browser, base, hidden_fields};
use crate::world::{World, text};

const BUTTON: &str = "name=\"approve\"";

#[tokio::test]
async fn a_key_that_may_not_decide_sees_why_in_place_of_the_buttons() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let gates = json!([{ "action": "ask", "approvers": ["admin", "approver"] }]);
    world.rebind(&bound, &json!({ "gates": gates })).await?;
    let waiting = world.call("test_echo_run", &json!({ "any": "to be read" })).await?;
    let base = base(&world).await?;
    let page = format!("{base}/approvals/{}", text(&waiting["approval"]["id"]));
    let own = Browser::log_in(&world, world.api.key()).await?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let admin = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    for (browser, reason) in
        [(&own, "Your key made this call"), (&operator, "A key of the kind operator may not decide about this call")]
    {
        let shown = browser.page(&page).await?;
        assert!(shown.contains(reason) && shown.contains("admin, approver, root"), "{reason}: {shown}");
        assert!(!shown.contains(BUTTON), "{reason}: {shown}");
    }
    let shown = admin.page(&page).await?;
    let who = "<dt>May decide</dt><dd>admin, approver, root; not the key that asked</dd>";
    assert!(shown.contains(who) && shown.contains(BUTTON), "{shown}");

    // The list names the bot and the parameters, and later shows that the approval was used.
    let list = admin.page(&format!("{base}/approvals")).await?;
    assert!(list.contains("tester") && list.contains("to be read"), "{list}");
    let done = admin.submit(&page, &page, &[("approve", "1")]).await?;
    assert_eq!(done.status, 303, "{}", done.text);
    assert!(admin.page(done.location()).await?.contains("The bot must repeat the call"));
    assert_eq!(world.call("test_echo_run", &json!({ "any": "to be read" })).await?["status"], "success");
    for (status, is_listed) in [("used", true), ("all", true), ("pending", false), ("approved", false)] {
        let list = admin.page(&format!("{base}/approvals?status={status}")).await?;
        assert_eq!(list.contains(&page), is_listed, "{status}: {list}");
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_waits_leads_to_its_approval() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    world.rebind(&bound, &json!({ "gates": [{ "action": "ask" }] })).await?;
    world.call("test_echo_run", &json!({ "any": "another" })).await?;
    let waiting = world.call("test_echo_run", &json!({ "any": "this" })).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let approval = format!("href=\"{base}/approvals/{}\"", text(&waiting["approval"]["id"]));
    let request = browser.page(&format!("{base}/activity/{}", text(&waiting["request_id"]))).await?;
    assert!(request.contains(&approval), "{request}");
    assert!(request.contains("A gate of this binding asks a person about this call."), "{request}");
    let tool = format!("{base}/bots/{}/tools/test_echo_run", world.bot);
    let fields = [("json", "{\"any\":\"this\"}"), ("sure", "on"), ("run", "1")];
    let run = browser.submit(&tool, &tool, &fields).await?;
    assert!(run.status == 200 && run.text.contains(&approval), "{}", run.text);
    Ok(())
}

#[tokio::test]
async fn the_page_of_an_error_has_the_menu_and_leads_back_to_the_form() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "echo", &world.github.url()).await?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let base = base(&world).await?;
    let menu = format!("href=\"{base}/bots\"");
    let missing = operator.get(&format!("{base}/bots/00000000-0000-7000-8000-000000000000")).await?;
    assert!(missing.status == 404 && missing.text.contains(&menu), "{}", missing.text);
    let bind = format!("{base}/bots/{}/bind?resource={resource}", world.bot);
    let hidden = hidden_fields(&operator.page(&bind).await?, &bind)?;
    let mut fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.extend([("tools.mode", "only"), ("tools.others", "*"), ("enabled", "on"), ("save", "1")]);
    let back = format!("href=\"{bind}\"");
    for (referer, leads_back) in [(format!("{}{bind}", operator.url), true), ("http://x/evil".to_owned(), false)] {
        let refused = operator.send(Method::POST, &bind, &fields, &[("referer", &referer)]).await?;
        assert_eq!(refused.status, 403, "{}", refused.text);
        let shown = refused.text;
        assert!(shown.contains(&menu) && shown.contains(&back) == leads_back, "{referer}: {shown}");
    }
    let (_, bindings) = world.api.get(&format!("/api/bots/{}/resources", world.bot)).await?;
    assert_eq!(bindings["items"].as_array().context("a list")?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn the_page_of_a_denial_says_that_the_call_would_be_allowed_now() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant("github", &["*"], &json!({ "repos": ["acme/docs"] })).await?;
    let denied = world.call("github_list_issues", &json!({ "repo": "acme/site" })).await?;
    let message = text(&denied["message"]);
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let request = format!("{}/activity/{}", base(&world).await?, text(&denied["request_id"]));
    let page = browser.page(&request).await?;
    assert_eq!(page.matches(message).count(), 1, "the reason is told once: {page}");
    world.rebind(&bound, &json!({ "scope_constraints": { "repos": ["acme/site"] } })).await?;
    let page = browser.page(&request).await?;
    assert!(page.contains("Checked again now: it would be allowed") && page.contains(message), "{page}");
    Ok(())
}
