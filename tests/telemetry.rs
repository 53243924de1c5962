//! The telemetry of the server: metrics, log lines and spans. They must not contain data of calls.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{LlmReply, Server, TOKEN};

use crate::tasks::Tasks;
use crate::world::{World, eventually, text};

/// Makes three calls: a call that succeeds, a call that a scope rejects, and a call of a tool that does not exist.
async fn some_calls(world: &World) -> Result<Vec<Value>> {
    world.grant("github", &["*"], &json!({ "repos": ["acme/*"] })).await?;
    let mut answers = Vec::new();
    for (tool, repo) in [("github_get_repo", "acme/site"), ("github_get_repo", "other/x"), ("no_such_tool", "x")] {
        answers.push(world.call(tool, &json!({ "repo": repo })).await?);
    }
    Ok(answers)
}

#[tokio::test]
async fn metrics_count_calls_by_status_and_code_and_time_each_stage() -> Result<()> {
    let world = World::with(&["github"]).await?;
    some_calls(&world).await?;
    let (status, metrics) = world.api.get("/metrics").await?;
    ensure!(status == 200, "{metrics}");
    let metrics = text(&metrics);
    for line in [
        "monstrum_calls_total{status=\"success\",code=\"\"} 1",
        "monstrum_calls_total{status=\"scope_violation\",code=\"scope\"} 1",
        "monstrum_calls_total{status=\"permission_denied\",code=\"denied\"} 1",
        "monstrum_call_stage_seconds_count{stage=\"resolve\"} 2",
        "monstrum_call_stage_seconds_count{stage=\"params\"} 2",
        "monstrum_call_stage_seconds_count{stage=\"guardian\"} 1",
        "monstrum_call_stage_seconds_count{stage=\"queue\"} 1",
        "monstrum_call_stage_seconds_count{stage=\"execute\"} 1",
        "monstrum_call_stage_seconds_count{stage=\"redact\"} 3",
        "monstrum_call_stage_seconds_count{stage=\"audit\"} 3",
        "monstrum_egress_request_seconds_count{outcome=\"2xx\"} 1",
        "monstrum_call_fuel_count 1",
        "monstrum_pool_calls 0",
        "monstrum_pool_calls_max 1000",
        "monstrum_queue_calls 0",
        "monstrum_queue_audit_rows 0",
        "monstrum_database_usable 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "the metrics do not contain {line}:\n{metrics}");
    }
    for name in
        ["monstrum_audit_commit_seconds_bucket", "monstrum_audit_commit_rows_sum", "monstrum_database_poll_seconds"]
    {
        assert!(metrics.contains(name), "the metrics do not contain {name}:\n{metrics}");
    }
    assert!(
        !metrics.contains("acme") && !metrics.contains("no_such_tool"),
        "the metrics contain a label value from a call:\n{metrics}"
    );
    Ok(())
}

#[tokio::test]
async fn metrics_count_rounds_tokens_tasks_and_approvals() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["Hello."])]);
    tasks.run("Greet.").await?;
    tasks.llm.prepare([LlmReply::json(400, &json!({ "error": { "message": "no" } }))]);
    tasks.run("Greet again.").await?;
    // A task that waits for an approval.
    let gates = json!([{ "tools": ["github_create_issue"], "action": "ask" }]);
    tasks.world.rebind(&tasks.github, &json!({ "gates": gates })).await?;
    let create = json!({ "repo": "acme/site", "title": "Secret title" });
    tasks.llm.prepare([LlmReply::calls(&[("github_create_issue", create)])]);
    let id = tasks.begin(&json!({ "instruction": "Create an issue." })).await?;
    eventually("the task waits", async || {
        let (_, task) = tasks.api().get(&format!("/api/tasks/{id}")).await?;
        Ok((task["status"] == "waiting").then_some(()))
    })
    .await?;
    let (status, metrics) = tasks.api().get("/metrics").await?;
    ensure!(status == 200, "{metrics}");
    let metrics = text(&metrics);
    for line in [
        "monstrum_rounds_total{outcome=\"ok\"} 2",
        "monstrum_rounds_total{outcome=\"rejected\"} 1",
        "monstrum_round_first_token_seconds_count 2",
        "monstrum_model_tokens_total{model=\"small\",direction=\"input\"} 18",
        "monstrum_model_tokens_total{model=\"small\",direction=\"output\"} 6",
        "monstrum_tasks_total{status=\"completed\",code=\"\"} 1",
        "monstrum_tasks_total{status=\"failed\",code=\"model\"} 1",
        "monstrum_tasks{status=\"waiting\"} 1",
        "monstrum_tasks{status=\"running\"} 0",
        "monstrum_approvals_pending{age=\"to_1m\"} 1",
        "monstrum_approvals_pending{age=\"over_1d\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "the metrics do not contain {line}:\n{metrics}");
    }
    assert!(!metrics.contains("acme") && !metrics.contains("Secret"), "{metrics}");
    Ok(())
}

#[tokio::test]
async fn log_lines_are_json_by_setting_and_name_the_call() -> Result<()> {
    let server = Server::prepare(&["github"])?.argument("--log-format=json").variable("MONSTRUM_LOG", "debug");
    let mut world = World::on(server).await?;
    let answers = some_calls(&world).await?;
    world.server.stop().await?;
    let output = world.server.output();
    let lines: Vec<Value> =
        output.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str).collect::<Result<_, _>>()?;
    let ended: Vec<&Value> = lines.iter().filter(|line| line["message"] == "call ended").collect();
    ensure!(ended.len() == 3, "{output}");
    for (line, answer) in ended.iter().zip(&answers) {
        let call = line["spans"].as_array().into_iter().flatten().find(|span| span["name"] == "call");
        let call = call.with_context(|| format!("the line contains no span of a call: {line}"))?;
        assert_eq!((&call["call.id"], &call["bot.id"]), (&answer["request_id"], &json!(world.bot)), "{line}");
        assert_eq!((&line["status"], line["level"].as_str()), (&answer["status"], Some("DEBUG")), "{line}");
        let decision = if answer["status"] == "success" { "allow" } else { "deny" };
        assert_eq!(call["decision"], decision, "{line}");
    }
    for never in [TOKEN, "acme/site", "other/x"] {
        assert!(!output.contains(never), "the log contains `{never}`:\n{output}");
    }
    Ok(())
}

/// Reads one request, and answers with an empty 200. Returns the head and the body of the request.
fn taken(mut stream: TcpStream) -> Result<(String, Vec<u8>)> {
    let mut received = Vec::new();
    let mut part = [0; 4096];
    loop {
        let count = stream.read(&mut part)?;
        received.extend(part.get(..count).unwrap_or_default());
        let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
            ensure!(count > 0, "the request ended within its head");
            continue;
        };
        let head = String::from_utf8_lossy(received.get(..end).unwrap_or_default()).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).context("a length")?;
        let body = received.get(end + 4..).unwrap_or_default();
        if body.len() >= length.parse()? {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
            return Ok((head, body.to_vec()));
        }
        ensure!(count > 0, "the request ended within its body");
    }
}

/// The requests that a collector receives, each with its head and body.
type Batches = mpsc::Receiver<Result<(String, Vec<u8>)>>;

/// Starts a collector. Returns the setting of the server with its address, and what it receives.
fn collector() -> Result<(String, Batches)> {
    let collector = TcpListener::bind("127.0.0.1:0")?;
    let endpoint = format!("--otlp-endpoint=http://{}", collector.local_addr()?);
    let (sender, batches) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in collector.incoming() {
            if sender.send(stream.map_err(anyhow::Error::from).and_then(taken)).is_err() {
                return;
            }
        }
    });
    Ok((endpoint, batches))
}

fn holds(sent: &[u8], text: &str) -> bool {
    sent.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Returns what the collector has received, which must have these names and none of these texts.
fn exported(batches: &Batches, names: &[&str], never: &[&str]) -> Result<()> {
    let mut sent: Vec<u8> = Vec::new();
    loop {
        // The collector may still be processing data that the server has sent.
        let is_whole = names.iter().all(|name| holds(&sent, name));
        let wait = Duration::from_secs(if is_whole { 1 } else { 30 });
        let Ok(batch) = batches.recv_timeout(wait) else { break };
        let (head, body) = batch?;
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        sent.extend(body);
    }
    for name in names {
        assert!(holds(&sent, name), "no span contains `{name}`");
    }
    for never in never {
        assert!(!holds(&sent, never), "a span contains `{never}`");
    }
    Ok(())
}

#[tokio::test]
async fn spans_of_a_call_are_exported_and_hold_no_secret() -> Result<()> {
    let (endpoint, batches) = collector()?;
    let mut world = World::on(Server::prepare(&["github"])?.argument(&endpoint)).await?;
    some_calls(&world).await?;
    // The server sends the last spans when it ends.
    world.server.stop().await?;
    let names =
        ["monstrum", "call", "execute", "egress", "github_get_repo", "decision", "allow", "deny", "plugin.name"];
    exported(&batches, &names, &[TOKEN, "acme/site", "other/x"])
}

#[tokio::test]
async fn spans_of_a_task_have_the_names_of_opentelemetry_and_no_content() -> Result<()> {
    let (endpoint, batches) = collector()?;
    let mut tasks = Tasks::on(Server::prepare(&["github"])?.argument(&endpoint)).await?;
    let list = json!({ "repo": "acme/site" });
    tasks.llm.prepare([LlmReply::calls(&[("github_list_issues", list)]), LlmReply::says(&["Spoken answer."])]);
    tasks.run("Written instruction.").await?;
    tasks.world.server.stop().await?;
    let names = [
        "invoke_agent",
        "chat small",
        "execute_tool github_list_issues",
        "gen_ai.operation.name",
        "gen_ai.request.model",
        "gen_ai.response.finish_reasons",
        "tool_calls",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    ];
    exported(&batches, &names, &["acme/site", "Spoken answer", "Written instruction"])
}
