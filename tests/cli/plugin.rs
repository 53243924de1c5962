//! `monstrum plugin`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use insta::{assert_json_snapshot, assert_snapshot};
use support::Server;

use crate::cli::{json, run, told};
use crate::stable::stable;

#[tokio::test]
async fn plugins_are_listed_shown_and_reloaded() -> Result<()> {
    let server = Server::prepare(&["github", "test-wrong-world"])?;
    let mut server = server;
    server.launch().await?;
    assert_snapshot!(told(&server, &["plugin", "list"]).await?, @"");
    assert_snapshot!(told(&server, &["plugin", "info", "github"]).await?, @"");
    assert_snapshot!(told(&server, &["plugin", "info", "absent"]).await?, @"");
    assert_snapshot!(told(&server, &["plugin", "reload", "test-wrong-world"]).await?, @"");
    let (code, shown) = json(&server, &["plugin", "reload", "github"]).await?;
    assert_eq!((code, &shown), (Some(0), &server.api()?.get("/api/plugins/github").await?.1));
    assert_eq!(json(&server, &["plugin", "info", "github"]).await?, (Some(0), shown));
    assert_eq!(json(&server, &["plugin", "list"]).await?, (Some(0), server.api()?.get("/api/plugins").await?.1));
    let (code, error) = json(&server, &["plugin", "info", "absent"]).await?;
    assert_eq!(code, Some(1));
    assert_json_snapshot!(stable(&error), @"");
    let operator = server.api()?.new_key("operator", None).await?;
    assert_snapshot!(told(&server, &["plugin", "reload", "github", "--key", &operator]).await?, @"");
    assert_snapshot!(told(&server, &["plugin", "list", "--key", "mk_unknown"]).await?, @"");
    assert_snapshot!(told(&server, &["plugin", "list", "--workspace", "nowhere"]).await?, @"");
    Ok(())
}

/// A plugins folder with one change to the manifest of the plugin `test-echo`.
fn changed(from: &str, to: &str) -> Result<Server> {
    let server = Server::prepare(&["test-echo"])?;
    let manifest = server.plugins_dir().join("test-echo/monstrum.yaml");
    let text = fs::read_to_string(&manifest)?;
    anyhow::ensure!(text.contains(from), "the manifest has no `{from}`");
    fs::write(manifest, text.replacen(from, to, 1))?;
    Ok(server)
}

const VALIDATE: [&str; 3] = ["plugin", "validate", "plugins/test-echo"];

#[tokio::test]
async fn a_good_folder_is_valid() -> Result<()> {
    let server = Server::prepare(&["test-echo", "github"])?;
    assert_snapshot!(told(&server, &VALIDATE).await?, @"");
    assert_snapshot!(told(&server, &["plugin", "validate", "plugins/github/"]).await?, @"");
    let (code, report) = json(&server, &["plugin", "validate", "plugins/github"]).await?;
    assert_eq!(code, Some(0));
    assert_json_snapshot!(stable(&report), @"");
    Ok(())
}

#[tokio::test]
async fn each_fault_of_a_manifest_is_shown_where_it_is() -> Result<()> {
    let server = changed("version: 1.0.0", "version: one\nlisence: MIT")?;
    assert_snapshot!(told(&server, &VALIDATE).await?, @"");
    let (code, report) = json(&server, &VALIDATE).await?;
    assert_eq!(code, Some(1));
    assert_json_snapshot!(report, @"");
    let mut told_of = Vec::new();
    for (from, to) in [
        ("name: test-echo", "name: Test Echo"),
        ("name: test-echo", "name: sandbox"),
        ("name: test-echo", "name: other"),
        ("tags: [test]", "tags: test"),
        ("      type: url", "      type: uri"),
        ("    - method: token", "    - method: magic"),
        ("operation: echo.read", "operation: [echo.read]"),
        ("type: object", "type: objekt"),
        ("name: test_echo_again", "name: test_echo_run"),
        ("name: test_echo_again", "name: sandbox_again"),
        ("match_mode: path", "match_mode: regex"),
        ("author: Monstrum", "author: Monstrum\n  license: x"),
        ("version: 1.0.0\n", ""),
        ("author: Monstrum", "author: Monstrum\nauthor: Twice"),
    ] {
        let server = changed(from, to)?;
        let (code, report) = json(&server, &VALIDATE).await?;
        assert_eq!(code, Some(1), "{to}: {report}");
        for error in report["errors"].as_array().context("a report has errors")? {
            told_of.push(format!(
                "{to:?}: {}:{}:{}: {}: {}",
                crate::world::text(&error["file"]), error["line"], error["column"], error["field"], error["message"]
            ));
        }
    }
    assert_snapshot!(told_of.join("\n"), @"");
    Ok(())
}

#[tokio::test]
async fn a_folder_that_cannot_be_a_plugin_is_named() -> Result<()> {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let server = Server::prepare(&["test-echo", "test-import", "test-wrong-world"])?;
    let plugin = server.plugins_dir().join("test-echo");
    let mut answers = Vec::new();
    for folder in ["plugins/absent", "plugins", "plugins/test-import", "plugins/test-wrong-world"] {
        answers.push(told(&server, &["plugin", "validate", folder]).await?);
    }
    symlink(&plugin, server.plugins_dir().join("linked"))?;
    answers.push(told(&server, &["plugin", "validate", "plugins/linked"]).await?);
    fs::write(plugin.join("plugin.wasm"), "no component")?;
    answers.push(told(&server, &VALIDATE).await?);
    fs::set_permissions(plugin.join("plugin.wasm"), fs::Permissions::from_mode(0o666))?;
    answers.push(told(&server, &VALIDATE).await?);
    fs::remove_file(plugin.join("plugin.wasm"))?;
    answers.push(told(&server, &VALIDATE).await?);
    fs::write(plugin.join("monstrum.yaml"), b"name: \xff\n")?;
    answers.push(told(&server, &VALIDATE).await?);
    fs::write(plugin.join("monstrum.yaml"), vec![b'#'; (256 << 10) + 1])?;
    answers.push(told(&server, &VALIDATE).await?);
    assert_snapshot!(answers.join("\n"), @"");
    Ok(())
}

/// Colours are for terminals, and never where NO_COLOR is set; a plugin's text does not drive the terminal.
#[tokio::test]
async fn colours_are_for_terminals_only() -> Result<()> {
    let faulty = || changed("version: 1.0.0", "version: \"\\e[2J\"\nlisence: MIT");
    let escapes = async |server: &Server| -> Result<(bool, bool)> {
        let output = run(server, &VALIDATE).await?;
        let text = String::from_utf8(output.stderr)?;
        Ok((text.contains("\u{1b}[3"), text.contains("\u{1b}[2J")))
    };
    // A terminal is feigned: the library takes this variable in its place.
    let terminal = |server: Server| server.variable("IGNORE_IS_TERMINAL", "1").variable("TERM", "xterm-256color");
    assert_eq!(escapes(&faulty()?).await?, (false, false), "no terminal");
    assert_eq!(escapes(&terminal(faulty()?)).await?, (true, false), "a terminal");
    assert_eq!(escapes(&terminal(faulty()?).variable("NO_COLOR", "1")).await?, (false, false), "NO_COLOR");
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_explained() -> Result<()> {
    let server = Server::prepare(&[])?;
    let mut answers = Vec::new();
    for arguments in [
        &["plugin", "list"][..],
        &["plugin", "list", "--key", "mk_x", "--url", "http://127.0.0.1:1"],
        &["plugin", "list", "--key", "mk_x", "--url", "127.0.0.1:8080"],
        &["plugin", "list", "--key", "mk_x", "--url", "http://me:secret@127.0.0.1:1"],
        &["plugin", "list", "--key", "mk\n_x"],
        &["plugin", "list", "--colour"],
        &["plugin", "install", "x"],
        &["plugin", "info"],
    ] {
        answers.push(format!("$ {}\n{}", arguments.join(" ").escape_debug(), told(&server, arguments).await?));
    }
    assert_snapshot!(answers.join("\n"), @"");
    Ok(())
}

/// Every command says what it does, with examples.
#[tokio::test]
async fn every_command_helps() -> Result<()> {
    let server = Server::prepare(&[])?;
    assert_snapshot!(told(&server, &["--help"]).await?, @"");
    for command in [
        &["serve"][..],
        &["plugin", "list"],
        &["plugin", "info"],
        &["plugin", "reload"],
        &["plugin", "validate"],
        &["audit", "list"],
        &["audit", "verify"],
        &["key", "create"],
    ] {
        let output = run(&server, &[command, &["--help"]].concat()).await?;
        let text = String::from_utf8(output.stdout)?;
        let example = format!("monstrum {}", command.join(" "));
        let (_, examples) = text.split_once("Examples:").with_context(|| format!("{example} shows no examples"))?;
        assert!(output.status.success() && examples.contains(&example) && text.contains("--json"), "{text}");
    }
    let version = run(&server, &["--version"]).await?;
    assert_eq!(String::from_utf8(version.stdout)?, format!("monstrum {}\n", env!("CARGO_PKG_VERSION")));
    assert!(!Path::new(&server.data_dir()).exists(), "help makes nothing");
    Ok(())
}
