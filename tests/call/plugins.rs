//! Plugins are added and removed as folders. An error in one plugin is reported and does not affect other plugins. A
//! new version either replaces the old version or has no effect.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use crate::stable::stable;
use crate::world::{World, text};

const MANIFEST: &str = "monstrum.yaml";
const COMPONENT: &str = "plugin.wasm";

/// A change that an author makes to a manifest.
type Edit = fn(String) -> String;

/// Installs a copy of `test-result` with another plugin name, type and tool name. Returns its folder.
fn another(server: &Server, name: &str) -> Result<PathBuf> {
    server.install("test-result")?;
    let folder = server.plugins_dir().join(name);
    fs::rename(server.plugins_dir().join("test-result"), &folder)?;
    let named = |text: String| text.replace("test-result", name).replace("test_result", &name.replace('-', "_"));
    edit(&folder, named)?;
    Ok(folder)
}

/// Changes the manifest in a folder.
pub(crate) fn edit(folder: &Path, change: impl FnOnce(String) -> String) -> Result<()> {
    let path = folder.join(MANIFEST);
    let before = fs::read_to_string(&path)?;
    let after = change(before.clone());
    ensure!(before != after, "the change had no effect on the manifest:\n{before}");
    Ok(fs::write(path, after)?)
}

/// Starts a server with the folders that `prepare` creates and one valid plugin. Returns every plugin with its status
/// and error.
async fn scanned(prepare: impl FnOnce(&Server) -> Result<()>) -> Result<String> {
    let server = Server::prepare(&[])?;
    prepare(&server)?;
    server.install("test-echo")?;
    let world = World::on(server).await?;
    let (status, list) = world.api.get("/api/plugins?limit=1000").await?;
    ensure!(status == 200, "{list}");
    world.grant_all("test-echo").await?;
    let answer = world.call("test_echo_run", &json!({})).await?;
    ensure!(answer["status"] == "success", "the good plugin does not serve: {answer}");
    let items = list["items"].as_array().context("the list has no items")?.iter();
    let told = items.map(|item| {
        let wanted = text(&item["pending"]["grows"][0]);
        format!("{}: {} {}{wanted}", text(&item["name"]), text(&item["status"]), text(&item["error"]))
    });
    let told = told.map(|line| text(&stable(&json!(line))).to_owned());
    Ok(told.collect::<Vec<_>>().join("\n"))
}

#[tokio::test]
async fn every_fault_of_a_manifest_is_named_by_line_and_field() -> Result<()> {
    let told = scanned(|server| {
        let faults: [(&str, Edit); 14] = [
            ("unknown-field", |text| text + "colour: red\n"),
            ("free-field", |text| text + "x-colour: red\n"),
            ("wrong-type", |text| text.replace("version: 1.0.0", "version: [1]")),
            ("no-version", |text| text.replace("version: 1.0.0", "version: one")),
            ("missing-field", |text| text.replace("  name: Test result\n", "")),
            ("tool-name", |text| text.replace("tool_name_run", "Run-Tool")),
            ("no-schema", |text| text.replace("type: object", "type: objekt")),
            ("no-yaml", |text| text.replace("resource_type:", "resource_type: [")),
            ("reserved-type", |text| text.replace("id: reserved-type", "id: ssh")),
            ("reserved-tool", |text| text.replace("reserved_tool_run", "sandbox_run")),
            ("no-capability", |text| text + "executor:\n  capabilities: [teleport]\n"),
            ("too-large", |text| text + "#" + &"x".repeat(256 << 10)),
            ("too-deep", |text| format!("{text}x-deep: {}{}\n", "[".repeat(64), "]".repeat(64))),
            ("other-name", |text| text.replace("name: other-name\n", "name: no-name\n")),
        ];
        for (name, fault) in faults {
            edit(&another(server, name)?, fault)?;
        }
        fs::remove_file(another(server, "no-manifest")?.join(MANIFEST))?;
        Ok(())
    })
    .await?;
    assert_snapshot!(told, @r"
    free-field: loaded 
    missing-field: failed monstrum.yaml:9:3: resource_type.name: required field is missing
    no-capability: failed monstrum.yaml:37:18: executor.capabilities[0]: expected one of `http`, `sandbox`, `tools`, `events`, found `teleport`
    no-manifest: failed [home]/plugins/no-manifest/monstrum.yaml does not exist
    no-schema: failed monstrum.yaml:32:9: resource_type.tools[0].input_schema: at `/type`: parameters are an object, so the type must be `object`
    no-version: failed monstrum.yaml:2:10: version: expected a semantic version such as 1.0.0: unexpected character 'o' while parsing major version number
    no-yaml: failed monstrum.yaml:10:7: not valid YAML: did not find expected ',' or ']'
    other-name: failed monstrum.yaml: name: expected `other-name`, the name of the folder, but found `no-name`
    reserved-tool: failed monstrum.yaml:28:13: resource_type.tools[0].name: names that start with `sandbox_` are reserved for the platform
    reserved-type: failed monstrum.yaml:9:7: resource_type.id: `ssh` is a built-in type and cannot be replaced
    test-echo: loaded 
    too-deep: failed monstrum.yaml:36:72: nested deeper than 64 levels
    too-large: failed [home]/plugins/too-large/monstrum.yaml has 262944 bytes; at most 262144 are allowed
    tool-name: failed monstrum.yaml:28:13: resource_type.tools[0].name: `Run-Tool` is not a valid tool name: expected 1 to 64 lower-case letters, digits and underscores, starting with a letter
    unknown-field: failed monstrum.yaml:36:1: colour: unknown field, expected one of `name`, `version`, `description`, `author`, `license`, `tags`, `homepage`, `repository`, `locales_dir`, `resource_type`, `executor`
    wrong-type: failed monstrum.yaml:2:10: version: expected a semantic version such as 1.0.0, found a list
    ");
    Ok(())
}

#[tokio::test]
async fn a_component_that_is_none_is_named() -> Result<()> {
    let told = scanned(|server| {
        let core = b"\0asm\x01\0\0\0";
        let contents: [(&str, &[u8]); 4] =
            [("empty", b""), ("text", b"hello"), ("core-module", core), ("broken", b"\0asm\x0d\0\x01\0\xff\xff")];
        for (name, content) in contents {
            fs::write(another(server, name)?.join(COMPONENT), content)?;
        }
        fs::remove_file(another(server, "no-component")?.join(COMPONENT))?;
        let huge = fs::OpenOptions::new().write(true).open(another(server, "huge")?.join(COMPONENT))?;
        huge.set_len((32 << 20) + 1)?;
        let cut = another(server, "cut")?.join(COMPONENT);
        let length = fs::metadata(&cut)?.len();
        fs::OpenOptions::new().write(true).open(&cut)?.set_len(length / 2)?;
        server.install("test-steal")?;
        edit(&server.plugins_dir().join("test-steal"), |text| text + "executor:\n  capabilities: []\n")
    })
    .await?;
    // The offset of the error in the component depends on the compiler.
    let told = regex::Regex::new("offset 0x[0-9a-f]{3,}")?.replace_all(&told, "offset [n]");
    assert_snapshot!(told, @r"
    broken: failed the component of plugin `broken` is not a WebAssembly component: malformed section id (at offset 0x8)
    core-module: failed the component of plugin `core-module` is not a WebAssembly component: it is a core module; build it as a component, for example for the target wasm32-wasip2
    cut: failed the component of plugin `cut` is not a WebAssembly component: unexpected end-of-file (at offset [n])
    empty: failed the component of plugin `empty` is not a WebAssembly component: the file does not have the header of a component
    huge: failed [home]/plugins/huge/plugin.wasm has 33554433 bytes; at most 33554432 are allowed
    no-component: failed [home]/plugins/no-component/plugin.wasm does not exist
    test-echo: loaded 
    test-steal: failed the component of plugin `test-steal` imports `monstrum:plugin/http@0.1.0`, but its manifest does not list `http` under executor.capabilities
    text: failed the component of plugin `text` is not a WebAssembly component: the file does not have the header of a component
    ");
    Ok(())
}

#[tokio::test]
async fn a_folder_that_others_could_change_is_refused() -> Result<()> {
    let told = scanned(|server| {
        let mode = |path: PathBuf, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        mode(another(server, "group-writes")?, 0o775)?;
        mode(another(server, "others-write")?, 0o757)?;
        mode(another(server, "manifest-of-group")?.join(MANIFEST), 0o664)?;
        mode(another(server, "component-of-others")?.join(COMPONENT), 0o646)?;
        let outside = server.home().join("outside");
        fs::rename(another(server, "linked")?, &outside)?;
        symlink(&outside, server.plugins_dir().join("linked"))?;
        for (name, file) in [("linked-manifest", MANIFEST), ("linked-component", COMPONENT)] {
            let folder = another(server, name)?;
            fs::rename(folder.join(file), folder.join("elsewhere"))?;
            symlink("elsewhere", folder.join(file))?;
        }
        let upward = another(server, "upward")?;
        fs::copy(upward.join(COMPONENT), server.home().join(COMPONENT))?;
        edit(&upward, |text| text + "executor:\n  component: ../../plugin.wasm\n")
    })
    .await?;
    assert_snapshot!(told, @r"
    component-of-others: failed [home]/plugins/component-of-others/plugin.wasm is writable by group or others (mode 646); run: chmod go-w [home]/plugins/component-of-others/plugin.wasm
    group-writes: failed [home]/plugins/group-writes is writable by group or others (mode 775); run: chmod go-w [home]/plugins/group-writes
    linked: failed [home]/plugins/linked is a symbolic link; replace it with the files themselves
    linked-component: failed [home]/plugins/linked-component/plugin.wasm is a symbolic link; replace it with the files themselves
    linked-manifest: failed [home]/plugins/linked-manifest/monstrum.yaml is a symbolic link; replace it with the files themselves
    manifest-of-group: failed [home]/plugins/manifest-of-group/monstrum.yaml is writable by group or others (mode 664); run: chmod go-w [home]/plugins/manifest-of-group/monstrum.yaml
    others-write: failed [home]/plugins/others-write is writable by group or others (mode 757); run: chmod go-w [home]/plugins/others-write
    test-echo: loaded 
    upward: failed monstrum.yaml:37:14: executor.component: the path must not have empty parts, `.` or `..`
    ");
    Ok(())
}

#[tokio::test]
async fn a_plugin_that_wants_the_name_of_another_waits() -> Result<()> {
    let told = scanned(|server| {
        another(server, "first")?;
        edit(&another(server, "second-of-the-tool")?, |text| text.replace("second_of_the_tool_run", "first_run"))?;
        edit(&another(server, "second-of-the-type")?, |text| text.replace("  id: second-of-the-type", "  id: first"))
    })
    .await?;
    assert_snapshot!(told, @r"
    first: loaded 
    second-of-the-tool: needs_approval takes tool `first_run` from plugin `first`
    second-of-the-type: needs_approval takes type `first` from plugin `first`
    test-echo: loaded
    ");
    Ok(())
}

#[tokio::test]
async fn a_plugins_folder_that_others_could_change_is_no_place_to_start_from() -> Result<()> {
    let server = Server::prepare(&["test-echo"])?;
    fs::set_permissions(server.plugins_dir(), Permissions::from_mode(0o777))?;
    let output = server.command(&["serve", "--listen", "127.0.0.1:0"]).await?;
    assert_eq!(output.status.code(), Some(1));
    assert_snapshot!(text(&stable(&json!(String::from_utf8_lossy(&output.stderr)))), @r"
    error: the plugins folder cannot be used
      [home]/plugins is writable by group or others (mode 777); run: chmod go-w [home]/plugins
    hint: check the plugins folder [home]/plugins, or set --plugins-dir
    ");
    Ok(())
}

/// Reloads a plugin and returns its version, status and error.
pub(super) async fn reloaded(world: &World, plugin: &str) -> Result<Value> {
    let (status, entry) = world.api.post(&format!("/api/plugins/{plugin}/reload"), &Value::Null).await?;
    ensure!(status == 200, "{status} {entry}");
    Ok(json!([entry["version"], entry["status"], stable(&entry["error"])]))
}

#[tokio::test]
async fn a_new_version_takes_over_and_a_bad_one_does_not() -> Result<()> {
    let world = World::with(&["test-result"]).await?;
    world.grant_all("test-result").await?;
    let folder = world.server.plugins_dir().join("test-result");
    let mut told = Vec::new();
    for (from, to) in [
        ("version: 1.0.0", "version: 1.1.0"),
        ("Returns a result of the requested kind.", "Returns a result."),
        ("version: 1.1.0", "version: none"),
        ("version: none", "version: 2.0.0"),
    ] {
        edit(&folder, |text| text.replace(from, to))?;
        let entry = reloaded(&world, "test-result").await?;
        let (_, list) = world.api.get(&format!("/api/bots/{}/tools", world.bot)).await?;
        let answer = world.call("test_result_run", &json!({ "mode": "ok" })).await?;
        told.push(format!("{to}: {entry}, {} {}", list["items"][0]["description"], answer["status"]));
    }
    assert_snapshot!(told.join("\n"), @r#"
    version: 1.1.0: ["1.1.0","loaded",null], "Returns a result of the requested kind." "success"
    Returns a result.: ["1.1.0","loaded",null], "Returns a result." "success"
    version: none: ["1.1.0","failed","monstrum.yaml:2:10: version: expected a semantic version such as 1.0.0: unexpected character 'n' while parsing major version number"], "Returns a result." "success"
    version: 2.0.0: ["2.0.0","loaded",null], "Returns a result." "success"
    "#);
    Ok(())
}

#[tokio::test]
async fn a_plugin_that_is_removed_serves_no_more_and_can_come_back() -> Result<()> {
    let world = World::with(&["test-echo", "test-result"]).await?;
    world.grant_all("test-result").await?;
    let reload = "/api/plugins/test-result/reload";
    fs::rename(world.server.plugins_dir().join("test-result"), world.server.home().join("aside"))?;
    let (status, problem) = world.api.post(reload, &Value::Null).await?;
    assert_eq!((status, &problem["detail"]), (404, &json!("no such plugin")));
    assert_eq!(world.tools().await?, [""; 0]);
    let refused = world.call("test_result_run", &json!({ "mode": "ok" })).await?;
    assert_eq!(refused["message"], "Permission denied: tool 'test_result_run' is not available to this bot");
    assert_eq!(world.api.get("/api/plugins/test-result").await?.0, 404);
    assert_eq!(world.api.get("/api/resource-types/test-result").await?.0, 404);

    fs::rename(world.server.home().join("aside"), world.server.plugins_dir().join("test-result"))?;
    reloaded(&world, "test-result").await?;
    assert_eq!(world.call("test_result_run", &json!({ "mode": "ok" })).await?["status"], "success");
    Ok(())
}

#[tokio::test]
async fn a_call_under_way_ends_on_the_version_that_it_began_with() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    world.github.hold();
    let folder = world.server.plugins_dir().join("test-echo");
    let replaced = async {
        world.reached(1).await?;
        edit(&folder, |text| text.replace("test_echo_fetch", "test_echo_get"))?;
        reloaded(&world, "test-echo").await?;
        world.github.release();
        anyhow::Ok(())
    };
    let params = json!({ "path": "/echo" });
    let (answer, replaced) = tokio::join!(world.call("test_echo_fetch", &params), replaced);
    replaced?;
    assert_eq!(answer?["data"]["status"], 200);
    assert_eq!(world.call("test_echo_fetch", &params).await?["status"], "permission_denied");
    assert_eq!(world.call("test_echo_get", &params).await?["data"]["status"], 200);
    Ok(())
}
