//! The recorded commands of a sandbox: their states, their limits, who reads them, and their end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_core::policy::row_seals;
use monstrum_host::config::Switch;
use monstrum_store::{SealedColumn, StoreOptions};
use reqwest::Method;
use rusqlite::Connection;
use serde_json::{Value, json};
use support::Api;

use crate::cli::told;
use crate::http::send;
use crate::sandbox::Doors;
use crate::world::{eventually, text};

/// Returns the recorded commands of the only sandbox, newest first.
async fn commands(doors: &Doors) -> Result<Vec<Value>> {
    let path = format!("/api/sandboxes/{}/commands", text(&doors.sandbox().await?["id"]));
    let (status, list) = doors.api.get(&path).await?;
    ensure!(status == 200, "{status} {list}");
    Ok(list["items"].as_array().context("a list")?.clone())
}

fn line(command: &Value) -> String {
    let mut command = command.clone();
    let fields = command.as_object_mut().expect("a command is an object");
    for varying in ["request_id", "started_at"] {
        fields.remove(varying).expect("the field exists");
    }
    command.to_string()
}

#[tokio::test]
async fn commands_are_recorded_with_their_state_and_outputs() -> Result<()> {
    let doors = Doors::open().await?;
    let mut requests = Vec::new();
    for command in ["echo hello", "fail 3", "slow", "lost", "what"] {
        requests.insert(0, text(&doors.shell(command).await?["request_id"]).to_owned());
    }
    let commands = commands(&doors).await?;
    assert_snapshot!(commands.iter().map(line).collect::<Vec<_>>().join("\n"), @r#"
    {"duration_ms":7,"command":"what","state":"failed","exit_code":127,"stdout":"","stderr":"bash: what: command not found\n","truncated":false}
    {"duration_ms":7,"command":"lost","state":"lost","exit_code":null,"stdout":"","stderr":"","truncated":false}
    {"duration_ms":7,"command":"slow","state":"timed_out","exit_code":124,"stdout":"begun\n","stderr":"","truncated":false}
    {"duration_ms":7,"command":"fail 3","state":"failed","exit_code":3,"stdout":"","stderr":"failed\n","truncated":false}
    {"duration_ms":7,"command":"echo hello","state":"success","exit_code":0,"stdout":"hello\n","stderr":"","truncated":false}
    "#);
    let recorded: Vec<&str> = commands.iter().map(|command| text(&command["request_id"])).collect();
    assert_eq!(recorded, requests, "the newest is first");
    Ok(())
}

/// Stops the only sandbox, and makes the provider unavailable, so that it cannot start again.
async fn stopped_without_a_provider(doors: &Doors) -> Result<()> {
    doors.switch(&doors.bot, false).await?;
    eventually("the sandbox stops", async || Ok((doors.sandbox().await?["status"] == "stopped").then_some(()))).await?;
    doors.switch(&doors.bot, true).await?;
    doors.machines.is_down.store(true, Ordering::SeqCst);
    Ok(())
}

#[tokio::test]
async fn a_command_that_cannot_start_is_recorded_with_the_reason() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo first").await?;
    stopped_without_a_provider(&doors).await?;
    let refused = doors.shell("echo down").await?;
    assert_eq!(refused["code"], "unavailable", "{refused}");
    let commands = commands(&doors).await?;
    assert_eq!((text(&commands[0]["state"]), text(&commands[0]["command"])), ("refused", "echo down"));
    assert_eq!(commands[0]["stderr"], refused["message"]);
    assert_eq!((&commands[0]["exit_code"], &commands[0]["duration_ms"]), (&Value::Null, &Value::Null));
    Ok(())
}

#[tokio::test]
async fn a_command_is_listed_while_it_runs_and_is_lost_with_its_call() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo first").await?;
    let hang = async { doors.shell("hang").await };
    let watch = async {
        let state = async |wanted: &str| {
            eventually(wanted, async || Ok((commands(&doors).await?[0]["state"] == wanted).then_some(()))).await
        };
        state("running").await?;
        doors.switch(&doors.bot, false).await?;
        state("lost").await
    };
    let (answer, watched) = tokio::join!(hang, watch);
    watched?;
    assert_eq!(answer?["status"], "permission_denied");
    Ok(())
}

#[tokio::test]
async fn a_long_output_keeps_its_start_and_its_end() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("bytes 65536").await?;
    doors.shell("lines 100000").await?;
    // The provider keeps the last MiB only.
    doors.shell("bytes 2000000").await?;
    let commands = commands(&doors).await?;
    let (flood, lines, fits) = (&commands[0], &commands[1], &commands[2]);
    assert_eq!((text(&fits["stdout"]).len(), &fits["truncated"]), (65_536, &json!(false)));
    let stdout = text(&lines["stdout"]);
    assert!(stdout.len() <= 65_536 && stdout.len() > 65_000, "{}", stdout.len());
    assert!(stdout.starts_with("1\n2\n3\n") && stdout.ends_with("\n99999\n100000\n"));
    assert!(stdout.contains(" bytes were cut here]\n") && lines["truncated"] == true);
    let stdout = text(&flood["stdout"]);
    assert!(stdout.starts_with("[951424 bytes were cut here]\n"), "{}", &stdout[..60]);
    assert!(stdout.len() <= 65_536 && flood["truncated"] == true);
    Ok(())
}

#[tokio::test]
async fn the_newest_commands_are_kept() -> Result<()> {
    let doors = Doors::open().await?;
    for number in 0..203 {
        doors.shell(&format!("echo {number}")).await?;
    }
    let base = format!("/api/sandboxes/{}/commands", text(&doors.sandbox().await?["id"]));
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = doors.api.get(&format!("{base}?limit=1000&cursor={cursor}")).await?;
        ensure!(status == 200, "{page}");
        let items = page["items"].as_array().context("a list")?;
        assert!(items.len() <= 50, "{} commands on a page", items.len());
        found.extend(items.iter().map(|command| text(&command["command"]).to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    let expected: Vec<String> = (3..203).rev().map(|number| format!("echo {number}")).collect();
    assert_eq!(found, expected);
    Ok(())
}

#[tokio::test]
async fn only_operators_of_the_workspace_read_the_commands() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo mine").await?;
    let path = format!("/api/sandboxes/{}/commands", text(&doors.sandbox().await?["id"]));
    let (status, workspace) = doors.api.post("/api/workspaces", &json!({ "name": "other" })).await?;
    ensure!(status == 201, "{workspace}");
    let foreign = doors.api.request(Method::GET, &path).header("Monstrum-Workspace", "other");
    let (status, _, answer) = send(foreign).await?;
    assert_eq!(status, 404, "{answer}");
    assert!(!answer.to_string().contains("mine"), "{answer}");
    assert_eq!(doors.key_of(&doors.bot).await?.get(&path).await?.0, 403);
    let operator: Api = doors.api.with_key(&doors.api.new_key("operator", None).await?);
    assert_eq!(operator.get(&path).await?.0, 200);
    for wrong in ["cursor=x", "limit=0", "unknown=1"] {
        assert_eq!(doors.api.get(&format!("{path}?{wrong}")).await?.0, 422, "{wrong}");
    }
    Ok(())
}

#[tokio::test]
async fn a_command_that_was_refused_is_not_in_the_conversation_of_another_user() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo mine").await?;
    let other = json!({ "app_id": "a", "user_id": "other", "chat_id": "c" });
    let params = json!({ "command": "echo theirs" });
    stopped_without_a_provider(&doors).await?;
    let refused = doors.call_as(&doors.bot, "sandbox_shell", &params, Some(other), "en").await?;
    assert_ne!(refused["status"], "success", "{refused}");
    assert_eq!(commands(&doors).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn outputs_are_sealed_and_gone_with_their_sandbox() -> Result<()> {
    const CANARY: &str = "canary-7d1f-in-the-output";
    let doors = Doors::open().await?;
    doors.shell(&format!("echo {CANARY}")).await?;
    assert_eq!(commands(&doors).await?[0]["stdout"], format!("{CANARY}\n"));
    let data = doors.home.data_dir();
    let options = StoreOptions::sqlite(data.join("monstrum.db"));
    let store = row_seals::open_with_key_file(options, &data.join("master.key")).await?;
    assert_eq!(store.count_sealed(SealedColumn::SandboxOutputs).await?, 1);
    let page = store.sealed_records(SealedColumn::SandboxOutputs, None, 9).await?;
    assert!(!page.records[0].sealed.contains(CANARY));
    let id = text(&doors.sandbox().await?["id"]).to_owned();
    assert_eq!(doors.api.delete(&format!("/api/sandboxes/{id}")).await?.0, 202);
    eventually("the sandbox is deleted", async || {
        Ok((doors.api.get(&format!("/api/sandboxes/{id}/commands")).await?.0 == 404).then_some(()))
    })
    .await?;
    assert_eq!(store.count_sealed(SealedColumn::SandboxOutputs).await?, 0);
    doors.shell("echo anew").await?;
    assert_eq!(commands(&doors).await?.len(), 1, "the new sandbox has its own commands");
    store.close().await;
    Ok(())
}

#[tokio::test]
async fn nothing_is_recorded_if_the_setting_is_off() -> Result<()> {
    let doors = Doors::set(|flags| flags.sandbox_keep_outputs = Some(Switch::Off)).await?;
    assert_eq!(doors.shell("echo x").await?["status"], "success");
    assert!(commands(&doors).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_failure_to_record_does_not_fail_the_command() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo before").await?;
    // The list waits until the command is stored, which is done beside the answer.
    assert_eq!(commands(&doors).await?.len(), 1);
    let path = format!("/api/sandboxes/{}/commands", text(&doors.sandbox().await?["id"]));
    let connection = Connection::open(doors.home.data_dir().join("monstrum.db"))?;
    connection.busy_timeout(Duration::from_secs(10))?;
    // `alter table` reads before it writes, so it fails if the server writes in between.
    let rename = |from: &str, to: &str| {
        connection.execute_batch(&format!("begin immediate; alter table {from} rename to {to}; commit"))
    };
    rename("sandbox_outputs", "elsewhere")?;
    let answer = doors.shell("echo x").await?;
    assert_eq!((text(&answer["status"]), text(&answer["data"]["stdout"])), ("success", "x\n"), "{answer}");
    // Here it waits until the attempt to store it has ended.
    let (status, _) = doors.api.get(&path).await?;
    assert!(status >= 500, "{status}");
    let (_, _, metrics) = send(doors.api.request(Method::GET, "/metrics")).await?;
    assert!(text(&metrics).contains("monstrum_sandbox_outputs_lost_total"), "the failure is counted");
    rename("elsewhere", "sandbox_outputs")?;
    doors.shell("echo after").await?;
    let outputs: Vec<String> = commands(&doors).await?.iter().map(|one| text(&one["stdout"]).to_owned()).collect();
    assert_eq!(outputs, ["after\n", "before\n"]);
    Ok(())
}

#[tokio::test]
async fn a_record_of_another_command_is_not_shown() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo one").await?;
    doors.shell("echo two").await?;
    assert_eq!(commands(&doors).await?.len(), 2);
    let connection = Connection::open(doors.home.data_dir().join("monstrum.db"))?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.execute("update sandbox_outputs set sealed = (select min(sealed) from sandbox_outputs)", [])?;
    let path = format!("/api/sandboxes/{}/commands", text(&doors.sandbox().await?["id"]));
    let (status, body) = doors.api.get(&path).await?;
    assert!(status == 500 && !body.to_string().contains("echo"), "{status} {body}");
    Ok(())
}

#[tokio::test]
async fn sandboxes_are_listed_by_their_bot() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo x").await?;
    let other = doors.api.bot("other").await?;
    let count = async |api: &Api, bot: &str| -> Result<Option<usize>> {
        let (status, list) = api.get(&format!("/api/sandboxes?bot_id={bot}")).await?;
        ensure!(status == 200, "{status} {list}");
        Ok(list["items"].as_array().map(Vec::len))
    };
    assert_eq!(count(&doors.api, &doors.bot).await?, Some(1));
    assert_eq!(count(&doors.api, &other).await?, Some(0));
    let key = doors.key_of(&other).await?;
    assert_eq!((count(&key, &doors.bot).await?, count(&key, &other).await?), (Some(0), Some(0)));
    assert_eq!(doors.api.get("/api/sandboxes?bot_id=x").await?.0, 422);
    Ok(())
}

#[tokio::test]
async fn outputs_are_sealed_anew_with_a_new_master_key() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo x").await?;
    assert_eq!(commands(&doors).await?.len(), 1);
    let Doors { running, home, .. } = doors;
    running.stop_handle().cancel();
    running.stopped().await;
    let data = home.data_dir();
    let sealed = async || -> Result<String> {
        let options = StoreOptions::sqlite(data.join("monstrum.db"));
        let store = row_seals::open_with_key_file(options, &data.join("master.key")).await?;
        let page = store.sealed_records(SealedColumn::SandboxOutputs, None, 9).await?;
        store.close().await;
        Ok(page.records.first().context("a record")?.sealed.clone())
    };
    let before = sealed().await?;
    let rotated = told(&home, &["vault", "rotate"]).await?;
    assert!(rotated.contains("[exit 0]") && !rotated.contains("cannot be decrypted"), "{rotated}");
    assert_ne!(sealed().await?, before);
    Ok(())
}
