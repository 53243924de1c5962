//! Servers that are killed at any moment of runs. Each write reaches the upstream at most once; reads and idempotent calls have
//! one key, however often they are sent; a write is uncertain only if it has started and has no result; every run ends, each of
//! its events once; and the audit holds. `cargo xtask test --long` kills servers at 300 moments on each database.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use support::{Api, FakeGithub, Postgres, RUN_MAX, Random, Server, is_over};

const PLUGIN: &str = "test-effects";
/// The number of runs under way when the server is killed.
const RUNS: usize = 5;
/// The maximum number of kills of the same runs.
const KILLS_OF_RUNS: usize = 3;
/// The maximum number of requests of the upstream between two kills. A run makes about eleven.
const REQUESTS_BETWEEN: usize = 20;
/// The seed of the moments.
const SEED: u64 = 19;
/// The delay of the upstream, so that many moments are in the middle of a call.
const DELAY: Duration = Duration::from_millis(15);
const POLL: Duration = Duration::from_millis(2);
const POLLS_PER_QUESTION: usize = 25;
/// Lets the leases of a server that was killed end at once.
const END_LEASES: &str =
    "update chores set held_until = 0; update wakes set claimed_until = 0 where claimed_until is not null";

/// The database of the servers.
pub(crate) enum Database {
    Sqlite,
    Postgres(Postgres),
}

/// The calls of a step: the id of the step, the last part of their marker, and what they do to the upstream.
const CALLS: [(&str, &str, Effect); 9] = [
    ("read", "read", Effect::Harmless),
    ("p", "p-0", Effect::Harmless),
    ("p", "p-1", Effect::Harmless),
    ("p", "p-2", Effect::Harmless),
    ("w1", "w1", Effect::Write),
    ("p1", "p1", Effect::Harmless),
    ("w2", "w2", Effect::Write),
    ("w3", "w3", Effect::Write),
    ("f", "f", Effect::Harmless),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// A repetition under the same key changes nothing more.
    Harmless,
    Write,
}

/// What the kills have met.
#[derive(Debug, Default)]
struct Met {
    /// The kills at which a run had not ended.
    cut: usize,
    uncertain: usize,
    written: usize,
    /// The requests that repeated an earlier one under its key.
    repeated: usize,
}

/// The servers, their upstream and their workflows.
struct Scene {
    server: Server,
    database: Database,
    /// The name of the database on the PostgreSQL server.
    name: String,
    github: FakeGithub,
    workflow: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn at_10_moments() -> Result<()> {
    hold(10, Database::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn at_10_moments_with_a_shared_database() -> Result<()> {
    hold(10, Database::Postgres(Postgres::start(&["fsync=off"])?)).await
}

/// Kills servers at this number of random moments of runs, and checks what the runs have done.
pub(crate) async fn hold(moments: usize, database: Database) -> Result<()> {
    let mut scene = Scene::start(database).await?;
    let mut met = Met::default();
    let runs = scene.begin("undisturbed").await?;
    scene.ended(&runs).await?;
    scene.check(&runs, "undisturbed", &mut met).await?;
    ensure!(met.uncertain == 0 && met.repeated == 0, "without a kill, every call succeeds at once: {met:?}");
    let mut random = Random::new(SEED, moments as u64);
    let mut round = 0;
    while met.cut < moments {
        let label = format!("round-{round}");
        scene.round(&label, moments, &mut random, &mut met).await.with_context(|| format!("{label} of seed {SEED}"))?;
        round += 1;
    }
    let api = scene.server.api()?;
    let audit = api.verify_audit().await?;
    ensure!(audit["valid"] == true, "{audit}");
    let (_, failing) = api.get("/api/wakes?failing=true").await?;
    ensure!(failing["items"] == json!([]), "a turn fails: {failing}");
    ensure!(met.repeated > 0, "no kill has met a call: {met:?}");
    Ok(())
}

impl Scene {
    async fn start(database: Database) -> Result<Scene> {
        let server = Server::prepare(&[PLUGIN])?;
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
        let github = FakeGithub::start().await?;
        github.set_delay(DELAY);
        let api = server.api()?;
        let bot = api.bot("runner").await?;
        api.grant(&bot, PLUGIN, (&github.url(), &github.token()), &["*"], &json!({})).await?;
        api.workflow(&bot, "child", &child()).await?;
        let workflow = api.workflow(&bot, "parent", &parent()).await?;
        Ok(Scene { server, database, name, github, workflow })
    }

    /// Starts runs and kills the server at a few moments of them. Then waits for their end and checks what they have done.
    async fn round(&mut self, label: &str, moments: usize, random: &mut Random, met: &mut Met) -> Result<()> {
        let runs = self.begin(label).await?;
        for _ in 0..KILLS_OF_RUNS.min(moments - met.cut) {
            // The moment is a time after one of the requests, so that the speed of the machine does not decide about it.
            let requests = self.github.requests().len() + random.below(REQUESTS_BETWEEN);
            if !self.received(requests, &runs).await? {
                break;
            }
            tokio::time::sleep(DELAY.mul_f64(2.0 * random.share())).await;
            let is_cut = self.unended(&runs).await? > 0;
            self.server.kill().await?;
            met.cut += usize::from(is_cut);
            // The first kill waits for the leases of the server to end, as another host would.
            if let (Database::Postgres(postgres), true) = (&self.database, met.cut > 1) {
                postgres.sql(&self.name, END_LEASES)?;
            }
            self.server.launch().await?;
        }
        self.ended(&runs).await?;
        self.check(&runs, label, met).await
    }

    async fn begin(&self, label: &str) -> Result<Vec<String>> {
        let api = self.server.api()?;
        let begin = |number: usize| {
            // Every other run stops, and undoes what it has done.
            let input = json!({ "label": format!("{label}-{number}"), "stops": number % 2 == 1 });
            let api = &api;
            async move { api.start_run(&self.workflow, &input).await }
        };
        try_join_all((0..RUNS).map(begin)).await
    }

    /// Returns the number of runs that have not ended.
    async fn unended(&self, runs: &[String]) -> Result<usize> {
        let api = self.server.api()?;
        let shown = try_join_all(runs.iter().map(|run| api.run(run))).await?;
        Ok(shown.iter().filter(|run| !is_over(run)).count())
    }

    /// Waits until the upstream has received this number of requests. Returns false if all runs have ended before.
    async fn received(&self, requests: usize, runs: &[String]) -> Result<bool> {
        let (began, mut polls) = (Instant::now(), 0_usize);
        while self.github.requests().len() < requests {
            ensure!(began.elapsed() < RUN_MAX, "the upstream has not received {requests} requests");
            polls += 1;
            // The questions about the runs must not keep the server from running them.
            if polls.is_multiple_of(POLLS_PER_QUESTION) && self.unended(runs).await? == 0 {
                return Ok(false);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(true)
    }

    async fn ended(&self, runs: &[String]) -> Result<()> {
        let api = self.server.api()?;
        for run in runs {
            api.run_ended(run).await?;
        }
        Ok(())
    }

    /// Compares the steps of runs with the requests that the upstream has received.
    async fn check(&self, runs: &[String], label: &str, met: &mut Met) -> Result<()> {
        let api = self.server.api()?;
        let mut received = BTreeMap::<String, Vec<String>>::new();
        for request in self.github.take_requests() {
            let marker = request.path.strip_prefix("/effects/").context("a request of another kind")?.to_owned();
            let key = request.header("idempotency-key").unwrap_or_default().to_owned();
            received.entry(marker).or_default().push(key);
        }
        for (number, id) in runs.iter().enumerate() {
            let run = api.run(id).await?;
            let stops = number % 2 == 1;
            let expected = if stops { ("failed", "stopped") } else { ("completed", "") };
            let told = (run["status"].as_str().unwrap_or_default(), run["error"]["code"].as_str().unwrap_or_default());
            ensure!(told == expected, "{run}");
            let label = format!("{label}-{number}");
            let mut checked =
                Checked { api: &api, label: &label, received: &mut received, uncertain: Vec::new(), met: &mut *met };
            checked.run(id, stops).await.with_context(|| format!("{run}"))?;
            let listed = run["uncertain"].as_array().into_iter().flatten().filter_map(|step| step["step"].as_str());
            let mut listed: Vec<String> = listed.map(str::to_owned).collect();
            listed.sort();
            checked.uncertain.sort();
            ensure!(listed == checked.uncertain, "uncertain are {:?}: {run}", checked.uncertain);
            check_events(&api, &run).await?;
        }
        ensure!(received.is_empty(), "the upstream has received calls of no step: {received:?}");
        Ok(())
    }
}

/// The check of one run.
struct Checked<'a> {
    api: &'a Api,
    label: &'a str,
    /// The keys of the requests, by marker. What is checked is removed.
    received: &'a mut BTreeMap<String, Vec<String>>,
    /// The ids of the uncertain steps.
    uncertain: Vec<String>,
    met: &'a mut Met,
}

impl Checked<'_> {
    async fn run(&mut self, id: &str, stops: bool) -> Result<()> {
        let steps = self.api.run_steps(id).await?;
        for (step, marker, effect) in CALLS {
            let item = marker.strip_prefix("p-");
            let rows: Vec<&Value> = of(&steps, step, item, false);
            self.call(&rows, marker, effect).await?;
        }
        // Only what has succeeded is undone.
        let undo = of(&steps, "w3", None, true);
        let has_succeeded = of(&steps, "w3", None, false).iter().any(|row| row["status"] == "succeeded");
        ensure!(undo.is_empty() != (stops && has_succeeded), "wrongly undone or not undone: {steps:?}");
        if !undo.is_empty() {
            self.call(&undo, "undo", Effect::Harmless).await?;
        }
        // The child is a run of its own, which exists once.
        let child = of(&steps, "child", None, false);
        let [child] = child.as_slice() else { anyhow::bail!("the child has started {} times", child.len()) };
        let child = child["run_id"].as_str().context("the step has no run")?;
        let steps = self.api.run_steps(child).await?;
        let uncertain = self.uncertain.len();
        self.call(&of(&steps, "cw", None, false), "cw", Effect::Write).await?;
        self.uncertain.truncate(uncertain);
        Ok(())
    }

    /// Compares the attempts of a step with the requests for its marker.
    async fn call(&mut self, rows: &[&Value], marker: &str, effect: Effect) -> Result<()> {
        let marker = format!("{}-{marker}", self.label);
        let last = rows.last().with_context(|| format!("{marker}: the step has never begun"))?;
        let request_id = last["request_id"].as_str().context("a call has no id")?;
        ensure!(rows.iter().all(|row| row["request_id"] == request_id), "{marker} has several ids: {rows:?}");
        let keys = self.received.remove(&marker).unwrap_or_default();
        ensure!(keys.iter().all(|key| key == request_id), "{marker}: {keys:?} instead of {request_id}");
        let is_uncertain = last["status"] == "uncertain";
        ensure!(is_uncertain || last["status"] == "succeeded", "unexpected end of {marker}: {last}");
        ensure!(is_uncertain || !keys.is_empty(), "{marker} succeeded and never reached the upstream: {last}");
        match effect {
            Effect::Harmless => {
                ensure!(!is_uncertain, "{marker} could have been repeated: {last}");
                self.met.repeated += keys.len() - 1;
            }
            Effect::Write => {
                ensure!(keys.len() <= 1, "{marker} was written {} times: {last}", keys.len());
                self.met.written += keys.len();
            }
        }
        if is_uncertain {
            // The upstream may have seen it: it has started, and nothing says how it ended.
            let row = self.api.audit(request_id).await?;
            let kinds = row["events"].as_array().into_iter().flatten().filter_map(|event| event["kind"].as_str());
            let kinds: Vec<&str> = kinds.collect();
            ensure!(kinds.contains(&"started") && row["status"] != "success", "{marker} is certain: {row}");
            self.met.uncertain += 1;
            self.uncertain.push(last["step"].as_str().unwrap_or_default().to_owned());
        }
        Ok(())
    }
}

/// Returns the attempts of a step.
fn of<'a>(steps: &'a [Value], id: &str, item: Option<&str>, undo: bool) -> Vec<&'a Value> {
    let is_it = |step: &&Value| {
        step["step"] == id
            && step["item"].as_str() == item
            && (step["undo"] == true) == undo
            && step["status"] != "skipped"
    };
    steps.iter().filter(is_it).collect()
}

/// Checks that each event of a run exists once.
async fn check_events(api: &Api, run: &Value) -> Result<()> {
    let end = if run["status"] == "completed" { "workflow.completed" } else { "workflow.failed" };
    let since = run["created_at"].as_str().unwrap_or_default();
    for (event_type, place) in [("custom.told", "metadata"), (end, "data")] {
        let mut count = 0;
        let first = format!("/api/events?event_type={event_type}&since={since}&limit=1000");
        let mut path = first.clone();
        loop {
            let (status, page) = api.get(&path).await?;
            ensure!(status == 200, "{status} {page}");
            let items = page["items"].as_array().context("the events have no items")?;
            count += items.iter().filter(|event| event[place]["run_id"] == run["id"]).count();
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("{first}&cursor={cursor}");
        }
        ensure!(count == 1, "{event_type} exists {count} times: {run}");
    }
    Ok(())
}

fn call(id: &str, tool: &str, marker: &str) -> Value {
    json!({ "id": id, "tool": format!("test_effects_{tool}"), "params": { "marker": format!("${{{{ input.label }}}}-{marker}") } })
}

/// Returns a write. The run goes on if it is uncertain.
fn write(id: &str) -> Value {
    let mut step = call(id, "write", id);
    step["on_error"] = json!("continue");
    step
}

fn parent() -> Value {
    let mut undone = write("w3");
    undone["undo"] = json!({ "tool": "test_effects_put", "params": { "marker": "${{ input.label }}-undo" } });
    json!({
        "steps": [
            call("read", "read", "read"),
            { "id": "all", "each": [0, 1, 2], "concurrency": 2, "steps": [call("p", "put", "p-${{ index }}")] },
            { "id": "both", "parallel": { "left": [write("w1")], "right": [call("p1", "put", "p1")] } },
            { "id": "tell", "emit": "told", "data": { "label": "${{ input.label }}" } },
            { "id": "child", "workflow": "child", "input": { "label": "${{ input.label }}" } },
            undone,
            write("w2"),
            { "id": "end", "when": "input.stops", "stop": "failed" },
        ],
        "finally": [call("f", "put", "f")],
    })
}

fn child() -> Value {
    json!({ "steps": [write("cw")] })
}
