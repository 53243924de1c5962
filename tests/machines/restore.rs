//! Runs the commands of docs/backup.md as written, and checks that the conversations have their files afterwards.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Machine;
use crate::vault::backup::{commands, shell};

async fn findings(machine: &Machine) -> Result<Vec<String>> {
    let (_, report) = crate::cli::parsed(&machine.server, &["doctor"]).await?;
    let findings = report["findings"].as_array().context("the report has no findings")?;
    let of_sandboxes = findings.iter().filter(|finding| finding["about"] == "sandboxes");
    Ok(of_sandboxes.map(|finding| format!("{}: {}", finding["severity"], finding["what"])).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_as_documented_has_the_files_of_the_conversations() -> Result<()> {
    for (how, is_running) in [("Back up a running server", true), ("Back up a stopped server", false)] {
        let mut machine = Machine::start(&["--sandbox-idle-s=5", "--sandbox-sweep-s=1"]).await?;
        machine.text("c", "echo kept >file; sync").await?;
        let stopped = async || Ok((machine.status("c").await?.as_deref() == Some("stopped")).then_some(()));
        crate::world::eventually("the sandbox is stopped", stopped).await?;
        if !is_running {
            machine.server.stop().await?;
        }
        shell(machine.server.home(), &commands(how)?).await?;
        if is_running {
            machine.server.stop().await?;
        }
        shell(machine.server.home(), "mv data evidence").await?;
        shell(machine.server.home(), &commands("Restore")?).await?;
        machine.restart().await?;
        ensure!(machine.text("c", "cat file").await? == "kept\n", "{how}");
        ensure!(findings(&machine).await?.is_empty(), "{how}");
        machine.server.stop().await?;
        machine.remains().gone().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn images_that_were_not_restored_leave_lost_sandboxes_and_not_empty_ones() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    machine.text("c", "echo kept >file").await?;
    machine.server.stop().await?;
    shell(machine.server.home(), "cp -a data/sandbox away && rm -r data/sandbox").await?;
    let found = findings(&machine).await?;
    ensure!(found.len() == 1 && found[0].contains("broken") && found[0].contains("1 sandbox are missing"), "{found:?}");
    machine.restart().await?;
    for _ in 0..2 {
        let answer = machine.shell("c", "ls").await?;
        let data = &answer["data"];
        ensure!(answer["code"] == "unavailable" && data["exitCode"] == -1 && data["stdout"] == "", "{answer}");
        let message = answer["message"].as_str().context("a message")?;
        ensure!(message.contains("files of this conversation's sandbox are missing"), "{answer}");
        ensure!(machine.status("c").await?.as_deref() == Some("lost"));
    }
    let body = json!({ "action": "list", "appId": "a", "chatId": "c", "path": "/workspace" });
    let (status, problem) = machine.api.post("/api/core/ai/sandbox/file", &body).await?;
    ensure!(status == 409, "{status} {problem}");
    machine.server.stop().await?;
    shell(machine.server.home(), "cp -a --sparse=always away/boxes data/sandbox/").await?;
    machine.restart().await?;
    ensure!(machine.text("c", "cat file").await? == "kept\n", "the image was not restored");
    machine.server.stop().await?;
    machine.remains().gone().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_an_older_database_deletes_no_image() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    machine.text("c", "echo kept >file").await?;
    machine.server.stop().await?;
    // Restores the rows that the database had before the conversation.
    shell(
        machine.server.home(),
        "cp -p data/monstrum.db newer.db && sqlite3 data/monstrum.db 'delete from sandbox_instances'",
    )
    .await?;
    machine.restart().await?;
    ensure!(machine.row("c").await?.is_none(), "the older database contains the row");
    let found = findings(&machine).await?;
    ensure!(found.len() == 1 && found[0].contains("weak") && found[0].contains("sandbox/aside/"), "{found:?}");
    ensure!(machine.text("c", "ls -A").await?.is_empty(), "the new conversation did not get a new sandbox");
    machine.server.stop().await?;
    let rows = "attach 'newer.db' as newer; delete from sandbox_instances; \
                insert into sandbox_instances select * from newer.sandbox_instances";
    shell(machine.server.home(), &format!("rm data/sandbox/boxes/*/* && sqlite3 data/monstrum.db \"{rows}\"")).await?;
    machine.restart().await?;
    ensure!(machine.text("c", "cat file").await? == "kept\n", "the files of the sandbox were not restored");
    ensure!(findings(&machine).await?.is_empty());
    machine.server.stop().await?;
    machine.remains().gone().await
}
