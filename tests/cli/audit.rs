//! Tests of the command `monstrum audit`.

mod export;

use anyhow::Result;
use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::json;

use crate::cli::{parsed, run, told};
use crate::stable::stable;
use crate::world::World;

#[tokio::test]
async fn calls_are_listed_newest_first() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let server = &world.server;
    assert_snapshot!(told(server, &["audit", "list"]).await?, @r#"
    [stderr]
    no calls
    [exit 0]
    "#);
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    for (tool, params) in [
        ("test_echo_run", json!({ "repo": "acme/site" })),
        ("test_echo_run", json!({ "repo": "other/\u{1b}[2J\nsite" })),
        ("test_echo_write", json!({})),
    ] {
        world.call(tool, &params).await?;
    }
    // The duration and the width of its column vary, so the test removes numbers and column widths from the table.
    let table = told(server, &["audit", "list"]).await?;
    let columns = |line: &str| {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty() && cell.parse::<u64>().is_err())
            .collect::<Vec<_>>()
            .join(" | ")
    };
    assert_snapshot!(table.lines().map(columns).collect::<Vec<_>>().join("\n"), @r#"
    STARTED | STATUS | CODE | TOOL | MS | BOT | REQUEST | MESSAGE
    [time] | permission_denied | denied | test_echo_write | [id 1] | [id 2] | Permission denied: tool 'test_echo_write' is not available to this bot
    [time] | scope_violation | scope | test_echo_run | [id 1] | [id 3] | Scope violation: Repository other/\u{1b}[2J\nsite is not authorized
    [time] | success | test_echo_run | [id 1] | [id 4]
    [exit 0]
    "#);
    let (_, whole) = world.api.get("/api/audit?limit=1000").await?;
    assert_eq!(parsed(server, &["audit", "list"]).await?, (Some(0), whole.clone()));
    let bot = world.bot.as_str();
    for (arguments, count) in [
        (&["--status", "permission_denied"][..], 1),
        (&["--tool", "test_echo_run"], 2),
        (&["--bot", bot, "--since", "2020-01-01T00:00:00Z"], 3),
        (&["--until", "2020-01-01T00:00:00Z"], 0),
        (&["--limit", "2"], 2),
    ] {
        let (code, list) = parsed(server, &[&["audit", "list"], arguments].concat()).await?;
        assert_eq!((code, list["items"].as_array().map(Vec::len)), (Some(0), Some(count)), "{arguments:?}");
    }
    let (_, first) = parsed(server, &["audit", "list", "--limit", "1"]).await?;
    assert_eq!(first["items"][0], whole["items"][0]);
    assert!(first["next_cursor"].is_string());
    let output = run(server, &["audit", "list", "--limit", "1"]).await?;
    assert_snapshot!(String::from_utf8(output.stderr)?, @r#"there are more calls; raise --limit, or set --until to an earlier time"#);
    let mut answers = Vec::new();
    for arguments in [&["--status", "done"][..], &["--since", "yesterday"], &["--limit", "0"], &["--bot", "tester"]] {
        answers.push(told(server, &[&["audit", "list"], arguments].concat()).await?);
    }
    assert_snapshot!(answers.join("\n"), @r#"
    [stderr]
    error: The input is invalid (422)
      status: expected success, error, scope_violation, permission_denied, approval_required, running or interrupted
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
    [exit 1]
    [stderr]
    error: invalid value 'yesterday' for '--since <TIME>': `yesterday` is not an RFC 3339 time such as [time]
    hint: `monstrum audit list --help` shows usage and examples
    [exit 2]
    [stderr]
    error: invalid value '0' for '--limit <ROWS>': 0 is not in 1..=100000
    hint: `monstrum audit list --help` shows usage and examples
    [exit 2]
    [stderr]
    error: The input is invalid (422)
      bot_id: expected the id of a bot
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
    [exit 1]
    "#);
    Ok(())
}

/// A running server verifies its audit itself. If no server is running, the command verifies the folder. The two never
/// verify at the same time.
#[tokio::test]
async fn the_audit_is_verified_with_and_without_the_server() -> Result<()> {
    let mut world = World::with(&[]).await?;
    for _ in 0..3 {
        world.call("nothing", &json!({})).await?;
    }
    assert_snapshot!(told(&world.server, &["audit", "verify"]).await?, @r#"
    audit chain verified: 5 rows
    [exit 0]
    "#);
    let (code, report) = parsed(&world.server, &["audit", "verify"]).await?;
    assert_eq!(code, Some(0));
    assert_json_snapshot!(stable(&report), @r#"
    {
      "valid": true,
      "rows": 5,
      "problems": []
    }
    "#);
    let folder = world.server.data_dir();
    let offline = ["audit", "verify", "--data-dir", folder.to_str().unwrap_or_default()];
    assert_snapshot!(told(&world.server, &offline).await?, @r#"
    [stderr]
    error: another monstrum process uses the data folder [home]/data
    hint: a server is using the data folder: omit --data-dir to send the request to the server, or stop it first
    [exit 1]
    "#);
    let admin = world.api.new_key("admin", None).await?;
    assert_snapshot!(told(&world.server, &["audit", "verify", "--key", &admin]).await?, @r#"
    [stderr]
    error: This key has no permission for this action (403)
      a root key is required
      request [id 1]
    hint: use a key of a kind that permits this action; run `monstrum key create --help` to see the kinds
    [exit 1]
    "#);
    world.server.stop().await?;
    assert_snapshot!(told(&world.server, &offline).await?, @r#"
    audit chain verified: 7 rows
    [exit 0]
    "#);
    // The creation of a key has added two rows.
    let report = json!({ "valid": true, "rows": 7, "problems": [] });
    assert_eq!(parsed(&world.server, &offline).await?, (Some(0), report));
    let mut answers = Vec::new();
    for elsewhere in ["plugins", "absent"] {
        let folder = world.server.home().join(elsewhere);
        let before = folder.exists();
        answers.push(told(&world.server, &["audit", "verify", "--data-dir", elsewhere]).await?);
        assert_eq!(folder.exists(), before, "the command created the data folder");
    }
    assert_snapshot!(answers.join("\n"), @r#"
    [stderr]
    error: plugins is not the data folder of a server: it contains no master.key
    hint: set --data-dir to the same folder as for `monstrum serve`
    [exit 1]
    [stderr]
    error: absent is not the data folder of a server: it contains no master.key
    hint: set --data-dir to the same folder as for `monstrum serve`
    [exit 1]
    "#);
    std::fs::write(folder.join("audit-heads.log"), "not a head\n")?;
    let (code, report) = parsed(&world.server, &offline).await?;
    assert_eq!((code, &report["valid"]), (Some(1), &json!(false)), "{report}");
    assert_snapshot!(told(&world.server, &offline).await?, @r#"
     WRITER                                SEQUENCE  PROBLEM
                                           1         line 1 of audit-heads.log is not a head
     [id 1]  7         audit-heads.log contains no head of this chain
    [stderr]
    error: the audit failed verification: 2 problems in 7 rows
    hint: keep a copy of the data folder, and compare it with an earlier backup
    [exit 1]
    "#);
    Ok(())
}

#[tokio::test]
async fn changes_are_listed_with_who_made_them() -> Result<()> {
    let world = World::with(&[]).await?;
    let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
    admin.role("reader", &["*.read"]).await?;
    let table = told(&world.server, &["audit", "changes"]).await?;
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_snapshot!(table.lines().map(words).collect::<Vec<_>>().join("\n"), @r#"
    STARTED STATUS CHANGE OBJECT BY KEY MESSAGE
    [time] success role.create [id 1] admin [id 2]
    [time] success key.create [id 2] root [id 3]
    [time] success bot.create [id 4] root [id 3]
    [exit 0]
    "#);
    let (code, list) = parsed(&world.server, &["audit", "changes", "--limit", "1"]).await?;
    assert_eq!((code, &list["items"][0]["after"]["name"]), (Some(0), &json!("reader")));
    Ok(())
}
