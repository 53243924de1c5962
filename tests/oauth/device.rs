//! The device flow and the client credentials flow.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Authorizing;
use crate::http::one;
use crate::world::{eventually, text};

async fn start(authorizing: &Authorizing) -> Result<Value> {
    let (status, body) = authorizing.api().post(&authorizing.path("oauth/device"), &json!({})).await?;
    ensure!(status == 200, "{body}");
    Ok(body)
}

/// Waits until the authorization is no longer pending and returns its state.
async fn ended(authorizing: &Authorizing, started: &Value) -> Result<Value> {
    let path = authorizing.path(&format!("oauth/device/{}", text(&started["id"])));
    eventually("the authorization has ended", async || {
        let (status, body) = authorizing.api().get(&path).await?;
        ensure!(status == 200, "{body}");
        Ok((body["status"] != "pending").then_some(body))
    })
    .await
}

#[tokio::test]
async fn a_person_enters_the_code_elsewhere() -> Result<()> {
    for client in ["by-header", "by-body", "public"] {
        let mut authorizing = Authorizing::with(client).await?;
        let started = start(&authorizing).await?;
        let fields: Vec<&String> = started.as_object().context("an object")?.keys().collect();
        assert_eq!(
            fields,
            ["id", "user_code", "verification_uri", "verification_uri_complete", "expires_in", "interval"]
        );
        // The host asks the provider before the person has entered the code, and again after a restart.
        eventually("the host has asked the provider", async || {
            let seen = authorizing.oauth.control(&json!({})).await?;
            Ok(seen["errors"].to_string().contains("authorization_pending").then_some(()))
        })
        .await?;
        authorizing.world.server.restart().await?;
        authorizing.world.api = authorizing.world.server.api()?;
        // The progress repeats what a person needs, also after the restart.
        let path = authorizing.path(&format!("oauth/device/{}", text(&started["id"])));
        let (_, pending) = authorizing.api().get(&path).await?;
        for same in ["user_code", "verification_uri", "verification_uri_complete", "interval"] {
            assert_eq!(pending[same], started[same], "{same}: {pending}");
        }
        authorizing.oauth.person_at(text(&started["verification_uri_complete"])).await?;
        let ended = ended(&authorizing, &started).await?;
        assert_eq!((&ended["status"], &ended["slow_down"]), (&json!("done"), &json!(false)), "{ended}");
        for absent in ["user_code", "verification_uri", "verification_uri_complete", "interval", "reason"] {
            assert!(ended.get(absent).is_none(), "{absent}: {ended}");
        }
        assert_eq!(authorizing.call().await?[0], 200);
    }
    Ok(())
}

#[tokio::test]
async fn a_provider_that_asks_for_patience_gets_it_and_one_that_refuses_ends_it() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let slow = json!({ "answer": { "status": 400, "body": { "error": "slow_down" } }, "answers_left": 1 });
    authorizing.oauth.control(&slow).await?;
    let started = start(&authorizing).await?;
    eventually("the host has asked the provider again", async || {
        Ok((authorizing.oauth.control(&json!({})).await?["answers_left"] == 0).then_some(()))
    })
    .await?;
    let denied = json!({ "answer": { "status": 400, "body": { "error": "access_denied" } }, "answers_left": 1 });
    authorizing.oauth.control(&denied).await?;
    let refused = ended(&authorizing, &started).await?;
    assert_eq!(
        (&refused["status"], &refused["reason"], &refused["message"]),
        (&json!("failed"), &json!("denied"), &json!("the provider answered `access_denied`"))
    );
    ensure!(authorizing.credential().await?.is_null());

    // A resource has at most one pending authorization. Starting another authorization ends the previous authorization.
    let (first, second) = (start(&authorizing).await?, start(&authorizing).await?);
    let given_up = ended(&authorizing, &first).await?;
    assert_eq!(given_up["message"], "another authorization of this resource was started", "{given_up}");
    assert_eq!(given_up["reason"], "superseded", "{given_up}");
    authorizing.oauth.person_at(text(&second["verification_uri_complete"])).await?;
    let done = ended(&authorizing, &second).await?;
    assert_eq!(done["status"], "done", "{done}");

    let path = authorizing.path("oauth/device/01939d2c-7f6a-7000-8000-000000000001");
    let absent = authorizing.api().get(&path).await?;
    assert!(one(absent).starts_with("404"), "no such authorization");
    Ok(())
}

/// The progress of an authorization repeats the page of the console from which it was started.
#[tokio::test]
async fn the_progress_tells_the_page_to_return_to() -> Result<()> {
    let authorizing = Authorizing::with("by-header").await?;
    let progress = async |body: Value| -> Result<Value> {
        let (status, started) = authorizing.api().post(&authorizing.path("oauth/device"), &body).await?;
        ensure!(status == 200, "{started}");
        let path = authorizing.path(&format!("oauth/device/{}", text(&started["id"])));
        Ok(authorizing.api().get(&path).await?.1)
    };
    let to = "/console/w/default/resources";
    assert_eq!(progress(json!({ "return_to": to })).await?["return_to"], to);
    assert!(progress(json!({})).await?.get("return_to").is_none());
    Ok(())
}

#[tokio::test]
async fn a_client_gets_a_token_of_its_own() -> Result<()> {
    let authorizing = Authorizing::with("by-body").await?;
    let body = json!({ "auth_method": "oauth2_client_creds", "fields": {} });
    let (status, saved) = authorizing.api().put(&authorizing.path("credential"), &body).await?;
    assert_eq!((status, &saved["status"], &saved["method"]), (200, &json!("ready"), &json!("oauth2_client_creds")));
    assert_eq!(authorizing.call().await?, json!([200, r#"{"client":"by-body","account":null}"#, null]));

    // This credential has no refresh token and does not need a refresh token.
    authorizing.oauth.control(&json!({ "revoke_access": true })).await?;
    assert_eq!(authorizing.call().await?[0], 200);
    assert_eq!(authorizing.oauth.grants("client_credentials").await?, 2);

    authorizing
        .oauth
        .control(&json!({ "answer": { "status": 401, "body": { "error": "invalid_client" } }, "answers_left": 2 }))
        .await?;
    let refused = authorizing.api().put(&authorizing.path("credential"), &body).await?;
    assert_eq!((refused.0, text(&refused.1["detail"])), (502, "the provider answered `invalid_client`"));
    assert_eq!(authorizing.call().await?[0], 200, "the existing credential was changed");
    Ok(())
}
