//! OAuth providers. An admin confirms a provider, a manifest only proposes endpoints, and a client secret is sent only
//! to the endpoint for which it was saved.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{OauthServer, Server};

use super::{Authorizing, PLUGIN};
use crate::call::plugins::edit;
use crate::http::Answers;

async fn create(authorizing: &Authorizing, body: Value) -> Result<(u16, Value)> {
    authorizing.api().post("/api/oauth/providers", &body).await
}

#[tokio::test]
async fn a_manifest_proposes_and_an_admin_confirms() -> Result<()> {
    let authorizing = Authorizing::without_provider(Server::prepare(&[PLUGIN])?).await?;
    let mut answers = Answers::default();
    let bare = json!({ "resource_type": PLUGIN, "client_id": "me", "client_secret": "a secret of mine" });
    let operator = authorizing.api().with_key(&authorizing.api().new_key("operator", None).await?);
    answers.add("an operator", operator.post("/api/oauth/providers", &bare).await?);
    let (status, made) = create(&authorizing, bare.clone()).await?;
    let path = format!("/api/oauth/providers/{}", made["id"].as_str().context("an id")?);
    answers.add("proposed", (status, made));
    answers.add("a second one", create(&authorizing, bare).await?);
    answers.add("listed", operator.get("/api/oauth/providers").await?);
    let of = async |query: &str| {
        let (status, listed) = operator.get(&format!("/api/oauth/providers?{query}")).await?;
        anyhow::Ok((status, listed["items"].as_array().map(Vec::len)))
    };
    assert_eq!(of(&format!("resource_type={PLUGIN}")).await?, (200, Some(1)));
    assert_eq!(of("resource_type=jira").await?, (200, Some(0)), "the filter was ignored");
    assert_eq!(of("resource_type=no%20type&limit=1").await?, (200, Some(0)));
    answers.add("scopes", authorizing.api().patch(&path, &json!({ "scopes": [] })).await?);
    answers.add("no more secret", authorizing.api().patch(&path, &json!({ "client_secret": null })).await?);
    answers.add(
        "elsewhere",
        authorizing.api().patch(&path, &json!({ "token_url": "https://elsewhere.example/t" })).await?,
    );
    answers.add("deleted", authorizing.api().delete(&path).await?);
    answers.add("gone", authorizing.api().delete(&path).await?);
    assert_snapshot!(answers, @r#"
    an operator: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"an admin key is required","request_id":"[id 1]"}
    proposed: 201 {"id":"[id 2]","resource_type":"test-echo","resource_id":null,"client_id":"me","has_client_secret":true,"authorization_url":"https://manifest.example/auth","token_url":"https://manifest.example/token","device_authorization_url":"https://manifest.example/device","scopes":["from-the-manifest"],"issuer":null,"token_auth":null,"created_at":"[time]","updated_at":"[time]"}
    a second one: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"the object already exists","request_id":"[id 3]"}
    listed: 200 {"items":[{"id":"[id 2]","resource_type":"test-echo","resource_id":null,"client_id":"me","has_client_secret":true,"authorization_url":"https://manifest.example/auth","token_url":"https://manifest.example/token","device_authorization_url":"https://manifest.example/device","scopes":["from-the-manifest"],"issuer":null,"token_auth":null,"created_at":"[time]","updated_at":"[time]"}],"next_cursor":null}
    scopes: 200 {"id":"[id 2]","resource_type":"test-echo","resource_id":null,"client_id":"me","has_client_secret":true,"authorization_url":"https://manifest.example/auth","token_url":"https://manifest.example/token","device_authorization_url":"https://manifest.example/device","scopes":[],"issuer":null,"token_auth":null,"created_at":"[time]","updated_at":"[time]"}
    no more secret: 200 {"id":"[id 2]","resource_type":"test-echo","resource_id":null,"client_id":"me","has_client_secret":false,"authorization_url":"https://manifest.example/auth","token_url":"https://manifest.example/token","device_authorization_url":"https://manifest.example/device","scopes":[],"issuer":null,"token_auth":null,"created_at":"[time]","updated_at":"[time]"}
    elsewhere: 200 {"id":"[id 2]","resource_type":"test-echo","resource_id":null,"client_id":"me","has_client_secret":false,"authorization_url":"https://manifest.example/auth","token_url":"https://elsewhere.example/t","device_authorization_url":"https://manifest.example/device","scopes":[],"issuer":null,"token_auth":null,"created_at":"[time]","updated_at":"[time]"}
    deleted: 204
    gone: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such OAuth provider","request_id":"[id 4]"}
    "#);
    Ok(())
}

#[tokio::test]
async fn the_secret_goes_nowhere_else() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let (_, list) = authorizing.api().get("/api/oauth/providers").await?;
    let path = format!("/api/oauth/providers/{}", list["items"][0]["id"].as_str().context("an id")?);
    let mut answers = Answers::default();
    for change in [
        json!({ "token_url": "https://evil.example/token" }),
        json!({ "device_authorization_url": "https://evil.example/device" }),
        json!({ "client_id": "another" }),
    ] {
        answers.add(&change.to_string(), authorizing.api().patch(&path, &change).await?);
    }
    assert_snapshot!(answers, @r#"
    {"token_url":"https://evil.example/token"}: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/client_secret: required when `client_id`, `token_url` or `device_authorization_url` changes; send null for a client without a secret","request_id":"[id 1]","errors":[{"path":"/client_secret","message":"required when `client_id`, `token_url` or `device_authorization_url` changes; send null for a client without a secret"}]}
    {"device_authorization_url":"https://evil.example/device"}: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/client_secret: required when `client_id`, `token_url` or `device_authorization_url` changes; send null for a client without a secret","request_id":"[id 2]","errors":[{"path":"/client_secret","message":"required when `client_id`, `token_url` or `device_authorization_url` changes; send null for a client without a secret"}]}
    {"client_id":"another"}: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/client_secret: required when `client_id`, `token_url` or `device_authorization_url` changes; send null for a client without a secret","request_id":"[id 3]","errors":[{"path":"/client_secret","message":"required when `client_id`, `token_url` or `device_authorization_url` changes; send null for a client without a secret"}]}
    "#);
    // The authorization URL can be changed while the client secret is kept, because the client secret is never sent to
    // this URL.
    let moved = json!({ "authorization_url": format!("{}/auth?prompt=login", authorizing.oauth.url()) });
    assert_eq!(authorizing.api().patch(&path, &moved).await?.0, 200);
    authorizing.authorize().await
}

#[tokio::test]
async fn what_is_no_provider_is_refused_by_its_fields() -> Result<()> {
    let authorizing = Authorizing::without_provider(Server::prepare(&[PLUGIN, "github"])?).await?;
    let mut answers = Answers::default();
    for body in [
        json!({ "resource_type": "nowhere", "client_id": "me" }),
        json!({
            "resource_type": PLUGIN, "client_id": "", "client_secret": "short", "authorization_url": "javascript:alert(1)",
            "token_url": "http://token.example/", "device_authorization_url": "https://user:pass@device.example/",
            "scopes": ["a b", "\""],
        }),
        json!({ "resource_type": PLUGIN, "client_id": "me", "authorization_url": "https://id.example/?scope=admin" }),
        json!({ "resource_type": PLUGIN, "client_id": "me", "redirect_uri": "https://evil.example" }),
        json!({ "resource_type": PLUGIN, "client_id": "me", "client_secret": OauthServer::CLIENT_SECRET, "token_url": 7 }),
    ] {
        answers.add("", create(&authorizing, body).await?);
    }
    assert_snapshot!(answers, @r#"
    422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/resource_type: no loaded plugin has this resource type","request_id":"[id 1]","errors":[{"path":"/resource_type","message":"no loaded plugin has this resource type"}]}
    422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"the input has 7 errors","request_id":"[id 2]","errors":[{"path":"/client_id","message":"must not be empty or contain control characters"},{"path":"/authorization_url","message":"expected an absolute URL"},{"path":"/token_url","message":"expected https://; http:// is allowed only for loopback addresses"},{"path":"/device_authorization_url","message":"must not contain a user, password or fragment"},{"path":"/scopes/0","message":"expected visible ASCII characters without spaces, quotes or backslashes"},{"path":"/scopes/1","message":"expected visible ASCII characters without spaces, quotes or backslashes"},{"path":"/client_secret","message":"must have 8 to 4096 bytes and no control characters"}]}
    422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/authorization_url: the query must not contain any of client_id, code_challenge, code_challenge_method, redirect_uri, response_mode, response_type, scope, state","request_id":"[id 3]","errors":[{"path":"/authorization_url","message":"the query must not contain any of client_id, code_challenge, code_challenge_method, redirect_uri, response_mode, response_type, scope, state"}]}
    422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/redirect_uri: unknown field `redirect_uri`, expected one of `resource_type`, `client_id`, `client_secret`, `authorization_url`, `token_url`, `device_authorization_url`, `scopes`","request_id":"[id 4]","errors":[{"path":"/redirect_uri","message":"unknown field `redirect_uri`, expected one of `resource_type`, `client_id`, `client_secret`, `authorization_url`, `token_url`, `device_authorization_url`, `scopes`"}]}
    422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/token_url: invalid type: integer `7`, expected a string","request_id":"[id 5]","errors":[{"path":"/token_url","message":"invalid type: integer `7`, expected a string"}]}
    "#);
    Ok(())
}

/// A manifest cannot change the endpoints that an admin has confirmed.
#[tokio::test]
async fn a_manifest_that_proposes_another_endpoint_moves_nothing() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let (_, before) = authorizing.api().get("/api/oauth/providers").await?;
    let folder = authorizing.world.server.plugins_dir().join(PLUGIN);
    edit(&folder, |manifest| manifest.replace("https://manifest.example/", "https://evil.example/"))?;
    let (status, entry) = authorizing.api().post(&format!("/api/plugins/{PLUGIN}/reload"), &Value::Null).await?;
    assert_eq!((status, &entry["status"]), (200, &json!("loaded")), "{entry}");
    let (_, contract) = authorizing.api().get(&format!("/api/resource-types/{PLUGIN}")).await?;
    assert!(
        contract.to_string().contains("https://evil.example/token"),
        "the contract does not propose the endpoint: {contract}"
    );
    assert_eq!(authorizing.api().get("/api/oauth/providers").await?.1, before);
    authorizing.authorize().await?;
    assert_eq!(authorizing.call().await?[0], 200);
    Ok(())
}
