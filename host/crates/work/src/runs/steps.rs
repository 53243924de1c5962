//! The turns of steps: each runs the call of a tool step, and ends its attempt.
//!
//! The row of an attempt grants nothing. Its turn opens the records of the run and of the attempt, so that a row that another
//! program has written starts nothing, and the policy of that moment decides about the call. The end of the attempt and the
//! wake of the run are written in the transaction of the audit row that ends the call. If the audit has the start of a call and
//! the attempt has no end, the call runs again only if that is harmless (decisions.rs). A call that needs an approval
//! waits without a turn, and is judged again after the decision.

mod call;
mod consent;
mod decisions;
mod effects;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use monstrum_core::app::App;
use monstrum_core::call::resolve::RESOURCE_PARAM;
use monstrum_core::call_types::call_labels::CallLabels;
use monstrum_core::call_types::incoming::{Attachments, IncomingCall};
use monstrum_core::call_types::links::{Link, NarrowLink};
use monstrum_core::call_types::resumed::Recorded;
use monstrum_core::call_types::task_step::TaskOfCall;
use monstrum_core::meters;
use monstrum_engine::{Engine, Handler, Turn, TurnError, TurnOutcome};
use monstrum_flow::{StepStatus, Work};
use monstrum_manifest::Effect;
use monstrum_store::{NewWake, ParkedRunStep, RunRow, RunStepRow, StoreError};
use monstrum_types::{AwaitedApproval, RequestId, UtcMillis, WakeKind, with_causes};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::keys::{parse_step_key, run_key, wake};
use super::record::{RecordError, RunContent, StepContent, WorkContent, open_run, open_step, seal_step};
use super::revocation::{has_its_key, is_revoked};
use crate::current::verified;
use call::{LeaseOfStep, StepOfCall, ended};
use consent::Consent;
use decisions::{Awaited, Gate, Known, StepEnd, Stop, before, gate, look_at};

/// The number of failed turns in a row after which an attempt ends. Turns fail if the database or the audit fails, or rows of
/// the workspace may be forged, so the attempt has then waited for about half an hour.
const FAILED_TURNS_MAX: i64 = 8;
/// The time in which a running call can end when the host stops. It is shorter than the time for which the engine waits.
const CALL_ENDS_MAX: Duration = Duration::from_secs(4);
/// The interval at which a call looks whether it is to stop.
const STOP_POLL: Duration = Duration::from_secs(2);
/// The time until a turn reads again whether its attempt is to stop, after a failure of the database.
const READ_RETRY: Duration = Duration::from_secs(1);

/// Runs the turns of steps that call tools.
pub struct StepTurns {
    app: Arc<App>,
    engine: Arc<dyn Engine>,
}

/// An attempt that has not ended, with its records.
struct Attempt {
    run: RunRow,
    run_content: RunContent,
    row: RunStepRow,
    content: StepContent,
    request_id: RequestId,
    called: Called,
}

/// The tool that a step calls.
struct Called {
    tool: String,
    /// The name of the resource, if the definition has one.
    resource: Option<String>,
    params: Value,
}

/// One turn of one attempt.
struct StepTurn<'a> {
    turns: &'a StepTurns,
    turn: &'a Turn,
    attempt: Attempt,
}

impl StepTurns {
    /// Creates the handler of the steps of a host.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>) -> StepTurns {
        StepTurns { app, engine }
    }

    /// Opens the records of an attempt. Returns `None` if the attempt must not run: another program has written or edited its
    /// rows, or it calls no tool.
    fn opened(&self, run: RunRow, row: RunStepRow) -> Option<Attempt> {
        let vault = &self.app.vault;
        let refused = |why: &str| tracing::error!(run.id = %run.id, step.id = row.step, why, "a step starts nothing");
        let opened = open_run(vault, &run).and_then(|content| Ok((content, open_step(vault, &row)?)));
        let (run_content, content) = match opened {
            Ok(contents) => contents,
            Err(error) => {
                refused(&with_causes(&error));
                return None;
            }
        };
        if run_content.has_ended || content.ended_at.is_some() || !content.status.is_active() {
            refused("a row that has ended was set back by another program");
            return None;
        }
        let (Some(request_id), Some(WorkContent::Tool { tool, resource, params })) = (row.request_id, &content.work)
        else {
            refused("it calls no tool");
            return None;
        };
        let called = Called { tool: tool.clone(), resource: resource.clone(), params: params.clone() };
        Some(Attempt { run, run_content, row, content, request_id, called })
    }
}

#[async_trait]
impl Handler for StepTurns {
    fn kind(&self) -> WakeKind {
        WakeKind::Step
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        let Some((run, phase, step, item)) = parse_step_key(turn.key()) else { return Ok(TurnOutcome::Done) };
        // A run goes on by its sealed records, but nothing starts while the rows of its workspace may be forged.
        verified(&self.app, turn.workspace())?;
        let open = self.app.store.open_step(turn.workspace(), run, (phase, &step, &item)).await?;
        let Some((run, row)) = open else { return Ok(TurnOutcome::Done) };
        let Some(attempt) = self.opened(run, row) else { return Ok(TurnOutcome::Done) };
        let span = span(&attempt);
        StepTurn { turns: self, turn, attempt }.take().instrument(span).await
    }
}

/// Waits for the first of two events.
async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

impl StepTurn<'_> {
    /// Decides about the attempt, and runs its call.
    async fn take(mut self) -> Result<TurnOutcome, TurnError> {
        let app = &self.turns.app;
        let now = app.clock.now();
        let stop = self.attempt.row.stopping.map(Stop::from);
        let stop = match stop {
            None if self.attempt.is_revoked(app).await? => Some(Stop::Revoked),
            stop => stop,
        };
        let gate = match stop {
            None => self.gate(now).await?,
            Some(_) => Gate::Goes,
        };
        if let Gate::Waits(at) = gate {
            return Ok(TurnOutcome::Rest(at));
        }
        let known = self.known(stop).await?;
        if let Some(end) = before(&known) {
            return self.end(end).await;
        }
        match gate {
            Gate::Expired => return self.end_without_call(StepEnd::not_approved(&known), &known).await,
            Gate::Denied => {
                return self
                    .end_without_call(StepEnd::refused("denied", "a person has denied this call"), &known)
                    .await;
            }
            Gate::Goes | Gate::Waits(_) => {}
        }
        if self.turn.claim().failures >= FAILED_TURNS_MAX {
            return self.end_without_call(StepEnd::not_run(&known), &known).await;
        }
        match self.consent().await? {
            Consent::Given => {}
            Consent::Waits(approval) => return self.park(&approval, false).await,
            Consent::Refused(end) => return self.end_without_call(end, &known).await,
        }
        if !self.begin(now).await? {
            return Ok(TurnOutcome::Rest(now));
        }
        self.call().await
    }

    /// Returns whether the attempt still waits for an approval.
    async fn gate(&self, now: UtcMillis) -> Result<Gate, StoreError> {
        let content = &self.attempt.content;
        let Some(approval) = content.approval_id.filter(|_| content.status == StepStatus::Waiting) else {
            return Ok(Gate::Goes);
        };
        let approval = self.turns.app.store.approval(self.turn.workspace(), approval).await?;
        let awaited = approval.map(|row| {
            let (status, has_ended) = (row.status, row.ended_at.is_some());
            Awaited { status, has_ended, expires_at: row.expires_at }
        });
        Ok(gate(awaited, now))
    }

    /// Finds out what decides whether the call runs.
    async fn known(&self, stop: Option<Stop>) -> Result<Known, TurnError> {
        let (app, attempt) = (&self.turns.app, &self.attempt);
        let StepContent { repeats, has_begun, .. } = attempt.content;
        let has_started = if repeats {
            // The audit has rows of the attempt before.
            has_begun
        } else {
            let since = attempt.row.started_at;
            app.store.has_started(self.turn.workspace(), attempt.request_id, since).await?
        };
        let stored = attempt.effect();
        if !has_started {
            return Ok(Known { stop, recorded: Recorded::NotStarted, repeats, stored, declared: None });
        }
        let declared = effects::declared(app, attempt.incoming(app)).await;
        let declared = declared.map_err(|unchecked| {
            TurnError::Failed(format!("the effect of a tool could not be found out: {unchecked:?}"))
        })?;
        Ok(Known { stop, recorded: Recorded::Started, repeats, stored, declared })
    }

    /// Records that the attempt no longer waits, or that its repetition begins. Returns `false` if its row has changed since it
    /// was read.
    async fn begin(&mut self, now: UtcMillis) -> Result<bool, TurnError> {
        let (app, attempt) = (&self.turns.app, &mut self.attempt);
        let waited = attempt.content.status == StepStatus::Waiting;
        let begins = attempt.content.repeats && !attempt.content.has_begun;
        if !waited && !begins {
            return Ok(true);
        }
        let waited_ms = attempt.content.waiting_since.map_or(0, |since| now.since_ms(since).max(0));
        let content = StepContent {
            status: StepStatus::Running,
            approval_id: None,
            waiting_since: None,
            has_begun: attempt.content.repeats,
            ..attempt.content.clone()
        };
        let sealed = seal_step(&app.vault, &attempt.row, &content).map_err(|error| failed(&error))?;
        let (wake, before) = (attempt.wake(now), attempt.row.sealed.as_str());
        let (claim, key) = (self.turn.claim(), attempt.row.key());
        if !app.store.continue_run_step(claim, &key, (before, &sealed), waited_ms, &wake).await? {
            return Ok(false);
        }
        self.turns.engine.signal(&[wake]);
        (attempt.content, attempt.row.sealed) = (content, sealed);
        Ok(true)
    }

    /// Runs the call until it ends, until the run stops it, or until the turn ends.
    async fn call(self) -> Result<TurnOutcome, TurnError> {
        let (app, attempt, began_at) = (&self.turns.app, &self.attempt, self.turns.app.clock.now());
        let (stop, cancel) = (Arc::new(OnceLock::new()), CancellationToken::new());
        let lease = Arc::new(LeaseOfStep::new(self.turn.lease().clone(), attempt.run.id));
        let step = Arc::new(StepOfCall {
            app: Arc::clone(app),
            claim: self.turn.claim().clone(),
            row: attempt.row.clone(),
            content: attempt.content.clone(),
            stored: attempt.effect(),
            labels: CallLabels::new(attempt.run_content.labels.clone().with(&attempt.content.labels_before)),
            lease: Arc::clone(&lease),
            stop: Arc::clone(&stop),
            wake: attempt.wake(began_at),
            parked: OnceLock::new(),
            ended: OnceLock::new(),
        });
        let call = attempt.incoming(app).with_labels(step.labels.clone());
        let call = call.with_task(TaskOfCall { step: Some(Arc::clone(&step) as _), lease });
        let ended = tokio::select! {
            ended = app.calls.run_until(call, &cancel) => ended,
            never = self.watch(&stop, &cancel) => match never {},
        };
        ended.map_err(|error| TurnError::Failed(error.to_string()))?;
        if let Some(approval) = step.parked.get() {
            return self.park(approval, stop.get().is_some()).await;
        }
        if let Some(status) = step.ended.get() {
            self.turns.engine.signal(std::slice::from_ref(&step.wake));
            meters::step(status.as_str(), app.clock.now().since_ms(attempt.row.started_at));
            return Ok(TurnOutcome::Done);
        }
        match stop.get() == Some(&Stop::Turn) || !self.turn.lease().is_alive() {
            true => Err(TurnError::Cancelled),
            false => Err(TurnError::Failed("the call was interrupted, or its end could not be kept".to_owned())),
        }
    }

    /// Watches for what stops the call, and never returns.
    async fn watch(&self, stop: &OnceLock<Stop>, cancel: &CancellationToken) -> std::convert::Infallible {
        let app = &self.turns.app;
        let mut renewals = app.policy.renewals();
        loop {
            if stop.get().is_none() && self.is_revoked().await {
                stop.get_or_init(|| Stop::Revoked);
                cancel.cancel();
            }
            tokio::select! {
                () = self.turn.cancelled() => {
                    stop.get_or_init(|| Stop::Turn);
                    // The call may end by itself, so that it is not uncertain. Without the lease, it ends at once, because
                    // another host may go on with the attempt.
                    tokio::select! {
                        () = tokio::time::sleep(CALL_ENDS_MAX) => {}
                        () = self.turn.lost() => {}
                    }
                    cancel.cancel();
                    std::future::pending::<()>().await;
                }
                // Another host may drive the turns of the run by now, and its signals do not come here.
                () = either(self.turn.signalled(), tokio::time::sleep(STOP_POLL)), if stop.get().is_none() => {
                    if let Some(asked) = self.asked_to_stop().await {
                        stop.get_or_init(|| asked);
                        cancel.cancel();
                    }
                }
                changed = renewals.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            }
        }
    }

    /// Returns whether the key was deleted or rotated that started the run, if the run ends with it.
    async fn is_revoked(&self) -> bool {
        loop {
            match self.attempt.is_revoked(&self.turns.app).await {
                Ok(is_revoked) => return is_revoked,
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::warn!(%error, run.id = %self.attempt.run.id, "cannot read the key of a run; retrying");
                    tokio::time::sleep(READ_RETRY).await;
                }
            }
        }
    }

    /// Reads whether the run has asked the attempt to stop.
    async fn asked_to_stop(&self) -> Option<Stop> {
        loop {
            match self.turns.app.store.open_run_step(&self.attempt.row.key()).await {
                Ok(Some(row)) => return row.stopping.map(Stop::from),
                // The run no longer waits for the attempt.
                Ok(None) => return Some(Stop::Cancelled),
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::warn!(%error, run.id = %self.attempt.run.id, "cannot read whether a step is to stop; retrying");
                    tokio::time::sleep(READ_RETRY).await;
                }
            }
        }
    }

    /// Lets the attempt wait for an approval without a turn. An attempt that is to stop looks again at once.
    async fn park(&self, approval: &AwaitedApproval, stops: bool) -> Result<TurnOutcome, TurnError> {
        let (app, attempt) = (&self.turns.app, &self.attempt);
        let now = app.clock.now();
        let content = StepContent {
            status: StepStatus::Waiting,
            approval_id: Some(approval.id),
            waiting_since: Some(attempt.content.waiting_since.unwrap_or(now)),
            // The call has not started.
            has_begun: false,
            ..attempt.content.clone()
        };
        let sealed = seal_step(&app.vault, &attempt.row, &content).map_err(|error| failed(&error))?;
        let parked = ParkedRunStep {
            key: attempt.row.key(),
            approval: approval.id,
            before: &attempt.row.sealed,
            sealed: &sealed,
            look_at: if stops { now } else { look_at(approval.expires_at, now) },
        };
        let wake = attempt.wake(now);
        match app.store.park_run_step(self.turn.claim(), &parked, &wake).await? {
            Some(after) => {
                self.turns.engine.signal(&[wake]);
                Ok(TurnOutcome::Ended(after))
            }
            None => Ok(TurnOutcome::Rest(now)),
        }
    }

    /// Ends the attempt, whose call does not run. The repetition of a write is then uncertain, however it would end.
    async fn end_without_call(&self, end: StepEnd, known: &Known) -> Result<TurnOutcome, TurnError> {
        self.end(end.without_call(known)).await
    }

    /// Ends the attempt without a call.
    async fn end(&self, end: StepEnd) -> Result<TurnOutcome, TurnError> {
        let (app, attempt) = (&self.turns.app, &self.attempt);
        let (now, status) = (app.clock.now(), end.status);
        let row = ended(&app.vault, self.turn.claim(), (&attempt.row, attempt.content.clone()), end, now);
        let wake = attempt.wake(now);
        let after = app.store.end_run_step(self.turn.claim(), &row.map_err(|error| failed(&error))?, &wake).await?;
        self.turns.engine.signal(&[wake]);
        meters::step(status.as_str(), now.since_ms(attempt.row.started_at));
        Ok(TurnOutcome::Ended(after))
    }
}

impl Attempt {
    /// Returns whether the key was deleted or rotated that started the run, if the run ends with it.
    async fn is_revoked(&self, app: &App) -> Result<bool, StoreError> {
        let has_key = has_its_key(&self.run_content, &app.policy.load());
        Ok(!has_key && is_revoked(app, &self.run, &self.run_content).await?)
    }

    /// Returns the effect of the tool when the attempt was planned. An unknown effect counts as the gravest.
    fn effect(&self) -> Effect {
        self.row.effect.as_deref().and_then(Effect::from_word).unwrap_or(Effect::Write)
    }

    /// Returns a request for a turn of the run.
    fn wake(&self, now: UtcMillis) -> NewWake {
        wake(run_key(self.run.id), self.run.workspace_id, now)
    }

    /// Returns the call of the attempt.
    fn incoming(&self, app: &App) -> IncomingCall {
        incoming(app, (&self.run, &self.run_content), (&self.row, self.request_id), &self.called)
    }
}

/// Returns the call of an attempt. It has no key: the policy of the bot decides about it, and what the run was narrowed to.
fn incoming(
    app: &App,
    (run, content): (&RunRow, &RunContent),
    (row, request_id): (&RunStepRow, RequestId),
    called: &Called,
) -> IncomingCall {
    let RunRow { id, workspace_id, bot_id, workflow, .. } = run;
    let mut context = json!({ "run_id": id, "workflow": workflow, "step": row.step });
    if !row.item.is_empty() {
        context["item"] = json!(row.item);
    }
    let secrets = app.policy.load().redactors_of(*workspace_id, *bot_id, None);
    let params = with_resource(called.params.clone(), called.resource.as_deref());
    IncomingCall::bot_tool(request_id, *workspace_id, *bot_id, called.tool.clone(), params)
        .with_task_id(Some(id.to_string()))
        .with_context(json!({ "run": context }))
        .with_links(links_of(content))
        .with_attachments(Attachments { task_secrets: Some(secrets), ..Attachments::default() })
}

/// Returns the links under which the bot of a run acts.
fn links_of(content: &RunContent) -> Arc<[Link]> {
    content.narrow.iter().map(|narrow| Link::Narrow(NarrowLink::new(narrow))).collect()
}

/// Returns the effect of the tool that a new attempt calls, which its row records. Returns `None` if it is not known, so that
/// the gravest counts.
pub(crate) async fn planned_effect(
    app: &App,
    run: (&RunRow, &RunContent),
    row: &RunStepRow,
    work: &Work,
) -> Option<Effect> {
    let (Work::Tool { tool, resource, params }, Some(request_id)) = (work, row.request_id) else { return None };
    let called = Called { tool: tool.clone(), resource: resource.clone(), params: params.clone() };
    match effects::declared(app, incoming(app, run, (row, request_id), &called)).await {
        Ok(effect) => effect,
        Err(unchecked) => {
            tracing::warn!(?unchecked, run.id = %row.run_id, "the effect of a tool could not be found out");
            None
        }
    }
}

/// Adds the name of the resource to the parameters of a call.
fn with_resource(mut params: Value, resource: Option<&str>) -> Value {
    if let (Value::Object(members), Some(resource)) = (&mut params, resource) {
        members.insert(RESOURCE_PARAM.to_owned(), Value::from(resource));
    }
    params
}

fn failed(error: &RecordError) -> TurnError {
    TurnError::Failed(with_causes(error))
}

/// Returns the span of a turn of a step. The span of its call is below it.
fn span(attempt: &Attempt) -> tracing::Span {
    tracing::debug_span!("step", run.id = %attempt.run.id, step.id = attempt.row.step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_of_a_step_is_the_one_that_its_definition_names() {
        let params = json!({ "repo": "acme/web", "_resource": "from an expression" });
        let named = with_resource(params.clone(), Some("github"));
        assert_eq!(named, json!({ "repo": "acme/web", "_resource": "github" }));
        assert_eq!(with_resource(params.clone(), None), params);
    }
}
