//! The conversation of a request: that of an earlier response, and the items of the input.

use std::collections::{HashMap, HashSet};

use monstrum_agent::Tasks;
use monstrum_agent::client_tools::{ClientCall, ClientCallId, labels_of_result};
use monstrum_agent::requests::{StoredResponse, labels_of};
use monstrum_core::operations::Caller;
use monstrum_core::policy::Bot;
use monstrum_llm::{Arguments, AssistantMessage, Message, ToolCall};
use monstrum_types::{Labels, TaskId};
use serde_json::{Map, Value};

use super::items::{self, Item};
use super::{FUNCTION_CALL, MESSAGE, RESPONSE, stored, stored_as};
use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::{BODY_BYTES_MAX, size_of};

/// The maximum number of earlier responses to which a request refers. Each is read whole.
const REFERENCES_MAX: usize = 32;

/// A conversation as it was read so far.
#[derive(Default)]
pub(super) struct Conversation {
    pub(super) history: Vec<Message>,
    pub(super) labels: Labels,
    /// The task of the response that the request continues.
    pub(super) previous: Option<TaskId>,
    /// The size of the texts that references have added, in bytes.
    bytes: usize,
    /// The calls of earlier responses, whose labels are known.
    calls: HashSet<String>,
    referred: HashMap<TaskId, Referred>,
}

/// What an earlier response has said. It counts against the size of the conversation when it is read.
struct Referred {
    text: String,
    calls: Vec<ClientCall>,
}

impl Conversation {
    /// Reads the conversation of a request. Results of calls that an earlier response has asked for are as trustworthy as
    /// those of any tool of a client. Nothing is known of other results and answers that a client sends.
    pub(super) async fn read(
        tasks: &Tasks,
        caller: &Caller,
        bot: &Bot,
        previous: Option<&str>,
        input: Value,
    ) -> Result<Conversation, OpenAiError> {
        let mut read = Conversation::default();
        if let Some(id) = previous {
            let param = "previous_response_id";
            let mut earlier = of_bot(stored(tasks, caller, (id, RESPONSE), param).await?, bot, param)?;
            read.previous = Some(earlier.answer.task.id);
            read.labels.add(&earlier.labels);
            read.history = std::mem::take(&mut earlier.request.history);
            let text = earlier.answer.shown_text(earlier.request.has_form()).to_owned();
            read.add_said(text, &earlier.answer.client_calls);
        }
        let mut is_after_reference = false;
        for item in items::read(input)? {
            match item {
                Item::Message(message) => {
                    read.labels.add(&read.labels_of(&message));
                    read.add(message, is_after_reference);
                    is_after_reference = false;
                }
                Item::Reference { id, param } => {
                    read.refer(tasks, caller, bot, (&id, &param)).await?;
                    is_after_reference = true;
                }
            }
            if read.bytes > BODY_BYTES_MAX {
                return Err(too_large("input"));
            }
        }
        if size_of(&read.history) > BODY_BYTES_MAX {
            return Err(too_large("previous_response_id"));
        }
        Ok(read)
    }

    fn labels_of(&self, message: &Message) -> Labels {
        match message {
            Message::Tool { call_id, .. } if self.calls.contains(call_id) => labels_of_result(),
            message => labels_of(std::slice::from_ref(message)),
        }
    }

    /// Adds a message. Calls after a reference are those of the message that the reference names.
    fn add(&mut self, message: Message, is_after_reference: bool) {
        match (message, self.history.last_mut()) {
            (Message::Assistant(asked), Some(Message::Assistant(said)))
                if is_after_reference && asked.text.is_empty() && !asked.calls.is_empty() =>
            {
                said.calls.extend(asked.calls);
            }
            (message, _) => self.history.push(message),
        }
    }

    /// Adds what a reference names: the message of an earlier response, or one of its calls.
    async fn refer(
        &mut self,
        tasks: &Tasks,
        caller: &Caller,
        bot: &Bot,
        (id, param): (&str, &str),
    ) -> Result<(), OpenAiError> {
        let absent = || OpenAiError::response_not_found(param);
        let call = id.strip_prefix(FUNCTION_CALL).map(|parts| {
            let (task, position) = parts.split_once('_').ok_or_else(absent)?;
            ClientCallId::of(task, position).filter(|id| id.parts() == parts).ok_or_else(absent)
        });
        let call = call.transpose()?;
        let task = match call {
            Some(call) => call.task,
            None => id.strip_prefix(MESSAGE).and_then(|id| id.parse().ok()).ok_or_else(absent)?,
        };
        if !self.referred.contains_key(&task) {
            if self.referred.len() == REFERENCES_MAX {
                let message = format!("expected references to at most {REFERENCES_MAX} earlier responses");
                return Err(OpenAiError::invalid("input", message));
            }
            let earlier = of_bot(stored_as(tasks, caller, task, param).await?, bot, param)?;
            self.labels.add(&earlier.labels);
            let text = earlier.answer.shown_text(earlier.request.has_form()).to_owned();
            let calls = earlier.answer.client_calls;
            let of_calls = calls.iter().fold(0, |bytes: usize, call| bytes.saturating_add(call.arguments.len()));
            self.bytes = self.bytes.saturating_add(text.len()).saturating_add(of_calls);
            self.referred.insert(task, Referred { text, calls });
        }
        let earlier = self.referred.get(&task).ok_or_else(absent)?;
        match call {
            None => {
                let text = earlier.text.clone();
                self.add_said(text, &[]);
            }
            Some(id) => {
                let called = earlier.calls.iter().find(|call| call.id == id).ok_or_else(absent)?.clone();
                self.add_call(&called);
            }
        }
        Ok(())
    }

    fn add_said(&mut self, text: String, calls: &[ClientCall]) {
        self.bytes = self.bytes.saturating_add(text.len());
        self.history.push(Message::Assistant(AssistantMessage { text, ..AssistantMessage::default() }));
        for call in calls {
            self.add_call(call);
        }
    }

    /// Adds a call to the message before it, or to a new one.
    fn add_call(&mut self, called: &ClientCall) {
        let id = called.id.to_string();
        self.bytes = self.bytes.saturating_add(called.arguments.len());
        self.calls.insert(id.clone());
        let call = ToolCall {
            id,
            name: called.name.clone(),
            arguments: Arguments::new(called.arguments.clone()),
            extra: Map::new(),
            function_extra: Map::new(),
        };
        match self.history.last_mut() {
            Some(Message::Assistant(said)) => said.calls.push(call),
            _ => {
                let said = AssistantMessage { calls: vec![call], ..AssistantMessage::default() };
                self.history.push(Message::Assistant(said));
            }
        }
    }
}

fn too_large(param: &str) -> OpenAiError {
    let message = format!("the conversation exceeds the limit of {BODY_BYTES_MAX} bytes; begin another one");
    OpenAiError::invalid(param, message)
}

/// Returns a response that a further request can continue: one of the same bot that is complete.
fn of_bot(stored: StoredResponse, bot: &Bot, param: &str) -> Result<StoredResponse, OpenAiError> {
    if stored.answer.task.bot_id != bot.row.id {
        return Err(OpenAiError::response_not_found(param));
    }
    if stored.answer.task.status != "completed" {
        return Err(OpenAiError::invalid(param, "the response is not complete, so it cannot be continued"));
    }
    Ok(stored)
}
