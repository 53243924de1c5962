//! Webhooks of hosts that share a database.

use anyhow::{Context, Result};
use futures::future::try_join_all;
use serde_json::{Value, json};
use support::Postgres;

use super::{Hook, refused};
use crate::postgres::hosts::{api_of, beside};
use crate::postgres::server_on;
use crate::world::{World, eventually, text};

const BODY: &str = "{}";

#[tokio::test]
async fn of_two_hosts_one_makes_the_event_of_a_delivery() -> Result<()> {
    const DELIVERIES: usize = 5;
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let world = World::on(server_on(&url)?).await?;
    let second = beside(&world.server, server_on(&url)?).await?;
    let there = api_of(&second, world.api.key())?;
    let hook = Hook::create(&world.api, "hook", &json!({ "dedupe_header": "X-Delivery" })).await?;
    let of = |delivery: &str| hook.signed(BODY).with("x-delivery", delivery);
    eventually("the other host knows the webhook", async || {
        Ok(matches!(hook.send(&there, of("first")).await?.0, 200 | 202).then_some(()))
    })
    .await?;
    for number in 0..DELIVERIES {
        let delivery = format!("n{number}");
        let sent = (0..8).map(|attempt| {
            let api = if attempt % 2 == 0 { &world.api } else { &there };
            hook.send(api, of(&delivery))
        });
        let answers = try_join_all(sent).await?;
        assert_eq!(answers.iter().filter(|(status, _)| *status == 202).count(), 1, "{answers:?}");
        assert!(answers.iter().all(|(_, answer)| *answer == answers[0].1), "{answers:?}");
    }
    let database = url.split(['/', '?']).nth(3).context("the address names no database")?;
    let counted = postgres.sql(database, "select count(*) from events where source_type = 'webhook'")?;
    assert_eq!(counted, (DELIVERIES + 1).to_string());
    Ok(())
}

/// A host that has not read a rotation yet makes no event of the old secret.
#[tokio::test]
async fn a_rotation_ends_the_old_secret_at_every_host() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let world = World::on(server_on(&url)?).await?;
    let second = beside(&world.server, server_on(&url)?).await?;
    let there = api_of(&second, world.api.key())?;
    let hook = Hook::create(&world.api, "hook", &json!({})).await?;
    eventually("the other host knows the webhook", async || {
        Ok((hook.send(&there, hook.signed(BODY)).await?.0 == 202).then_some(()))
    })
    .await?;
    let (_, rotated) = world.api.post(&format!("/api/webhooks/{}/rotate", hook.id), &Value::Null).await?;
    assert_eq!(hook.send(&there, hook.signed(BODY)).await?, refused());
    let hook = Hook { secret: text(&rotated["secret"]).to_owned(), ..hook };
    hook.event(&there, hook.signed(BODY)).await?;
    assert_eq!(world.api.delete(&format!("/api/webhooks/{}", hook.id)).await?.0, 204);
    assert_eq!(hook.send(&there, hook.signed(BODY)).await?, refused());
    Ok(())
}
