//! Metadata, answers and rows that an attacker has made up, and secrets that must stay where they are.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::{AuthorizationServer, McpReply, Server};

use super::{Protected, RESOURCE_METADATA};
use crate::tamper::sqlite;
use crate::world::text;

/// Checks that a look-up fails with this message, and that nothing was stored.
async fn is_refused(protected: &Protected, what: &str) -> Result<()> {
    let (status, answer) = protected.look_up().await?;
    ensure!(status == 502, "{what}: {status} {answer}");
    ensure!(text(&answer["detail"]).contains(what), "{what}: {answer}");
    let (status, answer) = protected.confirm(&json!("sha256:0")).await?;
    ensure!(status == 409 && answer["proposal"].is_null(), "{what}: {answer}");
    ensure!(protected.providers().await? == json!([]), "{what}");
    Ok(())
}

#[tokio::test]
async fn metadata_that_do_not_belong_together_are_refused() -> Result<()> {
    let protected = Protected::start().await?;
    let (url, issuer) = (protected.mcp.url(), protected.auth.issuer());
    for other in ["http://127.0.0.1:1/mcp".to_owned(), format!("{url}/"), url.replace("/mcp", "")] {
        protected.publish(&other, &issuer);
        is_refused(&protected, "`resource` is not the URL").await?;
    }
    protected.publish(&url, &issuer);
    for other in [format!("{issuer}/"), "https://id.example".to_owned()] {
        protected.auth.set_metadata("issuer", &json!(other));
        is_refused(&protected, "`issuer` is not").await?;
    }
    protected.auth.set_metadata("issuer", &json!(issuer));
    for methods in [json!(["plain"]), json!([]), Value::Null] {
        protected.auth.set_metadata("code_challenge_methods_supported", &methods);
        is_refused(&protected, "S256").await?;
    }
    protected.auth.set_metadata("code_challenge_methods_supported", &json!(["S256"]));
    protected.auth.set_metadata("authorization_endpoint", &json!("javascript:alert(1)"));
    is_refused(&protected, "`authorization_endpoint` is not usable").await?;
    protected.auth.set_metadata("authorization_endpoint", &json!(format!("{issuer}/authorize?state=mine")));
    is_refused(&protected, "the query must not contain").await?;
    protected.auth.set_metadata("authorization_endpoint", &json!(format!("{issuer}/authorize?resource=mine")));
    is_refused(&protected, "the query must not contain").await?;
    protected.auth.set_metadata("authorization_endpoint", &json!(format!("{issuer}/authorize")));
    protected.proposal().await?;
    Ok(())
}

#[tokio::test]
async fn look_ups_are_limited_and_follow_no_redirect() -> Result<()> {
    let protected = Protected::start().await?;
    let large = json!({ "resource": protected.mcp.url(), "more": "x".repeat(256 << 10) });
    protected.mcp.set_document(RESOURCE_METADATA, McpReply::json(200, &large));
    is_refused(&protected, "is larger than 256 KiB").await?;
    let endless = McpReply::text(200, "application/json", "{").flooding(&" ".repeat(1 << 16));
    protected.mcp.set_document(RESOURCE_METADATA, endless);
    is_refused(&protected, "is larger than 256 KiB").await?;

    let elsewhere = AuthorizationServer::start().await?;
    let redirect = |to: String| McpReply::text(302, "text/plain", "").header("location", &to);
    protected.mcp.set_document(RESOURCE_METADATA, redirect(format!("{}/metadata", elsewhere.issuer())));
    is_refused(&protected, "answered with status 302").await?;
    protected.publish(&protected.mcp.url(), &protected.auth.issuer());
    let place = "/.well-known/oauth-authorization-server";
    protected.auth.reply(place, redirect(format!("{}{place}", elsewhere.issuer())));
    is_refused(&protected, "answered with status 302").await?;
    assert!(elsewhere.requests().is_empty(), "a redirect was followed");
    Ok(())
}

#[tokio::test]
async fn look_ups_reach_no_address_that_the_resource_may_not_reach() -> Result<()> {
    let protected = Protected::start().await?;
    let url = protected.mcp.url();
    for private in ["http://10.0.0.7", "http://169.254.169.254/latest", "http://[::1]:8080"] {
        protected.publish(&url, private);
        is_refused(&protected, "may not connect").await?;
        protected.mcp.set_challenge(&format!("Bearer resource_metadata=\"{private}/metadata\""));
        is_refused(&protected, "may not connect").await?;
        protected.mcp.set_challenge("Bearer");
    }
    for (bad, what) in [
        ("ftp://id.example", "not an https:// URL"),
        ("https://user:pass@id.example", "a user or a password"),
        ("https://id.example/?a=b", "has a query"),
        ("not a url", "not a URL"),
    ] {
        protected.publish(&url, bad);
        is_refused(&protected, what).await?;
    }

    // The rules of the resource decide, and not the address of the MCP server.
    protected.publish(&url, &protected.auth.issuer());
    let network = json!({ "network": null });
    let (status, body) = protected.api().patch(&format!("/api/resources/{}", protected.resource), &network).await?;
    assert_eq!(status, 200, "{body}");
    let before = protected.auth.requests().len();
    is_refused(&protected, "may use only https://").await?;
    assert_eq!(protected.auth.requests().len(), before);
    Ok(())
}

#[tokio::test]
async fn a_digest_that_has_changed_is_answered_with_the_current_proposal() -> Result<()> {
    let protected = Protected::start().await?;
    let first = protected.proposal().await?;
    let evil = AuthorizationServer::start().await?;
    protected.publish(&protected.mcp.url(), &evil.issuer());
    // The look-up after the change replaces the proposal, so the digest that the admin has read is not confirmed.
    let second = protected.proposal().await?;
    assert_ne!(first["digest"], second["digest"]);
    let (status, refused) = protected.confirm(&first["digest"]).await?;
    assert_eq!((status, &refused["proposal"]), (409, &second), "{refused}");
    assert_eq!(protected.providers().await?, json!([]));
    assert!(evil.requests_for("/register").is_empty() && protected.auth.requests_for("/register").is_empty());

    // A proposal belongs to the URL for which it was made.
    let path = format!("/api/resources/{}", protected.resource);
    let moved = json!({ "config": { "url": protected.mcp.url().replace("/mcp", "/other") } });
    assert_eq!(protected.api().patch(&path, &moved).await?.0, 200);
    let (status, refused) = protected.confirm(&second["digest"]).await?;
    assert_eq!((status, &refused["proposal"]), (409, &Value::Null), "{refused}");
    Ok(())
}

#[tokio::test]
async fn an_answer_of_another_issuer_is_not_redeemed() -> Result<()> {
    let protected = Protected::start().await?;
    protected.confirmed().await?;
    let issuer = protected.auth.issuer();
    for iss in [Some("https://evil.example"), Some(&*format!("{issuer}/")), Some(""), None] {
        protected.auth.set_iss(iss);
        let (page, cookie) = protected.begun().await?;
        let callback = protected.auth.person_at(&page).await?;
        let ended = protected.open(&callback, Some(&cookie)).await?;
        assert_eq!(ended.status, 400, "{iss:?} {}", ended.text);
    }
    assert!(protected.auth.forms().is_empty(), "a code was sent to the token endpoint");
    assert!(protected.credential().await?.is_null());
    // An error of another issuer is not this provider's either.
    let (page, cookie) = protected.begun().await?;
    let callback = protected.auth.person_at(&page).await?;
    let callback = callback.replace("code=", "error=access_denied&x=");
    let ended = protected.open(&format!("{callback}&iss=https%3A%2F%2Fevil.example"), Some(&cookie)).await?;
    assert_eq!(ended.status, 400, "{}", ended.text);
    assert!(ended.text.contains("a provider other than the requested one"), "{}", ended.text);
    protected.auth.set_iss(Some(&issuer));
    protected.authorized().await?;
    assert_eq!(protected.credential().await?["status"], "ready");
    Ok(())
}

/// The client, its secret and the refresh token belong to the issuer that was confirmed.
#[tokio::test]
async fn another_issuer_needs_another_confirmation_and_gets_no_secret() -> Result<()> {
    let protected = Protected::start().await?;
    let first = protected.ready().await?;
    let other = AuthorizationServer::start().await?;
    protected.publish(&protected.mcp.url(), &other.issuer());
    let proposal = protected.proposal().await?;
    assert_eq!(proposal["issuer"], json!(other.issuer()));
    // The proposal changes nothing.
    assert_eq!(protected.providers().await?, json!([first]));
    assert_eq!(protected.call().await?.0, "success");
    let path = format!("/api/oauth/providers/{}", text(&first["id"]));
    let moved = json!({ "token_url": format!("{}/token", other.issuer()), "client_secret": "a secret of mine" });
    let (status, refused) = protected.api().patch(&path, &moved).await?;
    assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/token_url")), "{refused}");

    let (status, second) = protected.confirm(&proposal["digest"]).await?;
    assert_eq!((status, &second["issuer"]), (200, &json!(other.issuer())), "{second}");
    assert_ne!(first["token_url"], second["token_url"]);
    assert_eq!(protected.credential().await?["status"], "needs-authorization");
    let forms = protected.auth.forms().len();
    protected.mcp.require_token("another token");
    assert_eq!(protected.call().await?.1, "unauthenticated");
    assert_eq!((protected.auth.forms().len(), other.forms().len()), (forms, 0), "the refresh token was sent");
    assert_eq!(other.requests_for("/register").len(), 1);
    Ok(())
}

#[tokio::test]
async fn rows_that_were_changed_with_sql_are_not_used() -> Result<()> {
    let mut protected = Protected::start().await?;
    let evil = AuthorizationServer::start().await?;
    // A proposal of another resource is not confirmed.
    let proposal = protected.proposal().await?;
    protected.world.server.stop().await?;
    let folder = protected.world.server.data_dir();
    let (from, to) = (protected.auth.issuer(), evil.issuer());
    sqlite(&folder, &[&format!("update oauth_proposals set proposal = replace(proposal, '{from}', '{to}')")]).await?;
    protected.world.server.launch().await?;
    protected.world.api = protected.world.server.api()?;
    let (status, refused) = protected.confirm(&proposal["digest"]).await?;
    assert_eq!((status, &refused["proposal"]), (409, &Value::Null), "{refused}");

    protected.ready().await?;
    protected.mcp.require_token("another token");
    for change in [
        format!("token_url = '{to}/token'"),
        format!("server = replace(server, '{from}', '{to}')"),
        "server = null".to_owned(),
        "resource_id = null".to_owned(),
    ] {
        protected.world.server.stop().await?;
        let rows = sqlite(&folder, &["select token_url, server, resource_id from oauth_providers"]).await?;
        sqlite(&folder, &[&format!("update oauth_providers set {change}")]).await?;
        protected.world.server.launch().await?;
        protected.world.api = protected.world.server.api()?;
        let path = format!("/api/bots/{}/tools/notes__note/call", protected.world.bot);
        let (status, answer) = protected.api().post(&path, &json!({ "params": {} })).await?;
        assert_eq!((status, text(&answer["type"])), (503, "urn:monstrum:error:unverified"), "{change}: {answer}");
        let (status, started) = protected.api().post(&protected.path("oauth/start"), &json!({})).await?;
        assert!(status >= 400, "{change}: {status} {started}");
        assert!(evil.requests().is_empty(), "{change}");
        protected.world.server.stop().await?;
        let row = &rows[0];
        let quoted = |value: &Value| format!("'{}'", text(value));
        let back = format!(
            "update oauth_providers set token_url = {}, server = {}, resource_id = {}",
            quoted(&row[0]),
            quoted(&row[1]),
            quoted(&row[2])
        );
        sqlite(&folder, &[&back]).await?;
        protected.world.server.launch().await?;
        protected.world.api = protected.world.server.api()?;
    }
    assert_eq!(protected.providers().await?[0]["issuer"], json!(from));
    Ok(())
}

/// The secrets of the client and of the tokens occur in no answer, log line, audit row or file.
#[tokio::test]
async fn secrets_of_a_registered_client_are_found_nowhere() -> Result<()> {
    let server = Server::prepare(&[])?.argument("--sandbox").argument("off").argument("--log").argument("debug");
    let mut protected = Protected::on(server).await?;
    // The registration fails first, with an answer that repeats a secret.
    let echo = json!({ "error": "invalid_client_metadata", "client_secret": AuthorizationServer::CLIENT_SECRET });
    protected.auth.reply("/register", McpReply::json(400, &echo));
    let (status, refused) = protected.confirm(&protected.proposal().await?["digest"]).await?;
    assert_eq!(status, 502, "{refused}");
    let mut heard = refused.to_string();
    protected.auth = AuthorizationServer::start().await?;
    protected.publish(&protected.mcp.url(), &protected.auth.issuer());
    heard.push_str(&protected.ready().await?.to_string());
    protected.mcp.require_token("another token");
    heard.push_str(&protected.world.call("notes__note", &json!({})).await?.to_string());
    for path in ["/api/oauth/providers", "/api/resources", "/api/audit?limit=1000", "/api/audit/changes", "/metrics"] {
        let (status, body) = protected.api().get(path).await?;
        ensure!(status == 200, "{path}: {body}");
        heard.push_str(&body.to_string());
    }
    protected.world.server.stop().await?;
    heard.push_str(&protected.world.server.output());
    assert!(heard.contains("DEBUG"), "the server did not log at level debug");
    let mut secrets = vec![AuthorizationServer::CLIENT_SECRET.to_owned(), protected.auth.access_token()];
    for form in protected.auth.forms() {
        secrets.extend(["code", "code_verifier", "refresh_token"].iter().filter_map(|name| form.get(*name).cloned()));
    }
    ensure!(secrets.len() >= 5, "{secrets:?}");
    let folder = protected.world.server.data_dir();
    let files: Vec<Vec<u8>> =
        std::fs::read_dir(&folder)?.filter_map(|entry| std::fs::read(entry.ok()?.path()).ok()).collect();
    for secret in &secrets {
        assert!(!heard.contains(secret.as_str()), "an answer or a log line contains {secret}");
        let is_in = |bytes: &Vec<u8>| bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!files.iter().any(is_in), "a file contains {secret}");
    }
    Ok(())
}
