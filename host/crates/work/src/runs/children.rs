//! What steps start beside calls: tasks of the bot, and runs of its other workflows.
//!
//! Both act as the bot of the run, with what the run narrows, and begin with the labels of what the run has read. The rows of
//! attempts name their tasks and runs for lists; only the sealed records say to which task or run an attempt belongs, and only
//! the sealed records of these say how they ended.

use std::sync::Arc;

use monstrum_agent::Tasks;
use monstrum_agent::stepped::{self, NotPrepared, StartingStep, StepTaskEnd, TaskOfStep};
use monstrum_api::bots::TaskLimits;
use monstrum_api::tasks::Narrow;
use monstrum_core::app::App;
use monstrum_core::events::{Nonce, framed_value};
use monstrum_core::operations::OperationError;
use monstrum_engine::{Engine, TurnError};
use monstrum_flow::{InstructionPart, RunEnd, STEP_RESULT_BYTES_MAX, StepError, StepStatus, Work};
use monstrum_store::{NewChild, RunRequest, RunRow, RunStarter, RunStepKey, RunStepRow, RunStepStop, WorkflowRow};
use monstrum_types::{InputError, Labels, RunId, TaskId, UtcMillis, with_causes};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::definitions::{DefinitionError, Definitions};
use super::keys;
use super::record::{EndingContent, RunContent, StepContent, open_run, seal_run};
use super::start::{NewRun, NotStarted, RUN_DEPTH_MAX, StartOf, prepare};

/// The maximum number of errors of an input in the message of a step.
const ERRORS_SHOWN_MAX: usize = 5;
/// The maximum number of times that a run is read anew to be cancelled, because it has changed in the meantime.
const CANCEL_ATTEMPTS_MAX: u32 = 8;

/// The codes of attempts that could not start their task or run.
const INVALID: &str = "invalid_params";
const NOT_FOUND: &str = "not_found";
const DISABLED: &str = "disabled";
const LIMIT: &str = "limit";
const MODEL: &str = "model";
const BUSY: &str = "busy";
const CANCELLED: &str = "cancelled";
const TIMEOUT: &str = "timeout";
const INTERNAL: &str = "internal";

/// The tasks and runs that steps of runs start.
pub struct Children {
    app: Arc<App>,
    engine: Arc<dyn Engine>,
    tasks: Arc<Tasks>,
    definitions: Arc<Definitions>,
}

/// How the task or the run of an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildEnd {
    pub status: StepStatus,
    pub data: Value,
    pub error: Option<StepError>,
    /// The labels of what the task or the run has read.
    pub labels: Labels,
}

impl Children {
    /// Creates what starts tasks and runs for the runs of a host.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>, tasks: Arc<Tasks>, definitions: Arc<Definitions>) -> Children {
        Children { app, engine, tasks, definitions }
    }

    /// Prepares the task or the run of a new attempt. The labels of `content` are those of what the run has read until now. The
    /// inner error ends the attempt.
    ///
    /// # Errors
    ///
    /// The database failed, or something cannot be sealed.
    pub async fn prepare(
        &self,
        run: &RunRow,
        content: &RunContent,
        step: &RunStepKey,
        work: &Work,
        now: UtcMillis,
    ) -> Result<Result<NewChild, StepError>, TurnError> {
        match work {
            Work::Agent { instruction, params, output_schema, limits, narrow } => {
                let given = (params, output_schema.as_ref(), limits.as_ref(), narrow.as_ref());
                self.task((run, content), step, (instruction.as_slice(), given), now).await
            }
            Work::Workflow { workflow, input } => self.run((run, content), (workflow.as_str(), input), now).await,
            Work::Tool { .. } | Work::Emit { .. } => {
                Err(TurnError::Failed("the step starts no task and no run".into()))
            }
        }
    }

    async fn task(
        &self,
        of: (&RunRow, &RunContent),
        key: &RunStepKey,
        (instruction, given): (&[InstructionPart], GivenToAgent<'_>),
        now: UtcMillis,
    ) -> Result<Result<NewChild, StepError>, TurnError> {
        let task = match task_of(of, key, instruction, given) {
            Ok(task) => task,
            Err(error) => return Ok(Err(error)),
        };
        match task.prepare(&self.app, now).await {
            Ok(task) => Ok(Ok(NewChild::Task(Box::new(task), stepped::TASKS_MAX))),
            Err(NotPrepared::NoModel) => Ok(Err(StepError::new(MODEL, "the bot has no model"))),
            Err(NotPrepared::Refused(OperationError::Invalid(errors))) => Ok(Err(invalid(&errors))),
            Err(NotPrepared::Refused(OperationError::Busy(message))) => Ok(Err(StepError::new(BUSY, message))),
            Err(NotPrepared::Refused(error)) => Err(failed(&error)),
        }
    }

    async fn run(
        &self,
        (run, content): (&RunRow, &RunContent),
        (name, input): (&str, &Value),
        now: UtcMillis,
    ) -> Result<Result<NewChild, StepError>, TurnError> {
        let snapshot = self.app.policy.load();
        let found = snapshot.workflow_called(run.workspace_id, name).map(|found| &**found);
        let workflow = match workflow_of(run, found, name) {
            Ok(workflow) => workflow,
            Err(error) => return Ok(Err(error)),
        };
        if content.depth.saturating_add(1) >= RUN_DEPTH_MAX {
            let message = format!("at most {RUN_DEPTH_MAX} runs can start each other in a chain");
            return Ok(Err(StepError::new(LIMIT, message)));
        }
        if let Some(error) = self.circle(run, workflow).await? {
            return Ok(Err(error));
        }
        let definition = match self.definitions.of(run.workspace_id, workflow.id, workflow.version).await {
            Ok(definition) => definition,
            Err(error @ DefinitionError::Faulty(_)) => {
                return Ok(Err(StepError::new(DISABLED, format!("the workflow `{name}` cannot run: {error}"))));
            }
            Err(error) => return Err(failed(&error)),
        };
        let start = StartOf {
            starters: content.starters.clone(),
            bot_key_hash: content.bot_key_hash.clone(),
            narrow: content.narrow.clone(),
            labels: content.labels.clone(),
            cause: content.cause,
            parent: Some(run.id),
            depth: content.depth + 1,
            ..StartOf::new(workflow, input.clone(), (RunStarter::Run, run.id.to_string()), now)
        };
        match prepare(&self.app, &definition, start) {
            Ok(NewRun { row, wake, max }) => Ok(Ok(NewChild::Run(Box::new(row), wake, max))),
            Err(NotStarted::Input(errors)) => Ok(Err(invalid(&errors))),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Returns the error of a step that would start a workflow whose run has led to this one. A definition that runs itself
    /// is refused when it is saved, but the other one may have been saved later.
    async fn circle(&self, run: &RunRow, workflow: &WorkflowRow) -> Result<Option<StepError>, TurnError> {
        let message = format!("the workflow `{}` would run itself, directly or through other workflows", workflow.name);
        if run.workflow_id == workflow.id {
            return Ok(Some(StepError::new(LIMIT, message)));
        }
        let mut above = run.parent_run_id;
        // The record of a run is bound to the run above it, so the chain is as deep as the records say.
        for _ in 0..RUN_DEPTH_MAX {
            let Some(id) = above else { return Ok(None) };
            let Some(row) = self.app.store.run(run.workspace_id, id).await? else {
                return Ok(Some(StepError::new(NOT_FOUND, "a run that has led to this one was deleted")));
            };
            if let Err(error) = open_run(&self.app.vault, &row) {
                tracing::error!(error = %with_causes(&error), run.id = %id, "a run that has started others cannot be opened");
                return Ok(Some(StepError::new(INTERNAL, "a run that has led to this one cannot be opened")));
            }
            if row.workflow_id == workflow.id {
                return Ok(Some(StepError::new(LIMIT, message)));
            }
            above = row.parent_run_id;
        }
        Ok(Some(StepError::new(LIMIT, message)))
    }

    /// Returns how the task or the run of an attempt ended; `None` while it goes on, and for an attempt that has none.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn ended(&self, step: &RunStepRow, content: &StepContent) -> Result<Option<ChildEnd>, TurnError> {
        let end = match (content.task_id, content.child_run_id) {
            (Some(task), _) => self.task_ended(step, task).await?,
            (None, Some(run)) => self.run_ended(step, run).await?,
            (None, None) => None,
        };
        Ok(end.map(|end| bounded(end, step.stopping)))
    }

    async fn task_ended(&self, step: &RunStepRow, task: TaskId) -> Result<Option<ChildEnd>, TurnError> {
        let starting = StartingStep { run: step.run_id, step: step.step.clone(), item: step.item.clone() };
        let ended = stepped::end_of(&self.app, step.workspace_id, task, &starting).await?;
        Ok(ended.map(|(end, labels)| of_task(end, labels)))
    }

    async fn run_ended(&self, step: &RunStepRow, id: RunId) -> Result<Option<ChildEnd>, TurnError> {
        let Some(row) = self.app.store.run(step.workspace_id, id).await? else {
            return Ok(Some(unknown("the run of the step was deleted")));
        };
        if row.parent_run_id != Some(step.run_id) {
            return Ok(Some(unknown("the run belongs to another step")));
        }
        match open_run(&self.app.vault, &row) {
            Ok(content) => Ok(of_run(&row, content)),
            Err(error) => {
                tracing::error!(error = %with_causes(&error), run.id = %id, "the run of a step cannot be opened");
                Ok(row.ended_at.map(|_| unknown("the record of the run cannot be opened")))
            }
        }
    }

    /// Cancels the task or the run of an attempt that is to stop. The end of the task or the run requests a turn of the run
    /// above. To call this again changes nothing, so that a turn can do it before or after it writes that the attempt stops.
    ///
    /// # Errors
    ///
    /// The database failed, or the run changes too often.
    pub async fn cancel(&self, step: &RunStepRow, content: &StepContent) -> Result<(), TurnError> {
        if let Some(task) = content.task_id {
            let starting = StartingStep { run: step.run_id, step: step.step.clone(), item: step.item.clone() };
            if stepped::end_of(&self.app, step.workspace_id, task, &starting).await?.is_none() {
                self.tasks.cancel_of_step(step.workspace_id, task).await.map_err(|error| failed(&error))?;
            }
        }
        match content.child_run_id {
            Some(run) => self.cancel_run(step, run).await,
            None => Ok(()),
        }
    }

    async fn cancel_run(&self, step: &RunStepRow, id: RunId) -> Result<(), TurnError> {
        let app = &self.app;
        for _ in 0..CANCEL_ATTEMPTS_MAX {
            let Some(row) = app.store.run(step.workspace_id, id).await? else { return Ok(()) };
            if row.parent_run_id != Some(step.run_id) || row.ended_at.is_some() {
                return Ok(());
            }
            let content = match open_run(&app.vault, &row) {
                Ok(content) => content,
                // Such a run does not go on by itself, and must not keep its parent from its end.
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::error!(%error, run.id = %row.id, "the run of a step cannot be opened, so it cannot be cancelled");
                    return Ok(());
                }
            };
            let asked = RunRequest::Cancel.as_str();
            if content.has_ended || content.asked.as_deref().is_some_and(|before| before.starts_with(asked)) {
                return Ok(());
            }
            let content = RunContent { asked: Some(asked.to_owned()), ..content };
            let sealed = seal_run(&app.vault, &row, &content).map_err(|error| failed(&error))?;
            let wake = keys::wake(keys::run_key(id), step.workspace_id, app.clock.now());
            if app.store.ask_run(&row, RunRequest::Cancel, &sealed, &wake).await? {
                self.engine.signal(&[wake]);
                return Ok(());
            }
        }
        Err(TurnError::Failed("the run of a step changes too often to be cancelled".to_owned()))
    }
}

/// The parameters, the schema, the limits and the restrictions of an agent step.
type GivenToAgent<'a> = (&'a Value, Option<&'a Value>, Option<&'a Value>, Option<&'a Value>);

/// Returns the task of an agent step.
fn task_of(
    (run, content): (&RunRow, &RunContent),
    key: &RunStepKey,
    instruction: &[InstructionPart],
    (params, output_schema, limits, narrow): GivenToAgent<'_>,
) -> Result<TaskOfStep, StepError> {
    let nonce = Nonce::random();
    let limits = read::<TaskLimits>("/limits", limits)?.unwrap_or_default();
    let own = read::<Narrow>("/narrow", narrow)?;
    let is_empty = params.is_null() || params.as_object().is_some_and(serde_json::Map::is_empty);
    Ok(TaskOfStep {
        workspace: run.workspace_id,
        bot: run.bot_id,
        step: StartingStep { run: run.id, step: key.step.clone(), item: key.item.clone() },
        instruction: rendered(instruction, &nonce),
        nonce: nonce.as_str().to_owned(),
        params: (!is_empty).then(|| params.clone()),
        output_schema: output_schema.cloned(),
        limits,
        narrow: content.narrow.iter().cloned().chain(own).collect(),
        starters: content.starters.clone(),
        labels: content.labels.clone(),
        cause: content.cause,
    })
}

/// Returns an instruction whose values stand in frames.
fn rendered(instruction: &[InstructionPart], nonce: &Nonce) -> String {
    let parts = instruction.iter().map(|part| match part {
        InstructionPart::Text(text) => text.clone(),
        InstructionPart::Value(value) => framed_value(value, nonce),
    });
    parts.collect()
}

fn read<T: DeserializeOwned>(path: &str, value: Option<&Value>) -> Result<Option<T>, StepError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    T::deserialize(value).map(Some).map_err(|error| StepError::new(INVALID, format!("{path}: {error}")))
}

/// Returns the workflow that a step runs: an enabled one of the same bot.
fn workflow_of<'a>(run: &RunRow, found: Option<&'a WorkflowRow>, name: &str) -> Result<&'a WorkflowRow, StepError> {
    match found.filter(|workflow| workflow.bot_id == run.bot_id) {
        Some(workflow) if workflow.enabled => Ok(workflow),
        Some(_) => Err(StepError::new(DISABLED, format!("the workflow `{name}` is disabled"))),
        None => Err(StepError::new(NOT_FOUND, format!("the bot has no workflow `{name}`"))),
    }
}

fn of_task(end: StepTaskEnd, labels: Labels) -> ChildEnd {
    match end {
        StepTaskEnd::Completed { answer, is_json: false } => succeeded(Value::String(answer), labels),
        StepTaskEnd::Completed { answer, is_json: true } => match serde_json::from_str(&answer) {
            Ok(data) => succeeded(data, labels),
            Err(_) => of_error(StepError::new(INTERNAL, "the answer of the task is not JSON"), labels),
        },
        StepTaskEnd::Failed(code, message) => of_error(StepError::new(&code, message), labels),
        StepTaskEnd::Cancelled => of_error(StepError::new(CANCELLED, "the task was cancelled"), labels),
    }
}

/// Returns the end of a run that a step has started; `None` while it goes on.
fn of_run(row: &RunRow, content: RunContent) -> Option<ChildEnd> {
    if !content.has_ended {
        // The record of the running run was put back.
        return row.ended_at.map(|_| unknown("the record of the run has no end"));
    }
    let Some(EndingContent { status, error, output, .. }) = content.ending else {
        return Some(unknown("the record of the run has no end"));
    };
    let labels = content.labels.with(&row.labels);
    Some(match status {
        RunEnd::Completed => succeeded(output.unwrap_or(Value::Null), labels),
        RunEnd::Failed => {
            let error = error.unwrap_or_else(|| StepError::new(INTERNAL, "the run failed"));
            // The step that failed is one of the other run.
            of_error(StepError { at: None, ..error }, labels)
        }
        RunEnd::Cancelled => of_error(StepError::new(CANCELLED, "the run was cancelled"), labels),
    })
}

fn succeeded(data: Value, labels: Labels) -> ChildEnd {
    ChildEnd { status: StepStatus::Succeeded, data, error: None, labels }
}

fn of_error(error: StepError, labels: Labels) -> ChildEnd {
    ChildEnd { status: StepStatus::Failed, data: Value::Null, error: Some(error), labels }
}

/// Returns the end of a task or a run about which nothing is known: it counts as one that has read everything.
fn unknown(message: &str) -> ChildEnd {
    of_error(StepError::new(INTERNAL, message), Labels::ALL)
}

/// Returns the end of an attempt within the limits, and by the reason for which it was stopped.
fn bounded(end: ChildEnd, stopping: Option<RunStepStop>) -> ChildEnd {
    let size = u64::try_from(end.data.to_string().len()).unwrap_or(u64::MAX);
    if size > STEP_RESULT_BYTES_MAX {
        let message = format!("the result has more than {STEP_RESULT_BYTES_MAX} bytes of JSON");
        return of_error(StepError::new(LIMIT, message), end.labels);
    }
    let was_cancelled = end.error.as_ref().is_some_and(|error| error.code == CANCELLED);
    match stopping.filter(|_| was_cancelled) {
        Some(RunStepStop::Cancel) => ChildEnd { status: StepStatus::Cancelled, error: None, ..end },
        Some(RunStepStop::Timeout) => {
            of_error(StepError::new(TIMEOUT, "the step has taken longer than its time-out"), end.labels)
        }
        None => end,
    }
}

fn invalid(errors: &[InputError]) -> StepError {
    let shown = errors.iter().take(ERRORS_SHOWN_MAX).map(|InputError { path, message }| match path.as_str() {
        "" => message.clone(),
        path => format!("{path}: {message}"),
    });
    StepError::new(INVALID, shown.collect::<Vec<_>>().join("; "))
}

fn failed(error: &dyn std::error::Error) -> TurnError {
    TurnError::Failed(with_causes(error))
}

#[cfg(test)]
mod tests;
