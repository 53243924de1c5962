//! The share of a plugin's capacity: the calls of one workspace cannot use all of the capacity, so that calls of other
//! workspaces need not wait.

use anyhow::{Result, ensure};
use futures::future::join_all;
use serde_json::{Value, json};
use support::{Api, FakeGithub};

use crate::http::workspace;
use crate::world::World;

/// The default limits on the concurrent calls of a plugin and of a bot.
const CALLS_PER_PLUGIN: usize = 64;
const CALLS_PER_BOT: usize = 32;

/// Creates a bot in the workspace that may use all tools of `test-echo`.
async fn bot(api: &Api, name: &str, upstream: &FakeGithub) -> Result<String> {
    let bot = api.bot(name).await?;
    api.grant(&bot, "test-echo", (&upstream.url(), &upstream.token()), &["*"], &json!({})).await?;
    Ok(bot)
}

#[tokio::test]
async fn a_workspace_whose_bots_fill_a_plugin_makes_no_other_workspace_wait() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let (one, other) = (workspace(&world.api, "one").await?, workspace(&world.api, "other").await?);
    let greedy = [bot(&one, "first", &world.github).await?, bot(&one, "second", &world.github).await?];
    let upstream = FakeGithub::start().await?;
    let modest = bot(&other, "modest", &upstream).await?;
    let params = json!({ "path": "/echo" });
    world.github.hold();
    let fill = join_all((0..CALLS_PER_PLUGIN).map(|call| one.call(&greedy[call % 2], "test_echo_fetch", &params)));
    let told = async {
        // A workspace may use at most half of the plugin's capacity.
        world.reached(CALLS_PER_PLUGIN / 2).await?;
        let answers = join_all((0..4).map(|_| other.call(&modest, "test_echo_fetch", &params))).await;
        let reached = world.github.requests().len();
        world.github.release();
        anyhow::Ok((answers, reached))
    };
    let (filled, told) = tokio::join!(fill, told);
    let (answers, reached) = told?;
    assert_eq!(reached, CALLS_PER_PLUGIN / 2, "the calls of one workspace use more than half of the capacity");
    for answer in answers {
        let answer = answer?;
        ensure!(answer["status"] == "success", "{answer}");
    }
    for answer in filled {
        let answer = answer?;
        // The other half of the calls waited for up to 5 s.
        ensure!(answer["status"] == "success" || answer["code"] == "busy", "{answer}");
    }
    Ok(())
}

#[tokio::test]
async fn a_workspace_that_uses_a_plugin_alone_has_all_of_it() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bots = [bot(&world.api, "first", &world.github).await?, bot(&world.api, "second", &world.github).await?];
    // A workspace that has no binding to the plugin does not reduce the share of other workspaces.
    workspace(&world.api, "other").await?.bot("idle").await?;
    world.github.hold();
    let params = json!({ "path": "/echo" });
    let calls = join_all(
        (0..CALLS_PER_PLUGIN).map(|call| world.api.call(&bots[call / CALLS_PER_BOT], "test_echo_fetch", &params)),
    );
    let all = async {
        let reached = world.reached(CALLS_PER_PLUGIN).await;
        world.github.release();
        reached
    };
    let (answers, reached) = tokio::join!(calls, all);
    reached?;
    let answers = answers.into_iter().collect::<Result<Vec<Value>>>()?;
    assert!(answers.iter().all(|answer| answer["status"] == "success"), "{answers:?}");
    Ok(())
}
