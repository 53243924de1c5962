//! Changes that are made only of the state that their caller knows: credentials, OAuth providers and budgets.

use anyhow::{Result, ensure};
use reqwest::Method;
use reqwest::header::{IF_MATCH, IF_NONE_MATCH};
use serde_json::{Value, json};
use support::Api;

use crate::http::made;
use crate::world::{World, text};

type Header = (reqwest::header::HeaderName, String);

async fn send(api: &Api, method: Method, path: &str, headers: &[Header], body: &Value) -> Result<(u16, Value)> {
    let mut request = api.request(method, path).json(body);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let response = request.send().await?;
    let (status, text) = (response.status().as_u16(), response.text().await?);
    Ok((status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? }))
}

fn version(object: &Value) -> Header {
    (IF_MATCH, format!("\"{}\"", text(&object["updated_at"])))
}

#[tokio::test]
async fn a_credential_is_saved_only_if_the_stored_one_is_known() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let api = &world.api;
    let body =
        json!({ "resource_type": "test-echo", "name": "r", "config": { "api_base": "https://api.example.com" } });
    let resource = made(api, "/api/resources", &body).await?;
    let path = format!("/api/resources/{resource}/credential");
    let token = |token: &str| json!({ "auth_method": "token", "fields": { "access_token": token } });
    let put = async |headers: &[Header], value: &str| send(api, Method::PUT, &path, headers, &token(value)).await;
    let absent: Header = (IF_NONE_MATCH, "*".to_owned());
    let old: Header = (IF_MATCH, "\"2026-01-01T00:00:00.000Z\"".to_owned());
    assert_eq!(put(std::slice::from_ref(&old), "token-one-1").await?.0, 412, "there is no credential yet");
    let (status, first) = put(std::slice::from_ref(&absent), "token-one-1").await?;
    assert_eq!(status, 200, "{first}");
    assert_eq!(put(std::slice::from_ref(&absent), "token-two-2").await?.0, 412);
    assert_eq!(put(&[old], "token-two-2").await?.0, 412);
    let (_, stored) = api.get(&format!("/api/resources/{resource}")).await?;
    assert_eq!(stored["credential"]["updated_at"], first["updated_at"], "a refused request saves nothing");
    let (status, second) = put(&[version(&first)], "token-two-2").await?;
    assert_eq!(status, 200, "{second}");
    for (headers, place) in [
        (vec![(IF_NONE_MATCH, "\"x\"".to_owned())], "If-None-Match"),
        (vec![absent.clone(), version(&second)], "If-None-Match"),
        (vec![(IF_MATCH, "x".to_owned())], "If-Match"),
    ] {
        let (status, refused) = put(&headers, "token-two-2").await?;
        assert_eq!((status, text(&refused["errors"][0]["path"])), (422, place), "{refused}");
    }
    // A precondition is not ignored where it cannot be checked.
    let user = json!({ "auth_method": "token", "fields": { "access_token": "token-of-ann" },
        "user": { "app_id": "slack", "user_id": "ann" } });
    let (status, refused) = send(api, Method::PUT, &path, &[absent], &user).await?;
    assert_eq!((status, text(&refused["errors"][0]["path"])), (422, "/user"), "{refused}");
    let known = [version(&second)];
    let (one, other) = tokio::join!(put(&known, "token-four-4"), put(&known, "token-five-5"));
    let mut statuses = [one?.0, other?.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412], "of two at once, one is told");
    Ok(())
}

#[tokio::test]
async fn a_provider_is_changed_and_deleted_only_in_a_known_version() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let api = &world.api;
    let provider = json!({ "resource_type": "test-echo", "client_id": "a", "token_url": "https://id.example/token" });
    let (status, first) = api.post("/api/oauth/providers", &provider).await?;
    ensure!(status == 201, "{status} {first}");
    let path = format!("/api/oauth/providers/{}", text(&first["id"]));
    let change = |scope: &str| json!({ "scopes": [scope] });
    let (status, second) = send(api, Method::PATCH, &path, &[version(&first)], &change("repo")).await?;
    assert_eq!((status, &second["scopes"]), (200, &json!(["repo"])), "{second}");
    assert_eq!(send(api, Method::PATCH, &path, &[version(&first)], &change("user")).await?.0, 412);
    assert_eq!(send(api, Method::DELETE, &path, &[version(&first)], &Value::Null).await?.0, 412);
    let (_, list) = api.get("/api/oauth/providers").await?;
    assert_eq!(list["items"][0]["scopes"], json!(["repo"]));
    assert_eq!(send(api, Method::DELETE, &path, &[version(&second)], &Value::Null).await?.0, 204);
    Ok(())
}

#[tokio::test]
async fn a_budget_is_set_only_if_its_limits_are_known() -> Result<()> {
    let world = World::with(&[]).await?;
    let user = json!({ "app_id": "slack", "user_id": "ann" });
    let bodies = [
        json!({ "subject": "workspace" }),
        json!({ "subject": "bot", "id": world.bot }),
        json!({ "subject": "user", "id": user }),
    ];
    for body in bodies {
        let set = async |tokens: i64, was: Value| {
            let mut body = body.clone();
            (body["monthly_tokens"], body["was"]) = (json!(tokens), was);
            world.api.put("/api/budgets", &body).await
        };
        let (status, first) = set(10, json!({})).await?;
        assert_eq!(status, 200, "{first}");
        for was in [json!({}), json!({ "monthly_tokens": 9 }), json!({ "monthly_tokens": 10, "monthly_credits": 1 })] {
            let (status, refused) = set(20, was).await?;
            assert_eq!(status, 409, "{refused}");
            assert_eq!(text(&refused["detail"]), "the budget was changed meanwhile; read it again");
        }
        let (status, second) = set(20, json!({ "monthly_tokens": 10, "monthly_credits": null })).await?;
        assert_eq!((status, &second["monthly_tokens"]), (200, &json!(20)), "{second}");
    }
    Ok(())
}
