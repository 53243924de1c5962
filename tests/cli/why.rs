//! Tests of the command `monstrum why`.

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
    assert_snapshot!(answers.join("\n"), @r#"
    decision  allow
    [exit 0]
    decision         deny
    message          Scope violation: Repository other/site is not authorized
    rule             scope.repos
    reason           value `other/site` does not match any entry in scope_constraints.repos of the binding
    smallest change  add `other/site` to scope_constraints.repos of the binding
    [exit 1]
    decision         deny
    message          Permission denied: tool 'test_echo_write' is not available to this bot
    rule             role.allowed_operations
    reason           operation `echo.write` does not match any entry in allowed_operations of the role
    smallest change  add `echo.write` to allowed_operations of the role
    [exit 1]
    decision         deny
    message          Permission denied: tool 'absent' is not available to this bot
    rule             unknown_tool
    reason           no resource bound to the bot has a tool `absent`
    smallest change  bind a resource whose plugin provides this tool to the bot
    [exit 1]
    decision  deny
    message   Invalid parameters: /repo: 7 is not of type "string"
    rule      input
    reason    the parameters do not satisfy the tool's `input_schema`
    [exit 1]
    "#);
    for (params, code) in [(json!({ "repo": "acme/site" }), 0), (json!({ "repo": "other/site" }), 1)] {
        let verdict = world.check("test_echo_run", &params).await?;
        for bot in ["tester", &world.bot] {
            let params = params.to_string();
            assert_eq!(parsed(server, &["why", bot, "test_echo_run", &params]).await?, (Some(code), verdict.clone()));
        }
    }
    let (_, calls) = world.api.get("/api/audit").await?;
    assert_eq!(calls["items"], json!([]), "the check called the tool");
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
    assert_snapshot!(answers.join("\n"), @r#"
    decision  deny
    message   Permission denied: tool 'absent' is not available to this bot
    [exit 1]
    [stderr]
    error: Not found (404)
      no such bot
      request [id 1]
    hint: check the id or name of the bot; also check --workspace
    [exit 1]
    [stderr]
    error: This key has no permission for this action (403)
      this operation requires an operator, admin or root key
      request [id 1]
    hint: use a key of a kind that permits this action; run `monstrum key create --help` to see the kinds
    [exit 1]
    [stderr]
    error: the workspace has no bot `nobody`
    hint: `monstrum bot list` lists the bots; --workspace sets another workspace
    [exit 1]
    [stderr]
    error: invalid value '[1]' for '[PARAMS]': expected a JSON object: invalid type: sequence, expected a map at line 1 column 0
    hint: `monstrum why --help` shows usage and examples
    [exit 2]
    [stderr]
    error: invalid value '{repo}' for '[PARAMS]': expected a JSON object: key must be a string at line 1 column 2
    hint: `monstrum why --help` shows usage and examples
    [exit 2]
    [stderr]
    error: invalid value 'ours' for '--resource <ID>': `ours` is not a valid resource id: expected a UUID in lower case with hyphens
    hint: `monstrum why --help` shows usage and examples
    [exit 2]
    [stderr]
    error: the following required arguments were not provided:
      <TOOL>

    Usage: monstrum why --url <URL> --data-dir <DIR> <BOT> <TOOL> [PARAMS]
    hint: `monstrum why --help` shows usage and examples
    [exit 2]
    "#);
    Ok(())
}
