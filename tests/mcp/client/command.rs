//! `monstrum mcp`, and what `monstrum doctor` says about tools of MCP servers.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use support::{Generation, McpReply};

use super::{Behind, tool};
use crate::cli::{parsed, succeed, told};
use crate::tamper::sqlite;
use crate::world::{eventually, text};

impl Behind {
    /// Runs `monstrum mcp` and returns its output and its exit code.
    async fn command(&self, arguments: &[&str]) -> Result<String> {
        told(&self.world.server, &[&["mcp"], arguments].concat()).await
    }

    /// Runs `monstrum mcp`, whose output must end with this exit code and contain all parts.
    async fn says(&self, code: i32, arguments: &[&str], parts: &[&str]) -> Result<()> {
        let said = self.command(arguments).await?;
        ensure!(said.ends_with(&format!("[exit {code}]")), "{arguments:?}: {said}");
        for part in parts {
            ensure!(said.contains(part), "{arguments:?} does not say `{part}`: {said}");
        }
        Ok(())
    }
}

#[tokio::test]
async fn an_admin_discovers_reads_and_decides_on_the_command_line() -> Result<()> {
    let tools = [tool("Add-Note", "Adds a note"), tool("drop", "Drops all notes\u{202e}")];
    let behind = Behind::undecided(Generation::Stateless, &tools, &json!({})).await?;
    behind.says(0, &["discover", "notes"], &["notes: 0 tools approved, 2 tools to decide about"]).await?;
    let listed = ["ORIGINAL NAME", "notes__add_note", "Add-Note", "notes__drop", "pending"];
    behind.says(0, &["tools", "notes"], &listed).await?;
    // Without a terminal, the command shows the definitions and decides nothing.
    behind.says(1, &["approve", "notes", "Add-Note"], &["Adds a note", "[digest]", "--yes"]).await?;
    assert_eq!(behind.statuses().await?, ["Add-Note pending", "drop pending"]);

    let approve = ["approve", "notes", "Add-Note", "--effect", "read", "--yes"];
    behind.says(0, &approve, &["Adds a note", "approved 1 tool of notes"]).await?;
    let reject = ["reject", &behind.resource, "drop", "--yes"];
    behind.says(0, &reject, &["Drops all notes", "{202e}", "rejected 1 tool of"]).await?;
    assert_eq!(behind.statuses().await?, ["Add-Note approved", "drop rejected"]);
    assert_eq!(behind.pins().await?[0]["effect"], "read");
    assert_eq!(behind.world.tools().await?, ["notes__add_note"]);

    behind.mcp.set_tools(&[tool("Add-Note", "Adds a note and sends it elsewhere")]);
    behind.says(0, &["discover", "notes"], &["notes: 0 tools approved, 1 tool to decide about"]).await?;
    behind.says(0, &["tools", "notes", "--status", "changed"], &["Add-Note", "changed"]).await?;
    // Both definitions are shown.
    let both = ["Adds a note and sends it elsewhere", "\"Adds a note\"", "approved 1 tool of notes"];
    behind.says(0, &["approve", "notes", "--yes"], &both).await?;
    let (code, approved) = parsed(&behind.world.server, &["mcp", "tools", "notes", "--status", "approved"]).await?;
    assert_eq!((code, &approved["items"][0]["effect"]), (Some(0), &json!("write")), "{approved}");
    Ok(())
}

/// An export has the digests of approved tools. Applied elsewhere, they approve these definitions and no others.
#[tokio::test]
async fn pins_are_exported_and_applied() -> Result<()> {
    let tools = [tool("add", "Adds a note"), tool("drop", "Drops all notes")];
    let behind = Behind::undecided(Generation::Stateless, &tools, &json!({})).await?;
    behind.discovered().await?;
    behind.approve_all("read").await?;
    let exported = succeed(&behind.world.server, &["export"]).await?;
    ensure!(exported.contains("pins:") && exported.contains("effect: read"), "{exported}");
    let file = behind.world.server.home().join("file.yaml");
    std::fs::write(&file, &exported)?;
    let again = told(&behind.world.server, &["apply", "file.yaml"]).await?;
    ensure!(again.contains("the workspace already has this configuration"), "{again}");

    // Another workspace has none of the objects. Meanwhile, one of the tools has changed.
    crate::http::workspace(&behind.world.api, "acme").await?;
    behind.mcp.set_tools(&[tool("add", "Adds a note"), tool("drop", "Drops all notes and the rest")]);
    let arguments = ["apply", "file.yaml", "--workspace", "acme"];
    let plan = succeed(&behind.world.server, &[&arguments[..], &["--dry-run"]].concat()).await?;
    for line in ["approve tool add of notes (read)", "approve tool drop of notes (read)"] {
        ensure!(plan.contains(line), "{plan}");
    }
    let applied = told(&behind.world.server, &[&arguments[..], &["--yes"]].concat()).await?;
    ensure!(applied.ends_with("[exit 1]") && applied.contains("definitions of their pins: drop of notes"), "{applied}");
    let (_, listed) = parsed(&behind.world.server, &["mcp", "tools", "notes", "--workspace", "acme"]).await?;
    let items = listed["items"].as_array().context("a list of tools")?;
    let statuses: Vec<_> =
        items.iter().map(|item| [&item["original_name"], &item["status"], &item["effect"]].map(text)).collect();
    assert_eq!(statuses, [["add", "approved", "read"], ["drop", "pending", "write"]]);
    Ok(())
}

#[tokio::test]
async fn the_command_says_why_it_cannot_decide() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    behind.mcp.reply("tools/list", McpReply::json(500, &json!("oops")));
    for (arguments, reason) in [
        (&["tools", "absent"][..], "the workspace has no resource `absent`"),
        (&["approve", "notes"], "no tool waits for approval"),
        (&["approve", "notes", "absent", "--yes"], "the resource has no tool `absent`"),
        (&["reject", "notes"], "the command needs the name of at least one tool"),
        (&["discover", "notes"], "the discovery failed: the MCP server answered with HTTP status 500"),
    ] {
        behind.says(1, arguments, &[reason, "hint: "]).await?;
    }
    assert_eq!(behind.statuses().await?, ["note approved"]);

    // An operator may run a discovery, and does not decide.
    behind.mcp.forget_reply("tools/list");
    behind.mcp.set_tools(&[tool("note", "Adds"), tool("new", "New")]);
    let operator = behind.world.api.new_key("operator", None).await?;
    behind.says(0, &["discover", "notes", "--key", &operator], &["1 tool to decide about"]).await?;
    for decision in ["approve", "reject"] {
        behind.says(1, &[decision, "notes", "new", "--yes", "--key", &operator], &[]).await?;
    }
    assert_eq!(behind.statuses().await?, ["note approved", "new pending"]);
    Ok(())
}

#[tokio::test]
async fn doctor_names_tools_that_wait_and_discoveries_that_fail() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    behind.mcp.set_tools(&[tool("note", "Adds more"), tool("new", "New")]);
    behind.discovered().await?;
    behind.mcp.reply("tools/list", McpReply::json(500, &json!("oops")));
    behind.discover().await?;
    let (code, report) = parsed(&behind.world.server, &["doctor"]).await?;
    let findings = report["findings"].as_array().context("the report has no findings")?;
    let said: Vec<String> =
        findings.iter().map(|found| format!("{}: {}", text(&found["about"]), text(&found["what"]))).collect();
    assert_eq!(code, Some(1));
    assert_eq!(
        said,
        [
            "resource notes: bots cannot use some of its tools: 1 new, 1 changed",
            "resource notes: the last discovery of its tools failed: the MCP server answered with HTTP status 500",
        ]
    );
    Ok(())
}

/// A row of a tool that was edited in the database serves nothing, and `doctor` names it.
#[tokio::test]
async fn doctor_names_a_row_of_tools_that_was_edited() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    behind.echoed("notes__note", &json!({})).await?;
    let folder = behind.world.server.data_dir();
    let edit = "update resource_tools set effect = 'read'";
    sqlite(&folder, &["begin immediate", edit, "update settings set generation = generation + 1", "commit"]).await?;
    let path = format!("/api/bots/{}/tools/notes__note/call", behind.world.bot);
    eventually("the tool is refused", async || {
        let (status, answer) = behind.world.api.post(&path, &json!({})).await?;
        Ok((status != 200 || answer["status"] == "permission_denied").then_some(()))
    })
    .await?;
    // Calls were made until the edit was noticed, and none is made after it.
    let made = behind.mcp.params_of("tools/call").len();
    behind.world.api.post(&path, &json!({})).await?;
    assert_eq!(behind.mcp.params_of("tools/call").len(), made);
    let (code, report) = parsed(&behind.world.server, &["doctor"]).await?;
    let findings = report["findings"].as_array().context("the report has no findings")?;
    let row = findings.iter().find(|found| text(&found["about"]).starts_with("row resource_tools/"));
    let row = row.with_context(|| format!("no finding names the row: {report}"))?;
    ensure!(code == Some(1) && row["severity"] == "broken", "{row}");
    assert!(text(&row["remedy"]).contains("monstrum vault seal"), "{row}");
    Ok(())
}
