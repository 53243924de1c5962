//! Fourth stage: runs the component under its limits, with the doors that this call may use.
//!
//! It takes a [`Permit`], which only the Guardian makes. What comes out is redacted by the entry of the call, with
//! every secret that the call has met.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use monstrum_egress::{CredentialSource, Egress, Redactor, RedactorCell, Scope};
use monstrum_guardian::Permit;
use monstrum_manifest::AuthMethod;
use monstrum_runtime::{CallEnd, CallLimits, ExecuteRequest, ExecuteResult, HostCalls, LogLine};
use monstrum_types::{BindingId, CallOutcome, Code, Failure, FailureCode, HttpRequest, HttpResponse, Status};
use tokio::time::Instant;

use crate::auditor::Entry;
use crate::call::{Ended, IncomingCall};
use crate::lanes::{Busy, Lanes};
use crate::plugins::Plugin;
use crate::policy::Binding;
use crate::tools::ResolvedCall;

/// The operator's ceilings, which are also what a plugin gets when it asks for nothing (plugin-contract).
pub const FUEL_MAX: u64 = 1_000_000_000;
pub const MEMORY_MIB_MAX: u32 = 64;
pub const TIMEOUT_S_MAX: u32 = 30;

/// Runs permitted calls.
pub struct Executor {
    egress: Egress,
    lanes: Lanes,
    /// One limiter for each rate that some binding sets.
    rates: Mutex<std::collections::HashMap<NonZeroU32, Arc<DefaultKeyedRateLimiter<BindingId>>>>,
}

impl Executor {
    /// An executor whose calls go out through `egress`.
    pub fn new(egress: Egress) -> Executor {
        Executor { egress, lanes: Lanes::default(), rates: Mutex::default() }
    }

    /// Runs the call that `permit` permits.
    pub async fn execute(&self, call: &PermittedCall<'_>, permit: Permit, entry: &Arc<Entry>) -> Ended {
        let binding = &call.resolved.binding;
        if let Some(ended) = self.over_rate(binding) {
            return ended;
        }
        let concurrent = limit_u32(&binding.row.limits, "concurrent");
        let bot = binding.row.bot_id;
        let place = self.lanes.enter(bot, binding.row.id, concurrent, &call.resolved.plugin.name).await;
        let _place = match place {
            Ok(place) => place,
            Err(Busy) => return Ended::from(CallOutcome::error(Code::Busy, "the plugin is busy")),
        };
        let limits = limits(&call.resolved.plugin, binding);
        let door = Arc::new(Door {
            egress: self.egress.clone(),
            scope: scope(binding),
            binding: Arc::clone(binding),
            entry: Arc::clone(entry),
            // Later than the call's own end, so that an upstream that never answers is the call's time-out.
            until: Instant::now() + limits.timeout + Duration::from_secs(1),
            redactor: RedactorCell::new(Arc::clone(binding.resource.credential_source().redactor())),
            failures: Mutex::default(),
        });
        let request = request(call, &permit, limits);
        let host: Arc<dyn HostCalls> = Arc::clone(&door) as _;
        let end = call.resolved.plugin.component.call(&permit, request, limits, host).await;
        let redactor = door.redactor.current();
        entry.redact_with(Arc::clone(&redactor));
        write_log(&permit, &end, &redactor);
        metrics::histogram!("monstrum_call_fuel").record(end.fuel_used as f64);
        Ended::from(outcome(call, end, &door))
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
    pub resolved: &'a ResolvedCall,
    pub task_id: &'a str,
    pub call: &'a IncomingCall,
}

/// The least of what the operator, the manifest and the binding allow.
fn limits(plugin: &Plugin, binding: &Binding) -> CallLimits {
    let asked = plugin.manifest.executor.limits;
    let bound = |name| limit_u64(&binding.row.limits, name).unwrap_or(u64::MAX);
    let fuel = asked.fuel.unwrap_or(FUEL_MAX).min(FUEL_MAX).min(bound("fuel"));
    let memory_bytes = memory_bytes(&plugin.manifest.executor).min(bound("memory_mib").saturating_mul(1 << 20));
    let timeout_s = u64::from(asked.timeout_s.unwrap_or(TIMEOUT_S_MAX).min(TIMEOUT_S_MAX)).min(bound("timeout_s"));
    CallLimits { fuel, memory_bytes, timeout: Duration::from_secs(timeout_s) }
}

/// The memory of a plugin's calls, before a binding narrows it; its component is tried out with the same.
pub fn memory_bytes(asked: &monstrum_manifest::Executor) -> u64 {
    u64::from(asked.limits.memory_mib.unwrap_or(MEMORY_MIB_MAX).min(MEMORY_MIB_MAX)) << 20
}

fn limit_u64(limits: &Option<serde_json::Value>, name: &str) -> Option<u64> {
    limits.as_ref()?.get(name)?.as_u64()
}

fn limit_u32(limits: &Option<serde_json::Value>, name: &str) -> Option<u32> {
    limit_u64(limits, name).map(|value| u32::try_from(value).unwrap_or(u32::MAX))
}

/// What the call may reach.
fn scope(binding: &Binding) -> Scope {
    let resource = &binding.resource;
    let (executor, resource_type) = (&resource.plugin.manifest.executor, &resource.plugin.manifest.resource_type);
    let api_base = resource.config.get("api_base").and_then(serde_json::Value::as_str);
    Scope {
        api_base: api_base.and_then(|text| text.parse().ok()),
        egress: executor.egress.clone(),
        inject: resource_type.auth_methods.iter().flat_map(AuthMethod::inject_rules).collect(),
        follow_redirects: executor.follow_redirects,
        network: resource.network.clone(),
    }
}

fn request(call: &PermittedCall<'_>, permit: &Permit, limits: CallLimits) -> ExecuteRequest {
    let resource = &call.resolved.binding.resource;
    ExecuteRequest {
        request_id: permit.request_id().to_string(),
        bot_id: permit.bot().to_string(),
        task_id: call.task_id.to_owned(),
        operation: permit.operation().to_owned(),
        tool_name: permit.tool().to_string(),
        params: serde_json::to_string(permit.params()).expect("a JSON object has a text"),
        scope: Some(permit.scope_json()),
        resource_id: Some(permit.resource().to_string()),
        resource_config: serde_json::to_string(&resource.config).expect("a JSON object has a text"),
        delegate: None,
        locale: call.call.locale.clone(),
        deadline_ms: u32::try_from(limits.timeout.as_millis()).unwrap_or(u32::MAX),
        context: call.call.context.to_string(),
    }
}

/// Turns the end of a component into the end of a call, with the code that names the cause.
fn outcome(call: &PermittedCall<'_>, end: CallEnd, door: &Door) -> CallOutcome {
    match end.outcome {
        Ok(ExecuteResult::Success(data)) => {
            let schema = &call.resolved.tool().output;
            let output_mismatch = schema.as_ref().is_some_and(|schema| !schema.matches(&data));
            CallOutcome { output_mismatch, ..CallOutcome::success(data) }
        }
        Ok(ExecuteResult::Error(message)) => CallOutcome::error(door.cause(), message),
        Ok(ExecuteResult::ScopeViolation(reason)) => {
            let message = format!("Scope violation: {reason}");
            CallOutcome::failure(Status::ScopeViolation, Code::Scope, message).by_rule("plugin")
        }
        Err(stop) => CallOutcome::error(stop.code(), stop.message()),
    }
}

/// The plugin's own log lines, at the host's debug level: what an author writes is not the host's business.
fn write_log(permit: &Permit, end: &CallEnd, redactor: &Redactor) {
    let (call, plugin) = (permit.request_id(), permit.plugin());
    for LogLine { level, source, message, fields, .. } in &end.log {
        let message = redactor.redact_text(message.clone());
        let fields = redactor.redact_text(fields.clone().unwrap_or_default());
        let (level, source) = (level.as_str(), source.as_str());
        tracing::debug!(target: "plugin", { call.id = %call, plugin.name = %plugin, level, source, fields }, "{message}");
    }
    if end.log_dropped > 0 {
        tracing::warn!(call.id = %call, plugin.name = %plugin, lines = end.log_dropped, "log lines were dropped");
    }
}

/// What the component may ask of the host during one call.
struct Door {
    egress: Egress,
    scope: Scope,
    binding: Arc<Binding>,
    entry: Arc<Entry>,
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

    /// The audit has the call on disk before its first byte goes out.
    async fn record_start(&self) -> Result<(), Failure> {
        let recorded = self.entry.started().await;
        recorded.map_err(|_| Failure::unsent(FailureCode::Unavailable, "the audit cannot be written"))
    }
}

impl HostCalls for Door {
    fn http_send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        async move {
            let credential = self.binding.resource.credential_source();
            let before_sending = || self.record_start().boxed();
            let sent = self
                .egress
                .send(&self.scope, credential.as_ref(), &self.redactor, request, self.until, &before_sending)
                .await;
            if let Err(failure) = &sent {
                let mut failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                failures.push(failure.code);
            }
            sent
        }
        .boxed()
    }

    fn credential_status(&self) -> String {
        self.binding.resource.credential_source().status().as_str().to_owned()
    }
}
