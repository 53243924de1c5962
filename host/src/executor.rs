//! Fourth stage: runs the component under its limits, with the doors that this call may use.
//!
//! It takes a [`Permit`], which only the Guardian makes. What comes out is redacted by the entry of the call, with
//! every secret that the call has met.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Either};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use monstrum_egress::{CredentialSource, Egress, RedactorCell, Scope, SearchBudget};
use monstrum_guardian::Permit;
use monstrum_runtime::{CallEnd, CallLimits, ExecuteRequest, ExecuteResult, HostCalls, LogLine, StopReason};
use monstrum_types::{
    BindingId, CallOutcome, Code, Failure, FailureCode, HttpRequest, HttpResponse, JsonText, SandboxEntry,
    SandboxOutput, Status, ToolFailure,
};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::auditor::Entry;
use crate::beside::{self, FreedBeside};
use crate::call::nested::{Below, Nesting};
use crate::call::sandboxed::import::SandboxImport;
use crate::call::{Ended, IncomingCall, Refusal, delegated, sandboxed};
use crate::checks::{Asker, Checks, is_large_object};
use crate::config::Ceilings;
use crate::credentials::ResourceCredential;
use crate::lanes::{self, Asking, BotPlace, Lanes, NoRoom, Place};
use crate::ledger::Ledger;
use crate::plugins::{Plugin, built_in};
use crate::policy::{Binding, Resource};
use crate::sandboxes::Sandboxes;
use crate::telemetry::meters::{self, Laps, Stage};
use crate::tools::{Job, What};

/// When a caller that found the host full may try again.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Runs permitted calls.
pub struct Executor {
    egress: Egress,
    lanes: Lanes,
    checks: Arc<Checks>,
    ceilings: Ceilings,
    ledger: Ledger,
    sandboxes: Arc<Sandboxes>,
    /// One limiter for each rate that some binding sets.
    rates: Mutex<std::collections::HashMap<NonZeroU32, Arc<DefaultKeyedRateLimiter<BindingId>>>>,
}

impl Executor {
    /// An executor whose calls go out through `egress`, and whose commands run in `sandboxes`.
    pub fn new(
        egress: Egress,
        lanes: Lanes,
        ceilings: Ceilings,
        ledger: Ledger,
        sandboxes: Arc<Sandboxes>,
    ) -> Executor {
        let checks = Arc::new(Checks::new());
        Executor { egress, lanes, checks, ceilings, ledger, sandboxes, rates: Mutex::default() }
    }

    /// Where checks run that are not done in place.
    pub fn checks(&self) -> &Arc<Checks> {
        &self.checks
    }

    /// The time that the operator allows a call.
    pub fn longest_call(&self) -> Duration {
        Duration::from_secs(u64::from(self.ceilings.timeout_s))
    }

    /// Who runs and who waits.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Runs the call that `permit` permits. `of_bot` is its place among the bot's calls, if it has one already.
    pub async fn execute(
        &self,
        call: &PermittedCall<'_>,
        permit: Permit,
        of_bot: Option<BotPlace>,
        entry: &Arc<Entry>,
    ) -> Ended {
        let has_large_params = is_large_object(permit.params());
        let permit = FreedBeside::new(permit, has_large_params);
        let binding = call.job.binding();
        if let Some(ended) = binding.and_then(|binding| self.over_rate(binding)) {
            return ended;
        }
        let mut laps = Laps::start();
        let _place = match self.enter(call, &permit, of_bot).await {
            Ok(place) => place,
            Err(NoRoom::Busy) => return Ended::from(CallOutcome::error(Code::Busy, "the plugin is busy")),
            Err(NoRoom::Full) => {
                let outcome = CallOutcome::error(Code::Busy, "the server is busy");
                return Ended { outcome, retry_after: Some(FULL_RETRY_AFTER) };
            }
        };
        laps.end(Stage::Queue);
        let limits = call.limits(self.ceilings, &permit);
        let until = Instant::now() + limits.timeout;
        let nesting = match call.nesting(until) {
            Ok(nesting) => nesting,
            Err(outcome) => return Ended::from(*outcome),
        };
        if let Some(nesting) = &nesting {
            entry.share(nesting.secrets());
        }
        if let Some(refused) = self.ledger.charge(call).await {
            return Ended::from(refused);
        }
        let Some(component) = &call.job.plugin.component else {
            return self.built_in(call, &permit, nesting.as_ref(), limits, entry).await;
        };
        let grounds = Grounds::of(call.job);
        let door = Arc::new(Door {
            egress: self.egress.clone(),
            entry: Arc::clone(entry),
            nesting,
            // Later than the call's own end, so that an upstream that never answers is the call's time-out.
            until: until + Duration::from_secs(1),
            redactor: RedactorCell::new(Arc::clone(grounds.credential().redactor()))
                .with_budget(SearchBudget::of_fuel(limits.fuel)),
            grounds,
            failures: Mutex::default(),
        });
        entry.search_until(until);
        let host: Arc<dyn HostCalls> = Arc::clone(&door) as _;
        let params = beside::in_place(has_large_params, || {
            serde_json::to_string(permit.params()).expect("a JSON object has a text")
        });
        let run = match &call.job.what {
            What::Function(name) => Either::Left(component.call_function(&permit, name.clone(), params, limits, host)),
            What::Tool(_) | What::Check(_) => {
                Either::Right(component.call(&permit, request(call, &permit, params, limits), limits, host))
            }
        };
        let end = run.instrument(tracing::debug_span!("execute")).await;
        entry.redact_with(door.redactor.current());
        write_log(&permit, &end, entry).await;
        meters::fuel(end.fuel_used.saturating_add(door.redactor.budget().fuel_used()));
        let mut outcome = outcome(end, &door);
        if let (Some(tool), Some(result)) = (call.job.tool().filter(|tool| tool.output.is_some()), &outcome.data) {
            let share = call.below.calls.policy.load().share_of_host(call.call.workspace);
            let asker = Asker { workspace: call.call.workspace, bot: permit.bot(), share, until };
            let matches = self.checks.matches_output(asker, Arc::clone(tool), result.clone()).await;
            outcome.output_mismatch = !matches;
        }
        laps.end(Stage::Execute);
        Ended::from(outcome)
    }

    /// Waits for room: among the bot's own calls first, unless the call runs in the place of its root.
    async fn enter(
        &self,
        call: &PermittedCall<'_>,
        permit: &Permit,
        of_bot: Option<BotPlace>,
    ) -> Result<Place, NoRoom> {
        let (workspace, bot, depth) = (call.call.workspace, permit.bot(), call.depth());
        let until = Instant::now() + lanes::WAIT_MAX;
        let of_bot = match depth {
            0 if of_bot.is_some() => of_bot,
            0 => Some(self.lanes.enter_bot(workspace, bot, until).await?),
            _ => None,
        };
        let binding = call.job.binding();
        let max = binding.and_then(|binding| limit_u32(&binding.row.limits, "concurrent"));
        let plugin = &call.job.plugin.name;
        let snapshot = call.below.calls.policy.load();
        let asking = Asking {
            workspace,
            bot,
            binding: binding.map(|binding| binding.row.id).zip(max),
            // Commands run in sandboxes, which --sandbox-max bounds.
            plugin: Some(plugin).filter(|name| name.as_str() != built_in::SANDBOX),
            share_of_plugin: snapshot.share_of_plugin(plugin, workspace),
            share_of_host: snapshot.share_of_host(workspace),
            depth,
            held: call.held(),
            until,
        };
        self.lanes.enter(&asking, of_bot).await
    }

    /// Runs a tool that the platform serves itself, under the same limit of time.
    async fn built_in(
        &self,
        call: &PermittedCall<'_>,
        permit: &Permit,
        nesting: Option<&Nesting>,
        limits: CallLimits,
        entry: &Entry,
    ) -> Ended {
        // Whatever it makes others do is done on behalf of this call.
        if entry.started().await.is_err() {
            return Ended::from(CallOutcome::error(Code::Unavailable, "the audit could not be written; try again"));
        }
        let ran = async {
            match nesting {
                _ if call.is_of_the_sandbox() => sandboxed::run(&self.sandboxes, call, permit).await,
                Some(nesting) => delegated::run(call, permit, nesting).await,
                None => CallOutcome::error(Code::Unavailable, "this server cannot run the tool"),
            }
        };
        let ran = tokio::time::timeout(limits.timeout, ran).await;
        Ended::from(ran.unwrap_or_else(|_| {
            let stop = StopReason::Timeout { timeout: limits.timeout };
            CallOutcome::error(stop.code(), stop.message())
        }))
    }

    /// Counts the call against the binding's rate, if it has one.
    fn over_rate(&self, binding: &Binding) -> Option<Ended> {
        let per_minute = NonZeroU32::new(u32::try_from(binding.row.calls_per_minute?).unwrap_or(u32::MAX))?;
        let limiter = {
            let mut rates = self.rates.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let new = || Arc::new(RateLimiter::keyed(Quota::per_minute(per_minute)));
            Arc::clone(rates.entry(per_minute).or_insert_with(new))
        };
        let wait = limiter.check_key(&binding.row.id).err()?.wait_time_from(DefaultClock::default().now());
        let message = format!("this binding allows {per_minute} calls a minute");
        Some(Ended { outcome: CallOutcome::error(Code::Limit, message).by_rule("rate"), retry_after: Some(wait) })
    }
}

/// A call that the Guardian has let through, with what is known of it.
pub struct PermittedCall<'a> {
    pub job: &'a Job,
    pub task_id: &'a str,
    pub call: &'a IncomingCall,
    pub below: Below,
}

impl PermittedCall<'_> {
    fn is_of_the_sandbox(&self) -> bool {
        self.job.plugin.name.as_str() == built_in::SANDBOX
    }

    fn depth(&self) -> u8 {
        self.call.under.as_ref().map_or(0, |lineage| lineage.depth)
    }

    /// The bindings in which its ancestors have their places.
    fn held(&self) -> &[BindingId] {
        self.call.under.as_ref().map_or(&[], |lineage| &lineage.held)
    }

    /// What it may use.
    fn limits(&self, ceilings: Ceilings, permit: &Permit) -> CallLimits {
        let mut limits = limits(ceilings, &self.job.plugin, self.job.binding().map(Arc::as_ref));
        if self.is_of_the_sandbox() {
            // The ceiling is one for plugins; a command has its own.
            limits.timeout = sandboxed::time_limit(permit);
        }
        self.within_time(limits)
    }

    /// What is left of `limits` before the call that made this one ends.
    fn within_time(&self, limits: CallLimits) -> CallLimits {
        let Some(lineage) = &self.call.under else { return limits };
        let left = lineage.until.saturating_duration_since(Instant::now());
        let left = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        CallLimits { timeout: limits.timeout.min(left), ..limits }
    }

    /// What the call may call itself, where its plugin calls tools.
    fn nesting(&self, until: Instant) -> Result<Option<Nesting>, Refusal> {
        let plugin = &self.job.plugin;
        // Whoever acts without a bot has no tools that it could call.
        let Some(binding) = self.job.binding().filter(|_| plugin.makes_calls()) else { return Ok(None) };
        if plugin.component.is_some() {
            let (binding, calls) = (binding.row.id, plugin.calls.clone());
            return Ok(Some(Nesting::of_plugin(&self.below, self.call, until, binding, calls)));
        }
        let snapshot = self.below.calls.policy.load();
        match snapshot.bot_behind(&binding.resource) {
            Some(bot) => Ok(Some(Nesting::of_bot(&self.below, self.call, until, binding, bot.row.id))),
            None => {
                let message = "the bot of this resource does not exist any more";
                Err(Box::new(CallOutcome::error(Code::Unavailable, message)))
            }
        }
    }
}

/// The least of what the operator, the manifest and the binding allow.
fn limits(ceilings: Ceilings, plugin: &Plugin, binding: Option<&Binding>) -> CallLimits {
    let (asked, default) = (plugin.manifest.executor.limits, Ceilings::default());
    let bound = |name| binding.and_then(|binding| limit_u64(&binding.row.limits, name)).unwrap_or(u64::MAX);
    let fuel = asked.fuel.unwrap_or(default.fuel).min(ceilings.fuel).min(bound("fuel"));
    let memory_bytes = ceilings.memory_bytes(&asked).min(bound("memory_mib").saturating_mul(1 << 20));
    let timeout_s = asked.timeout_s.unwrap_or(default.timeout_s).min(ceilings.timeout_s);
    let timeout_s = u64::from(timeout_s).min(bound("timeout_s"));
    CallLimits { fuel, memory_bytes, timeout: Duration::from_secs(timeout_s) }
}

fn limit_u64(limits: &Option<serde_json::Value>, name: &str) -> Option<u64> {
    limits.as_ref()?.get(name)?.as_u64()
}

fn limit_u32(limits: &Option<serde_json::Value>, name: &str) -> Option<u32> {
    limit_u64(limits, name).map(|value| u32::try_from(value).unwrap_or(u32::MAX))
}

fn request(call: &PermittedCall<'_>, permit: &Permit, params: String, limits: CallLimits) -> ExecuteRequest {
    let tool = call.job.tool().map(|tool| tool.own_name.to_string());
    let config = call.job.resource.as_ref().map(|resource| resource.config_text.clone());
    ExecuteRequest {
        request_id: permit.request_id().to_string(),
        bot_id: permit.bot().map(|bot| bot.to_string()).unwrap_or_default(),
        task_id: call.task_id.to_owned(),
        operation: permit.operation().to_owned(),
        tool_name: tool.unwrap_or_default(),
        params,
        scope: Some(permit.scope_json()),
        resource_id: permit.resource().map(|resource| resource.to_string()),
        resource_config: config.unwrap_or_else(|| "{}".to_owned()),
        delegate: call.call.under.as_ref().and_then(|lineage| lineage.delegate()),
        locale: call.call.language.tag().to_owned(),
        deadline_ms: u32::try_from(limits.timeout.as_millis()).unwrap_or(u32::MAX),
        context: call.call.context.to_string(),
    }
}

/// Turns the end of a component into the end of a call, with the code that names the cause.
fn outcome(end: CallEnd, door: &Door) -> CallOutcome {
    match end.outcome {
        Ok(ExecuteResult::Success(data)) => CallOutcome::success(data),
        Ok(ExecuteResult::Error(message)) => CallOutcome::error(door.cause(), message),
        Ok(ExecuteResult::ScopeViolation(reason)) => {
            let message = format!("Scope violation: {reason}");
            CallOutcome::failure(Status::ScopeViolation, Code::Scope, message).by_rule("plugin")
        }
        Err(stop) => CallOutcome::error(stop.code(), stop.message()),
    }
}

/// The plugin's own log lines, at the host's debug level: what an author writes is not the host's business.
async fn write_log(permit: &Permit, end: &CallEnd, entry: &Entry) {
    let (call, plugin) = (permit.request_id(), permit.plugin());
    if tracing::enabled!(target: "plugin", tracing::Level::DEBUG) {
        let texts = |line: &LogLine| [line.message.clone(), line.fields.clone().unwrap_or_default()];
        let texts = entry.redacted_texts(end.log.iter().flat_map(texts).collect()).await;
        if let Err(withheld) = texts {
            let (lines, why) = (end.log.len(), withheld.message());
            tracing::warn!(call.id = %call, plugin.name = %plugin, lines, why, "log lines are withheld");
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

/// What a call may reach, and with which credential.
enum Grounds {
    Resource(Arc<Resource>),
    /// Without a resource: what the manifest lists under egress, and no credential.
    Nothing(Box<(Scope, ResourceCredential)>),
}

impl Grounds {
    fn of(job: &Job) -> Grounds {
        match &job.resource {
            Some(resource) => Grounds::Resource(Arc::clone(resource)),
            None => Grounds::Nothing(Box::new((job.plugin.bare_scope(), ResourceCredential::nothing()))),
        }
    }

    fn scope(&self) -> &Scope {
        match self {
            Grounds::Resource(resource) => &resource.scope,
            Grounds::Nothing(nothing) => &nothing.0,
        }
    }

    fn credential(&self) -> &ResourceCredential {
        match self {
            Grounds::Resource(resource) => resource.credential_source(),
            Grounds::Nothing(nothing) => &nothing.1,
        }
    }
}

/// What the component may ask of the host during one call.
struct Door {
    egress: Egress,
    grounds: Grounds,
    entry: Arc<Entry>,
    /// `None` where the plugin may not call tools.
    nesting: Option<Nesting>,
    until: Instant,
    /// Knows every secret that this call has met.
    redactor: RedactorCell,
    failures: Mutex<Vec<FailureCode>>,
}

impl Door {
    /// The code of an error that the plugin reports: its own, unless a host call explains it.
    fn cause(&self) -> Code {
        let failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match failures.last() {
            Some(FailureCode::Unauthenticated) => Code::Unauthenticated,
            Some(FailureCode::Dns | FailureCode::Connect | FailureCode::Tls | FailureCode::Protocol) => Code::Upstream,
            _ => Code::Plugin,
        }
    }

    /// The way into the sandbox. What happens there is done on behalf of this call, which is on disk before it.
    async fn sandbox(&self) -> Result<SandboxImport, Failure> {
        let nesting = self.nesting.as_ref();
        let unavailable = || Failure::unsent(FailureCode::Unavailable, "a call without a bot has no sandbox");
        let import = SandboxImport::of(nesting.ok_or_else(unavailable)?);
        self.record_start().await?;
        self.entry.redact_with(self.redactor.current());
        Ok(import)
    }

    /// The audit has the call on disk before its first byte goes out.
    async fn record_start(&self) -> Result<(), Failure> {
        let recorded = self.entry.started().await;
        recorded.map_err(|_| Failure::unsent(FailureCode::Unavailable, "the audit cannot be written"))
    }
}

/// The class of an answer's status, or what went wrong.
fn egress_outcome(sent: &Result<HttpResponse, Failure>) -> &'static str {
    match sent {
        Ok(response) => match response.status / 100 {
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            5 => "5xx",
            _ => "other",
        },
        Err(failure) => failure.code.as_str(),
    }
}

impl HostCalls for Door {
    fn http_send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        async move {
            let credential = self.grounds.credential();
            let began = Instant::now();
            let before_sending = || self.record_start().boxed();
            let sent = self
                .egress
                .send(self.grounds.scope(), credential, &self.redactor, request, self.until, &before_sending)
                .instrument(tracing::debug_span!("egress"))
                .await;
            meters::egress(egress_outcome(&sent), began.elapsed());
            if let Err(failure) = &sent {
                let mut failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                failures.push(failure.code);
            }
            sent
        }
        .boxed()
    }

    fn tool_call(&self, tool: String, params: String) -> BoxFuture<'_, Result<JsonText, ToolFailure>> {
        async move {
            let Some(nesting) = &self.nesting else {
                return Err(ToolFailure::error(Code::Unavailable, "this plugin may not call tools"));
            };
            nesting.count()?;
            // Before it: whatever the other call does outside is done on behalf of this one.
            self.record_start().await.map_err(|failure| ToolFailure::error(Code::Unavailable, failure.message))?;
            self.entry.redact_with(self.redactor.current());
            nesting.call(tool, &params).await
        }
        .boxed()
    }

    fn sandbox_exec(&self, command: String, timeout_s: Option<u32>) -> BoxFuture<'_, Result<SandboxOutput, Failure>> {
        async move { self.sandbox().await?.exec(command, timeout_s).await }.boxed()
    }

    fn sandbox_list(&self, path: String) -> BoxFuture<'_, Result<Vec<SandboxEntry>, Failure>> {
        async move { self.sandbox().await?.list(path).await }.boxed()
    }

    fn sandbox_read(&self, path: String) -> BoxFuture<'_, Result<Vec<u8>, Failure>> {
        async move {
            let read = self.sandbox().await?.read(path).await?;
            let redacted = self.entry.redacted_bytes(read).await;
            redacted.map_err(|withheld| Failure::unsent(FailureCode::Limit, withheld.message()))
        }
        .boxed()
    }

    fn sandbox_write(&self, path: String, content: Vec<u8>) -> BoxFuture<'_, Result<(), Failure>> {
        async move { self.sandbox().await?.write(path, content).await }.boxed()
    }

    fn credential_status(&self) -> String {
        self.grounds.credential().status().as_str().to_owned()
    }
}
