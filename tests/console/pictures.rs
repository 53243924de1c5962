//! Twelve pages look like the pictures in docs/images/console. Every run makes the same objects and the same calls, and the
//! program in the browser replaces times, ids, digests, durations and ports by fixed values.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Build;

use super::base;
use super::browser::ran;
use super::connect::grown;
use crate::world::{World, text};

const FOLDER: &str = "docs/images/console";
/// The file with the digest of the fonts with which the pictures were made.
const FONTS: &str = "fonts.sha256";
/// The maximum size of all pictures.
const BYTES_MAX: u64 = 4 << 20;
/// The variable that `cargo xtask pictures` sets.
const REWRITE: &str = "MONSTRUM_REWRITE_PICTURES";

#[tokio::test]
async fn the_pages_look_like_the_pictures() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FOLDER);
    let (world, pages) = scene().await?;
    let build = Build::current()?;
    let plan = json!({
        "url": world.server.url().context("the server is not running")?, "key": world.api.key(), "pages": pages,
        "pictures": folder, "seen": build.target()?.join("console/different"), "write": is_rewriting(),
    });
    let report = ran("pictures.mjs", &plan).await?;
    assert_eq!(report["problems"], json!([]), "the pages changed; if they should, run: cargo xtask pictures");
    ensure!(is_rewriting() || !report["known_fonts"].is_null(), "{FOLDER} has no pictures; run: cargo xtask pictures");
    if report["compared"] == 0 && !is_rewriting() {
        println!("the pages were not compared with {FOLDER}: this machine has other fonts");
    }
    check(&folder, &pages)
}

#[expect(clippy::disallowed_methods, reason = "a task of this repository asks for the pictures, not an operator")]
fn is_rewriting() -> bool {
    std::env::var_os(REWRITE).is_some()
}

/// Fails unless the folder contains the pictures of these pages and nothing else, and is not too large.
fn check(folder: &Path, pages: &[Value]) -> Result<()> {
    let entries = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let found: BTreeSet<String> = entries.iter().map(name).collect();
    let pictures = pages.iter().map(|page| format!("{}.png", text(&page["name"])));
    let wanted: BTreeSet<String> = pictures.chain([FONTS.to_owned()]).collect();
    ensure!(found == wanted, "{FOLDER} contains {found:?}");
    let mut bytes = 0;
    for path in &entries {
        bytes += std::fs::metadata(path)?.len();
    }
    ensure!(bytes <= BYTES_MAX, "the pictures have {bytes} bytes together, of {BYTES_MAX} allowed");
    Ok(())
}

fn page(name: &str, path: &str, language: &str, theme: &str, width: u32) -> Value {
    json!({ "name": name, "path": path, "language": language, "theme": theme, "width": width })
}

/// Makes the objects and the calls, and returns the pages.
async fn scene() -> Result<(World, Vec<Value>)> {
    let world = World::with(&["github"]).await?;
    let Made { binding, resource, denied, waiting } = made(&world).await?;
    let base = base(&world).await?;
    let bot = format!("{base}/bots/{}", world.bot);
    let asked = "tool=github_list_issues&params=%7B%22repo%22%3A%22other%2Fsecret%22%7D";
    let mut login = page("login", "/console/login", "en-US", "light", 1280);
    login["without_session"] = json!(true);
    let pages = vec![
        login,
        page("overview", &format!("{base}/overview"), "en-US", "light", 1280),
        page("bot", &format!("{bot}?{asked}"), "en-US", "light", 1280),
        page("denied", &format!("{bot}/denied"), "en-US", "dark", 1280),
        page("change", &format!("{bot}/change?{asked}"), "en-US", "light", 1280),
        page("try", &format!("{bot}/tools/github_create_issue"), "en-US", "light", 1280),
        page("binding", &format!("{bot}/bindings/{binding}"), "en-US", "light", 1280),
        page("resource", &format!("{base}/resources/{resource}"), "en-US", "dark", 1280),
        page("approval", &format!("{base}/approvals/{waiting}"), "en-US", "light", 360),
        page("activity", &format!("{base}/activity"), "zh-CN", "dark", 360),
        page("request", &format!("{base}/activity/{denied}"), "en-US", "light", 1280),
        page("plugin", &format!("{base}/plugins/github"), "zh-CN", "light", 1280),
    ];
    Ok((world, pages))
}

/// The ids of objects that have pages.
struct Made {
    binding: String,
    resource: String,
    /// The id of a denied call.
    denied: String,
    /// The id of an approval that waits.
    waiting: String,
}

/// Makes two bots with access to GitHub, their calls, and a plugin version that waits for approval.
async fn made(world: &World) -> Result<Made> {
    let named = json!({ "name": "triage", "description": "Sorts new issues and asks for what is missing." });
    let (status, answer) = world.api.patch(&format!("/api/bots/{}", world.bot), &named).await?;
    ensure!(status == 200, "PATCH of the bot: {status} {answer}");
    let notes = world.api.bot("release-notes").await?;
    let resource = world.api.resource("github", "acme on GitHub", &world.github.url()).await?;
    world.api.token(&resource, &world.github.token()).await?;
    let triager = world.api.role("triager", &["issue.*"]).await?;
    let reader = world.api.role("reader", &["issue.read", "repo.read"]).await?;
    let binding = world.api.bind(&world.bot, &resource, &triager, &json!({ "repos": ["acme/*"] })).await?;
    world.api.bind(&notes, &resource, &reader, &json!({ "repos": ["acme/site"] })).await?;
    let gates = json!([{
        "action": "ask", "operations": ["issue.write"], "approvers": ["admin", "operator"],
        "reason": "A person reads what the bot writes to the public.",
    }]);
    let path = format!("/api/bots/{}/resources/{binding}", world.bot);
    let (status, answer) = world.api.patch(&path, &json!({ "gates": gates })).await?;
    ensure!(status == 200, "PATCH of the binding: {status} {answer}");
    let issue = json!({ "repo": "acme/site", "title": "The imprint is missing", "body": "Reported by two visitors." });
    let calls = [
        (&world.bot, "github_list_issues", json!({ "repo": "acme/site" })),
        (&world.bot, "github_add_labels", json!({ "repo": "acme/site", "issue_number": 1, "labels": ["slow"] })),
        (&notes, "github_get_repo", json!({ "repo": "acme/site" })),
        (&notes, "github_list_issues", json!({ "repo": "acme/site", "state": "closed" })),
        (&notes, "github_list_issues", json!({ "repo": "acme/api" })),
        (&world.bot, "github_list_issues", json!({ "repo": "other/site" })),
        (&world.bot, "github_list_issues", json!({ "repo": "other/secret" })),
    ];
    let mut answers = Vec::new();
    for (bot, tool, params) in calls {
        answers.push(world.api.call(bot, tool, &params).await?);
    }
    // The key that makes the call may not decide about it.
    let caller = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    answers.push(caller.call(&world.bot, "github_create_issue", &issue).await?);
    let statuses: Vec<&str> = answers.iter().map(|answer| text(&answer["status"])).collect();
    let [.., denied, asks] = answers.as_slice() else { unreachable!("there are calls") };
    ensure!(statuses[..5] == ["success", "success", "success", "success", "scope_violation"], "{answers:?}");
    ensure!(denied["status"] == "scope_violation" && asks["status"] == "approval_required", "{answers:?}");
    let (denied, waiting) = (text(&denied["request_id"]).to_owned(), text(&asks["approval"]["id"]).to_owned());
    grown(world, |manifest| {
        let manifest = manifest.replace("version: 1.0.0", "version: 1.1.0");
        let manifest = manifest.replace("capabilities: [http]", "capabilities: [http, tools]");
        manifest.replace("Create a new issue in a", "Create an issue in a")
    })
    .await?;
    Ok(Made { binding, resource, denied, waiting })
}
