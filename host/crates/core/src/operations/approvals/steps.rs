//! Steps of workflows that ask a person, and calls of steps that a person has approved.
//!
//! A call is resolved as the pipeline resolves it, so that an approver sees the resource, the operation and the parameters
//! with which the call would run. An approval permits nothing by itself: the pipeline judges the call.

use std::sync::Arc;

use monstrum_egress::Redactor;
use monstrum_guardian::Approver;
use monstrum_store::{ApprovalKind, ApprovalRow, ApprovalStatus, NewApproval};
use monstrum_types::{
    ApprovalId, BotId, CallOutcome, Code, Effort, JsonText, KeyId, Labels, Overrun, RequestId, RunId, Status,
    UtcMillis, WorkflowId, WorkspaceId,
};
use serde::Deserialize as _;
use serde_json::Value;

use crate::app::App;
use crate::approvals::{
    ApprovalError, AskingStep, Params, STEP_PARAMS_BYTES_MAX, STEP_TEXT_BYTES_MAX, StepDecision, StepPosition,
    StepQuestion, StepTarget, StepTargetParts, definition, step_decision, targets_of,
};
use crate::call::check::checked_params;
use crate::call::resolve::{RESOURCE_PARAM, resolve};
use crate::call::session::Session;
use crate::call_types::call_labels::CallLabels;
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::links::Link;
use crate::call_types::refusal::NotPermitted;
use crate::checks::Unchecked;
use crate::events::EventCause;

/// A run whose step asks or calls.
#[derive(Clone, Debug)]
pub struct StepRun<'a> {
    pub workspace: WorkspaceId,
    pub bot: BotId,
    pub workflow: WorkflowId,
    pub run: RunId,
    /// The attempt of the run.
    pub attempt: i64,
    /// The items of the blocks around the step, such as `3.0`; empty outside of `each`.
    pub item: &'a str,
    /// What the run may do less than its bot.
    pub links: Arc<[Link]>,
    /// The labels of what the run has read.
    pub labels: &'a Labels,
    /// The keys that started the run, or made what started it.
    pub starters: &'a [KeyId],
    pub cause: Option<EventCause>,
}

/// A step that asks.
#[derive(Clone, Debug)]
pub struct StepAsk<'a> {
    pub step: &'a str,
    /// The attempt of the step.
    pub attempt: i64,
    pub text: &'a str,
    /// The calls that are approved.
    pub targets: &'a [StepCall<'a>],
    /// The kinds of keys that may decide. Other words are ignored; root keys may always decide.
    pub by: &'a [String],
    /// Whether the keys that started the run may decide.
    pub allow_starter: bool,
    pub expires_at: UtcMillis,
    /// The number of approvals for which the turn asks already.
    pub asked: usize,
}

/// A call of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepCall<'a> {
    pub step: &'a str,
    pub tool: &'a str,
    /// The name of the resource, if one was given.
    pub resource: Option<&'a str>,
    pub params: &'a Value,
}

/// Why a step cannot ask.
#[derive(Debug, thiserror::Error)]
pub enum AskStepError {
    /// The step fails.
    #[error("{message}")]
    Refused { code: &'static str, message: String },
    /// The turn must be repeated.
    #[error("the calls of the step cannot be checked now")]
    Busy,
    /// The turn must be repeated.
    #[error(transparent)]
    Approval(#[from] ApprovalError),
}

/// Whether a call of a step has the approvals that it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum StepConsent {
    /// People have approved exactly this call.
    Given,
    /// The call has changed since it was approved, and a person is asked again. The decision requests turns of the steps
    /// whose rows name this approval.
    Waits(Box<ApprovalRow>),
    /// The step fails with this code.
    Refused { code: &'static str, message: String },
}

/// A call as it would run.
struct ResolvedStep {
    target: StepTarget,
    params: JsonText,
    redactor: Arc<Redactor>,
}

/// Makes the approval for which a step asks. The turn of the run inserts it, with
/// [`Approvals::in_turn`](crate::approvals::Approvals::in_turn).
///
/// # Errors
///
/// The step fails if one of the calls is unknown, invalid or too large, or if too many approvals are pending.
pub async fn ask_step(app: &App, run: &StepRun<'_>, ask: &StepAsk<'_>) -> Result<NewApproval, AskStepError> {
    if ask.text.len() > STEP_TEXT_BYTES_MAX {
        let message = format!("the text of the question has more than {STEP_TEXT_BYTES_MAX} bytes");
        return Err(AskStepError::Refused { code: "limit", message });
    }
    check_room(app, run, ask.asked).await?;
    let resolved = resolved(app, run, ask.targets).await?;
    let (targets, question) = question(ask.text.to_owned(), resolved).await?;
    let known = |word: &String| Approver::deserialize(Value::from(word.as_str())).ok();
    let asking = AskingStep {
        position: position(run, ask.step, ask.attempt),
        workflow: run.workflow,
        approvers: ask.by.iter().filter_map(known).collect(),
        allow_starter: ask.allow_starter,
        starters: run.starters.to_vec(),
        labels: run.labels,
        cause: run.cause,
        expires_at: ask.expires_at,
        targets,
        question,
    };
    Ok(app.approvals.of_step(&asking)?)
}

/// Returns whether all of these questions have been approved for exactly this call. Nothing is changed.
///
/// # Errors
///
/// The call cannot be resolved, or the turn must be repeated.
pub async fn check_step(
    app: &App,
    run: &StepRun<'_>,
    questions: &[ApprovalId],
    call: &StepCall<'_>,
) -> Result<bool, AskStepError> {
    let (target, _) = resolved_one(app, run, call).await?;
    for id in questions {
        let row = question_of(app, run, *id).await?;
        if !row.is_some_and(|row| names(&row, &target)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks a call of a step against the approvals of the questions that name the step, and asks a question again if the call
/// differs from what was approved. Questions of steps that were skipped must be left out. Repeating this has no further
/// effect.
///
/// # Errors
///
/// The call cannot be resolved, or the turn must be repeated.
pub async fn step_consent(
    app: &App,
    run: &StepRun<'_>,
    questions: &[ApprovalId],
    call: &StepCall<'_>,
) -> Result<StepConsent, AskStepError> {
    if questions.is_empty() {
        return Ok(StepConsent::Given);
    }
    let (target, params) = resolved_one(app, run, call).await?;
    let now = app.clock.now();
    for id in questions {
        let Some(row) = question_of(app, run, *id).await? else {
            let message = "the approval of this call cannot be read".to_owned();
            return Ok(StepConsent::Refused { code: "denied", message });
        };
        if names(&row, &target) {
            continue;
        }
        match step_decision(&row, now) {
            StepDecision::Approved { .. } => app.approvals.void_step(&row).await?,
            StepDecision::Void => {}
            decision => {
                let message = "no person has approved this call".to_owned();
                let (code, message) = decision.failure().unwrap_or(("denied", message));
                return Ok(StepConsent::Refused { code, message });
            }
        }
        match asked_again(app, run, &row, (&target, &params)).await? {
            StepConsent::Given => {}
            other => return Ok(other),
        }
    }
    Ok(StepConsent::Given)
}

/// Asks a question again for one call, unless that has been done.
async fn asked_again(
    app: &App,
    run: &StepRun<'_>,
    before: &ApprovalRow,
    (target, params): (&StepTarget, &Value),
) -> Result<StepConsent, AskStepError> {
    let refused = |what: &str| StepConsent::Refused { code: "denied", message: what.to_owned() };
    let starters = before.starters.as_ref().and_then(|starters| Vec::<KeyId>::deserialize(starters).ok());
    let (Some(step), Some(starters)) = (before.run_step.as_deref(), starters) else {
        return Ok(refused("the approval of this call cannot be read"));
    };
    let text = match app.approvals.params(before).await? {
        Params::Whole(question) => {
            let question = StepQuestion::deserialize(question.value()).map(|question| question.text);
            question.unwrap_or_else(|_| default_text(&target.step))
        }
        Params::Omitted | Params::Deleted => default_text(&target.step),
    };
    let now = app.clock.now();
    let asking = AskingStep {
        position: position(run, step, 0),
        workflow: run.workflow,
        // Approvers that cannot be read accept root keys only.
        approvers: Vec::deserialize(&before.approvers).unwrap_or_default(),
        allow_starter: before.allow_starter,
        starters,
        labels: run.labels,
        cause: run.cause,
        expires_at: now.plus_ms(before.expires_at.since_ms(before.created_at)),
        targets: vec![target.clone()],
        question: StepQuestion { text, params: vec![params.clone()] },
    };
    let known = app.store.step_approval(run.workspace, &asking.digest()).await.map_err(ApprovalError::from)?;
    if let Some(known) = known {
        let decision = step_decision(&known, now);
        match decision {
            StepDecision::Approved { .. } => return Ok(StepConsent::Given),
            StepDecision::Pending => return Ok(StepConsent::Waits(Box::new(known))),
            StepDecision::Denied { .. } | StepDecision::Expired => {
                let (code, message) = decision.failure().unwrap_or_default();
                return Ok(StepConsent::Refused { code, message });
            }
            StepDecision::Void => {}
        }
    }
    check_room(app, run, 0).await?;
    let new = app.approvals.of_step(&asking)?;
    match app.approvals.ask_step_again(&new).await {
        Ok(row) => Ok(StepConsent::Waits(Box::new(row))),
        Err(ApprovalError::Full) => Err(full()),
        Err(error) => Err(error.into()),
    }
}

fn default_text(step: &str) -> String {
    format!("The call of the step `{step}` has changed since it was approved.")
}

fn position<'a>(run: &StepRun<'a>, step: &'a str, attempt: i64) -> StepPosition<'a> {
    let StepRun { workspace, bot, run: id, attempt: run_attempt, item, .. } = *run;
    StepPosition { workspace, bot, run: id, step, item, run_attempt, attempt }
}

/// Reads the approval of a question of this run, for the item of the call.
async fn question_of(app: &App, run: &StepRun<'_>, id: ApprovalId) -> Result<Option<ApprovalRow>, AskStepError> {
    let row = app.store.approval(run.workspace, id).await.map_err(ApprovalError::from)?;
    Ok(row.filter(|row| {
        row.kind == ApprovalKind::Step
            && row.run_id == Some(run.run)
            && row.bot_id == run.bot
            && row.item.as_deref().unwrap_or_default() == run.item
    }))
}

/// Returns whether a person has approved exactly this call.
fn names(row: &ApprovalRow, target: &StepTarget) -> bool {
    let is_approved = row.status == ApprovalStatus::Approved && row.decided_by.is_some();
    is_approved && targets_of(row).is_some_and(|targets| targets.contains(target))
}

async fn check_room(app: &App, run: &StepRun<'_>, asked: usize) -> Result<(), AskStepError> {
    let room = app.approvals.room(run.workspace, run.bot).await.map_err(ApprovalError::from)?;
    if i64::try_from(asked).is_ok_and(|asked| asked < room) { Ok(()) } else { Err(full()) }
}

fn full() -> AskStepError {
    let message = "too many calls and steps of this bot or workspace wait for approval".to_owned();
    AskStepError::Refused { code: "limit", message }
}

/// Resolves one call, and returns it with its parameters without secrets.
async fn resolved_one(app: &App, run: &StepRun<'_>, call: &StepCall<'_>) -> Result<(StepTarget, Value), AskStepError> {
    let resolved = resolved(app, run, std::slice::from_ref(call)).await?;
    let (targets, question) = question(String::new(), resolved).await?;
    let resolved = targets.into_iter().zip(question.params).next();
    resolved.ok_or(AskStepError::Busy)
}

/// Resolves calls to what they would run.
async fn resolved(app: &App, run: &StepRun<'_>, calls: &[StepCall<'_>]) -> Result<Vec<ResolvedStep>, AskStepError> {
    let mut found = Vec::with_capacity(calls.len());
    for call in calls {
        found.push(resolved_call(app, run, call).await?);
    }
    let bytes: usize = found.iter().map(|resolved| resolved.params.as_str().len()).sum();
    if bytes > STEP_PARAMS_BYTES_MAX {
        let message = format!("the calls of the question have more than {STEP_PARAMS_BYTES_MAX} bytes of parameters");
        return Err(AskStepError::Refused { code: "limit", message });
    }
    Ok(found)
}

async fn resolved_call(app: &App, run: &StepRun<'_>, call: &StepCall<'_>) -> Result<ResolvedStep, AskStepError> {
    let mut params = call.params.clone();
    if let (Some(name), Some(members)) = (call.resource, params.as_object_mut()) {
        members.insert(RESOURCE_PARAM.to_owned(), Value::from(name));
    }
    let incoming = IncomingCall::bot_tool(RequestId::new(), run.workspace, run.bot, call.tool.to_owned(), params)
        .with_links(Arc::clone(&run.links))
        .with_labels(CallLabels::new(run.labels.clone()));
    let session = Session::open(&app.policy, app.clock.now(), &incoming);
    let session = session.map_err(|outcome| refused(call.step, &outcome))?;
    let (workspace, bot, id, item) = (run.workspace, run.bot, run.run, run.item.to_owned());
    let step = call.step.to_owned();
    let resolved = app.calls.ask(workspace, bot, move |effort| {
        let position = StepPosition { workspace, bot, run: id, step: "", item: &item, run_attempt: 0, attempt: 0 };
        resolve_within(&session, &incoming, (&position, &step), effort)
    });
    match resolved.await {
        Ok(resolved) => resolved.map_err(|outcome| refused(call.step, &outcome)),
        Err(Unchecked::Busy | Unchecked::Overrun(Overrun::Deadline | Overrun::Cancelled)) => Err(AskStepError::Busy),
        Err(unchecked @ Unchecked::Overrun(Overrun::Steps)) => Err(refused(call.step, &unchecked.outcome())),
    }
}

fn resolve_within(
    session: &Session,
    call: &IncomingCall,
    (position, step): (&StepPosition<'_>, &str),
    effort: &Effort,
) -> Result<Result<ResolvedStep, Box<CallOutcome>>, Overrun> {
    let resolved = match resolve(session, call, effort).map_err(|refused| refused.refusal) {
        Ok(resolved) => resolved,
        Err(NotPermitted::Refused(outcome)) => return Ok(Err(outcome)),
        Err(NotPermitted::Overrun(overrun)) => return Err(overrun),
    };
    let params = match checked_params(resolved.tool(), call, effort) {
        Ok(params) => params,
        Err(NotPermitted::Refused(outcome)) => return Ok(Err(outcome)),
        Err(NotPermitted::Overrun(overrun)) => return Err(overrun),
    };
    crate::checks::pay_for_object(params.members(), effort)?;
    let (manifest, binding) = (&resolved.tool().manifest, &resolved.binding);
    let parts = StepTargetParts {
        step: step.to_owned(),
        tool: manifest.name.to_string(),
        resource: binding.row.resource_id,
        operation: manifest.operation.clone(),
        effect: manifest.effect.as_str().to_owned(),
        definition: definition(resolved.tool(), &binding.resource, effort)?,
    };
    let target = StepTarget::new(position, parts, params.members());
    let redactor = binding.resource.credential_source().redactor();
    let params = JsonText::from(&Value::Object(params.members().clone()));
    Ok(Ok(ResolvedStep { target, params, redactor }))
}

/// Returns the failure of a step for a call that would be refused.
fn refused(step: &str, outcome: &CallOutcome) -> AskStepError {
    match outcome.code {
        Some(Code::Unavailable | Code::Busy) => AskStepError::Busy,
        code => {
            let code = match outcome.status {
                Status::Error => code.map_or("invalid_params", Code::as_str),
                status => status.as_str(),
            };
            let reason = outcome.message.as_deref().unwrap_or("it is not permitted");
            AskStepError::Refused {
                code,
                message: format!("the call of the step `{step}` cannot be approved: {reason}"),
            }
        }
    }
}

/// Makes what approvers read of a question: the text and the parameters, without the secrets of all resources.
async fn question(text: String, resolved: Vec<ResolvedStep>) -> Result<(Vec<StepTarget>, StepQuestion), AskStepError> {
    let secrets = CallSecrets::default();
    secrets.keep_all();
    for resolved in &resolved {
        secrets.redact_with(Arc::clone(&resolved.redactor));
    }
    let withheld = |withheld: crate::call_types::call_secrets::Withheld| {
        let message = withheld.message().to_owned();
        AskStepError::Refused { code: withheld.outcome().code.map_or("limit", Code::as_str), message }
    };
    let text = secrets.redacted_texts(vec![text]).await.map_err(withheld)?.pop().unwrap_or_default();
    let (mut targets, mut params) = (Vec::with_capacity(resolved.len()), Vec::with_capacity(resolved.len()));
    for ResolvedStep { target, params: whole, .. } in resolved {
        params.push(secrets.redacted_json(whole).await.map_err(withheld)?.value());
        targets.push(target);
    }
    Ok((targets, StepQuestion { text, params }))
}
