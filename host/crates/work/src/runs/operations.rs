//! The operations on runs: starting, listing, showing, pausing, cancelling and retrying them, and saying what became of an
//! uncertain step. What people ask stands in the sealed record of the run; the next turn of the run does it.

use std::sync::Arc;

use monstrum_api::list::List;
use monstrum_api::runs::{NewRun, ResolvedAs, Run, RunList, RunStepList, StepResolution};
use monstrum_core::app::App;
use monstrum_core::operations::change::Change;
use monstrum_core::operations::{Caller, OperationError, Operator};
use monstrum_engine::Engine;
use monstrum_flow::{STEP_RESULT_BYTES_MAX, StepError, StepStatus};
use monstrum_store::{
    InsertedRun, KeyKind, PAGE_ITEMS_MAX, Page, ResolvedRunStep, RunFilter, RunRow, RunStarter, RunStatus,
    RunStepCursor, RunStepRow, RunStepStatus, WorkflowRow,
};
use monstrum_types::{BotId, Labels, RunId, UtcMillis, WorkflowId, with_causes};
use serde_json::{Value, json};

use super::definitions::{DefinitionError, Definitions};
use super::keys;
use super::record::{RecordError, RunContent, StepContent, open_run, open_step, seal_run, seal_step};
use super::shown::{as_listed, shown};
use super::start::{NotStarted, StartOf, prepare};

/// The maximum number of runs and of attempts that are read at once. One record can have more than a MiB.
const READ: u32 = 20;
/// The size of the records from which a page of attempts has no further one, in bytes.
const STEPS_BYTES_MAX: usize = 8 << 20;
/// The number of times that a change is decided again, because a turn has changed the run meanwhile.
pub(super) const ATTEMPTS_MAX: u32 = 8;
/// The maximum size of the data that the audit keeps of a resolution, in bytes of JSON. The step keeps all of it.
const RECORDED_BYTES_MAX: usize = 16 << 10;
/// The label of a run that is started by a bot, whose input may be the text of a stranger.
const UNTRUSTED: &str = "untrusted";

/// The operations on the runs of a host.
pub struct Runs {
    pub(super) app: Arc<App>,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) definitions: Arc<Definitions>,
}

/// What a list of runs has to match.
#[derive(Clone, Debug, Default)]
pub struct RunsInput {
    pub workflow: Option<WorkflowId>,
    pub status: Option<RunStatus>,
    /// The id of what started the runs.
    pub started_by: Option<String>,
    /// The earliest time at which the runs were created.
    pub since: Option<UtcMillis>,
}

impl Runs {
    /// Creates the operations on the runs of the host `app`.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>, definitions: Arc<Definitions>) -> Runs {
        Runs { app, engine, definitions }
    }

    /// Returns the workflow, if the caller may start runs of it. Interfaces call this before they read an input.
    ///
    /// # Errors
    ///
    /// The workflow does not exist, or belongs to another bot than that of the caller.
    pub async fn may_start(&self, caller: &Caller, id: WorkflowId) -> Result<WorkflowRow, OperationError> {
        if caller.token_user.is_some() {
            return Err(OperationError::forbidden("runs are started with an API key"));
        }
        let workflow = self.app.store.workflow(caller.workspace, id).await?;
        workflow.filter(|row| sees(caller, row.bot_id)).ok_or_else(|| OperationError::not_found("workflow"))
    }

    /// Starts a run of a workflow. Its steps act as the bot of the workflow.
    ///
    /// # Errors
    ///
    /// The workflow does not exist or is disabled, a bot key asks for an old version, the input does not fit the workflow, or
    /// there are too many runs.
    pub async fn start(&self, caller: &Caller, id: WorkflowId, new: NewRun) -> Result<Run, OperationError> {
        let workflow = self.may_start(caller, id).await?;
        let (app, now) = (&self.app, self.app.clock.now());
        self.check_verified(caller)?;
        if !workflow.enabled {
            return Err(OperationError::conflict("the workflow is disabled; enable it first"));
        }
        let is_bot = caller.kind == KeyKind::Bot;
        let version = new.version.unwrap_or(workflow.version);
        // A later version can ask a person where an earlier one does not.
        if is_bot && version != workflow.version {
            return Err(OperationError::forbidden("a bot key starts the newest version of a workflow"));
        }
        if !(1..=workflow.version).contains(&version) {
            let message = format!("the workflow has the versions 1 to {}", workflow.version);
            return Err(OperationError::invalid_at("/version", message));
        }
        let definition = self.definitions.of(caller.workspace, id, version).await.map_err(no_definition)?;
        let labels = [UNTRUSTED.to_owned()].into_iter().filter(|_| is_bot).collect::<Labels>();
        let starter = (RunStarter::Key, caller.key.to_string());
        let start = StartOf {
            version,
            starters: vec![caller.key],
            bot_key_hash: is_bot.then(|| hex::encode(caller.key_hash)),
            labels,
            ..StartOf::new(&workflow, new.input, starter, now)
        };
        let new = prepare(app, &definition, start).map_err(not_started)?;
        let insert = async {
            match app.store.insert_run(&new.row, &new.wake, new.max).await? {
                InsertedRun::Inserted => Ok(()),
                InsertedRun::Full => Err(full()),
                InsertedRun::Skipped => {
                    let message =
                        "the workflow has as many runs as its limit of concurrency allows, and starts no more";
                    Err(OperationError::conflict(message))
                }
                InsertedRun::Disabled => Err(OperationError::conflict("the workflow was disabled or deleted")),
            }
        };
        let recorded = json!({ "workflow_id": workflow.id, "workflow": workflow.name, "version": version });
        let change = Change::new("run.start", &new.row.id).of_bot(workflow.bot_id).to(&recorded);
        change.record(app, caller, insert).await?;
        self.engine.signal(std::slice::from_ref(&new.wake));
        let content = open_run(&app.vault, &new.row).map_err(internal)?;
        Ok(shown(&new.row, content))
    }

    /// Lists the runs that the caller may see and that match, newest first.
    ///
    /// # Errors
    ///
    /// The workflow does not exist, or the database failed.
    pub async fn list(
        &self,
        caller: &Caller,
        input: &RunsInput,
        page: &Page<RunId>,
    ) -> Result<RunList, OperationError> {
        let bot = match caller.kind {
            KeyKind::Bot => match caller.bot {
                Some(own) => Some(own),
                None => return Ok(List { items: Vec::new(), next_cursor: None }),
            },
            _ => None,
        };
        let RunsInput { workflow, status, started_by, since } = input;
        let filter =
            RunFilter { workflow: *workflow, bot, status: *status, started_by: started_by.as_deref(), since: *since };
        let (mut items, mut left, mut cursor) = (Vec::new(), page.limit.clamp(1, PAGE_ITEMS_MAX), page.cursor);
        while left > 0 {
            let part = Page { limit: left.min(READ), cursor };
            let listed = self.app.store.runs(caller.workspace, &filter, &part).await?;
            for row in &listed.items {
                items.push(as_listed(self.view(row).await?));
            }
            left -= part.limit;
            cursor = listed.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(List { items, next_cursor: cursor.map(|cursor| cursor.to_string()) })
    }

    /// Lists the runs of a workflow, newest first.
    ///
    /// # Errors
    ///
    /// The workflow does not exist, or the caller may not see it.
    pub async fn of_workflow(
        &self,
        caller: &Caller,
        id: WorkflowId,
        input: RunsInput,
        page: &Page<RunId>,
    ) -> Result<RunList, OperationError> {
        let workflow = self.app.store.workflow(caller.workspace, id).await?;
        workflow.filter(|row| sees(caller, row.bot_id)).ok_or_else(|| OperationError::not_found("workflow"))?;
        self.list(caller, &RunsInput { workflow: Some(id), ..input }, page).await
    }

    /// Shows a run.
    ///
    /// # Errors
    ///
    /// The run does not exist, or the caller may not see it.
    pub async fn show(&self, caller: &Caller, id: RunId) -> Result<Run, OperationError> {
        self.view(&self.row(caller, id).await?).await
    }

    /// Returns the row of a run that the caller may see.
    ///
    /// # Errors
    ///
    /// The run does not exist, or the caller may not see it.
    pub async fn row(&self, caller: &Caller, id: RunId) -> Result<RunRow, OperationError> {
        let row = self.app.store.run(caller.workspace, id).await?;
        row.filter(|row| sees(caller, row.bot_id)).ok_or_else(|| OperationError::not_found("run"))
    }

    /// Lists the attempts of a run's steps, in the order in which they began. A page ends before its limit if its attempts are
    /// large.
    ///
    /// # Errors
    ///
    /// The run does not exist, or the caller may not see it.
    pub async fn steps(
        &self,
        caller: &Caller,
        id: RunId,
        page: &Page<RunStepCursor>,
    ) -> Result<RunStepList, OperationError> {
        self.row(caller, id).await?;
        let (mut items, mut bytes, mut cursor) = (Vec::new(), 0, page.cursor.clone());
        let limit = page.limit.clamp(1, PAGE_ITEMS_MAX) as usize;
        while items.len() < limit && bytes < STEPS_BYTES_MAX {
            let left = u32::try_from(limit - items.len()).unwrap_or(READ);
            let part = Page { limit: left.min(READ), cursor };
            let listed = self.app.store.run_step_page(caller.workspace, id, &part).await?;
            bytes += listed.items.iter().map(|row| row.sealed.len()).sum::<usize>();
            items.extend(listed.items.iter().map(|row| self.step(row)));
            cursor = listed.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(List { items, next_cursor: cursor.map(|cursor| cursor.to_string()) })
    }

    /// Says what became of an uncertain step.
    ///
    /// # Errors
    ///
    /// The run does not exist, or the step is not uncertain.
    pub async fn resolve(
        &self,
        caller: &Operator,
        (id, step): (RunId, &str),
        resolution: StepResolution,
    ) -> Result<Run, OperationError> {
        let StepResolution { outcome, item, data } = resolution;
        let (app, item) = (&self.app, item.unwrap_or_default());
        check_data(outcome, data.as_ref())?;
        self.check_verified(caller)?;
        let (run, _, row, _) = self.uncertain(caller, id, (step, &item)).await?;
        let resolve = async {
            for _ in 0..ATTEMPTS_MAX {
                let (run, mut content, row, attempt) = self.uncertain(caller, id, (step, &item)).await?;
                let now = app.clock.now();
                let attempt = resolved(attempt, outcome, data.clone(), now);
                content.uncertain.retain(|key| key.undo || key.step != step || key.item != item);
                if outcome == ResolvedAs::Retry {
                    content.add_starter(caller.key);
                }
                let sealed = (seal_run(&app.vault, &run, &content), seal_step(&app.vault, &row, &attempt));
                let (sealed_run, sealed_step) = (sealed.0.map_err(internal)?, sealed.1.map_err(internal)?);
                let said = ResolvedRunStep {
                    run: (&run, &sealed_run),
                    step: (&row, &sealed_step),
                    status: match outcome {
                        ResolvedAs::Succeeded => RunStepStatus::Succeeded,
                        ResolvedAs::Failed => RunStepStatus::Failed,
                        ResolvedAs::Retry => RunStepStatus::Uncertain,
                    },
                    code: attempt.error.as_ref().map(|error| error.code.as_str()),
                    ended_at: now,
                };
                let wake = keys::wake(keys::run_key(id), run.workspace_id, now);
                if app.store.resolve_run_step(&said, &wake).await? {
                    return Ok(wake);
                }
            }
            Err(OperationError::changed_meanwhile())
        };
        let attempt = json!({ "run_attempt": row.run_attempt, "attempt": row.attempt, "request_id": row.request_id });
        let before = json!({ "step": step, "item": item, "status": "uncertain", "of": attempt });
        let data = data.as_ref().filter(|data| data.to_string().len() <= RECORDED_BYTES_MAX);
        let after = json!({ "step": step, "item": item, "as": word(outcome), "data": data });
        let change = Change::new("run.resolve", &id).of_bot(run.bot_id).from(&before).to(&after);
        let wake = change.record(app, caller, resolve).await?;
        self.engine.signal(&[wake]);
        self.show(caller, id).await
    }

    /// Returns a run and the last attempt of one of its steps, which must be uncertain.
    async fn uncertain(
        &self,
        caller: &Caller,
        id: RunId,
        (step, item): (&str, &str),
    ) -> Result<(RunRow, RunContent, RunStepRow, StepContent), OperationError> {
        let (run, content) = self.opened(caller, id).await?;
        let not_uncertain = || OperationError::conflict(format!("the step `{step}` of the run is not uncertain"));
        let found = self.app.store.latest_run_step(caller.workspace, id, step, item).await?;
        let row = found.filter(|row| row.run_attempt == run.attempt).ok_or_else(not_uncertain)?;
        let attempt = open_step(&self.app.vault, &row).map_err(|error| edited(&error, id))?;
        if attempt.status != StepStatus::Uncertain || attempt.repeat {
            return Err(not_uncertain());
        }
        Ok((run, content, row, attempt))
    }

    /// Returns a run that the caller may see, with its content.
    pub(super) async fn opened(&self, caller: &Caller, id: RunId) -> Result<(RunRow, RunContent), OperationError> {
        let row = self.row(caller, id).await?;
        let content = open_run(&self.app.vault, &row).map_err(|error| edited(&error, id))?;
        Ok((row, content))
    }

    /// Fails if rows of the workspace may be forged: then nothing starts.
    pub(super) fn check_verified(&self, caller: &Caller) -> Result<(), OperationError> {
        let policy = &self.app.policy;
        if policy.is_stale() {
            return Err(OperationError::unavailable("the permissions could not be read; try again"));
        }
        match policy.load().verification.unverified_for(caller.workspace) {
            Some(found) => Err(OperationError::unverified(&found.scope.to_string())),
            None => Ok(()),
        }
    }
}

/// Returns whether the caller sees the runs of a bot.
fn sees(caller: &Caller, bot: BotId) -> bool {
    caller.kind != KeyKind::Bot || caller.bot == Some(bot)
}

/// Returns the error of a workspace that has too many runs.
pub(super) fn full() -> OperationError {
    let message = "the workspace has too many runs that wait for room or have not ended; try again later";
    OperationError::Busy(message.to_owned())
}

pub(super) fn internal(error: RecordError) -> OperationError {
    OperationError::Internal(error.into())
}

fn edited(error: &RecordError, run: RunId) -> OperationError {
    tracing::error!(error = %with_causes(error), run.id = %run, "the record of a run or of its step cannot be opened");
    OperationError::conflict("the run was edited by another program")
}

fn no_definition(error: DefinitionError) -> OperationError {
    match error {
        DefinitionError::Missing => {
            OperationError::conflict("the version of the workflow was edited by another program")
        }
        error @ DefinitionError::Faulty(_) => {
            OperationError::conflict(format!("{error}; save a new version of the workflow"))
        }
        DefinitionError::Read(error) => OperationError::internal(error),
        DefinitionError::Store(error) => error.into(),
    }
}

fn not_started(error: NotStarted) -> OperationError {
    match error {
        NotStarted::Input(errors) => OperationError::Invalid(errors).under("/input"),
        error => OperationError::internal(error),
    }
}

fn check_data(outcome: ResolvedAs, data: Option<&Value>) -> Result<(), OperationError> {
    let Some(data) = data else { return Ok(()) };
    if outcome != ResolvedAs::Succeeded {
        return Err(OperationError::invalid_at("/data", "only a step that has succeeded has data"));
    }
    let bytes = u64::try_from(data.to_string().len()).unwrap_or(u64::MAX);
    if bytes > STEP_RESULT_BYTES_MAX {
        let message = format!("must have at most {STEP_RESULT_BYTES_MAX} bytes of JSON, but has {bytes}");
        return Err(OperationError::invalid_at("/data", message));
    }
    Ok(())
}

fn word(outcome: ResolvedAs) -> &'static str {
    match outcome {
        ResolvedAs::Succeeded => "succeeded",
        ResolvedAs::Failed => "failed",
        ResolvedAs::Retry => "retry",
    }
}

/// Returns an uncertain attempt after a person has said what became of it.
fn resolved(attempt: StepContent, outcome: ResolvedAs, data: Option<Value>, now: UtcMillis) -> StepContent {
    let attempt = StepContent { ended_at: Some(now), ..attempt };
    match outcome {
        ResolvedAs::Succeeded => {
            StepContent { status: StepStatus::Succeeded, data: data.unwrap_or_default(), error: None, ..attempt }
        }
        // What did not happen can be repeated like any attempt that failed before it had an effect.
        ResolvedAs::Failed => StepContent {
            status: StepStatus::Failed,
            may_have_happened: false,
            error: Some(attempt.error.clone().unwrap_or_else(|| StepError::new("failed", "the step did not happen"))),
            ..attempt
        },
        ResolvedAs::Retry => StepContent { repeat: true, ..attempt },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_succeeded_has_data() {
        let data = json!({ "id": 1 });
        assert!(check_data(ResolvedAs::Succeeded, Some(&data)).is_ok());
        let large = Value::String("x".repeat(usize::try_from(STEP_RESULT_BYTES_MAX).unwrap()));
        for (outcome, data) in
            [(ResolvedAs::Succeeded, &large), (ResolvedAs::Failed, &data), (ResolvedAs::Retry, &Value::Null)]
        {
            assert!(matches!(check_data(outcome, Some(data)), Err(OperationError::Invalid(_))), "{outcome:?}");
            assert!(check_data(outcome, None).is_ok());
        }
    }

    #[test]
    fn a_resolution_says_what_became_of_the_call() {
        let uncertain = || StepContent {
            status: StepStatus::Uncertain,
            may_have_happened: true,
            error: Some(StepError::new("timeout", "m")),
            ended_at: Some(UtcMillis(5)),
            ..StepContent::default()
        };
        let done = resolved(uncertain(), ResolvedAs::Succeeded, Some(json!(7)), UtcMillis(9));
        assert_eq!((done.status, &done.data, &done.error), (StepStatus::Succeeded, &json!(7), &None));
        assert_eq!(done.ended_at, Some(UtcMillis(9)));
        // The attempt keeps its code, by which the workflow decides whether it is repeated.
        let failed = resolved(uncertain(), ResolvedAs::Failed, None, UtcMillis(9));
        assert_eq!((failed.status, failed.may_have_happened), (StepStatus::Failed, false));
        assert_eq!(failed.error.map(|error| error.code).as_deref(), Some("timeout"));
        let again = resolved(uncertain(), ResolvedAs::Retry, None, UtcMillis(9));
        assert_eq!((again.status, again.repeat, again.may_have_happened), (StepStatus::Uncertain, true, true));
    }
}
