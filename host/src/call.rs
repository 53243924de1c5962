//! A call, from the door to the audit. Every door (HTTP today, MCP and the agent loop later) calls [`Calls::run`], and
//! nothing else runs a tool.
//!
//! ```text
//! IncomingCall -> Session -> ResolvedCall -> Permit -> CallOutcome
//! ```
//!
//! All branching between the stages is here; the stages never call one another.

pub mod delegated;
pub mod nested;
pub mod platform;
mod revoked;
pub mod sandboxed;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use monstrum_guardian::Permit;
use monstrum_sandbox::Feed;
use monstrum_types::{
    BotId, CallOutcome, Clock, Code, Effort, InputError, KeyId, Overrun, RequestId, ResourceId, WorkspaceId,
};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, Span};

use crate::auditor::{AuditUnavailable, Auditor, Entry, Queued};
use crate::authorize;
use crate::beside::FreedBeside;
use crate::call::nested::{Below, Identity, Lineage};
use crate::call::platform::Asks;
use crate::checks::{Asker, Checks, Unchecked, in_place, is_large};
use crate::executor::{Executor, PermittedCall};
use crate::lanes::{BotPlace, WAIT_MAX};
use crate::language::Language;
use crate::policy::{Policy, Snapshot};
use crate::session::Session;
use crate::telemetry::meters::{self, Laps, Stage};
use crate::tools::{self, Job, Verdict};

/// The longest name of a tool, in bytes.
const TOOL_NAME_BYTES_MAX: usize = 64;

/// A call as it comes in at a door. The door has checked who is asking.
#[derive(Clone, Debug)]
pub struct IncomingCall {
    pub request_id: RequestId,
    pub workspace: WorkspaceId,
    /// None where infrastructure calls.
    pub bot: Option<BotId>,
    pub asks: Asks,
    /// As it was given: it need not name a tool.
    pub tool: String,
    pub params: Value,
    /// Groups the calls of one task; the request id where the caller names none.
    pub task_id: Option<String>,
    /// Which resource, where the bot has several of one type.
    pub resource: Option<ResourceId>,
    /// In which the caller would like to read.
    pub language: Language,
    /// What the plugin is told besides: a JSON object, such as the conversation of the call.
    pub context: Value,
    /// The key under which it came. The call ends when the key does.
    pub key: Option<KeyId>,
    /// SHA-256 of that key's text as it came: a key that is rotated keeps its id.
    pub key_hash: Option<[u8; 32]>,
    /// Where it stands, if another call has made it.
    pub under: Option<Arc<Lineage>>,
    /// What goes along with a call of a built-in tool.
    pub attached: Attached,
}

impl IncomingCall {
    /// The same without what it carries: as much of a call as those below it take over.
    pub fn without_params(&self) -> IncomingCall {
        IncomingCall {
            request_id: self.request_id,
            workspace: self.workspace,
            bot: self.bot,
            asks: self.asks.clone(),
            tool: self.tool.clone(),
            params: Value::Null,
            task_id: self.task_id.clone(),
            resource: self.resource,
            language: self.language.clone(),
            context: self.context.clone(),
            key: self.key,
            key_hash: self.key_hash,
            under: self.under.clone(),
            attached: Attached::default(),
        }
    }

    /// Whether the key under which it came is the same still. Without a key it stands on none.
    pub fn holds_its_key(&self, snapshot: &Snapshot) -> bool {
        self.key.is_none_or(|id| self.key_hash.is_some() && snapshot.key_hash(id) == self.key_hash.as_ref())
    }

    /// Whether a plugin has made it by importing `sandbox`.
    pub fn is_of_the_sandbox_import(&self) -> bool {
        self.under.as_ref().is_some_and(|lineage| lineage.is_of_the_sandbox_import())
    }
}

/// What is no parameter of a call of a built-in tool, because it is no JSON: parameters are in the audit, this is not.
#[derive(Clone, Default)]
pub struct Attached {
    /// Where the output of a command goes as it comes. It is not redacted, so it is for doors that hold no secret.
    pub feed: Option<Feed>,
    /// What is written to a file.
    pub content: Option<Bytes>,
    /// Where the content of a file goes that was read.
    pub read: Option<Arc<OnceLock<Vec<u8>>>>,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attached")
    }
}

/// What the door hands back.
#[derive(Clone, Debug)]
pub struct CallAnswer {
    pub request_id: RequestId,
    pub outcome: CallOutcome,
    pub duration_ms: i64,
    /// The call met a configured rate limit; when to try again.
    pub retry_after: Option<Duration>,
}

/// The pipeline.
pub struct Calls {
    pub policy: Arc<Policy>,
    pub auditor: Auditor,
    pub executor: Executor,
    pub clock: Arc<dyn Clock>,
    checks: Arc<Checks>,
    running: TaskTracker,
    stop: CancellationToken,
}

impl Calls {
    /// A pipeline in which nothing runs yet.
    pub fn new(policy: Arc<Policy>, auditor: Auditor, executor: Executor, clock: Arc<dyn Clock>) -> Calls {
        let checks = Arc::clone(executor.checks());
        Calls { policy, auditor, executor, clock, checks, running: TaskTracker::new(), stop: CancellationToken::new() }
    }

    /// Runs a call to its end. The work is a task of its own, so it is recorded even if the caller goes away: dropping
    /// this future cancels the call.
    pub async fn run(self: &Arc<Self>, call: IncomingCall) -> Result<CallAnswer, AuditUnavailable> {
        // The tracker of a call that nobody waits for.
        self.run_below(call, &TaskTracker::new()).await
    }

    /// The same for a call that another one has made, which waits until all its `siblings` have ended.
    pub(crate) async fn run_below(
        self: &Arc<Self>,
        call: IncomingCall,
        siblings: &TaskTracker,
    ) -> Result<CallAnswer, AuditUnavailable> {
        let cancelled = CancellationToken::new();
        let _cancel_when_dropped = cancelled.clone().drop_guard();
        let calls = Arc::clone(self);
        let span = span(&call);
        let govern = async move { calls.govern(call, cancelled).await?.committed().await };
        let task = self.running.spawn(siblings.track_future(govern.instrument(span)));
        // The task may only fail by a panic of ours; its entry is closed by its drop.
        task.await.unwrap_or(Err(AuditUnavailable))
    }

    /// The way of a call, up to its end. The row of that end is queued, and there is no answer before it is committed.
    pub async fn govern(
        self: &Arc<Self>,
        call: IncomingCall,
        cancelled: CancellationToken,
    ) -> Result<Ending, AuditUnavailable> {
        let entry = Arc::new(self.auditor.open(&call)?);
        let is_large = is_large(&call.params);
        let call = FreedBeside::new(Arc::new(call), is_large);
        let children = TaskTracker::new();
        let Ended { outcome, retry_after } = tokio::select! {
            ended = self.stages(&call, &entry, &children) => ended,
            () = cancelled.cancelled() => Ended::cancelled(&call),
            () = self.stop.cancelled() => Ended::interrupted(),
        };
        // Whatever it was waiting for has been cancelled by now. Nothing of a call goes on after its end.
        children.close();
        children.wait().await;
        let mut laps = Laps::start();
        let outcome = entry.redacted(outcome).await;
        laps.end(Stage::Redact);
        let row = entry.close(&outcome).await?;
        Ok(Ending { request_id: call.request_id, outcome, retry_after, row })
    }

    /// The stages, each taking what the one before returned; the first refusal ends the call.
    async fn stages(self: &Arc<Self>, call: &Arc<IncomingCall>, entry: &Arc<Entry>, children: &TaskTracker) -> Ended {
        let span = Span::current();
        let (Judged { job, permit, identity, judged_by }, of_bot) = match self.judged(call, entry).await {
            Ok(permitted) => permitted,
            Err(refusal) => {
                span.record("decision", "deny");
                return Ended::from(*refusal);
            }
        };
        span.record("decision", "allow").record("plugin.name", permit.plugin().as_str());
        let task_id = call.task_id.clone().unwrap_or_else(|| call.request_id.to_string());
        let below = Below { calls: Arc::clone(self), children: children.clone(), identity };
        let permitted = PermittedCall { job: &job, task_id: &task_id, call, below };
        tokio::select! {
            ended = self.executor.execute(&permitted, permit, of_bot, entry) => ended,
            refusal = revoked::revoked(self, call, job.resolved(), &judged_by) => Ended::from(*refusal),
        }
    }

    /// Judges a call, in place if it needs little. A call that needs more takes its place among those of its bot first, so
    /// that a bot with many such calls waits for its own.
    async fn judged(
        self: &Arc<Self>,
        call: &Arc<IncomingCall>,
        entry: &Arc<Entry>,
    ) -> Result<(Judged, Option<BotPlace>), Refusal> {
        let judged = self.judge(call, entry, &in_place());
        match judged {
            Ok(judged) => return Ok((judged, None)),
            Err(Unjudged::Refused(refusal)) => return Err(refusal),
            Err(Unjudged::Overrun(_)) => {}
        }
        let of_bot = match &call.under {
            // It runs in the place of its root.
            Some(_) => None,
            None => Some(self.bot_place(call.workspace, call.bot).await.map_err(Unchecked::refusal)?),
        };
        let asker = self.asker(call);
        let (calls, call, entry) = (Arc::clone(self), Arc::clone(call), Arc::clone(entry));
        let judged = self.checks.beside(asker, move |effort| match calls.judge(&call, &entry, effort) {
            Ok(judged) => Ok(Ok(judged)),
            Err(Unjudged::Refused(refusal)) => Ok(Err(refusal)),
            Err(Unjudged::Overrun(overrun)) => Err(overrun),
        });
        Ok((judged.await.map_err(Unchecked::refusal)??, of_bot))
    }

    /// For whom a check of this call runs.
    fn asker(&self, call: &IncomingCall) -> Asker {
        let until = Instant::now() + self.executor.longest_call();
        let until = call.under.as_ref().map_or(until, |lineage| until.min(lineage.until));
        Asker { until, ..self.asker_of(call.workspace, call.bot) }
    }

    fn asker_of(&self, workspace: WorkspaceId, bot: Option<BotId>) -> Asker {
        let share = self.policy.load().share_of_host(workspace);
        Asker { workspace, bot, share, until: Instant::now() + self.executor.longest_call() }
    }

    async fn bot_place(&self, workspace: WorkspaceId, bot: Option<BotId>) -> Result<BotPlace, Unchecked> {
        let place = self.executor.lanes().enter_bot(workspace, bot, Instant::now() + WAIT_MAX).await;
        place.map_err(|_| Unchecked::Busy)
    }

    /// Answers what a bot may see.
    pub async fn ask<T: Send + 'static>(
        &self,
        workspace: WorkspaceId,
        bot: BotId,
        question: impl Fn(&Effort) -> Result<T, Overrun> + Send + 'static,
    ) -> Result<T, Unchecked> {
        self.checks.run(self.asker_of(workspace, Some(bot)), question).await
    }

    /// Answers what would become of a call: in place if that needs little, else from a place among the bot's calls, as the
    /// call itself.
    pub async fn ask_of_call(
        self: &Arc<Self>,
        workspace: WorkspaceId,
        bot: BotId,
        question: impl Fn(&Effort) -> Result<Verdict, Overrun> + Send + 'static,
    ) -> Result<Verdict, Unchecked> {
        let answer = question(&in_place());
        if let Ok(answer) = answer {
            return Ok(answer);
        }
        let _place = self.bot_place(workspace, Some(bot)).await?;
        self.checks.beside(self.asker_of(workspace, Some(bot)), question).await
    }

    /// Everything before the plugin: pure, and over the same snapshot.
    fn judge(&self, call: &IncomingCall, entry: &Entry, effort: &Effort) -> Result<Judged, Unjudged> {
        // It may have waited for its body and for its turn.
        if !call.holds_its_key(&self.policy.load()) {
            return Err(self.noted(call, entry, revoked::of_key(call).into()));
        }
        if !matches!(call.asks, Asks::Tool) {
            let (job, permit, judged_by) = platform::judge(&self.policy, call, effort)?;
            entry.resolved(&job.plugin, job.resource.as_deref(), permit.operation());
            let identity = job.plugin.makes_calls().then(|| Identity::of(&call.tool, permit.params()));
            return Ok(Judged { job, permit, identity, judged_by });
        }
        let mut laps = Laps::start();
        let noted = |refusal: Unjudged| self.noted(call, entry, refusal);
        let session = Session::open(&self.policy, self.clock.now(), call).map_err(|refusal| noted(refusal.into()))?;
        if let Some(lineage) = &call.under {
            lineage.check(&session, call, effort).map_err(noted)?;
        }
        let resolved = tools::resolve(&session, call, effort).map_err(|refused| match refused.tool {
            Some((plugin, tool)) => {
                entry.resolved(&plugin, refused.resource.as_deref(), &tool.manifest.operation);
                refused.refusal
            }
            None => noted(refused.refusal),
        })?;
        let operation = &resolved.tool().manifest.operation;
        entry.resolved(&resolved.plugin, Some(&resolved.binding.resource), operation);
        laps.end(Stage::Resolve);
        let params = resolved.checked_params(call, effort)?;
        laps.end(Stage::Params);
        let is_in_a_chain = call.under.is_some() || resolved.plugin.makes_calls();
        let identity = is_in_a_chain.then(|| Identity::of(resolved.tool().manifest.name.as_str(), &params));
        let permit = authorize::permit(call, &session, &resolved, params, effort)?;
        if let (Some(lineage), Some(identity)) = (&call.under, identity) {
            lineage.check_new(identity)?;
        }
        laps.end(Stage::Guardian);
        Ok(Judged { job: Job::of(resolved), permit, identity, judged_by: session.snapshot })
    }

    /// Adds to the entry what the name of a tool alone says, where a call is refused before it is resolved: a tool that
    /// exists is found in the audit by its operation and plugin, whoever was refused.
    fn noted(&self, call: &IncomingCall, entry: &Entry, refusal: Unjudged) -> Unjudged {
        if matches!(refusal, Unjudged::Refused(_))
            && let Ok(name) = call.tool.parse()
            && let Some((plugin, tool)) = self.policy.load().tool(&name)
        {
            entry.resolved(plugin, None, &tool.manifest.operation);
        }
        refusal
    }

    /// Ends the pipeline: calls in flight have `grace` to finish, then they are recorded as interrupted.
    pub async fn shut_down(&self, grace: Duration) {
        self.running.close();
        if tokio::time::timeout(grace, self.running.wait()).await.is_err() {
            tracing::warn!(calls = self.running.len(), "calls in flight are interrupted");
            self.stop.cancel();
            self.running.wait().await;
        }
    }
}

/// The span of a call, in the words of all log lines. What the Guardian decided and how long it took are added later.
fn span(call: &IncomingCall) -> Span {
    let (call_id, bot) = (call.request_id, call.bot);
    // A name as it was given: it need not be that of a tool, and is as long as the caller likes.
    let tool = &call.tool[..call.tool.floor_char_boundary(TOOL_NAME_BYTES_MAX)];
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

/// A call that may run.
struct Judged {
    job: Job,
    permit: Permit,
    /// By which the calls under it recognise it.
    identity: Option<Identity>,
    judged_by: Arc<Snapshot>,
}

/// A refusal by a stage. Boxed, because it is rare and large.
pub type Refusal = Box<CallOutcome>;

/// Why a stage has not let a call through.
#[derive(Debug)]
pub enum Unjudged {
    Refused(Refusal),
    /// It takes more work than it may where it runs.
    Overrun(Overrun),
}

impl Unjudged {
    /// Parameters that fail a schema.
    pub fn invalid(faults: &[InputError]) -> Unjudged {
        Unjudged::Refused(Box::new(tools::invalid_params(faults)))
    }
}

impl From<Refusal> for Unjudged {
    fn from(refusal: Refusal) -> Self {
        Unjudged::Refused(refusal)
    }
}

impl From<Overrun> for Unjudged {
    fn from(overrun: Overrun) -> Self {
        Unjudged::Overrun(overrun)
    }
}

/// A call that has ended, with its answer under lock until the row of its end is on disk.
#[must_use = "the answer comes out of it"]
pub struct Ending {
    request_id: RequestId,
    outcome: CallOutcome,
    retry_after: Option<Duration>,
    row: Queued,
}

impl Ending {
    /// Waits for the row, then gives the answer.
    pub async fn committed(self) -> Result<CallAnswer, AuditUnavailable> {
        let Ending { request_id, outcome, retry_after, row } = self;
        let mut laps = Laps::start();
        let duration_ms = row.committed().await?;
        laps.end(Stage::Audit);
        let (status, code) = (outcome.status.as_str(), outcome.code.map_or("", Code::as_str));
        meters::call(status, code);
        Span::current().record("duration_ms", duration_ms);
        tracing::debug!(status, code, duration_ms, "call ended");
        Ok(CallAnswer { request_id, outcome, duration_ms, retry_after })
    }
}

/// How a call ended, and when to try again if it met a rate limit.
#[derive(Debug)]
pub struct Ended {
    pub outcome: CallOutcome,
    pub retry_after: Option<Duration>,
}

impl Ended {
    fn cancelled(call: &IncomingCall) -> Self {
        let message = match call.under {
            None => "the caller went away before the call was done",
            Some(_) => "the call that made this one ended before it was done",
        };
        Ended::from(CallOutcome::error(Code::Cancelled, message))
    }

    fn interrupted() -> Self {
        Ended::from(CallOutcome::error(Code::Interrupted, "the server was shut down before the call was done"))
    }
}

impl From<CallOutcome> for Ended {
    fn from(outcome: CallOutcome) -> Self {
        Ended { outcome, retry_after: None }
    }
}
