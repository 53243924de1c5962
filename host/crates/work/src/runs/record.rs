//! What a run and its steps contain: sealed records, which open only in the rows for which they were sealed.

use monstrum_api::tasks::Narrow;
use monstrum_core::events::EventCause;
use monstrum_flow::{ApprovalTarget, Awaited, InstructionPart, RunEnd, StepError, StepKey, StepStatus, Work};
use monstrum_store::{RunRow, RunStepRow};
use monstrum_types::{ApprovalId, EventId, KeyId, Labels, RunId, TaskId, UtcMillis};
use monstrum_vault::{AssociatedData, Vault, VaultError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The sealed record of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunContent {
    pub input: Value,
    /// The attempt of the run. With a greater number in the row, the run would do again what it has done.
    #[serde(default = "first_attempt")]
    pub attempt: i64,
    /// The event and the rendered instruction, for expressions; absent for a run that no trigger started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Value>,
    /// The schedule that started the run, for expressions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Value>,
    /// The event that caused the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<EventCause>,
    /// The number of runs whose steps have led to this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub depth: u32,
    /// What the run may do less than its bot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrow: Option<Narrow>,
    /// The hash of the bot key that started the run or the first run above it, in hex digits: the key is the first one of
    /// `starters`. The run is cancelled when the key is deleted or rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_key_hash: Option<String>,
    /// The keys that started the run, made what started it, or let it or one of its steps begin again. They cannot approve steps that exclude the starter.
    #[serde(default)]
    pub starters: Vec<KeyId>,
    /// What a person has asked for. Undoing has effects, so the column of this name is only for lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// How the run will end or has ended, once that is decided. The column of the status is only for lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<EndingContent>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_ended: bool,
    /// The steps whose effect is unknown, and those that could not be undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncertain: Vec<StepKey>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undo_failed: Vec<StepKey>,
    /// The number of attempts in the journal. With fewer, another program has deleted some, and the run does not go on: it
    /// would do their steps again.
    #[serde(default, skip_serializing_if = "is_zero_long")]
    pub attempts: u64,
    /// The labels with which the run began, and those of what it has read until its last turn.
    #[serde(default, skip_serializing_if = "Labels::is_none")]
    pub labels: Labels,
    /// When this attempt of the run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<UtcMillis>,
}

impl RunContent {
    /// Adds a key that lets the run or one of its steps begin again.
    pub(super) fn add_starter(&mut self, key: KeyId) {
        if !self.starters.contains(&key) {
            self.starters.push(key);
        }
    }
}

fn first_attempt() -> i64 {
    1
}

/// How a run will end or has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndingContent {
    pub status: RunEnd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Whether the steps of the run are undone.
    pub undo: bool,
    /// When this was decided.
    pub since: UtcMillis,
}

/// The sealed record of an attempt of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepContent {
    /// The status of the attempt. The column of this name is only for lists: an attempt that another program has marked as
    /// succeeded has not succeeded.
    pub status: StepStatus,
    /// The time until which the attempt waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_until: Option<UtcMillis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<UtcMillis>,
    /// What the attempt does outside of the plan; `None` for a block, a wait, and a step that never began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkContent>,
    /// The questions whose approval the call needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approved_by: Vec<String>,
    /// The result of an attempt that succeeded.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
    /// What runs inside of a block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<BlockContent>,
    /// Why the attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
    /// The gravest effect of the call and of the calls below it that have started. Without a word, it is a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// Whether the call may have had its effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_have_happened: bool,
    /// Whether a rule refused the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// Whether a person was asked what became of the call, and whether a person said that it is repeated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeat: bool,
    /// Whether the attempt has the request id of the one before it, which may have had its effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeats: bool,
    /// Whether such an attempt has begun its call. The audit cannot tell, because it has rows of the attempt before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_begun: bool,
    /// Since when the call waits for an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<UtcMillis>,
    /// The labels of what the run had read when the attempt began.
    #[serde(default, skip_serializing_if = "Labels::is_none")]
    pub labels_before: Labels,
    /// The labels of what the attempt has read.
    #[serde(default, skip_serializing_if = "Labels::is_none")]
    pub labels: Labels,
    /// What the attempt waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitContent>,
    /// The task, the run, the question and the event that the attempt has made. The columns of these names are only for
    /// lists and searches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<EventId>,
}

/// What an attempt waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitContent {
    /// A time.
    Time,
    /// An event.
    Event {
        event_type: String,
        /// Fields of its data with their values.
        matches: Vec<(String, Value)>,
        /// Events since this time count.
        since: UtcMillis,
        /// The sequence of the last event that was compared.
        #[serde(default)]
        seen: i64,
    },
    /// The decision of a person.
    Approval {
        text: String,
        /// The calls that are approved.
        targets: Vec<TargetContent>,
        /// The roles that may decide.
        by: Vec<String>,
        /// Whether the person who started the run may decide.
        allow_starter: bool,
    },
}

/// A call that a person approves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetContent {
    pub step: String,
    pub tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    pub params: Value,
}

impl From<Awaited> for WaitContent {
    fn from(wait: Awaited) -> WaitContent {
        match wait {
            Awaited::Time => WaitContent::Time,
            Awaited::Event { event_type, matches, since } => {
                WaitContent::Event { event_type, matches, since: UtcMillis(since), seen: 0 }
            }
            Awaited::Approval { text, targets, by, allow_starter } => {
                let targets = targets.into_iter().map(TargetContent::from).collect();
                WaitContent::Approval { text, targets, by, allow_starter }
            }
        }
    }
}

impl From<ApprovalTarget> for TargetContent {
    fn from(target: ApprovalTarget) -> TargetContent {
        let ApprovalTarget { step, tool, resource, params } = target;
        TargetContent { step, tool, resource, params }
    }
}

// serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde needs")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde needs")]
fn is_zero_long(number: &u64) -> bool {
    *number == 0
}

/// What an attempt does outside of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkContent {
    /// A call of a tool.
    Tool {
        tool: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resource: Option<String>,
        params: Value,
    },
    /// A task of the bot.
    Agent {
        instruction: Vec<InstructionContent>,
        params: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_schema: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limits: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        narrow: Option<Value>,
    },
    /// A run of another workflow.
    Workflow { workflow: String, input: Value },
    /// An event.
    Emit { name: String, data: Value },
}

/// A part of the instruction of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstructionContent {
    /// A text of the author of the definition.
    Text(String),
    /// A value, which is data for the model and may be hostile.
    Value(String),
}

impl From<Work> for WorkContent {
    fn from(work: Work) -> WorkContent {
        match work {
            Work::Tool { tool, resource, params } => WorkContent::Tool { tool, resource, params },
            Work::Agent { instruction, params, output_schema, limits, narrow } => {
                let instruction = instruction.into_iter().map(InstructionContent::from).collect();
                WorkContent::Agent { instruction, params, output_schema, limits, narrow }
            }
            Work::Workflow { workflow, input } => WorkContent::Workflow { workflow, input },
            Work::Emit { name, data } => WorkContent::Emit { name, data },
        }
    }
}

impl From<InstructionPart> for InstructionContent {
    fn from(part: InstructionPart) -> InstructionContent {
        match part {
            InstructionPart::Text(text) => InstructionContent::Text(text),
            InstructionPart::Value(value) => InstructionContent::Value(value),
        }
    }
}

/// What runs inside of a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockContent {
    /// The branch of `choose`.
    Choose(usize),
    /// All branches of `parallel`.
    Parallel,
    /// The items of `each`.
    Each(Vec<Value>),
}

/// An error while a record is sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("the record of the run cannot be sealed or opened")]
    Vault(#[from] VaultError),
    #[error("the record of the run is not in the expected form")]
    Form(#[from] serde_json::Error),
    #[error("the run has another attempt than its record")]
    Attempt,
}

/// Seals the content of a run for its row.
///
/// # Errors
///
/// The content cannot be sealed.
pub fn seal_run(vault: &Vault, row: &RunRow, content: &RunContent) -> Result<String, RecordError> {
    Ok(vault.seal(&serde_json::to_vec(content)?, of_run(row))?.to_string())
}

/// Opens the content of a run.
///
/// # Errors
///
/// Another program has edited the row.
pub fn open_run(vault: &Vault, row: &RunRow) -> Result<RunContent, RecordError> {
    let content: RunContent = serde_json::from_slice(&vault.unseal(&row.sealed.parse()?, of_run(row))?)?;
    if content.attempt == row.attempt { Ok(content) } else { Err(RecordError::Attempt) }
}

/// Seals the content of an attempt for its row.
///
/// # Errors
///
/// The content cannot be sealed.
pub fn seal_step(vault: &Vault, row: &RunStepRow, content: &StepContent) -> Result<String, RecordError> {
    Ok(vault.seal(&serde_json::to_vec(content)?, of_step(row))?.to_string())
}

/// Opens the content of an attempt.
///
/// # Errors
///
/// Another program has edited the row.
pub fn open_step(vault: &Vault, row: &RunStepRow) -> Result<StepContent, RecordError> {
    Ok(serde_json::from_slice(&vault.unseal(&row.sealed.parse()?, of_step(row))?)?)
}

fn of_run(row: &RunRow) -> AssociatedData {
    let (id, workspace, bot) = (row.id.to_string(), row.workspace_id.to_string(), row.bot_id.to_string());
    let (workflow, version) = (row.workflow_id.to_string(), row.version.to_string());
    let [event, parent] = [row.event_id.map(|id| id.to_string()), row.parent_run_id.map(|id| id.to_string())];
    let delivery = row.delivery_id.as_deref().unwrap_or_default();
    place_of_run(
        [&id, &workspace, &bot],
        [&workflow, &version],
        [row.started_by_kind.as_str(), &row.started_by_id],
        [event.as_deref().unwrap_or_default(), delivery, parent.as_deref().unwrap_or_default()],
    )
}

fn of_step(row: &RunStepRow) -> AssociatedData {
    let (run, workspace) = (row.run_id.to_string(), row.workspace_id.to_string());
    let (run_attempt, attempt) = (row.run_attempt.to_string(), row.attempt.to_string());
    let request = row.request_id.map(|id| id.to_string()).unwrap_or_default();
    let effect = row.effect.as_deref().unwrap_or_default();
    place_of_step(
        [&run, &workspace],
        [row.phase.as_str(), &row.step, &row.item, &run_attempt, &attempt],
        [&row.kind, &request, effect],
    )
}

/// Returns the associated data of the sealed record of a run. An absent event, delivery or parent is an empty text.
#[must_use]
pub fn place_of_run(
    [run, workspace, bot]: [&str; 3],
    [workflow, version]: [&str; 2],
    [starter_kind, starter]: [&str; 2],
    [event, delivery, parent]: [&str; 3],
) -> AssociatedData {
    AssociatedData::new("run")
        .with("workspace", workspace)
        .with("run", run)
        .with("bot", bot)
        .with("workflow", workflow)
        .with("version", version)
        .with("starter kind", starter_kind)
        .with("starter", starter)
        .with("event", event)
        .with("delivery", delivery)
        .with("parent", parent)
}

/// Returns the associated data of the sealed record of an attempt. An absent request or effect is an empty text.
#[must_use]
pub fn place_of_step(
    [run, workspace]: [&str; 2],
    [phase, step, item, run_attempt, attempt]: [&str; 5],
    [kind, request, effect]: [&str; 3],
) -> AssociatedData {
    AssociatedData::new("run step")
        .with("workspace", workspace)
        .with("run", run)
        .with("phase", phase)
        .with("step", step)
        .with("item", item)
        .with("run attempt", run_attempt)
        .with("attempt", attempt)
        .with("kind", kind)
        .with("request", request)
        .with("effect", effect)
}

#[cfg(test)]
pub(super) mod tests {
    use monstrum_store::{RunStarter, RunStatus, RunStepPhase, RunStepStatus};
    use monstrum_types::{BotId, EventId, RequestId, RunId, WorkflowId, WorkspaceId};
    use monstrum_vault::MasterKeys;
    use serde_json::json;

    use super::*;

    pub(crate) fn run() -> RunRow {
        RunRow {
            id: RunId::new(),
            workspace_id: WorkspaceId::new(),
            workflow_id: WorkflowId::new(),
            workflow: "release".to_owned(),
            version: 1,
            bot_id: BotId::new(),
            status: RunStatus::Running,
            attempt: 1,
            started_by_kind: RunStarter::Key,
            started_by_id: "k".to_owned(),
            event_id: None,
            delivery_id: None,
            parent_run_id: None,
            concurrency_key: None,
            asked: None,
            code: None,
            labels: Labels::none(),
            created_at: UtcMillis(1),
            started_at: Some(UtcMillis(1)),
            deadline_at: None,
            ended_at: None,
            sealed: String::new(),
        }
    }

    pub(crate) fn step(run: &RunRow) -> RunStepRow {
        RunStepRow {
            run_id: run.id,
            phase: RunStepPhase::Do,
            step: "announce".to_owned(),
            item: "3".to_owned(),
            run_attempt: 1,
            attempt: 2,
            workspace_id: run.workspace_id,
            kind: "tool".to_owned(),
            status: RunStepStatus::Running,
            effect: Some("write".to_owned()),
            code: None,
            request_id: Some(RequestId::new()),
            task_id: None,
            child_run_id: None,
            approval_id: None,
            stopping: None,
            wait_until: None,
            wait_event: None,
            started_at: UtcMillis(1),
            ended_at: None,
            sealed: String::new(),
        }
    }

    #[test]
    fn a_record_opens_only_in_its_row() {
        let vault = Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap());
        let content: RunContent = serde_json::from_value(json!({ "input": { "repo": "acme/web" } })).unwrap();
        let mut row = run();
        row.sealed = seal_run(&vault, &row, &content).unwrap();
        // What the turns write beside the record is not what the run is.
        let turned = RunRow { status: RunStatus::Waiting, code: Some("x".to_owned()), ..row.clone() };
        assert_eq!(open_run(&vault, &turned).unwrap(), content);
        let retried = RunRow { attempt: 2, ..row.clone() };
        assert!(matches!(open_run(&vault, &retried), Err(RecordError::Attempt)));
        let edits: [fn(&mut RunRow); 9] = [
            |row| row.id = RunId::new(),
            |row| row.workspace_id = WorkspaceId::new(),
            |row| row.bot_id = BotId::new(),
            |row| row.workflow_id = WorkflowId::new(),
            |row| row.version = 2,
            |row| row.started_by_id = "other".to_owned(),
            |row| row.event_id = Some(EventId::new()),
            |row| row.delivery_id = Some("d".to_owned()),
            |row| row.parent_run_id = Some(RunId::new()),
        ];
        for edit in edits {
            let mut edited = row.clone();
            edit(&mut edited);
            assert!(matches!(open_run(&vault, &edited), Err(RecordError::Vault(_))), "{edited:?}");
        }

        let (mut row, content) = (step(&row), StepContent { data: json!({ "a": 1 }), ..StepContent::default() });
        row.sealed = seal_step(&vault, &row, &content).unwrap();
        assert_eq!(open_step(&vault, &row).unwrap(), content);
        let edits: [fn(&mut RunStepRow); 9] = [
            |row| row.run_id = RunId::new(),
            |row| row.phase = RunStepPhase::Undo,
            |row| row.step = "other".to_owned(),
            |row| row.item = String::new(),
            |row| row.run_attempt = 2,
            |row| row.attempt = 1,
            |row| row.kind = "approve".to_owned(),
            |row| row.request_id = Some(RequestId::new()),
            |row| row.effect = Some("read".to_owned()),
        ];
        for edit in edits {
            let mut edited = row.clone();
            edit(&mut edited);
            assert!(matches!(open_step(&vault, &edited), Err(RecordError::Vault(_))), "{edited:?}");
        }
    }
}
