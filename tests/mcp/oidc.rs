//! Access tokens of the real `oidc-provider` in place of API keys.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use rstest::rstest;
use serde_json::{Value, json};
use support::McpPeer::{self, Python, TypeScriptClient};
use support::{OauthServer, now_s};

use super::peers::Driver;
use super::tokens::{PUBLIC, accepting, admit, seen};
use super::{Client, Scene};
use crate::http::Answers;
use crate::world::text;

/// The provider calls the person who signs in by this name.
const PERSON: &str = "person";
const SCOPE: &str = "openid mcp:tools";

/// A server that accepts the tokens of the provider, and a bot that admits the person.
struct Provided {
    oauth: OauthServer,
    scene: Scene,
}

impl Provided {
    async fn start() -> Result<Provided> {
        let oauth = OauthServer::start().await?;
        let scene = accepting(oauth.url()).await?;
        admit(&scene, &json!([PERSON])).await?;
        Ok(Provided { oauth, scene })
    }

    /// Returns the resource indicator of a bot.
    fn resource(bot: &str) -> String {
        format!("{PUBLIC}/mcp/{bot}")
    }

    /// Returns an access token, which is a JWT if `algorithm` is not null. `claims` replaces its claims.
    async fn token(&self, algorithm: &Value, claims: &Value, resource: &str, scope: &str) -> Result<String> {
        let changes = json!({"access_token_alg": algorithm, "access_token_claims": claims});
        self.oauth.control(&changes).await?;
        self.oauth.access_token(resource, scope).await
    }

    fn client(&self, token: &str) -> Client {
        Client::new(&self.scene.world.api.with_key(token), &self.scene.world.bot)
    }
}

#[tokio::test]
async fn tokens_of_the_provider_are_judged() -> Result<()> {
    let provided = Provided::start().await?;
    let world = &provided.scene.world;
    let own = Provided::resource(&world.bot);
    let other = Provided::resource(&world.api.bot("other").await?);
    let (rsa, none) = (json!("RS256"), json!({}));
    let mut answers = Answers::default();
    for (what, token) in [
        ("RS256", provided.token(&rsa, &none, &own, SCOPE).await?),
        ("ES256", provided.token(&json!("ES256"), &none, &own, SCOPE).await?),
        ("another audience", provided.token(&rsa, &none, &other, SCOPE).await?),
        ("expired", provided.token(&rsa, &json!({"exp": now_s()? - 61}), &own, SCOPE).await?),
        ("without the scope", provided.token(&rsa, &none, &own, "openid").await?),
        ("a user who is not admitted", provided.token(&rsa, &json!({"sub": "eve"}), &own, SCOPE).await?),
        ("opaque", provided.token(&Value::Null, &none, &own, SCOPE).await?),
    ] {
        let (status, told) = seen(&provided.client(&token)).await?;
        answers.add(what, (status, json!({"detail": told["detail"]})));
    }
    assert_snapshot!(answers, @r#"
    RS256: 200 {"detail":8}
    ES256: 200 {"detail":8}
    another audience: 401 {"detail":"the access token is not valid: its audience is not this URL"}
    expired: 401 {"detail":"the access token is not valid: it has expired"}
    without the scope: 403 {"detail":"the access token does not have the scope `mcp:tools`"}
    a user who is not admitted: 403 {"detail":"the user of this access token may not use this bot"}
    opaque: 401 {"detail":"the access token is not valid: expected a JWT that is signed with RS256, ES256 or EdDSA"}
    "#);
    Ok(())
}

/// The official clients call a tool for the person who has signed in.
#[rstest]
#[tokio::test]
async fn a_client_calls_for_the_person(#[values(Python, TypeScriptClient)] peer: McpPeer) -> Result<()> {
    let provided = Provided::start().await?;
    let world = &provided.scene.world;
    let token = provided.token(&json!("ES256"), &json!({}), &Provided::resource(&world.bot), SCOPE).await?;
    let url = world.server.url().context("the server is not running")?;
    let (mut client, _) = Driver::connect(peer, &format!("{url}/mcp/{}", world.bot), &token).await?;
    let call = json!({"do": "call", "tool": "test_echo_run", "arguments": {"repo": "acme/site"}});
    let result = client.ask(&call).await?;
    let user = json!({"app_id": provided.oauth.url(), "user_id": PERSON});
    let row = world.api.audit(text(&result["structured"]["request_id"])).await?;
    assert_eq!((&row["status"], &row["user"]), (&json!("success"), &user), "{result} {row}");
    assert!(!result.to_string().contains(&token), "a token is not passed on");
    Ok(())
}
