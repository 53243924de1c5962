//! Compares a governed call in this process with a call with wasmtime alone, and measures the steps of the governed
//! call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use monstrum_core::app::App;
use monstrum_core::audit::{QueuedRow, Resolved};
use monstrum_core::call::authorize::Judged;
use monstrum_core::call::check::checked_params;
use monstrum_core::call::execute::Executed;
use monstrum_core::call::permitted::{Execution, Passed, Pipeline, Target};
use monstrum_core::call::session::Session;
use monstrum_core::call::{authorize, resolve};
use monstrum_core::call_types::call_secrets::CallSecrets;
use monstrum_core::call_types::incoming::IncomingCall;
use monstrum_core::call_types::refusal::NotPermitted;
use monstrum_core::checks::in_place;
use monstrum_types::{BotId, CallOutcome, RequestId, Status, WorkspaceId};
use serde_json::Value;
use support::{Api, InProcess};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bare::{Bare, ExecuteRequest, request_of_echo};
use crate::cpu;
use crate::machine::Machine;
use crate::report::{Measure, Row, Stage};
use crate::sample::{Rounds, Sample};
use crate::scene::{self, Bot, Grant, PLUGIN, TOOL};
use crate::upstream::authority;

/// The maximum time that governing may add to the bare call on the reference machine.
const ADDED_MAX_US: f64 = 14.0;
const ROUNDS: usize = 41;
const STAGE_GROUPS: usize = 150;
const CALLS_A_ROUND: usize = 480;
/// The number of calls that queue their rows before any row is awaited. The wait is not part of the measured time.
const CALLS_IN_FLIGHT: usize = 32;

/// The host in this process, and its folders.
pub struct Host {
    host: InProcess,
    workspace: WorkspaceId,
    bot: BotId,
    /// A bot that may use all tools and has no scope patterns.
    free_bot: BotId,
    /// Such a bot whose upstream speaks TLS.
    tls_bot: BotId,
}

impl Host {
    /// Starts the host with new folders, and creates bots whose resources use `upstream` or `tls_upstream`.
    pub async fn start(upstream: &str, tls_upstream: &str) -> Result<Host> {
        let (_, authority) = authority()?;
        let host = InProcess::start_trusting(&[PLUGIN, cpu::PLUGIN], vec![authority]).await?;
        let api = host.api()?;
        let grants = [Grant::with_patterns(), Grant::all(cpu::PLUGIN)];
        let bot = scene::bot(&api, "bench", upstream, &grants).await?;
        let free = scene::bot(&api, "free", upstream, &[Grant::all(PLUGIN)]).await?;
        let tls = scene::bot(&api, "tls", tls_upstream, &[Grant::all(PLUGIN)]).await?;
        let id = |bot: Bot| bot.id.parse().map_err(|_| anyhow!("the id of the bot is invalid"));
        let (bot, free_bot, tls_bot) = (id(bot)?, id(free)?, id(tls)?);
        let workspace = host.running.app.policy.load().default_workspace();
        Ok(Host { host, workspace, bot, free_bot, tls_bot })
    }

    pub fn app(&self) -> &Arc<App> {
        &self.host.running.app
    }

    /// Loads the plugin's component.
    pub fn bare(&self) -> Result<Bare> {
        Bare::load(&self.host.folders.plugins_dir().join(PLUGIN).join("plugin.wasm"))
    }

    /// Stops the host, so that its background work does not affect later measurements.
    pub async fn stop(self) {
        self.host.stop().await;
    }

    fn call(&self, params: &Value) -> IncomingCall {
        self.call_of(TOOL, params)
    }

    /// Creates a call of any tool of the bot.
    pub fn call_of(&self, tool: &str, params: &Value) -> IncomingCall {
        self.call_by(self.bot, tool, params)
    }

    /// Creates a call by any bot.
    pub fn call_by(&self, bot: BotId, tool: &str, params: &Value) -> IncomingCall {
        IncomingCall::bot_tool(RequestId::new(), self.workspace, bot, tool.to_owned(), params.clone())
    }

    /// Returns the bot whose scope has ten patterns.
    pub fn bot(&self) -> BotId {
        self.bot
    }

    /// Returns a client with the root key.
    pub fn api(&self) -> Result<Api> {
        self.host.api()
    }

    /// Returns the URL of the host.
    pub fn url(&self) -> &str {
        &self.host.running.base_url
    }

    /// Creates a call by the bot that has no scope patterns, to an upstream with or without TLS.
    pub fn free_call(&self, tool: &str, params: &Value, uses_tls: bool) -> IncomingCall {
        let bot = if uses_tls { self.tls_bot } else { self.free_bot };
        IncomingCall::bot_tool(RequestId::new(), self.workspace, bot, tool.to_owned(), params.clone())
    }
}

/// Measures the governed call and its steps.
pub async fn measure(host: Arc<Host>, machine: Machine) -> Result<(Row, Vec<Stage>)> {
    Ok((beside_floor(&host, &machine).await?, stages(&host).await?))
}

async fn beside_floor(host: &Host, machine: &Machine) -> Result<Row> {
    let bare = host.bare()?;
    let params = scene::params();
    let request = same_request(host, &params).await?;
    let mut rounds = Rounds::default();
    for round in 0..=ROUNDS {
        let (subject, floor) = if round % 2 == 0 {
            let floor = floor_round(&bare, &request).await?;
            (governed_round(host, &params).await?, floor)
        } else {
            (governed_round(host, &params).await?, floor_round(&bare, &request).await?)
        };
        // The first round warms up the caches.
        if round > 0 {
            rounds.add(subject, floor);
        }
    }
    let (added, added_max) = (rounds.added_us(), machine.time_us(ADDED_MAX_US));
    let names = ("governed call in process, 10 patterns, row queued", "bare wasmtime call");
    let goal = format!("<= 1.35 x and <= {added_max:.0} us added (now {added:.1})");
    Ok(Row::new(names, Measure::Time, &rounds, &goal, |ratio, _| ratio <= 1.35 && added <= added_max))
}

async fn governed_round(host: &Host, params: &Value) -> Result<Sample> {
    let mut times = Vec::with_capacity(CALLS_A_ROUND);
    let began = Instant::now();
    while times.len() < CALLS_A_ROUND {
        let mut endings = Vec::with_capacity(CALLS_IN_FLIGHT);
        for _ in 0..CALLS_IN_FLIGHT {
            let call = host.call(params);
            let started = Instant::now();
            let ending = host.app().calls.govern(call, CancellationToken::new()).await?;
            times.push(started.elapsed());
            endings.push(ending);
        }
        for ending in endings {
            check(&ending.committed().await?.outcome)?;
        }
    }
    Ok(Sample::new(times, began.elapsed()))
}

async fn floor_round(bare: &Bare, request: &ExecuteRequest) -> Result<Sample> {
    let mut times = Vec::with_capacity(CALLS_A_ROUND);
    let began = Instant::now();
    for _ in 0..CALLS_A_ROUND {
        let started = Instant::now();
        let answer = bare.call(request).await?;
        times.push(started.elapsed());
        ensure!(!answer.is_empty(), "the answer of the plugin is empty");
    }
    Ok(Sample::new(times, began.elapsed()))
}

/// Fails unless the call succeeded.
pub fn check(outcome: &CallOutcome) -> Result<()> {
    ensure!(outcome.status == Status::Success, "a call failed: {:?} {:?}", outcome.code, outcome.message);
    Ok(())
}

/// Returns the host's request to the component in a governed call, from the echo of the plugin.
async fn same_request(host: &Host, params: &Value) -> Result<ExecuteRequest> {
    let answer = host.app().calls.run(host.call(params)).await?;
    check(&answer.outcome)?;
    request_of_echo(&answer.outcome.data.context("the echo has no data")?.value())
}

/// Writes some audit rows for the verification, in case no other measurement has run before.
pub async fn fill_audit(host: &Host) -> Result<()> {
    const ROUNDS: usize = 20;
    let params = scene::params();
    for _ in 0..ROUNDS {
        governed_round(host, &params).await?;
    }
    Ok(())
}

const STAGES: [&str; 8] = [
    "open the entry of the audit",
    "take the snapshot",
    "resolve the tool",
    "check the parameters",
    "Guardian: the permit",
    "execute: lanes, limits, component, parsing of the answer",
    "redact the answer",
    "create and queue the row",
];

/// Returns the median time of each step. The steps are the steps of `Calls::govern`, and the clock is read after each
/// step.
async fn stages(host: &Host) -> Result<Vec<Stage>> {
    let params = scene::params();
    let mut times: [Vec<Duration>; STAGES.len()] = Default::default();
    for group in 0..STAGE_GROUPS {
        let mut rows = Vec::with_capacity(CALLS_IN_FLIGHT);
        for _ in 0..CALLS_IN_FLIGHT {
            let (laps, row) = one_by_one(host, &params).await?;
            rows.push(row);
            // The first groups warm up the caches.
            if group >= STAGE_GROUPS / 10 {
                for (times, lap) in times.iter_mut().zip(laps) {
                    times.push(lap);
                }
            }
        }
        for row in rows {
            row.committed().await?;
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    Ok(STAGES.into_iter().zip(&mut times).map(|(name, times)| Stage { name, median_us: median(times) }).collect())
}

async fn one_by_one(host: &Host, params: &Value) -> Result<([Duration; STAGES.len()], QueuedRow)> {
    let app = host.app();
    let call = host.call(params);
    let mut laps = [Duration::ZERO; STAGES.len()];
    let mut last = Instant::now();
    let mut lap = |stage: usize| {
        let now = Instant::now();
        laps[stage] = now - last;
        last = now;
    };
    let refused = |outcome: Box<CallOutcome>| anyhow!("refused: {:?}", outcome.message);
    let not_permitted = |why: NotPermitted| match why {
        NotPermitted::Refused(outcome) => refused(outcome),
        NotPermitted::Overrun(overrun) => anyhow!("not checked in place: {overrun}"),
    };
    let secrets = Arc::new(CallSecrets::default());
    let entry = Arc::new(app.auditor.open(&call, Arc::clone(&secrets))?);
    lap(0);
    let session = Session::open(&app.policy, app.clock.now(), &call).map_err(refused)?;
    lap(1);
    let resolved = resolve::resolve(&session, &call, &in_place()).map_err(|why| not_permitted(why.refusal))?;
    let resource = &resolved.binding.resource;
    entry.resolved(&Resolved {
        plugin: &resolved.plugin.name,
        plugin_digest: resolved.plugin.digest(),
        operation: &resolved.tool().manifest.operation,
        resource: Some(resource.stored_id()),
    });
    secrets.redact_with(resource.credential_source().redactor());
    lap(2);
    let params = checked_params(resolved.tool(), &call, &in_place()).map_err(not_permitted)?;
    lap(3);
    let judged = authorize::permit(&call, &session, &resolved, params, &in_place()).map_err(not_permitted)?;
    let Judged::Permitted(permit) = judged else { bail!("a gate asks for the call") };
    lap(4);
    let pipeline = Pipeline {
        runs: Arc::clone(&app.calls) as _,
        policy: Arc::clone(&app.policy),
        approvals: Arc::clone(&app.approvals),
        checks: Arc::clone(app.calls.executor.checks()),
        clock: Arc::clone(&app.clock),
        children: TaskTracker::new(),
    };
    let target = Target::of(resolved);
    let execution = Execution {
        call: &call,
        target: &target,
        digest: None,
        pipeline: &pipeline,
        entry: &entry,
        secrets: &secrets,
        judged_by: &session.snapshot,
        passed: &Passed::default(),
    };
    let Executed::Ended(outcome) = app.calls.executor.execute(&execution, permit, None).await else {
        bail!("the call was not run")
    };
    lap(5);
    let outcome = secrets.redacted_outcome(outcome).await;
    lap(6);
    let row = entry.close(&outcome, Vec::new()).await?;
    lap(7);
    check(&outcome)?;
    Ok((laps, row))
}
