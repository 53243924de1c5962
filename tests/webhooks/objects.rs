//! `/api/webhooks`: how an admin manages webhooks.

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};

use super::{Hook, refused};
use crate::cli::parsed;
use crate::http::{send, workspace};
use crate::world::{World, text};

const WARNING: &str = "systems outside may not reach this URL: start the server with --public-url";

#[tokio::test]
async fn a_webhook_is_created_shown_changed_and_deleted() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let body = json!({
        "name": "pushes", "event": "github.push", "bot_id": world.bot,
        "verify": { "kind": "hmac_sha256" }, "headers": ["X-GitHub-Event"], "dedupe_header": "X-GitHub-Delivery",
    });
    let (status, mut made) = api.post("/api/webhooks", &body).await?;
    assert_eq!(status, 201, "{made}");
    let secret = made["secret"].take();
    assert!(text(&secret).starts_with("wh_") && text(&secret).len() == 46, "the secret has 256 bits");
    let (id, at) = (made["id"].clone(), made["created_at"].clone());
    let mut webhook = json!({
        "id": id, "url": format!("{}/hooks/{}", world.server.url().context("it runs")?, text(&id)),
        "name": "pushes", "event": "github.push", "bot_id": world.bot,
        "verify": { "kind": "hmac_sha256", "header": "X-Hub-Signature-256", "prefix": "sha256=" },
        "headers": ["X-GitHub-Event"], "dedupe_header": "X-GitHub-Delivery",
        "secret_created_at": at, "created_at": at, "updated_at": at,
    });
    let mut shown_once = webhook.clone();
    shown_once["secret"] = Value::Null;
    shown_once["warnings"] = json!([WARNING]);
    assert_eq!(made, shown_once);

    let path = format!("/api/webhooks/{}", text(&id));
    assert_eq!(api.get(&path).await?, (200, webhook.clone()));
    assert_eq!(api.get("/api/webhooks").await?, (200, json!({ "items": [webhook], "next_cursor": null })));

    let change = json!({ "event": "git", "bot_id": null, "verify": { "kind": "token" }, "headers": null });
    let (status, changed) = api.patch(&path, &change).await?;
    assert_eq!(status, 200, "{changed}");
    assert!(text(&changed["updated_at"]) > text(&at));
    webhook["updated_at"] = changed["updated_at"].clone();
    (webhook["event"], webhook["verify"], webhook["headers"]) = (json!("git"), json!({ "kind": "token" }), json!([]));
    webhook.as_object_mut().context("it is an object")?.remove("bot_id");
    assert_eq!(changed, webhook);
    assert_eq!(api.get(&path).await?, (200, webhook.clone()));

    let (status, rotated) = api.post(&format!("{path}/rotate"), &Value::Null).await?;
    assert_eq!(status, 200, "{rotated}");
    assert!(rotated["secret"] != secret && text(&rotated["secret"]).len() == 46);
    assert_eq!(rotated["secret_created_at"], rotated["updated_at"]);
    assert!(text(&rotated["updated_at"]) > text(&changed["updated_at"]));

    assert_eq!(api.delete(&path).await?.0, 204);
    assert_eq!(api.get(&path).await?.0, 404);
    assert_eq!(api.get("/api/webhooks").await?.1["items"], json!([]));

    let (_, changes) = api.get("/api/audit/changes?limit=4").await?;
    let whats: Vec<&str> =
        changes["items"].as_array().into_iter().flatten().map(|change| text(&change["change"])).collect();
    assert_eq!(whats, ["webhook.delete", "webhook.rotate", "webhook.update", "webhook.create"], "{changes}");
    assert!(!changes.to_string().contains(text(&secret)) && !changes.to_string().contains("wh_"), "{changes}");
    Ok(())
}

#[tokio::test]
async fn invalid_webhooks_are_refused_with_pointers() -> Result<()> {
    let world = World::with(&[]).await?;
    let theirs = workspace(&world.api, "other").await?.bot("theirs").await?;
    let valid = json!({ "name": "n", "event": "e", "verify": { "kind": "hmac_sha256" } });
    for (change, expected) in [
        (json!({ "name": "" }), vec!["/name"]),
        (json!({ "event": "custom.x" }), vec!["/event"]),
        (json!({ "event": "a b" }), vec!["/event"]),
        (json!({ "bot_id": theirs }), vec!["/bot_id"]),
        (json!({ "verify": { "kind": "basic" } }), vec!["/verify/kind"]),
        (json!({ "verify": { "kind": "token", "header": "x" } }), vec!["/verify/header"]),
        (json!({ "verify": { "kind": "hmac_sha256", "prefix": "a b" } }), vec!["/verify/prefix"]),
        (json!({ "verify": { "kind": "token", "secret": "mine" } }), vec!["/verify/secret"]),
        (json!({ "headers": ["a", "Authorization"] }), vec!["/headers/1"]),
        (json!({ "headers": ["x-hub-signature-256"] }), vec!["/headers/0"]),
        (json!({ "headers": ["1", "2", "3", "4", "5", "6", "7", "8", "9"] }), vec!["/headers"]),
        (json!({ "dedupe_header": "a:b" }), vec!["/dedupe_header"]),
        (json!({ "name": "", "event": "", "dedupe_header": "" }), vec!["/name", "/event", "/dedupe_header"]),
        (json!({ "secret": "mine" }), vec!["/secret"]),
    ] {
        let mut body = valid.clone();
        body.as_object_mut().context("it is an object")?.extend(change.as_object().context("so is this")?.clone());
        let (status, refused) = world.api.post("/api/webhooks", &body).await?;
        let paths: Vec<&str> =
            refused["errors"].as_array().into_iter().flatten().map(|error| text(&error["path"])).collect();
        assert_eq!((status, paths), (422, expected), "{change}: {refused}");
    }
    let hook = Hook::create(&world.api, "taken", &json!({})).await?;
    assert_eq!(
        world
            .api
            .post("/api/webhooks", &json!({ "name": "taken", "event": "e", "verify": { "kind": "token" } }))
            .await?
            .0,
        409
    );
    let path = format!("/api/webhooks/{}", hook.id);
    let (status, refused) = world.api.patch(&path, &json!({ "headers": ["X-Hub-Signature-256"] })).await?;
    assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/headers/0")), "{refused}");
    assert_eq!(world.api.patch(&path, &json!({ "name": null })).await?.0, 422);
    Ok(())
}

/// Only admins manage webhooks, and only those of their workspace.
#[tokio::test]
async fn webhooks_are_for_admins_of_their_workspace() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let hook = Hook::create(api, "mine", &json!({})).await?;
    let path = format!("/api/webhooks/{}", hook.id);
    let rotate = format!("{path}/rotate");
    let new = json!({ "name": "new", "event": "e", "verify": { "kind": "token" } });
    let mut others = vec![(workspace(api, "other").await?, 404)];
    for kind in ["operator", "approver"] {
        others.push((api.with_key(&api.new_key(kind, None).await?), 403));
    }
    others.push((api.with_key(&api.new_key("bot", Some(&world.bot)).await?), 403));
    for (other, expected) in &others {
        for (method, path, body) in [
            (Method::GET, &path, None),
            (Method::PATCH, &path, Some(json!({ "name": "stolen" }))),
            (Method::POST, &rotate, None),
            (Method::DELETE, &path, None),
        ] {
            let mut request = other.request(method.clone(), path);
            if let Some(body) = body {
                request = request.json(&body);
            }
            assert_eq!(send(request).await?.0, *expected, "{method} {path}");
        }
        if *expected == 403 {
            assert_eq!(other.get("/api/webhooks").await?.0, 403);
            assert_eq!(other.post("/api/webhooks", &new).await?.0, 403);
        } else {
            assert_eq!(other.get("/api/webhooks").await?.1["items"], json!([]));
        }
    }
    hook.event(api, hook.signed("{}")).await?;
    Ok(())
}

#[tokio::test]
async fn a_webhook_is_deleted_with_its_bot() -> Result<()> {
    let world = World::with(&[]).await?;
    let (of_bot, own) = (json!({ "bot_id": world.bot }), json!({}));
    let of_bot = Hook::create(&world.api, "of-bot", &of_bot).await?;
    let own = Hook::create(&world.api, "own", &own).await?;
    of_bot.event(&world.api, of_bot.signed("{}")).await?;
    assert_eq!(world.api.delete(&format!("/api/bots/{}", world.bot)).await?.0, 204);
    assert_eq!(of_bot.send(&world.api, of_bot.signed("{}")).await?, refused());
    own.event(&world.api, own.signed("{}")).await?;
    assert_eq!(world.api.get("/api/webhooks").await?.1["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}

#[tokio::test]
async fn the_url_is_that_of_the_setting() -> Result<()> {
    let server = support::Server::prepare(&[])?.argument("--public-url").argument("https://monstrum.example");
    let world = World::on(server).await?;
    let new = json!({ "name": "n", "event": "e", "verify": { "kind": "token" } });
    let (_, made) = world.api.post("/api/webhooks", &new).await?;
    assert_eq!(text(&made["url"]), format!("https://monstrum.example/hooks/{}", text(&made["id"])));
    assert!(made.get("warnings").is_none(), "{made}");
    Ok(())
}

#[tokio::test]
async fn secrets_open_after_a_rotation_of_the_master_key() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let hook = Hook::create(&world.api, "n", &json!({})).await?;
    world.server.stop().await?;
    let (code, report) = parsed(&world.server, &["vault", "rotate"]).await?;
    assert_eq!((code, &report["unreadable"]), (Some(0), &json!([])), "{report}");
    assert_eq!(parsed(&world.server, &["vault", "rotate", "--prune"]).await?.0, Some(0));
    world.server.launch().await?;
    world.api = world.server.api()?;
    hook.event(&world.api, hook.signed("{}")).await?;
    Ok(())
}
