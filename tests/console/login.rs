//! Logging in, and what ends a session.

use anyhow::{Context, Result};
use reqwest::Method;
use reqwest::header::{CONTENT_SECURITY_POLICY, SET_COOKIE};
use serde_json::json;

use super::{Browser, base};
use crate::tamper::sqlite;
use crate::world::{World, text};

#[tokio::test]
async fn people_log_in_with_their_key_and_log_out() -> Result<()> {
    let world = World::with(&[]).await?;
    for kind in ["admin", "operator"] {
        let browser = Browser::log_in(&world, &world.api.new_key(kind, None).await?).await?;
        let page = browser.page(&format!("{}/bots", base(&world).await?)).await?;
        assert!(page.contains("tester"), "{page}");
    }
    let approver = Browser::log_in(&world, &world.api.new_key("approver", None).await?).await?;
    let home = approver.get("/console").await?;
    assert!(home.status == 303 && home.location().ends_with("/approvals"), "{}", home.location());
    let page = approver.page(home.location()).await?;
    assert!(page.contains("/approvals") && !page.contains("/bots\""), "an approver sees approvals only: {page}");
    let refused = approver.get(&format!("{}/bots", base(&world).await?)).await?;
    assert_eq!(refused.status, 403);

    let browser = Browser::log_in(&world, world.api.key()).await?;
    let page = browser.get(&format!("{}/bots", base(&world).await?)).await?;
    let policy = page.headers[CONTENT_SECURITY_POLICY].to_str()?;
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert_eq!(
        (&page.headers["x-frame-options"], &page.headers["cache-control"]),
        (&"DENY".parse()?, &"no-store".parse()?)
    );
    assert!(!page.text.contains(world.api.key()), "a key stands in no page");
    let out = browser.submit(&format!("{}/bots", base(&world).await?), "/console/logout", &[]).await?;
    assert_eq!((out.status, out.location()), (303, "/console/login"));
    assert_eq!(browser.get("/console").await?.location(), "/console/login?next=%2Fconsole");
    Ok(())
}

#[tokio::test]
async fn keys_of_bots_and_unknown_keys_do_not_log_in() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::open(&world)?;
    let bot = world.api.new_key("bot", Some(&world.bot)).await?;
    for (key, status) in [(bot.as_str(), 403), ("mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 401), ("", 401)] {
        let answer = browser.send(Method::POST, "/console/login", &[("key", key)], &[]).await?;
        assert_eq!(answer.status, status);
        assert!(answer.headers.get(SET_COOKIE).is_none(), "{key}");
        assert!(key.is_empty() || !answer.text.contains(key), "the key is not shown again");
    }
    let (_, changes) = world.api.get("/api/audit/changes?limit=10").await?;
    let told = changes["items"].as_array().context("changes")?;
    let misses = told.iter().filter(|change| change["change"] == "console.login" && change["status"] == "error");
    assert_eq!(misses.count(), 3, "{changes}");
    Ok(())
}

#[tokio::test]
async fn misses_lock_nobody_out_and_the_audit_tells_ten_in_a_minute() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::open(&world)?;
    for _ in 0..4 {
        let miss = || browser.send(Method::POST, "/console/login", &[("key", "mk_x")], &[]);
        let (one, two, three, four, five) = tokio::try_join!(miss(), miss(), miss(), miss(), miss())?;
        for answer in [one, two, three, four, five] {
            assert_eq!(answer.status, 401);
        }
    }
    Browser::log_in(&world, world.api.key()).await?;
    let (_, changes) = world.api.get("/api/audit/changes?limit=100").await?;
    let told = changes["items"].as_array().context("changes")?;
    let misses = told.iter().filter(|change| change["change"] == "console.login" && change["status"] == "error");
    assert_eq!(misses.count(), 10, "{changes}");
    Ok(())
}

#[tokio::test]
async fn a_session_ends_with_its_key() -> Result<()> {
    let world = World::with(&[]).await?;
    let (_, key) = world.api.post("/api/keys", &json!({ "name": "ops", "kind": "admin" })).await?;
    let browser = Browser::log_in(&world, text(&key["key"])).await?;
    let bots = format!("{}/bots", base(&world).await?);
    browser.page(&bots).await?;
    world.api.post(&format!("/api/keys/{}/rotate", text(&key["id"])), &json!({})).await?;
    let answer = browser.get(&bots).await?;
    assert_eq!(answer.status, 303);
    assert!(answer.location().starts_with("/console/login?next="), "{}", answer.location());
    Ok(())
}

#[tokio::test]
async fn a_link_logs_in_once_and_names_its_key() -> Result<()> {
    let world = World::with(&[]).await?;
    let (_, key) = world.api.post("/api/keys", &json!({ "name": "ops", "kind": "operator" })).await?;
    let ops = world.api.with_key(text(&key["key"]));
    let (status, ticket) = ops.post("/api/console/tickets", &json!({})).await?;
    assert_eq!(status, 201, "{ticket}");
    let url = text(&ticket["url"]).to_owned();
    let path = &url[url.find("/console/enter/").context("a path of the console")?..];
    let mut browser = Browser::open(&world)?;
    for _ in 0..2 {
        let page = browser.page(path).await?;
        assert!(page.contains("ops") && page.contains("<button"), "looking uses nothing up: {page}");
    }
    let entered = browser.send(Method::POST, path, &[], &[]).await?;
    assert_eq!((entered.status, entered.location()), (303, "/console"));
    browser.keep(&entered)?;
    browser.page(&format!("{}/bots", base(&world).await?)).await?;
    for method in [Method::GET, Method::POST] {
        assert_eq!(Browser::open(&world)?.send(method, path, &[], &[]).await?.status, 410, "a link is used once");
    }
    for (body, path) in [(json!({ "ttl_s": 0 }), "/ttl_s"), (json!({ "ttl_s": 601 }), "/ttl_s")] {
        let (status, answer) = ops.post("/api/console/tickets", &body).await?;
        assert_eq!((status, &answer["errors"][0]["path"]), (422, &json!(path)));
    }
    let bot = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    assert_eq!(bot.post("/api/console/tickets", &json!({})).await?.0, 403);
    Ok(())
}

/// A program with access to the database cannot make sessions or links.
#[tokio::test]
async fn sessions_and_links_that_were_written_with_sql_are_ignored() -> Result<()> {
    let world = World::with(&[]).await?;
    let (_, weak) = world.api.post("/api/keys", &json!({ "name": "weak", "kind": "operator" })).await?;
    let browser = Browser::log_in(&world, text(&weak["key"])).await?;
    let bots = format!("{}/bots", base(&world).await?);
    let folder = world.server.data_dir().to_owned();
    browser.page(&bots).await?;
    let root = "(select id from api_keys where kind = 'root' limit 1)";
    let hash = "(select hash from api_keys where kind = 'root' limit 1)";
    sqlite(&folder, &[&format!("update console_sessions set key_id = {root}, key_hash = {hash}")]).await?;
    assert_eq!(browser.get(&bots).await?.status, 303, "the session names another key");
    let browser = Browser::log_in(&world, text(&weak["key"])).await?;
    sqlite(&folder, &["update console_sessions set ends_at = ends_at + 1"]).await?;
    assert_eq!(browser.get(&bots).await?.status, 303, "the session ends later");

    let weak = world.api.with_key(text(&weak["key"]));
    let (_, ticket) = weak.post("/api/console/tickets", &json!({})).await?;
    let url = text(&ticket["url"]).to_owned();
    let path = &url[url.find("/console/enter/").context("a path of the console")?..];
    sqlite(&folder, &[&format!("update console_tickets set key_id = {root}, key_hash = {hash}")]).await?;
    assert_eq!(Browser::open(&world)?.send(Method::POST, path, &[], &[]).await?.status, 410);
    Ok(())
}
