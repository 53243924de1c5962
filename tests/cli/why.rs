//! `monstrum why`.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::json;

use crate::cli::{parsed, told};
use crate::world::World;

#[tokio::test]
async fn a_decision_is_explained_by_what_the_check_says() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    let server = &world.server;
    let mut answers = Vec::new();
    for arguments in [
        &["test_echo_run", r#"{"repo": "acme/site"}"#][..],
        &["test_echo_run", r#"{"repo": "other/site"}"#, "--resource", &bound.resource],
        &["test_echo_write"],
        &["absent", "{}"],
        &["test_echo_run", r#"{"repo": 7}"#],
    ] {
        answers.push(told(server, &[&["why", "tester"], arguments].concat()).await?);
    }
    assert_snapshot!(answers.join("\n"), @"");
    for (params, code) in [(json!({ "repo": "acme/site" }), 0), (json!({ "repo": "other/site" }), 1)] {
        let verdict = world.check("test_echo_run", &params).await?;
        for bot in ["tester", &world.bot] {
            let params = params.to_string();
            assert_eq!(parsed(server, &["why", bot, "test_echo_run", &params]).await?, (Some(code), verdict.clone()));
        }
    }
    let (_, calls) = world.api.get("/api/audit").await?;
    assert_eq!(calls["items"], json!([]), "nothing is called");
    Ok(())
}

#[tokio::test]
async fn who_may_not_ask_and_what_is_no_question_is_told() -> Result<()> {
    let world = World::with(&[]).await?;
    let own = world.api.new_key("bot", Some(&world.bot)).await?;
    let other = world.api.bot("other").await?;
    let mut answers = Vec::new();
    for arguments in [
        &[world.bot.as_str(), "absent", "--key", &own][..],
        &[&other, "absent", "--key", &own],
        &["tester", "absent", "--key", &own],
        &["nobody", "absent"],
        &["tester", "absent", "[1]"],
        &["tester", "absent", "{repo}"],
        &["tester", "absent", "{}", "--resource", "ours"],
        &["tester"],
    ] {
        answers.push(told(&world.server, &[&["why"], arguments].concat()).await?);
    }
    assert_snapshot!(answers.join("\n"), @"");
    Ok(())
}
