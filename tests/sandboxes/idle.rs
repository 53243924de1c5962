//! Idle sandboxes are stopped, and sandboxes in use are not.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use monstrum_core::sandboxes::Conversation;
use monstrum_sandbox::{ExecRequest, Network, SandboxError};
use monstrum_store::{BotRow, SandboxStatus};
use serde_json::{Value, json};
use support::Asked;
use tokio_util::sync::CancellationToken;

use super::{Hosts, NOW, bot_in, conversation, on_both, words};
use crate::world::eventually;

const IDLE: Duration = Duration::from_secs(300);
const SECOND: Duration = Duration::from_secs(1);

on_both! {
    what_is_idle_is_stopped_and_keeps_its_files,
    what_runs_or_has_just_ended_is_not_idle,
    a_command_at_another_host_keeps_it_running,
    what_was_touched_in_this_moment_is_not_stopped,
    one_that_cannot_be_stopped_does_not_stop_the_sweep,
    a_workspace_has_an_idle_time_of_its_own,
    of_two_sweeps_one_stops,
    a_call_while_it_stops_waits_and_resumes,
    what_a_dead_host_left_half_done_is_stopped,
    a_network_that_was_taken_away_is_cut_off,
    a_call_does_not_get_a_network_that_was_taken_away,
    a_switch_that_is_off_stops_what_runs,
    it_is_done_in_the_background,
}

async fn settings(hosts: &Hosts, sandbox: Value) -> Result<()> {
    let mut row = hosts.store.workspace(hosts.workspace).await?.expect("it always exists");
    let before = row.updated_at;
    (row.sandbox, row.updated_at) = (Some(sandbox), before.plus_ms(1));
    assert!(hosts.store.update_workspace(&row, before).await?);
    Ok(())
}

async fn a_switch_that_is_off_stops_what_runs(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let other = bot_in(&hosts.store, hosts.workspace, "other").await?;
    let of_other = Conversation::new("app", "user", "others").expect("it is short and plain");
    host.exec(hosts.workspace, other, &of_other, ExecRequest::new("true"), None).await?;
    for chat in ["a", "b"] {
        hosts.exec(&host, chat, "true").await?;
    }
    let held = hosts.spawn_exec(&host, "b", "wait");
    hosts.double.running_execs(1).await;
    let stop = CancellationToken::new();
    let follows = tokio::spawn(Arc::clone(&host).follow_switches(stop.clone()));
    let before = hosts.store.bot(hosts.workspace, hosts.bot).await?.expect("it is there");
    let off = BotRow { use_agent_sandbox: false, ..before.clone() };
    assert!(hosts.store.update_bot(&off, before.updated_at).await?);
    host.switches_may_have_changed();
    eventually("all sandboxes of the bot are stopped", async || {
        Ok((hosts.rows().await? == "a stopped\nb stopped\nothers running").then_some(()))
    })
    .await?;
    assert_eq!(words(held.await?), "the sandbox was stopped or deleted while it was in use");
    stop.cancel();
    follows.await?;
    // A sandbox that was only opened for its files runs no command, so it is not stopped.
    let open = host.open(&hosts.row("a").await?).await?;
    host.stop_switched_off().await?;
    open.write("/workspace/a", "seen".into()).await?;
    assert_eq!(hosts.at_provider("a"), "running");
    open.exec(ExecRequest::new("true"), None).await?;
    host.stop_switched_off().await?;
    assert_eq!(hosts.at_provider("a"), "stopped");
    // The next sweep stops sandboxes that could not be stopped at the time of the switch.
    hosts.insert("late", |_| ()).await?;
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "a stopped\nb stopped\nlate stopped\nothers running");
    Ok(())
}

async fn what_is_idle_is_stopped_and_keeps_its_files(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let open = host.of_conversation(hosts.workspace, hosts.bot, &conversation("chat")).await?;
    open.write("/workspace/a", "kept".into()).await?;
    hosts.after(IDLE * 2);
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat running", "the sandbox with an open stream was stopped");
    drop(open);
    hosts.after(IDLE - SECOND);
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat running");
    hosts.after(SECOND);
    host.sweep().await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.at_provider("chat")), ("chat stopped", "stopped"));
    host.sweep().await?;
    assert_eq!(hosts.double.asked(Asked::Stop), 1);
    let open = host.open(&hosts.row("chat").await?).await?;
    assert_eq!(open.stat("/workspace/a").await?.size, 4);
    assert_eq!(hosts.rows().await?, "chat running");
    Ok(())
}

async fn what_runs_or_has_just_ended_is_not_idle(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let call = hosts.spawn_exec(&host, "chat", "wait");
    hosts.double.running_execs(1).await;
    hosts.after(IDLE * 3);
    host.sweep().await?;
    hosts.after(IDLE * 3);
    hosts.double.finish();
    call.await??;
    host.sweep().await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.double.asked(Asked::Stop)), ("chat running", 0));
    hosts.after(IDLE);
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat stopped");
    Ok(())
}

async fn a_command_at_another_host_keeps_it_running(hosts: Hosts) -> Result<()> {
    let (one, two) = (hosts.another("node-1", true).await?, hosts.another("node-2", true).await?);
    let call = hosts.spawn_exec(&one, "chat", "wait");
    hosts.double.running_execs(1).await;
    hosts.after(IDLE - SECOND);
    one.note_uses().await?;
    hosts.after(IDLE - SECOND);
    two.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat running");
    // A dead host records no further use of its sandbox.
    hosts.after(SECOND);
    two.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat stopped");
    assert_eq!(call.await??.termination.as_str(), "lost");
    Ok(())
}

async fn what_was_touched_in_this_moment_is_not_stopped(hosts: Hosts) -> Result<()> {
    let row = hosts.insert("chat", |_| {}).await?;
    assert!(hosts.store.touch_sandbox(row.id, NOW.plus_ms(1)).await?);
    let until = NOW.plus_ms(1000);
    assert!(!hosts.store.claim_sandbox(&row, SandboxStatus::Stopping, "sweep", until).await?);
    let row = hosts.row("chat").await?;
    assert!(hosts.store.claim_sandbox(&row, SandboxStatus::Stopping, "sweep", until).await?);
    assert!(
        !hosts.store.touch_sandbox(row.id, NOW.plus_ms(2)).await?,
        "a use was recorded although the sandbox is being stopped"
    );
    Ok(())
}

async fn one_that_cannot_be_stopped_does_not_stop_the_sweep(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    for chat in ["a", "b", "c"] {
        hosts.exec(&host, chat, "true").await?;
    }
    hosts.double.fail_for(&hosts.name("b"), SandboxError::unavailable("it is busy"));
    hosts.after(IDLE);
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "a stopped\nb running (it is busy)\nc stopped");
    hosts.double.mend();
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "a stopped\nb stopped\nc stopped");
    Ok(())
}

async fn a_workspace_has_an_idle_time_of_its_own(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "chat", "true").await?;
    settings(&hosts, json!({ "idle_s": 1000 })).await?;
    hosts.after(IDLE * 2);
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat running");
    settings(&hosts, json!({ "idle_s": 5 })).await?;
    host.sweep().await?;
    hosts.exec(&host, "chat", "true").await?;
    hosts.after(SECOND * 5);
    host.sweep().await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.double.asked(Asked::Stop)), ("chat stopped", 2));
    Ok(())
}

async fn of_two_sweeps_one_stops(hosts: Hosts) -> Result<()> {
    let (one, two) = (hosts.another("node-1", true).await?, hosts.another("node-2", true).await?);
    for chat in ["a", "b", "c", "d", "e"] {
        hosts.exec(&one, chat, "true").await?;
    }
    hosts.after(IDLE);
    let (at_one, at_two) = tokio::join!(one.sweep(), two.sweep());
    at_one?;
    at_two?;
    assert_eq!(hosts.double.asked(Asked::Stop), 5);
    assert_eq!(hosts.rows().await?, "a stopped\nb stopped\nc stopped\nd stopped\ne stopped");
    Ok(())
}

async fn a_call_while_it_stops_waits_and_resumes(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "chat", "true").await?;
    hosts.after(IDLE);
    hosts.double.hang(Asked::Stop);
    let sweep = tokio::spawn({
        let host = host.clone();
        async move { host.sweep().await }
    });
    hosts.double.reached(Asked::Stop, 1).await;
    let call = hosts.spawn_exec(&host, "chat", "echo hello");
    hosts.double.mend();
    assert_eq!(call.await??.stdout.text, "hello\n");
    sweep.await??;
    assert_eq!((hosts.rows().await?.as_str(), hosts.double.created()), ("chat running", 1));
    Ok(())
}

async fn what_a_dead_host_left_half_done_is_stopped(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let left = [SandboxStatus::Creating, SandboxStatus::Stopping, SandboxStatus::Error];
    for status in left {
        hosts
            .insert(status.as_str(), |row| {
                row.status = status;
                row.operation = (status != SandboxStatus::Error).then(|| "of the dead".to_owned());
                row.operation_until = row.operation.as_ref().map(|_| NOW.plus_ms(400_000));
            })
            .await?;
        hosts.double.plant(&hosts.name(status.as_str()));
    }
    hosts.after(IDLE);
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "creating creating, claimed\nerror stopped\nstopping stopping, claimed");
    hosts.after(IDLE);
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "creating stopped\nerror stopped\nstopping stopped");
    assert!(hosts.double.states().values().all(|state| *state == "stopped"), "{:?}", hosts.double.states());
    Ok(())
}

async fn a_network_that_was_taken_away_is_cut_off(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    settings(&hosts, json!({ "network": "full", "limits": { "memory_mib": 512 } })).await?;
    let call = hosts.spawn_exec(&host, "chat", "wait");
    hosts.double.running_execs(1).await;
    let spec = hosts.double.spec(&hosts.name("chat")).expect("it runs");
    assert_eq!((spec.network, spec.limits.memory_mib, spec.limits.cpu_millis), (Network::Full, 512, 1000));
    host.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat running");
    settings(&hosts, json!({})).await?;
    host.sweep().await?;
    assert_eq!(words(call.await?), "the sandbox was stopped or deleted while it was in use");
    assert_eq!(hosts.rows().await?, "chat stopped");
    Ok(())
}

async fn a_call_does_not_get_a_network_that_was_taken_away(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    settings(&hosts, json!({ "network": "full" })).await?;
    hosts.exec(&host, "chat", "true").await?;
    settings(&hosts, json!({ "network": "none" })).await?;
    hosts.exec(&host, "chat", "true").await?;
    assert_eq!(hosts.double.spec(&hosts.name("chat")).map(|spec| spec.network), Some(Network::None));
    assert_eq!(hosts.double.asked(Asked::Stop), 1);
    settings(&hosts, json!({ "network": "full" })).await?;
    hosts.double.crash(&hosts.name("chat"));
    hosts.exec(&host, "chat", "true").await?;
    // Settings that cannot be read permit nothing.
    settings(&hosts, json!({ "network": "everything" })).await?;
    assert_eq!(words(hosts.exec(&host, "chat", "true").await), "the database cannot be used");
    assert_eq!(hosts.rows().await?, "chat stopped");
    Ok(())
}

async fn it_is_done_in_the_background(hosts: Hosts) -> Result<()> {
    let (host, stop) = (hosts.host(), CancellationToken::new());
    let following = [
        tokio::spawn(host.clone().follow_idle(stop.clone())),
        tokio::spawn(host.clone().follow_uses(stop.clone())),
        tokio::spawn(host.clone().follow_start(stop.clone())),
    ];
    settings(&hosts, json!({ "network": "full" })).await?;
    let call = hosts.spawn_exec(&host, "chat", "wait");
    hosts.double.running_execs(1).await;
    settings(&hosts, json!({ "network": "none" })).await?;
    host.settings_have_changed();
    assert_eq!(words(call.await?), "the sandbox was stopped or deleted while it was in use");
    hosts.double.reached(Asked::Stop, 1).await;
    stop.cancel();
    for task in following {
        task.await?;
    }
    assert_eq!(hosts.rows().await?, "chat stopped");
    Ok(())
}
