//! `monstrum plugin dev`: every saved change is built and loaded, and every call is reported.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::{Api, Server};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::kit::{BUILDING, RETRIES, items, weather};

/// A time-out for the build of a plugin. The first build includes all dependencies.
const TOLD_MAX: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(50);

/// The running command. Dropping the value kills it.
struct Dev {
    child: Child,
    printed: Arc<Mutex<String>>,
    /// The number of bytes of the output that were already examined.
    read: usize,
}

impl Dev {
    fn start(folder: &Path, temporary: &Path) -> Result<Dev> {
        let mut command = Command::new(support::program()?);
        command.args(["plugin", "dev"]).arg(folder).env("TMPDIR", temporary).env_remove("CARGO_TARGET_DIR");
        command.envs([RETRIES]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let mut child = command.spawn().context("cannot run monstrum")?;
        let printed = Arc::<Mutex<String>>::default();
        tokio::spawn(collect(child.stdout.take().context("no output")?, Arc::clone(&printed)));
        tokio::spawn(collect(child.stderr.take().context("no errors")?, Arc::clone(&printed)));
        Ok(Dev { child, printed, read: 0 })
    }

    fn all(&self) -> String {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a new line that begins with `start`, and returns the whole line.
    async fn line(&mut self, start: &str) -> Result<String> {
        let until = Instant::now() + TOLD_MAX;
        loop {
            let all = self.all();
            let mut at = self.read;
            for line in all[self.read..].split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                at += line.len();
                if line.starts_with(start) {
                    self.read = at;
                    return Ok(line.trim_end().to_owned());
                }
            }
            if Instant::now() > until || self.child.try_wait()?.is_some() {
                bail!("no line begins with `{start}`:\n{all}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Sends Ctrl-C and returns the exit code.
    async fn interrupt(&mut self) -> Result<Option<i32>> {
        let pid = i32::try_from(self.child.id().context("the command has ended")?)?;
        kill_process(Pid::from_raw(pid).context("the id of the process is 0")?, Signal::INT)?;
        Ok(tokio::time::timeout(TOLD_MAX, self.child.wait()).await??.code())
    }
}

async fn collect(source: impl AsyncRead + Unpin, printed: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(source).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
        printed.push_str(&line);
        printed.push('\n');
    }
}

/// Changes a file of the plugin as an author would.
fn save(file: &Path, from: &str, to: &str) -> Result<()> {
    let text = fs::read_to_string(file)?;
    if !text.contains(from) {
        bail!("{} does not contain `{from}`", file.display());
    }
    Ok(fs::write(file, text.replacen(from, to, 1))?)
}

#[tokio::test]
async fn a_save_is_built_loaded_and_told_of() -> Result<()> {
    let _one_at_a_time = BUILDING.lock().await;
    let server = Server::prepare(&[])?;
    let folder = weather(&server).await?;
    let temporary = server.home().join("temporary");
    fs::create_dir(&temporary)?;
    let (code, manifest) = (folder.join("src/lib.rs"), folder.join("monstrum.yaml"));
    let mut dev = Dev::start(&folder, &temporary)?;
    let url = dev.line("listening on ").await?.replace("listening on ", "");
    let key = PathBuf::from(dev.line("the root key is in ").await?.replace("the root key is in ", ""));
    let first = dev.line("weather 0.1.0 is loaded, sha256:").await?;
    let curl = dev.line("  curl -H").await?;
    let api = Api::new(&url, fs::read_to_string(&key)?.trim())?;
    let bot =
        curl.split("/api/bots/").nth(1).and_then(|rest| rest.split('/').next()).context("the output names no bot")?;
    assert!(curl.contains("/tools/weather_get_item/call"), "{curl}");

    let id = json!({ "id": "a-7" });
    let answer = api.call(bot, "weather_get_item", &json!({})).await?;
    assert_eq!(answer["code"], "invalid_params", "{answer}");
    dev.line("call weather_get_item: error (invalid_params), ").await?;

    save(
        &code,
        "    let id: String",
        "    monstrum_sdk::log::write(monstrum_sdk::log::Level::Info, \"reading\", &[]);\n    let id: String",
    )?;
    let second = dev.line("weather 0.1.0 is loaded, sha256:").await?;
    assert_ne!(first, second);
    let upstream = items().await?;
    let bound = api.bot("another").await?;
    api.grant(&bound, "weather", (&upstream, "a-dummy-token"), &["*"], &json!({})).await?;
    let answer = api.call(&bound, "weather_get_item", &id).await?;
    assert_eq!(answer["data"]["id"], "a-7", "{answer}");
    dev.line("call weather_get_item: success, ").await?;
    assert_eq!(dev.line("  info").await?, "  info plugin reading");

    // If a version does not build or load, the previous version remains in force.
    save(&code, "struct Plugin;", "struct Plugin")?;
    dev.line("error: the plugin was not built").await?;
    save(&code, "struct Plugin", "struct Plugin;")?;
    dev.line("weather 0.1.0 is loaded").await?;
    save(&manifest, "operation: item.read", "operations: item.read")?;
    dev.line("error: ").await?;
    assert_eq!(api.call(&bound, "weather_get_item", &id).await?["status"], "success");

    // Additional permissions that a version requests are reported and granted.
    save(&manifest, "operations: item.read", "operation: item.read")?;
    dev.line("weather 0.1.0 is loaded").await?;
    save(&manifest, "executor:\n", "executor:\n  egress: [\"https://files.example.com\"]\n")?;
    dev.line("approved: ").await?;
    dev.line("weather 0.1.0 is loaded").await?;

    assert_eq!(dev.interrupt().await?, Some(0), "{}", dev.all());
    assert_eq!(fs::read_dir(&temporary)?.count(), 0, "the folders of the command still exist");
    assert!(!dev.all().contains("a-dummy-token"), "{}", dev.all());
    Ok(())
}
