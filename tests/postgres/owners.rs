//! Two hosts on one database see the same owners.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use support::{Api, Postgres, Server};

use super::VARIABLE;
use super::hosts::{api_of, beside};
use crate::call::plugins::edit;
use crate::world::{World, eventually, text};

/// Puts a plugin into a host's folder. The plugin has the type and the tools of `test-echo`.
fn thief(server: &Server) -> Result<()> {
    server.install_as("test-echo", "aaa")?;
    edit(&server.plugins_dir().join("aaa"), |text| text.replace("name: test-echo\n", "name: aaa\n"))
}

/// Returns the states of the plugin that owns the type and of the plugin that requests it.
async fn states(api: &Api) -> Result<(String, String)> {
    let (_, owner) = api.get("/api/plugins/test-echo").await?;
    let (_, other) = api.get("/api/plugins/aaa").await?;
    Ok((text(&owner["status"]).to_owned(), text(&other["status"]).to_owned()))
}

#[tokio::test]
async fn a_takeover_that_one_host_approves_counts_for_the_other() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let server = || Ok::<_, anyhow::Error>(Server::prepare(&["test-echo"])?.variable(VARIABLE, &url));
    let world = World::on(server()?).await?;
    let bound = world.grant_all("test-echo").await?;
    let prepared = server()?;
    thief(&prepared)?;
    let second = beside(&world.server, prepared).await?;
    let there = api_of(&second, world.api.key())?;
    // At the second host, the folder `aaa` sorts first, but its plugin waits for approval as well.
    let waits = ("loaded".to_owned(), "needs_approval".to_owned());
    assert_eq!(states(&there).await?, waits);
    assert_eq!(there.call(&world.bot, "test_echo_run", &json!({})).await?["status"], "success");

    thief(&world.server)?;
    assert_eq!(world.api.post("/api/plugins/aaa/reload", &Value::Null).await?.1["status"], "needs_approval");
    assert_eq!(world.api.post("/api/plugins/aaa/approve", &json!({})).await?.0, 200);
    let moved = ("needs_approval".to_owned(), "loaded".to_owned());
    assert_eq!(states(&world.api).await?, moved);
    eventually("the other host has applied the approval", async || Ok((states(&there).await? == moved).then_some(())))
        .await?;
    for api in [&world.api, &there] {
        let answer = eventually("the new owner serves", async || {
            let answer = api.call(&world.bot, "test_echo_run", &json!({})).await?;
            Ok((answer["status"] == "success").then_some(answer))
        })
        .await?;
        let audit = api.audit(answer["request_id"].as_str().context("an id")?).await?;
        assert_eq!(audit["plugin"], "aaa", "{audit}");
        let (_, shown) = api.get(&format!("/api/resources/{}", bound.resource)).await?;
        assert_eq!(shown["credential"]["status"], "needs-authorization", "{shown}");
    }
    Ok(())
}
