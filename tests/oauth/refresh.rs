//! Refreshing a token: before it expires or when it is rejected, once for all callers, and stored before it is used.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use serde_json::{Value, json};
use support::{Api, OauthServer, Postgres, Server};

use super::{Authorizing, PLUGIN, teach};
use crate::postgres::hosts::beside;
use crate::world::{eventually, text};

const CALLS: usize = 50;

impl Authorizing {
    /// Authorizes with a token that expires in less than a minute, so that its next use refreshes it.
    async fn with_short_token() -> Result<Authorizing> {
        let authorizing = Authorizing::with("by-header").await?;
        authorizing.oauth.control(&json!({ "access_token_s": 55 })).await?;
        authorizing.authorize().await?;
        authorizing.oauth.control(&json!({ "access_token_s": 3600 })).await?;
        Ok(authorizing)
    }

    async fn refreshes(&self) -> Result<u64> {
        self.oauth.grants("refresh_token").await
    }

    async fn errors(&self) -> Result<Value> {
        Ok(self.oauth.control(&json!({})).await?["errors"].clone())
    }
}

#[tokio::test]
async fn fifty_calls_at_the_end_of_a_token_refresh_it_once() -> Result<()> {
    let authorizing = Authorizing::with_short_token().await?;
    authorizing.oauth.control(&json!({ "hold_ms": 300 })).await?;
    for answer in join_all((0..CALLS).map(|_| authorizing.call())).await {
        let answer = answer?;
        ensure!(answer[0] == 200, "{answer}");
    }
    assert_eq!((authorizing.refreshes().await?, authorizing.errors().await?), (1, json!([])));
    Ok(())
}

#[tokio::test]
async fn fifty_calls_with_a_token_that_is_refused_refresh_it_once() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    authorizing.authorize().await?;
    // The provider ends the token earlier than its stated expiry, as with clock skew or a revocation.
    authorizing.oauth.control(&json!({ "revoke_access": true, "hold_ms": 300 })).await?;
    for answer in join_all((0..CALLS).map(|_| authorizing.call())).await {
        let answer = answer?;
        ensure!(answer[0] == 200, "{answer}");
    }
    assert_eq!((authorizing.refreshes().await?, authorizing.errors().await?), (1, json!([])));
    // The refreshed token is stored, so a restarted server continues to use it.
    let mut authorizing = authorizing;
    authorizing.world.server.restart().await?;
    authorizing.world.api = authorizing.world.server.api()?;
    assert_eq!(authorizing.call().await?[0], 200);
    assert_eq!(authorizing.refreshes().await?, 1);
    Ok(())
}

/// A refresh does not change the policy, but later calls redact the new token, even calls that send no request.
#[tokio::test]
async fn a_refreshed_token_is_redacted_in_later_calls() -> Result<()> {
    const FRESH: &str = "fresh-7c1e90b25d3f4a68";
    let authorizing = Authorizing::with_short_token().await?;
    let echo =
        async || authorizing.api().call(&authorizing.world.bot, "test_echo_open", &json!({ "any": FRESH })).await;
    ensure!(echo().await?.to_string().contains(FRESH), "the token is redacted before it is issued");
    authorizing.oauth.control(&json!({ "over": { "access_token": FRESH } })).await?;
    authorizing.call().await?;
    assert_eq!(authorizing.refreshes().await?, 1);
    let answer = echo().await?;
    ensure!(answer["status"] == "success" && !answer.to_string().contains(FRESH), "{answer}");
    let record = authorizing.api().audit(text(&answer["request_id"])).await?;
    ensure!(!record.to_string().contains(FRESH), "{record}");
    Ok(())
}

#[tokio::test]
async fn two_hosts_of_one_database_refresh_once_between_them() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let first = Server::prepare(&[PLUGIN])?.argument(&format!("--database-url={url}"));
    let authorizing = Authorizing::without_provider(first).await?;
    let provider = authorizing.oauth.provider(PLUGIN, "by-header");
    authorizing.api().post("/api/oauth/providers", &provider).await?;
    authorizing.oauth.control(&json!({ "access_token_s": 30 })).await?;
    authorizing.authorize().await?;
    authorizing.oauth.control(&json!({ "access_token_s": 3600, "hold_ms": 500 })).await?;

    let second = Server::prepare(&[PLUGIN])?.argument(&format!("--database-url={url}"));
    teach(&second)?;
    let second = beside(&authorizing.world.server, second).await?;
    let other = Api::new(second.url().context("it runs")?, authorizing.api().key())?;
    let bot = &authorizing.world.bot;
    let params = json!({ "path": "/me" });
    let calls = (0..20).flat_map(|_| [authorizing.api(), &other]).map(|api| api.call(bot, "test_echo_fetch", &params));
    for answer in try_join_all(calls).await? {
        ensure!(answer["data"]["status"] == 200, "{answer}");
    }
    assert_eq!((authorizing.refreshes().await?, authorizing.errors().await?), (1, json!([])));
    Ok(())
}

#[tokio::test]
async fn a_grant_that_is_void_waits_for_a_person() -> Result<()> {
    let authorizing = Authorizing::with_short_token().await?;
    authorizing.oauth.control(&json!({ "revoke_refresh": true })).await?;
    let told = authorizing.call().await?[2]["message"].clone();
    assert_eq!(told, "an admin must confirm or reauthorize the credential of this resource");
    eventually("the failed refresh is reported", async || {
        Ok((authorizing.credential().await?["status"] == "needs-authorization").then_some(()))
    })
    .await?;
    // The host does not ask the provider again. Only a new authorization restores the credential; confirming does not.
    let errors = authorizing.errors().await?;
    assert_eq!(authorizing.call().await?[2]["code"], "unauthenticated");
    let (_, confirmed) = authorizing.api().post(&authorizing.path("credential/confirm"), &Value::Null).await?;
    assert_eq!(confirmed["status"], "needs-authorization");
    assert_eq!(authorizing.api().post(&authorizing.path("oauth/refresh"), &json!({})).await?.0, 409);
    assert_eq!(authorizing.errors().await?, errors);
    authorizing.authorize().await?;
    assert_eq!(authorizing.call().await?[0], 200);
    Ok(())
}

#[tokio::test]
async fn a_provider_that_is_down_does_not_spoil_a_token_that_is_good() -> Result<()> {
    let authorizing = Authorizing::with_short_token().await?;
    // Gateways may respond with their own errors instead of OAuth errors.
    for body in [json!({}), json!({ "error": "Service Unavailable" }), json!("down")] {
        let down = json!({ "answer": { "status": 503, "body": body }, "answers_left": 1_000 });
        authorizing.oauth.control(&down).await?;
        // The token is still valid for some seconds.
        assert_eq!(authorizing.call().await?[0], 200, "{body}");
        let (status, told) = authorizing.api().post(&authorizing.path("oauth/refresh"), &json!({})).await?;
        assert_eq!((status, text(&told["detail"])), (503, "the provider or the database is not available; try again"));
        assert_eq!(authorizing.credential().await?["status"], "ready");
    }
    Ok(())
}

#[tokio::test]
async fn a_host_that_dies_between_refresh_and_store_leaves_a_credential_for_a_person() -> Result<()> {
    let mut authorizing = Authorizing::with_short_token().await?;
    authorizing.oauth.control(&json!({ "hold_ms": 30_000 })).await?;
    {
        let (api, path, nothing) = (authorizing.api().clone(), authorizing.path("oauth/refresh"), json!({}));
        let calling = api.post(&path, &nothing);
        tokio::pin!(calling);
        // The provider has rotated the token, but its response has not arrived yet.
        let rotated = eventually("a token is issued", async || Ok((authorizing.refreshes().await? == 1).then_some(())));
        tokio::select! {
            answer = &mut calling => anyhow::bail!("the call was answered before the refresh ended: {answer:?}"),
            rotated = rotated => rotated?,
        }
    }
    authorizing.world.server.kill().await?;
    authorizing.oauth.control(&json!({ "hold_ms": 0 })).await?;
    authorizing.world.server.launch().await?;
    authorizing.world.api = authorizing.world.server.api()?;
    eventually("the credential needs a new authorization", async || {
        authorizing.call().await?;
        Ok((authorizing.credential().await?["status"] == "needs-authorization").then_some(()))
    })
    .await?;
    authorizing.authorize().await?;
    assert_eq!(authorizing.call().await?[0], 200);
    Ok(())
}

#[tokio::test]
async fn answers_that_are_not_by_the_book_are_understood() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    // The response has no lifetime, a list of scopes, and the token type in capitals.
    let over = json!({ "expires_in": null, "scope": ["repo"], "token_type": "BEARER", "refresh_token": null });
    authorizing.oauth.control(&json!({ "over": over })).await?;
    authorizing.authorize().await?;
    assert_eq!(authorizing.credential().await?["expires_at"], Value::Null);
    assert_eq!(authorizing.call().await?[0], 200);
    // The response is an error with status 200.
    let error =
        json!({ "error": "bad_verification_code", "error_description": "The code passed is incorrect or expired." });
    authorizing
        .oauth
        .control(&json!({ "over": {}, "answer": { "status": 200, "body": error }, "answers_left": 1 }))
        .await?;
    let (callback, cookie) = authorizing.answered().await?;
    let page = authorizing.open(&callback, Some(&cookie)).await?;
    assert_eq!(page.status, 502);
    assert!(page.text.contains("`bad_verification_code`: The code passed is incorrect or expired."), "{}", page.text);
    Ok(())
}

/// A token that cannot be refreshed needs attention a week before it ends, and a token that the host refreshes does not.
#[tokio::test]
async fn a_token_that_ends_within_a_week_needs_attention() -> Result<()> {
    const DAY_S: i64 = 24 * 3600;
    let authorizing = Authorizing::with("by-header").await?;
    let told = async || -> Result<Value> {
        let items = authorizing.api().get("/api/attention").await?.1["items"].take();
        Ok(items
            .as_array()
            .into_iter()
            .flatten()
            .find(|item| item["kind"] == "credential")
            .cloned()
            .unwrap_or_default())
    };
    authorizing.authorize().await?;
    assert_eq!(told().await?, Value::Null);
    for (lifetime_s, is_told) in [(8 * DAY_S, false), (6 * DAY_S, true)] {
        let over = json!({ "expires_in": lifetime_s, "refresh_token": null });
        authorizing.oauth.control(&json!({ "over": over })).await?;
        authorizing.authorize().await?;
        let item = told().await?;
        let expected = format!("the credential expires at {}", text(&authorizing.credential().await?["expires_at"]));
        assert_eq!(item["text"] == expected.as_str(), is_told, "{item}");
    }
    Ok(())
}

#[tokio::test]
async fn a_provider_that_moves_gets_no_refresh_token() -> Result<()> {
    let authorizing = Authorizing::with_short_token().await?;
    let other = OauthServer::start().await?;
    let (_, list) = authorizing.api().get("/api/oauth/providers").await?;
    let path = format!("/api/oauth/providers/{}", list["items"][0]["id"].as_str().context("an id")?);
    let moved = json!({ "token_url": format!("{}/token", other.url()), "client_secret": OauthServer::CLIENT_SECRET });
    assert_eq!(authorizing.api().patch(&path, &moved).await?.0, 200);
    assert_eq!(authorizing.call().await?[2]["code"], "unauthenticated");
    assert_eq!(authorizing.credential().await?["status"], "needs-authorization");
    assert_eq!(other.control(&json!({})).await?["seen"], json!([]), "the other endpoint received a request");
    let back = json!({ "token_url": format!("{}/token", authorizing.oauth.url()), "client_secret": OauthServer::CLIENT_SECRET });
    assert_eq!(authorizing.api().patch(&path, &back).await?.0, 200);
    assert_eq!(authorizing.call().await?[0], 200);
    Ok(())
}

#[tokio::test]
async fn nothing_is_refreshed_that_nobody_uses() -> Result<()> {
    let mut authorizing = Authorizing::with_short_token().await?;
    // Neither reading the credential nor restarting the server counts as a use.
    assert_eq!(authorizing.credential().await?["status"], "ready");
    authorizing.world.server.restart().await?;
    authorizing.world.api = authorizing.world.server.api()?;
    assert_eq!(authorizing.credential().await?["status"], "ready");
    assert_eq!(authorizing.refreshes().await?, 0);
    // The token has needed a refresh the whole time. Its first use refreshes it.
    assert_eq!(authorizing.call().await?[0], 200);
    eventually("the use of the token refreshes it", async || Ok((authorizing.refreshes().await? == 1).then_some(())))
        .await
}

#[tokio::test]
async fn a_provider_that_hangs_holds_up_no_token_that_is_good() -> Result<()> {
    let authorizing = Authorizing::with_short_token().await?;
    authorizing.oauth.control(&json!({ "hold_ms": 6_000 })).await?;
    let before = authorizing.credential().await?["expires_at"].clone();
    assert_eq!(authorizing.call().await?[0], 200);
    assert_eq!(authorizing.credential().await?["expires_at"], before, "the call waited for the provider");
    // The delayed refresh eventually replaces the token.
    eventually("the refresh has ended", async || {
        let ends_at = authorizing.credential().await?["expires_at"].clone();
        let later = text(&ends_at).parse::<monstrum_types::UtcMillis>().map_err(anyhow::Error::msg)?;
        let (_, roles) = authorizing.api().get("/api/roles").await?;
        let made_at = text(&roles["items"][0]["created_at"]).parse().map_err(anyhow::Error::msg)?;
        Ok((later.since_ms(made_at) > 600_000).then_some(()))
    })
    .await?;
    assert_eq!((authorizing.refreshes().await?, authorizing.errors().await?), (1, json!([])));
    Ok(())
}

#[tokio::test]
async fn an_upstream_that_refuses_fresh_tokens_does_not_drive_refreshes() -> Result<()> {
    /// Minimum age of a fetched token, in seconds, before the host refreshes the token again.
    const FRESH_S: u64 = 10;
    const CALLS_MAX: u64 = 100;
    let authorizing = Authorizing::with("by-header").await?;
    authorizing.authorize().await?;
    let began = Instant::now();
    let (mut calls, mut refused) = (0, 0);
    // On a busy machine, more calls are needed until they outnumber the refreshes that the elapsed time allows.
    let refreshes_max = loop {
        authorizing.oauth.control(&json!({ "revoke_access": true })).await?;
        let answer = authorizing.call().await?;
        calls += 1;
        match answer[0].as_u64() {
            Some(200) => {}
            Some(401) => refused += 1,
            _ => anyhow::bail!("the plugin did not receive the response of the upstream: {answer}"),
        }
        let refreshes_max = 1 + began.elapsed().as_secs() / FRESH_S;
        if calls >= 4 && calls > refreshes_max {
            break refreshes_max;
        }
        ensure!(calls < CALLS_MAX, "a call takes longer than the minimum age of a token");
    };
    let refreshes = authorizing.refreshes().await?;
    assert!((1..=refreshes_max).contains(&refreshes), "{refreshes} refreshes in {:?}", began.elapsed());
    assert_eq!(refused, calls - refreshes, "a call with no valid token was not rejected");
    Ok(())
}

#[tokio::test]
async fn a_confirmation_does_not_write_over_a_refresh_under_way() -> Result<()> {
    let authorizing = Authorizing::with_short_token().await?;
    authorizing.oauth.control(&json!({ "hold_ms": 4_000 })).await?;
    let (refresh, confirm) = (authorizing.path("oauth/refresh"), authorizing.path("credential/confirm"));
    let nothing = json!({});
    let confirmed = async {
        eventually("the provider has rotated", async || Ok((authorizing.refreshes().await? == 1).then_some(())))
            .await?;
        authorizing.api().post(&confirm, &Value::Null).await
    };
    let (refreshed, confirmed) = tokio::join!(authorizing.api().post(&refresh, &nothing), confirmed);
    assert_eq!((refreshed?.0, confirmed?.0), (200, 409));
    authorizing.oauth.control(&json!({ "hold_ms": 0, "revoke_access": true })).await?;
    assert_eq!(authorizing.credential().await?["status"], "ready");
    assert_eq!(authorizing.errors().await?, json!([]));
    Ok(())
}

#[tokio::test]
async fn a_token_that_ends_for_good_is_shown_as_expired() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    authorizing.oauth.control(&json!({ "access_token_s": 2, "over": { "refresh_token": null } })).await?;
    authorizing.authorize().await?;
    eventually("the token has expired", async || {
        Ok((authorizing.credential().await?["status"] == "expired").then_some(()))
    })
    .await?;
    let told = authorizing.call().await?[2].clone();
    assert_eq!(
        (&told["code"], &told["message"]),
        (&json!("unauthenticated"), &json!("the credential of this resource has expired"))
    );
    Ok(())
}

/// Client secrets, verifiers and tokens are resealed together with all other secrets.
#[tokio::test]
async fn an_authorization_goes_on_over_a_rotation_of_the_master_key() -> Result<()> {
    let mut authorizing = Authorizing::with("by-header").await?;
    let (callback, cookie) = authorizing.answered().await?;
    let before = authorizing.world.server.url().context("it runs")?.to_owned();
    authorizing.world.server.stop().await?;
    let rotated = authorizing.world.server.command(&["vault", "rotate", "--json"]).await?;
    ensure!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
    let report: Value = serde_json::from_slice(&rotated.stdout)?;
    assert_eq!((&report["key_version"], &report["unreadable"]), (&json!(2), &json!([])), "{report}");
    // The records are the audit's keys, the row key, the client secret and the verifier.
    assert_eq!((&report["records"], &report["resealed"]), (&json!(4), &json!(4)), "{report}");
    authorizing.world.server.launch().await?;
    authorizing.world.api = authorizing.world.server.api()?;
    // The provider compares the redirect address, which has changed because the restarted server uses another port.
    let callback = callback.replace(&before, authorizing.world.server.url().context("it runs")?);
    let page = authorizing.open(&callback, Some(&cookie)).await?;
    ensure!(
        page.status == 502 && page.text.contains("`invalid_grant`"),
        "the flow ended before the code was checked: {}",
        page.text
    );
    authorizing.authorize().await?;
    authorizing.oauth.control(&json!({ "revoke_access": true })).await?;
    assert_eq!(authorizing.call().await?[0], 200, "the refresh did not use the secret");
    Ok(())
}
