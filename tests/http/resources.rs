//! `/api/resources`.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use crate::http::roles::faults;
use crate::http::{Answers, made};
use crate::world::text;

#[tokio::test]
async fn a_resource_is_made_shown_changed_and_deleted() -> Result<()> {
    let server = Server::start(&["test-echo"]).await?;
    let api = server.api()?;
    let mut answers = Answers::default();
    let body = json!({
        "resource_type": "test-echo", "name": "eu", "config": { "api_base": "https://api.example.com/v1", "retries": 3 },
        "network": { "allow_addresses": ["10.0.0.0/8", "fd00::/8"], "allow_http": true },
    });
    let created = api.post("/api/resources", &body).await?;
    let resource = format!("/api/resources/{}", text(&created.1["id"]));
    answers.add("create", created);
    let body = json!({ "resource_type": "test-echo", "name": "bare" });
    answers.add("create with as little as can be", api.post("/api/resources", &body).await?);
    answers.add("show", api.get(&resource).await?);
    let body = json!({ "config": { "region": "us" }, "network": { "allow_http": false } });
    answers.add("replace whole fields", api.patch(&resource, &body).await?);
    answers.add("clear", api.patch(&resource, &json!({ "config": null, "network": null })).await?);
    answers.add("name nothing", api.patch(&resource, &json!({})).await?);
    answers.add("list", api.get("/api/resources").await?);
    answers.add("delete", api.delete(&resource).await?);
    for answer in [api.delete(&resource).await?, api.get(&resource).await?, api.patch(&resource, &json!({})).await?] {
        answers.add("afterwards", answer);
    }
    assert_snapshot!(answers, @"");
    Ok(())
}

#[tokio::test]
async fn faults_of_a_resource_are_named() -> Result<()> {
    let server = Server::start(&["test-echo"]).await?;
    let api = server.api()?;
    let of_type = |field: &str, value: Value| json!({ "resource_type": "test-echo", "name": "x", field: value });
    made(&api, "/api/resources", &json!({ "resource_type": "test-echo", "name": "taken" })).await?;
    let mine = made(&api, "/api/resources", &json!({ "resource_type": "test-echo", "name": "mine" })).await?;
    let mut answers = Answers::default();
    for body in [
        json!({}),
        json!({ "resource_type": "absent", "name": "" }),
        json!({ "resource_type": "No Type", "name": "x" }),
        of_type("name", json!("taken")),
        of_type("credential", json!({})),
        of_type("config", json!({ "api_base": "ftp://x", "region": "moon", "retries": "3", "colour": 1 })),
        of_type("config", json!({ "api_base": "https://user:secret@example.com" })),
        of_type("config", json!([])),
        of_type("network", json!({ "allow_addresses": ["10.0.0.0/8", "10.0.0.1", "x"] })),
        of_type("network", json!({ "allow_addresses": "10.0.0.0/8" })),
        of_type("network", json!({ "allow_all": true })),
        of_type("network", Value::Null),
    ] {
        answers.add(&format!("POST {body}"), faults(api.post("/api/resources", &body).await?));
    }
    let mine = format!("/api/resources/{mine}");
    for body in [
        json!({ "name": null }),
        json!({ "name": "taken" }),
        json!({ "resource_type": "test-echo" }),
        json!({ "config": { "region": 5 } }),
        json!({ "network": { "allow_addresses": ["0.0.0.0"] } }),
    ] {
        answers.add(&format!("PATCH {body}"), faults(api.patch(&mine, &body).await?));
    }
    let many = vec!["10.0.0.0/8"; 257];
    answers.add("too many ranges", faults(api.patch(&mine, &json!({ "network": { "allow_addresses": many } })).await?));
    assert_snapshot!(answers, @"");
    Ok(())
}
