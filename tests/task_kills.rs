//! Servers that are killed at any moment of tasks with six writes. Each write reaches the upstream at most once, each one
//! that has reached it has its result or is uncertain, every task ends, and no reservation is left. `cargo xtask test
//! --long` kills 50 servers on each database, with four tasks each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use support::{Api, FakeGithub, FakeLlm, LlmReply, Postgres, Random, Server, sqlite};

/// The number of bots, each of which has one task when the server is killed.
const BOTS: usize = 4;
const WRITES: usize = 6;
/// The numbers of writes that one round of the model asks for.
const WRITES_OF_ROUNDS: [usize; 4] = [1, 2, 1, 2];
/// The seed of the moments.
const SEED: u64 = 18;
/// The delay of the upstream, so that many moments are in the middle of a write.
const DELAY: Duration = Duration::from_millis(15);
const POLL: Duration = Duration::from_millis(50);
/// The maximum time until a task has ended. With a shared database, the lease of the killed server has to end first.
const END_MAX: Duration = Duration::from_secs(120);
const RESERVATIONS: &str = "select count(*) from reservations";

/// The database of the servers.
pub(crate) enum Database {
    Sqlite,
    Postgres(Postgres),
}

/// What the kills have met.
#[derive(Debug, Default)]
struct Met {
    /// The tasks that had not ended when their server was killed.
    cut: usize,
    uncertain: usize,
    written: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn of_4_servers() -> Result<()> {
    hold(4, Database::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_server_with_a_shared_database() -> Result<()> {
    hold(1, Database::Postgres(Postgres::start(&[])?)).await
}

/// Kills as many servers, each at a random moment of the tasks of all bots, and checks what the tasks have done.
pub(crate) async fn hold(kills: usize, database: Database) -> Result<()> {
    let server = Server::prepare(&["github"])?;
    let (mut server, name) = match &database {
        Database::Sqlite => (server, String::new()),
        Database::Postgres(postgres) => {
            let url = postgres.database()?;
            let address = url.split('?').next().unwrap_or_default();
            let name = address.rsplit('/').next().unwrap_or_default().to_owned();
            (server.variable("MONSTRUM_DATABASE_URL", &url), name)
        }
    };
    server.launch().await?;
    let (github, llm) = (FakeGithub::start().await?, FakeLlm::start().await?);
    github.set_delay(DELAY);
    llm.follow(next_round);
    let bots = bots(&server.api()?, &github, &llm).await?;

    let mut met = Met::default();
    let tasks = begin(&server.api()?, &bots, "undisturbed").await?;
    ended(&server.api()?, &tasks).await?;
    check(&server.api()?, &tasks, &github, &mut met).await?;
    ensure!(met.written == BOTS * WRITES, "without a kill, every write succeeds: {met:?}");
    let mut random = Random::new(SEED, kills as u64);
    for kill in 0..kills {
        let tasks = begin(&server.api()?, &bots, &format!("kill-{kill}")).await?;
        // The moment is a time after one of the writes, so that the speed of the machine does not decide about it.
        received(&github, random.below(BOTS * (WRITES - 1))).await?;
        tokio::time::sleep(DELAY.mul_f64(2.0 * random.share())).await;
        met.cut += unended(&server.api()?, &tasks).await?;
        server.kill().await?;
        server.launch().await?;
        ended(&server.api()?, &tasks).await?;
        check(&server.api()?, &tasks, &github, &mut met)
            .await
            .with_context(|| format!("kill {kill} of seed {SEED}"))?;
    }
    let left = match &database {
        Database::Sqlite => sqlite(&server.data_dir(), &[RESERVATIONS]).await?[0][0].as_i64(),
        Database::Postgres(postgres) => postgres.sql(&name, RESERVATIONS)?.trim().parse().ok(),
    };
    ensure!(left == Some(0), "reservations are left: {left:?}");
    let audit = server.api()?.verify_audit().await?;
    ensure!(audit["valid"] == true, "{audit}");
    ensure!(met.written > BOTS * WRITES, "the tasks have written nothing: {met:?}");
    ensure!(met.cut > 0, "no kill has met a task that ran: {met:?}");
    Ok(())
}

/// Creates bots that may use the model and create issues.
async fn bots(api: &Api, github: &FakeGithub, llm: &FakeLlm) -> Result<Vec<String>> {
    let mut bots = Vec::new();
    for number in 0..BOTS {
        let bot = api.bot(&format!("writer {number}")).await?;
        llm.give_to(api, &bot, &format!("models {number}")).await?;
        let (url, token) = (github.url(), github.token());
        api.grant(&bot, "github", (&url, &token), &["issue.write"], &json!({})).await?;
        bots.push(bot);
    }
    Ok(bots)
}

/// Returns the next round of a task: it asks for the next writes, whatever has become of the ones before.
fn next_round(request: &Value) -> LlmReply {
    let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |role: &str| messages.iter().filter(|message| message["role"] == role).collect::<Vec<_>>();
    let label = of("user").first().and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned();
    let rounds = of("assistant").len();
    let before: usize = WRITES_OF_ROUNDS.iter().take(rounds).sum();
    let Some(count) = WRITES_OF_ROUNDS.get(rounds) else { return LlmReply::says(&["All is written."]) };
    let write =
        |number: usize| ("github_create_issue", json!({ "repo": "acme/site", "title": format!("{label} {number}") }));
    LlmReply::calls(&(before + 1..=before + count).map(write).collect::<Vec<_>>())
}

async fn begin(api: &Api, bots: &[String], label: &str) -> Result<Vec<String>> {
    let begin = |(number, bot): (usize, &String)| {
        let (path, body) = (format!("/api/bots/{bot}/tasks"), json!({ "instruction": format!("{label}-{number}") }));
        async move {
            let (status, task) = api.post(&path, &body).await?;
            ensure!(status == 202, "{status} {task}");
            Ok(task["id"].as_str().context("the task has no id")?.to_owned())
        }
    };
    try_join_all(bots.iter().enumerate().map(begin)).await
}

/// Returns the number of tasks that have not ended.
async fn unended(api: &Api, tasks: &[String]) -> Result<usize> {
    let mut count = 0;
    for task in tasks {
        let (status, task) = api.get(&format!("/api/tasks/{task}")).await?;
        ensure!(status == 200, "{status} {task}");
        count += usize::from(task["ended_at"].is_null());
    }
    Ok(count)
}

/// Waits until the upstream has received this number of writes.
async fn received(github: &FakeGithub, writes: usize) -> Result<()> {
    let began = Instant::now();
    while github.requests().len() < writes {
        ensure!(began.elapsed() < END_MAX, "the upstream has not received {writes} writes");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

async fn ended(api: &Api, tasks: &[String]) -> Result<()> {
    let began = Instant::now();
    while unended(api, tasks).await? > 0 {
        ensure!(began.elapsed() < END_MAX, "a task has not ended");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Compares the steps of tasks with the requests that the upstream has received.
async fn check(api: &Api, tasks: &[String], github: &FakeGithub, met: &mut Met) -> Result<()> {
    let mut received = BTreeMap::<String, usize>::new();
    for request in github.take_requests() {
        let body: Value = serde_json::from_slice(&request.body).context("the body of a write")?;
        *received.entry(body["title"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    for task in tasks {
        let (_, shown) = api.get(&format!("/api/tasks/{task}")).await?;
        ensure!(shown["status"] == "completed", "{shown}");
        let (status, steps) = api.get(&format!("/api/tasks/{task}/steps?limit=1000")).await?;
        ensure!(status == 200, "{status} {steps}");
        let calls = steps["items"].as_array().into_iter().flatten().filter(|step| step["kind"] == "call");
        let mut planned = 0;
        for call in calls {
            planned += 1;
            let title = call["params"]["title"].as_str().context("a write has no title")?;
            let count = received.remove(title).unwrap_or(0);
            let is_uncertain = call["code"] == "uncertain";
            ensure!(count <= 1, "{title} was written {count} times: {call}");
            ensure!(is_uncertain || call["status"] == "success", "unexpected end: {call}");
            ensure!(is_uncertain || count == 1, "{title} succeeded and never reached the upstream: {call}");
            met.uncertain += usize::from(is_uncertain);
            met.written += count;
        }
        ensure!(planned == WRITES, "the task has {planned} calls: {steps}");
    }
    ensure!(received.is_empty(), "the upstream has received writes of no step: {received:?}");
    Ok(())
}
