//! `/api/console/tickets`: links with which a browser logs in to the console.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_types::{Clock as _, SystemClock, UtcMillis};
use reqwest::Method;
use serde_json::{Value, json};
use support::Server;

use crate::http::{Answers, made, send};
use crate::world::{World, text};

/// The route.
const TICKETS: &str = "/api/console/tickets";

/// Keys of people get links, and keys of programs do not.
#[tokio::test]
async fn keys_of_people_get_links_and_keys_of_programs_do_not() -> Result<()> {
    let world = World::with(&[]).await?;
    let url = world.server.url().context("the server is not running")?;
    let mut links = Vec::new();
    for kind in ["root", "admin", "operator", "approver"] {
        let key = world.api.new_key(kind, None).await?;
        let (status, ticket) = world.api.with_key(&key).post(TICKETS, &json!({})).await?;
        let link = text(&ticket["url"]).to_owned();
        let token = link.strip_prefix(&format!("{url}/console/enter/")).with_context(|| link.clone())?;
        ensure!(status == 201 && token.len() == 43 && !link.contains(&key), "{kind}: {status} {ticket}");
        links.push(link);
    }
    // The body is optional, and each link is another one.
    let (status, _, ticket) = send(world.api.request(Method::POST, TICKETS)).await?;
    ensure!(status == 201 && !links.contains(&text(&ticket["url"]).to_owned()), "{ticket}");

    let resource = made(&world.api, "/api/resources", &json!({ "resource_type": "agent", "name": "lab" })).await?;
    let agent = json!({ "name": "agent", "kind": "agent", "resource_id": resource });
    let agent = text(&world.api.post("/api/keys", &agent).await?.1["key"]).to_owned();
    let bot = world.api.new_key("bot", Some(&world.bot)).await?;
    let mut answers = Answers::default();
    for (kind, key) in [("bot", bot.as_str()), ("agent", agent.as_str()), ("none", "")] {
        let (status, answer) = world.api.with_key(key).post(TICKETS, &json!({})).await?;
        answers.add(kind, (status, answer["detail"].clone()));
    }
    assert_snapshot!(answers, @r#"
    bot: 403 "this operation requires an approver, operator, admin or root key"
    agent: 403 "this operation requires an approver, operator, admin or root key"
    none: 401 "send exactly one header `Authorization: Bearer mk_…`"
    "#);
    Ok(())
}

#[tokio::test]
async fn a_link_lives_up_to_ten_minutes() -> Result<()> {
    let world = World::with(&[]).await?;
    for (body, seconds) in [(json!({}), 60), (json!({ "ttl_s": 1 }), 1), (json!({ "ttl_s": 600 }), 600)] {
        let (before, (status, ticket)) = (SystemClock.now(), world.api.post(TICKETS, &body).await?);
        let expires: UtcMillis = text(&ticket["expires_at"]).parse().map_err(anyhow::Error::msg)?;
        let end = seconds * 1_000;
        ensure!(status == 201, "{ticket}");
        ensure!((end..=end + SystemClock.now().since_ms(before)).contains(&expires.since_ms(before)), "{ticket}");
    }
    let mut answers = Answers::default();
    for ttl_s in [json!(0), json!(601), json!(-1), json!(1.5), json!("60")] {
        let (status, answer) = world.api.post(TICKETS, &json!({ "ttl_s": ttl_s })).await?;
        answers.add(&ttl_s.to_string(), (status, answer["errors"][0].clone()));
    }
    assert_snapshot!(answers, @r#"
    0: 422 {"path":"/ttl_s","message":"expected a number from 1 to 600"}
    601: 422 {"path":"/ttl_s","message":"expected a number from 1 to 600"}
    -1: 422 {"path":"/ttl_s","message":"invalid value: integer `-1`, expected u32"}
    1.5: 422 {"path":"/ttl_s","message":"invalid type: floating point `1.5`, expected u32"}
    "60": 422 {"path":"/ttl_s","message":"invalid type: string \"60\", expected u32"}
    "#);
    Ok(())
}

#[tokio::test]
async fn links_contain_the_public_url_and_a_server_without_a_console_makes_none() -> Result<()> {
    let mut public = Server::prepare(&[])?.argument("--public-url").argument("https://monstrum.example/base/");
    public.launch().await?;
    let (status, ticket) = public.api()?.post(TICKETS, &json!({})).await?;
    ensure!(status == 201, "{ticket}");
    ensure!(text(&ticket["url"]).starts_with("https://monstrum.example/base/console/enter/"), "{ticket}");

    let mut off = Server::prepare(&[])?.argument("--console").argument("off");
    off.launch().await?;
    let (status, answer) = off.api()?.post(TICKETS, &json!({})).await?;
    assert_eq!((status, &answer["detail"]), (404, &json!("no such route: this server runs with `--console off`")));
    assert_eq!(off.api()?.with_key("").post(TICKETS, &Value::Null).await?.0, 401);
    Ok(())
}
