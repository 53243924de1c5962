//! litellm's proxy as the server of a model: a provider that is written by others. `cargo xtask test --long` installs it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{LitellmProxy, Server};

/// A bot answers over `/v1`, whole and streamed, with the model of the proxy.
pub(crate) async fn answers() -> Result<()> {
    let proxy = LitellmProxy::start().await?;
    let mut server = Server::prepare(&[])?;
    server.launch().await?;
    let api = server.api()?;
    let bot = api.bot("tester").await?;
    proxy.give_to(&api, &bot).await?;
    let mut body = json!({ "model": "tester", "messages": [{ "role": "user", "content": "How many?" }] });
    let (status, answer) = api.post("/v1/chat/completions", &body).await?;
    ensure!(status == 200, "{status} {answer}");
    assert_eq!(answer["choices"][0]["message"]["content"], "There are two.");
    let usage = &answer["usage"];
    assert!(usage["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{usage}");

    body["stream"] = json!(true);
    let response = api.request(reqwest::Method::POST, "/v1/chat/completions").json(&body).send().await?.text().await?;
    let data = response.lines().filter_map(|line| line.strip_prefix("data: "));
    let chunks: Vec<Value> = data.filter_map(|data| serde_json::from_str(data).ok()).collect();
    let said: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, "There are two.", "{response}");
    ensure!(response.trim_end().ends_with("data: [DONE]"), "{response}");
    let (_, used) = api.get(&format!("/api/bots/{bot}/usage")).await?;
    let rounds = used["items"][0]["rounds"].as_u64().context("no usage")?;
    assert_eq!(rounds, 2, "{used}");
    Ok(())
}
