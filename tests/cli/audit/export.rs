//! Tests of `monstrum audit export`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::cli::{parsed, run, succeed, told};
use crate::world::World;

#[tokio::test]
async fn events_are_exported_to_a_file_or_to_standard_output() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    world.call("test_echo_run", &json!({ "repo": "acme/site" })).await?;
    world.call("test_echo_write", &json!({})).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("events.jsonl");
    let name = file.to_str().context("the path is not UTF-8")?;
    let answer = world.api.request(reqwest::Method::GET, "/api/audit/export?format=ocsf").send().await?;
    let expected = answer.text().await?;
    let command = ["audit", "export", "--format", "ocsf"];
    let (code, report) = parsed(&world.server, &[&command[..], &["--output", name]].concat()).await?;
    assert_eq!((code, report), (Some(0), json!({ "file": name, "lines": expected.lines().count() })));
    assert_eq!(std::fs::read_to_string(&file)?, expected);
    assert_eq!(succeed(&world.server, &command).await?, expected.trim());
    // The second command replaces the file, and without a format the lines are calls.
    let denied = ["audit", "export", "--status", "permission_denied", "--output", name];
    let output = run(&world.server, &denied).await?;
    ensure!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let call: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    assert_eq!(call["tool"], "test_echo_write");
    Ok(())
}

#[tokio::test]
async fn a_failed_export_leaves_the_file_as_it_was() -> Result<()> {
    let world = World::with(&[]).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("events.jsonl");
    std::fs::write(&file, "before")?;
    let name = file.to_str().context("the path is not UTF-8")?;
    let broken = broken_server().await?;
    let bot = world.api.new_key("bot", Some(&world.bot)).await?;
    for (arguments, hint) in [
        (&["--status", "done"][..], "hint: correct the input"),
        (&["--key", &bot], "hint: use a key of a kind that permits this action"),
        // The body of this server ends early.
        (&["--url", &broken], "hint: try again"),
    ] {
        let answer = told(&world.server, &[&["audit", "export", "--output", name], arguments].concat()).await?;
        ensure!(answer.contains(hint) && answer.ends_with("[exit 1]"), "{arguments:?}: {answer}");
        assert_eq!(std::fs::read_to_string(&file)?, "before", "{arguments:?}");
        let names = std::fs::read_dir(folder.path())?.count();
        assert_eq!(names, 1, "a temporary file remains: {arguments:?}");
    }
    let missing = folder.path().join("absent/events.jsonl");
    let missing = missing.to_str().context("the path is not UTF-8")?;
    let answer = told(&world.server, &["audit", "export", "--output", missing]).await?;
    ensure!(answer.contains("hint: set --output to a file in an existing folder"), "{answer}");
    // An incomplete export to standard output is an error too.
    let answer = told(&world.server, &["audit", "export", "--url", &broken]).await?;
    ensure!(answer.contains("before the response was complete") && answer.ends_with("[exit 1]"), "{answer}");
    Ok(())
}

/// Starts a server that ends every body early, and returns its URL.
async fn broken_server() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            // The answer does not depend on the request, which fits into one read.
            if matches!(stream.read(&mut request).await, Ok(1..)) {
                let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n";
                drop(stream.write_all(answer).await);
            }
        }
    });
    Ok(url)
}
