//! The share of the running sandboxes that one bot may use, so that other bots can start sandboxes as well.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use monstrum_core::sandboxes::{AccessError, Options, Sandboxes};
use monstrum_sandbox::{ExecOutput, ExecRequest};
use monstrum_types::{BotId, WorkspaceId};
use support::Asked;

use super::{Hosts, bot_in, conversation, on_both, words, workspace_named};

on_both! {
    a_bot_with_long_commands_shuts_out_no_other,
    a_bot_alone_has_all_places,
    a_bot_that_has_its_share_gives_up_its_own,
    what_has_more_than_its_share_gives_way_first,
    bot_that_waits_for_its_own_place_holds_up_no_other,
}

/// The time after which an unused sandbox may be stopped to make room for another sandbox.
const UNUSED: Duration = Duration::from_secs(61);
/// A time-out that is far longer than a start in these tests. It is shorter than the time for which a claim waits while
/// another claim makes room.
const PROMPT: Duration = Duration::from_secs(15);

fn four_places(hosts: &Hosts) -> Arc<Sandboxes> {
    hosts.host_with(Options { running_max: 4, ..Options::default() })
}

async fn exec(host: &Arc<Sandboxes>, by: (WorkspaceId, BotId), chat: &str) -> Result<ExecOutput, AccessError> {
    host.exec(by.0, by.1, &conversation(chat), ExecRequest::new("true"), None).await
}

async fn a_bot_with_long_commands_shuts_out_no_other(hosts: Hosts) -> Result<()> {
    let host = four_places(&hosts);
    let fellow = (hosts.workspace, bot_in(&hosts.store, hosts.workspace, "fellow").await?);
    let foreign = workspace_named(&hosts.store, "foreign").await?;
    let other = (foreign, bot_in(&hosts.store, foreign, "other").await?);
    let held: Vec<_> = ["a", "b"].map(|chat| hosts.spawn_exec(&host, chat, "wait")).into();
    hosts.double.running_execs(2).await;
    for chat in ["c", "d"] {
        assert_eq!(
            words(hosts.exec(&host, chat, "true").await),
            "this bot has reached its share of the running sandboxes on this host, and the remaining capacity is \
             reserved for other bots; try again when one of its sandboxes is idle (limits: --sandbox-max 4, \
             --sandbox-share-bot 25)"
        );
    }
    exec(&host, fellow, "of a fellow").await?;
    assert_eq!(
        words(exec(&host, (hosts.workspace, bot_in(&hosts.store, hosts.workspace, "third").await?), "third").await),
        "this workspace has reached its share of the running sandboxes on this host, and the remaining capacity is \
         reserved for other workspaces; try again when one of its sandboxes is idle (limits: --sandbox-max 4, \
         --sandbox-share-workspace 50)"
    );
    exec(&host, other, "of another workspace").await?;
    assert_eq!(hosts.double.states().len(), 4);
    held.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

async fn a_bot_alone_has_all_places(hosts: Hosts) -> Result<()> {
    let host = four_places(&hosts);
    for chat in ["a", "b", "c", "d"] {
        hosts.exec(&host, chat, "true").await?;
    }
    assert!(
        words(hosts.exec(&host, "e", "true").await).starts_with("this host has reached its limit of running sandboxes")
    );
    assert_eq!(hosts.rows().await?, "a running\nb running\nc running\nd running");
    Ok(())
}

async fn a_bot_that_has_its_share_gives_up_its_own(hosts: Hosts) -> Result<()> {
    let host = four_places(&hosts);
    let fellow = (hosts.workspace, bot_in(&hosts.store, hosts.workspace, "fellow").await?);
    exec(&host, fellow, "fellow").await?;
    hosts.after(Duration::from_secs(1));
    hosts.exec(&host, "a", "true").await?;
    host.note_uses().await?;
    hosts.after(UNUSED);
    hosts.exec(&host, "b", "true").await?;
    assert_eq!(
        hosts.rows().await?,
        "a stopped\nb running\nfellow running",
        "the sandbox of the other bot was stopped instead of a sandbox of this bot"
    );
    Ok(())
}

async fn what_has_more_than_its_share_gives_way_first(hosts: Hosts) -> Result<()> {
    let host = four_places(&hosts);
    for chat in ["a", "b", "c"] {
        hosts.exec(&host, chat, "true").await?;
    }
    let fellow = (hosts.workspace, bot_in(&hosts.store, hosts.workspace, "fellow").await?);
    exec(&host, fellow, "fellow").await?;
    hosts.after(Duration::from_secs(1));
    for chat in ["a", "b", "c"] {
        hosts.exec(&host, chat, "true").await?;
        hosts.after(Duration::from_secs(1));
    }
    host.note_uses().await?;
    let third = (hosts.workspace, bot_in(&hosts.store, hosts.workspace, "third").await?);
    assert!(
        words(exec(&host, third, "third").await).starts_with("this host has reached its limit of running sandboxes"),
        "a sandbox that was just used was stopped"
    );
    hosts.after(UNUSED);
    assert!(
        words(hosts.exec(&host, "d", "true").await).starts_with("this bot has reached its share"),
        "the bot got more than its share although other requests may be waiting"
    );
    exec(&host, third, "third").await?;
    let rows = "a stopped\nb running\nc running\nfellow running\nthird running";
    assert_eq!(hosts.rows().await?, rows, "the sandbox of the bot that has no more than its share was stopped");
    Ok(())
}

async fn bot_that_waits_for_its_own_place_holds_up_no_other(hosts: Hosts) -> Result<()> {
    let host = four_places(&hosts);
    hosts.exec(&host, "a", "true").await?;
    let (foreign, distant) =
        (workspace_named(&hosts.store, "foreign").await?, workspace_named(&hosts.store, "distant").await?);
    for (workspace, name) in [(foreign, "first"), (foreign, "second"), (distant, "third")] {
        exec(&host, (workspace, bot_in(&hosts.store, workspace, name).await?), name).await?;
    }
    host.note_uses().await?;
    hosts.after(UNUSED);
    hosts.double.hang_for(&hosts.name("a"));
    // The bot's share is one sandbox, so its call waits until the bot's other sandbox stops.
    let waits = hosts.spawn_exec(&host, "b", "true");
    hosts.double.reached(Asked::Stop, 1).await;
    let newcomer = workspace_named(&hosts.store, "newcomer").await?;
    let newcomer = (newcomer, bot_in(&hosts.store, newcomer, "newcomer").await?);
    tokio::time::timeout(PROMPT, exec(&host, newcomer, "newcomer"))
        .await
        .context("the request waited for the place of another bot")??;
    hosts.double.mend();
    waits.await??;
    Ok(())
}
