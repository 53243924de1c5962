//! A server that is killed in the midst of each thing that it does with a sandbox, ten times each.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::remains::marked;
use super::{MARKED, Machine, shell};
use crate::world::eventually;

const TIMES: u64 = 10;

/// A marker that no other test has.
fn marker(test: u32, round: u64) -> String {
    format!("{MARKED}{test}{round}{:05}", std::process::id() % 100_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn during_an_exec() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    machine.text("c", "echo kept >kept").await?;
    for round in 0..TIMES {
        let marker = marker(1, round);
        let command = format!("setsid {marker} & {marker} & {marker}");
        let (api, bot) = (machine.api.clone(), machine.bot.clone());
        let call = tokio::spawn(async move { shell(&api, &bot, "c", &command).await });
        eventually("the command runs", async || Ok((marked(&marker) >= 3).then_some(()))).await?;
        machine.server.kill().await?;
        ensure!(call.await?.is_err(), "a call was answered by a server that is dead");
        machine.remains().gone().await?;
        ensure!(marked(&marker) == 0, "round {round}: a process outlived its server");
        machine.restart().await?;
        eventually("the row says that it does not run", async || {
            Ok((machine.status("c").await?.as_deref() == Some("stopped")).then_some(()))
        })
        .await?;
        ensure!(machine.text("c", "cat kept").await? == "kept\n");
    }
    stop(machine).await
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_create() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    // The template is made by now, so that it is not that which is interrupted.
    machine.text("warm", "true").await?;
    for round in 0..TIMES {
        let chat = format!("c{round}");
        let (api, bot, own) = (machine.api.clone(), machine.bot.clone(), chat.clone());
        let call = tokio::spawn(async move { shell(&api, &bot, &own, "true").await });
        // A creation takes some 50 ms: this is in all of its parts.
        tokio::time::sleep(Duration::from_millis(7 * round)).await;
        machine.server.kill().await?;
        let _either_way = call.await?;
        machine.remains().gone().await?;
        machine.restart().await?;
        ensure!(machine.text(&chat, "echo works").await? == "works\n", "round {round}");
        ensure!(machine.remains().half_files().is_empty(), "{:?}", machine.remains().half_files());
    }
    let images = machine.remains().images() as u64;
    ensure!(images == TIMES + 1, "{images} images for {} conversations", TIMES + 1);
    stop(machine).await
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_stop() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    for round in 0..TIMES {
        // Much to write, so that the stop takes its time.
        machine.text("c", &format!("head -c 8M /dev/urandom >big; echo {round} >>rounds")).await?;
        let marker = marker(3, round);
        machine.text("c", &format!("(setsid {marker} >/dev/null 2>&1 &)")).await?;
        machine.server.signal(Signal::TERM)?;
        tokio::time::sleep(Duration::from_millis(3 * round)).await;
        // It may have ended by itself by now.
        let _ended = machine.server.signal(Signal::KILL);
        machine.server.ended().await?;
        machine.remains().gone().await?;
        ensure!(marked(&marker) == 0, "round {round}: a process outlived its server");
        machine.restart().await?;
        let rounds = machine.text("c", "cat rounds; [ $(stat -c %s big) = 8388608 ]").await?;
        ensure!(rounds.lines().count() as u64 == round + 1, "round {round}: {rounds}");
    }
    stop(machine).await
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_delete() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    for round in 0..TIMES {
        let chat = format!("c{round}");
        let marker = marker(4, round);
        machine.text(&chat, &format!("(setsid {marker} >/dev/null 2>&1 &)")).await?;
        let row = machine.row(&chat).await?.expect("it has a row");
        let path = format!("/api/sandboxes/{}", row["id"].as_str().expect("an id"));
        let (status, body) = machine.api.delete(&path).await?;
        ensure!(status == 202, "{status} {body}");
        tokio::time::sleep(Duration::from_millis(4 * round)).await;
        machine.server.kill().await?;
        machine.remains().gone().await?;
        ensure!(marked(&marker) == 0, "round {round}: a process outlived its sandbox");
        machine.restart().await?;
        eventually("it is gone", async || {
            Ok((machine.row(&chat).await?.is_none() && machine.remains().images() == 0).then_some(()))
        })
        .await?;
    }
    stop(machine).await
}

/// Ends the server as an operator does; then nothing is left either.
async fn stop(mut machine: Machine) -> Result<()> {
    machine.server.stop().await?;
    machine.remains().gone().await
}
