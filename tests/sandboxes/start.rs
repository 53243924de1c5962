//! A host compares the provider's sandboxes with its rows at its start, and stops its running sandboxes at shutdown.

use std::time::Duration;

use anyhow::Result;
use monstrum_core::sandboxes::Options;
use monstrum_sandbox::SandboxError;
use monstrum_store::SandboxStatus;
use support::Asked;

use super::{Hosts, NODE, NOW, conversation, on_both, words};

on_both! {
    nothing_runs_before_the_first_request,
    rows_are_set_right,
    rows_whose_files_are_missing_are_lost,
    what_has_no_row_is_set_aside_for_a_week,
    what_was_set_aside_comes_back_with_its_row,
    rows_of_other_hosts_are_left_alone,
    what_runs_is_adopted,
    a_provider_that_cannot_be_asked_changes_nothing,
    the_end_of_a_host_stops_what_runs,
}

async fn nothing_runs_before_the_first_request(hosts: Hosts) -> Result<()> {
    use SandboxStatus::{Creating, Deleting, Error, Lost, Running, Stopped, Stopping};
    for status in [Creating, Running, Stopping, Stopped, Error, Deleting, Lost] {
        hosts.insert(status.as_str(), |row| row.status = status).await?;
    }
    hosts.insert("claimed", |row| row.operation = Some("of the host before".to_owned())).await?;
    hosts.insert("of another host", |row| row.node = Some("node-2".to_owned())).await?;
    hosts.host().nothing_runs_yet().await?;
    let rows = "claimed stopped\ncreating stopped\ndeleting deleting\nerror error\nlost lost\nof another host running\n\
                running stopped\nstopped stopped\nstopping stopped";
    assert_eq!(hosts.rows().await?, rows);
    Ok(())
}

async fn rows_are_set_right(hosts: Hosts) -> Result<()> {
    use SandboxStatus::{Creating, Deleting, Error, Running, Stopped, Stopping};
    let host = hosts.host();
    for status in [Creating, Running, Stopping, Stopped, Error, Deleting] {
        for at_provider in ["running", "stopped", "absent"] {
            let chat = format!("{}/{at_provider}", status.as_str());
            hosts
                .insert(&chat, |row| {
                    row.status = status;
                    row.operation = Some("of the host before".to_owned());
                    row.operation_until = Some(NOW.plus_ms(90_000));
                    row.next_attempt_at = Some(NOW);
                })
                .await?;
            if at_provider != "absent" {
                hosts.double.plant(&hosts.name(&chat));
            }
            if at_provider == "stopped" {
                hosts.double.crash(&hosts.name(&chat));
            }
        }
    }
    host.reconcile().await?;
    let expected = [
        "creating/absent stopped",
        "creating/running running",
        "creating/stopped stopped",
        "deleting/absent deleting",
        "deleting/running deleting",
        "deleting/stopped deleting",
        "error/absent stopped",
        "error/running running",
        "error/stopped stopped",
        "running/absent stopped",
        "running/running running",
        "running/stopped stopped",
        "stopped/absent stopped",
        "stopped/running running",
        "stopped/stopped stopped",
        "stopping/absent stopped",
        "stopping/running running",
        "stopping/stopped stopped",
    ];
    assert_eq!(hosts.rows().await?, expected.join("\n"));
    assert_eq!((hosts.double.asked(Asked::Delete), hosts.double.asked(Asked::Stop)), (0, 0));
    host.delete_due().await?;
    assert_eq!(hosts.double.asked(Asked::Delete), 3);
    assert!(!hosts.rows().await?.contains("deleting"));
    Ok(())
}

async fn rows_whose_files_are_missing_are_lost(hosts: Hosts) -> Result<()> {
    use SandboxStatus::{Creating, Deleting, Error, Lost, Running, Stopped, Stopping};
    let host = hosts.host();
    for status in [Creating, Running, Stopping, Stopped, Error, Deleting, Lost] {
        let ran = |row: &mut monstrum_store::SandboxRow| {
            row.status = status;
            row.limit = Some(serde_json::json!({"memoryMiB": 512}));
            row.next_attempt_at = Some(NOW);
        };
        hosts.insert(status.as_str(), ran).await?;
    }
    host.reconcile().await?;
    let lost = "lost (the files of the sandbox are missing on the server)";
    let mut expected: Vec<String> =
        ["creating", "error", "running", "stopped", "stopping"].iter().map(|chat| format!("{chat} {lost}")).collect();
    expected.extend(["deleting deleting".to_owned(), "lost lost".to_owned()]);
    expected.sort();
    assert_eq!(hosts.rows().await?, expected.join("\n"));
    hosts.host_without("off").reconcile().await?;
    assert_eq!(hosts.rows().await?, expected.join("\n"), "the host that has no provider changed a row");
    hosts.double.plant(&hosts.name("lost"));
    hosts.double.crash(&hosts.name("lost"));
    host.reconcile().await?;
    assert!(hosts.rows().await?.contains("lost stopped"), "the files of the sandbox were not restored");
    assert_eq!(hosts.double.created(), 1);
    Ok(())
}

async fn what_has_no_row_is_set_aside_for_a_week(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "known", "true").await?;
    hosts.double.plant(&hosts.name("unknown"));
    hosts.double.plant(&hosts.name("stopped"));
    hosts.double.crash(&hosts.name("stopped"));
    hosts.double.plant(&"ms-abc".parse()?);
    hosts.double.fail_for(&hosts.name("stopped"), SandboxError::Exhausted("it is busy".to_owned()));
    host.reconcile().await?;
    assert_eq!(hosts.double.states().len(), 2, "a sandbox that cannot be set aside blocked other sandboxes");
    hosts.double.mend();
    hosts.after(Duration::from_secs(1));
    host.reconcile().await?;
    assert_eq!(hosts.double.states().into_keys().collect::<Vec<_>>(), [hosts.name("known").to_string()]);
    assert_eq!(hosts.rows().await?, "known running");
    assert_eq!((hosts.double.asked(Asked::Delete), hosts.double.aside().len()), (0, 3), "files were deleted too early");
    hosts.after(Duration::from_secs(7 * 24 * 3600));
    host.reconcile().await?;
    assert_eq!(
        hosts.double.aside(),
        [hosts.name("stopped").to_string()],
        "files that were set aside a second later were deleted as well"
    );
    hosts.after(Duration::from_secs(1));
    host.sweep().await?;
    assert!(hosts.double.aside().is_empty());
    Ok(())
}

/// Starts a host with a database that is older than the sandboxes, and then with the matching database.
async fn what_was_set_aside_comes_back_with_its_row(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let open = host.of_conversation(hosts.workspace, hosts.bot, &conversation("chat")).await?;
    open.write("/workspace/a", "b".into()).await?;
    drop(open);
    let row = hosts.row("chat").await?;
    hosts.double.crash(&hosts.name("chat"));
    let operation = "restore";
    host.delete(hosts.workspace, None, row.id).await?;
    let marked = hosts.row("chat").await?;
    assert!(hosts.store.claim_sandbox(&marked, SandboxStatus::Deleting, operation, NOW).await?);
    assert!(hosts.store.remove_sandbox(row.id, operation).await?, "the row could not be removed");
    hosts.after(Duration::from_secs(60));
    host.reconcile().await?;
    assert_eq!(hosts.at_provider("chat"), "absent");
    hosts.after(Duration::from_secs(1));
    hosts.exec(&host, "chat", "true").await?;
    let later = hosts.row("chat").await?;
    hosts.double.lose(&hosts.name("chat"));
    assert!(
        hosts.exec(&host, "chat", "true").await.is_err(),
        "the row got files that were set aside before it was created"
    );
    host.delete(hosts.workspace, None, later.id).await?;
    host.delete_due().await?;
    hosts.store.insert_sandbox(&row).await?;
    host.reconcile().await?;
    let open = host.of_conversation(hosts.workspace, hosts.bot, &conversation("chat")).await?;
    assert_eq!(open.stat("/workspace/a").await?.size, 1, "the files of the row were not restored");
    assert!(hosts.double.aside().is_empty());
    Ok(())
}

async fn rows_of_other_hosts_are_left_alone(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    for (chat, node) in [("theirs", "node-2"), ("copied", "node-2"), ("ours", NODE)] {
        hosts.insert(chat, |row| row.node = Some(node.to_owned())).await?;
    }
    let claimed = |row: &mut monstrum_store::SandboxRow| {
        row.node = Some("node-2".to_owned());
        row.status = SandboxStatus::Creating;
        row.operation = Some("theirs".to_owned());
        row.operation_until = Some(NOW.plus_ms(90_000));
    };
    hosts.insert("at work", claimed).await?;
    hosts.double.plant(&hosts.name("copied"));
    host.reconcile().await?;
    assert_eq!(hosts.rows().await?, "at work creating, claimed\ncopied running\nours stopped\ntheirs running");
    assert_eq!(hosts.at_provider("copied"), "running", "a sandbox with a row of another host was set aside");
    Ok(())
}

async fn what_runs_is_adopted(hosts: Hosts) -> Result<()> {
    hosts.exec(&hosts.host(), "a", "true").await?;
    let settings = Options { running_max: 1, ..Options::default() };
    let next = hosts.host_with(settings);
    next.reconcile().await?;
    hosts.exec(&next, "a", "true").await?;
    assert_eq!(hosts.double.asked(Asked::EnsureRunning), 1);
    assert!(words(hosts.exec(&next, "b", "true").await).contains("--sandbox-max 1"), "the sandbox was not counted");
    hosts.after(Duration::from_secs(300));
    next.sweep().await?;
    assert_eq!(hosts.rows().await?, "a stopped");
    Ok(())
}

async fn a_provider_that_cannot_be_asked_changes_nothing(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "a", "true").await?;
    hosts.double.fail(Asked::List, SandboxError::unavailable("not now"));
    assert_eq!(words(host.reconcile().await), "unavailable: not now");
    assert_eq!(hosts.rows().await?, "a running");
    Ok(())
}

async fn the_end_of_a_host_stops_what_runs(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "a", "true").await?;
    hosts.insert("theirs", |row| row.node = Some("node-2".to_owned())).await?;
    let call = hosts.spawn_exec(&host, "b", "wait");
    hosts.double.running_execs(1).await;
    host.shut_down(Duration::from_secs(10)).await;
    assert_eq!(words(call.await?), "the sandbox was stopped or deleted while it was in use");
    assert_eq!(hosts.rows().await?, "a stopped\nb stopped\ntheirs running");
    assert_eq!((hosts.at_provider("a"), hosts.at_provider("b")), ("stopped", "stopped"));
    assert_eq!(words(hosts.exec(&host, "a", "true").await), "unavailable: the server is shutting down");
    // A sandbox whose stop hangs does not block the shutdown. The next start finds the sandbox.
    let next = hosts.host();
    hosts.exec(&next, "a", "true").await?;
    hosts.double.hang(Asked::Stop);
    next.shut_down(Duration::from_secs(2)).await;
    assert_eq!(hosts.rows().await?, "a stopping, claimed\nb stopped\ntheirs running");
    hosts.host().reconcile().await?;
    assert_eq!(hosts.rows().await?, "a running\nb stopped\ntheirs running");
    Ok(())
}
