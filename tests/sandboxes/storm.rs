//! Runs random operations concurrently on two hosts. At the end, the rows and the provider must agree.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use monstrum_core::sandboxes::{AccessError, Sandboxes};
use monstrum_sandbox::SandboxError;
use support::Asked;

use super::{Hosts, chats, on_both};

on_both! {
    of_calls_sweeps_and_deletions_nothing_is_left_over,
    of_hosts_that_die_nothing_is_left_over,
}

/// A generator of pseudo-random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

const CHATS: [&str; 3] = ["a", "b", "c"];

/// Runs one random operation of a caller.
async fn act(hosts: &Hosts, host: &Arc<Sandboxes>, dice: &mut Dice) -> Result<()> {
    let chat = CHATS[usize::try_from(dice.roll(3))?];
    let done = match dice.roll(10) {
        0 => host
            .delete_conversations(hosts.workspace, chats(None, "app", Some(chat)))
            .await
            .map(drop)
            .map_err(AccessError::from),
        1 => host.delete_due().await.map_err(AccessError::from),
        2 => {
            hosts.after(Duration::from_secs(300));
            host.sweep().await.map_err(AccessError::from)
        }
        3 => {
            hosts.double.crash(&hosts.name(chat));
            Ok(())
        }
        4 => host.note_uses().await.map_err(AccessError::from),
        5 => {
            // The caller disconnects during the call.
            let call = hosts.exec(host, chat, "echo hello");
            drop(tokio::time::timeout(Duration::from_micros(dice.roll(3000)), call).await);
            Ok(())
        }
        _ => match hosts.exec(host, chat, "echo hello").await {
            Ok(output) if output.stdout.text == "hello\n" => Ok(()),
            Ok(output) => bail!("{output:?}"),
            // Another task has stopped or deleted the sandbox during the command.
            Err(AccessError::Provider(SandboxError::NotFound(_) | SandboxError::Conflict(_))) => Ok(()),
            Err(fault) => Err(fault),
        },
    };
    Ok(done?)
}

async fn of_calls_sweeps_and_deletions_nothing_is_left_over(hosts: Hosts) -> Result<()> {
    let (one, two) = (hosts.another("node-1", true).await?, hosts.another("node-2", true).await?);
    let caller = |number: u64| {
        let host = if number.is_multiple_of(2) { &one } else { &two };
        let hosts = &hosts;
        async move {
            let mut dice = Dice(number);
            for _ in 0..15 {
                act(hosts, host, &mut dice).await?;
            }
            anyhow::Ok(())
        }
    };
    futures::future::try_join_all((0..12).map(caller)).await?;
    in_order(&hosts, &one).await?;
    assert!(
        hosts.double.asked(Asked::Delete) > 0 && hosts.double.asked(Asked::Stop) > 0,
        "too few operations had an effect"
    );
    Ok(())
}

/// Waits until the claims of cancelled callers have expired, and runs all work that is due. Then checks that each
/// sandbox at the provider has a row and that no unused sandbox runs.
async fn in_order(hosts: &Hosts, host: &Arc<Sandboxes>) -> Result<()> {
    host.note_uses().await?;
    hosts.after(Duration::from_secs(400));
    host.delete_due().await?;
    host.sweep().await?;
    let rows = hosts.rows().await?;
    ensure!(rows.lines().all(|line| line.ends_with(" stopped")), "{rows:?}");
    let mut names: Vec<_> = rows.lines().map(|line| hosts.name(&line[..1]).to_string()).collect();
    names.sort();
    let states = hosts.double.states();
    ensure!(states.iter().all(|(name, state)| *state == "stopped" && names.contains(name)), "{rows:?}, {states:?}");
    Ok(())
}

/// Kills a host at different moments, and starts another host on its data folder.
async fn of_hosts_that_die_nothing_is_left_over(hosts: Hosts) -> Result<()> {
    let hosts = Arc::new(hosts);
    for round in 0..12 {
        let living = Arc::clone(&hosts);
        tokio::task::spawn_blocking(move || live(&living, round)).await??;
        let next = hosts.another("node-1", false).await?;
        next.reconcile().await?;
        in_order(&hosts, &next).await?;
    }
    Ok(())
}

/// Runs a host on its own threads. All work of the host ends when these threads end.
fn live(hosts: &Hosts, round: u64) -> Result<()> {
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let life = async {
        let host = hosts.another("node-1", false).await?;
        host.reconcile().await?;
        let mut dice = Dice(round);
        for _ in 0..30 {
            act(hosts, &host, &mut dice).await?;
        }
        anyhow::Ok(())
    };
    let lived = own.block_on(async { tokio::time::timeout(Duration::from_millis(10 + round * 10), life).await });
    own.shutdown_timeout(Duration::from_secs(5));
    // The round is valid whether the host was killed or finished first.
    lived.unwrap_or(Ok(()))
}
