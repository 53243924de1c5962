//! `cargo xtask demo`, whose program verifies all results that it shows.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::Command;

/// A time-out that is far longer than the demo takes, unless it hangs.
const RUN_MAX: Duration = Duration::from_secs(300);

#[tokio::test]
async fn the_demo_succeeds_and_shows_each_part() -> Result<()> {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    let output = tokio::time::timeout(RUN_MAX, demo.kill_on_drop(true).output()).await.context("the demo hangs")??;
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    for part in [
        "an allowed read",
        "rejected by the scope",
        "a plugin that loops",
        "a plugin that steals",
        "A second bot, `coder`, with a sandbox for each conversation",
        "the bot calls wiki__search: 2 pages found; your token is [redacted]",
        "wiki__search is no longer in the bot's list",
        "the bot calls wiki__search: Permission denied: ",
        "the admin approves it, and wiki__search is back",
        "the run asks: Announce version 3.0 of acme/site?",
        "the key that started the run cannot answer its question",
        "the output of the run: {\"issue\":4}",
        "audit chain verified",
        "the token does not occur in the answers, the audit, the API, the logs or the data folder",
    ] {
        assert!(shown.contains(part), "the demo does not show `{part}`: {shown}");
    }
    Ok(())
}
