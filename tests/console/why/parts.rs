//! A change of several objects: one form shows all of them, and what was saved is said if a later one cannot be saved.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Case, Scene, alter};
use crate::tamper::sqlite;
use crate::world::text;

/// A call that a role and a binding deny. Both have a scope that the tool does not have.
fn case() -> Case {
    let scopes = json!({ "repos": ["*"] });
    let role = json!({ "allowed_operations": ["*"], "scope_constraints": scopes });
    let binding = json!({ "scope_constraints": scopes });
    Case::new("both", role, binding, json!({ "path": "/echo" })).of("test_echo_fetch")
}

/// Returns the number of objects of a kind that have scope constraints.
fn scoped(policy: &[Value], kind: &str) -> usize {
    policy.iter().filter(|line| line["kind"] == kind && line["scope_constraints"]["repos"].is_array()).count()
}

#[tokio::test]
async fn a_change_of_two_objects_is_one_form_that_names_both() -> Result<()> {
    let scene = Scene::open().await?;
    let case = case();
    let denied = scene.denied(&case).await?.context("the call is denied")?;
    // Another bot with the role: the change of the role reaches it too.
    let role = text(&denied.check["changes"][0]["holder"]["id"]).to_owned();
    let other = scene.world.api.bot("other").await?;
    let binding = json!({ "resource_id": scene.resource, "role_id": role });
    crate::http::made(&scene.world.api, &format!("/api/bots/{other}/resources"), &binding).await?;
    let change = scene.explained(&case, &denied).await?.context("the change")?;
    let page = scene.browser.page(&change).await?;
    let action = format!("action=\"{}/change\"", scene.bot(&denied));
    assert_eq!((page.matches(&action).count(), page.matches("<pre class=\"lines\">").count()), (1, 2), "{page}");
    for part in [
        "the role <code>both</code>",
        "this binding</h2>",
        "Bots that it reaches: both, other",
        "Bots that it reaches: both</p>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    scene.flipped(&case, &denied, &change, "success").await
}

#[tokio::test]
async fn a_part_that_cannot_be_saved_is_told_and_the_page_shows_what_is_left() -> Result<()> {
    let scene = Scene::open().await?;
    let case = case();
    let denied = scene.denied(&case).await?.context("the call is denied")?;
    let change = scene.explained(&case, &denied).await?.context("the change")?;
    let action = format!("{}/change", scene.bot(&denied));
    let mut expected = scene.policy().await?;
    alter(&mut expected, &case.name, &denied.changes())?;
    let folder = scene.world.server.data_dir();
    let fail = "create trigger fail before update on bot_resources begin select raise(abort, 'the disk is full'); end";
    sqlite(&folder, &[fail]).await?;
    let answer = scene.browser.submit(&change, &action, &[]).await?;
    assert_eq!(answer.status, 303, "{}", answer.text);
    let rest = answer.location().to_owned();
    let page = scene.browser.page(&rest).await?;
    assert!(page.contains("Only a part was saved: the role <code>both</code>. Not saved: this binding"), "{page}");
    assert!(!page.contains("the disk is full"), "causes are in the log: {page}");
    assert_eq!(page.matches("<pre class=\"lines\">").count(), 1, "one object is left to change: {page}");
    let policy = scene.policy().await?;
    assert_eq!((scoped(&policy, "role"), scoped(&policy, "binding")), (0, 1), "{policy:#?}");
    let call = scene.world.api.call(&denied.bot, case.tool, &case.params).await?;
    assert_ne!(call["status"], "success", "{call}");

    sqlite(&folder, &["drop trigger fail"]).await?;
    let done = scene.browser.submit(&rest, &action, &[]).await?;
    assert_eq!(done.status, 303, "{}", done.text);
    assert!(scene.browser.page(done.location()).await?.contains("card why success"));
    assert_eq!(scene.policy().await?, expected);
    Ok(())
}

#[tokio::test]
async fn a_change_of_two_objects_is_not_saved_if_one_of_them_has_changed() -> Result<()> {
    let scene = Scene::open().await?;
    let case = case();
    let denied = scene.denied(&case).await?.context("the call is denied")?;
    let change = scene.explained(&case, &denied).await?.context("the change")?;
    let action = format!("{}/change", scene.bot(&denied));
    let hidden = crate::console::hidden_fields(&scene.browser.page(&change).await?, &action)?;
    let holder = &denied.check["changes"][1]["holder"];
    let binding = format!("/api/bots/{}/resources/{}", denied.bot, text(&holder["id"]));
    let (status, changed) = scene.world.api.patch(&binding, &json!({ "expires_at": "2099-01-01T00:00:00Z" })).await?;
    assert_eq!(status, 200, "{changed}");
    let before = scene.policy().await?;
    let fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let answer = scene.browser.send(reqwest::Method::POST, &action, &fields, &[]).await?;
    assert_eq!(answer.status, 409, "{}", answer.text);
    assert_eq!(scene.policy().await?, before, "nothing was saved, also not the role");
    Ok(())
}
