//! `/api/resource-types`.

use anyhow::Result;
use insta::{assert_json_snapshot, assert_snapshot};
use reqwest::Method;
use serde_json::{Value, json};
use support::Server;

use crate::http::{Answers, send};
use crate::stable::stable;

#[tokio::test]
async fn a_type_is_its_whole_contract_in_the_language_of_the_caller() -> Result<()> {
    let server = Server::start(&["github"]).await?;
    let api = server.api()?;
    let (_, mut contract) = api.get("/api/resource-types/github").await?;
    let (_, list) = api.get("/api/resource-types").await?;
    assert_eq!(list, json!({ "items": [contract], "next_cursor": null }));
    if let Some(tools) = contract["tools"].as_array_mut() {
        tools.truncate(1);
    }
    assert_json_snapshot!(stable(&contract), @"");

    let mut answers = Answers::default();
    for language in ["zh-CN", "zh", "ZH-cn", "fr, zh-CN;q=0.5", "en-US, zh-CN;q=0.9", "zh-CN;q=0", "de", "*", "\u{e9};;,"] {
        let request = api.request(Method::GET, "/api/resource-types/github").header("Accept-Language", language);
        let (status, _, body) = send(request).await?;
        answers.add(language, (status, json!([body["description"], body["tools"][0]["description"]])));
    }
    assert_snapshot!(answers, @"");
    let request = api.request(Method::GET, "/api/resource-types/github").header("Accept-Language", "zh-CN");
    assert_json_snapshot!(texts(&send(request).await?.2), @"");
    let mut answers = Answers::default();
    for id in ["absent", "Git%20Hub", "..%2fgithub"] {
        answers.add(id, api.get(&format!("/api/resource-types/{id}")).await?);
    }
    assert_snapshot!(answers, @"");
    Ok(())
}

/// Everything that is for people to read.
fn texts(contract: &Value) -> Value {
    let each = |list: &str, fields: &[&str]| -> Value {
        let items = contract[list].as_array().into_iter().flatten();
        items.map(|item| fields.iter().map(|field| item[*field].clone()).collect::<Value>()).collect()
    };
    json!({
        "description": contract["description"],
        "tools": each("tools", &["name", "description"]),
        "scope_dimensions": each("scope_dimensions", &["key", "error_template"]),
        "auth_methods": each("auth_methods", &["method", "label", "description"]),
    })
}
