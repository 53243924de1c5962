//! Requests of clients that keep the conversation themselves. Each is a task without a session: what the model reads is
//! what the client sends, below the prompt of the bot.
//!
//! The module must not know the form in which clients send their requests.

use std::collections::BTreeMap;
use std::time::Duration;

use monstrum_api::bots::TaskLimits;
use monstrum_api::tasks::Task;
use monstrum_api::tools::Chat;
use monstrum_core::call::consent::WAIT_MAX;
use monstrum_core::call_types::round::{RoundAnswer, RoundOptions, RoundTool};
use monstrum_core::models;
use monstrum_core::operations::tools::check_chat;
use monstrum_core::operations::{Caller, OperationError};
use monstrum_llm::{FinishReason, Message, Part};
use monstrum_store::{TaskRow, TaskStatus};
use monstrum_types::{BotId, Labels, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::answers::Answer;
use crate::client_tools::ClientTools;
use crate::journal::{self, Limits, Source, TaskContent};
use crate::output;
use crate::rounds::{Offered, tools_of};
use crate::runner::TaskTurn;
use crate::tasks::{Beginning, STEPS, Tasks, WALL_S, internal, limits_of};

/// The maximum size of the part of a conversation that stands as the instruction of its task, in bytes.
const INSTRUCTION_BYTES_MAX: usize = 64 << 10;
/// The time for which a call of a client's task waits for a person. The model is then told.
const CLIENT_WAIT_MAX: Duration = Duration::from_secs(60);
/// The heading of the instructions of a client in the prompt.
const INSTRUCTIONS: &str = "Instructions of the program that sends the conversation:";

/// What a client asks for, as the record of its task keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestContent {
    /// The conversation. Its system messages stand below the prompt of the bot.
    pub history: Vec<Message>,
    /// The labels with which the task begins. The record of the task has them elsewhere.
    #[serde(skip)]
    pub labels: Labels,
    /// Instructions for this request only, which precede the system messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    #[serde(default)]
    pub options: RoundOptions,
    /// The maximum number of tokens of the answer of each round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// The tools of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<ClientTools>,
    /// The schema of the answer, if it has to be JSON. The record of the task has it elsewhere.
    #[serde(skip)]
    pub output_schema: Option<Map<String, Value>>,
    /// What is kept of a request whose answer can be read again by its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ResponseContent>,
}

/// What is kept of a request for a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseContent {
    /// The model, as the client named it.
    pub model: String,
    /// The response whose conversation this one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<TaskId>,
    /// Whether the client wants to read the response again.
    pub is_stored: bool,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// A response that its client can read again.
pub struct StoredResponse {
    /// What the task has said so far.
    pub answer: Answer,
    pub request: RequestContent,
    pub response: ResponseContent,
    /// The labels of what the task has read.
    pub labels: Labels,
}

/// What is known about the task of an earlier request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierTask {
    /// No task has this id.
    Absent,
    /// The task runs or has ended with an answer, or it may have changed something.
    Joinable,
    /// The task is being cancelled.
    Ending,
    /// The task has failed or was cancelled before it could change anything.
    Failed,
}

impl RequestContent {
    /// Returns the conversation without its system messages.
    #[must_use]
    pub fn conversation(&self) -> Vec<Message> {
        self.history.iter().filter(|message| !is_system(message)).cloned().collect()
    }

    /// Returns whether the answer has a form, such as JSON. The text before it is then no part of it.
    #[must_use]
    pub fn has_form(&self) -> bool {
        let format = self.options.response_format.as_ref();
        format.is_some_and(|format| matches!(format["type"].as_str(), Some("json_object" | "json_schema")))
    }

    /// Returns the instructions of the client.
    fn system(&self) -> Option<String> {
        let messages = self.history.iter().filter_map(|message| match message {
            Message::System { text } => Some(text.as_str()),
            Message::User { .. } | Message::Assistant(_) | Message::Tool { .. } => None,
        });
        let texts: Vec<&str> = self.instructions.as_deref().into_iter().chain(messages).collect();
        let text = texts.into_iter().filter(|text| !text.trim().is_empty()).collect::<Vec<_>>().join("\n\n");
        (!text.is_empty()).then_some(text)
    }

    /// Returns the beginning of what the user said last.
    fn instruction(&self) -> String {
        let last = self.history.iter().rev().find_map(|message| match message {
            Message::User { parts } => Some(parts),
            Message::System { .. } | Message::Assistant(_) | Message::Tool { .. } => None,
        });
        let texts = last.into_iter().flatten().filter_map(|part| match part {
            Part::Text { text } => Some(text.as_str()),
            Part::Image { .. } => None,
        });
        let mut text = texts.collect::<Vec<_>>().join("\n");
        text.truncate(text.floor_char_boundary(INSTRUCTION_BYTES_MAX));
        text
    }
}

/// Returns the labels of messages that a client sends: every label if one of them is an answer or a result, because the
/// host does not know what it was made of.
#[must_use]
pub fn labels_of(messages: &[Message]) -> Labels {
    let is_unknown = |message: &Message| matches!(message, Message::Assistant(_) | Message::Tool { .. });
    if messages.iter().any(is_unknown) { Labels::ALL } else { Labels::none() }
}

fn is_system(message: &Message) -> bool {
    matches!(message, Message::System { .. })
}

impl Tasks {
    /// Starts the task of a request, with an id that no task has.
    ///
    /// # Errors
    ///
    /// The caller may not use the bot, the bot has no model, or the conversation belongs to another user or another bot.
    pub async fn start_request(
        &self,
        caller: &Caller,
        (bot, id): (BotId, TaskId),
        request: RequestContent,
        chat: Option<Chat>,
    ) -> Result<Task, OperationError> {
        self.may_start(caller, bot)?;
        let app = &self.app;
        let snapshot = app.policy.load();
        let row = &snapshot.bot(caller.workspace, bot).ok_or_else(|| OperationError::not_found("bot"))?.row;
        models::candidates(&snapshot, caller.workspace, bot, app.clock.now())
            .map_err(|error| OperationError::conflict(error.to_string()))?;
        if let Some(chat) = &chat {
            check_chat(chat)?;
            let open = app.store.session_of_chat(caller.workspace, &chat.app_id, &chat.chat_id).await?;
            if open.is_some_and(|open| open.bot_id != bot || open.user_id != chat.user_id) {
                return Err(OperationError::conflict("the conversation belongs to another user or another bot"));
            }
        }
        let TaskLimits { steps, tokens, credits, wall_s } = limits_of(row);
        let limits = Limits { steps: steps.unwrap_or(STEPS), tokens, credits, wall_s: wall_s.unwrap_or(WALL_S) };
        let mut content = TaskContent::new(request.instruction(), limits, Source::of_key(caller.caller_key()));
        content.labels = match &chat {
            None => request.labels.clone(),
            // The conversation may have a sandbox, whose files the host did not see being written. What this task reads
            // can end up there too, for the next task of a session.
            Some(chat) => {
                let (app_id, chat_id) = (&chat.app_id, &chat.chat_id);
                app.store.add_session_labels(caller.workspace, app_id, chat_id, &Labels::ALL).await?;
                Labels::ALL
            }
        };
        content.chat = chat;
        content.output_schema.clone_from(&request.output_schema);
        content.request = Some(Box::new(request));
        let (workspace, key, parent, session) = (caller.workspace, Some(caller.key), None, None);
        self.begin_as(id, Beginning { workspace, bot, key, parent, session, content }).await
    }

    /// Checks the schema of the answer to a request.
    ///
    /// # Errors
    ///
    /// The schema is not a valid JSON Schema, is too large, or takes too much work to compile.
    pub async fn checked_schema(
        &self,
        caller: &Caller,
        bot: BotId,
        schema: Value,
    ) -> Result<Option<Map<String, Value>>, OperationError> {
        self.may_start(caller, bot)?;
        output::checked(&self.app, caller.workspace, bot, Some(schema)).await
    }

    /// Returns what is known about the task that an earlier request of the caller has started.
    ///
    /// # Errors
    ///
    /// The database failed, or another key has started the task.
    pub async fn earlier_task(&self, caller: &Caller, bot: BotId, id: TaskId) -> Result<EarlierTask, OperationError> {
        let Some(row) = self.app.store.task(caller.workspace, id).await? else { return Ok(EarlierTask::Absent) };
        if row.bot_id != bot || row.key_id != Some(caller.key) {
            return Err(OperationError::not_found("task"));
        }
        if row.ended_at.is_none() && row.cancelled_at.is_some() {
            return Ok(EarlierTask::Ending);
        }
        // A task is cancelled if its client has gone, and that client may be the one that comes back.
        let has_failed = matches!(row.status, TaskStatus::Failed | TaskStatus::Cancelled);
        let is_harmless = has_failed && !self.has_written(&row).await?;
        Ok(if is_harmless { EarlierTask::Failed } else { EarlierTask::Joinable })
    }

    /// Returns a response that the caller has asked for with the same key.
    ///
    /// # Errors
    ///
    /// The response does not exist, was not to be stored, or was asked for with another key.
    pub async fn response(&self, caller: &Caller, id: TaskId) -> Result<StoredResponse, OperationError> {
        let absent = || OperationError::not_found("response");
        let row = self.row(caller, id).await.map_err(|error| match error {
            OperationError::NotFound(_) => absent(),
            error => error,
        })?;
        if row.key_id != Some(caller.key) {
            return Err(absent());
        }
        let content = journal::open_task(&self.app.vault, &row).map_err(internal)?;
        let labels = content.labels.with(&row.labels);
        let request = *content.request.ok_or_else(absent)?;
        let response = request.response.clone().filter(|response| response.is_stored).ok_or_else(absent)?;
        Ok(StoredResponse { answer: self.answer_of(&row).await?, request, response, labels })
    }

    /// Returns whether a call that may change something has begun. A call begins when the audit has its row `started`.
    pub(crate) async fn has_written(&self, row: &TaskRow) -> Result<bool, OperationError> {
        const READ: u32 = 20;
        let store = &self.app.store;
        let mut after = 0;
        loop {
            let steps = store.task_steps(row.workspace_id, row.id, after, READ).await?;
            let Some(last) = steps.last() else { return Ok(false) };
            after = last.sequence;
            for step in steps {
                let Some(request) = step.request_id.filter(|_| step.effect.as_deref() == Some("write")) else {
                    continue;
                };
                if store.has_started(row.workspace_id, request, step.started_at).await? {
                    return Ok(true);
                }
            }
        }
    }
}

impl TaskTurn<'_> {
    fn request(&self) -> Option<&RequestContent> {
        self.content.request.as_deref()
    }

    /// Returns the time for which a call waits for a person. A client waits for the answer and has time-outs of its own.
    pub(crate) fn approval_wait(&self) -> Duration {
        if self.request().is_some() { CLIENT_WAIT_MAX } else { WAIT_MAX }
    }

    /// Returns the conversation that the client has sent, if the task is one of a client.
    pub(crate) fn conversation(&self) -> Option<Vec<Message>> {
        self.request().map(RequestContent::conversation)
    }

    /// Returns the options of the client for each round.
    pub(crate) fn options(&self) -> RoundOptions {
        self.request().map(|request| request.options.clone()).unwrap_or_default()
    }

    /// Returns whether the client has a tool of this name.
    pub(crate) fn client_has(&self, name: &str) -> bool {
        self.client_tools().is_some_and(|tools| tools.has(name))
    }

    fn client_tools(&self) -> Option<&ClientTools> {
        self.request()?.client_tools.as_ref()
    }

    /// Returns the tools of a round: those of the bot, and those of the client.
    pub(crate) fn tools_of_round(&self, offered: &BTreeMap<String, Offered>, context_tokens: u64) -> Vec<RoundTool> {
        let Some(client) = self.client_tools() else { return tools_of(offered, context_tokens) };
        let mut tools = if client.are_alone { Vec::new() } else { tools_of(offered, context_tokens) };
        tools.extend(client.offered(|name| offered.contains_key(name)));
        tools
    }

    /// Returns the limit of the client for the answer of each round.
    pub(crate) fn output_tokens(&self) -> Option<u64> {
        self.request()?.output_tokens
    }

    /// Adds the instructions of the client below the prompt of the bot.
    pub(crate) fn with_instructions(&self, prompt: String) -> String {
        match self.request().and_then(RequestContent::system) {
            Some(system) => format!("{prompt}\n\n{INSTRUCTIONS}\n\n{system}"),
            None => prompt,
        }
    }

    /// Returns whether an answer that was cut is the answer of the task, because the client has set the limit.
    pub(crate) fn may_be_cut(&self, answer: &RoundAnswer) -> bool {
        self.output_tokens().is_some() && answer.finish == FinishReason::Length && answer.message.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use monstrum_llm::AssistantMessage;
    use serde_json::json;

    use super::*;
    use crate::client_tools::ClientTool;

    fn system(text: &str) -> Message {
        Message::System { text: text.to_owned() }
    }

    fn said(text: &str) -> Message {
        Message::Assistant(AssistantMessage { text: text.to_owned(), ..AssistantMessage::default() })
    }

    #[test]
    fn system_messages_stand_together_and_not_in_the_conversation() {
        let history = vec![system("Be brief."), Message::user("Hi"), system(" "), said("Hello"), system("Now German.")];
        let request = RequestContent { history, instructions: Some("First.".to_owned()), ..RequestContent::default() };
        assert_eq!(request.system().as_deref(), Some("First.\n\nBe brief.\n\nNow German."));
        assert_eq!(request.conversation(), [Message::user("Hi"), said("Hello")]);
        assert_eq!(RequestContent::default().system(), None);
    }

    #[test]
    fn the_instruction_is_what_the_user_said_last() {
        let image = Part::Image { media_type: "image/png".to_owned(), base64: "AAAA".to_owned() };
        let parts = vec![Part::Text { text: "Look:".to_owned() }, image, Part::Text { text: "what?".to_owned() }];
        let history = vec![Message::user("Hi"), Message::User { parts }, said("A cat.")];
        assert_eq!(RequestContent { history, ..RequestContent::default() }.instruction(), "Look:\nwhat?");
        let long = RequestContent { history: vec![Message::user("é".repeat(64 << 10))], ..RequestContent::default() };
        assert_eq!(long.instruction().len(), INSTRUCTION_BYTES_MAX);
        assert_eq!(RequestContent::default().instruction(), "");
    }

    #[test]
    fn messages_with_answers_carry_every_label() {
        assert_eq!(labels_of(&[system("Be brief."), Message::user("Hi")]), Labels::none());
        assert_eq!(labels_of(&[Message::user("Hi"), said("Hello"), Message::user("Go on")]), Labels::ALL);
        assert_eq!(labels_of(&[Message::Tool { call_id: "c".to_owned(), text: "1".to_owned() }]), Labels::ALL);
    }

    #[test]
    fn a_record_of_a_request_is_read_as_it_was_written() {
        let options = RoundOptions { temperature: Some(0.5), stop: vec!["END".to_owned()], ..RoundOptions::default() };
        let response = ResponseContent {
            model: "helper".to_owned(),
            previous: Some(TaskId::new()),
            is_stored: true,
            metadata: Map::new(),
        };
        let tool = ClientTool {
            name: "look".to_owned(),
            description: "Looks".to_owned(),
            parameters: json!({ "type": "object" }),
        };
        let request = RequestContent {
            history: vec![Message::user("Hi"), said("Hello")],
            instructions: None,
            labels: Labels::none(),
            options,
            output_tokens: Some(7),
            client_tools: Some(ClientTools { tools: vec![tool], are_alone: true }),
            output_schema: None,
            response: Some(response),
        };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<RequestContent>(&text).unwrap(), request);
    }
}
