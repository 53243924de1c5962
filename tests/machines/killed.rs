//! Kills a server during each operation on a sandbox, ten times for each operation.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::remains::marked;
use super::{MARKED, Machine, shell};
use crate::world::eventually;

const TIMES: u64 = 10;
/// The maximum number of rounds if no kill so far has interrupted the operation.
const TIMES_MAX: u64 = 30;

/// Returns the time at which a round kills the server, for an operation that takes `whole`. The times are spread evenly
/// over the operation for any number of rounds.
fn moment(whole: Duration, round: u64) -> Duration {
    const GOLDEN_RATIO: u64 = 618;
    whole.mul_f64((round * GOLDEN_RATIO % 1_000) as f64 / 1_000.0)
}

/// Returns a marker that no other test has.
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
        eventually("the command is running", async || Ok((marked(&marker) >= 3).then_some(()))).await?;
        machine.server.kill().await?;
        ensure!(call.await?.is_err(), "the killed server answered a call");
        machine.remains().gone().await?;
        ensure!(marked(&marker) == 0, "round {round}: a process of a sandbox outlived the server");
        machine.restart().await?;
        ensure!(
            machine.status("c").await?.as_deref() == Some("stopped"),
            "a row of the new server has the status `running`"
        );
        ensure!(machine.text("c", "cat kept").await? == "kept\n");
    }
    stop(machine).await
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_create() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    // Builds the template first, so that a kill interrupts the creation of a sandbox and not the build of the template.
    machine.text("warm", "true").await?;
    let began = Instant::now();
    machine.text("timed", "true").await?;
    let whole = began.elapsed();
    let (mut round, mut inside) = (0, 0);
    while round < TIMES || (inside == 0 && round < TIMES_MAX) {
        let chat = format!("c{round}");
        let images = machine.remains().images();
        let (api, bot, own) = (machine.api.clone(), machine.bot.clone(), chat.clone());
        let call = tokio::spawn(async move { shell(&api, &bot, &own, "true").await });
        tokio::time::sleep(moment(whole, round)).await;
        machine.server.kill().await?;
        let is_done = call.await?.is_ok();
        machine.remains().gone().await?;
        inside += u64::from(!is_done && machine.remains().images() > images);
        machine.restart().await?;
        ensure!(machine.text(&chat, "echo works").await? == "works\n", "round {round}");
        ensure!(machine.remains().half_files().is_empty(), "{:?}", machine.remains().half_files());
        round += 1;
    }
    ensure!(inside > 0, "none of the {round} kills interrupted a creation, which takes {whole:?}");
    let images = machine.remains().images() as u64;
    ensure!(images == round + 2, "{images} images for {} conversations", round + 2);
    stop(machine).await
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_stop() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    // The file is large, so that the stop takes long enough to be interrupted.
    const WRITE: &str = "head -c 8M /dev/urandom >big";
    machine.text("c", WRITE).await?;
    let began = Instant::now();
    machine.server.stop().await?;
    let whole = began.elapsed();
    machine.restart().await?;
    let (mut round, mut inside) = (0, 0);
    while round < TIMES || (inside == 0 && round < TIMES_MAX) {
        machine.text("c", &format!("{WRITE}; echo {round} >>rounds")).await?;
        let marker = marker(3, round);
        machine.text("c", &format!("(setsid {marker} >/dev/null 2>&1 &)")).await?;
        let begun = |output: &str| output.matches("shutting down").count();
        let begun_before = begun(&machine.server.output());
        machine.server.signal(Signal::TERM)?;
        tokio::time::sleep(moment(whole, round)).await;
        // The signal fails if the server has already ended.
        let sent = machine.server.signal(Signal::KILL);
        let status = machine.server.ended().await?;
        let is_killed = sent.is_ok() && status.signal() == Some(Signal::KILL.as_raw());
        inside += u64::from(is_killed && begun(&machine.server.output()) > begun_before);
        machine.remains().gone().await?;
        ensure!(marked(&marker) == 0, "round {round}: a process of a sandbox outlived the server");
        machine.restart().await?;
        let rounds = machine.text("c", "cat rounds; [ $(stat -c %s big) = 8388608 ]").await?;
        ensure!(rounds.lines().count() as u64 == round + 1, "round {round}: {rounds}");
        round += 1;
    }
    ensure!(inside > 0, "none of the {round} kills interrupted a stop, which takes {whole:?}");
    stop(machine).await
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_delete() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    machine.text("timed", "true").await?;
    let began = Instant::now();
    delete(&machine, "timed").await?;
    gone(&machine, "timed").await?;
    let whole = began.elapsed();
    let (mut round, mut inside) = (0, 0);
    while round < TIMES || (inside == 0 && round < TIMES_MAX) {
        let chat = format!("c{round}");
        let marker = marker(4, round);
        machine.text(&chat, &format!("(setsid {marker} >/dev/null 2>&1 &)")).await?;
        delete(&machine, &chat).await?;
        tokio::time::sleep(moment(whole, round)).await;
        machine.server.kill().await?;
        machine.remains().gone().await?;
        // An image that still exists shows that the kill has interrupted the deletion.
        inside += machine.remains().images();
        ensure!(marked(&marker) == 0, "round {round}: a process outlived its sandbox");
        machine.restart().await?;
        gone(&machine, &chat).await?;
        round += 1;
    }
    ensure!(inside > 0, "none of the {round} kills interrupted a deletion, which takes {whole:?}");
    stop(machine).await
}

/// Requests the deletion of a conversation's sandbox. The server deletes it later.
async fn delete(machine: &Machine, chat: &str) -> Result<()> {
    let row = machine.row(chat).await?.context("the conversation has no row")?;
    let path = format!("/api/sandboxes/{}", row["id"].as_str().context("an id")?);
    let (status, body) = machine.api.delete(&path).await?;
    ensure!(status == 202, "{status} {body}");
    Ok(())
}

/// Waits until the conversation has no row and the server has no images. The server must not have other conversations.
async fn gone(machine: &Machine, chat: &str) -> Result<()> {
    eventually("the sandbox and its image are deleted", async || {
        Ok((machine.row(chat).await?.is_none() && machine.remains().images() == 0).then_some(()))
    })
    .await
}

/// Stops the server as an operator does, and checks that no remains of sandboxes are left.
async fn stop(mut machine: Machine) -> Result<()> {
    machine.server.stop().await?;
    machine.remains().gone().await
}
