//! A resource type and a tool name belong to the plugin whose version serves them. Another plugin can take them over
//! only with an approval, regardless of the order of folders and even after an uninstall. The credentials that were
//! saved for the first plugin then wait for an admin.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Bound, Server, TOKEN};

use super::plugins::{edit, reloaded};
use crate::rows::strip;
use crate::stable::lines;
use crate::tamper::sqlite;
use crate::world::{World, text};

/// Installs a copy of `test-echo` under another plugin name. The copy has the same type and tools. Returns its folder.
fn renamed(server: &Server, name: &str) -> Result<PathBuf> {
    server.install_as("test-echo", name)?;
    let folder = server.plugins_dir().join(name);
    edit(&folder, |text| text.replace("name: test-echo\n", &format!("name: {name}\n")))?;
    Ok(folder)
}

/// Installs a copy of `test-result` with this type and this single tool. Returns its folder.
fn other(server: &Server, name: &str, resource_type: &str, tool: &str) -> Result<PathBuf> {
    server.install_as("test-result", name)?;
    let folder = server.plugins_dir().join(name);
    edit(&folder, |text| {
        let text = text.replace("name: test-result\n", &format!("name: {name}\n"));
        text.replace("id: test-result\n", &format!("id: {resource_type}\n"))
            .replace("name: test_result_run\n", &format!("name: {tool}\n"))
    })?;
    Ok(folder)
}

async fn restart(world: &mut World) -> Result<()> {
    world.server.restart().await?;
    world.api = world.server.api()?;
    Ok(())
}

/// Returns the status of each plugin and the permissions for which it waits.
async fn plugins(world: &World) -> Result<Vec<String>> {
    let (status, list) = world.api.get("/api/plugins?limit=1000").await?;
    ensure!(status == 200, "{list}");
    let items = list["items"].as_array().context("the list has no items")?.iter();
    Ok(items
        .map(|item| format!("{}: {} {}", text(&item["name"]), text(&item["status"]), item["pending"]["grows"]))
        .collect())
}

/// Calls a tool that uses the credential. Returns the status of the call, the plugin that ran, the state of the
/// credential, and the requests that the upstream received. The tool returns the outcome of its request as data, so the
/// status is `success` whenever the tool runs.
async fn seen(world: &World, bound: &Bound) -> Result<Value> {
    let answer = world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
    let audit = world.audit_of(&answer).await?;
    let (_, shown) = world.api.get(&format!("/api/resources/{}", bound.resource)).await?;
    let sent = lines(&world.github.take_requests(), TOKEN);
    Ok(json!([answer["status"], audit["plugin"], shown["credential"]["status"], sent]))
}

const ALL_TOOLS: &str = "`test_echo_run`, `test_echo_again`, `test_echo_write`, `test_echo_open`, `test_echo_mismatch`, \
                         `test_echo_unhandled`, `test_echo_fetch`, `test_echo_flood`";

fn takes_all(owner: &str) -> String {
    format!("[\"takes type `test-echo` from plugin `{owner}`\",\"takes tools {ALL_TOOLS} from plugin `{owner}`\"]")
}

#[tokio::test]
async fn a_plugin_whose_folder_sorts_first_does_not_get_the_type_at_a_restart() -> Result<()> {
    let mut world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let honest = json!(["success", "test-echo", "ready", ["GET /echo (Bearer TOKEN)"]]);
    assert_eq!(seen(&world, &bound).await?, honest);
    renamed(&world.server, "aaa")?;
    assert_eq!(reloaded(&world, "aaa").await?[1], "needs_approval");
    let waits = [format!("aaa: needs_approval {}", takes_all("test-echo")), "test-echo: loaded null".to_owned()];
    for _ in 0..2 {
        assert_eq!(plugins(&world).await?, waits);
        assert_eq!(seen(&world, &bound).await?, honest);
        restart(&mut world).await?;
    }

    // Without its folder, the owner no longer serves the type, and no other plugin takes the type over.
    fs::remove_dir_all(world.server.plugins_dir().join("test-echo"))?;
    restart(&mut world).await?;
    assert_eq!(plugins(&world).await?, [waits[0].clone()]);
    assert_eq!(seen(&world, &bound).await?[0], "permission_denied");
    Ok(())
}

#[tokio::test]
async fn an_approval_moves_the_type_and_each_credential_waits_for_an_admin() -> Result<()> {
    let mut world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    renamed(&world.server, "aaa")?;
    reloaded(&world, "aaa").await?;
    let (admin, operator) = (world.api.new_key("admin", None).await?, world.api.new_key("operator", None).await?);
    for key in [&admin, &operator] {
        let refused = world.api.with_key(key).post("/api/plugins/aaa/approve", &json!({})).await?;
        assert_eq!(refused.0, 403, "{refused:?}");
    }
    let (status, entry) = world.api.post("/api/plugins/aaa/approve", &json!({})).await?;
    assert_eq!((status, &entry["status"]), (200, &json!("loaded")), "{entry}");
    let moved = ["aaa: loaded null".to_owned(), format!("test-echo: needs_approval {}", takes_all("aaa"))];
    let waiting = json!(["success", "aaa", "needs-authorization", []]);
    for _ in 0..2 {
        assert_eq!(plugins(&world).await?, moved);
        assert_eq!(seen(&world, &bound).await?, waiting);
        restart(&mut world).await?;
    }
    let path = format!("/api/resources/{}/credential/confirm", bound.resource);
    assert_eq!(world.api.with_key(&operator).post(&path, &Value::Null).await?.0, 403);
    assert_eq!(seen(&world, &bound).await?, waiting);
    let (status, shown) = world.api.with_key(&admin).post(&path, &Value::Null).await?;
    assert_eq!((status, &shown["status"]), (200, &json!("ready")), "{shown}");
    assert_eq!(seen(&world, &bound).await?, json!(["success", "aaa", "ready", ["GET /echo (Bearer TOKEN)"]]));

    // The plugin that lost its type can be removed although the type is bound. The plugin that now owns the type cannot
    // be removed.
    assert_eq!(world.api.delete("/api/plugins/aaa").await?.0, 409);
    assert_eq!(world.api.delete("/api/plugins/test-echo").await?.0, 204);
    assert_eq!(seen(&world, &bound).await?[2], "ready");
    Ok(())
}

/// The approval lists the permissions that the new owner requests in addition to the permissions of the old owner, and
/// the names that the new owner takes over.
#[tokio::test]
async fn a_renamed_plugin_keeps_its_type_after_an_approval() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    fs::remove_dir_all(world.server.plugins_dir().join("test-echo"))?;
    let (status, _) = world.api.post("/api/plugins/test-echo/reload", &Value::Null).await?;
    assert_eq!(status, 404);
    let folder = renamed(&world.server, "echo-two")?;
    edit(&folder, |text| text + "executor:\n  egress: [\"https://evil.example\"]\n")?;
    let (status, entry) = world.api.post("/api/plugins/echo-two/reload", &Value::Null).await?;
    assert_eq!((status, &entry["status"]), (200, &json!("needs_approval")), "{entry}");
    let grows = entry["pending"]["grows"].to_string();
    assert!(grows.starts_with(takes_all("test-echo").trim_end_matches(']')), "{grows}");
    assert!(grows.contains("egress to `https://evil.example`"), "{grows}");
    assert_eq!(seen(&world, &bound).await?[0], "permission_denied");
    let (status, entry) = world.api.post("/api/plugins/echo-two/approve", &json!({})).await?;
    assert_eq!((status, &entry["status"]), (200, &json!("loaded")), "{entry}");
    assert_eq!(seen(&world, &bound).await?, json!(["success", "echo-two", "needs-authorization", []]));
    let path = format!("/api/resources/{}/credential/confirm", bound.resource);
    assert_eq!(world.api.post(&path, &Value::Null).await?.0, 200);
    assert_eq!(seen(&world, &bound).await?, json!(["success", "echo-two", "ready", ["GET /echo (Bearer TOKEN)"]]));
    Ok(())
}

#[tokio::test]
async fn a_denied_takeover_leaves_the_owner_serving() -> Result<()> {
    let mut world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    renamed(&world.server, "aaa")?;
    reloaded(&world, "aaa").await?;
    // The bindings belong to the owner, so the waiting plugin can be removed.
    assert_eq!(world.api.delete("/api/plugins/aaa").await?.0, 204);
    for _ in 0..2 {
        assert_eq!(plugins(&world).await?, ["test-echo: loaded null"]);
        let honest = json!(["success", "test-echo", "ready", ["GET /echo (Bearer TOKEN)"]]);
        assert_eq!(seen(&world, &bound).await?, honest);
        restart(&mut world).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_name_is_free_once_the_owner_serves_a_version_without_it() -> Result<()> {
    let server = Server::prepare(&[])?;
    let owner = other(&server, "zed", "zed", "shared_run")?;
    let mut world = World::on(server).await?;
    let wanting = other(&world.server, "abc", "abc", "shared_run")?;
    assert_eq!(reloaded(&world, "abc").await?[1], "needs_approval");
    let waits = ["abc: needs_approval [\"takes tool `shared_run` from plugin `zed`\"]", "zed: loaded null"];
    assert_eq!(plugins(&world).await?, waits);

    // At a start, the owner loads first, although its folder sorts last. Its new version frees the name for the other
    // plugin.
    edit(&owner, |text| text.replace("name: shared_run\n", "name: zed_run\n"))?;
    restart(&mut world).await?;
    assert_eq!(plugins(&world).await?, ["abc: loaded null", "zed: loaded null"]);
    // Now the name belongs to the other plugin.
    edit(&owner, |text| text.replace("name: zed_run\n", "name: shared_run\n"))?;
    reloaded(&world, "zed").await?;
    let waits = ["abc: loaded null", "zed: needs_approval [\"takes tool `shared_run` from plugin `abc`\"]"];
    assert_eq!(plugins(&world).await?, waits);

    // A type stays with its plugin even when the plugin serves another type, so that the type never becomes free.
    edit(&wanting, |text| text.replace("id: abc\n", "id: abc-two\n"))?;
    reloaded(&world, "abc").await?;
    assert_eq!(world.api.post("/api/plugins/abc/approve", &json!({})).await?.0, 200);
    other(&world.server, "thief", "abc", "thief_run")?;
    reloaded(&world, "thief").await?;
    let told = plugins(&world).await?;
    let waits = "thief: needs_approval [\"takes type `abc` from plugin `abc`\"";
    assert!(told.iter().any(|line| line.starts_with(waits)), "{told:?}");
    Ok(())
}

#[tokio::test]
async fn of_two_plugins_that_arrive_at_once_one_owns_the_type_and_the_other_waits() -> Result<()> {
    let world = World::with(&[]).await?;
    other(&world.server, "one", "shared", "one_run")?;
    other(&world.server, "two", "shared", "two_run")?;
    let (one, two) = tokio::join!(reloaded(&world, "one"), reloaded(&world, "two"));
    let mut states = [one?[1].clone(), two?[1].clone()].map(|state| text(&state).to_owned());
    states.sort();
    assert_eq!(states, ["loaded", "needs_approval"]);
    Ok(())
}

/// Names of the platform have no owner, so no approval can transfer them.
#[tokio::test]
async fn names_of_the_platform_cannot_be_taken() -> Result<()> {
    let server = Server::prepare(&[])?;
    other(&server, "one", "bot", "one_run")?;
    other(&server, "two", "sandbox", "two_run")?;
    other(&server, "three", "three", "bot_call_tool")?;
    other(&server, "four", "four", "sandbox_shell")?;
    let world = World::on(server).await?;
    for told in plugins(&world).await? {
        assert!(told.ends_with(": failed null"), "{told}");
    }
    for name in ["one", "two", "three", "four"] {
        assert_eq!(world.api.post(&format!("/api/plugins/{name}/approve"), &json!({})).await?.0, 409, "{name}");
    }
    Ok(())
}

/// In a database from before the table `owners` existed, a type belongs to the plugin that was recorded first, not to
/// the plugin whose folder sorts first.
#[tokio::test]
async fn the_owners_of_an_older_database_are_the_plugins_that_were_recorded_first() -> Result<()> {
    let server = Server::prepare(&[])?;
    other(&server, "zed", "shared", "shared_run")?;
    let mut world = World::on(server).await?;
    other(&world.server, "abc", "shared", "shared_run")?;
    reloaded(&world, "abc").await?;
    assert_eq!(world.api.post("/api/plugins/abc/approve", &json!({})).await?.0, 200);
    assert_eq!(plugins(&world).await?[0], "abc: loaded null");
    world.server.stop().await?;
    let older = ["delete from owners", "update settings set owners_due = true"];
    sqlite(&world.server.data_dir(), &older).await?;
    strip(&world.server.data_dir()).await?;
    let sealed = world.server.command(&["vault", "seal", "--yes"]).await?;
    ensure!(sealed.status.success(), "{}", String::from_utf8_lossy(&sealed.stderr));
    world.server.launch().await?;
    world.api = world.server.api()?;
    let taken = "[\"takes type `shared` from plugin `zed`\",\"takes tool `shared_run` from plugin `zed`\"]";
    assert_eq!(plugins(&world).await?, [format!("abc: needs_approval {taken}"), "zed: loaded null".to_owned()]);

    // The table is filled only once, so that later transfers persist.
    assert_eq!(world.api.post("/api/plugins/abc/approve", &json!({})).await?.0, 200);
    restart(&mut world).await?;
    assert_eq!(plugins(&world).await?[0], "abc: loaded null");
    Ok(())
}
