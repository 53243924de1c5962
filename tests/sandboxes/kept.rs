//! The limit on the number of sandboxes that a workspace keeps.

use anyhow::Result;
use monstrum_core::sandboxes::Options;
use monstrum_sandbox::ExecRequest;

use super::{Hosts, bot_in, conversation, on_both, words, workspace_named};

on_both! {
    a_workspace_at_its_limit_gets_no_new_sandbox,
}

async fn a_workspace_at_its_limit_gets_no_new_sandbox(hosts: Hosts) -> Result<()> {
    let host = hosts.host_with(Options { kept_max: 1, ..Options::default() });
    let calls: Vec<_> = (0..10).map(|_| hosts.spawn_exec(&host, "a", "echo here")).collect();
    for call in calls {
        assert_eq!(call.await??.stdout.text, "here\n", "concurrent requests of one conversation were rejected");
    }
    let limit = "this workspace has reached a sandbox limit: it keeps 1 of 1 sandboxes (--sandbox-kept-max) and 0.0 of \
                 50 GiB (--sandbox-kept-gib); delete finished conversations";
    assert_eq!(words(hosts.exec(&host, "b", "true").await), limit);
    assert_eq!(hosts.rows().await?, "a running");
    let foreign = workspace_named(&hosts.store, "foreign").await?;
    let bot = bot_in(&hosts.store, foreign, "agent").await?;
    host.exec(foreign, bot, &conversation("b"), ExecRequest::new("true"), None).await?;
    assert_eq!(hosts.store.workspaces_with_sandboxes(1).await?.len(), 2);
    assert_eq!(hosts.store.workspaces_with_sandboxes(2).await?, []);
    host.delete(hosts.workspace, None, hosts.row("a").await?.id).await?;
    hosts.exec(&host, "b", "true").await?;
    assert_eq!(
        hosts.rows().await?,
        "a deleting\nb running",
        "a sandbox that is being deleted counts towards the limit"
    );
    Ok(())
}
