//! Tests of `/api/plugins`.

use std::fs;

use anyhow::Result;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::Server;

use crate::http::roles::faults;
use crate::http::{Answers, one, send};
use crate::world::World;

#[tokio::test]
async fn a_plugin_is_shown_with_what_serves() -> Result<()> {
    let server = Server::start(&["github"]).await?;
    let api = server.api()?;
    assert_snapshot!(one(api.get("/api/plugins/github").await?), @r#"200 {"name":"github","version":"1.0.0","digest":"[digest]","status":"loaded","description":"GitHub integration plugin — issues, comments, labels, and repository info","author":"Monstrum","license":"MIT","tags":["scm","github","issues"],"homepage":null,"repository":"https://github.com/MonstrumAI/monstrum","imports":["monstrum:plugin/types@0.1.0","monstrum:plugin/http@0.1.0","monstrum:plugin/log@0.1.0","wasi:io/poll@0.2.6","wasi:io/error@0.2.6","wasi:io/streams@0.2.6","wasi:cli/environment@0.2.6","wasi:cli/exit@0.2.6","wasi:cli/stdin@0.2.6","wasi:cli/stdout@0.2.6","wasi:cli/stderr@0.2.6","wasi:cli/terminal-input@0.2.6","wasi:cli/terminal-output@0.2.6","wasi:cli/terminal-stdin@0.2.6","wasi:cli/terminal-stdout@0.2.6","wasi:cli/terminal-stderr@0.2.6","wasi:random/insecure-seed@0.2.6"],"capabilities":["http"],"resource_type":"github","tools":["github_list_issues","github_create_issue","github_update_issue","github_add_labels","github_remove_labels","github_add_comment","github_list_comments","github_get_repo"],"functions":[],"warnings":[]}"#);
    let (_, list) = api.get("/api/plugins").await?;
    assert_eq!(list, json!({ "items": [api.get("/api/plugins/github").await?.1], "next_cursor": null }));
    let mut answers = Answers::default();
    for name in ["absent", "..%2fdata", "a%00b", "Test"] {
        answers.add(name, faults(api.get(&format!("/api/plugins/{name}")).await?));
        answers.add(name, faults(api.post(&format!("/api/plugins/{name}/reload"), &Value::Null).await?));
    }
    assert_snapshot!(answers, @r#"
    absent: 404 "no such plugin"
    absent: 404 "no such plugin"
    ..%2fdata: 404 "no such plugin"
    ..%2fdata: 404 "no such plugin"
    a%00b: 404 "no such plugin"
    a%00b: 404 "no such plugin"
    Test: 404 "no such plugin"
    Test: 404 "no such plugin"
    "#);
    Ok(())
}

/// Each invalid plugin is listed with its error, and the other plugins serve.
#[tokio::test]
async fn one_bad_plugin_stops_no_other() -> Result<()> {
    let mut server = Server::prepare(&["test-echo", "test-import", "test-wrong-world"])?;
    let echo = fs::read_to_string(server.plugins_dir().join("test-echo/monstrum.yaml"))?;
    for (name, manifest) in [
        ("bad-field", echo.replace("version: 1.0.0", "version: 1.0.0\nlisence: MIT")),
        ("bad-type", echo.replace("tags: [test]", "tags: test")),
        ("test-zecho", echo.replace("name: test-echo", "name: test-zecho")),
        ("misnamed", echo.clone()),
    ] {
        server.install("test-echo")?;
        let (from, to) = (server.plugins_dir().join("test-echo"), server.plugins_dir().join(name));
        fs::rename(from, &to)?;
        fs::write(to.join("monstrum.yaml"), manifest)?;
    }
    server.install("test-echo")?;
    fs::write(server.plugins_dir().join("bad-type/plugin.wasm"), "no component")?;
    fs::create_dir(server.plugins_dir().join("empty"))?;
    server.launch().await?;
    let (_, list) = server.api()?.get("/api/plugins").await?;
    let told = |plugin: &Value| format!("{} {} {}", plugin["name"], plugin["status"], plugin["error"]);
    let plugins: Vec<String> = list["items"].as_array().into_iter().flatten().map(told).collect();
    assert_snapshot!(crate::stable::stable(&json!(plugins.join("\n"))).as_str().unwrap_or_default(), @r#"
    "bad-field" "failed" "monstrum.yaml:3:1: lisence: unknown field, expected one of `name`, `version`, `description`, `author`, `license`, `tags`, `homepage`, `repository`, `locales_dir`, `resource_type`, `executor`"
    "bad-type" "failed" "monstrum.yaml:6:7: tags: expected a list, found string \"test\""
    "empty" "failed" "[home]/plugins/empty/monstrum.yaml does not exist"
    "misnamed" "failed" "monstrum.yaml: name: expected `misnamed`, the name of the folder, but found `test-echo`"
    "test-echo" "loaded" null
    "test-import" "failed" "the component of plugin `test-import` imports `test:unknown/door@1.0.0`, which this host does not provide"
    "test-wrong-world" "failed" "the component of plugin `test-wrong-world` does not export `monstrum:plugin/executor@0.1.0`: it was built for a different WIT world"
    "test-zecho" "needs_approval" null
    "#);
    Ok(())
}

/// A new version serves from the next call on. If a new version does not load, the previous version continues to serve.
#[tokio::test]
async fn a_plugin_is_changed_without_a_restart() -> Result<()> {
    let world = World::with(&[]).await?;
    let manifest = world.server.plugins_dir().join("test-echo/monstrum.yaml");
    let reload = async |name: &str| -> Result<(u16, Value)> {
        let (status, body) = world.api.post(&format!("/api/plugins/{name}/reload"), &Value::Null).await?;
        let shown = match &body["detail"] {
            Value::Null => json!([body["version"], body["status"], body["error"]]),
            detail => detail.clone(),
        };
        Ok((status, shown))
    };
    let mut answers = Answers::default();
    answers.add("not there yet", reload("test-echo").await?);
    world.server.install("test-echo")?;
    answers.add("dropped in", reload("test-echo").await?);
    world.grant_all("test-echo").await?;
    let text = fs::read_to_string(&manifest)?;
    fs::write(&manifest, text.replace("version: 1.0.0", "version: one"))?;
    answers.add("broken", reload("test-echo").await?);
    let call = world.call("test_echo_run", &json!({})).await?;
    answers.add("a call", (0, call["status"].clone()));
    let text =
        text.replace("version: 1.0.0", "version: 1.0.1").replace("name: test_echo_again", "name: test_echo_other");
    fs::write(&manifest, text)?;
    answers.add("mended", reload("test-echo").await?);
    answers.add("the tools", (0, json!(world.tools().await?)));
    fs::remove_dir_all(manifest.with_file_name(""))?;
    answers.add("removed", reload("test-echo").await?);
    answers.add("the list", world.api.get("/api/plugins").await?);
    answers.add("the tools", (0, json!(world.tools().await?)));
    assert_snapshot!(answers, @r#"
    not there yet: 404 "no such plugin"
    dropped in: 200 ["1.0.0","loaded",null]
    broken: 200 ["1.0.0","failed","monstrum.yaml:2:10: version: expected a semantic version such as 1.0.0: unexpected character 'o' while parsing major version number"]
    a call: 0 "success"
    mended: 200 ["1.0.1","loaded",null]
    the tools: 0 ["test_echo_fetch","test_echo_flood","test_echo_mismatch","test_echo_open","test_echo_other","test_echo_run","test_echo_unhandled","test_echo_write"]
    removed: 404 "no such plugin"
    the list: 200 {"items":[],"next_cursor":null}
    the tools: 0 []
    "#);
    Ok(())
}

/// An approval with no request body applies to the version that waits.
#[tokio::test]
async fn root_approves_without_a_body() -> Result<()> {
    let server = Server::start(&["github"]).await?;
    let root = server.api()?;
    let approve = async || send(root.request(Method::POST, "/api/plugins/github/approve")).await;
    assert_eq!(approve().await?.0, 409, "no version waits");
    let manifest = server.plugins_dir().join("github/monstrum.yaml");
    let text = fs::read_to_string(&manifest)?.replace("version: 1.0.0", "version: 1.1.0");
    fs::write(&manifest, text.replace("operation: issue.write", "operation: issue.read"))?;
    let (_, waiting) = root.post("/api/plugins/github/reload", &Value::Null).await?;
    assert_eq!([&waiting["version"], &waiting["status"]], ["1.0.0", "needs_approval"]);
    let (status, _, approved) = approve().await?;
    let (version, state) = (&approved["version"], &approved["status"]);
    assert_eq!((status, version, state), (200, &json!("1.1.0"), &json!("loaded")));
    Ok(())
}

/// Only root keys can reload a plugin.
#[tokio::test]
async fn only_root_reloads() -> Result<()> {
    let server = Server::start(&["test-echo"]).await?;
    let root = server.api()?;
    let mut answers = Answers::default();
    for kind in ["root", "admin", "operator"] {
        let api = root.with_key(&root.new_key(kind, None).await?);
        let (status, _, body) = send(api.request(Method::POST, "/api/plugins/test-echo/reload")).await?;
        answers.add(kind, (status, if status == 200 { body["status"].clone() } else { body["detail"].clone() }));
    }
    assert_snapshot!(answers, @r#"
    root: 200 "loaded"
    admin: 403 "a root key is required"
    operator: 403 "a root key is required"
    "#);
    Ok(())
}
