//! Limits that one agent cannot escape by connecting again or by repeating itself.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::hello;
use tokio_tungstenite::tungstenite::Message;

use super::{Scene, ending, sum, tool};
use crate::world::text;

/// A list is compared with the database even if it has not changed, so repeated lists count too.
#[tokio::test]
async fn an_agent_declares_its_tools_twenty_times_in_ten_seconds() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let mut refused = None;
    for _ in 0..60 {
        agent.send(&json!({"type": "tools", "tools": [sum()]})).await?;
        let answer = agent.next().await?;
        if answer["type"] == "error" {
            refused = Some(answer);
            break;
        }
        assert_eq!(answer["type"], "welcome", "{answer}");
    }
    assert_eq!(refused.map(|refused| refused["code"].clone()), Some(json!("too_many_changes")));
    // The connection serves with its last list.
    let call = scene.call("lab__sum", &json!({}));
    let frame = agent.next_of("call").await?;
    agent.succeed(&frame, &json!(1)).await?;
    assert_eq!(ending(&call.await??), "success   1");
    Ok(())
}

/// The limit belongs to the resource, and outlives its connections.
#[tokio::test]
async fn connecting_again_does_not_lift_the_limit_of_declarations() -> Result<()> {
    let scene = Scene::with(&json!({"definitions": "trusted"})).await?;
    for number in 0..60 {
        let mut agent = scene.socket().await?;
        let tools = json!([tool("sum", &format!("Version {number}."))]);
        agent.send(&hello(&tools, &json!({"replace": true}))).await?;
        let answer = agent.next().await?;
        if answer["type"] == "error" {
            ensure!(number >= 20, "refused after {number} declarations: {answer}");
            assert_eq!(text(&answer["code"]), "too_many_changes");
            assert_eq!(agent.closed().await?.0, 1013);
            return Ok(());
        }
        // The resource has no socket before the next one is opened.
        agent.send_message(Message::Close(None)).await?;
        agent.closed().await?;
    }
    anyhow::bail!("an agent that connects for each declaration is not limited")
}

#[tokio::test]
async fn a_socket_that_only_pings_is_closed_before_its_hello() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.socket().await?;
    for _ in 0..200 {
        // The server may close the socket meanwhile.
        if agent.send_message(Message::Ping(Vec::new().into())).await.is_err() {
            break;
        }
    }
    let (code, frames) = agent.closed().await?;
    let codes: Vec<&Value> = frames.iter().map(|frame| &frame["code"]).collect();
    assert!(code == 0 || (code == 1008 && codes == [&json!("hello_expected")]), "{code} {codes:?}");
    Ok(())
}
