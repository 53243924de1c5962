//! Plugins are installed, changed and removed while bots call them.

use anyhow::{Result, ensure};
use futures::future::join_all;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::Server;

use super::{Source, detail, in_place, left, trusted};
use crate::http::send;
use crate::world::{World, text};

fn shown((status, entry): &(u16, Value)) -> String {
    format!("{status} {} {} {}", text(&entry["version"]), text(&entry["status"]), entry["pending"])
}

#[tokio::test]
async fn an_installed_plugin_serves_is_updated_and_removed() -> Result<()> {
    let world = World::with(&[]).await?;
    let key = trusted(&world.api).await?;
    let first = Source::of("test-echo", "1.0.0")?;
    assert_eq!(shown(&first.packed(&key)?.to(&world.api).await?), "201 1.0.0 loaded null");
    let bound = world.grant_all("test-echo").await?;
    assert_eq!(world.call("test_echo_run", &json!({})).await?["status"], "success");

    let mut second = Source::of("test-echo", "1.1.0")?;
    second.edit(|text| text.replace("name: test_echo_again", "name: test_echo_other"))?;
    assert_eq!(shown(&second.packed(&key)?.to(&world.api).await?), "200 1.1.0 loaded null");
    assert!(world.tools().await?.contains(&"test_echo_other".to_owned()));
    assert_eq!(in_place(&world.server, "test-echo")?, second.files);

    // A version that does not load has no effect. Even the files on disk do not change.
    let mut broken = Source::of("test-echo", "1.2.0")?;
    broken.files.insert("plugin.wasm".to_owned(), b"no component".to_vec());
    let refused = broken.packed(&key)?.to(&world.api).await?;
    assert_eq!(refused.0, 422, "{refused:?}");
    assert_eq!(in_place(&world.server, "test-echo")?, second.files);
    assert_eq!(world.call("test_echo_run", &json!({})).await?["status"], "success");

    let refused = world.api.delete("/api/plugins/test-echo").await?;
    assert_snapshot!(detail(&refused).replace(&world.bot, "[bot]"), @"409 plugin `test-echo` is still bound; delete these bindings first: resource `test-echo-of-[bot]` to bot `tester` in workspace `default`");
    let path = format!("/api/bots/{}/resources/{}", world.bot, bound.binding);
    ensure!(world.api.delete(&path).await?.0 == 204);
    assert_eq!(world.api.delete("/api/plugins/test-echo").await?, (204, Value::Null));
    assert_eq!(world.api.delete("/api/plugins/test-echo").await?.0, 404);
    assert_eq!(world.api.get("/api/plugins/test-echo").await?.0, 404);
    assert_eq!(left(&world.server)?, ["plugins"]);
    let call = world.call("test_echo_run", &json!({})).await?;
    assert_eq!(call["message"], "Permission denied: tool 'test_echo_run' is not available to this bot");
    Ok(())
}

#[tokio::test]
async fn an_installed_version_that_asks_for_more_waits_for_approval() -> Result<()> {
    let world = World::with(&[]).await?;
    let key = trusted(&world.api).await?;
    Source::of("test-result", "1.0.0")?.packed(&key)?.to(&world.api).await?;
    world.grant_all("test-result").await?;
    let mut greedy = Source::of("test-result", "2.0.0")?;
    greedy.edit(|text| text + "executor:\n  egress: [\"https://evil.example\"]\n")?;
    let (status, entry) = greedy.packed(&key)?.to(&world.api).await?;
    assert_eq!((status, &entry["status"], &entry["version"]), (200, &json!("needs_approval"), &json!("1.0.0")));
    assert_eq!(entry["pending"]["grows"], json!(["egress to `https://evil.example`"]));
    assert_eq!(world.call("test_result_run", &json!({ "mode": "ok" })).await?["status"], "success");
    // A pending version counts as recorded, so an older version needs allow_downgrade.
    let older = Source::of("test-result", "1.5.0")?.packed(&key)?.to(&world.api).await?;
    assert_eq!(older.0, 409, "{older:?}");
    let (status, entry) = world.api.post("/api/plugins/test-result/approve", &json!({})).await?;
    assert_eq!((status, &entry["version"]), (200, &json!("2.0.0")));
    Ok(())
}

#[tokio::test]
async fn many_installs_of_one_plugin_at_once_leave_one_whole_version() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let key = trusted(&api).await?;
    let sources = (0..8).map(|minor| Source::of("test-result", &format!("1.{minor}.0"))).collect::<Result<Vec<_>>>()?;
    let sent = sources.iter().map(|source| source.packed(&key)).collect::<Result<Vec<_>>>()?;
    let answers = join_all(sent.iter().map(|sent| sent.with(&api, true))).await;
    for answer in answers {
        let (status, entry) = answer?;
        assert!(matches!(status, 200 | 201) && entry["status"] == "loaded", "{status} {entry}");
    }
    let (_, entry) = api.get("/api/plugins/test-result").await?;
    let serving = sources.iter().find(|source| entry["version"] == source.version.as_str());
    assert_eq!(Some(in_place(&server, "test-result")?), serving.map(|source| source.files.clone()));
    let hidden = left(&server)?.into_iter().filter(|name| name.contains("/.")).collect::<Vec<_>>();
    assert_eq!(hidden, [""; 0]);
    Ok(())
}

/// Packages must follow the same rules as folders.
#[tokio::test]
async fn a_package_takes_neither_the_tools_nor_the_place_of_another() -> Result<()> {
    let server = Server::start(&["test-echo"]).await?;
    let api = server.api()?;
    let key = trusted(&api).await?;
    let mut thief = Source::of("test-echo", "1.0.0")?;
    thief.name = "test-thief".to_owned();
    thief.edit(|text| text.replace("name: test-echo\n", "name: test-thief\n"))?;
    let taken = thief.packed(&key)?.to(&api).await?;
    assert_eq!((taken.0, &taken.1["status"], &taken.1["version"]), (201, &json!("needs_approval"), &Value::Null));
    let mut builtin = Source::of("test-result", "1.0.0")?;
    builtin.edit(|text| text.replace("id: test-result", "id: ssh"))?;
    let reserved = builtin.packed(&key)?.to(&api).await?;
    std::os::unix::fs::symlink("/", server.plugins_dir().join("test-result"))?;
    let in_the_way = Source::of("test-result", "1.0.0")?.packed(&key)?.to(&api).await?;
    let told = [reserved, in_the_way].map(|answer| detail(&answer));
    let home = server.home().to_string_lossy().into_owned();
    assert_snapshot!(told.join("\n").replace(&home, "[home]"), @r#"
    422 /package: the package's monstrum.yaml:9:7: resource_type.id: `ssh` is a built-in type and cannot be replaced
    409 [home]/plugins/test-result is not a folder; remove it first
    "#);
    Ok(())
}

#[tokio::test]
async fn a_picture_is_served_for_what_it_is() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let key = trusted(&api).await?;
    let picture = b"\x89PNG\r\n\x1a\nand so on".to_vec();
    let icon = |content: &[u8]| -> Result<Source> {
        let mut source = Source::of("test-result", "1.0.0")?;
        source.edit(|text| text.replace("  name: Test result\n", "  name: Test result\n  icon: icon.png\n"))?;
        source.files.insert("icon.png".to_owned(), content.to_vec());
        Ok(source)
    };
    let refused = icon(b"<svg onload=\"alert(1)\"/>")?.packed(&key)?.to(&api).await?;
    assert!(refused.0 == 422 && detail(&refused).contains("neither a PNG nor a WebP"), "{refused:?}");
    let refused = icon(&[picture.clone(), vec![0; 64 << 10]].concat())?.packed(&key)?.to(&api).await?;
    assert!(refused.0 == 422 && detail(&refused).contains("at most 65536"), "{refused:?}");
    assert_eq!(icon(&picture)?.packed(&key)?.to(&api).await?.0, 201);
    let response = api.request(Method::GET, "/api/plugins/test-result/icon").send().await?;
    let header = |name: &str| response.headers()[name].to_str().unwrap_or_default().to_owned();
    let headers = ["content-type", "x-content-type-options", "content-security-policy"].map(header);
    assert_eq!(headers, ["image/png", "nosniff", "default-src 'none'; sandbox"]);
    assert_eq!(response.bytes().await?, picture);
    let (status, _, _) = send(api.with_key("").request(Method::GET, "/api/plugins/test-result/icon")).await?;
    assert_eq!(status, 401);
    Ok(())
}
