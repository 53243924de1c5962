//! `/api/resources/{id}/credential`: secrets can be written but not read, responses contain only metadata, and no error
//! repeats any part of a request body.

use anyhow::Result;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::TOKEN;

use crate::canary::encodings::Search;
use crate::http::roles::faults;
use crate::http::{Answers, made, send};
use crate::world::World;

#[tokio::test]
async fn a_credential_is_saved_shown_by_its_metadata_and_deleted() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let config = json!({ "api_base": "https://api.example.com" });
    let body = json!({ "resource_type": "test-echo", "name": "r", "config": config });
    let resource = format!("/api/resources/{}", made(&world.api, "/api/resources", &body).await?);
    let credential = format!("{resource}/credential");
    let mut answers = Answers::default();
    let mut add = |label: &str, (status, body): (u16, Value)| {
        assert!(Search::of(TOKEN).find(body.to_string().as_bytes()).is_none(), "{label}: {body}");
        let shown = if body["id"].is_null() { body } else { body["credential"].clone() };
        answers.add(label, (status, shown));
    };
    add("none yet", world.api.get(&resource).await?);
    let basic = json!({ "auth_method": "basic", "fields": { "username": "octocat", "password": TOKEN } });
    add("save", world.api.put(&credential, &basic).await?);
    let token = json!({ "auth_method": "token", "fields": { "access_token": TOKEN } });
    add("save another in its place", world.api.put(&credential, &token).await?);
    add("show the resource", world.api.get(&resource).await?);
    let moved = json!({ "config": { "api_base": "https://evil.example.com" } });
    add("another origin than it was given for", world.api.patch(&resource, &moved).await?);
    add("back again", world.api.patch(&resource, &json!({ "config": config })).await?);
    add("read it", world.api.get(&credential).await?);
    add("delete", world.api.delete(&credential).await?);
    add("delete again", world.api.delete(&credential).await?);
    add("show the resource", world.api.get(&resource).await?);
    add("of no resource", world.api.put(&credential.replace("/credential", "0/credential"), &token).await?);
    assert_snapshot!(answers, @r#"
    none yet: 200
    save: 200 {"status":"ready","method":"basic","audience":["https://api.example.com"],"expires_at":null,"updated_at":"[time]"}
    save another in its place: 200 {"status":"ready","method":"token","audience":["https://api.example.com"],"expires_at":null,"updated_at":"[time]"}
    show the resource: 200 {"status":"ready","method":"token","audience":["https://api.example.com"],"expires_at":null,"updated_at":"[time]"}
    another origin than it was given for: 200 {"status":"needs-authorization","method":"token","audience":["https://api.example.com"],"requested_audience":["https://evil.example.com"],"expires_at":null,"updated_at":"[time]"}
    back again: 200 {"status":"ready","method":"token","audience":["https://api.example.com"],"expires_at":null,"updated_at":"[time]"}
    read it: 405 {"type":"urn:monstrum:error:method_not_allowed","title":"Method not allowed","status":405,"detail":"this route does not support this method","request_id":"[id 1]"}
    delete: 204
    delete again: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such credential","request_id":"[id 2]"}
    show the resource: 200
    of no resource: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such object with this id","request_id":"[id 3]"}
    "#);
    Ok(())
}

/// A value in the wrong field may be the secret itself, so errors do not repeat it, in whole or in part.
#[tokio::test]
async fn no_error_repeats_what_was_sent() -> Result<()> {
    const CANARY: &str = "ghp_canary0123456789";
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "r", &world.github.url()).await?;
    let credential = format!("/api/resources/{resource}/credential");
    let token = |fields: Value| json!({ "auth_method": "token", "fields": fields }).to_string();
    let mut answers = Answers::default();
    for (label, body) in [
        ("a text", json!(CANARY).to_string()),
        ("a list", json!([CANARY]).to_string()),
        ("nothing", String::new()),
        ("nothing in it", json!({}).to_string()),
        ("no JSON", CANARY.to_owned()),
        ("cut off", token(json!({ "access_token": CANARY }))[..60].to_owned()),
        ("not quoted", format!("{{\"auth_method\": \"token\", \"fields\": {{\"access_token\": {CANARY}}}}}")),
        ("unknown method", json!({ "auth_method": CANARY, "fields": { "access_token": "x" } }).to_string()),
        ("method of another type", json!({ "auth_method": [CANARY], "fields": {} }).to_string()),
        ("method that the type lacks", json!({ "auth_method": "ssh_key", "fields": { "key": CANARY } }).to_string()),
        ("fields of another type", token(json!(CANARY))),
        ("no fields", json!({ "auth_method": "token" }).to_string()),
        ("unknown field", token(json!({ "access_token": "x".repeat(40), CANARY: "y" }))),
        ("field of another method", token(json!({ "api_key": CANARY }))),
        ("number", token(json!({ "access_token": 1_234_567_890_123_u64 }))),
        ("list as secret", token(json!({ "access_token": [CANARY] }))),
        ("object as secret", token(json!({ "access_token": { CANARY: CANARY } }))),
        ("null as secret", token(json!({ "access_token": null }))),
        ("empty", token(json!({ "access_token": "" }))),
        ("7 bytes", token(json!({ "access_token": &CANARY[..7] }))),
        ("CR", token(json!({ "access_token": format!("{CANARY}\r") }))),
        ("LF", token(json!({ "access_token": format!("{CANARY}\nX: y") }))),
        ("NUL", token(json!({ "access_token": format!("{CANARY}\0") }))),
        (
            "field beside",
            json!({ "auth_method": "token", "fields": { "access_token": CANARY }, CANARY: 1 }).to_string(),
        ),
    ] {
        let request = world.api.request(Method::PUT, &credential).header("Content-Type", "application/json").body(body);
        let (status, headers, answer) = send(request).await?;
        assert!(
            !format!("{headers:?} {answer}").contains("canar") && !answer.to_string().contains("ghp_"),
            "{label}: {answer}"
        );
        answers.add(label, faults((status, answer)));
    }
    assert_snapshot!(answers, @r#"
    a text: 422 [{"path":"","message":"expected a JSON object with `auth_method` and `fields`; parsing failed at line 1 column 22"}]
    a list: 422 [{"path":"","message":"expected a JSON object with `auth_method` and `fields`; parsing failed at line 1 column 0"}]
    nothing: 422 [{"path":"","message":"expected a JSON object with `auth_method` and `fields`; parsing failed at line 1 column 0"}]
    nothing in it: 422 [{"path":"/auth_method","message":"required field is missing"},{"path":"/fields","message":"required field is missing"}]
    no JSON: 422 [{"path":"","message":"expected a JSON object with `auth_method` and `fields`; parsing failed at line 1 column 1"}]
    cut off: 422 [{"path":"","message":"expected a JSON object with `auth_method` and `fields`; parsing failed at line 1 column 60"}]
    not quoted: 422 [{"path":"","message":"expected a JSON object with `auth_method` and `fields`; parsing failed at line 1 column 53"}]
    unknown method: 422 [{"path":"/auth_method","message":"expected one of token, api_key, basic"}]
    method of another type: 422 [{"path":"/auth_method","message":"expected a string"}]
    method that the type lacks: 422 [{"path":"/auth_method","message":"expected one of token, api_key, basic"}]
    fields of another type: 422 [{"path":"/fields","message":"expected an object"}]
    no fields: 422 [{"path":"/fields","message":"required field is missing"}]
    unknown field: 422 [{"path":"/fields","message":"unknown field; the fields of this method are access_token"}]
    field of another method: 422 [{"path":"/fields","message":"unknown field; the fields of this method are access_token"}]
    number: 422 [{"path":"/fields","message":"every field must be a string"}]
    list as secret: 422 [{"path":"/fields","message":"every field must be a string"}]
    object as secret: 422 [{"path":"/fields","message":"every field must be a string"}]
    null as secret: 422 [{"path":"/fields","message":"every field must be a string"}]
    empty: 422 [{"path":"/fields/access_token","message":"required field is missing"}]
    7 bytes: 422 [{"path":"/fields/access_token","message":"a secret must have at least 8 bytes"}]
    CR: 422 [{"path":"/fields/access_token","message":"must not contain a line break or a NUL"}]
    LF: 422 [{"path":"/fields/access_token","message":"must not contain a line break or a NUL"}]
    NUL: 422 [{"path":"/fields/access_token","message":"must not contain a line break or a NUL"}]
    field beside: 422 [{"path":"","message":"unknown field; expected only `auth_method`, `fields` and `user`"}]
    "#);
    assert_eq!(world.api.get(&format!("/api/resources/{resource}")).await?.1["credential"], Value::Null);
    assert!(!world.server.output().contains("canary"), "the log: {}", world.server.output());
    Ok(())
}

/// Saving or deleting a credential takes effect with the next call.
#[tokio::test]
async fn a_change_of_the_credential_counts_from_the_next_call_on() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    let params = json!({ "repo": "acme/site" });
    let credential = format!("/api/resources/{}/credential", bound.resource);
    let mut answers = Answers::default();
    let mut call = async |label: &str| -> Result<()> {
        let mut answer = world.call("github_get_repo", &params).await?;
        answer["data"] = answer["data"]["full_name"].take();
        answers.add(label, (0, answer));
        Ok(())
    };
    call("the right one").await?;
    world.api.token(&bound.resource, "ghp_wrong_one").await?;
    call("a wrong one").await?;
    world.api.delete(&credential).await?;
    call("none").await?;
    world.api.token(&bound.resource, TOKEN).await?;
    call("the right one again").await?;
    assert_snapshot!(answers, @r#"
    the right one: 0 {"request_id":"[id 1]","status":"success","data":"acme/site","duration_ms":"[ms]"}
    a wrong one: 0 {"request_id":"[id 2]","status":"error","code":"plugin","message":"GitHub API error: 401 - {\"message\":\"Bad credentials\",\"documentation_url\":\"https://docs.github.com/rest\"}","duration_ms":"[ms]","data":null}
    none: 0 {"request_id":"[id 3]","status":"error","code":"unauthenticated","message":"GitHub request error: no credential is stored for this resource","duration_ms":"[ms]","data":null}
    the right one again: 0 {"request_id":"[id 4]","status":"success","data":"acme/site","duration_ms":"[ms]"}
    "#);
    Ok(())
}
