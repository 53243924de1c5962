//! Every page that a link leads to, with hostile texts of plugins, bots, tools and people in every place: they are text and
//! nothing else. No page, header or address has a secret. Every link that a key sees leads to a page that the key may read.

use std::collections::{BTreeSet, VecDeque};

use anyhow::{Context, Result, ensure};
use regex::Regex;
use reqwest::Url;
use serde_json::{Value, json};
use support::{Canned, FakeMcp, Generation, Server};

use super::{Answer, Browser, base, unescaped};
use crate::call::plugins::edit;
use crate::canary::encodings::Search;
use crate::http::made;
use crate::world::{World, text};

/// Markup, ends of elements, attributes that run scripts, placeholders of templates, an escape of a terminal, and
/// characters that cannot be seen.
const HOSTILE: &str = "<img src=x onerror=alert(1)></textarea></pre><script>x</script>\" onclick='x' hx-get='/api' {{7*7}} \
                       &lt;b&gt; \u{202e}\u{200b}\u{1b}[31m";
/// The same for names, which have no control characters.
const NAME: &str = "<img src=x onerror=alert(1)>\" hx-get='/' \u{202e}\u{200b}";
/// What no page contains.
const RAW: [&str; 6] = ["<img src=x", "<script>x", "</textarea></pre>", "onclick='", "hx-get='", "{{7*7}} <b>"];
const CLIENT_SECRET: &str = "canary-of-the-client-secret-<&>";
/// The texts of the manifests that are replaced. They are the values of their lines.
const TEXTS: [(&str, &[&str]); 2] = [
    (
        "github",
        &[
            "description: GitHub integration plugin — issues, comments, labels, and repository info",
            "author: Monstrum",
            "description: \"GitHub code hosting platform\"",
            "description: \"List issues from a GitHub repository.\"",
            "description: \"owner/repo format\"",
            "label: Personal Access Token",
            "description: \"Configure manually with a GitHub PAT\"",
            "description: \"GitHub API base URL (customize for GitHub Enterprise)\"",
            "error_template: \"Repository {value} is not authorized\"",
        ],
    ),
    (
        "test-echo",
        &[
            "name: Test echo",
            "author: Monstrum",
            "description: \"Returns its parameters.\"",
            "description: \"Any value\"",
        ],
    ),
];
const PAGE_BYTES_MAX: usize = 512 << 10;
/// The maximum number of pages, far more than there are.
const PAGES_MAX: usize = 1_000;

/// Returns a text as a quoted scalar of YAML.
fn yaml(text: &str) -> String {
    let mut scalar = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => scalar.extend(['\\', character]),
            ' '..='~' => scalar.push(character),
            other => scalar.push_str(&format!("\\u{:04x}", u32::from(other))),
        }
    }
    scalar.push('"');
    scalar
}

/// Starts a server on which every text that a party can choose is hostile.
async fn furnished() -> Result<World> {
    let server = Server::prepare(&["github", "test-echo"])?;
    for (plugin, texts) in TEXTS {
        for line in texts {
            let (field, _) = line.split_once(": ").context("a field")?;
            let hostile = match field {
                "name" => yaml(NAME),
                "error_template" => yaml(&format!("{{value}} {HOSTILE}")),
                _ => yaml(HOSTILE),
            };
            edit(&server.plugins_dir().join(plugin), |manifest| {
                manifest.replace(*line, &format!("{field}: {hostile}"))
            })?;
        }
    }
    let world = World::on(server).await?;
    let api = &world.api;
    let bot = json!({ "name": NAME, "description": HOSTILE, "system_prompt": HOSTILE, "model": NAME });
    let bot = made(api, "/api/bots", &bot).await?;
    let gates = json!([{ "action": "ask", "reason": HOSTILE, "operations": ["echo.write"] }]);
    let role = json!({
        "name": NAME, "allowed_operations": ["*", HOSTILE], "scope_constraints": { "repos": ["*", HOSTILE] }, "gates": gates,
    });
    let role = made(api, "/api/roles", &role).await?;
    for (resource_type, _) in TEXTS {
        let name = format!("{NAME}{resource_type}");
        let resource = api.resource(resource_type, &name, &world.github.url()).await?;
        api.token(&resource, &world.github.token()).await?;
        api.bind(&bot, &resource, &role, &json!({ "repos": ["*", HOSTILE] })).await?;
    }
    called(&world, &bot).await?;
    discovered(&world).await?;
    made(api, "/api/keys", &json!({ "name": NAME, "kind": "operator" })).await?;
    made(api, "/api/workspaces", &json!({ "name": NAME })).await?;
    let app = json!({ "resource_type": "github", "client_id": NAME, "client_secret": CLIENT_SECRET });
    made(api, "/api/oauth/providers", &app).await?;
    let key = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    made(api, "/api/trust", &json!({ "public_key": key, "name_glob": NAME })).await?;
    let (status, demo) = api.post("/api/demo", &json!({ "step": "plugin" })).await?;
    ensure!(status == 200, "{demo}");
    Ok(world)
}

/// Discovers tools with a hostile name and hostile definitions, which change after they are approved.
async fn discovered(world: &World) -> Result<()> {
    let tools = |version: u32| {
        let description = format!("{version} {HOSTILE}");
        let text = json!({ "type": "string", "description": description });
        let schema = json!({ "type": "object", "properties": { "text": text } });
        ["search", HOSTILE].map(|name| json!({ "name": name, "description": description, "inputSchema": schema }))
    };
    let server = FakeMcp::start(Generation::Stateless, &tools(1)).await?;
    let resource = json!({
        "resource_type": "mcp", "name": "notes", "config": { "url": server.url() },
        "network": { "allow_addresses": ["127.0.0.0/8"], "allow_http": true },
    });
    let tools_path = format!("/api/resources/{}/tools", made(&world.api, "/api/resources", &resource).await?);
    let discover = async || {
        let (status, found) = world.api.post(&format!("{tools_path}/discover"), &json!({})).await?;
        ensure!(status == 200 && found["discovery"]["status"] == "ok", "{status} {found}");
        let (_, pins) = world.api.get(&tools_path).await?;
        anyhow::Ok(pins["items"].as_array().cloned().unwrap_or_default())
    };
    let pins = discover().await?;
    let choice =
        |pin: &Value| json!({ "original_name": pin["original_name"], "digest": pin["digest"], "effect": "read" });
    let all = json!({ "tools": pins.iter().map(choice).collect::<Vec<_>>() });
    let (status, answer) = world.api.post(&format!("{tools_path}/approve"), &all).await?;
    ensure!(status == 200, "{status} {answer}");
    server.set_tools(&tools(2));
    let pins = discover().await?;
    ensure!(pins.len() == 2 && pins.iter().all(|pin| pin["status"] == "changed"), "{pins:?}");
    Ok(())
}

/// Makes calls with hostile parameters, results, errors and reasons.
async fn called(world: &World, bot: &str) -> Result<()> {
    let leak = json!({ "message": format!("{HOSTILE} {}", world.github.token()) });
    world.github.answer("/repos/acme/leak", Canned::json(404, &leak));
    let mut params = json!({ "repo": HOSTILE, "any": HOSTILE });
    params[HOSTILE] = json!(1);
    let waits = json!({ "repo": "acme/site", "any": HOSTILE });
    for (tool, params, status) in [
        ("github_get_repo", json!({ "repo": "acme/leak" }), "error"),
        ("github_get_repo", json!({ "repo": HOSTILE }), "error"),
        ("test_echo_run", params, "error"),
        ("test_echo_run", json!({ "repo": "acme/site", "any": { HOSTILE: [HOSTILE] } }), "success"),
        ("test_echo_run", json!({ "repo": "acme/site", "any": HOSTILE.repeat(8_000) }), "success"),
        ("test_echo_fetch", json!({ "path": "/echo" }), "scope_violation"),
        ("test_echo_write", waits.clone(), "approval_required"),
        ("test_echo_write", json!({ "repo": "acme/docs", "any": HOSTILE }), "approval_required"),
    ] {
        let answer = world.api.call(bot, tool, &params).await?;
        ensure!(answer["status"] == status, "{tool} {params}: {answer}");
    }
    let unknown = json!({ "params": {}, "task_id": NAME });
    let name = Url::parse_with_params("http://localhost", [("x", NAME)])?;
    let name = name.query().context("a query")?.trim_start_matches("x=").replace('+', "%20");
    let (status, answer) = world.api.post(&format!("/api/bots/{bot}/tools/{name}/call"), &unknown).await?;
    ensure!(status == 200 && answer["status"] == "permission_denied", "{status} {answer}");
    let waiting = world.api.call(bot, "test_echo_write", &waits).await?;
    let path = format!("/api/approvals/{}", text(&waiting["approval"]["id"]));
    let (_, approval) = world.api.get(&path).await?;
    let denied = json!({ "decision": "deny", "digest": approval["digest"], "note": HOSTILE });
    // The key that made the call may not decide it.
    let (_, other) = world.api.post("/api/keys", &json!({ "name": "decides", "kind": "admin" })).await?;
    let (status, answer) = world.api.with_key(text(&other["key"])).post(&path, &denied).await?;
    ensure!(status == 200, "{status} {answer}");
    Ok(())
}

/// Follows the links of the pages, beginning with `first`, and looks at each answer. Returns the number of pages.
async fn crawl(
    browser: &Browser,
    base: &str,
    first: Vec<String>,
    look: impl Fn(&str, &Answer) -> Result<()>,
) -> Result<usize> {
    let link = Regex::new("href=\"([^\"#]*)")?;
    let mut known: BTreeSet<String> = first.iter().cloned().collect();
    let mut waiting: VecDeque<(String, String)> = first.into_iter().map(|path| (path, String::new())).collect();
    while let Some((path, from)) = waiting.pop_front() {
        let answer = browser.get(&path).await?;
        ensure!(matches!(answer.status, 200 | 303), "{path}, which is linked from {from:?}: {}", answer.status);
        look(&path, &answer).with_context(|| path.clone())?;
        for found in link.captures_iter(&answer.text) {
            let next = unescaped(&found[1]);
            // An export is a download.
            let is_page = next.starts_with(&format!("{base}/")) && !next.contains("/export");
            if is_page && known.insert(next.clone()) {
                waiting.push_back((next, path.clone()));
            }
        }
        ensure!(known.len() <= PAGES_MAX, "the pages do not end: {path}");
    }
    Ok(known.len())
}

/// Checks that hostile texts are text.
fn is_text(answer: &Answer, fields: &Regex) -> Result<()> {
    let page = &answer.text;
    ensure!(page.len() <= PAGE_BYTES_MAX, "the page has {} bytes", page.len());
    for raw in RAW {
        ensure!(!page.contains(raw), "{raw:?} is on the page: {page}");
    }
    // A field that a person edits has the text as it is.
    let shown = fields.replace_all(page, "");
    ensure!(!shown.contains(['\u{202e}', '\u{200b}', '\u{1b}']), "invisible characters are on the page: {shown}");
    Ok(())
}

#[tokio::test]
async fn hostile_texts_are_text_secrets_are_absent_and_links_work_on_every_page() -> Result<()> {
    let world = furnished().await?;
    let base = base(&world).await?;
    let (_, bots) = world.api.get("/api/bots").await?;
    let bots = bots["items"].as_array().context("bots")?;
    let bot = bots.iter().find(|bot| bot["name"] == NAME).map(|bot| text(&bot["id"])).context("the bot")?;
    let query = |path: String, parameters: &[(&str, &str)]| -> Result<String> {
        let url = Url::parse_with_params("http://localhost", parameters)?;
        Ok(format!("{path}?{}", url.query().unwrap_or_default()))
    };
    let params = json!({ "repo": HOSTILE, "any": HOSTILE }).to_string();
    let of_bot = format!("{base}/bots/{bot}");
    let first = vec![
        "/console".to_owned(),
        format!("{base}/overview"),
        query(format!("{base}/search"), &[("q", "img")])?,
        query(format!("{base}/search"), &[("q", HOSTILE)])?,
        query(format!("{base}/activity"), &[("tool", HOSTILE), ("status", "error")])?,
        query(of_bot.clone(), &[("tool", "test_echo_run"), ("params", &params)])?,
        query(of_bot.clone(), &[("tool", HOSTILE), ("params", &params)])?,
        query(format!("{of_bot}/change"), &[("tool", HOSTILE), ("params", &params)])?,
        query(format!("{of_bot}/tools/test_echo_run"), &[("params", &params)])?,
        format!("{of_bot}?hidden=1"),
    ];
    let fields = Regex::new("(?s)<textarea[^>]*>.*?</textarea>|value=\"[^\"]*\"")?;
    let token = world.github.token();
    let mut counts = Vec::new();
    for kind in ["root", "admin", "operator", "approver"] {
        let key = world.api.new_key(kind, None).await?;
        let browser = Browser::log_in(&world, &key).await?;
        let (_, session) = browser.cookie.split_once('=').context("a cookie")?;
        let secrets = [CLIENT_SECRET, &token, &key, world.api.key(), session].map(Search::of);
        let look = |path: &str, answer: &Answer| -> Result<()> {
            is_text(answer, &fields)?;
            let headers = format!("{:?}", answer.headers);
            for (secret, heard) in
                secrets.iter().flat_map(|secret| [path, &headers, &answer.text].map(|heard| (secret, heard.as_bytes())))
            {
                let found = secret.find(heard);
                ensure!(found.is_none(), "a secret as {found:?} in {}", String::from_utf8_lossy(heard));
            }
            Ok(())
        };
        // An approver sees approvals only.
        let first = if kind == "approver" { vec![format!("{base}/approvals")] } else { first.clone() };
        counts.push(crawl(&browser, &base, first, look).await.with_context(|| kind)?);
    }
    let is_descending = counts.is_sorted_by(|more, less| more > less);
    assert!(is_descending && counts[0] > 100 && counts[3] > 3, "{counts:?} pages");
    Ok(())
}

/// The answer of a call, a check and a list of changes stay within the limit of a page.
#[tokio::test]
async fn pages_of_large_texts_stay_small() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let tool = format!("{base}/bots/{}/tools/test_echo_run", world.bot);
    let line = "<".repeat(300_000);
    let params = json!({ "any": line }).to_string();
    let answer = world.call("test_echo_run", &json!({ "any": line })).await?;
    ensure!(answer["status"] == "success", "{answer}");
    let page = browser.page(&format!("{base}/activity/{}", text(&answer["request_id"]))).await?;
    assert!(page.len() <= PAGE_BYTES_MAX, "{}", page.len());

    // What a person typed is kept whole. What the server adds to it is small.
    let typed = line.len() * "&#60;".len();
    let run = browser.submit(&tool, &tool, &[("json", &params), ("run", "1"), ("sure", "on")]).await?;
    assert!(run.status == 200 && run.text.contains("This page shows the start of the texts."), "{}", run.status);
    assert!(run.text.len() <= typed + PAGE_BYTES_MAX, "{}", run.text.len());
    let check = browser.submit(&tool, &tool, &[("json", &params), ("check", "1")]).await?;
    assert!(check.status == 200 && check.text.contains("card why success"), "{} {}", check.status, check.location());
    assert!(check.text.len() <= typed + PAGE_BYTES_MAX, "{}", check.text.len());

    let prompt = "<".repeat(100_000);
    for number in 0..8 {
        let change = json!({ "system_prompt": format!("{number}{prompt}") });
        ensure!(world.api.patch(&format!("/api/bots/{}", world.bot), &change).await?.0 == 200);
    }
    let changes = browser.page(&format!("{base}/activity/changes")).await?;
    assert!(changes.len() <= PAGE_BYTES_MAX, "{}", changes.len());
    assert!(changes.contains("This page shows the start of the texts."));
    Ok(())
}
