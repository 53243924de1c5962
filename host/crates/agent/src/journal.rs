//! The contents of tasks and steps, which are sealed records. A record opens only in the row for which it was sealed.
//!
//! The journal is the whole memory of a task: what comes next is a function of its rows.

use monstrum_api::tasks::{Narrow, TokenUsage};
use monstrum_api::tools::Chat;
use monstrum_core::call_types::incoming::CallerKey;
use monstrum_core::events::{self, EventCause, EventLinks};
use monstrum_llm::AssistantMessage;
use monstrum_store::{TaskRow, TaskStepKind, TaskStepRow};
use monstrum_types::{
    AppUser, BotId, CallOutcome, Code, DeliveryId, KeyId, Labels, RequestId, RunId, ScheduleId, SessionId, Status,
    SubscriptionId, TaskId, WorkspaceId,
};
use monstrum_vault::{AssociatedData, Vault, VaultError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::links::TaskLink;
use crate::present::UNCERTAIN;
use crate::requests::RequestContent;

/// An error while a record is sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("a record of a task cannot be sealed or opened")]
    Vault(#[from] VaultError),
    #[error("a record of a task is not in the expected form")]
    Form(#[from] serde_json::Error),
}

/// The limits of a task, with their defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub steps: u32,
    pub tokens: Option<u64>,
    pub credits: Option<f64>,
    pub wall_s: u32,
}

/// The content of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskContent {
    pub instruction: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
    pub limits: Limits,
    /// The conversation; `None` for a task whose caller keeps the conversation and names no user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<Chat>,
    pub source: Source,
    /// The links under which the bot acts, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<TaskLink>,
    /// The place in the tree of a task that another task has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<InTree>,
    /// The request of a client that keeps the conversation; `None` for a task of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<RequestContent>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What happened, if the task failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the task has ended because a caller cancelled it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cancelled: bool,
    /// The labels of what the task has read: those with which it began and, once it has ended, those of its steps.
    #[serde(default, skip_serializing_if = "Labels::is_none")]
    pub labels: Labels,
    /// The JSON Schema of the answer, if it has to be JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Map<String, Value>>,
    /// The event that has started the task, or the task above it. It is the cause of the events of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<EventCause>,
    /// The run of a workflow whose call has started the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

/// The place of a task in the tree of tasks that start each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InTree {
    /// The first task of the tree.
    pub root: TaskId,
    /// The number of tasks from the first one to this one.
    pub depth: u32,
}

/// What started a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// A caller with an API key. The task ends when the key is deleted or rotated.
    Key {
        /// The SHA-256 of the key, in hex digits.
        hash: String,
    },
    /// A call, for another bot or with a root key.
    Call {
        request: RequestId,
        /// The SHA-256 of the key with which the call was made, in hex digits. The task ends when the key is deleted or
        /// rotated.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hash: Option<String>,
        /// Whether the call waits for the answer. The task then ends with the call.
        waits: bool,
    },
    /// A schedule. The task has no key.
    Schedule {
        id: ScheduleId,
        /// The keys that made, changed or fired the schedule.
        #[serde(default)]
        starters: Vec<KeyId>,
    },
    /// The delivery of an event to a subscription. The task has no key.
    Event {
        delivery: DeliveryId,
        subscription: SubscriptionId,
        /// The random part of the names of the frames in the instruction.
        nonce: String,
        /// The keys that made or changed the subscription.
        starters: Vec<KeyId>,
    },
    /// A step of a run. The task has no key.
    Run {
        run: RunId,
        step: String,
        /// The items of the blocks around the step; empty outside of `each`.
        item: String,
        /// The random part of the names of the frames in the instruction.
        nonce: String,
        /// The keys that started the run, or made what started it.
        starters: Vec<KeyId>,
    },
}

impl Source {
    /// Returns the source of a task that a key starts.
    #[must_use]
    pub fn of_key(key: CallerKey) -> Source {
        Source::Key { hash: hex::encode(key.hash) }
    }

    /// Returns the key that started the task; `id` is the one in its row. Fails if the row and the source do not fit.
    ///
    /// # Errors
    ///
    /// The source is a key and the row names none, or the other way round.
    pub fn key(&self, id: Option<KeyId>) -> Result<Option<CallerKey>, KeyError> {
        let hash_text = match self {
            Source::Key { hash } => Some(hash),
            Source::Call { hash, .. } => hash.as_ref(),
            Source::Schedule { .. } | Source::Event { .. } | Source::Run { .. } => None,
        };
        match (hash_text, id) {
            (Some(text), Some(id)) => {
                let mut hash = [0; 32];
                hex::decode_to_slice(text, &mut hash).map_err(|_| KeyError)?;
                Ok(Some(CallerKey { id, hash }))
            }
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => Err(KeyError),
        }
    }

    /// Returns the paragraph of the system prompt about the frames of the instruction, if the task has them.
    pub(crate) fn rule(&self) -> Option<String> {
        match self {
            Source::Event { nonce, .. } => Some(events::rule(nonce)),
            Source::Run { nonce, .. } => Some(events::rule_of_values(nonce)),
            Source::Key { .. } | Source::Call { .. } | Source::Schedule { .. } => None,
        }
    }

    /// Returns the call that waits for the answer of the task, if there is one.
    #[must_use]
    pub fn waiting_call(&self) -> Option<RequestId> {
        match self {
            Source::Call { request, waits: true, .. } => Some(*request),
            Source::Call { .. }
            | Source::Key { .. }
            | Source::Schedule { .. }
            | Source::Event { .. }
            | Source::Run { .. } => None,
        }
    }
}

/// The record of a task and its row name different sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task does not say what started it")]
pub struct KeyError;

/// The content of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundContent {
    pub message: AssistantMessage,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    pub model: String,
    pub usage: TokenUsage,
    /// Whether calls of the round could not run because of how the model wrote them.
    pub is_malformed: bool,
    /// Whether the text was cut at the limit of output tokens that the client of the task has set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// What the model reads after the results of the round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The labels of what the model had read.
    #[serde(default, skip_serializing_if = "Labels::is_none")]
    pub labels: Labels,
    /// Whether the round has an answer that does not fit the schema of the task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_misfit: bool,
    /// The positions of the calls that the client of the task is to run. The task ends with such a round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_calls: Vec<usize>,
    /// The last round that the text summarises, if the round was asked for a summary; 0 for the earlier tasks alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_through: Option<i64>,
}

/// What kind a step with a round is for callers: a summary is a round of its own kind.
pub const SUMMARY_KIND: &str = "summary";

/// The content of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallContent {
    /// The id by which the model knows the call.
    pub call_id: String,
    pub params: Map<String, Value>,
    /// Whether the plugin of the tool makes calls of its own.
    pub makes_calls: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<StepOutcome>,
}

/// The outcome of a call, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepOutcome {
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The data as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The labels of the resources of the call and of the calls below it.
    #[serde(default, skip_serializing_if = "Labels::is_none")]
    pub labels: Labels,
}

/// The content of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepContent {
    Round(Box<RoundContent>),
    /// A round that asked for a summary. Its text does not belong to the answer of the task.
    Summary(Box<RoundContent>),
    Call(Box<CallContent>),
}

impl TaskContent {
    /// Creates the content of a new task.
    #[must_use]
    pub fn new(instruction: String, limits: Limits, source: Source) -> TaskContent {
        let (params, chat, request, result, message, is_cancelled) = (None, None, None, None, None, false);
        let (links, tree, labels, output_schema) = (Vec::new(), None, Labels::none(), None);
        TaskContent {
            instruction,
            params,
            limits,
            chat,
            source,
            links,
            tree,
            request,
            result,
            message,
            is_cancelled,
            labels,
            output_schema,
            cause: None,
            run: None,
        }
    }
}

impl TaskContent {
    /// Returns what the starter of the task has narrowed. A task of another bot has the links of the call that started it.
    #[must_use]
    pub fn narrow(&self) -> Option<&Narrow> {
        match self.links.last() {
            Some(TaskLink::Narrow(narrow)) => Some(narrow),
            Some(TaskLink::Delegation { .. }) | None => None,
        }
    }

    /// Returns the links of the events of this task.
    pub(crate) fn event_links(&self, id: TaskId) -> EventLinks {
        let (delivery_id, run_id) = match &self.source {
            Source::Event { delivery, .. } => (Some(*delivery), None),
            Source::Run { run, .. } => (None, Some(*run)),
            Source::Key { .. } | Source::Call { .. } | Source::Schedule { .. } => (None, None),
        };
        EventLinks { task_id: Some(id.to_string()), delivery_id, run_id, ..EventLinks::default() }
    }

    /// Returns the user for whom the bot works.
    #[must_use]
    pub fn user(&self) -> Option<AppUser> {
        let chat = self.chat.as_ref()?;
        Some(AppUser { app_id: chat.app_id.clone(), user_id: chat.user_id.clone() })
    }
}

impl From<&CallOutcome> for StepOutcome {
    fn from(outcome: &CallOutcome) -> Self {
        StepOutcome {
            status: outcome.status,
            code: outcome.code,
            message: outcome.message.clone(),
            data: outcome.data.as_ref().map(|data| data.as_str().to_owned()),
            labels: Labels::none(),
        }
    }
}

impl StepOutcome {
    /// Creates the outcome of a call that may or may not have taken effect. What it has read and left somewhere is not
    /// known, so it has every label.
    #[must_use]
    pub fn uncertain() -> StepOutcome {
        StepOutcome { labels: Labels::ALL, ..StepOutcome::failed(Code::Uncertain, UNCERTAIN) }
    }

    /// Creates the outcome of a call whose approval has expired while its task waited for it.
    #[must_use]
    pub fn not_approved() -> StepOutcome {
        let message = "the call needs an approval, and no person has decided before the approval expired";
        StepOutcome { status: Status::ApprovalRequired, ..StepOutcome::failed(Code::Approval, message) }
    }

    /// Creates the outcome of a call that failed, or that did not run.
    #[must_use]
    pub fn failed(code: Code, message: impl Into<String>) -> StepOutcome {
        let (data, labels) = (None, Labels::none());
        StepOutcome { status: Status::Error, code: Some(code), message: Some(message.into()), data, labels }
    }
}

/// Seals the content of a task for its row.
///
/// # Errors
///
/// The content is too large to be sealed.
pub fn seal_task(vault: &Vault, row: &TaskRow, content: &TaskContent) -> Result<String, JournalError> {
    let place = place_of_task_row(row);
    Ok(vault.seal(&serde_json::to_vec(content)?, place)?.to_string())
}

/// Opens the content of a task.
///
/// # Errors
///
/// The row was edited by another program.
pub fn open_task(vault: &Vault, row: &TaskRow) -> Result<TaskContent, JournalError> {
    let place = place_of_task_row(row);
    opened(vault, &row.sealed, place)
}

/// Seals the content of a step for its row.
///
/// # Errors
///
/// The content is too large to be sealed.
pub fn seal_step(vault: &Vault, row: &TaskStepRow, content: &impl Serialize) -> Result<String, JournalError> {
    let text = serde_json::to_vec(content)?;
    Ok(vault.seal(&text, place_of_row(row))?.to_string())
}

/// Opens the content of a step.
///
/// # Errors
///
/// The row was edited by another program.
pub fn open_step(vault: &Vault, row: &TaskStepRow) -> Result<StepContent, JournalError> {
    let place = place_of_row(row);
    Ok(match row.kind {
        TaskStepKind::Round => {
            let round: Box<RoundContent> = opened(vault, &row.sealed, place)?;
            if round.summary_through.is_some() { StepContent::Summary(round) } else { StepContent::Round(round) }
        }
        TaskStepKind::Call => StepContent::Call(opened(vault, &row.sealed, place)?),
    })
}

fn opened<T: DeserializeOwned>(vault: &Vault, sealed: &str, place: AssociatedData) -> Result<T, JournalError> {
    let text = vault.unseal(&sealed.parse()?, place)?;
    Ok(serde_json::from_slice(&text)?)
}

fn place_of_row(row: &TaskStepRow) -> AssociatedData {
    let request = row.request_id.as_ref().map(RequestId::to_string).unwrap_or_default();
    let run = StepRun {
        kind: row.kind.as_str(),
        request: &request,
        tool: row.tool.as_deref().unwrap_or_default(),
        effect: row.effect.as_deref().unwrap_or_default(),
    };
    place_of_step(row.workspace_id, row.task_id, row.sequence, run)
}

/// What a step runs. A value is empty for a step that has none.
#[derive(Clone, Copy, Debug)]
pub struct StepRun<'a> {
    pub kind: &'a str,
    pub request: &'a str,
    pub tool: &'a str,
    pub effect: &'a str,
}

fn place_of_task_row(row: &TaskRow) -> AssociatedData {
    let text = |id: Option<String>| id.unwrap_or_default();
    let session = text(row.session_id.map(|id: SessionId| id.to_string()));
    let parent = text(row.parent_id.map(|id| id.to_string()));
    let key = text(row.key_id.map(|id| id.to_string()));
    let origin = TaskOrigin { session: &session, parent: &parent, key: &key };
    place_of_task(row.workspace_id, row.id, row.bot_id, origin)
}

/// Where a task comes from. A value is empty for a task that has none.
#[derive(Clone, Copy, Debug)]
pub struct TaskOrigin<'a> {
    pub session: &'a str,
    pub parent: &'a str,
    pub key: &'a str,
}

/// Returns the associated data of the sealed record of a task.
#[must_use]
pub fn place_of_task(workspace: WorkspaceId, task: TaskId, bot: BotId, origin: TaskOrigin<'_>) -> AssociatedData {
    AssociatedData::new("task")
        .with("workspace", &workspace)
        .with("task", &task)
        .with("bot", &bot)
        .with("session", origin.session)
        .with("parent", origin.parent)
        .with("key", origin.key)
}

/// Returns the associated data of the sealed record of a step.
#[must_use]
pub fn place_of_step(workspace: WorkspaceId, task: TaskId, sequence: i64, run: StepRun<'_>) -> AssociatedData {
    AssociatedData::new("task step")
        .with("workspace", &workspace)
        .with("task", &task)
        .with("sequence", &sequence)
        .with("kind", run.kind)
        .with("request", run.request)
        .with("tool", run.tool)
        .with("effect", run.effect)
}

#[cfg(test)]
mod tests {
    use monstrum_store::TaskStatus;
    use monstrum_types::UtcMillis;
    use monstrum_vault::MasterKeys;

    use super::*;

    fn vault() -> Vault {
        Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap())
    }

    fn row() -> TaskRow {
        TaskRow {
            id: TaskId::new(),
            workspace_id: WorkspaceId::new(),
            bot_id: BotId::new(),
            session_id: Some(SessionId::new()),
            parent_id: None,
            status: TaskStatus::Queued,
            code: None,
            key_id: Some(KeyId::new()),
            steps: 0,
            input_tokens: 0,
            output_tokens: 0,
            created_at: UtcMillis(0),
            started_at: None,
            cancelled_at: None,
            ended_at: None,
            waiting_for: None,
            waiting_since: None,
            waited_ms: 0,
            labels: Labels::none(),
            sealed: String::new(),
            app_id: None,
            chat_id: None,
        }
    }

    #[test]
    fn a_task_opens_only_in_its_row() {
        let vault = vault();
        let limits = Limits { steps: 50, tokens: None, credits: None, wall_s: 60 };
        let key = CallerKey { id: KeyId::new(), hash: [7; 32] };
        let content = TaskContent::new("Do it.".to_owned(), limits, Source::of_key(key));
        let mut row = row();
        row.sealed = seal_task(&vault, &row, &content).unwrap();
        assert_eq!(open_task(&vault, &row).unwrap(), content);
        assert_eq!(content.source.key(Some(key.id)).unwrap().unwrap().hash, key.hash);
        assert_eq!(content.source.key(None).unwrap_err(), KeyError);
        let schedule = Source::Schedule { id: ScheduleId::new(), starters: Vec::new() };
        assert!(matches!(schedule.key(None), Ok(None)));
        assert_eq!(schedule.key(Some(key.id)).unwrap_err(), KeyError);
        let edits: [fn(&mut TaskRow); 7] = [
            |row| row.id = TaskId::new(),
            |row| row.workspace_id = WorkspaceId::new(),
            |row| row.bot_id = BotId::new(),
            |row| row.session_id = Some(SessionId::new()),
            |row| row.session_id = None,
            |row| row.parent_id = Some(TaskId::new()),
            |row| row.key_id = Some(KeyId::new()),
        ];
        for edit in edits {
            let mut edited = row.clone();
            edit(&mut edited);
            assert!(matches!(open_task(&vault, &edited), Err(JournalError::Vault(_))), "{edited:?}");
        }
    }

    #[test]
    fn a_call_may_have_no_key() {
        let (request, id) = (RequestId::new(), KeyId::new());
        let source = |hash: Option<&str>, waits| Source::Call { request, hash: hash.map(str::to_owned), waits };
        assert!(matches!(source(None, true).key(None), Ok(None)));
        assert_eq!(source(None, true).key(Some(id)).unwrap_err(), KeyError);
        let hash = "07".repeat(32);
        assert_eq!(source(Some(&hash), false).key(Some(id)).unwrap().unwrap().hash, [7; 32]);
        assert_eq!(source(Some(&hash), false).key(None).unwrap_err(), KeyError);
        assert_eq!(source(Some("07"), false).key(Some(id)).unwrap_err(), KeyError);
        assert_eq!(source(None, true).waiting_call(), Some(request));
        assert_eq!(source(None, false).waiting_call(), None);
    }

    #[test]
    fn a_step_opens_only_in_its_row() {
        let vault = vault();
        let content = CallContent { call_id: "c".to_owned(), params: Map::new(), makes_calls: false, outcome: None };
        let mut row = TaskStepRow {
            task_id: TaskId::new(),
            sequence: 2,
            workspace_id: WorkspaceId::new(),
            kind: TaskStepKind::Call,
            request_id: Some(RequestId::new()),
            tool: Some("echo".to_owned()),
            effect: Some("read".to_owned()),
            status: None,
            started_at: UtcMillis(0),
            ended_at: None,
            sealed: String::new(),
        };
        row.sealed = seal_step(&vault, &row, &content).unwrap();
        assert_eq!(open_step(&vault, &row).unwrap(), StepContent::Call(Box::new(content)));
        let edits: [fn(&mut TaskStepRow); 7] = [
            |row| row.task_id = TaskId::new(),
            |row| row.sequence = 3,
            |row| row.request_id = Some(RequestId::new()),
            |row| row.kind = TaskStepKind::Round,
            |row| row.tool = Some("drop".to_owned()),
            |row| row.tool = None,
            |row| row.effect = Some("write".to_owned()),
        ];
        for edit in edits {
            let mut edited = row.clone();
            edit(&mut edited);
            assert!(open_step(&vault, &edited).is_err(), "{edited:?}");
        }
    }
}
