//! Deletion on request: the caller gets an answer immediately, and the deletion is retried until it succeeds.

use std::time::Duration;

use anyhow::Result;
use monstrum_sandbox::SandboxError;
use monstrum_store::SandboxStatus;
use support::Asked;
use tokio_util::sync::CancellationToken;

use super::{Hosts, NOW, bot_in, chats, conversation, on_both, words};

on_both! {
    what_is_deleted_is_gone_and_made_anew_by_the_next_call,
    a_command_that_runs_is_cut_off,
    a_stream_that_is_read_ends_with_an_error,
    a_failure_is_tried_again_with_back_off,
    it_is_deleted_from_every_state,
    what_is_deleted_while_it_is_made_does_not_stay,
    one_that_hangs_does_not_hold_up_the_others,
    an_app_takes_its_sandboxes_along,
    a_bot_takes_its_sandboxes_along,
    of_two_hosts_one_deletes,
    it_is_done_in_the_background,
    without_a_provider_deletions_wait,
}

async fn what_is_deleted_is_gone_and_made_anew_by_the_next_call(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "chat", "true").await?;
    let row = hosts.row("chat").await?;
    hosts.double.hang(Asked::Delete);
    host.delete(hosts.workspace, Some(hosts.bot), row.id).await?;
    host.delete(hosts.workspace, Some(hosts.bot), row.id).await?;
    assert_eq!(hosts.rows().await?, "chat deleting", "the caller waited for the deletion");
    let next = hosts.spawn_exec(&host, "chat", "echo anew");
    hosts.double.reached(Asked::Delete, 1).await;
    hosts.double.mend();
    assert_eq!(next.await??.stdout.text, "anew\n");
    assert_eq!((hosts.double.created(), hosts.double.asked(Asked::Delete)), (2, 1));
    assert_ne!(hosts.row("chat").await?.id, row.id);
    assert_eq!(words(host.delete(hosts.workspace, None, row.id).await), "the sandbox does not exist");
    assert_eq!(words(host.open(&row).await.map(drop)), "the sandbox does not exist");
    assert_eq!(host.delete_conversations(hosts.workspace, chats(None, "app", Some("absent"))).await?, Some(0));
    Ok(())
}

async fn a_command_that_runs_is_cut_off(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let call = hosts.spawn_exec(&host, "chat", "wait");
    hosts.double.running_execs(1).await;
    assert_eq!(host.delete_conversations(hosts.workspace, chats(Some(hosts.bot), "app", Some("chat"))).await?, Some(1));
    host.delete_due().await?;
    assert_eq!(words(call.await?), "the sandbox was stopped or deleted while it was in use");
    assert_eq!((hosts.rows().await?.as_str(), hosts.at_provider("chat")), ("", "absent"));
    Ok(())
}

/// The bytes before the error are incomplete, so the stream must not end like a complete stream.
async fn a_stream_that_is_read_ends_with_an_error(hosts: Hosts) -> Result<()> {
    use futures::StreamExt;
    let host = hosts.host();
    let open = host.of_conversation(hosts.workspace, hosts.bot, &conversation("chat")).await?;
    open.write("/workspace/a", "some text".into()).await?;
    let (_, mut content) = open.read("/workspace/a").await?;
    host.delete(hosts.workspace, None, open.row().id).await?;
    host.delete_due().await?;
    let ended = content.next().await;
    let words = "the sandbox was stopped or deleted while it was in use".to_owned();
    assert_eq!(ended, Some(Err(SandboxError::NotFound(words))));
    assert_eq!(content.next().await, None);
    Ok(())
}

async fn a_failure_is_tried_again_with_back_off(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "chat", "true").await?;
    hosts.double.fail(Asked::Delete, SandboxError::Exhausted("it is busy".to_owned()));
    host.delete_conversations(hosts.workspace, chats(None, "app", Some("chat"))).await?;
    let mut waits = Vec::new();
    for attempt in 1..=9 {
        host.delete_due().await?;
        host.delete_due().await?;
        assert_eq!(hosts.double.asked(Asked::Delete), attempt, "the deletion was retried too early");
        let row = hosts.row("chat").await?;
        assert_eq!((row.status, row.attempts), (SandboxStatus::Deleting, i64::try_from(attempt)?));
        let wait = row.next_attempt_at.map_or(0, |at| at.since_ms(monstrum_types::Clock::now(&*hosts.clock)));
        waits.push(wait / 1000);
        hosts.clock.advance_ms(wait);
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(hosts.rows().await?, "chat deleting (it is busy)");
    host.delete_due().await?;
    let early = words(hosts.exec(&host, "chat", "true").await);
    assert_eq!(early, "unavailable: the previous sandbox of this conversation is not deleted yet; try again later");
    hosts.after(Duration::from_secs(300));
    hosts.double.mend();
    host.delete_due().await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.at_provider("chat")), ("", "absent"));
    Ok(())
}

async fn it_is_deleted_from_every_state(hosts: Hosts) -> Result<()> {
    use SandboxStatus::{Creating, Deleting, Error, Running, Stopped, Stopping};
    let host = hosts.host();
    for status in [Creating, Running, Stopping, Stopped, Error, Deleting] {
        let row = hosts
            .insert(status.as_str(), |row| {
                row.status = status;
                row.next_attempt_at = (status == Deleting).then_some(NOW);
                // The claim belongs to a dead host.
                row.operation = Some("of the dead".to_owned());
                row.operation_until = Some(NOW);
            })
            .await?;
        hosts.double.plant(&hosts.name(status.as_str()));
        host.delete(hosts.workspace, None, row.id).await?;
    }
    host.delete_due().await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.double.states().len()), ("", 0));
    Ok(())
}

async fn what_is_deleted_while_it_is_made_does_not_stay(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.double.hang(Asked::EnsureRunning);
    let call = hosts.spawn_exec(&host, "chat", "echo anew");
    hosts.double.reached(Asked::EnsureRunning, 1).await;
    let row = hosts.row("chat").await?;
    host.delete(hosts.workspace, None, row.id).await?;
    host.delete_due().await?;
    assert_eq!(hosts.double.asked(Asked::Delete), 0, "the sandbox was deleted during its creation");
    hosts.double.mend();
    assert_eq!(call.await??.stdout.text, "anew\n");
    assert_eq!((hosts.double.created(), hosts.double.asked(Asked::Delete)), (2, 1));
    assert_ne!(hosts.row("chat").await?.id, row.id);
    Ok(())
}

async fn one_that_hangs_does_not_hold_up_the_others(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    for chat in ["a", "b", "c"] {
        hosts.exec(&host, chat, "true").await?;
    }
    hosts.double.hang_for(&hosts.name("b"));
    assert_eq!(host.delete_conversations(hosts.workspace, chats(Some(hosts.bot), "app", None)).await?, Some(3));
    let due = tokio::spawn(async move { host.delete_due().await });
    hosts.double.reached(Asked::Delete, 3).await;
    while hosts.rows().await? != "b deleting, claimed" {
        tokio::task::yield_now().await;
    }
    hosts.double.mend();
    due.await??;
    assert_eq!(hosts.rows().await?, "");
    Ok(())
}

async fn an_app_takes_its_sandboxes_along(hosts: Hosts) -> Result<()> {
    use monstrum_core::sandboxes::Conversation;
    use monstrum_sandbox::ExecRequest;
    let host = hosts.host();
    let other = bot_in(&hosts.store, hosts.workspace, "other").await?;
    for (bot, app, chat) in
        [(hosts.bot, "app", "a"), (hosts.bot, "app", "b"), (hosts.bot, "mail", "c"), (other, "app", "d")]
    {
        let of = Conversation::new(app, "user", chat)?;
        host.exec(hosts.workspace, bot, &of, ExecRequest::new("true"), None).await?;
    }
    assert_eq!(host.delete_conversations(hosts.workspace, chats(Some(hosts.bot), "app", None)).await?, Some(2));
    assert_eq!(
        host.delete_conversations(hosts.workspace, chats(Some(hosts.bot), "app", None)).await?,
        Some(0),
        "sandboxes that are already being deleted were deleted again"
    );
    host.delete_due().await?;
    assert_eq!(hosts.rows().await?, "c running\nd running");
    assert_eq!(host.delete_conversations(hosts.workspace, chats(None, "app", None)).await?, Some(1));
    host.delete_due().await?;
    assert_eq!(hosts.rows().await?, "c running");
    Ok(())
}

async fn a_bot_takes_its_sandboxes_along(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let call = hosts.spawn_exec(&host, "chat", "wait");
    hosts.double.running_execs(1).await;
    assert!(hosts.store.delete_bot(hosts.workspace, hosts.bot).await?);
    assert_eq!(hosts.rows().await?, "chat deleting");
    host.delete_due().await?;
    assert!(call.await?.is_err());
    assert_eq!((hosts.rows().await?.as_str(), hosts.at_provider("chat")), ("", "absent"));
    Ok(())
}

async fn of_two_hosts_one_deletes(hosts: Hosts) -> Result<()> {
    let (one, two) = (hosts.another("node-1", true).await?, hosts.another("node-2", true).await?);
    for chat in ["a", "b", "c", "d", "e"] {
        hosts.exec(&one, chat, "true").await?;
    }
    one.delete_conversations(hosts.workspace, chats(None, "app", None)).await?;
    let (at_one, at_two) = tokio::join!(one.delete_due(), two.delete_due());
    at_one?;
    at_two?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.double.asked(Asked::Delete)), ("", 5));
    Ok(())
}

async fn it_is_done_in_the_background(hosts: Hosts) -> Result<()> {
    let (host, stop) = (hosts.host(), CancellationToken::new());
    let following = tokio::spawn(host.clone().follow_deletions(stop.clone()));
    hosts.exec(&host, "a", "true").await?;
    hosts.exec(&host, "b", "true").await?;
    host.delete_conversations(hosts.workspace, chats(None, "app", Some("a"))).await?;
    hosts.double.reached(Asked::Delete, 1).await;
    hosts.store.delete_bot(hosts.workspace, hosts.bot).await?;
    host.deletions_are_due();
    hosts.double.reached(Asked::Delete, 2).await;
    stop.cancel();
    following.await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.double.states().len()), ("", 0));
    Ok(())
}

async fn without_a_provider_deletions_wait(hosts: Hosts) -> Result<()> {
    hosts.exec(&hosts.host(), "chat", "true").await?;
    let without = hosts.host_without("it needs root");
    assert_eq!(words(hosts.exec(&without, "chat", "true").await), "unavailable: it needs root");
    let row = without.find(hosts.workspace, Some(hosts.bot), "app", "chat").await?.expect("it was made");
    without.reconcile().await?;
    hosts.after(Duration::from_secs(3600));
    without.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat stopped", "the shutdown did not stop a sandbox of this host");
    without.delete(hosts.workspace, Some(hosts.bot), row.id).await?;
    without.delete_due().await?;
    without.shut_down(Duration::from_secs(10)).await;
    assert_eq!(hosts.rows().await?, "chat deleting");
    hosts.host().delete_due().await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.at_provider("chat")), ("", "absent"));
    Ok(())
}
