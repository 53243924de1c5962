//! The secrets of OAuth and the keys of the API: codes, verifiers, tokens, device codes, client secrets, tickets,
//! cookies. No secret occurs in an answer, a log line or a file.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{OauthServer, Server};

use super::encodings::Search;
use crate::oauth::{Authorizing, PLUGIN};
use crate::world::{eventually, text};

const READ: [&str; 12] = [
    "/api/audit?limit=1000",
    "/api/audit/changes?limit=1000",
    "/api/audit/export",
    "/api/audit/export?format=ocsf",
    "/api/bots",
    "/api/keys",
    "/api/oauth/providers",
    "/api/plugins",
    "/api/resource-types",
    "/api/resources",
    "/api/workspaces",
    "/metrics",
];

/// Runs every flow, including failing ones. Adds the values that the browser received to `secrets`.
async fn authorize_in_every_way(authorizing: &Authorizing, secrets: &mut Vec<String>) -> Result<()> {
    let begin = authorizing.started().await?;
    secrets.push(begin.rsplit('/').next().unwrap_or_default().to_owned());
    let (callback, cookie) = authorizing.answered().await?;
    secrets.push(cookie.split('=').nth(1).unwrap_or_default().to_owned());
    let state = callback.split(['?', '&']).find_map(|pair| pair.strip_prefix("state="));
    secrets.push(state.context("a state")?.to_owned());
    ensure!(authorizing.open(&callback, None).await?.status == 400);
    ensure!(authorizing.open(&callback, Some(&cookie)).await?.status == 200);
    ensure!(authorizing.call().await?[0] == 200);
    authorizing.oauth.control(&json!({ "revoke_access": true })).await?;
    ensure!(authorizing.call().await?[0] == 200, "refreshed");

    let echo = json!({ "error": "invalid_grant", "error_description": OauthServer::CLIENT_SECRET });
    let refused = json!({ "answer": { "status": 400, "body": echo }, "answers_left": 1 });
    authorizing.oauth.control(&refused).await?;
    let (callback, cookie) = authorizing.answered().await?;
    ensure!(authorizing.open(&callback, Some(&cookie)).await?.status == 502);

    let (status, device) = authorizing.api().post(&authorizing.path("oauth/device"), &json!({})).await?;
    ensure!(status == 200, "{device}");
    authorizing.oauth.person_at(text(&device["verification_uri_complete"])).await?;
    let progress = authorizing.path(&format!("oauth/device/{}", text(&device["id"])));
    eventually("the device is authorized", async || {
        Ok((authorizing.api().get(&progress).await?.1["status"] == "done").then_some(()))
    })
    .await?;
    ensure!(authorizing.call().await?[0] == 200);
    authorizing.oauth.control(&json!({ "revoke_access": true, "revoke_refresh": true })).await?;
    authorizing.call().await?;
    let own = json!({ "auth_method": "oauth2_client_creds", "fields": {} });
    ensure!(authorizing.api().put(&authorizing.path("credential"), &own).await?.0 == 200);
    ensure!(authorizing.call().await?[0] == 200);
    Ok(())
}

#[tokio::test]
async fn nothing_that_oauth_brings_and_no_key_is_found_anywhere() -> Result<()> {
    let server = Server::prepare(&[PLUGIN])?.argument("--log").argument("debug");
    let mut authorizing = Authorizing::without_provider(server).await?;
    let provider = authorizing.oauth.provider(PLUGIN, "by-header");
    let (status, made) = authorizing.api().post("/api/oauth/providers", &provider).await?;
    ensure!(status == 201, "{made}");
    let mut secrets = vec![OauthServer::CLIENT_SECRET.to_owned()];
    authorize_in_every_way(&authorizing, &mut secrets).await?;
    for (kind, bot) in [("admin", None), ("bot", Some(authorizing.world.bot.as_str()))] {
        let key = authorizing.api().new_key(kind, bot).await?;
        authorizing.api().with_key(&key).get("/api/resources").await?;
        secrets.push(key);
    }
    let seen = authorizing.oauth.control(&json!({})).await?["seen"].clone();
    secrets.extend(seen.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    secrets.sort();
    secrets.dedup();
    assert!(secrets.len() >= 15, "the flows produced only {} secrets", secrets.len());

    let mut heard = String::new();
    for path in READ {
        let (status, body) = authorizing.api().get(path).await?;
        ensure!(status == 200, "{path}: {body}");
        heard.push_str(&body.to_string());
    }
    authorizing.world.server.stop().await?;
    heard.push_str(&authorizing.world.server.output());
    assert!(heard.contains("DEBUG"), "the server did not log at level debug");
    let mut leaks = Vec::new();
    for secret in &secrets {
        ensure!(secret.len() >= 20, "{secret} is too short: it could occur by chance");
        let search = Search::of(secret);
        leaks.extend(search.find(heard.as_bytes()).map(|form| format!("the answers contain {secret} as {form}")));
        leaks.extend(search.find_beneath(authorizing.world.server.home())?);
    }
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
    Ok(())
}
