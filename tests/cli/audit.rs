//! `monstrum audit`.

use anyhow::Result;
use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::json;

use crate::cli::{json, run, told};
use crate::stable::stable;
use crate::world::World;

#[tokio::test]
async fn calls_are_listed_newest_first() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let server = &world.server;
    assert_snapshot!(told(server, &["audit", "list"]).await?, @"");
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    for (tool, params) in [
        ("test_echo_run", json!({ "repo": "acme/site" })),
        ("test_echo_run", json!({ "repo": "other/\u{1b}[2J\nsite" })),
        ("test_echo_write", json!({})),
    ] {
        world.call(tool, &params).await?;
    }
    // The duration is of no fixed width, so this is read by its columns.
    let table = told(server, &["audit", "list"]).await?;
    let columns = |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty() && cell.parse::<u64>().is_err()).collect::<Vec<_>>().join(" | ");
    assert_snapshot!(table.lines().map(columns).collect::<Vec<_>>().join("\n"), @"");
    let (_, whole) = world.api.get("/api/audit?limit=1000").await?;
    assert_eq!(json(server, &["audit", "list"]).await?, (Some(0), whole.clone()));
    let bot = world.bot.as_str();
    for (arguments, count) in [
        (&["--status", "permission_denied"][..], 1),
        (&["--tool", "test_echo_run"], 2),
        (&["--bot", bot, "--since", "2020-01-01T00:00:00Z"], 3),
        (&["--until", "2020-01-01T00:00:00Z"], 0),
        (&["--limit", "2"], 2),
    ] {
        let (code, list) = json(server, &[&["audit", "list"], arguments].concat()).await?;
        assert_eq!((code, list["items"].as_array().map(Vec::len)), (Some(0), Some(count)), "{arguments:?}");
    }
    let (_, first) = json(server, &["audit", "list", "--limit", "1"]).await?;
    assert_eq!(first["items"][0], whole["items"][0]);
    assert!(first["next_cursor"].is_string());
    let output = run(server, &["audit", "list", "--limit", "1"]).await?;
    assert_snapshot!(String::from_utf8(output.stderr)?, @"");
    let mut answers = Vec::new();
    for arguments in [&["--status", "done"][..], &["--since", "yesterday"], &["--limit", "0"], &["--bot", "tester"]] {
        answers.push(told(server, &[&["audit", "list"], arguments].concat()).await?);
    }
    assert_snapshot!(answers.join("\n"), @"");
    Ok(())
}

/// By the server while it runs, from the folder when it does not, and never both at once.
#[tokio::test]
async fn the_audit_is_verified_with_and_without_the_server() -> Result<()> {
    let mut world = World::with(&[]).await?;
    for _ in 0..3 {
        world.call("nothing", &json!({})).await?;
    }
    assert_snapshot!(told(&world.server, &["audit", "verify"]).await?, @"");
    let (code, report) = json(&world.server, &["audit", "verify"]).await?;
    assert_eq!(code, Some(0));
    assert_json_snapshot!(stable(&report), @"");
    let folder = world.server.data_dir();
    let offline = ["audit", "verify", "--data-dir", folder.to_str().unwrap_or_default()];
    assert_snapshot!(told(&world.server, &offline).await?, @"");
    let admin = world.api.new_key("admin", None).await?;
    assert_snapshot!(told(&world.server, &["audit", "verify", "--key", &admin]).await?, @"");
    world.server.stop().await?;
    assert_snapshot!(told(&world.server, &offline).await?, @"");
    assert_eq!(json(&world.server, &offline).await?, (Some(0), report));
    for elsewhere in [world.server.plugins_dir(), world.server.home().join("absent")] {
        let before = elsewhere.exists();
        assert_snapshot!("elsewhere", told(&world.server, &["audit", "verify", "--data-dir", elsewhere.to_str().unwrap_or_default()]).await?.replace(elsewhere.file_name().and_then(|name| name.to_str()).unwrap_or_default(), "[folder]"), @"");
        assert_eq!(elsewhere.exists(), before, "looking makes nothing");
    }
    let heads = std::fs::read_dir(&folder)?.flatten().find(|entry| entry.file_name().to_string_lossy().contains("head"));
    std::fs::write(heads.map(|entry| entry.path()).unwrap_or_default(), "")?;
    let (code, report) = json(&world.server, &offline).await?;
    assert_eq!((code, &report["valid"]), (Some(1), &json!(false)), "{report}");
    assert_snapshot!(told(&world.server, &offline).await?, @"");
    Ok(())
}
