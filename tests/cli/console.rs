//! Tests of `monstrum console`.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use support::Server;

use crate::cli::{parsed, succeed, told};
use crate::world::text;

/// Without a terminal, the command prints the link and opens no browser.
#[tokio::test]
async fn the_command_prints_a_link() -> Result<()> {
    let server = Server::start(&[]).await?;
    let begin = format!("{}/console/enter/", server.url().unwrap_or_default());
    for arguments in [&["console"][..], &["console", "--no-open", "--ttl-s", "300"]] {
        let link = succeed(&server, arguments).await?;
        ensure!(link.starts_with(&begin) && !link.contains('\n'), "{link}");
    }
    let (code, ticket) = parsed(&server, &["console"]).await?;
    ensure!(
        code == Some(0) && text(&ticket["url"]).starts_with(&begin) && ticket["expires_at"].is_string(),
        "{ticket}"
    );
    Ok(())
}

#[tokio::test]
async fn a_link_of_a_bot_or_with_a_wrong_lifetime_is_refused() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let bot = api.bot("helper").await?;
    let key = api.new_key("bot", Some(&bot)).await?;
    assert_snapshot!(told(&server, &["console", "--key", &key]).await?, @r#"
    [stderr]
    error: This key has no permission for this action (403)
      this operation requires an approver, operator, admin or root key
      request [id 1]
    hint: use a key of a kind that permits this action; run `monstrum key create --help` to see the kinds
    [exit 1]
    "#);
    assert_snapshot!(told(&server, &["console", "--ttl-s", "601"]).await?, @r#"
    [stderr]
    error: The input is invalid (422)
      /ttl_s: expected a number from 1 to 600
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
    [exit 1]
    "#);
    Ok(())
}
