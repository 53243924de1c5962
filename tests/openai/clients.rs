//! Libraries that speak the OpenAI API, installed by `cargo xtask test` in `target/openai-clients`. Each holds a conversation
//! with two calls of the bot's tools, whole and streamed, runs a tool of its own beside them, and asks for an answer with a
//! form. docs/openai.md lists them.

use std::collections::BTreeMap;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rstest::rstest;
use serde_json::{Value, json};
use support::{LlmReply, OpenAiClients};
use tempfile::TempDir;
use tokio::process::Command;

use crate::tasks::{Tasks, calls, list};
use crate::world::text;

/// The time-out of all clients of a language, which import a hundred modules first.
const CLIENTS_MAX: Duration = Duration::from_secs(180);
const LIST: &str = "github_list_issues";
const WEATHER: &str = "get_weather";

/// Answers as a model that reads the conversation would: it looks twice before it counts, and asks the bot and the client
/// for the weather.
fn script(request: &Value) -> LlmReply {
    let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let last = messages.last().unwrap_or(&Value::Null);
    let said =
        messages.iter().rev().find(|message| message["role"] == "user").unwrap_or(&Value::Null)["content"].to_string();
    let is_first = last["role"] == "user";
    match said {
        said if said.contains("How many") && is_first => {
            asks(&[(LIST, list()), (LIST, json!({ "repo": "acme/other" }))])
        }
        said if said.contains("weather") && is_first => {
            asks(&[(LIST, list()), (WEATHER, json!({ "city": "Berlin" })), (WEATHER, json!({ "city": "Paris" }))])
        }
        said if said.contains("weather") => LlmReply::says(&[&told(messages)]),
        said if said.contains("JSON") && is_first && messages.len() == 2 => asks(&[(LIST, list())]),
        said if said.contains("JSON") => LlmReply::says(&["{\"n\":", " 2}"]),
        said if said.contains("sure") => LlmReply::says(&["Yes, ", "two."]),
        _ => LlmReply::says(&["There are ", "two."]),
    }
}

fn asks(asked: &[(&str, Value)]) -> LlmReply {
    calls(asked).after_text(&["Let me ", "look."])
}

/// Returns what the model has read about the weather, with the number of results that it has.
fn told(messages: &[Value]) -> String {
    let results = messages.iter().filter(|message| message["role"] == "tool");
    let own = results.clone().filter(|result| text(&result["content"]).contains("\"status\":\"success\"")).count();
    let rain: Vec<&str> = ["Berlin", "Paris"]
        .into_iter()
        .filter(|city| results.clone().any(|result| text(&result["content"]).contains(&format!("It rains in {city}."))))
        .collect();
    format!("Rain in {}, {own} of {}.", rain.join(" and "), results.count())
}

/// What every client gets.
fn expected(what: &str) -> (&'static str, Value) {
    match what {
        "whole" | "streamed" => ("text", json!("Let me look.\n\nThere are two.")),
        "again" | "kept" => ("text", json!("Yes, two.")),
        "models" => ("text", json!("tester")),
        "form" | "form streamed" => ("n", json!(2)),
        _ => ("text", json!("Rain in Berlin and Paris, 1 of 3.")),
    }
}

struct Clients {
    tasks: Tasks,
    home: TempDir,
}

impl Clients {
    async fn start() -> Result<Clients> {
        let tasks = Tasks::start().await?;
        tasks.llm.follow(script);
        let bot = format!("/api/bots/{}", tasks.world.bot);
        let (status, changed) = tasks.api().patch(&bot, &json!({ "client_tools": true })).await?;
        ensure!(status == 200, "{status} {changed}");
        Ok(Clients { tasks, home: tempfile::tempdir()? })
    }

    async fn output(&self, mut command: Command) -> Result<Output> {
        let url = self.tasks.world.server.url().context("the server is not running")?;
        command.envs(OpenAiClients::environment()?).env_remove("NODE_OPTIONS");
        command.env("OPENAI_BASE_URL", format!("{url}/v1")).env("OPENAI_API_KEY", self.tasks.api().key());
        command.env("HOME", self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let output = tokio::time::timeout(CLIENTS_MAX, command.output()).await.context("a client hangs")??;
        ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        Ok(output)
    }
}

#[rstest]
#[case::python(OpenAiClients::Python, &[
    ("openai chat", 8),
    ("openai responses", 8),
    ("langchain-openai chat", 6),
    ("langchain-openai responses", 6),
    ("openai-agents chat", 6),
    ("openai-agents responses", 6),
    ("litellm chat", 6),
    ("litellm responses", 2),
])]
#[case::javascript(OpenAiClients::JavaScript, &[
    ("openai chat", 8),
    ("openai responses", 8),
    ("ai with openai responses", 6),
    ("ai with openai chat", 6),
    ("ai with openai-compatible", 6),
])]
#[tokio::test]
async fn libraries_hold_conversations(#[case] language: OpenAiClients, #[case] counts: &[(&str, usize)]) -> Result<()> {
    let clients = Clients::start().await?;
    let output = clients.output(language.command()?).await?;
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    // A library may print texts of its own.
    for line in String::from_utf8(output.stdout)?.lines().filter(|line| line.starts_with('{')) {
        let told_now: Value = serde_json::from_str(line)?;
        let what = text(&told_now["what"]);
        let (field, expected) = expected(what);
        assert_eq!(told_now[field], expected, "{line}");
        // Some libraries ask for no usage of a stream.
        if let Some(tokens) = told_now["tokens"].as_u64().filter(|tokens| *tokens > 0) {
            assert_eq!(tokens, 24, "{line}");
        }
        *told.entry(text(&told_now["client"]).to_owned()).or_default() += 1;
    }
    let counts: BTreeMap<String, usize> = counts.iter().map(|(client, count)| ((*client).to_owned(), *count)).collect();
    assert_eq!(told, counts);
    Ok(())
}

/// The snippets of docs/openai.md run as they stand, but for the address and the key.
#[rstest]
#[case::python(OpenAiClients::Python)]
#[case::javascript(OpenAiClients::JavaScript)]
#[tokio::test]
async fn the_snippets_of_the_guide_run(#[case] language: OpenAiClients) -> Result<()> {
    const GUIDE: &str = include_str!("../../docs/openai.md");
    let clients = Clients::start().await?;
    let url = clients.tasks.world.server.url().context("the server is not running")?;
    let snippets: Vec<&str> =
        GUIDE.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix(language.fence())).collect();
    ensure!(snippets.len() >= 2, "docs/openai.md has no snippets");
    for snippet in snippets {
        let snippet = snippet
            .replace("http://127.0.0.1:8080", url)
            .replace("mk_…", clients.tasks.api().key())
            .replace("triage", "tester");
        let output = clients.output(language.snippet(&snippet)?).await.context(snippet)?;
        let printed = String::from_utf8(output.stdout)?;
        ensure!(printed.contains("There are two.") || printed.contains("Rain in Berlin and Paris"), "{printed}");
    }
    Ok(())
}
