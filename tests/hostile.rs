//! Plugins that attack the host. One table lists the attacks by name, and each must be contained.
//!
//! An attack is contained if the caller gets exactly the message of the contract, the audit has the row, another bot's
//! calls of another plugin are not affected, the next call of the same plugin succeeds, and the memory is released.

mod bounds;
pub(crate) mod guests;
mod limits;
mod requests;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Canned, Server};

use crate::world::{World, text};
use guests::{ALLOCATOR, GUESTS, component, install, tool};

type End = [&'static str; 3];

const FUEL: End = ["error", "fuel", "the plugin used up its computing budget"];
const MEMORY: End = ["error", "memory", "the plugin ran out of memory"];
const TRAP: End = ["error", "trap", "the plugin crashed"];
const BAD_RESULT: End = ["error", "bad_result", "the plugin returned invalid JSON"];
const TOO_LARGE: End = ["error", "result_too_large", "the plugin returned more than 1 MiB"];

/// The maximum growth of the server's memory in one round of attacks. The pool keeps the memory of unused slots, up to
/// a mebibyte each, and the allocator keeps memory of the largest calls.
const WARMTH_KIB_MAX: u64 = 256 << 10;

/// The number of repetitions of the attacks that allocate memory, and the maximum growth after them. Together they
/// allocate 6 GiB.
const HOARDERS_AGAIN: usize = 20;
const LEFT_KIB_MAX: u64 = 64 << 10;

/// One attack of a plugin.
struct Attack {
    /// A description of the attack.
    name: &'static str,
    plugin: &'static str,
    tool: String,
    params: Value,
    /// The data of a successful call, or the status, code and message of a failed call.
    told: Result<Value, End>,
}

fn attack(name: &'static str, plugin: &'static str, params: Value, told: Result<Value, End>) -> Attack {
    Attack { name, plugin, tool: tool(plugin), params, told }
}

/// Returns the table of attacks.
fn attacks() -> Vec<Attack> {
    // The data are large enough for the allocator to need more memory than it may get.
    let something = || json!({ "something": "x".repeat(6_000) });
    let flood = |mode: &str, times: u32| json!({ "mode": mode, "times": times });
    let mode = |mode: &str| json!({ "mode": mode });
    let wasi = "test-wasi-http";
    let by_wasi =
        |name, params, told| Attack { tool: "test_wasi_http_flood".to_owned(), ..attack(name, wasi, params, told) };
    vec![
        attack("an endless loop in execute", "test-loop", mode("spin"), Err(FUEL)),
        attack("an endless loop in a start function", "wall-start", something(), Err(FUEL)),
        attack("an endless loop in the allocator", "wall-allocator", something(), Err(FUEL)),
        attack("an endless loop after the return", "wall-after", something(), Err(FUEL)),
        attack("growth of one memory", "test-alloc", json!({}), Err(MEMORY)),
        attack("growth of several memories", "wall-memories", something(), Err(MEMORY)),
        attack("growth of a table", "wall-table", something(), Err(MEMORY)),
        attack("deep recursion", "wall-recursion", something(), Err(TRAP)),
        attack("a trap", "test-trap", mode("abort"), Err(TRAP)),
        attack("a panic", "test-trap", mode("panic"), Err(TRAP)),
        attack("an exit", "test-trap", mode("exit"), Err(TRAP)),
        attack("a result of 100 MB", "test-result", mode("huge"), Err(MEMORY)),
        attack("a result of 50 MB", "test-result", mode("large"), Err(TOO_LARGE)),
        attack("a result of 100 MB that is not there", "wall-answer-outside", something(), Err(TRAP)),
        attack("invalid UTF-8 in a result", "wall-result-bytes", something(), Err(TRAP)),
        attack("invalid UTF-8 in a host call", "wall-call-bytes", something(), Err(TRAP)),
        attack("invalid JSON", "test-result", mode("invalid"), Err(BAD_RESULT)),
        attack("JSON of 200 000 levels", "test-result", mode("deep"), Err(BAD_RESULT)),
        attack("6 GB of headers in 1 MB", "wall-list", something(), Err(TRAP)),
        attack("a flood of log lines", "test-flood", flood("log", 20_000), Ok(json!(20_000))),
        attack("a flood on stdout", "test-flood", flood("stdout", 20_000), Ok(json!(20_000))),
        attack("a flood on stderr", "test-flood", flood("stderr", 20_000), Ok(json!(20_000))),
        attack(
            "100 000 host calls",
            "test-flood",
            flood("requests", 100_000),
            Ok(json!({ "200": 50, "limit": 99_950 })),
        ),
        attack("40 000 header fields", "test-flood", flood("headers", 40_000), Ok(json!("invalid"))),
        attack("40 000 query parameters", "test-flood", flood("query", 40_000), Ok(json!("invalid"))),
        by_wasi("40 000 header fields by wasi:http", json!({ "fields": 40_000 }), Err(TRAP)),
        by_wasi(
            "60 requests at once by wasi:http",
            json!({ "requests": 60, "path": "/echo" }),
            Ok(json!({ "200": 50, "limit": 10 })),
        ),
        // The host holds at most three answers of 10 MiB for a call.
        by_wasi(
            "5 large answers at once by wasi:http",
            json!({ "requests": 5, "path": "/large" }),
            Ok(json!({ "200": 3, "too_large": 2 })),
        ),
        by_wasi(
            "requests that it does not wait for",
            json!({ "requests": 20, "forsake": true }),
            Ok(json!({ "begun": 20 })),
        ),
        attack("state in a global", "test-flood", mode("count"), Ok(json!(1))),
        attack("state in a global, again", "test-flood", mode("count"), Ok(json!(1))),
    ]
}

/// Returns parameters with which a plugin does not attack.
fn calm(plugin: &str) -> Value {
    match plugin {
        "test-alloc" => json!({ "chunk_kib": 0 }),
        "test-loop" | "test-trap" | "test-flood" => json!({ "mode": "none" }),
        "test-result" => json!({ "mode": "ok" }),
        _ => json!({}),
    }
}

/// Returns each plugin of the table once, with its tool.
fn plugins(attacks: &[Attack]) -> Vec<(&'static str, String)> {
    let mut plugins: Vec<(&str, String)> = attacks.iter().map(|attack| (attack.plugin, attack.tool.clone())).collect();
    plugins.sort();
    plugins.dedup();
    plugins
}

/// Creates a world with every plugin of the table. A second bot may also use the plugins, but has no credential.
async fn besieged(attacks: &[Attack]) -> Result<(World, String)> {
    let server = Server::prepare(&["test-echo"])?;
    for guest in GUESTS {
        guest.install(&server)?;
    }
    let plugins = plugins(attacks);
    for (plugin, _) in plugins.iter().filter(|(plugin, _)| plugin.starts_with("test-")) {
        server.install(plugin)?;
    }
    let world = World::on(server).await?;
    world.github.answer("/large", Canned::new(200, vec![b'x'; 10 << 20]));
    world.grant_all("test-echo").await?;
    let calm = world.api.bot("calm").await?;
    for (plugin, _) in &plugins {
        world.grant_all(plugin).await?;
        let resource = world.api.resource(plugin, &format!("{plugin}-calm"), &world.github.url()).await?;
        let role = world.api.role(&format!("{plugin}-calm"), &["*"]).await?;
        world.api.bind(&calm, &resource, &role, &json!({})).await?;
    }
    Ok((world, calm))
}

impl Attack {
    /// Runs the attack once. The answer and the audit must match the table, and the next call must succeed.
    async fn run(&self, world: &World, calm_bot: &str) -> Result<()> {
        let answer = world.call(&self.tool, &self.params).await?;
        let audit = world.audit_of(&answer).await?;
        for field in ["status", "code", "message"] {
            ensure!(audit[field] == answer[field], "the answer is {answer}, the audit has {audit}");
        }
        match &self.told {
            Ok(data) => ensure!(answer["status"] == "success" && answer["data"] == *data, "{answer}"),
            Err(end) => {
                let told = [&answer["status"], &answer["code"], &answer["message"]].map(text);
                ensure!(told == *end && answer["data"].is_null(), "{answer}");
            }
        }
        let next = world.api.call(calm_bot, &self.tool, &calm(self.plugin)).await?;
        ensure!(next["status"] == "success", "the next call: {next}");
        Ok(())
    }
}

/// Calls another plugin as another bot until `stop` is set. Returns the number of calls.
async fn untouched(world: &World, bot: &str, stop: &AtomicBool) -> Result<u32> {
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = world.api.call(bot, "test_echo_run", &json!({ "any": calls })).await?;
        ensure!(answer["status"] == "success" && answer["data"]["params"]["any"] == calls, "beside: {answer}");
        calls += 1;
    }
    Ok(calls)
}

#[tokio::test]
async fn every_hostile_guest_is_contained() -> Result<()> {
    let attacks = attacks();
    let (world, calm_bot) = besieged(&attacks).await?;
    let bystander = world.api.bot("bystander").await?;
    let (url, token) = (world.github.url(), world.github.token());
    world.api.grant(&bystander, "test-echo", (&url, &token), &["*"], &json!({})).await?;
    let stop = AtomicBool::new(false);
    let attacking = async {
        let mut failed = Vec::new();
        let mut sizes = vec![world.resident_kib()?];
        let hoarders = attacks.iter().filter(|attack| attack.told == Err(MEMORY) || attack.told == Err(TOO_LARGE));
        let again: Vec<&Attack> = std::iter::repeat_n(hoarders, HOARDERS_AGAIN).flatten().collect();
        for round in [attacks.iter().collect(), again] {
            for attack in round {
                if let Err(error) = attack.run(&world, &calm_bot).await {
                    failed.push(format!("{}: {error:#}", attack.name));
                }
            }
            sizes.push(world.resident_kib()?);
        }
        stop.store(true, Ordering::Relaxed);
        anyhow::Ok((failed, sizes))
    };
    let (attacked, first, second) =
        tokio::join!(attacking, untouched(&world, &bystander, &stop), untouched(&world, &bystander, &stop));
    let (failed, sizes) = attacked?;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let beside = first? + second?;
    assert!(beside > 100, "only {beside} calls succeeded during the attacks");
    let [before, warm, after] = sizes[..] else { unreachable!("it is measured three times") };
    assert!(warm <= before + WARMTH_KIB_MAX, "memory grew from {before} KiB to {warm} KiB in one round of attacks");
    assert!(
        after <= warm + LEFT_KIB_MAX,
        "memory grew from {warm} KiB after one round to {after} KiB after the repeated attacks"
    );
    let verified = world.api.verify_audit().await?;
    assert_eq!(verified["valid"], true, "{verified}");
    Ok(())
}

/// Builds a component with an executor whose `execute` has this type. The component imports `import`.
fn other_component(import: &str, execute: &str) -> Result<Vec<u8>> {
    let wat = format!(
        r#"(component {import}
            (core module $m (memory (export "memory") 1) (func (export "f") (param i32 i32))
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) unreachable))
            (core instance $m (instantiate $m))
            (func $f {execute}
                (canon lift (core func $m "f") (memory (core memory $m "memory")) (realloc (core func $m "cabi_realloc"))))
            (instance $e (export "execute" (func $f)))
            (export "monstrum:plugin/executor@0.1.0" (instance $e)))"#
    );
    wat::parse_str(&wat).context("the component text cannot be parsed")
}

#[tokio::test]
async fn components_that_cannot_be_served_are_named_and_the_others_serve() -> Result<()> {
    let server = Server::prepare(&["test-import", "test-result", "test-wasi-http", "test-wrong-world"])?;
    let execute = r#"(param "request" string)"#;
    let importing = |import: &str| other_component(&format!(r#"(import "{import}" (instance))"#), execute);
    let with = |more: &str| {
        let functions = r#"(func (export "execute") (param i32) (result i32) (i32.const 0))"#;
        component(ALLOCATOR, &format!("{more} {functions}"), "")
    };
    install(&server, "wall-type", &other_component("", execute)?)?;
    install(&server, "wall-serving", &importing("wasi:http/incoming-handler@0.2.0")?)?;
    install(&server, "wall-keys", &importing("wasi:keyvalue/store@0.2.0")?)?;
    install(&server, "wall-sandbox", &importing("monstrum:plugin/sandbox@0.1.0")?)?;
    install(&server, "wall-trap", &with("(func $start unreachable) (start $start)")?)?;
    install(&server, "wall-large", &with("(memory $one 600) (memory $two 600)")?)?;
    let manifest = server.plugins_dir().join("test-wasi-http/monstrum.yaml");
    let text_of_manifest = std::fs::read_to_string(&manifest)?;
    std::fs::write(&manifest, format!("{text_of_manifest}\nexecutor: {{ capabilities: [] }}\n"))?;
    let world = World::on(server).await?;
    let (_, list) = world.api.get("/api/plugins").await?;
    let items = list["items"].as_array().context("the list has no items")?;
    let told = items.iter().map(|item| json!([item["name"], item["status"], item["error"]]).to_string());
    assert_snapshot!(told.collect::<Vec<_>>().join("\n"), @r#"
    ["test-import","failed","the component of plugin `test-import` imports `test:unknown/door@1.0.0`, which this host does not provide"]
    ["test-result","loaded",null]
    ["test-wasi-http","failed","the component of plugin `test-wasi-http` imports `wasi:http/types@0.2.12`, but its manifest does not list `http` under executor.capabilities"]
    ["test-wrong-world","failed","the component of plugin `test-wrong-world` does not export `monstrum:plugin/executor@0.1.0`: it was built for a different WIT world"]
    ["wall-keys","failed","the component of plugin `wall-keys` imports `wasi:keyvalue/store@0.2.0`, which this host does not provide"]
    ["wall-large","failed","the component of plugin `wall-large` does not start: the plugin ran out of memory: memory minimum size of 600 pages exceeds memory limits"]
    ["wall-sandbox","failed","the component of plugin `wall-sandbox` imports `monstrum:plugin/sandbox@0.1.0`, but its manifest does not list `sandbox` under executor.capabilities"]
    ["wall-serving","failed","the component of plugin `wall-serving` imports `wasi:http/incoming-handler@0.2.0`, which this host does not provide"]
    ["wall-trap","failed","the component of plugin `wall-trap` does not start: the plugin crashed: wasm trap: wasm `unreachable` instruction executed"]
    ["wall-type","failed","the component of plugin `wall-type` and this host define different types for `monstrum:plugin/executor@0.1.0`: failed to convert function to given type: type mismatch with parameters: expected `record` found `string`"]
    "#);
    world.grant_all("test-result").await?;
    assert_eq!(world.call("test_result_run", &json!({ "mode": "ok" })).await?["status"], "success");
    Ok(())
}
