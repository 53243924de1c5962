//! The start index: a restart neither reads nor checks unchanged plugins again. An index that is damaged, forged or of
//! another data folder has no effect, and the index never puts a version into force.

use std::fs::{self, FileTimes};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use monstrum_vault::{FileKey, MasterKeys, Vault};
use serde_json::{Value, json};
use support::Server;

use super::plugins::edit;
use super::reload::component;
use crate::hostile::guests;
use crate::world::{World, eventually, text};

const PLUGIN: &str = "shifting";
const MAC_BYTES: usize = 32;

fn index(server: &Server) -> PathBuf {
    server.data_dir().join("plugins.index")
}

fn wasm(server: &Server) -> PathBuf {
    server.plugins_dir().join(PLUGIN).join("plugin.wasm")
}

/// Restarts the server and returns the names of the plugins that it did not read again.
async fn restarted(world: &mut World) -> Result<Vec<String>> {
    if world.server.pid().is_some() {
        world.server.stop().await?;
    }
    let before = world.server.output().len();
    world.server.launch().await?;
    world.api = world.server.api()?;
    let output = world.server.output();
    let unchanged = output[before..].lines().filter(|line| line.contains("a plugin was loaded unchanged"));
    let name = regex::Regex::new(r#"plugin\.name"?[=:]\s*"?([a-z0-9-]+)"#)?;
    let mut names: Vec<String> = unchanged.filter_map(|line| Some(name.captures(line)?[1].to_owned())).collect();
    names.sort();
    Ok(names)
}

/// Restarts the server until the index contains all plugins. The index does not contain a plugin whose files changed
/// immediately before they were read.
async fn indexed(world: &mut World, plugins: &[&str]) -> Result<()> {
    eventually("the index contains all plugins", async || Ok((restarted(world).await? == plugins).then_some(()))).await
}

/// Returns a server with the guest that answers 1, which is in the index, and a bot that may call the guest.
async fn world() -> Result<World> {
    let server = Server::prepare(&[])?;
    guests::install(&server, PLUGIN, &component(1)?)?;
    let mut world = World::on(server).await?;
    world.grant_all(PLUGIN).await?;
    indexed(&mut world, &[PLUGIN]).await?;
    Ok(world)
}

async fn answer(world: &World) -> Result<Value> {
    world.call(&guests::tool(PLUGIN), &json!({})).await
}

async fn entry(world: &World) -> Result<Value> {
    Ok(world.api.get(&format!("/api/plugins/{PLUGIN}")).await?.1)
}

#[tokio::test]
async fn unchanged_plugins_are_the_same_after_a_restart() -> Result<()> {
    let plugins = ["jira", "test-echo", "test-functions"];
    let mut world = World::with(&plugins).await?;
    world.grant_all("test-echo").await?;
    let shown = async |world: &World| -> Result<Vec<Value>> {
        let mut shown = vec![world.api.get("/api/plugins").await?.1, world.api.get("/api/resource-types").await?.1];
        shown.push(world.api.get(&format!("/api/bots/{}/tools", world.bot)).await?.1);
        let bad = world.call("test_echo_fetch", &json!({ "path": 7 })).await?;
        shown.push(json!([bad["status"], bad["message"]]));
        let good = world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
        shown.push(json!([good["status"], good["data"]["status"]]));
        Ok(shown)
    };
    let before = shown(&world).await?;
    ensure!(before[4] == json!(["success", 200]), "{}", before[4]);
    indexed(&mut world, &plugins).await?;
    assert_eq!(shown(&world).await?, before);
    Ok(())
}

/// A damaged index is ignored and written again.
#[tokio::test]
async fn a_damaged_index_is_ignored() -> Result<()> {
    let mut world = world().await?;
    let whole = fs::read(index(&world.server))?;
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let damages = [
        flipped(0),
        flipped(MAC_BYTES),
        flipped(whole.len() / 2),
        flipped(whole.len() - 2),
        whole[..whole.len() - 1].to_vec(),
        whole[..MAC_BYTES].to_vec(),
        whole[..7].to_vec(),
        Vec::new(),
    ];
    for (number, damaged) in damages.into_iter().enumerate() {
        world.server.stop().await?;
        fs::write(index(&world.server), damaged)?;
        assert_eq!(restarted(&mut world).await?, [""; 0], "damage {number}");
        assert_eq!(answer(&world).await?["data"], json!(1));
        assert_eq!(restarted(&mut world).await?, [PLUGIN], "damage {number}");
    }
    ensure!(world.server.output().contains("the MAC of the start index is wrong"), "{}", world.server.output());
    Ok(())
}

/// The other data folder has the same plugins folder and, in the second case, the same master key.
#[tokio::test]
async fn the_index_of_another_data_folder_is_ignored() -> Result<()> {
    let mut world = world().await?;
    for has_same_key in [false, true] {
        let mut other = Server::prepare(&[])?;
        if has_same_key {
            fs::create_dir_all(other.data_dir())?;
            fs::copy(world.server.data_dir().join("master.key"), other.data_dir().join("master.key"))?;
        }
        world.server.stop().await?;
        other.set_variable("MONSTRUM_PLUGINS_DIR", world.server.plugins_dir().to_str());
        eventually("the other index contains the plugin", async || {
            other.restart().await?;
            other.stop().await?;
            Ok(String::from_utf8_lossy(&fs::read(index(&other))?).contains(PLUGIN).then_some(()))
        })
        .await?;
        fs::copy(index(&other), index(&world.server))?;
        assert_eq!(restarted(&mut world).await?, [""; 0], "same key: {has_same_key}");
        assert_eq!(restarted(&mut world).await?, [PLUGIN]);
    }
    let output = world.server.output();
    ensure!(output.contains("the start index belongs to another build or folder"), "{output}");
    Ok(())
}

/// Replaces the header or a line of the index, and signs the index with the key of the data folder.
fn forge(server: &Server, change: impl FnOnce(&mut Vec<Value>)) -> Result<()> {
    let keys = MasterKeys::open(&server.data_dir().join("master.key"))?.context("the server has no master key")?;
    let key = FileKey::derive(&Vault::new(keys), "plugin start index");
    let bytes = fs::read(index(server))?;
    let (mac, content) = bytes.split_at_checked(MAC_BYTES).context("the index has no MAC")?;
    ensure!(key.verifies(content, mac), "the test derives another key than the server");
    let lines = std::str::from_utf8(content)?.lines().map(serde_json::from_str);
    let mut lines = lines.collect::<Result<Vec<Value>, _>>()?;
    change(&mut lines);
    let content = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    Ok(fs::write(index(server), [&key.mac(content.as_bytes())[..], content.as_bytes()].concat())?)
}

#[tokio::test]
async fn the_index_of_another_build_is_ignored() -> Result<()> {
    let mut world = world().await?;
    for (field, value) in [("build", json!("older")), ("format", json!(0)), ("node", json!("0"))] {
        world.server.stop().await?;
        forge(&world.server, |lines| lines[0][field] = value)?;
        assert_eq!(restarted(&mut world).await?, [""; 0], "{field}");
        assert_eq!(restarted(&mut world).await?, [PLUGIN], "{field}");
    }
    Ok(())
}

/// Writes a component of the same size into the file, and sets back the time of its last modification.
fn replace(path: &Path, digit: u8, by_rename: bool) -> Result<()> {
    let (before, new) = (fs::metadata(path)?, component(digit)?);
    ensure!(before.size() == new.len() as u64, "the components differ in size");
    let target = if by_rename { path.with_extension("new") } else { path.to_owned() };
    fs::write(&target, new)?;
    fs::set_permissions(&target, before.permissions())?;
    fs::File::options().write(true).open(&target)?.set_times(FileTimes::new().set_modified(before.modified()?))?;
    if by_rename {
        fs::rename(&target, path)?;
    }
    ensure!(fs::metadata(path)?.modified()? == before.modified()?, "the time was not set back");
    Ok(())
}

#[tokio::test]
async fn a_replaced_component_of_the_same_size_and_time_is_read() -> Result<()> {
    let mut world = world().await?;
    for (digit, by_rename) in [(2, false), (3, true)] {
        world.server.stop().await?;
        replace(&wasm(&world.server), digit, by_rename)?;
        assert_eq!(restarted(&mut world).await?, [""; 0], "{digit}");
        assert_eq!(answer(&world).await?["data"], json!(digit));
        indexed(&mut world, &[PLUGIN]).await?;
        assert_eq!(answer(&world).await?["data"], json!(digit));
    }
    Ok(())
}

#[tokio::test]
async fn a_new_translation_and_a_new_permission_bit_are_noticed() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut world = world().await?;
    let folder = world.server.plugins_dir().join(PLUGIN);
    world.server.stop().await?;
    fs::create_dir(folder.join("locales"))?;
    fs::set_permissions(folder.join("locales"), fs::Permissions::from_mode(0o755))?;
    fs::write(folder.join("locales/de.json"), r#"{"description":"Wechselnd"}"#)?;
    fs::set_permissions(folder.join("locales/de.json"), fs::Permissions::from_mode(0o644))?;
    assert_eq!(restarted(&mut world).await?, [""; 0]);
    indexed(&mut world, &[PLUGIN]).await?;

    world.server.stop().await?;
    fs::set_permissions(wasm(&world.server), fs::Permissions::from_mode(0o666))?;
    assert_eq!(restarted(&mut world).await?, [""; 0]);
    let entry = entry(&world).await?;
    assert_eq!(entry["status"], "failed", "{entry}");
    ensure!(text(&entry["error"]).contains("is writable by group or others"), "{entry}");
    Ok(())
}

/// Even an index with a valid MAC cannot exchange the code of a plugin: the bytes that are loaded have the digest that
/// the database records.
#[tokio::test]
async fn other_bytes_than_the_recorded_ones_are_not_loaded() -> Result<()> {
    let mut world = world().await?;
    world.server.stop().await?;
    replace(&wasm(&world.server), 2, false)?;
    let file = fs::metadata(wasm(&world.server))?;
    forge(&world.server, |lines| {
        let opened = lines[1]["opened"].as_array_mut().into_iter().flatten();
        for id in opened.filter(|one| one["path"] == "plugin.wasm").map(|one| &mut one["id"]) {
            id["inode"] = json!(file.ino());
            (id["changed_s"], id["changed_ns"]) = (json!(file.ctime()), json!(file.ctime_nsec()));
        }
    })?;
    assert_eq!(restarted(&mut world).await?, [PLUGIN]);
    let refused = answer(&world).await?;
    assert_eq!((&refused["status"], &refused["code"]), (&json!("error"), &json!("unavailable")), "{refused}");
    assert_eq!(refused["message"], "the plugin cannot be loaded");
    let entry = entry(&world).await?;
    assert_eq!(entry["status"], "failed", "{entry}");
    ensure!(text(&entry["error"]).contains("has the digest"), "{entry}");
    ensure!(world.server.output().contains("failed to load a component"), "the log lacks the error");
    // The next start reads the plugin again and accepts the new component, as it would without an index.
    assert_eq!(restarted(&mut world).await?, [""; 0]);
    assert_eq!(answer(&world).await?["data"], json!(2));
    Ok(())
}

/// An index that names a version which the database does not record as the serving version has no effect.
#[tokio::test]
async fn the_index_approves_nothing() -> Result<()> {
    let mut world = world().await?;
    world.server.stop().await?;
    let saved = world.server.home().join("saved");
    copy(&world.server.data_dir(), &saved)?;
    world.server.launch().await?;
    world.api = world.server.api()?;

    let folder = world.server.plugins_dir().join(PLUGIN);
    edit(&folder, |text| text + "executor: { egress: [\"https://a.example\"] }\n")?;
    eventually("the version waits for approval", async || {
        Ok((entry(&world).await?["status"] == "needs_approval").then_some(()))
    })
    .await?;
    let (status, answered) = world.api.post(&format!("/api/plugins/{PLUGIN}/approve"), &json!({})).await?;
    ensure!(status == 200, "{status} {answered}");
    indexed(&mut world, &[PLUGIN]).await?;
    world.server.stop().await?;

    // The data folder becomes that from before the approval, except for the index.
    let newest = fs::read(index(&world.server))?;
    fs::remove_dir_all(world.server.data_dir())?;
    copy(&saved, &world.server.data_dir())?;
    fs::write(index(&world.server), newest)?;
    assert_eq!(restarted(&mut world).await?, [""; 0]);
    let waits = entry(&world).await?;
    assert_eq!(waits["status"], "needs_approval", "{waits}");
    assert_eq!(answer(&world).await?["data"], json!(1));
    Ok(())
}

/// Copies a folder with its files and their permissions.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
