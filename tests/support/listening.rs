//! Servers that are programs of their own. They print the URL on which they listen. They end when the process that started
//! them ends, because that process holds the other end of their standard input.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// The maximum start time. An interpreter reads a few hundred files, and the machine may be busy.
const START_MAX: Duration = Duration::from_secs(60);
const LISTENING: &str = "listening on ";

/// Starts a server and waits until it listens. Returns its URL. Dropping the process stops it.
pub(crate) async fn start(command: Command) -> Result<(String, Child)> {
    start_within(command, START_MAX).await
}

/// Like [`start`], with another maximum start time.
pub(crate) async fn start_within(mut command: Command, max: Duration) -> Result<(String, Child)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    let mut lines = BufReader::new(child.stdout.take().context("the server has no standard output")?).lines();
    let url = async {
        while let Some(line) = lines.next_line().await? {
            if let Some(url) = line.strip_prefix(LISTENING) {
                return Ok(url.to_owned());
            }
        }
        bail!("the server has ended")
    };
    let url = tokio::time::timeout(max, url).await.context("the server did not start in time").flatten();
    let url = url.with_context(|| format!("cannot start {command:?}"))?;
    // The rest of the output is discarded, but must be read so that the server does not block.
    tokio::spawn(async move { while matches!(lines.next_line().await, Ok(Some(_))) {} });
    Ok((url, child))
}
