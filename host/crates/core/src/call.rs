//! The pipeline of a call. Every entry point (HTTP today, MCP and agents later) calls [`Calls::run`], and nothing else
//! runs a tool.
//!
//! ```text
//! IncomingCall -> Session -> ResolvedCall -> Permit -> CallOutcome
//! ```
//!
//! A call for which gates ask gets its permit only with the consent of a person. It is judged again after each wait for
//! a person, and if its approval could not be used.
//!
//! All branching between the stages is here; the stages never call one another.

pub mod admission;
pub mod authorize;
pub mod built_in;
pub mod check;
pub mod child_calls;
pub mod consent;
pub mod execute;
mod host_functions;
pub mod ledger;
mod own_steps;
pub mod permitted;
mod platform;
pub mod resolve;
mod revocation;
pub mod session;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_manifest::Effect;
use monstrum_store::StoreRow;
use monstrum_types::{BotId, CallOutcome, Clock, Code, Effort, Overrun, RequestId, ToolFailure, WorkspaceId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, Span};

use crate::approvals::Approvals;
use crate::audit::{AuditUnavailable, Auditor, Entry, QueuedRow, Resolved};
use crate::beside::{self, FreedBeside};
use crate::call::admission::{BotPlace, WAIT_MAX};
use crate::call::authorize::Judged;
use crate::call::check::{Prediction, check_lineage, check_new, checked_params};
use crate::call::consent::{AskingCall, Asks, JUDGED_MAX};
use crate::call::execute::{Executed, Executor};
use crate::call::permitted::{Execution, Passed, PermittedCall, Pipeline, Target};
use crate::call::revocation::Judges;
use crate::call::session::Session;
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::{CallKind, IncomingCall};
use crate::call_types::lineage::CallDigest;
use crate::call_types::refusal::{NotPermitted, Refusal};
use crate::call_types::round::LLM_COMPLETE;
use crate::call_types::runs_calls::RunsCalls;
use crate::checks::{Asker, Checks, Unchecked, in_place, is_large};
use crate::meters::{self, Stage, StageTimer};
use crate::plugins::Plugin;
use crate::policy::{Policy, Resource, Snapshot};

/// The maximum length of a tool name, in bytes.
const TOOL_NAME_BYTES_MAX: usize = 64;

/// The maximum size of a result that is sealed for a task while other tasks of the thread wait. It takes less than 0.1 ms.
const SEALED_IN_PLACE_BYTES_MAX: usize = 64 << 10;

/// The answer to a call, which may leave the host.
#[derive(Clone, Debug)]
pub struct CallAnswer {
    pub request_id: RequestId,
    pub outcome: CallOutcome,
    pub duration_ms: i64,
}

/// The pipeline of calls.
pub struct Calls {
    pub policy: Arc<Policy>,
    pub auditor: Auditor,
    pub executor: Executor,
    pub approvals: Arc<Approvals>,
    pub clock: Arc<dyn Clock>,
    checks: Arc<Checks>,
    running: TaskTracker,
    stop: CancellationToken,
}

impl Calls {
    /// Creates a pipeline with no calls in progress.
    pub fn new(
        policy: Arc<Policy>,
        auditor: Auditor,
        executor: Executor,
        approvals: Arc<Approvals>,
        clock: Arc<dyn Clock>,
    ) -> Calls {
        let checks = Arc::clone(executor.checks());
        Calls {
            policy,
            auditor,
            executor,
            approvals,
            clock,
            checks,
            running: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Runs a call to its end. The work runs in a separate task, so the call is recorded even if the caller
    /// disconnects. Dropping this future cancels the call.
    pub async fn run(self: &Arc<Self>, call: IncomingCall) -> Result<CallAnswer, AuditUnavailable> {
        self.run_with(call, &TaskTracker::new()).await
    }

    /// Runs a call to its end, which it reaches early if `cancelled` is cancelled. Unlike the drop of the future of
    /// [`Calls::run`], this waits until the end of the call is recorded.
    pub async fn run_until(
        self: &Arc<Self>,
        call: IncomingCall,
        cancelled: &CancellationToken,
    ) -> Result<CallAnswer, AuditUnavailable> {
        self.spawned(call, &TaskTracker::new(), cancelled.child_token()).await
    }

    /// Runs a call, and tracks it in `siblings`. The parent call waits until all calls in `siblings` have ended.
    async fn run_with(
        self: &Arc<Self>,
        call: IncomingCall,
        siblings: &TaskTracker,
    ) -> Result<CallAnswer, AuditUnavailable> {
        self.spawned(call, siblings, CancellationToken::new()).await
    }

    async fn spawned(
        self: &Arc<Self>,
        call: IncomingCall,
        siblings: &TaskTracker,
        cancelled: CancellationToken,
    ) -> Result<CallAnswer, AuditUnavailable> {
        let _cancel_when_dropped = cancelled.clone().drop_guard();
        let calls = Arc::clone(self);
        let span = span(&call);
        let govern = async move { calls.govern(call, cancelled).await?.committed().await };
        let task = self.running.spawn(siblings.track_future(govern.instrument(span)));
        // The task fails only if it panics. In this case, the drop of the audit entry closes the entry.
        task.await.unwrap_or(Err(AuditUnavailable))
    }

    /// Runs a call until its row `finished` is queued. The returned answer is available once that row is committed.
    pub async fn govern(
        self: &Arc<Self>,
        call: IncomingCall,
        cancelled: CancellationToken,
    ) -> Result<UncommittedAnswer, AuditUnavailable> {
        let secrets = Arc::new(CallSecrets::new(call.shared_redactors()));
        let entry = Arc::new(self.auditor.open(&call, Arc::clone(&secrets))?);
        let has_large_params = is_large(call.params().value());
        let call = FreedBeside::new(Arc::new(call), has_large_params);
        let recording = Recording { entry: &entry, secrets: &secrets };
        let children = TaskTracker::new();
        let outcome = tokio::select! {
            outcome = self.stages(&call, recording, &children) => outcome,
            () = cancelled.cancelled() => cancelled_by_caller(&call),
            () = self.stop.cancelled() => interrupted(),
        };
        // The child calls and the requests have been cancelled at this point. The call waits until they have ended.
        children.close();
        children.wait().await;
        let mut timer = StageTimer::start();
        let outcome = unless_held_back(outcome, entry.is_held_back());
        let code = outcome.code;
        let outcome = secrets.redacted_outcome(outcome).await;
        if outcome.code != code {
            // The answer is withheld, because it could not be searched for secrets.
            entry.left_unanswered();
        }
        timer.end(Stage::Redact);
        if let Some(lineage) = call.lineage().filter(|_| entry.may_have_changed(&outcome)) {
            lineage.unanswered.store(true, Ordering::Release);
        }
        let row = entry.close(&outcome, rows_of_step(&call, &outcome, &entry)).await?;
        Ok(UncommittedAnswer { request_id: call.request_id(), outcome, row })
    }

    /// Runs the stages in order, each with the result of the previous one. The first refusal ends the call.
    async fn stages(
        self: &Arc<Self>,
        call: &Arc<IncomingCall>,
        recording: Recording<'_>,
        children: &TaskTracker,
    ) -> CallOutcome {
        let passed = Passed::default();
        let mut wait = None;
        for _ in 0..JUDGED_MAX {
            let permitted = match self.judged(call, recording).await {
                Ok((Judgement::Permitted(permitted), of_bot)) => (*permitted, of_bot),
                // The place among the calls of the bot is free while the call waits for a person.
                Ok((Judgement::Asks(asking), _)) => {
                    let until = wait.get_or_insert_with(|| call.wait_for_approval().map(|wait| Instant::now() + wait));
                    match self.asks(call, recording, *until).ask(&asking).await {
                        Ok(()) => continue,
                        Err(refusal) => {
                            Span::current().record("decision", "ask");
                            return *refusal;
                        }
                    }
                }
                Err(refusal) => {
                    Span::current().record("decision", "deny");
                    return *refusal;
                }
            };
            if let Some(outcome) = self.executed(call, permitted, (recording, &passed), children).await {
                return outcome;
            }
            if self.policy.renew().await.is_err() {
                break;
            }
        }
        CallOutcome::error(Code::Unavailable, "the approval of this call could not be verified; try again")
    }

    fn asks<'a>(&'a self, call: &'a IncomingCall, recording: Recording<'a>, until: Option<Instant>) -> Asks<'a> {
        let (approvals, policy, clock) = (&*self.approvals, &self.policy, &*self.clock);
        Asks { approvals, policy, clock, call, secrets: recording.secrets, until }
    }

    /// Runs a permitted call, and watches whether the policy still permits it. Returns `None` if the call did not run
    /// and must be judged again.
    async fn executed(
        self: &Arc<Self>,
        call: &Arc<IncomingCall>,
        (permitted, of_bot): (PermittedCall, Option<BotPlace>),
        (recording, passed): (Recording<'_>, &Passed),
        children: &TaskTracker,
    ) -> Option<CallOutcome> {
        let PermittedCall { permit, target, digest, judged_by } = permitted;
        Span::current().record("decision", "allow").record("plugin.name", permit.plugin().as_str());
        let pipeline = Pipeline {
            runs: Arc::clone(self) as _,
            policy: Arc::clone(&self.policy),
            approvals: Arc::clone(&self.approvals),
            checks: Arc::clone(&self.checks),
            clock: Arc::clone(&self.clock),
            children: children.clone(),
        };
        let Recording { entry, secrets } = recording;
        let judged_by = &judged_by;
        let execution =
            Execution { call, target: &target, digest, pipeline: &pipeline, entry, secrets, judged_by, passed };
        let judges = Judges {
            policy: Arc::clone(&self.policy),
            checks: Arc::clone(&self.checks),
            clock: Arc::clone(&self.clock),
            longest_check: self.executor.longest_call(),
            is_approved: permit.approval().is_some(),
        };
        // The calls of a plugin can carry what it has read from its upstream. The call itself is judged already.
        if let Some(resource) = target.resource.as_ref().filter(|_| target.plugin.makes_calls()) {
            call.labels().has_read(&resource.labels());
        }
        let outcome = tokio::select! {
            executed = self.executor.execute(&execution, permit, of_bot).instrument(tool_span(call)) => match executed {
                Executed::Ended(outcome) => Some(outcome),
                Executed::JudgeAgain => None,
            },
            refusal = revocation::revoked(&judges, call, target.resolved(), judged_by) => {
                entry.left_unanswered();
                Some(*refusal)
            }
        };
        // A failure has the text of the plugin or of its upstream too.
        if let Some(resource) = target.resource.as_ref().filter(|_| outcome.is_some()) {
            call.labels().has_read(&resource.labels());
        }
        outcome
    }

    /// Judges a call. A small check runs in place. Before a larger check, the call acquires a place among the calls of
    /// its bot, so that a bot with many such calls delays only its own calls.
    async fn judged(
        self: &Arc<Self>,
        call: &Arc<IncomingCall>,
        recording: Recording<'_>,
    ) -> Result<(Judgement, Option<BotPlace>), Refusal> {
        let judged = self.judge(call, recording, &in_place());
        match judged {
            Ok(judgement) => return Ok((judgement, None)),
            Err(NotPermitted::Refused(refusal)) => return Err(refusal),
            Err(NotPermitted::Overrun(_)) => {}
        }
        let of_bot = match call.lineage() {
            // A child call uses the place of its root call.
            Some(_) => None,
            None => Some(self.bot_place(call.workspace(), call.bot()).await.map_err(Unchecked::refusal)?),
        };
        let asker = self.asker(call);
        let (calls, call) = (Arc::clone(self), Arc::clone(call));
        let (entry, secrets) = (Arc::clone(recording.entry), Arc::clone(recording.secrets));
        let judged = self.checks.beside(asker, move |effort| {
            match calls.judge(&call, Recording { entry: &entry, secrets: &secrets }, effort) {
                Ok(judgement) => Ok(Ok(judgement)),
                Err(NotPermitted::Refused(refusal)) => Ok(Err(refusal)),
                Err(NotPermitted::Overrun(overrun)) => Err(overrun),
            }
        });
        Ok((judged.await.map_err(Unchecked::refusal)??, of_bot))
    }

    /// Returns the identity and deadline under which a check of this call runs.
    fn asker(&self, call: &IncomingCall) -> Asker {
        let share = self.policy.load().share_of_host(call.workspace());
        Asker::of(call, share, self.executor.longest_call())
    }

    fn asker_of(&self, workspace: WorkspaceId, bot: Option<BotId>) -> Asker {
        let share = self.policy.load().share_of_host(workspace);
        Asker { workspace, bot, share, until: Instant::now() + self.executor.longest_call() }
    }

    async fn bot_place(&self, workspace: WorkspaceId, bot: Option<BotId>) -> Result<BotPlace, Unchecked> {
        let place = self.executor.lanes().enter_bot(workspace, bot, Instant::now() + WAIT_MAX).await;
        place.map_err(|_| Unchecked::Busy)
    }

    /// Runs a check that is made for a bot outside of a call, such as the list of the bot's tools.
    pub async fn ask<T: Send + 'static>(
        &self,
        workspace: WorkspaceId,
        bot: BotId,
        question: impl Fn(&Effort) -> Result<T, Overrun> + Send + 'static,
    ) -> Result<T, Unchecked> {
        self.checks.run(self.asker_of(workspace, Some(bot)), question).await
    }

    /// Predicts the outcome of a call. A small check runs in place. Before a larger check, the prediction acquires a
    /// place among the calls of the bot, as the call itself would.
    pub async fn predict(
        self: &Arc<Self>,
        workspace: WorkspaceId,
        bot: BotId,
        question: impl Fn(&Effort) -> Result<Prediction, Overrun> + Send + 'static,
    ) -> Result<Prediction, Unchecked> {
        let answer = question(&in_place());
        if let Ok(answer) = answer {
            return Ok(answer);
        }
        let _place = self.bot_place(workspace, Some(bot)).await?;
        self.checks.beside(self.asker_of(workspace, Some(bot)), question).await
    }

    /// Runs all checks that precede the plugin. The decision depends only on the call and one policy snapshot.
    fn judge(&self, call: &IncomingCall, recording: Recording<'_>, effort: &Effort) -> Result<Judgement, NotPermitted> {
        // The key may have been revoked while the call waited for its body or its place.
        if !revocation::is_authentic(call, &self.policy.load(), self.clock.now()) {
            return Err(self.noted(call, recording, revocation::caller_revoked(call).into()));
        }
        let permitted = match call.kind() {
            CallKind::BotTool { .. } => return self.judge_tool(call, recording, effort),
            CallKind::PlatformFunction { resource_type, function } => {
                platform::judge_function(&self.policy, call, resource_type, function, effort)?
            }
            CallKind::CredentialCheck => platform::judge_check(&self.policy, call, effort)?,
        };
        let Target { plugin, resource, .. } = &permitted.target;
        recording.resolved(plugin, resource.as_deref(), permitted.permit.operation());
        Ok(Judgement::Permitted(Box::new(permitted)))
    }

    /// Runs the stages that precede the plugin, for a tool that a bot calls.
    fn judge_tool(
        &self,
        call: &IncomingCall,
        recording: Recording<'_>,
        effort: &Effort,
    ) -> Result<Judgement, NotPermitted> {
        let mut timer = StageTimer::start();
        let noted = |refusal: NotPermitted| self.noted(call, recording, refusal);
        let session = Session::open(&self.policy, self.clock.now(), call).map_err(|refusal| noted(refusal.into()))?;
        if let Some(lineage) = call.lineage() {
            check_lineage(lineage, &session, call, effort).map_err(noted)?;
        }
        let resolved = resolve::resolve(&session, call, effort).map_err(|refused| match refused.tool {
            Some((plugin, tool)) => {
                recording.resolved(&plugin, refused.resource.as_deref(), &tool.manifest.operation);
                refused.refusal
            }
            None => noted(refused.refusal),
        })?;
        let operation = &resolved.tool().manifest.operation;
        recording.resolved(&resolved.plugin, Some(&resolved.binding.resource), operation);
        recording.entry.may_change(resolved.plugin.makes_calls() || resolved.tool().manifest.effect != Effect::Read);
        recording.entry.has_effect(resolved.tool().manifest.effect);
        recording.of_user(call, &session.snapshot, &resolved.binding.resource);
        timer.end(Stage::Resolve);
        let params = checked_params(resolved.tool(), call, effort)?;
        timer.end(Stage::Params);
        let is_in_a_chain = call.lineage().is_some() || resolved.plugin.makes_calls();
        let digest = is_in_a_chain.then(|| CallDigest::of(resolved.tool().manifest.name.as_str(), params.members()));
        let judged = authorize::permit(call, &session, &resolved, params, effort)?;
        if let (Some(lineage), Some(digest)) = (call.lineage(), digest) {
            check_new(lineage, digest)?;
        }
        timer.end(Stage::Guardian);
        let target = Target::of(resolved);
        Ok(match judged {
            Judged::Permitted(permit) => {
                Judgement::Permitted(Box::new(PermittedCall { permit, target, digest, judged_by: session.snapshot }))
            }
            Judged::Asks(permit) => Judgement::Asks(Box::new(AskingCall { permit, target })),
        })
    }

    /// Records the operation and the plugin of the tool, if the tool exists, for a call that was refused before it was
    /// resolved.
    fn noted(&self, call: &IncomingCall, recording: Recording<'_>, refusal: NotPermitted) -> NotPermitted {
        if matches!(refusal, NotPermitted::Refused(_))
            && let Ok(name) = call.tool().parse()
            && let Some((plugin, tool)) = self.policy.load().tool(&name)
        {
            recording.resolved(plugin, None, &tool.manifest.operation);
        }
        refusal
    }

    /// Shuts the pipeline down. Waits for at most `grace` until the calls in flight have finished. Then interrupts the
    /// remaining calls, which the audit records as interrupted.
    pub async fn shut_down(&self, grace: Duration) {
        self.running.close();
        if tokio::time::timeout(grace, self.running.wait()).await.is_err() {
            tracing::warn!(calls = self.running.len(), "interrupting the calls in flight");
            self.stop.cancel();
            self.running.wait().await;
        }
    }
}

impl RunsCalls for Calls {
    fn run_child<'a>(
        self: Arc<Self>,
        call: IncomingCall,
        siblings: &'a TaskTracker,
    ) -> BoxFuture<'a, Result<CallOutcome, ToolFailure>> {
        let unavailable =
            |_: AuditUnavailable| ToolFailure::error(Code::Unavailable, "the audit cannot be written; try again later");
        async move { self.run_with(call, siblings).await.map(|answer| answer.outcome).map_err(unavailable) }.boxed()
    }
}

/// Returns the rows with which the task of a call records the end of its step. They contain the result, so they are made
/// from the redacted outcome.
fn rows_of_step(call: &IncomingCall, outcome: &CallOutcome, entry: &Entry) -> Vec<StoreRow> {
    let Some(step) = call.task().and_then(|task| task.step.as_ref()) else { return Vec::new() };
    let is_large = outcome.data.as_ref().is_some_and(|data| data.as_str().len() > SEALED_IN_PLACE_BYTES_MAX);
    beside::in_place(is_large, || step.ended(outcome, entry.has_started(), entry.is_unanswered()))
}

/// The result of judging a call that no rule denies.
enum Judgement {
    Permitted(Box<PermittedCall>),
    /// Gates ask for the call, and no person has approved it yet.
    Asks(Box<AskingCall>),
}

/// The audit entry of a call, and the secrets that must not appear in it.
#[derive(Clone, Copy)]
struct Recording<'a> {
    entry: &'a Arc<Entry>,
    secrets: &'a Arc<CallSecrets>,
}

impl Recording<'_> {
    fn resolved(self, plugin: &Plugin, resource: Option<&Resource>, operation: &str) {
        self.entry.resolved(&Resolved {
            plugin: &plugin.name,
            plugin_digest: plugin.digest(),
            operation,
            resource: resource.map(Resource::stored_id),
        });
        if let Some(resource) = resource {
            self.secrets.redact_with(resource.credential_source().redactor());
        }
    }

    /// Adds the secrets of the user, if the call uses a credential of its user.
    fn of_user(self, call: &IncomingCall, snapshot: &Snapshot, resource: &Arc<Resource>) {
        if resource.has_user_credentials() {
            self.secrets.keep_all();
            self.secrets.redact_with(snapshot.user_source(resource, call.app_user().as_ref()).redactor());
        }
    }
}

/// The span of a call, with the names that all log lines use. The decision and the duration are added later.
fn span(call: &IncomingCall) -> Span {
    let (call_id, bot) = (call.request_id(), call.bot());
    // The caller chooses the name of the tool, so the name can have any length.
    let tool = &call.tool()[..call.tool().floor_char_boundary(TOOL_NAME_BYTES_MAX)];
    tracing::info_span!(
        "call",
        call.id = %call_id,
        bot.id = bot.map(tracing::field::display),
        tool.name = tool,
        plugin.name = tracing::field::Empty,
        decision = tracing::field::Empty,
        duration_ms = tracing::field::Empty,
    )
}

/// Returns the span of the execution of a tool, with the names of OpenTelemetry. A round has a span of its own.
fn tool_span(call: &IncomingCall) -> Span {
    let tool = call.tool();
    if tool == LLM_COMPLETE {
        return Span::none();
    }
    tracing::debug_span!(
        "execute_tool",
        otel.name = format!("execute_tool {tool}"),
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = tool,
        gen_ai.tool.call.id = %call.request_id(),
    )
}

/// Replaces the error that a plugin reports if the host has held back its requests because the audit could not be
/// written. The caller thus receives the true cause.
fn unless_held_back(outcome: CallOutcome, is_held_back: bool) -> CallOutcome {
    if is_held_back && outcome.code == Some(Code::Plugin) {
        return CallOutcome::error(Code::Unavailable, "the audit could not be written; try again");
    }
    outcome
}

fn cancelled_by_caller(call: &IncomingCall) -> CallOutcome {
    let message = match call.lineage() {
        None => "the caller disconnected before the call was finished",
        Some(_) => "the parent call ended before this call was finished",
    };
    CallOutcome::error(Code::Cancelled, message)
}

fn interrupted() -> CallOutcome {
    CallOutcome::error(Code::Interrupted, "the server was shut down before the call was finished")
}

/// The answer to a call that has ended. The answer is released when the row `finished` is on disk.
#[must_use = "the answer is returned by `committed`"]
pub struct UncommittedAnswer {
    request_id: RequestId,
    outcome: CallOutcome,
    row: QueuedRow,
}

impl UncommittedAnswer {
    /// Waits for the row, then returns the answer.
    pub async fn committed(self) -> Result<CallAnswer, AuditUnavailable> {
        let UncommittedAnswer { request_id, outcome, row } = self;
        let mut timer = StageTimer::start();
        let duration_ms = row.committed().await?;
        timer.end(Stage::Audit);
        let (status, code) = (outcome.status.as_str(), outcome.code.map_or("", Code::as_str));
        meters::call(status, code);
        Span::current().record("duration_ms", duration_ms);
        tracing::debug!(status, code, duration_ms, "call ended");
        Ok(CallAnswer { request_id, outcome, duration_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_the_host_held_back_is_not_the_fault_of_the_plugin() {
        let of_plugin = || CallOutcome::error(Code::Plugin, "the request failed");
        assert_eq!(unless_held_back(of_plugin(), false), of_plugin());
        let outcome = unless_held_back(of_plugin(), true);
        assert_eq!(
            (outcome.code, outcome.message.as_deref()),
            (Some(Code::Unavailable), Some("the audit could not be written; try again"))
        );
        let cancelled = CallOutcome::error(Code::Cancelled, "gone");
        assert_eq!(unless_held_back(cancelled.clone(), true), cancelled);
    }
}
