//! Data folders that take minutes to create: a long audit, and a large policy. They are kept in `target/bench-data`, so
//! that only the first run creates them. The name of a folder contains the number of the last migration, because an
//! earlier revision cannot open the database of a later one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use monstrum_core::audit::Resolved;
use monstrum_core::call_types::call_secrets::CallSecrets;
use monstrum_core::call_types::incoming::IncomingCall;
use monstrum_types::{BotId, CallOutcome, JsonText, PluginName, RequestId};
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, Build, InProcess, Server};

use crate::scene::{NO_UPSTREAM, OPERATION, PLUGIN, TOOL};
use crate::start::start;
use crate::variant;

pub const ROWS: usize = 1_000_000;
pub const PLUGINS: usize = 1_000;
pub const BOTS: usize = 10_000;
/// The number of resources. Every bot is bound to every resource, and each resource is of another plugin.
pub const RESOURCES: usize = 50;
/// The number of calls whose rows are queued before any row is awaited, the capacity of the writer's queue.
const ROWS_QUEUED: usize = 4_096;
/// The number of bots in one import. With their bindings, their lines stay below the limits of an import.
const BOTS_AT_ONCE: usize = 2_500;
/// The operator's limit, in MiB, for the patterns of the workspace, whose bindings exceed the default.
const PATTERNS_MIB: &str = "512";
/// The file that exists once a folder is complete. It contains the seconds that its creation took.
const COMPLETE: &str = "complete";

/// A kept folder, with a server that uses it.
pub struct Kept {
    pub server: Server,
    /// The time that the creation took, except for rows of the audit.
    pub created_in: Duration,
}

/// Returns a server without plugins, whose audit has [`ROWS`] rows.
pub async fn audit() -> Result<Kept> {
    kept("audit", async |folder| {
        append_rows(Server::prepare_in(folder)?).await?;
        Ok(Duration::ZERO)
    })
    .await
}

/// Returns a server with [`PLUGINS`] plugins, [`BOTS`] bots with [`RESOURCES`] bindings each, and [`ROWS`] rows of the
/// audit.
pub async fn all() -> Result<Kept> {
    kept("all", async |folder| {
        let mut server = with_room_for_patterns(Server::prepare_in(folder)?);
        let created_in = set_up(&mut server).await?;
        append_rows(server).await?;
        Ok(created_in)
    })
    .await
}

/// Returns the folder `name`, and creates it first if it is missing or incomplete.
async fn kept(name: &str, create: impl AsyncFnOnce(&Path) -> Result<Duration>) -> Result<Kept> {
    let name = format!("{name}-{}", last_migration()?);
    let folder = Build::current()?.target()?.join("bench-data").join(name);
    let complete = folder.join(COMPLETE);
    if !complete.exists() {
        println!("    creating {} …", folder.display());
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        let took = create(&folder).await?;
        fs::write(&complete, took.as_secs_f64().to_string())
            .with_context(|| format!("cannot write {}", complete.display()))?;
    }
    let seconds = fs::read_to_string(&complete).with_context(|| format!("cannot read {}", complete.display()))?;
    let seconds = seconds.parse().with_context(|| format!("{} contains no number", complete.display()))?;
    let server = with_room_for_patterns(Server::prepare_in(&folder)?);
    Ok(Kept { server, created_in: Duration::from_secs_f64(seconds) })
}

fn with_room_for_patterns(server: Server) -> Server {
    server.variable("MONSTRUM_WORKSPACE_PATTERNS_MIB", PATTERNS_MIB)
}

/// Returns the number of the last migration, such as `0012`.
fn last_migration() -> Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations/sqlite");
    let names = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names: Vec<PathBuf> = names.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let last = names.iter().filter_map(|path| path.file_stem()?.to_str()?.split('_').next()).max();
    Ok(last.with_context(|| format!("{} contains no migrations", folder.display()))?.to_owned())
}

/// Appends rows of successful calls through the writer of the audit. The calls themselves are not run.
async fn append_rows(folders: Server) -> Result<()> {
    let began = Instant::now();
    let host = InProcess::start_in(folders, Vec::new()).await?;
    let app = &host.running.app;
    let (workspace, bot) = (app.policy.load().default_workspace(), BotId::new());
    let plugin: PluginName = PLUGIN.parse()?;
    let resolved = Resolved { plugin: &plugin, plugin_digest: None, operation: OPERATION, resource: None };
    let outcome = CallOutcome::success(JsonText::from(&json!({ "ok": true })));
    let mut number = 0;
    while number < ROWS {
        let mut queued = Vec::with_capacity(ROWS_QUEUED);
        for _ in 0..ROWS_QUEUED.min(ROWS - number) {
            number += 1;
            let params = json!({ "repo": "bench/repo", "number": number });
            let call = IncomingCall::bot_tool(RequestId::new(), workspace, bot, TOOL.to_owned(), params);
            let entry = app.auditor.open(&call, Arc::new(CallSecrets::default()))?;
            entry.resolved(&resolved);
            queued.push(entry.close(&outcome, Vec::new()).await?);
        }
        for row in queued {
            row.committed().await?;
        }
    }
    let rows = app.store.count_events().await?;
    host.stop().await;
    ensure!(usize::try_from(rows)? >= ROWS, "the audit has only {rows} rows");
    println!("    {ROWS} rows of the audit written in {:.0?}", began.elapsed());
    Ok(())
}

/// Installs the plugins, starts the server, which compiles them, and imports the policy over HTTP. Returns the duration.
async fn set_up(server: &mut Server) -> Result<Duration> {
    let began = Instant::now();
    let name = |number: usize| format!("{PLUGIN}-{number:04}");
    for number in 0..PLUGINS {
        variant::install(server, PLUGIN, &name(number))?;
    }
    // The first start compiles the plugins, which may take longer than a server may take to be launched.
    start(server).await?;
    let started = began.elapsed();
    server.launch().await?;
    let api = server.api()?;
    let mut first = vec![role()];
    first.extend((0..RESOURCES).map(|number| resource(&name(number))));
    import(&api, &first).await?;
    for bots in (0..BOTS).collect::<Vec<_>>().chunks(BOTS_AT_ONCE) {
        let mut lines: Vec<Value> = bots.iter().map(|number| bot(*number)).collect();
        let of_bot = |bot: &usize| (0..RESOURCES).map(|number| binding(*bot, &name(number))).collect::<Vec<_>>();
        lines.extend(bots.iter().flat_map(of_bot));
        import(&api, &lines).await?;
    }
    let took = began.elapsed();
    println!(
        "    {PLUGINS} plugins installed and compiled in {started:.0?}, {BOTS} bots with {RESOURCES} bindings each imported in {:.0?}",
        took - started
    );
    server.stop().await?;
    Ok(took)
}

async fn import(api: &Api, lines: &[Value]) -> Result<()> {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let request = api.request(Method::POST, "/api/import").header("Monstrum-Workspace", "default");
    let answer = request.header("content-type", "application/jsonl").body(lines).send().await?;
    let status = answer.status();
    ensure!(status.is_success(), "the import failed: {status} {}", answer.text().await?);
    Ok(())
}

fn role() -> Value {
    json!({
        "kind": "role", "name": "reader", "allowed_operations": ["echo.*"], "allowed_tools": null,
        "scope_constraints": {}, "gates": [],
    })
}

fn resource(plugin: &str) -> Value {
    json!({
        "kind": "resource", "resource_type": plugin, "name": format!("resource of {plugin}"),
        "config": { "api_base": NO_UPSTREAM },
        "network": { "allow_addresses": ["127.0.0.0/8"], "allow_http": true }, "labels": [],
    })
}

fn bot(number: usize) -> Value {
    json!({
        "kind": "bot", "name": format!("bot {number}"), "description": "", "system_prompt": "", "model": null,
        "use_agent_sandbox": false, "monthly_token_budget": null, "gates": [],
    })
}

fn binding(bot: usize, plugin: &str) -> Value {
    json!({
        "kind": "binding", "bot": format!("bot {bot}"), "resource": format!("resource of {plugin}"), "role": "reader",
        "permissions": null, "scope_constraints": { "repos": ["acme/*"] }, "delegate": null, "gates": [],
        "allow_calls": [], "allow_subscribe": false, "limits": null, "calls_per_minute": null, "enabled": true, "expires_at": null,
    })
}
