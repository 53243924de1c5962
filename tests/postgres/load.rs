//! A continuous load of calls, and the conditions that must hold for them at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use support::Api;
use tokio::task::JoinSet;

use crate::world::{World, eventually, text};

const WORKERS: usize = 12;
/// The pause between two calls of a worker. Without the pause, a server that rejects calls immediately would spend all
/// its time on rejections.
const PAUSE: Duration = Duration::from_millis(2);
/// The maximum time of a call, even if the database hangs. A connection may take five seconds, a statement twelve, and
/// a call waits for each once: operations after a failure are rejected immediately. The remaining time is a margin for
/// a busy machine.
const CALL_MAX: Duration = Duration::from_secs(40);

/// Running calls.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    workers: JoinSet<Result<Vec<Call>>>,
}

#[derive(Default)]
struct Counts {
    served: AtomicUsize,
    refused: AtomicUsize,
}

/// A call and its outcome.
pub(super) struct Call {
    marker: String,
    /// The request id of a served call. `None` if the call was rejected because the database was unavailable.
    request_id: Option<String>,
}

impl Load {
    /// Starts workers that list and create issues.
    pub(super) fn start(world: &World) -> Load {
        let (stop, counts) = (Arc::<AtomicBool>::default(), Arc::<Counts>::default());
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
            let (api, bot) = (world.api.clone(), world.bot.clone());
            workers.spawn(async move {
                let mut calls = Vec::new();
                for number in 0.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    let call = call(&api, &bot, format!("marker-{worker:02}-{number:06}"), number % 2 == 0).await?;
                    let count = if call.request_id.is_some() { &counts.served } else { &counts.refused };
                    count.fetch_add(1, Ordering::AcqRel);
                    calls.push(call);
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(calls)
            });
        }
        Load { stop, counts, workers }
    }

    /// Waits until `count` more calls are served.
    pub(super) async fn served(&self, count: usize) -> Result<()> {
        self.reaches(&self.counts.served, count, "more calls are served").await
    }

    /// Waits until `count` more calls are rejected because the database is unavailable.
    pub(super) async fn refused(&self, count: usize) -> Result<()> {
        self.reaches(&self.counts.refused, count, "more calls are rejected").await
    }

    async fn reaches(&self, counter: &AtomicUsize, count: usize, what: &str) -> Result<()> {
        let goal = counter.load(Ordering::Acquire) + count;
        eventually(what, async || Ok((counter.load(Ordering::Acquire) >= goal).then_some(()))).await
    }

    /// Stops the calls, and returns all calls that were made.
    pub(super) async fn end(self) -> Result<Vec<Call>> {
        self.stop.store(true, Ordering::Release);
        let calls: Vec<_> = self.workers.join_all().await.into_iter().collect::<Result<_>>()?;
        Ok(calls.into_iter().flatten().collect())
    }
}

/// Makes a call. It must be served or be rejected with `unavailable`; any other outcome is a fault.
async fn call(api: &Api, bot: &str, marker: String, is_change: bool) -> Result<Call> {
    let (tool, params) = match is_change {
        true => ("github_create_issue", json!({ "repo": "acme/site", "title": marker })),
        false => ("github_list_issues", json!({ "repo": "acme/site", "since": marker })),
    };
    let began = Instant::now();
    let (status, answer) =
        api.post(&format!("/api/bots/{bot}/tools/{tool}/call"), &json!({ "params": params })).await?;
    ensure!(began.elapsed() < CALL_MAX, "{marker} took {:?}", began.elapsed());
    let request_id = match (status, text(&answer["status"]), text(&answer["code"]), text(&answer["type"])) {
        (200, "success", _, _) => Some(text(&answer["request_id"]).to_owned()),
        (200, "error", "unavailable", _) | (503, _, _, "urn:monstrum:error:unavailable") => None,
        _ => bail!("{marker} got the answer {status} {answer}"),
    };
    Ok(Call { marker, request_id })
}

fn marker(text: &str) -> Option<String> {
    const LENGTH: usize = "marker-00-000000".len();
    let start = text.find("marker-")?;
    text.get(start..start + LENGTH).map(str::to_owned)
}

/// Checks all calls after the database has recovered. The audit contains the served calls as such, and all calls that
/// reached the upstream. It contains no call twice and no open call, and the chain is intact.
pub(super) async fn check(world: &World, calls: &[Call]) -> Result<()> {
    let report = world.api.verify_audit().await?;
    assert_eq!(report["valid"], true, "{report}");
    let (status, export) = world.api.get("/api/audit/export").await?;
    ensure!(status == 200, "{export}");
    let mut recorded: BTreeMap<String, Value> = BTreeMap::new();
    for line in export.as_str().context("the export is not JSON Lines")?.lines() {
        let call: Value = serde_json::from_str(line)?;
        ensure!(call["status"] != "running", "a call is still open: {call}");
        let marker =
            marker(&call["params"].to_string()).with_context(|| format!("the call contains no marker: {call}"))?;
        ensure!(recorded.insert(marker.clone(), call).is_none(), "the audit contains {marker} twice");
    }
    for call in calls.iter().filter(|call| call.request_id.is_some()) {
        let found = recorded
            .get(&call.marker)
            .with_context(|| format!("{} was served, but the audit does not contain it", call.marker))?;
        assert_eq!(
            [text(&found["status"]), text(&found["request_id"])],
            ["success", call.request_id.as_deref().unwrap_or_default()]
        );
    }
    let asked = world.github.requests();
    let reached =
        asked.iter().filter_map(|asked| marker(&asked.query).or_else(|| marker(&String::from_utf8_lossy(&asked.body))));
    for marker in reached.collect::<BTreeSet<_>>() {
        ensure!(recorded.contains_key(&marker), "{marker} reached the upstream, but the audit does not contain it");
    }
    Ok(())
}

/// Selects the maximum number of events of the same kind that the database contains for one call.
pub(super) const EVENTS_OF_A_CALL: &str =
    "select coalesce(max(count), 0) from (select count(*) from audit_rows group by request_id, kind) as counts";
