//! Measures what the host adds to the streams of models and to the steps of tasks, and what running streams and waiting
//! tasks cost in memory. A scripted server answers for the model.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use support::{Api, FakeLlm, LlmReply, Server};

use crate::process::memory_bytes;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::{self, Grant, NO_UPSTREAM, PLUGIN};

/// The number of pieces of a measured answer.
const PIECES: usize = 1_000;
/// The number of streams of one side of a round.
const STREAMS: usize = 20;
const GOAL_PIECE_US: f64 = 50.0;
const GOAL_FIRST_US: f64 = 2_000.0;
/// The number of calls of a measured task, which are its steps except for the rounds.
const CALLS: usize = 30;
/// The number of bots with running streams, and the number of tasks that run at once for a bot. The host runs 256 tasks.
const STREAMING_BOTS: usize = 15;
const STREAMS_OF_A_BOT: usize = 16;
const GOAL_STREAM_BYTES: f64 = 100e3;
/// The workspaces with waiting tasks, the bots of each, and the tasks of each bot: the maximum of pending approvals.
const WORKSPACES: usize = 10;
const WAITING_BOTS: usize = 10;
const TASKS_OF_A_BOT: usize = 100;
const GOAL_WAITING_BYTES: f64 = 1e3;
/// The time after which memory that is no longer used is free.
const SETTLED: Duration = Duration::from_secs(3);
const WAIT_MAX: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_millis(100);

/// Measures models and tasks and returns the rows.
pub async fn measure(rounds: usize) -> Result<Vec<Row>> {
    let [first, piece] = pieces(rounds).await?;
    Ok(vec![first, piece, steps(rounds).await?, streams().await?, waiting().await?])
}

/// Measures the times of streamed answers, over the host and from the model itself.
async fn pieces(rounds: usize) -> Result<[Row; 2]> {
    let mut server = Server::prepare(&[])?;
    server.launch().await?;
    let (llm, api) = (FakeLlm::start().await?, server.api()?);
    let pieces = vec!["word "; PIECES];
    llm.follow(move |_| LlmReply::says(&pieces));
    let bot = scene::bot(&api, "talker", NO_UPSTREAM, &[]).await?;
    llm.give_to(&api, &bot.id, "models").await?;
    let over_host = Target { url: format!("{}/v1", base(&server)?), key: bot.key.clone(), model: "talker" };
    let direct = Target { url: llm.url(), key: "none".to_owned(), model: "small" };
    let (mut first, mut each) = (Rounds::default(), Rounds::default());
    for round in 0..=rounds {
        let (floor, subject) = (direct.sample().await?, over_host.sample().await?);
        // The first round fills the caches.
        if round > 0 {
            first.add(subject.0, floor.0);
            each.add(subject.1, floor.1);
        }
    }
    server.stop().await?;
    let goal = |added: f64, goal: f64| (format!("adds <= {goal:.0} us (now {added:.0})"), added <= goal);
    let (first_goal, is_first_met) = goal(first.added_us(), GOAL_FIRST_US);
    let (piece_goal, is_piece_met) = goal(each.added_us(), GOAL_PIECE_US);
    let floor = "the same from the model's server";
    Ok([
        Row::reported(("first piece of a streamed answer", floor), Measure::Time, &first)
            .with_goal(&first_goal, is_first_met),
        Row::reported(("each piece of a streamed answer", floor), Measure::Time, &each)
            .with_goal(&piece_goal, is_piece_met),
    ])
}

/// Where an answer is asked for.
struct Target {
    url: String,
    key: String,
    model: &'static str,
}

impl Target {
    /// Measures the time to the first piece, and the time of each further piece.
    async fn sample(&self) -> Result<(Sample, Sample)> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let messages = json!([{ "role": "user", "content": "Speak." }]);
        let body = json!({ "model": self.model, "stream": true, "messages": messages });
        let (began, mut firsts, mut others) = (Instant::now(), Vec::new(), Vec::new());
        for _ in 0..STREAMS {
            let asked = Instant::now();
            let request = client.post(format!("{}/chat/completions", self.url)).bearer_auth(&self.key).json(&body);
            let mut response = request.send().await?.error_for_status()?;
            let (mut received, mut first) = (Vec::new(), None);
            while let Some(chunk) = response.chunk().await? {
                received.extend_from_slice(&chunk);
                if first.is_none() && contains(&received, b"word ") {
                    first = Some(asked.elapsed());
                }
            }
            ensure!(contains(&received, b"[DONE]"), "the stream has no end");
            let first = first.context("the stream has no text")?;
            firsts.push(first);
            let divisor = u32::try_from(PIECES - 1)?;
            others.push(asked.elapsed().saturating_sub(first) / divisor);
        }
        Ok((Sample::new(firsts, began.elapsed()), Sample::new(others, began.elapsed())))
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Compares a step of a task with the same call over the HTTP API. A step has one more transaction.
async fn steps(rounds: usize) -> Result<Row> {
    let mut server = Server::prepare(&[PLUGIN])?;
    server.launch().await?;
    let (llm, api) = (FakeLlm::start().await?, server.api()?);
    let bot = scene::bot(&api, "worker", NO_UPSTREAM, &[Grant::all(PLUGIN)]).await?;
    llm.give_to(&api, &bot.id, "models").await?;
    llm.follow(|body| match body["messages"].as_array().and_then(|messages| messages.last()) {
        Some(last) if last["role"] == "tool" => LlmReply::says(&["Done."]),
        _ => {
            let call = |number: usize| ("test_echo_write", json!({ "repo": "bench/repo", "any": number }));
            LlmReply::calls(&(0..CALLS).map(call).collect::<Vec<_>>())
        }
    });
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let began = Instant::now();
        for number in 0..CALLS {
            let answer = api.call(&bot.id, "test_echo_write", &json!({ "repo": "bench/repo", "any": number })).await?;
            ensure!(answer["status"] == "success", "{answer}");
        }
        let floor = began.elapsed();
        let task = begin(&api, &bot.id).await?;
        let task = settled(&api, &task, "completed").await?;
        let took = times_of_steps(&api, &task).await?;
        if round > 0 {
            let calls = u32::try_from(CALLS)?;
            all.add(Sample::new(vec![took / calls], took), Sample::new(vec![floor / calls], floor));
        }
    }
    server.stop().await?;
    let names = ("step of a task that calls a tool", "the same call over the HTTP API");
    Ok(Row::reported(names, Measure::Time, &all))
}

/// Returns the time from the end of the first round to the end of its last call.
async fn times_of_steps(api: &Api, task: &Value) -> Result<Duration> {
    let id = task["id"].as_str().context("the task has no id")?;
    let (_, steps) = api.get(&format!("/api/tasks/{id}/steps?limit=1000")).await?;
    let steps = steps["items"].as_array().context("the task has no steps")?;
    ensure!(steps.len() == CALLS + 2, "the task has {} steps", steps.len());
    let ended = |index: usize| {
        let text = steps[index]["ended_at"].as_str().context("a step has no end")?;
        ms_of_day(text)
    };
    Ok(Duration::from_millis(ended(CALLS)?.saturating_sub(ended(0)?)))
}

/// Returns the milliseconds of the day in an RFC 3339 time.
fn ms_of_day(text: &str) -> Result<u64> {
    let time = text.split_once('T').map_or(text, |(_, time)| time).trim_end_matches('Z');
    let mut seconds = 0.0;
    for part in time.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().with_context(|| format!("{text} is not a time"))?;
    }
    Ok((seconds * 1e3) as u64)
}

/// Measures the memory of running streams.
async fn streams() -> Result<Row> {
    const COUNT: usize = STREAMING_BOTS * STREAMS_OF_A_BOT;
    let mut server = Server::prepare(&[])?.argument("--max-connections-per-address=0");
    server.launch().await?;
    let pid = server.pid().context("the server is not running")?;
    let (llm, api) = (FakeLlm::start().await?, server.api()?);
    llm.follow(|_| LlmReply::chunks(&[LlmReply::piece("word ")]).silent());
    let mut targets = Vec::new();
    for number in 0..STREAMING_BOTS {
        let bot = scene::bot(&api, &format!("streams-{number}"), NO_UPSTREAM, &[]).await?;
        // A resource runs 64 rounds at once.
        llm.give_to(&api, &bot.id, &format!("models-{number}")).await?;
        targets.push((format!("{}/v1/chat/completions", base(&server)?), bot.key, format!("streams-{number}")));
    }
    tokio::time::sleep(SETTLED).await;
    let idle = memory_bytes(pid)?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    let open = targets.iter().cycle().take(COUNT).map(|(url, key, model)| {
        let messages = json!([{ "role": "user", "content": "Speak." }]);
        let body = json!({ "model": model, "stream": true, "messages": messages });
        let request = client.post(url).bearer_auth(key).json(&body);
        async move {
            let mut response = request.send().await?.error_for_status()?;
            let mut received = Vec::new();
            while !contains(&received, b"word ") {
                received.extend_from_slice(&response.chunk().await?.context("the stream has ended")?);
            }
            Ok::<_, anyhow::Error>(response)
        }
    });
    let open = try_join_all(open).await?;
    let held = memory_bytes(pid)?;
    drop(open);
    server.stop().await?;
    let each = held.saturating_sub(idle) as f64 / COUNT as f64;
    let goal = format!("<= 100 KB per stream (now {:.1})", each / 1e3);
    let name = format!("{COUNT} running streams of tasks, memory (Pss)");
    Ok(Row::of_memory((&name, "idle"), held, idle).with_goal(&goal, each <= GOAL_STREAM_BYTES))
}

/// Measures the memory of tasks that wait for approvals.
async fn waiting() -> Result<Row> {
    const COUNT: usize = WORKSPACES * WAITING_BOTS * TASKS_OF_A_BOT;
    let mut server = Server::prepare(&[PLUGIN])?;
    server.launch().await?;
    let pid = server.pid().context("the server is not running")?;
    let (llm, root) = (FakeLlm::start().await?, server.api()?);
    llm.follow(|body| {
        LlmReply::calls(&[("test_echo_write", json!({ "repo": "bench/repo", "any": body["messages"][1] }))])
    });
    let mut bots = Vec::new();
    for number in 0..WORKSPACES {
        let api = workspace(&root, &format!("waits-{number}")).await?;
        for bot in 0..WAITING_BOTS {
            let id = scene::bot(&api, &format!("waits-{bot}"), NO_UPSTREAM, &[Grant::all(PLUGIN)]).await?.id;
            llm.give_to(&api, &id, &format!("models-{bot}")).await?;
            let gates = json!({ "gates": [{ "tools": ["test_echo_write"], "action": "ask", "expires_s": 86_400 }] });
            let (status, body) = api.patch(&format!("/api/bots/{id}"), &gates).await?;
            ensure!(status == 200, "{status} {body}");
            bots.push((api.clone(), id));
        }
    }
    // One task before the measurement, so that it does not include what is allocated once.
    wait(&bots, 1).await?;
    tokio::time::sleep(SETTLED).await;
    let idle = memory_bytes(pid)?;
    wait(&bots, TASKS_OF_A_BOT - 1).await?;
    tokio::time::sleep(SETTLED).await;
    let held = memory_bytes(pid)?;
    server.stop().await?;
    let each = held.saturating_sub(idle) as f64 / (COUNT - bots.len()) as f64;
    let goal = format!("<= 1 KB per task (now {:.1})", each / 1e3);
    let name = format!("{COUNT} tasks that wait for approvals, memory (Pss)");
    Ok(Row::of_memory((&name, "idle"), held, idle).with_goal(&goal, each <= GOAL_WAITING_BYTES))
}

/// Starts tasks of each bot, and waits until they wait.
async fn wait(bots: &[(Api, String)], count: usize) -> Result<()> {
    for number in 0..count {
        let started = bots.iter().map(|(api, bot)| async move {
            let instruction = json!({ "instruction": format!("Write, number {number} of {count}.") });
            let (status, task) = api.post(&format!("/api/bots/{bot}/tasks"), &instruction).await?;
            ensure!(status == 202, "{status} {task}");
            let id = task["id"].as_str().context("the task has no id")?.to_owned();
            settled(api, &id, "waiting").await
        });
        try_join_all(started).await?;
    }
    Ok(())
}

async fn begin(api: &Api, bot: &str) -> Result<String> {
    let body = json!({ "instruction": "Call the tools." });
    let (status, task) = api.post(&format!("/api/bots/{bot}/tasks"), &body).await?;
    ensure!(status == 202, "{status} {task}");
    Ok(task["id"].as_str().context("the task has no id")?.to_owned())
}

/// Waits until a task has a status.
async fn settled(api: &Api, id: &str, status: &str) -> Result<Value> {
    let until = Instant::now() + WAIT_MAX;
    loop {
        let (_, task) = api.get(&format!("/api/tasks/{id}")).await?;
        if task["status"] == status {
            return Ok(task);
        }
        ensure!(task["ended_at"].is_null() && Instant::now() < until, "the task is not {status}: {task}");
        tokio::time::sleep(POLL).await;
    }
}

/// Creates a workspace and returns the API of its admin.
async fn workspace(root: &Api, name: &str) -> Result<Api> {
    let (status, body) = root.post("/api/workspaces", &json!({ "name": name })).await?;
    ensure!(status == 201, "{status} {body}");
    let body = json!({ "name": "admin", "kind": "admin" });
    let request = root.request(reqwest::Method::POST, "/api/keys").header("Monstrum-Workspace", name).json(&body);
    let key: Value = request.send().await?.json().await?;
    Ok(root.with_key(key["key"].as_str().with_context(|| format!("the answer has no key: {key}"))?))
}

fn base(server: &Server) -> Result<String> {
    Ok(server.url().context("the server is not running")?.to_owned())
}
