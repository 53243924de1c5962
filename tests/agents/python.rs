//! The example `examples/agent.py`, over PyPI `websockets`, which `cargo xtask test` installs in `target/mcp-clients`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use support::agent_example;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use super::ends::Cable;
use super::{Scene, ending};

/// The time-out for a step of the example, which waits up to some seconds before it connects again.
const STEP_MAX: Duration = Duration::from_secs(60);

/// The running example.
pub(super) struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    pub(super) fn start(scene: &Scene, url: &str) -> Result<Example> {
        let mut command = agent_example()?;
        command.env("MONSTRUM_URL", url).env("MONSTRUM_AGENT_KEY", &scene.key);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("python3 cannot be run")?;
        let output = child.stdout.take().context("the example has no output")?;
        Ok(Example { child, lines: BufReader::new(output).lines() })
    }

    /// Waits until the example prints this line.
    pub(super) async fn says(&mut self, line: &str) -> Result<()> {
        let wait = async {
            while let Some(printed) = self.lines.next_line().await? {
                if printed == line {
                    return Ok(());
                }
            }
            anyhow::bail!("the example ended without `{line}`")
        };
        tokio::time::timeout(STEP_MAX, wait).await.with_context(|| format!("the example does not print `{line}`"))?
    }

    /// Kills the process, so that it cannot close its socket in an orderly way.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.context("the example cannot be killed")
    }

    fn terminate(&self) -> Result<()> {
        let pid = self.child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
        rustix::process::kill_process(pid.context("the example has ended")?, rustix::process::Signal::TERM)?;
        Ok(())
    }
}

#[tokio::test]
async fn the_example_serves_reconnects_and_finishes_its_calls() -> Result<()> {
    let mut scene = Scene::start().await?;
    let cable = Cable::to(&scene.url()?).await?;
    let mut example = Example::start(&scene, &cable.url())?;
    let tools = ["lab__count_down", "lab__disk_usage"];
    scene.has(&tools).await?;
    let answer = scene.world.call("lab__disk_usage", &json!({"path": "/"})).await?;
    assert!(answer["data"]["total_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{answer}");
    let failed = scene.world.call("lab__disk_usage", &json!({"path": "/absent"})).await?;
    assert!(ending(&failed).starts_with("error plugin FileNotFoundError"), "{failed}");

    // The server restarts, and the example connects again.
    scene.world.server.stop().await?;
    scene.world.server.launch().await?;
    scene.world.api = scene.world.server.api()?;
    cable.plug(&scene.url()?);
    scene.has(&tools).await?;

    // The example finishes its calls before it ends.
    let call = scene.call("lab__count_down", &json!({"seconds": 2}));
    example.says("running count_down").await?;
    example.terminate()?;
    assert_eq!(call.await??["data"]["seconds"], 2);
    let status = tokio::time::timeout(STEP_MAX, example.child.wait()).await??;
    assert!(status.success(), "{status}");
    scene.has(&[]).await
}
