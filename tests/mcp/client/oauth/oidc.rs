//! OAuth by discovery against the real `oidc-provider`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{FakeMcp, Generation, McpReply, OauthServer, Server};

use super::super::{resource, tool};
use super::{Protected, RESOURCE_METADATA};
use crate::world::{World, text};

/// A person authorizes an MCP server whose authorization server is found by its metadata. The token is for the MCP
/// server, and its refresh is too.
#[tokio::test]
async fn a_person_authorizes_at_a_discovered_server() -> Result<()> {
    let world = World::on(Server::prepare(&[])?.argument("--sandbox").argument("off")).await?;
    let oauth = OauthServer::start().await?;
    let mcp = FakeMcp::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    mcp.require_token("a token that was never issued");
    let metadata = json!({
        "resource": mcp.url(), "authorization_servers": [oauth.url()], "scopes_supported": ["openid", "repo"],
    });
    mcp.set_document(RESOURCE_METADATA, McpReply::json(200, &metadata));
    let id = resource(&world, "notes", &mcp.url(), &json!({})).await?;
    let path = |rest: &str| format!("/api/resources/{id}/{rest}");
    let (status, proposal) = world.api.post(&path("oauth/discover"), &json!({})).await?;
    ensure!(status == 200, "{proposal}");
    assert_eq!(proposal["issuer"], json!(oauth.url()));
    assert_eq!((&proposal["registration"], &proposal["token_auth"]), (&json!("given"), &json!("client_secret_basic")));
    assert_eq!(proposal["scopes"], json!(["openid", "repo", "offline_access"]));
    let client = json!({
        "digest": proposal["digest"], "client_id": "by-header", "client_secret": OauthServer::CLIENT_SECRET,
    });
    let (status, provider) = world.api.post(&path("oauth/confirm"), &client).await?;
    ensure!(status == 200, "{provider}");

    let (status, started) = world.api.post(&path("oauth/start"), &json!({})).await?;
    ensure!(status == 200, "{started}");
    let protected = Protected { world, mcp, auth: support::AuthorizationServer::start().await?, resource: id };
    let begun = protected.open(text(&started["authorization_url"]), None).await?;
    ensure!(begun.status == 303, "{}", begun.text);
    let (page, cookie) = (begun.location.context("a redirect")?, begun.cookie.context("a cookie")?);
    let ended = oauth.person_at(&page).await?;
    let callback = ended["url"].as_str().with_context(|| format!("the provider did not redirect: {ended}"))?;
    // The provider names itself in its answer (RFC 9207).
    assert!(callback.contains("iss="), "{callback}");
    let page = protected.open(callback, Some(&cookie)).await?;
    ensure!(page.status == 200, "{}", page.text);
    assert_eq!(protected.credential().await?["status"], "ready");
    let (status, refreshed) = protected.api().post(&protected.path("oauth/refresh"), &json!({})).await?;
    assert_eq!((status, &refreshed["status"]), (200, &json!("ready")), "{refreshed}");
    assert_eq!(oauth.grants("refresh_token").await?, 1);
    let resources = oauth.control(&json!({})).await?["resources"].clone();
    let url = json!(protected.mcp.url());
    let named = resources.as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(named.len() >= 2 && named.iter().all(|resource: &Value| *resource == url), "{resources}");
    Ok(())
}
