//! The data of events is sealed, and a rotation of the master key seals it anew.

use anyhow::{Context, Result};
use monstrum_core::events::{self, EventLinks, EventType, NewEvent};
use monstrum_core::policy::row_seals;
use monstrum_store::{EventRow, Store, StoreOptions};
use monstrum_types::{BotId, Clock as _, SystemClock, WorkspaceId};
use monstrum_vault::{MasterKeys, Vault};
use serde_json::json;

use crate::cli::parsed;
use crate::world::{World, text};

async fn opened(world: &World) -> Result<(Store, Vault)> {
    let keys = world.server.data_dir().join("master.key");
    let store = StoreOptions::sqlite(world.server.data_dir().join("monstrum.db"));
    let store = row_seals::open_with_key_file(store, &keys).await?;
    Ok((store, Vault::new(MasterKeys::open(&keys)?.context("the server has made a key")?)))
}

/// Returns an event, with a bot or of the platform.
fn event(workspace_id: WorkspaceId, bot_id: Option<BotId>) -> NewEvent {
    NewEvent {
        workspace_id,
        event_type: EventType::TaskCompleted.into(),
        source_type: "task",
        source_id: "t".to_owned(),
        bot_id,
        links: EventLinks { task_id: Some("t".to_owned()), ..EventLinks::default() },
        cause: None,
        data: json!({ "result": "done" }),
    }
}

#[tokio::test]
async fn events_open_after_a_rotation() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let (_, workspaces) = world.api.get("/api/workspaces").await?;
    let workspace: WorkspaceId = text(&workspaces["items"][0]["id"]).parse()?;
    world.server.stop().await?;
    let (store, vault) = opened(&world).await?;
    let mut rows: Vec<EventRow> = Vec::new();
    for bot in [Some(BotId::new()), None] {
        let row = events::seal(&vault, event(workspace, bot), SystemClock.now())?;
        assert!(store.insert_event(&row).await?);
        rows.push(row);
    }
    store.close().await;
    let (code, report) = parsed(&world.server, &["vault", "rotate"]).await?;
    assert_eq!((code, &report["unreadable"]), (Some(0), &json!([])), "{report}");
    assert_eq!(parsed(&world.server, &["vault", "rotate", "--prune"]).await?.0, Some(0));
    let (store, vault) = opened(&world).await?;
    for row in rows {
        let sealed_anew = store.event(workspace, row.id).await?.context("the event is there")?;
        assert_ne!(sealed_anew.sealed, row.sealed);
        assert_eq!(events::open(&vault, &sealed_anew)?, json!({ "result": "done" }));
        assert!(events::open(&vault, &row).is_err(), "the older key is gone");
    }
    Ok(())
}
