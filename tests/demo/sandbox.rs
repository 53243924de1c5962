//! A conversation with a sandbox: a command writes a file, the idle sandbox is stopped, the next command resumes it in
//! the same state, and the files are downloaded.

use std::io::Cursor;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Api;
use tokio::time::Instant;

/// The shortest idle time and sweep interval that the server accepts, and a small disk, which is quickly searched for
/// secrets.
pub(crate) const ARGUMENTS: [&str; 3] = ["--sandbox-idle-s=5", "--sandbox-sweep-s=1", "--sandbox-disk-mib=32"];
/// The maximum time that the demo waits for the stop.
const STOPPED_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);

/// Shows the sandbox if this machine supports sandboxes.
pub(crate) async fn show(api: &Api) -> Result<()> {
    println!("A second bot, `coder`, with a sandbox for each conversation:\n");
    let bot = api.bot("coder").await?;
    let (status, body) = api.patch(&format!("/api/bots/{bot}"), &json!({ "use_agent_sandbox": true })).await?;
    ensure!(status == 200, "the sandbox switch was not turned on: {body}");
    let conversation = Conversation { api, bot };
    println!("  the first command creates its sandbox …");
    let first =
        conversation.ask("mkdir -p site && echo '<h1>hello</h1>' >site/index.html && id -un && ls site").await?;
    if first["code"] == "unavailable" {
        println!("  sandboxes are not available on this machine: {}", first["message"].as_str().unwrap_or_default());
        println!("  (`monstrum sandbox doctor` reports the missing requirements)\n");
        return Ok(());
    }
    told("writes a file", &first, "root\nindex.html\n")?;
    told(
        "has no network",
        &conversation.ask("ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -c :").await?,
        "1\n",
    )?;
    println!("  the sandbox is idle; every second, the reaper stops sandboxes that are idle for 5 s …");
    let waited = conversation.await_stop().await?;
    println!("  the reaper stopped the sandbox after {:.1} s of idle time", waited.as_secs_f64());
    told("is resumed by the next command", &conversation.ask("cat site/index.html").await?, "<h1>hello</h1>\n")?;
    let names = conversation.download().await?;
    ensure!(names == ["index.html"], "the archive contains {names:?}");
    println!("  the folder was downloaded as a ZIP: {}\n", names.join(", "));
    Ok(())
}

struct Conversation<'a> {
    api: &'a Api,
    bot: String,
}

impl Conversation<'_> {
    async fn ask(&self, command: &str) -> Result<Value> {
        let chat = json!({ "app_id": "demo", "user_id": "visitor", "chat_id": "1" });
        let body = json!({ "params": { "command": command }, "chat": chat });
        let (status, answer) =
            self.api.post(&format!("/api/bots/{}/tools/sandbox_shell/call", self.bot), &body).await?;
        ensure!(status == 200, "{answer}");
        Ok(answer)
    }

    /// Waits until the sandbox is stopped, and returns the waiting time.
    async fn await_stop(&self) -> Result<Duration> {
        let began = Instant::now();
        loop {
            let (_, rows) = self.api.get("/api/sandboxes?app_id=demo&chat_id=1").await?;
            if rows["items"][0]["status"] == "stopped" {
                return Ok(began.elapsed());
            }
            ensure!(began.elapsed() < STOPPED_MAX, "the sandbox was not stopped in time: {rows}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the names in the archive of the sandbox's folder.
    async fn download(&self) -> Result<Vec<String>> {
        let body = json!({ "appId": "demo", "chatId": "1", "path": "/workspace/site" });
        let request = self.api.request(reqwest::Method::POST, "/api/core/ai/sandbox/download").json(&body);
        let bytes = request.send().await?.error_for_status()?.bytes().await?;
        let archive = zip::ZipArchive::new(Cursor::new(bytes)).context("the download is not a ZIP")?;
        archive.file_names().map(|name| Ok(name?.into_owned())).collect()
    }
}

fn told(what: &str, answer: &Value, output: &str) -> Result<()> {
    let data = &answer["data"];
    ensure!(data["exitCode"] == 0 && data["stdout"] == output, "{what}: unexpected result: {answer}");
    println!("  the sandbox {what} ({} ms)", data["durationMs"]);
    Ok(())
}
