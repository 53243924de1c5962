//! docs/start.md, executed from its second section to its end. The first section builds the program under test.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use support::Server;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::walk::{Example, Place, examples};
use super::{page, search_path};

const PAGE: &str = "docs/start.md";
/// The page's command for starting the server. [`Server::launch`] does the same on a free port.
const SERVE: &str = "monstrum serve --plugins-dir plugins\n";

#[tokio::test]
async fn a_newcomer_gets_to_an_allowed_call_two_refused_ones_and_the_audit() -> Result<()> {
    let mut server = Server::prepare(&[])?;
    let home = server.home().to_owned();
    let plugin = Server::plugin_source("github")?;
    let target = plugin.ancestors().nth(2).context("the page does not build plugins into target/plugins")?;
    symlink(target, home.join("target"))?;
    fs::create_dir(home.join("bin"))?;
    symlink(support::program()?, home.join("bin/monstrum"))?;

    // The page runs some blocks in other terminals. These blocks divide the remaining blocks into groups.
    let mut upstream = None;
    let mut pending: Vec<Example> = Vec::new();
    let path = format!("{}:{}", home.join("bin").display(), search_path()?);
    let mut place = Place { folder: &home, variables: vec![("PATH", path)], replacements: Vec::new() };
    for example in examples(&page(PAGE)?).into_iter().filter(|example| !example.section.starts_with("1. ")) {
        if example.commands == SERVE {
            place.run(&std::mem::take(&mut pending)).await?;
            server.launch().await?;
            let url = server.url().context("the server is not running")?.to_owned();
            let address =
                url.strip_prefix("http://").context("the URL of the server does not start with http://")?.to_owned();
            place.replacements.push(("127.0.0.1:8080", address));
            place.variables.push(("MONSTRUM_URL", url));
        } else if example.commands.starts_with("python3 -m http.server 9000 ") {
            place.run(&std::mem::take(&mut pending)).await?;
            let (child, address) = stand_in(&home, &example.commands.replace("9000", "0")).await?;
            upstream = Some(child);
            place.replacements.push(("127.0.0.1:9000", address));
        } else {
            pending.push(example);
        }
    }
    ensure!(
        upstream.is_some() && server.url().is_some(),
        "the page does not start a server and a substitute for GitHub"
    );
    ensure!(pending.len() > 8, "the page does not call tools");
    place.run(&pending).await?;
    assert_eq!(server.api()?.verify_audit().await?["valid"], true);
    Ok(())
}

/// Starts the page's substitute for GitHub with the page's command, and returns the process and its address.
async fn stand_in(folder: &std::path::Path, command: &str) -> Result<(Child, String)> {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &format!("exec {command}")]).current_dir(folder).env("PYTHONUNBUFFERED", "1");
    bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = bash.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("the process has no standard output")?).lines();
    let line = lines.next_line().await?.context("the process does not print its address")?;
    let address = Regex::new("http://(127.0.0.1:[0-9]+)/")?;
    match address.captures(&line) {
        Some(found) => Ok((child, found[1].to_owned())),
        None => bail!("the process printed `{line}` instead of its address"),
    }
}
