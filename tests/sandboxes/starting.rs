//! A sandbox is created once, on its first use, for one conversation of one bot.

use std::time::Duration;

use anyhow::Result;
use monstrum_core::sandboxes::{Conversation, Options};
use monstrum_sandbox::{ExecRequest, SandboxError};
use monstrum_store::{SandboxRow, SandboxStatus};
use support::Asked;

use super::{Hosts, NOW, bot_in, chats, conversation, on_both, words, workspace_named};

on_both! {
    it_is_made_by_the_first_call_and_used_by_the_next,
    the_same_name_of_another_conversation_is_refused,
    two_workspaces_never_meet,
    of_twenty_first_calls_at_two_hosts_one_makes_it,
    a_host_says_which_other_has_it,
    who_is_not_heard_of_is_taken_over_from,
    a_provider_that_is_down_leaves_nothing_and_comes_back,
    a_provider_that_fails_leaves_an_error_that_the_next_call_mends,
    what_has_crashed_runs_again,
    of_twenty_calls_after_a_crash_all_are_served,
    a_sandbox_whose_files_are_missing_is_lost_and_not_made_anew,
    a_lost_sandbox_has_its_files_again_when_they_are_back,
    a_lost_sandbox_asks_for_no_place,
    a_sandbox_that_never_ran_is_made_however_often_it_failed,
    as_many_run_as_may,
    the_one_without_use_for_longest_makes_room,
    sandbox_whose_stop_failed_is_tried_last,
    one_that_needs_room_is_made_room_for_once,
    a_bot_that_is_gone_gets_none,
    a_caller_that_goes_away_leaves_it_whole,
    a_sandbox_of_another_provider_is_not_this_ones,
}

async fn it_is_made_by_the_first_call_and_used_by_the_next(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    assert_eq!(
        host.find(hosts.workspace, None, "app", "chat").await?,
        None,
        "a sandbox was created before its first use"
    );
    assert_eq!(hosts.exec(&host, "chat", "echo hello").await?.stdout.text, "hello\n");
    assert_eq!(hosts.exec(&host, "chat", "fail").await?.exit_code, 7);
    assert_eq!((hosts.double.created(), hosts.double.asked(Asked::EnsureRunning)), (1, 1));
    let row = hosts.row("chat").await?;
    assert_eq!(row.status, SandboxStatus::Running);
    assert_eq!((row.operation, row.error, row.last_active_at, row.created_at), (None, None, NOW, NOW));
    assert_eq!((row.node.as_deref(), row.network.as_deref()), (Some("node-1"), Some("none")));
    let expected = serde_json::json!({
        "cpuCount": 1, "memoryMiB": 1024, "diskGiB": 2, "tmpMiB": 256, "processes": 1024, "processesPerExec": 256,
    });
    assert_eq!(row.limit, Some(expected));
    let found = host.find(hosts.workspace, Some(hosts.bot), "app", "chat").await?;
    assert_eq!(found.map(|row| row.id), Some(row.id));
    Ok(())
}

async fn the_same_name_of_another_conversation_is_refused(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let exec = async |bot, app: &str, user: &str, chat: &str| {
        let of = Conversation::new(app, user, chat).expect("it is short and plain");
        words(host.exec(hosts.workspace, bot, &of, ExecRequest::new("echo hello"), None).await)
    };
    let other = bot_in(&hosts.store, hosts.workspace, "other").await?;
    let told = [
        exec(hosts.bot, "x", "u-1", "c").await,
        exec(hosts.bot, "x", "u", "1-c").await,
        exec(hosts.bot, "x", "u-2", "c").await,
        exec(other, "x", "u-1", "c").await,
        exec(hosts.bot, "x", "u-1", "c").await,
    ];
    let expected = [
        "no fault",
        "another conversation's sandbox has the same name",
        "the sandbox of this conversation belongs to another user",
        "the sandbox of this conversation belongs to another bot",
        "no fault",
    ];
    assert_eq!(told, expected);
    assert_eq!(hosts.double.created(), 1);
    let row = host.find(hosts.workspace, Some(hosts.bot), "x", "c").await?.expect("it was made");
    assert_eq!(
        host.find(hosts.workspace, Some(other), "x", "c").await?,
        None,
        "a bot sees the sandboxes of another bot"
    );
    assert_eq!(words(host.get(hosts.workspace, Some(other), row.id).await), "the sandbox does not exist");
    assert_eq!(words(host.delete(hosts.workspace, Some(other), row.id).await), "the sandbox does not exist");
    assert_eq!(host.delete_conversations(hosts.workspace, chats(Some(other), "x", Some("c"))).await?, Some(0));
    assert_eq!(host.delete_conversations(hosts.workspace, chats(Some(other), "x", None)).await?, Some(0));
    Ok(())
}

async fn two_workspaces_never_meet(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let foreign = workspace_named(&hosts.store, "foreign").await?;
    let bot = bot_in(&hosts.store, foreign, "agent").await?;
    let of = conversation("chat");
    hosts.exec(&host, "chat", "true").await?;
    let here = host.of_conversation(hosts.workspace, hosts.bot, &of).await?;
    here.write("/workspace/secret", "ours".into()).await?;
    let there = host.of_conversation(foreign, bot, &of).await?;
    assert_eq!(words(there.read("/workspace/secret").await.map(drop)), "there is no such file");
    assert_eq!(hosts.double.created(), 2);
    let ours = hosts.row("chat").await?;
    assert_eq!(words(host.get(foreign, None, ours.id).await), "the sandbox does not exist");
    assert_eq!(words(host.delete(foreign, None, ours.id).await), "the sandbox does not exist");
    assert_eq!(host.delete_conversations(foreign, chats(None, "app", None)).await?, Some(1));
    host.delete_due().await?;
    assert_eq!((hosts.at_provider("chat"), hosts.double.states().len()), ("running", 1));
    let mixed = host.exec(foreign, hosts.bot, &of, ExecRequest::new("true"), None).await;
    assert_eq!(words(mixed), "the sandbox does not exist", "a bot can be used from another workspace");
    Ok(())
}

async fn of_twenty_first_calls_at_two_hosts_one_makes_it(hosts: Hosts) -> Result<()> {
    let (one, two) = (hosts.another("node-1", true).await?, hosts.another("node-2", true).await?);
    hosts.double.hang(Asked::EnsureRunning);
    let calls: Vec<_> =
        (0..20).map(|call| hosts.spawn_exec(if call % 2 == 0 { &one } else { &two }, "chat", "echo hello")).collect();
    hosts.double.reached(Asked::EnsureRunning, 1).await;
    hosts.double.mend();
    for call in calls {
        assert_eq!(call.await??.stdout.text, "hello\n");
    }
    assert_eq!((hosts.double.created(), hosts.double.asked(Asked::EnsureRunning)), (1, 1));
    assert_eq!(hosts.rows().await?, "chat running");
    assert_eq!(hosts.row("chat").await?.node, None, "a host cannot reach the sandbox");
    Ok(())
}

async fn a_host_says_which_other_has_it(hosts: Hosts) -> Result<()> {
    let (one, two) = (hosts.host(), hosts.another("node-2", false).await?);
    hosts.exec(&one, "chat", "true").await?;
    let refused = words(hosts.exec(&two, "chat", "true").await);
    assert_eq!(
        refused,
        "unavailable: this sandbox is on the server whose `node.id` is node-1; send the request to that server"
    );
    two.reconcile().await?;
    hosts.after(Duration::from_secs(3600));
    two.sweep().await?;
    assert_eq!(hosts.rows().await?, "chat running", "another host changed the sandbox");
    two.delete(hosts.workspace, None, hosts.row("chat").await?.id).await?;
    two.delete_due().await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.at_provider("chat")), ("chat deleting", "running"));
    one.delete_due().await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.at_provider("chat")), ("", "absent"));
    Ok(())
}

async fn who_is_not_heard_of_is_taken_over_from(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    for (chat, status) in [("a", SandboxStatus::Creating), ("b", SandboxStatus::Stopping)] {
        hosts
            .insert(chat, |row| {
                row.status = status;
                row.operation = Some("of the dead".to_owned());
                row.operation_until = Some(NOW.plus_ms(90_000));
            })
            .await?;
        let call = hosts.spawn_exec(&host, chat, "echo hello");
        for _ in 0..20 {
            assert!(hosts.rows().await?.contains("claimed"), "the request did not wait for the running operation");
        }
        assert!(!call.is_finished());
        hosts.after(Duration::from_secs(90));
        assert_eq!(call.await??.stdout.text, "hello\n");
        hosts.clock.advance_ms(-90_000);
    }
    assert_eq!(hosts.rows().await?, "a running\nb running");
    Ok(())
}

async fn a_provider_that_is_down_leaves_nothing_and_comes_back(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.double.down(Some(SandboxError::unavailable("it needs root")));
    assert_eq!(words(hosts.exec(&host, "chat", "true").await), "unavailable: it needs root");
    assert_eq!(host.capabilities(), Err(SandboxError::unavailable("it needs root")));
    assert_eq!(hosts.rows().await?, "");
    hosts.double.mend();
    assert_eq!(hosts.exec(&host, "chat", "echo hello").await?.stdout.text, "hello\n");
    Ok(())
}

async fn a_provider_that_fails_leaves_an_error_that_the_next_call_mends(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.double.fail(Asked::EnsureRunning, SandboxError::Exhausted("no disk is left".to_owned()));
    assert_eq!(words(hosts.exec(&host, "chat", "true").await), "no disk is left");
    assert_eq!(hosts.rows().await?, "chat error (no disk is left)");
    hosts.double.fail(Asked::EnsureRunning, SandboxError::unavailable("not now"));
    assert_eq!(words(hosts.exec(&host, "chat", "true").await), "unavailable: not now");
    hosts.double.mend();
    hosts.exec(&host, "chat", "true").await?;
    assert_eq!(hosts.rows().await?, "chat running");
    // A command that could not be run does not change the state of the sandbox.
    hosts.double.fail(Asked::Exec, SandboxError::unavailable("not now"));
    assert_eq!(words(hosts.exec(&host, "chat", "true").await), "unavailable: not now");
    assert_eq!(hosts.rows().await?, "chat running");
    Ok(())
}

async fn what_has_crashed_runs_again(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "chat", "true").await?;
    let open = host.of_conversation(hosts.workspace, hosts.bot, &conversation("chat")).await?;
    hosts.double.crash(&hosts.name("chat"));
    assert_eq!(hosts.exec(&host, "chat", "echo hello").await?.stdout.text, "hello\n");
    hosts.double.crash(&hosts.name("chat"));
    open.write("/workspace/a", "b".into()).await?;
    assert_eq!((hosts.rows().await?.as_str(), hosts.double.created()), ("chat running", 1));
    hosts.double.fail(Asked::Exec, SandboxError::Conflict("it does not run".to_owned()));
    assert_eq!(
        words(hosts.exec(&host, "chat", "true").await),
        "it does not run",
        "the operation was retried without limit"
    );
    Ok(())
}

async fn of_twenty_calls_after_a_crash_all_are_served(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "chat", "true").await?;
    hosts.double.crash(&hosts.name("chat"));
    hosts.double.hang(Asked::EnsureRunning);
    let calls: Vec<_> = (0..20).map(|_| hosts.spawn_exec(&host, "chat", "echo hello")).collect();
    hosts.double.reached(Asked::EnsureRunning, 2).await;
    hosts.double.mend();
    for call in calls {
        assert_eq!(call.await??.stdout.text, "hello\n");
    }
    assert_eq!((hosts.double.created(), hosts.rows().await?.as_str()), (1, "chat running"));
    Ok(())
}

async fn a_sandbox_whose_files_are_missing_is_lost_and_not_made_anew(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    let open = host.of_conversation(hosts.workspace, hosts.bot, &conversation("chat")).await?;
    open.write("/workspace/a", "b".into()).await?;
    hosts.double.lose(&hosts.name("chat"));
    let lost = "the files of the sandbox are missing on the server";
    for _ in 0..2 {
        assert_eq!(words(hosts.exec(&host, "chat", "echo hello").await), lost);
        assert_eq!(words(open.stat("/workspace/a").await), lost);
        assert_eq!(hosts.rows().await?, format!("chat lost ({lost})"));
    }
    assert_eq!(hosts.double.created(), 1, "an empty sandbox was created in place of the lost sandbox");
    let row = hosts.row("chat").await?;
    host.delete(hosts.workspace, None, row.id).await?;
    host.delete_due().await?;
    assert_eq!(hosts.exec(&host, "chat", "echo hello").await?.stdout.text, "hello\n");
    assert_eq!(hosts.double.created(), 2);
    Ok(())
}

async fn a_lost_sandbox_has_its_files_again_when_they_are_back(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.exec(&host, "chat", "true").await?;
    hosts.double.lose(&hosts.name("chat"));
    assert!(hosts.exec(&host, "chat", "true").await.is_err());
    hosts.after(Duration::from_secs(3600));
    host.sweep().await?;
    assert!(hosts.rows().await?.starts_with("chat lost"), "a sweep changed the status of the lost sandbox");
    hosts.double.plant(&hosts.name("chat"));
    hosts.double.crash(&hosts.name("chat"));
    hosts.exec(&host, "chat", "true").await?;
    assert_eq!(hosts.rows().await?, "chat running");
    Ok(())
}

async fn a_lost_sandbox_asks_for_no_place(hosts: Hosts) -> Result<()> {
    let host = hosts.host_with(Options { running_max: 1, ..Options::default() });
    hosts.exec(&host, "gone", "true").await?;
    hosts.after(Duration::from_secs(61));
    hosts.exec(&host, "kept", "true").await?;
    hosts.double.lose(&hosts.name("gone"));
    hosts.after(Duration::from_secs(61));
    let lost = "the files of the sandbox are missing on the server";
    for _ in 0..2 {
        assert_eq!(words(hosts.exec(&host, "gone", "true").await), lost);
        assert_eq!(
            hosts.rows().await?,
            format!("gone lost ({lost})\nkept running"),
            "a sandbox was stopped for a request that cannot succeed"
        );
    }
    let held = hosts.spawn_exec(&host, "kept", "wait");
    hosts.double.running_execs(1).await;
    assert_eq!(words(hosts.exec(&host, "gone", "true").await), lost, "the request did not report the lost sandbox");
    held.abort();
    Ok(())
}

async fn a_sandbox_that_never_ran_is_made_however_often_it_failed(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.double.fail(Asked::EnsureRunning, SandboxError::unavailable("not now"));
    assert_eq!(words(hosts.exec(&host, "chat", "true").await), "unavailable: not now");
    hosts.double.mend();
    hosts.exec(&host, "chat", "true").await?;
    assert_eq!(hosts.rows().await?, "chat running");
    Ok(())
}

async fn as_many_run_as_may(hosts: Hosts) -> Result<()> {
    let host = hosts.host_with(Options { running_max: 2, ..Options::default() });
    hosts.exec(&host, "a", "true").await?;
    hosts.exec(&host, "b", "true").await?;
    let refused = words(hosts.exec(&host, "c", "true").await);
    assert_eq!(
        refused,
        "this host has reached its limit of running sandboxes; try again when a sandbox is idle (limit: --sandbox-max 2)"
    );
    assert_eq!(hosts.rows().await?, "a running\nb running", "the rejected request left a row");
    hosts.exec(&host, "a", "true").await?;
    host.delete(hosts.workspace, None, hosts.row("a").await?.id).await?;
    host.delete_due().await?;
    hosts.exec(&host, "c", "true").await?;
    hosts.after(Duration::from_secs(300));
    host.sweep().await?;
    hosts.exec(&host, "d", "true").await?;
    hosts.double.fail(Asked::EnsureRunning, SandboxError::Exhausted("no disk is left".to_owned()));
    assert_eq!(words(hosts.exec(&host, "e", "true").await), "no disk is left");
    hosts.double.mend();
    hosts.exec(&host, "f", "true").await?;
    assert_eq!(hosts.rows().await?, "b stopped\nc stopped\nd running\ne error (no disk is left)\nf running");
    Ok(())
}

async fn the_one_without_use_for_longest_makes_room(hosts: Hosts) -> Result<()> {
    let host = hosts.host_with(Options { running_max: 2, ..Options::default() });
    let held = hosts.spawn_exec(&host, "busy", "wait");
    hosts.double.running_execs(1).await;
    hosts.after(Duration::from_secs(1));
    hosts.exec(&host, "idle", "true").await?;
    host.note_uses().await?;
    hosts.after(Duration::from_secs(59));
    assert!(
        words(hosts.exec(&host, "next", "true").await).contains("--sandbox-max 2"),
        "a sandbox that was just used was stopped"
    );
    hosts.after(Duration::from_secs(2));
    hosts.exec(&host, "next", "true").await?;
    assert_eq!(hosts.rows().await?, "busy running\nidle stopped\nnext running", "a sandbox in use was stopped");
    hosts.double.fail(Asked::Stop, SandboxError::unavailable("it does not end"));
    hosts.after(Duration::from_secs(61));
    assert!(
        words(hosts.exec(&host, "idle", "true").await).contains("--sandbox-max 2"),
        "a sandbox that does not stop was counted as stopped"
    );
    hosts.double.mend();
    hosts.exec(&host, "idle", "true").await?;
    assert_eq!(hosts.rows().await?, "busy running\nidle running\nnext stopped");
    held.abort();
    Ok(())
}

async fn sandbox_whose_stop_failed_is_tried_last(hosts: Hosts) -> Result<()> {
    let host = hosts.host_with(Options { running_max: 3, ..Options::default() });
    for chat in ["oldest", "older", "old"] {
        hosts.exec(&host, chat, "true").await?;
        hosts.after(Duration::from_secs(1));
    }
    host.note_uses().await?;
    hosts.after(Duration::from_secs(61));
    hosts.double.fail_for(&hosts.name("oldest"), SandboxError::unavailable("it does not end"));
    hosts.exec(&host, "first", "true").await?;
    assert_eq!(hosts.double.asked(Asked::Stop), 2, "the oldest sandbox was not tried exactly once");
    hosts.exec(&host, "second", "true").await?;
    assert_eq!(hosts.double.asked(Asked::Stop), 3, "the oldest sandbox was retried before another sandbox");
    let rows = "first running\nold stopped\nolder stopped\noldest running (it does not end)\nsecond running";
    assert_eq!(hosts.rows().await?, rows);
    Ok(())
}

async fn one_that_needs_room_is_made_room_for_once(hosts: Hosts) -> Result<()> {
    let host = hosts.host_with(Options { running_max: 4, ..Options::default() });
    let broken = |row: &mut SandboxRow| row.status = SandboxStatus::Error;
    hosts.insert("broken", broken).await?;
    for chat in ["a", "b", "c", "d"] {
        hosts.exec(&host, chat, "true").await?;
    }
    host.note_uses().await?;
    hosts.after(Duration::from_secs(61));
    let all = async |chat: &str| {
        let calls: Vec<_> = (0..12).map(|_| hosts.spawn_exec(&host, chat, "echo here")).collect();
        for call in calls {
            assert_eq!(call.await??.stdout.text, "here\n");
        }
        anyhow::Ok(())
    };
    all("new").await?;
    // There is room for one sandbox. The later requests find that the same sandbox already occupies this room.
    host.delete(hosts.workspace, None, hosts.row("new").await?.id).await?;
    host.delete_due().await?;
    all("new").await?;
    let rows = hosts.rows().await?;
    let count = |status: &str| rows.lines().filter(|row| row.ends_with(status)).count();
    assert_eq!((count(" running"), count(" stopped")), (4, 1), "{rows}");
    assert!(rows.contains("broken error") && rows.contains("new running"), "{rows}");
    Ok(())
}

async fn a_bot_that_is_gone_gets_none(hosts: Hosts) -> Result<()> {
    let host = hosts.host_with(Options { running_max: 1, ..Options::default() });
    let gone = bot_in(&hosts.store, hosts.workspace, "gone").await?;
    assert!(hosts.store.delete_bot(hosts.workspace, gone).await?);
    let refused = host.exec(hosts.workspace, gone, &conversation("chat"), ExecRequest::new("true"), None).await;
    assert_eq!(words(refused), "the sandbox does not exist");
    assert_eq!((hosts.rows().await?.as_str(), hosts.double.created()), ("", 0));
    hosts.exec(&host, "chat", "true").await?;
    Ok(())
}

async fn a_caller_that_goes_away_leaves_it_whole(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.double.hang(Asked::EnsureRunning);
    let call = hosts.spawn_exec(&host, "chat", "true");
    hosts.double.reached(Asked::EnsureRunning, 1).await;
    call.abort();
    assert!(call.await.is_err());
    let next = hosts.spawn_exec(&host, "chat", "echo hello");
    hosts.double.mend();
    assert_eq!(next.await??.stdout.text, "hello\n");
    assert_eq!((hosts.double.created(), hosts.double.asked(Asked::EnsureRunning)), (1, 1));
    Ok(())
}

async fn a_sandbox_of_another_provider_is_not_this_ones(hosts: Hosts) -> Result<()> {
    let host = hosts.host();
    hosts.insert("chat", |row| row.provider = "other".to_owned()).await?;
    let refused = words(hosts.exec(&host, "chat", "true").await);
    assert_eq!(refused, "unavailable: this sandbox belongs to the provider `other`, but this server uses `double`");
    host.reconcile().await?;
    assert_eq!(hosts.rows().await?, "chat running", "a sandbox of another provider was changed");
    Ok(())
}
