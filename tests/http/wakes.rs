//! Tests of `/api/wakes`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_core::policy::row_seals;
use monstrum_store::{NewWake, StoreOptions};
use monstrum_types::{Clock as _, SystemClock, UtcMillis, WakeClaimId, WakeKey, WakeKind, WorkspaceId};

use crate::http::roles::faults;
use crate::http::{Answers, workspace};
use crate::world::{World, text};

/// The time of the planted turns, in 2100: no test runs them.
const LATER: UtcMillis = UtcMillis(4_102_444_800_000);

/// Requests turns of tasks with these ids, as a part of the server would. The turn of `failing` has failed.
pub(crate) async fn plant_wakes(
    options: StoreOptions,
    data_dir: &Path,
    workspace: &str,
    ids: &[&str],
    failing: Option<&str>,
) -> Result<()> {
    let store = row_seals::open_with_key_file(options, &data_dir.join("master.key")).await?;
    let workspace_id: WorkspaceId = workspace.parse()?;
    let due_at = LATER;
    for id in ids {
        let wake = NewWake { key: WakeKey::new(WakeKind::Task, *id)?, workspace_id, due_at, claim: None };
        ensure!(store.request_turns(&[wake]).await? == [true], "the workspace does not exist");
    }
    if let Some(id) = failing {
        let wake = (WakeKey::new(WakeKind::Task, id)?, due_at, WakeClaimId::new());
        let claims = store.claim_wakes("node", &[wake], SystemClock.now()).await?;
        let claim = claims.first().context("the wake was not claimed")?;
        let delay_ms = LATER.since_ms(SystemClock.now());
        store.fail_turn(claim, delay_ms, "the model does not answer", SystemClock.now()).await?;
    }
    store.close().await;
    Ok(())
}

#[tokio::test]
async fn wakes_are_listed_with_their_failures() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let options = StoreOptions::sqlite(world.server.data_dir().join("monstrum.db"));
    let (_, workspaces) = api.get("/api/workspaces").await?;
    let id = text(&workspaces["items"][0]["id"]);
    plant_wakes(options.clone(), &world.server.data_dir(), id, &["bad", "good"], Some("bad")).await?;
    let other = workspace(api, "other").await?;
    let mut answers = Answers::default();
    answers.add("all", api.get("/api/wakes").await?);
    answers.add("failing", api.get("/api/wakes?failing=true").await?);
    answers.add("page", api.get("/api/wakes?limit=1").await?);
    answers.add("next page", api.get("/api/wakes?limit=1&cursor=task/bad").await?);
    answers.add("of another workspace", other.get("/api/wakes").await?);
    answers.add("no such filter", faults(api.get("/api/wakes?failed=true").await?));
    answers.add("no such cursor", faults(api.get("/api/wakes?cursor=bot/x").await?));
    assert_snapshot!(answers, @r#"
    all: 200 {"items":[{"key":"task/bad","due_at":"[time]","claimed_by":null,"claimed_until":null,"failures":1,"last_error":"the model does not answer"},{"key":"task/good","due_at":"[time]","claimed_by":null,"claimed_until":null,"failures":0,"last_error":null}],"next_cursor":null}
    failing: 200 {"items":[{"key":"task/bad","due_at":"[time]","claimed_by":null,"claimed_until":null,"failures":1,"last_error":"the model does not answer"}],"next_cursor":null}
    page: 200 {"items":[{"key":"task/bad","due_at":"[time]","claimed_by":null,"claimed_until":null,"failures":1,"last_error":"the model does not answer"}],"next_cursor":"task/bad"}
    next page: 200 {"items":[{"key":"task/good","due_at":"[time]","claimed_by":null,"claimed_until":null,"failures":0,"last_error":null}],"next_cursor":null}
    of another workspace: 200 {"items":[],"next_cursor":null}
    no such filter: 422 [{"path":"failed","message":"unknown query parameter (supported: cursor, failing, limit)"}]
    no such cursor: 422 [{"path":"cursor","message":"expected a `next_cursor` of this list"}]
    "#);
    Ok(())
}
