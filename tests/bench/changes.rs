//! A change of a workspace with 100 000 bindings: what brings its seal forward does not grow with it.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use monstrum_core::policy::row_seals;
use monstrum_store::{BindingRow, BotRow, DEFAULT_WORKSPACE, ResourceRow, Store, StoreOptions};
use monstrum_types::{BindingId, BotId, Clock, ResourceId, SystemClock, UtcMillis, WorkspaceId};
use serde_json::json;

use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};

/// Bots and resources, each bound to each.
const SIDE: usize = 320;
const SMALL_SIDE: usize = 10;
/// Bindings of one transaction while the workspace is filled.
const AT_ONCE: usize = 10_000;
const CHANGES: usize = 200;
/// What a change may take, on the store's side.
const GOAL_US: f64 = 20_000.0;

/// The row of a change.
pub async fn measure(rounds: usize) -> Result<Row> {
    let folder = tempfile::tempdir()?;
    let (large, many) = Filled::make(&folder.path().join("large.db"), SIDE).await?;
    let (small, few) = Filled::make(&folder.path().join("small.db"), SMALL_SIDE).await?;
    let mut all = Rounds::default();
    for _ in 0..rounds {
        all.add(large.change().await?, small.change().await?);
    }
    let began = Instant::now();
    let snapshot = large.store.snapshot().await?;
    println!("    reading and verifying all {} rows of it: {:?}", snapshot.bindings.len(), began.elapsed());
    ensure!(snapshot.unverified.is_empty() && snapshot.bindings.len() == many, "the workspace is not verified");
    let name = format!("a change of a workspace with {many} bindings");
    let names = (name.as_str(), format!("of one with {few}"));
    let goal = "p99 <= 20 ms";
    Ok(Row::new((names.0, &names.1), Measure::Time, &all, goal, |_, subject| subject.p99_us <= GOAL_US))
}

/// A database with one workspace.
struct Filled {
    store: Store,
    binding: BindingRow,
}

impl Filled {
    /// With so many bots and resources, each bound to each; and how many bindings that makes.
    async fn make(path: &std::path::Path, side: usize) -> Result<(Filled, usize)> {
        let store = row_seals::open_for_tests(StoreOptions::sqlite(path.to_owned())).await?;
        let workspace = store.workspace_named(DEFAULT_WORKSPACE).await?.context("there is a workspace")?.id;
        let now = SystemClock.now();
        let (mut bots, mut resources) = (Vec::new(), Vec::new());
        for number in 0..side {
            let (bot, resource) = (bot(workspace, number, now), resource(workspace, number, now)?);
            store.insert_bot(&bot).await?;
            store.insert_resource(&resource).await?;
            bots.push(bot.id);
            resources.push(resource.id);
        }
        let pairs = bots.iter().flat_map(|bot| resources.iter().map(|resource| (*bot, *resource)));
        let bindings: Vec<_> = pairs.map(|(bot, resource)| binding(workspace, bot, resource, now)).collect();
        for group in bindings.chunks(AT_ONCE) {
            store.insert_bindings(workspace, group).await?;
        }
        let binding = bindings.first().context("there are bindings")?.clone();
        Ok((Filled { store, binding }, bindings.len()))
    }

    /// Changes one binding again and again.
    async fn change(&self) -> Result<Sample> {
        let BindingRow { workspace_id, bot_id, id, .. } = self.binding;
        let mut row = self.store.binding(workspace_id, bot_id, id).await?.context("the binding is there")?;
        let (began, mut times) = (Instant::now(), Vec::with_capacity(CHANGES));
        for _ in 0..CHANGES {
            let before = row.updated_at;
            row = BindingRow { enabled: !row.enabled, updated_at: before.plus_ms(1), ..row };
            let begun = Instant::now();
            ensure!(self.store.update_binding(&row, before).await?, "the binding was changed by another");
            times.push(begun.elapsed());
        }
        Ok(Sample::new(times, began.elapsed()))
    }
}

fn bot(workspace: WorkspaceId, number: usize, now: UtcMillis) -> BotRow {
    BotRow {
        id: BotId::new(),
        workspace_id: workspace,
        name: format!("bot {number}"),
        description: String::new(),
        system_prompt: String::new(),
        model: None,
        use_agent_sandbox: false,
        monthly_token_budget: None,
        created_at: now,
        updated_at: now,
    }
}

fn resource(workspace: WorkspaceId, number: usize, now: UtcMillis) -> Result<ResourceRow> {
    Ok(ResourceRow {
        id: ResourceId::new(),
        workspace_id: workspace,
        resource_type: "github".parse()?,
        name: format!("resource {number}"),
        config: json!({ "api_base": "https://api.github.com" }),
        network: json!({}),
        created_at: now,
        updated_at: now,
    })
}

fn binding(workspace: WorkspaceId, bot: BotId, resource: ResourceId, now: UtcMillis) -> BindingRow {
    BindingRow {
        id: BindingId::new(),
        workspace_id: workspace,
        bot_id: bot,
        resource_id: resource,
        role_id: None,
        permissions: Some(json!({ "allowed_operations": ["issue.*"] })),
        scope_constraints: json!({ "repos": ["acme/*"] }),
        delegate: None,
        allow_calls: json!([]),
        allow_subscribe: false,
        limits: None,
        calls_per_minute: None,
        enabled: true,
        expires_at: None,
        created_at: now,
        updated_at: now,
    }
}
