//! Fourth stage: runs the component under its limits, with the host functions that this call may use.
//!
//! The stage requires a [`Permit`], which only the Guardian can issue. The returned outcome is not redacted yet.

mod rates;

use std::num::NonZeroU32;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::future::Either;
use governor::clock::DefaultClock;
use monstrum_egress::Egress;
use monstrum_guardian::Permit;
use monstrum_runtime::{CallEnd, CallLimits, ExecuteRequest, ExecuteResult, HostCalls, LogLine, StopReason};
use monstrum_types::{CallOutcome, Code, Status};
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::beside::{self, FreedBeside};
use crate::call::admission::{self, Asking, BotPlace, Lanes, NoRoom, Place};
use crate::call::built_in::llm::{PreparedRound, Rounds};
use crate::call::built_in::mcp::Bounds;
use crate::call::built_in::{agents, bots, mcp, sandbox};
use crate::call::child_calls::ChildCalls;
use crate::call::consent::{self, NotUsed};
use crate::call::host_functions::{HostFunctions, PluginEvents};
use crate::call::ledger::Ledger;
use crate::call::permitted::{Execution, TargetKind};
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::links;
use crate::call_types::refusal::Refusal;
use crate::call_types::starts_tasks::StartsTasks;
use crate::checks::{Checks, is_large_object};
use crate::mcp::Mcp;
use crate::meters::{self, Stage, StageTimer};
use crate::plugins::{Ceilings, Plugin, PluginComponent, built_in};
use crate::policy::{Binding, Resource};
use crate::remote_agents::RemoteAgents;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::outputs::Outputs;
use rates::Rates;

/// The delay after which a caller may retry if the host was full.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest time limit that the configuration of a resource can set for tools that come from outside.
const REMOTE_TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// The default time limit of such a call in seconds.
const REMOTE_TIMEOUT_S: u64 = 60;
/// The default number of concurrent calls of a resource with such tools, and the maximum.
const REMOTE_CONCURRENT: u32 = 16;
const REMOTE_CONCURRENT_MAX: u32 = 64;

/// The end of an execution.
pub enum Executed {
    Ended(CallOutcome),
    /// The call did not run, because its approval could not be used. The call must be judged again.
    JudgeAgain,
}

/// Runs permitted calls.
pub struct Executor {
    egress: Egress,
    lanes: Lanes,
    checks: Arc<Checks>,
    ceilings: Ceilings,
    ledger: Arc<Ledger>,
    built_in: BuiltIn,
    rounds: Rounds,
    rates: Rates,
    /// What starts tasks of bots. It runs the calls of tasks with this executor, so the executor does not keep it alive.
    tasks: OnceLock<Weak<dyn StartsTasks>>,
}

/// What runs the tools of the built-in types.
pub struct BuiltIn {
    pub sandboxes: Arc<Sandboxes>,
    pub sandbox_outputs: Arc<Outputs>,
    pub agents: Arc<RemoteAgents>,
    pub mcp: Arc<Mcp>,
}

impl Executor {
    /// Creates an executor whose requests go through `egress`, and whose built-in tools run in `built_in`.
    pub fn new(egress: Egress, lanes: Lanes, ceilings: Ceilings, ledger: Arc<Ledger>, built_in: BuiltIn) -> Executor {
        let (checks, rates) = (Arc::new(Checks::new()), Rates::new(DefaultClock::default()));
        let rounds = Rounds::new(egress.clone());
        Executor { egress, lanes, checks, ceilings, ledger, built_in, rounds, rates, tasks: OnceLock::new() }
    }

    /// Sets what starts tasks of bots. A host without it refuses the calls that start tasks.
    pub fn start_tasks_with(&self, tasks: Weak<dyn StartsTasks>) {
        self.tasks.get_or_init(|| tasks);
    }

    /// Returns what starts tasks of bots, on a host that has it.
    pub fn tasks(&self) -> Option<Arc<dyn StartsTasks>> {
        self.tasks.get().and_then(Weak::upgrade)
    }

    /// Returns the thread pool for checks that do not run in place.
    pub fn checks(&self) -> &Arc<Checks> {
        &self.checks
    }

    /// Returns the operator's time limit for a call.
    pub fn longest_call(&self) -> Duration {
        Duration::from_secs(u64::from(self.ceilings.timeout_s))
    }

    /// Returns the longest time that a call of this plugin may run. Bindings can set shorter limits.
    pub fn time_limit(&self, plugin: &Plugin) -> Duration {
        if plugin.name.as_str() == built_in::SANDBOX {
            // The parameters of a call set the limit.
            return Duration::MAX;
        }
        if plugin.has_remote_tools() {
            return REMOTE_TIMEOUT_MAX;
        }
        if plugin.name.as_str() == built_in::LLM {
            return Duration::from_secs(built_in::TOTAL_S_MAX.into());
        }
        if plugin.name.as_str() == built_in::BOT {
            return built_in::QUERY_MAX.max(limits(self.ceilings, plugin, None).timeout);
        }
        limits(self.ceilings, plugin, None).timeout
    }

    /// Returns the lanes of running and waiting calls.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Runs the call that `permit` permits. `of_bot` is the place of the call among the calls of its bot, if the call
    /// already has a place.
    pub async fn execute(&self, execution: &Execution<'_>, permit: Permit, of_bot: Option<BotPlace>) -> Executed {
        match self.run(execution, permit, of_bot).await {
            Ok(outcome) => Executed::Ended(outcome),
            Err(NotUsed::Refused(refusal)) => Executed::Ended(*refusal),
            Err(NotUsed::JudgeAgain) => Executed::JudgeAgain,
        }
    }

    async fn run(
        &self,
        execution: &Execution<'_>,
        permit: Permit,
        of_bot: Option<BotPlace>,
    ) -> Result<CallOutcome, NotUsed> {
        let has_large_params = is_large_object(permit.params());
        let permit = FreedBeside::new(permit, has_large_params);
        let Execution { target, secrets, passed, .. } = *execution;
        if passed.enters_rate()
            && let Some(refused) = target.binding().and_then(|binding| self.over_rate(binding))
        {
            return Ok(refused);
        }
        if let Some(component) = &target.plugin.component
            && let Some(failed) = self.load(component, execution, &permit).await
        {
            return Ok(failed);
        }
        let mut timer = StageTimer::start();
        let _place = match self.enter(execution, &permit, of_bot).await {
            Ok(place) if execution.is_query() => place.of_binding(),
            Ok(place) => place,
            Err(NoRoom::Busy) => return Ok(CallOutcome::error(Code::Busy, "the plugin is busy")),
            Err(NoRoom::Full) => {
                return Ok(CallOutcome::error(Code::Busy, "the server is busy").retry_after(FULL_RETRY_AFTER));
            }
        };
        timer.end(Stage::Queue);
        let limits = self.limits(execution, &permit);
        let until = Instant::now() + limits.timeout;
        let child_calls = match child_calls(execution, until) {
            Ok(child_calls) => child_calls,
            Err(refusal) => return Ok(*refusal),
        };
        let child_calls = child_calls.map(|calls| calls.with_unanswered(execution.entry.unanswered()));
        if let Some(child_calls) = &child_calls {
            secrets.share(child_calls.secrets());
        }
        if passed.enters_charge()
            && let Some(refused) = self.charge(execution).await
        {
            return Ok(refused);
        }
        // The definition of a tool from outside may have changed while the call waited.
        if !is_still_served(execution) {
            let message = "the tool is no longer declared with its approved definition";
            let outcome = CallOutcome::failure(Status::PermissionDenied, Code::Denied, message);
            return Ok(outcome.by_rule("revoked.tool"));
        }
        if let Some(refused) = mcp::without_credential(execution) {
            return Ok(refused);
        }
        let round = match self.prepared_round(execution, &permit).await {
            Ok(round) => round,
            Err(refusal) => return Ok(*refusal),
        };
        // A call that found no room, or whose bot has no budget, leaves its approval to the next attempt.
        if let Err(not_used) = consent::use_up(execution, &permit).await {
            if let Some(round) = round {
                round.abandon().await;
            }
            return Err(not_used);
        }
        let Some(component) = &target.plugin.component else {
            let bounds = Bounds { until, fuel: limits.fuel };
            let under = (child_calls.as_ref(), round);
            let ran = self.run_built_in(execution, &permit, under, (limits.timeout, bounds)).await;
            let has_remote_tools = target.plugin.has_remote_tools();
            return Ok(if has_remote_tools { execution.checked(target.tool(), ran, until).await } else { ran });
        };
        let Some(component) = component.ready() else { return Ok(not_loaded()) };
        let entry = (execution.entry, secrets);
        let tasks = execution.pipeline.children.clone();
        let bounds = (until, limits.fuel);
        let events = PluginEvents::of(execution, emitted(execution, child_calls.as_ref()));
        let may = (child_calls, events);
        let functions = HostFunctions::new(self.egress.clone(), target, entry, may, tasks, bounds);
        let functions = Arc::new(functions);
        secrets.search_until(until);
        let host: Arc<dyn HostCalls> = Arc::clone(&functions) as _;
        let params = beside::in_place(has_large_params, || permit.params_text().to_owned());
        let run = match &target.kind {
            TargetKind::Function(name) => {
                Either::Left(component.call_function(&permit, name.clone(), params, limits, host))
            }
            TargetKind::Tool(_) | TargetKind::CredentialCheck(_) => {
                Either::Right(component.call(&permit, request(execution, &permit, params, limits), limits, host))
            }
        };
        let end = run.instrument(tracing::debug_span!("execute")).await;
        secrets.redact_with(functions.redactor());
        write_log(&permit, &end, secrets).await;
        meters::fuel(end.fuel_used.saturating_add(functions.search_fuel_used()));
        if end.outcome.is_err() {
            // The component was stopped at any point of its work.
            execution.entry.left_unanswered();
        }
        let outcome = execution.checked(target.tool(), outcome(end, &functions), until).await;
        timer.end(Stage::Execute);
        Ok(outcome)
    }

    /// Loads the component if this is its first use, within the time limit of the call. Returns the outcome of the call
    /// if the component cannot be loaded.
    async fn load(
        &self,
        component: &PluginComponent,
        execution: &Execution<'_>,
        permit: &Permit,
    ) -> Option<CallOutcome> {
        if component.ready().is_some() {
            return None;
        }
        let timeout = self.limits(execution, permit).timeout;
        match tokio::time::timeout(timeout, component.load()).await {
            Ok(Ok(_)) => None,
            Ok(Err(_)) => Some(not_loaded()),
            Err(_) => {
                let stop = StopReason::Timeout { timeout };
                Some(CallOutcome::error(stop.code(), stop.message()))
            }
        }
    }

    /// Checks a round with a model, and reserves what it can cost. Returns `None` for other calls.
    async fn prepared_round(
        &self,
        execution: &Execution<'_>,
        permit: &Permit,
    ) -> Result<Option<PreparedRound>, Refusal> {
        if !execution.is_round() {
            return Ok(None);
        }
        self.rounds.prepare(&self.ledger, execution, permit).await.map(Some)
    }

    /// Waits for room in all lanes. A root call first waits for a place among the calls of its bot. A child call uses
    /// the place of its root call. A round takes no place among the calls of its bot.
    async fn enter(
        &self,
        execution: &Execution<'_>,
        permit: &Permit,
        of_bot: Option<BotPlace>,
    ) -> Result<Place, NoRoom> {
        let Execution { call, target, pipeline, .. } = *execution;
        let (workspace, bot, depth) = (call.workspace(), permit.bot(), call.depth());
        let is_round = execution.is_round();
        let wait = if is_round { admission::ROUND_WAIT_MAX } else { admission::WAIT_MAX };
        let until = Instant::now() + wait;
        let of_bot = match depth {
            _ if is_round => None,
            0 if of_bot.is_some() => of_bot,
            0 => Some(self.lanes.enter_bot(workspace, bot, until).await?),
            _ => None,
        };
        let binding = target.binding();
        let max = binding.and_then(|binding| limit_u32(&binding.row.limits, "concurrent"));
        let plugin = &target.plugin.name;
        let snapshot = pipeline.policy.load();
        let has_lane = is_round || target.plugin.has_remote_tools();
        let lane = target.resource.as_ref().filter(|_| has_lane);
        let asking = Asking {
            workspace,
            bot,
            binding: binding.map(|binding| binding.row.id).zip(max),
            // Commands run in sandboxes, whose number --sandbox-max limits.
            plugin: Some(plugin).filter(|name| name.as_str() != built_in::SANDBOX && !has_lane),
            resource: lane.map(|resource| (resource.row.id, concurrent(resource, is_round))),
            share_of_plugin: snapshot.share_of_plugin(plugin, workspace),
            share_of_host: snapshot.share_of_host(workspace),
            depth,
            held: call.lineage().map_or(&[], |lineage| &lineage.held),
            is_round,
            until,
        };
        self.lanes.enter(&asking, of_bot).await
    }

    /// Charges the cost of the tool, if the tool has a cost. Calls without a bot have no budget.
    async fn charge(&self, execution: &Execution<'_>) -> Option<CallOutcome> {
        let Execution { call, target, .. } = *execution;
        let bot = call.bot()?;
        let cost = target.tool()?.manifest.cost.filter(|cost| !cost.is_nothing())?;
        self.ledger.charge((call.workspace(), bot, call.app_user()), call.task_id(), cost).await
    }

    /// Runs a built-in tool under the time limit of the call.
    async fn run_built_in(
        &self,
        execution: &Execution<'_>,
        permit: &Permit,
        (child_calls, round): (Option<&ChildCalls>, Option<PreparedRound>),
        (timeout, bounds): (Duration, Bounds),
    ) -> CallOutcome {
        // The row `started` of this call must be on disk before the child calls have effects outside the host.
        if execution.entry.started().await.is_err() {
            if let Some(round) = round {
                round.abandon().await;
            }
            return CallOutcome::error(Code::Unavailable, "the audit could not be written; try again");
        }
        if let Some(round) = round {
            // The round ends itself at its time limit, with what it has used until then.
            return self.rounds.run(&self.ledger, execution, round, bounds.until).await;
        }
        let ran = async {
            match (execution.target.plugin.name.as_str(), child_calls) {
                (built_in::SANDBOX, _) => {
                    let BuiltIn { sandboxes, sandbox_outputs, .. } = &self.built_in;
                    sandbox::run(sandboxes, sandbox_outputs, execution, permit).await
                }
                (built_in::MCP, _) => mcp::run(&self.built_in.mcp, execution, permit, bounds).await,
                (built_in::AGENT, _) => agents::run(&self.built_in.agents, execution, permit, timeout).await,
                (built_in::BOT, child_calls) => {
                    let tasks = self.tasks();
                    bots::run(tasks, execution, permit, child_calls).await
                }
                _ => CallOutcome::error(Code::Unavailable, "this server cannot run the tool"),
            }
        };
        let ran = tokio::time::timeout(timeout, ran).await;
        ran.unwrap_or_else(|_| {
            let stop = StopReason::Timeout { timeout };
            CallOutcome::error(stop.code(), stop.message())
        })
    }

    /// Returns the limits of the call. A child call gets at most the remaining time of its parent.
    fn limits(&self, execution: &Execution<'_>, permit: &Permit) -> CallLimits {
        let Execution { call, target, .. } = *execution;
        let mut limits = limits(self.ceilings, &target.plugin, target.binding().map(Arc::as_ref));
        if target.plugin.has_remote_tools() {
            // The ceiling applies to plugins only. The configuration of the resource sets the limit.
            limits.timeout = remote_timeout(target.resource.as_deref(), target.binding().map(Arc::as_ref));
        }
        if execution.is_round() {
            limits.timeout = round_timeout(target.resource.as_deref(), target.binding().map(Arc::as_ref));
        }
        if execution.is_of_sandbox() {
            // The ceiling applies to plugins only. The time limit of a command comes from the parameters of the call.
            limits.timeout = sandbox::time_limit(permit);
        }
        if execution.is_query() {
            limits.timeout = query_timeout(target.binding().map(Arc::as_ref));
        }
        let Some(lineage) = call.lineage() else { return limits };
        let left = lineage.until.saturating_duration_since(Instant::now());
        let left = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        CallLimits { timeout: limits.timeout.min(left), ..limits }
    }

    /// Counts the call against the rate limit of the binding, if any. Returns a refusal if the call exceeds the limit.
    fn over_rate(&self, binding: &Binding) -> Option<CallOutcome> {
        let per_minute = NonZeroU32::new(u32::try_from(binding.row.calls_per_minute?).unwrap_or(u32::MAX))?;
        let wait = self.rates.check(binding.row.id, per_minute).err()?;
        let message = format!("the call exceeds the rate limit of this binding ({per_minute} per minute)");
        Some(CallOutcome::error(Code::Limit, message).by_rule("rate").retry_after(wait))
    }
}

/// Returns the outcome of a call whose component could not be loaded. The status of the plugin shows the reason.
fn not_loaded() -> CallOutcome {
    CallOutcome::error(Code::Unavailable, "the plugin cannot be loaded")
}

/// Returns the number of events that the root call and all calls below it have emitted.
fn emitted(execution: &Execution<'_>, child_calls: Option<&ChildCalls>) -> Arc<AtomicU32> {
    let of_calls = child_calls.map(ChildCalls::emitted);
    of_calls.or_else(|| execution.call.lineage().map(|lineage| lineage.emitted())).unwrap_or_default()
}

/// Prepares the child calls of the call, whose deadline is `until`. Returns `None` if the plugin makes no calls.
fn child_calls(execution: &Execution<'_>, until: Instant) -> Result<Option<ChildCalls>, Refusal> {
    let Execution { call, target, digest, pipeline, .. } = *execution;
    let plugin = &target.plugin;
    // A call without a bot cannot call tools.
    let Some(binding) = target.binding().filter(|_| plugin.makes_calls()) else { return Ok(None) };
    if plugin.component.is_some() {
        return Ok(Some(ChildCalls::of_plugin(pipeline, call, digest, until, binding, plugin.calls.clone())));
    }
    match pipeline.policy.load().bot_behind(&binding.resource) {
        Some(bot) => Ok(Some(ChildCalls::of_bot(pipeline, call, digest, until, binding, bot.row.id))),
        None => {
            let message = "the bot of this resource no longer exists";
            Err(Box::new(CallOutcome::error(Code::Unavailable, message)))
        }
    }
}

/// Returns the smallest of the limits of the operator, the manifest and the binding.
fn limits(ceilings: Ceilings, plugin: &Plugin, binding: Option<&Binding>) -> CallLimits {
    let (asked, default) = (plugin.manifest.executor.limits, Ceilings::default());
    let bound = |name| binding.and_then(|binding| limit_u64(&binding.row.limits, name)).unwrap_or(u64::MAX);
    let fuel = asked.fuel.unwrap_or(default.fuel).min(ceilings.fuel).min(bound("fuel"));
    let memory_bytes = ceilings.memory_bytes(&asked).min(bound("memory_mib").saturating_mul(1 << 20));
    let timeout_s = asked.timeout_s.unwrap_or(default.timeout_s).min(ceilings.timeout_s);
    let timeout_s = u64::from(timeout_s).min(bound("timeout_s"));
    CallLimits { fuel, memory_bytes, timeout: Duration::from_secs(timeout_s) }
}

/// Returns whether the tool of the call is served by the policy in force. Only tools from outside are compared.
fn is_still_served(execution: &Execution<'_>) -> bool {
    let Execution { call, target, pipeline, .. } = *execution;
    let Some(remote) = target.tool().and_then(|tool| tool.remote.as_ref()) else { return true };
    let Some(resource) = &target.resource else { return false };
    let snapshot = pipeline.policy.load();
    snapshot.resource(call.workspace(), resource.row.id).is_some_and(|now| now.serves(remote))
}

/// Returns the time limit of a call of a tool that comes from outside. A binding can lower it.
fn remote_timeout(resource: Option<&Resource>, binding: Option<&Binding>) -> Duration {
    let configured = resource.and_then(|resource| resource.config.get("timeout_s")).and_then(Value::as_u64);
    let bound = binding.and_then(|binding| limit_u64(&binding.row.limits, "timeout_s")).unwrap_or(u64::MAX);
    let timeout = Duration::from_secs(configured.unwrap_or(REMOTE_TIMEOUT_S).min(bound));
    timeout.min(REMOTE_TIMEOUT_MAX)
}

/// Returns the time limit of a round with a model. A binding can lower it.
fn round_timeout(resource: Option<&Resource>, binding: Option<&Binding>) -> Duration {
    let configured = resource.and_then(|resource| resource.config.get("total_s")).and_then(Value::as_u64);
    let bound = binding.and_then(|binding| limit_u64(&binding.row.limits, "timeout_s")).unwrap_or(u64::MAX);
    let timeout_s = configured.unwrap_or(built_in::TOTAL_S.into()).min(bound).min(built_in::TOTAL_S_MAX.into());
    Duration::from_secs(timeout_s)
}

/// Returns the time for which a query waits for an answer. A binding can lower it.
fn query_timeout(binding: Option<&Binding>) -> Duration {
    let bound = binding.and_then(|binding| limit_u64(&binding.row.limits, "timeout_s")).unwrap_or(u64::MAX);
    built_in::QUERY_MAX.min(Duration::from_secs(bound))
}

/// Returns the maximum number of concurrent calls of a resource with a lane of its own: one whose tools come from
/// outside, or one with models.
fn concurrent(resource: &Resource, is_round: bool) -> u32 {
    let (default, limit) = if is_round {
        (built_in::LLM_CONCURRENT, built_in::LLM_CONCURRENT_MAX)
    } else {
        (REMOTE_CONCURRENT, REMOTE_CONCURRENT_MAX)
    };
    let configured = resource.config.get("concurrent").and_then(Value::as_u64);
    let max = configured.map_or(default, |max| u32::try_from(max).unwrap_or(u32::MAX));
    max.clamp(1, limit)
}

fn limit_u64(limits: &Option<Box<Value>>, name: &str) -> Option<u64> {
    limits.as_ref()?.get(name)?.as_u64()
}

fn limit_u32(limits: &Option<Box<Value>>, name: &str) -> Option<u32> {
    limit_u64(limits, name).map(|value| u32::try_from(value).unwrap_or(u32::MAX))
}

fn request(execution: &Execution<'_>, permit: &Permit, params: String, limits: CallLimits) -> ExecuteRequest {
    let Execution { call, target, .. } = *execution;
    let tool = target.tool().map(|tool| tool.own_name.to_string());
    let config = target.resource.as_ref().map(|resource| resource.config_text.clone());
    ExecuteRequest {
        request_id: permit.request_id().to_string(),
        bot_id: permit.bot().map(|bot| bot.to_string()).unwrap_or_default(),
        task_id: call.task_or_request_id(),
        operation: permit.operation().to_owned(),
        tool_name: tool.unwrap_or_default(),
        params,
        scope: Some(permit.scope_json()),
        resource_id: permit.resource().map(|resource| resource.to_string()),
        resource_config: config.unwrap_or_else(|| "{}".to_owned()),
        delegate: links::delegate(call.links()),
        locale: call.language().tag().to_owned(),
        deadline_ms: u32::try_from(limits.timeout.as_millis()).unwrap_or(u32::MAX),
        context: call.context().to_string(),
    }
}

/// Converts the result of a component into the outcome of its call.
fn outcome(end: CallEnd, functions: &HostFunctions) -> CallOutcome {
    match end.outcome {
        Ok(ExecuteResult::Success(data)) => CallOutcome::success(data),
        Ok(ExecuteResult::Error(message)) => match functions.awaited() {
            Some(approval) => {
                CallOutcome::failure(Status::ApprovalRequired, Code::Approval, message).awaiting(approval)
            }
            None => CallOutcome::error(functions.cause(), message),
        },
        Ok(ExecuteResult::ScopeViolation(reason)) => {
            let message = format!("Scope violation: {reason}");
            CallOutcome::failure(Status::ScopeViolation, Code::Scope, message).by_rule("plugin")
        }
        Err(stop) => CallOutcome::error(stop.code(), stop.message()),
    }
}

/// Redacts the plugin's log lines and writes them to the host's log at level debug. If the redaction fails, logs only
/// the number of withheld lines.
async fn write_log(permit: &Permit, end: &CallEnd, secrets: &CallSecrets) {
    let (call, plugin) = (permit.request_id(), permit.plugin());
    if tracing::enabled!(target: "plugin", tracing::Level::DEBUG) {
        let texts = |line: &LogLine| [line.message.clone(), line.fields.clone().unwrap_or_default()];
        let texts = secrets.redacted_texts(end.log.iter().flat_map(texts).collect()).await;
        if let Err(withheld) = texts {
            let (lines, why) = (end.log.len(), withheld.message());
            tracing::warn!(call.id = %call, plugin.name = %plugin, lines, why, "withheld the log lines of a plugin");
        }
        for (LogLine { level, source, .. }, texts) in end.log.iter().zip(texts.unwrap_or_default().chunks_exact(2)) {
            let (level, source, message, fields) = (level.as_str(), source.as_str(), &texts[0], &texts[1]);
            tracing::debug!(target: "plugin", { call.id = %call, plugin.name = %plugin, level, source, fields }, "{message}");
        }
    }
    if end.log_dropped > 0 {
        tracing::warn!(call.id = %call, plugin.name = %plugin, lines = end.log_dropped, "log lines were dropped");
    }
}
