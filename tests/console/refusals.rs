//! Requests that the console refuses: of other sites, under other names, with other tokens.

use anyhow::{Context, Result};
use reqwest::Method;
use support::Server;

use super::{Browser, base, hidden_fields};
use crate::world::World;

#[tokio::test]
async fn the_cookie_counts_for_the_console_only() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    assert_eq!(browser.get("/api/bots").await?.status, 401);
    let forged = [("cookie", "monstrum=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")];
    assert_eq!(browser.send(Method::GET, "/console", &[], &forged).await?.location(), "/console/login?next=%2Fconsole");
    Ok(())
}

#[tokio::test]
async fn forms_of_other_sites_and_without_a_token_are_refused() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let action = format!("{}/bots/new", base(&world).await?);
    let hidden = hidden_fields(&browser.page(&action).await?, &action)?;
    let token = &hidden.iter().find(|(name, _)| name == "_token").context("a token")?.1;
    let origin = format!("http://{}", browser.url.trim_start_matches("http://"));
    let names = || async { anyhow::Ok(world.api.get("/api/bots").await?.1["items"].as_array().map_or(0, Vec::len)) };
    let fields = [("_token", token.as_str()), ("name", "made")];
    let refused: [&[(&'static str, &str)]; 6] = [
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site"), ("origin", &origin)],
        &[("sec-fetch-site", "none")],
        &[("sec-fetch-site", ""), ("origin", "null")],
        &[("sec-fetch-site", ""), ("origin", "http://evil.example")],
        &[("sec-fetch-site", "")],
    ];
    for headers in refused {
        let answer = browser.send(Method::POST, &action, &fields, headers).await?;
        assert_eq!(answer.status, 403, "{headers:?}");
    }
    let other = Browser::log_in(&world, world.api.key()).await?;
    let of_other = hidden_fields(&other.page(&action).await?, &action)?;
    let of_page = hidden_fields(&browser.page(&action).await?, "/console/logout")?;
    let foreign = [&of_other, &of_page]
        .map(|fields| fields.iter().find(|(name, _)| name == "_token").map(|(_, value)| value.clone()));
    for bad in
        [Some(String::new()), Some("00".repeat(48)), foreign[0].clone(), foreign[1].clone(), Some(format!("{token}0"))]
    {
        let bad = bad.context("a token")?;
        let answer = browser.send(Method::POST, &action, &[("_token", &bad), ("name", "made")], &[]).await?;
        assert_eq!(answer.status, 403, "{bad}");
    }
    assert_eq!(names().await?, 1, "nothing was made");
    let by_origin = [("sec-fetch-site", ""), ("origin", origin.as_str())];
    let answer = browser.send(Method::POST, &action, &fields, &by_origin).await?;
    assert_eq!(answer.status, 303, "{}", answer.text);
    assert_eq!(names().await?, 2);
    Ok(())
}

#[tokio::test]
async fn the_server_is_called_by_its_own_names_only() -> Result<()> {
    let server = Server::prepare(&[])?.argument("--console-hosts").argument("ops.internal");
    let world = World::on(server).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let bots = format!("{}/bots", base(&world).await?);
    for (host, status) in [
        ("localhost", 200),
        ("localhost:9999", 200),
        ("[::1]:1", 200),
        ("ops.internal:80", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("192.168.0.1", 421),
    ] {
        let answer = browser.send(Method::GET, &bots, &[], &[("host", host)]).await?;
        assert_eq!(answer.status, status, "{host}");
        assert!(status == 200 || !answer.text.contains("tester"), "{host}");
    }
    // A key is not taken over a connection that others can read.
    let fields = [("key", world.api.key())];
    let answer =
        browser.send(Method::POST, "/console/login", &fields, &[("host", "ops.internal"), ("cookie", "")]).await?;
    assert_eq!(answer.status, 403);
    assert!(answer.text.contains("--public-url"), "{}", answer.text);
    Ok(())
}

#[tokio::test]
async fn a_browser_returns_to_the_console_only() -> Result<()> {
    let world = World::with(&[]).await?;
    let browser = Browser::open(&world)?;
    for (next, expected) in [
        ("//evil", "/console"),
        ("/\\evil", "/console"),
        ("https://evil", "/console"),
        ("/console/w/x?a=1", "/console/w/x?a=1"),
    ] {
        let fields = [("key", world.api.key()), ("next", next)];
        let answer = browser.send(Method::POST, "/console/login", &fields, &[]).await?;
        assert_eq!((answer.status, answer.location()), (303, expected), "{next}");
    }
    Ok(())
}

#[tokio::test]
async fn an_operator_cannot_send_the_form_of_an_admin() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "echo", &world.github.url()).await?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let base = base(&world).await?;
    let bind = format!("{base}/bots/{}/bind?resource={resource}", world.bot);
    let fields = [("tools.mode", "only"), ("tools.others", "*"), ("enabled", "on"), ("save", "1")];
    let answer = operator.submit(&bind, &bind, &fields).await?;
    assert_eq!(answer.status, 403, "{}", answer.text);
    let (_, bindings) = world.api.get(&format!("/api/bots/{}/resources", world.bot)).await?;
    assert_eq!(bindings["items"].as_array().map(Vec::len), Some(0));
    Ok(())
}

#[tokio::test]
async fn pages_of_another_workspace_do_not_exist() -> Result<()> {
    let world = World::with(&[]).await?;
    let foreign = crate::http::workspace(&world.api, "foreign").await?;
    let browser = Browser::log_in(&world, foreign.key()).await?;
    let base = base(&world).await?;
    for path in [format!("{base}/bots"), format!("{base}/bots/{}", world.bot)] {
        assert_eq!(browser.get(&path).await?.status, 404, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_without_a_console_has_no_pages() -> Result<()> {
    let world = World::on(Server::prepare(&[])?.argument("--console").argument("off")).await?;
    let browser = Browser::open(&world)?;
    assert_eq!(browser.get("/console").await?.status, 404);
    assert_eq!(world.api.post("/api/console/tickets", &serde_json::json!({})).await?.0, 404);
    let welcome = browser.send(Method::GET, "/", &[], &[("accept", "text/html")]).await?;
    assert_eq!(welcome.status, 200);
    Ok(())
}
