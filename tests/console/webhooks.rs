//! The pages of webhooks: the secret is shown once, and only admins see any of it.

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};
use support::Server;

use super::{Browser, base, hidden_fields};
use crate::world::{World, text};

/// The fields of the form that a person sends.
const FIELDS: [(&str, &str); 6] = [
    ("name", "github"),
    ("event", "github.push"),
    ("kind", "hmac_sha256"),
    ("header", "X-Hub-Signature-256"),
    ("prefix", "sha256="),
    ("headers", "X-GitHub-Event"),
];

async fn webhooks(world: &World) -> Result<Vec<Value>> {
    Ok(world.api.get("/api/webhooks").await?.1["items"].as_array().cloned().unwrap_or_default())
}

/// Returns the secret that a page shows.
fn secret_in(page: &str) -> Result<String> {
    let start = page.find("wh_").with_context(|| format!("no secret in {page}"))?;
    Ok(page[start..].split('<').next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_webhook_is_made_changed_rotated_and_deleted_by_forms() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (list, form) = (format!("{base}/webhooks"), format!("{base}/webhooks/new"));
    let empty = browser.page(&list).await?;
    assert!(empty.contains("There are no webhooks yet.") && empty.contains("--public-url"), "{empty}");
    let made = browser.submit(&form, &form, &FIELDS).await?;
    assert_eq!(made.status, 200, "the page shows the secret once: {}", made.text);
    let secret = secret_in(&made.text)?;
    assert_eq!(made.headers.get("cache-control").and_then(|value| value.to_str().ok()), Some("no-store"));
    let saved = &webhooks(&world).await?[0];
    let (id, url) = (text(&saved["id"]).to_owned(), text(&saved["url"]));
    assert!(made.text.contains(url), "{}", made.text);
    assert_eq!((&saved["event"], &saved["headers"]), (&json!("github.push"), &json!(["X-GitHub-Event"])));
    let page = format!("{list}/{id}");
    for path in [&page, &list, &format!("{page}/edit"), &format!("{page}/delete")] {
        assert!(!browser.page(path).await?.contains(&secret), "{path} shows the secret");
    }
    let shown = browser.page(&page).await?;
    for part in ["custom.github.push", url, "a signature (HMAC-SHA-256) in a header", "--public-url"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // The name is taken, and the second form shows no secret.
    let again = browser.submit(&form, &form, &FIELDS).await?;
    assert!(matches!(again.status, 409 | 422) && !again.text.contains("wh_"), "{} {}", again.status, again.text);
    assert_eq!(webhooks(&world).await?.len(), 1);

    let edit = format!("{page}/edit");
    let mut changed = FIELDS.to_vec();
    changed.retain(|(name, _)| !["kind", "headers"].contains(name));
    changed.extend([("kind", "token"), ("headers", ""), ("bot_id", world.bot.as_str()), ("dedupe_header", "X-Id")]);
    let kept = browser.submit(&edit, &edit, &changed).await?;
    assert_eq!((kept.status, kept.location()), (303, page.as_str()), "{}", kept.text);
    let saved = &webhooks(&world).await?[0];
    assert_eq!((&saved["verify"], &saved["headers"]), (&json!({ "kind": "token" }), &json!([])), "{saved}");
    assert_eq!((&saved["bot_id"], &saved["dedupe_header"]), (&json!(world.bot), &json!("X-Id")), "{saved}");

    let rotated = browser.submit(&page, &format!("{page}/rotate"), &[]).await?;
    assert_eq!(rotated.status, 200, "{}", rotated.text);
    assert_ne!(secret_in(&rotated.text)?, secret);

    let delete = format!("{page}/delete");
    let wrong = browser.submit(&delete, &delete, &[("name", "other")]).await?;
    assert_eq!((wrong.status, webhooks(&world).await?.len()), (303, 1));
    let gone = browser.submit(&delete, &delete, &[("name", "github")]).await?;
    assert_eq!((gone.status, gone.location()), (303, list.as_str()), "{}", gone.text);
    assert_eq!(browser.get(&page).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn a_webhook_that_is_not_valid_is_refused_at_its_fields() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let form = format!("{}/webhooks/new", base(&world).await?);
    let many = (0..9).map(|number| format!("x-{number}\n")).collect::<String>();
    for (name, value) in [
        ("name", ""),
        ("event", "with space"),
        ("event", "custom.x"),
        ("header", "not a header"),
        ("headers", many.as_str()),
        ("dedupe_header", "not a header"),
    ] {
        let mut fields = FIELDS.to_vec();
        fields.retain(|(other, _)| *other != name);
        fields.push((name, value));
        let answer = browser.submit(&form, &form, &fields).await?;
        assert_eq!(answer.status, 422, "{name} {value}: {}", answer.text);
        assert!(answer.text.contains(&format!("id=\"{name}-fault\"")), "{name} {value}: {}", answer.text);
        assert!(!answer.text.contains("wh_"), "{}", answer.text);
    }
    assert!(webhooks(&world).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn only_admins_see_webhooks() -> Result<()> {
    let world = World::with(&[]).await?;
    let admin = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    let base = base(&world).await?;
    let (list, form) = (format!("{base}/webhooks"), format!("{base}/webhooks/new"));
    let hidden = hidden_fields(&admin.page(&form).await?, &form)?;
    let made = admin.submit(&form, &form, &FIELDS).await?;
    assert_eq!(made.status, 200, "{}", made.text);
    let page = format!("{list}/{}", text(&webhooks(&world).await?[0]["id"]));
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    for path in [&list, &form, &page, &format!("{page}/edit"), &format!("{page}/delete")] {
        assert_eq!(operator.get(path).await?.status, 403, "{path}");
    }
    assert!(!operator.page(&format!("{base}/events")).await?.contains(&list), "the tab is for admins");
    // The token of an admin's form is not one of the operator's session.
    let token = &hidden.iter().find(|(name, _)| name == "_token").context("a token")?.1;
    let refused =
        operator.send(Method::POST, &form, &[&[("_token", token.as_str())], &FIELDS[..]].concat(), &[]).await?;
    assert_eq!(refused.status, 403, "{}", refused.text);
    let unsigned = admin.send(Method::POST, &format!("{page}/rotate"), &[], &[]).await?;
    assert!(unsigned.status == 403 && !unsigned.text.contains("wh_"), "{}", unsigned.text);
    // A webhook of another workspace does not exist here.
    let foreign = crate::http::workspace(&world.api, "foreign").await?;
    let (_, me) = foreign.get("/api/me").await?;
    let other = Browser::log_in(&world, foreign.key()).await?;
    let id = page.rsplit('/').next().unwrap_or_default();
    let path = format!("/console/w/{}/webhooks/{id}", text(&me["workspace_id"]));
    assert_eq!(other.get(&path).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn a_server_with_a_public_url_says_nothing_about_it() -> Result<()> {
    let server = Server::prepare(&[])?.argument("--public-url").argument("https://monstrum.example");
    let world = World::on(server).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let form = format!("{base}/webhooks/new");
    for path in [&format!("{base}/webhooks"), &form] {
        assert!(!browser.page(path).await?.contains("--public-url"), "{path}");
    }
    let made = browser.submit(&form, &form, &FIELDS).await?;
    assert!(made.text.contains("https://monstrum.example/hooks/"), "{}", made.text);
    Ok(())
}
