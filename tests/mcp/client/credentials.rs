//! The credential of a resource: where it is sent, and that nothing of it comes back.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::{FakeMcp, Generation, McpReply, OauthServer};

use super::{Behind, tool};
use crate::world::text;

const TOKEN: &str = "mcp-s3cret/token+x";

/// Starts a server that requires a token, whose tool is approved.
async fn with_token() -> Result<Behind> {
    let behind = Behind::undecided(Generation::Stateless, &[tool("note", "Adds")], &json!({})).await?;
    behind.mcp.require_token(TOKEN);
    behind.world.api.token(&behind.resource, TOKEN).await?;
    behind.discovered().await?;
    behind.approve_all("write").await?;
    Ok(behind)
}

#[tokio::test]
async fn a_credential_is_sent_with_every_request_and_a_missing_one_is_reported() -> Result<()> {
    let behind = Behind::undecided(Generation::Stateless, &[tool("note", "Adds")], &json!({})).await?;
    behind.mcp.require_token(TOKEN);
    let discovery = behind.discover().await?;
    assert_eq!(
        discovery["error"],
        json!("the MCP server rejected the request as unauthenticated (HTTP 401)"),
        "{discovery}"
    );
    behind.world.api.token(&behind.resource, TOKEN).await?;
    behind.discovered().await?;
    behind.approve_all("write").await?;
    behind.echoed("notes__note", &json!({})).await?;
    behind.mcp.require_token("another token");
    let calls = behind.mcp.params_of("tools/call").len();
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!((&answer["status"], &answer["code"]), (&json!("error"), &json!("unauthenticated")), "{answer}");
    assert_eq!(behind.mcp.params_of("tools/call").len(), calls + 1, "a token that cannot be refreshed is sent once");
    Ok(())
}

/// A token that can be replaced is replaced once, and the call is sent once more. Two rejections are the end.
#[tokio::test]
async fn a_rejected_token_is_replaced_once() -> Result<()> {
    let behind = Behind::undecided(Generation::Stateless, &[tool("note", "Adds")], &json!({})).await?;
    let oauth = OauthServer::start().await?;
    let (status, body) = behind.world.api.post("/api/oauth/providers", &oauth.provider("mcp", "by-body")).await?;
    ensure!(status == 201, "{body}");
    let credential = json!({"auth_method": "oauth2_client_creds", "fields": {}});
    let path = format!("/api/resources/{}/credential", behind.resource);
    let (status, body) = behind.world.api.put(&path, &credential).await?;
    ensure!(status == 200, "{body}");
    behind.discovered().await?;
    behind.approve_all("write").await?;
    let tokens = || -> Vec<String> {
        let requests = behind.mcp.requests();
        let calls = requests.iter().filter(|request| request.json()["method"] == "tools/call");
        calls.map(|request| request.header("authorization").unwrap_or_default().to_owned()).collect()
    };

    behind.mcp.reject_calls(1);
    assert_eq!(behind.echoed("notes__note", &json!({"text": "a"})).await?, json!({"text": "a"}));
    let sent = tokens();
    assert!(sent.len() == 2 && sent[0] != sent[1] && sent[1].starts_with("Bearer "), "{sent:?}");
    assert_eq!(oauth.grants("client_credentials").await?, 2);

    behind.mcp.reject_calls(2);
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!((&answer["status"], &answer["code"]), (&json!("error"), &json!("unauthenticated")), "{answer}");
    let sent = tokens();
    // A token that was obtained a moment ago is not obtained again, so that servers cannot cause any number of requests.
    assert!(sent.len() == 4 && sent[2] == sent[1] && sent[3] == sent[2], "{sent:?}");
    assert_eq!(oauth.grants("client_credentials").await?, 2);
    assert!(!behind.world.server.output().contains(sent[3].trim_start_matches("Bearer ")));
    Ok(())
}

/// A server that repeats the credential in a result, an error, a header or an event cut into pieces reveals nothing.
#[tokio::test]
async fn an_echoed_credential_is_redacted() -> Result<()> {
    let behind = with_token().await?;
    let result = |value: &str| {
        json!({"jsonrpc": "2.0", "id": "{id}", "result": {
            "content": [{"type": "text", "text": value}], "structuredContent": {"a": [value]},
        }})
    };
    let event = format!("data: {}\n\n", result(TOKEN)).replace("\"{id}\"", "{id}");
    let middle = event.find("s3cret").unwrap_or_default() + 3;
    let (head, tail) = event.split_at(middle);
    let error = json!({"jsonrpc": "2.0", "id": "{id}", "error": {"code": -1, "message": TOKEN}});
    for reply in [
        McpReply::json(200, &result(TOKEN)),
        McpReply::json(200, &error),
        McpReply::json(200, &result("a")).header("mcp-session-id", TOKEN),
        McpReply::events(&[head, tail]),
        McpReply::text(500, "text/plain", TOKEN),
    ] {
        behind.mcp.reply("tools/call", reply);
        let answer = behind.call("notes__note", &json!({})).await?;
        assert!(!answer.to_string().contains("s3cret"), "{answer}");
        let row = behind.world.audit_of(&answer).await?;
        assert!(!row.to_string().contains("s3cret"), "{row}");
    }
    // A definition that contains the credential does not reach admins either.
    behind.mcp.set_tools(&[tool("note", &format!("Adds {TOKEN}"))]);
    behind.discovered().await?;
    let pins = Value::Array(behind.pins().await?).to_string();
    assert!(pins.contains("[redacted]") && !pins.contains("s3cret"), "{pins}");
    assert!(!behind.world.server.output().contains("s3cret"));
    Ok(())
}

/// A parameter that contains the credential does not leave the host.
#[tokio::test]
async fn a_credential_in_a_parameter_is_not_sent() -> Result<()> {
    let behind = with_token().await?;
    let answer = behind.call("notes__note", &json!({"text": format!("send {TOKEN}")})).await?;
    assert_eq!(answer["status"], "error", "{answer}");
    assert!(behind.mcp.params_of("tools/call").is_empty());
    Ok(())
}

/// After a change of the URL, an admin must confirm that the credential may be sent there.
#[tokio::test]
async fn a_credential_is_not_sent_to_another_url() -> Result<()> {
    let behind = with_token().await?;
    let other = FakeMcp::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let path = format!("/api/resources/{}", behind.resource);
    for url in [other.url(), behind.mcp.url().replace("/mcp", "/other")] {
        let (status, body) = behind.world.api.patch(&path, &json!({"config": {"url": url}})).await?;
        assert_eq!(status, 200, "{body}");
        let discovery = behind.discover().await?;
        assert_eq!(discovery["status"], "failed", "{discovery}");
        assert!(text(&discovery["error"]).contains("confirm or reauthorize"), "{discovery}");
    }
    let received = other.requests();
    assert!(received.iter().all(|request| request.header("authorization").is_none()), "{received:?}");
    assert!(behind.mcp.requests().iter().all(|request| request.path == "/mcp"));
    Ok(())
}

#[tokio::test]
async fn an_api_key_is_sent_in_the_configured_header() -> Result<()> {
    let config = json!({"key_header": "X-Notes-Key"});
    let behind = Behind::undecided(Generation::Stateless, &[tool("note", "Adds")], &config).await?;
    let body = json!({"auth_method": "api_key", "fields": {"api_key": TOKEN}});
    let path = format!("/api/resources/{}/credential", behind.resource);
    let (status, answer) = behind.world.api.put(&path, &body).await?;
    assert_eq!(status, 200, "{answer}");
    behind.discovered().await?;
    let requests = behind.mcp.requests();
    let last = requests.last().expect("the server was asked");
    assert_eq!((last.header("x-notes-key"), last.header("authorization")), (Some(TOKEN), None));
    Ok(())
}

#[tokio::test]
async fn wrong_configurations_are_refused() -> Result<()> {
    let behind = Behind::undecided(Generation::Stateless, &[], &json!({})).await?;
    for (config, at) in [
        (json!({"url": "https://a.example/", "credential": "each"}), "/config/credential"),
        (json!({"url": "ftp://a.example/"}), "/config/url"),
        (json!({"url": "https://a.example/", "key_header": "Host"}), "/config/key_header"),
        (json!({"url": "https://a.example/", "key_header": "Mcp-Session-Id"}), "/config/key_header"),
    ] {
        let body = json!({"resource_type": "mcp", "name": "other", "config": config});
        let (status, answer) = behind.world.api.post("/api/resources", &body).await?;
        assert_eq!(status, 422, "{answer}");
        let errors = answer["errors"].to_string();
        assert!(errors.contains(at), "{answer}");
    }
    Ok(())
}

/// A command in a configuration would be code on the host. The error says what to do instead.
#[tokio::test]
async fn a_command_instead_of_a_url_is_refused_with_the_remedy() -> Result<()> {
    let behind = Behind::undecided(Generation::Stateless, &[], &json!({})).await?;
    let local = |url: Value| {
        let mut config = json!({"command": "npx", "args": ["-y", "server"], "env": {"TOKEN": "a"}});
        if !url.is_null() {
            config["url"] = url;
        }
        json!({"config": config})
    };
    let mut created = local(Value::Null);
    created["resource_type"] = json!("mcp");
    created["name"] = json!("local");
    let path = format!("/api/resources/{}", behind.resource);
    for (status, answer) in [
        behind.world.api.post("/api/resources", &created).await?,
        behind.world.api.patch(&path, &local(Value::Null)).await?,
        behind.world.api.patch(&path, &local(json!(behind.mcp.url()))).await?,
    ] {
        let errors: Vec<&Value> = answer["errors"].as_array().into_iter().flatten().collect();
        let of_command = errors.iter().find(|error| error["path"] == "/config/command");
        let message = of_command.map(|error| text(&error["message"])).unwrap_or_default();
        assert_eq!(status, 422, "{answer}");
        assert_eq!(
            message,
            "MCP servers that are started as a command (stdio) are not supported, because the command would run on the \
             host; put the server behind Streamable HTTP and set `url`"
        );
    }
    Ok(())
}
