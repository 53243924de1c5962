//! Rows that another program wrote make no events.

use anyhow::Result;
use serde_json::json;

use super::{Hook, refused};
use crate::tamper::sqlite;
use crate::world::World;

const FORGED: &str = "01939d2c-7f6a-7000-8000-000000000001";
const BODY: &str = "{}";
const COLUMNS: &str = "workspace_id, event, bot_id, kind, signature_header, signature_prefix, headers, dedupe_header, \
                       created_at, updated_at, secret_created_at, sealed, mac";

/// Runs statements on the database of the stopped server, and starts the server again.
async fn attack(world: &mut World, statements: &[&str]) -> Result<()> {
    world.server.stop().await?;
    sqlite(&world.server.data_dir(), statements).await?;
    world.server.launch().await?;
    world.api = world.server.api()?;
    Ok(())
}

#[tokio::test]
async fn a_copied_row_is_unknown() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let hook = Hook::create(&world.api, "hook", &json!({})).await?;
    let copy = format!("insert into webhooks (id, name, {COLUMNS}) select '{FORGED}', 'copy', {COLUMNS} from webhooks");
    attack(&mut world, &[&copy]).await?;
    let forged = Hook { id: FORGED.to_owned(), secret: hook.secret.clone() };
    assert_eq!(forged.send(&world.api, forged.signed(BODY)).await?, refused());
    assert_eq!(world.api.get(&format!("/api/webhooks/{FORGED}")).await?.0, 404);
    // The forged row has no effect on the other one.
    hook.event(&world.api, hook.signed(BODY)).await?;
    Ok(())
}

#[tokio::test]
async fn an_edited_row_makes_no_event() -> Result<()> {
    for edit in ["event = 'task.completed'", "kind = 'token'", "signature_prefix = ''", "secret_created_at = 1"] {
        let mut world = World::with(&[]).await?;
        let hook = Hook::create(&world.api, "hook", &json!({})).await?;
        attack(&mut world, &[&format!("update webhooks set {edit}")]).await?;
        for sent in [hook.signed(BODY), hook.with_token(BODY)] {
            assert_eq!(hook.send(&world.api, sent).await?, refused(), "{edit}");
        }
    }
    Ok(())
}

/// A running host does not use the edited row, and the request that finds the edit makes no event.
#[tokio::test]
async fn an_edit_under_a_running_server_makes_no_event() -> Result<()> {
    let world = World::with(&[]).await?;
    let hook = Hook::create(&world.api, "hook", &json!({})).await?;
    hook.event(&world.api, hook.signed(BODY)).await?;
    sqlite(&world.server.data_dir(), &["update webhooks set updated_at = updated_at + 1"]).await?;
    assert_eq!(hook.send(&world.api, hook.signed(BODY)).await?, refused());
    let counted =
        sqlite(&world.server.data_dir(), &["select count(*) from events where source_type = 'webhook'"]).await?;
    assert_eq!(counted, json!([[1]]));
    Ok(())
}

/// Neither the secret from before a rotation nor the whole earlier row can be restored.
#[tokio::test]
async fn an_earlier_secret_cannot_be_restored() -> Result<()> {
    for restored in [
        "update webhooks set sealed = (select sealed from old_webhooks)",
        "update webhooks set (updated_at, secret_created_at, sealed, mac) = \
         (select updated_at, secret_created_at, sealed, mac from old_webhooks)",
    ] {
        let mut world = World::with(&[]).await?;
        let hook = Hook::create(&world.api, "hook", &json!({})).await?;
        sqlite(&world.server.data_dir(), &["create table old_webhooks as select * from webhooks"]).await?;
        let (status, _) = world.api.post(&format!("/api/webhooks/{}/rotate", hook.id), &json!(null)).await?;
        assert_eq!(status, 200);
        attack(&mut world, &[restored]).await?;
        assert_eq!(hook.send(&world.api, hook.signed(BODY)).await?, refused(), "{restored}");
    }
    Ok(())
}

#[tokio::test]
async fn no_event_is_made_while_the_rows_of_the_workspace_do_not_match_their_seals() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let hook = Hook::create(&world.api, "hook", &json!({})).await?;
    attack(&mut world, &["update bots set system_prompt = 'edited'"]).await?;
    assert_eq!(hook.send(&world.api, hook.signed(BODY)).await?, refused());
    Ok(())
}
