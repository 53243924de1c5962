//! Tools that clients bring with their requests. A model can ask for them beside the tools of its bot. The task runs the
//! calls of the bot's tools and ends; the client gets the calls of its own tools, runs them, and sends their results with
//! the next request.
//!
//! Calls of clients' tools give no rights: they never reach the pipeline of calls, and a tool of the bot always precedes a
//! tool of the client with the same name. The client knows a call by an id that names its task, so that the next request
//! continues with exactly the rounds of that task: with the calls of the bot's tools, their results, and the fields that the
//! model's server has added.

use std::collections::{BTreeMap, BTreeSet};

use monstrum_api::tools::Chat;
use monstrum_core::call_types::round::RoundTool;
use monstrum_core::language::Language;
use monstrum_core::operations::tools::{Range, page};
use monstrum_core::operations::{Caller, OperationError};
use monstrum_llm::{AssistantMessage, Message, ToolCall};
use monstrum_store::{TaskRow, TaskStatus};
use monstrum_types::{AppUser, BotId, Labels, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::journal::{self, RoundContent, Source, StepContent};
use crate::present;
use crate::round::{Asked, CALLS_MAX};
use crate::rounds::TOOLS_MAX;
use crate::state::State;
use crate::tasks::{STEPS_READ, Tasks, internal};

/// The time after the end of a task in which a request can continue with its rounds.
const CONTINUED_MS: i64 = 60 * 60 * 1000;
/// The maximum number of tasks with whose rounds one request continues. Each is read whole.
const CONTINUED_TASKS_MAX: usize = 64;
/// The start of the ids of calls.
const CALL: &str = "call_";
/// The labels of the result of a client's tool.
const RESULT_LABELS: &str = "untrusted";

/// The tools of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientTools {
    pub tools: Vec<ClientTool>,
    /// Whether the model is asked for these tools only, because the client wants a call of one of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub are_alone: bool,
}

/// A tool of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientTool {
    pub name: String,
    pub description: String,
    /// The JSON Schema of the parameters.
    pub parameters: Value,
}

/// A call that the client is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCall {
    pub id: ClientCallId,
    pub name: String,
    /// The arguments as JSON, as the model wrote them.
    pub arguments: String,
}

/// The id of a call, which names its task and its position in the last round of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientCallId {
    pub task: TaskId,
    position: usize,
}

impl ClientCallId {
    /// Reads the id of a call. Returns `None` if it cannot be one of this host.
    #[must_use]
    pub fn read(text: &str) -> Option<ClientCallId> {
        let (task, position) = text.strip_prefix(CALL)?.split_once('_')?;
        ClientCallId::of(task, position).filter(|id| id.to_string() == text)
    }

    /// Reads the parts of an id: the task, in hex digits, and the position.
    #[must_use]
    pub fn of(task: &str, position: &str) -> Option<ClientCallId> {
        if task.len() != 32 || !task.is_ascii() {
            return None;
        }
        let parts = [&task[..8], &task[8..12], &task[12..16], &task[16..20], &task[20..]];
        let position = position.parse().ok().filter(|position| *position < CALLS_MAX)?;
        Some(ClientCallId { task: parts.join("-").parse().ok()?, position })
    }

    /// Returns the parts of the id without its start, for other ids that name the same call.
    #[must_use]
    pub fn parts(&self) -> String {
        format!("{}_{}", hex::encode(self.task.as_bytes()), self.position)
    }
}

impl std::fmt::Display for ClientCallId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{CALL}{}", self.parts())
    }
}

/// Returns the labels of the result of a client's tool.
#[must_use]
pub fn labels_of_result() -> Labels {
    Labels::from_text(RESULT_LABELS)
}

/// The calls of a round that the task runs or refuses, and the positions of those that its client is to run.
pub(crate) struct Divided {
    pub(crate) own: Vec<(ToolCall, Asked)>,
    pub(crate) of_client: Vec<usize>,
}

/// Divides the calls of a round. A call of a client's tool that may not run, for example because its arguments are no JSON,
/// stays with the task, which tells the model why.
pub(crate) fn divided(calls: &[ToolCall], asked: Vec<Asked>, is_of_client: impl Fn(&str) -> bool) -> Divided {
    let mut divided = Divided { own: Vec::with_capacity(calls.len()), of_client: Vec::new() };
    for (position, (call, asked)) in calls.iter().zip(asked).enumerate() {
        if matches!(asked, Asked::Run(_)) && is_of_client(&call.name) {
            divided.of_client.push(position);
        } else {
            divided.own.push((call.clone(), asked));
        }
    }
    divided
}

/// Returns the calls of a round that the client of a task is to run.
pub(crate) fn calls_of(task: TaskId, round: &RoundContent) -> Vec<ClientCall> {
    let call = |position: &usize| {
        let call = round.message.calls.get(*position)?;
        let (name, arguments) = (call.name.clone(), call.arguments.as_str().to_owned());
        Some(ClientCall { id: ClientCallId { task, position: *position }, name, arguments })
    };
    round.client_calls.iter().filter_map(call).collect()
}

impl ClientTools {
    /// Returns whether a model's call of this name is one of the client.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// Returns the tools for a model, without those whose name is that of a tool of the bot: the bot may have got it after
    /// the request was checked.
    pub(crate) fn offered(&self, is_of_bot: impl Fn(&str) -> bool) -> impl Iterator<Item = RoundTool> {
        self.tools.iter().filter(move |tool| !is_of_bot(&tool.name)).map(|tool| RoundTool {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
        })
    }
}

/// What a task has done, for a request that continues it.
struct Rounds {
    /// The rounds and their results, up to the last round.
    before: Vec<Message>,
    last: AssistantMessage,
    /// The results of the calls of the last round that the task has run or refused, by the model's ids of the calls.
    results: BTreeMap<String, String>,
    /// The calls that the client has got.
    of_client: BTreeSet<ClientCallId>,
}

/// The request that continues the rounds of earlier tasks.
#[derive(Clone, Copy)]
pub struct Continues<'a> {
    pub bot: BotId,
    pub chat: Option<&'a Chat>,
    /// The size that the rounds may add to the conversation, in bytes.
    pub bytes_max: usize,
}

impl Tasks {
    /// Returns the names of the tools that a bot has now.
    ///
    /// # Errors
    ///
    /// The caller may not use the bot, or the host is busy.
    pub async fn tool_names(&self, caller: &Caller, bot: BotId) -> Result<BTreeSet<String>, OperationError> {
        let range = Range { after: None, count: TOOLS_MAX };
        let tools = page(&self.app, caller, bot, Language::default(), range).await?.tools;
        Ok(tools.into_iter().map(|tool| tool.name.to_string()).collect())
    }

    /// Puts the rounds of earlier tasks in place of what a client says that they were. A message is replaced if its calls
    /// are exactly those that a task of the last hour, of the same key, the same bot and the same user, has left to its
    /// client. All other messages stay as the client has sent them. Each call in `history` must have its result.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn continued(
        &self,
        caller: &Caller,
        of: Continues<'_>,
        history: Vec<Message>,
    ) -> Result<Vec<Message>, OperationError> {
        let (mut found, mut bytes_left) = (BTreeMap::new(), of.bytes_max);
        let mut tried = 0;
        // The newest ones first, because the model needs them most.
        for (position, message) in history.iter().enumerate().rev() {
            let Some(ids) = ids_of(message) else { continue };
            let Some(task) = ids.first().map(|id| id.task) else { continue };
            if tried == CONTINUED_TASKS_MAX {
                break;
            }
            tried += 1;
            let Some(rounds) = self.rounds_of(caller, of, task).await?.filter(|rounds| rounds.of_client == ids) else {
                continue;
            };
            match bytes_left.checked_sub(rounds.bytes()) {
                Some(left) => bytes_left = left,
                None => break,
            }
            found.insert(position, rounds);
        }
        let mut continued = Vec::with_capacity(history.len());
        let mut history = history.into_iter().enumerate().peekable();
        while let Some((position, message)) = history.next() {
            let Some(rounds) = found.remove(&position) else {
                continued.push(message);
                continue;
            };
            let mut results = BTreeMap::new();
            while let Some((_, message)) = history.next_if(|(_, next)| matches!(next, Message::Tool { .. })) {
                if let Message::Tool { call_id, text } = message {
                    results.insert(call_id, text);
                }
            }
            rounds.write(&results, &mut continued);
        }
        Ok(continued)
    }

    /// Returns what a task has done, if a request may continue it.
    async fn rounds_of(
        &self,
        caller: &Caller,
        of: Continues<'_>,
        task: TaskId,
    ) -> Result<Option<Rounds>, OperationError> {
        let Some(row) = self.app.store.task(caller.workspace, task).await? else { return Ok(None) };
        let ended = row.ended_at.map(|ended| self.app.clock.now().since_ms(ended));
        let is_recent = row.status == TaskStatus::Completed && ended.is_some_and(|since| since <= CONTINUED_MS);
        if !is_recent || row.bot_id != of.bot || row.key_id != Some(caller.key) {
            return Ok(None);
        }
        // A record that cannot be opened was edited by another program.
        let Ok(content) = journal::open_task(&self.app.vault, &row) else { return Ok(None) };
        let user = of.chat.map(|chat| AppUser { app_id: chat.app_id.clone(), user_id: chat.user_id.clone() });
        // The record names the key too, and cannot be edited.
        let is_of_key = content.source == Source::of_key(caller.caller_key());
        if !is_of_key || content.request.is_none() || content.user() != user {
            return Ok(None);
        }
        self.rounds(&row).await
    }

    async fn rounds(&self, row: &TaskRow) -> Result<Option<Rounds>, OperationError> {
        let (store, vault) = (&self.app.store, &self.app.vault);
        let mut state = State::of_conversation(Vec::new(), Labels::none());
        let (mut of_client, mut after) = (BTreeSet::new(), 0);
        loop {
            let rows = store.task_steps(row.workspace_id, row.id, after, STEPS_READ).await?;
            let Some(last) = rows.last() else { break };
            after = last.sequence;
            for step in rows {
                let content = journal::open_step(vault, &step).map_err(internal)?;
                if let StepContent::Round(round) = &content {
                    of_client = calls_of(row.id, round).into_iter().map(|call| call.id).collect();
                }
                state.add(step, content);
            }
        }
        state.close_round();
        let mut before = state.messages().to_vec();
        let position = before.iter().rposition(|message| matches!(message, Message::Assistant(_)));
        let Some(position) = position.filter(|_| !of_client.is_empty()) else { return Ok(None) };
        let results = before.split_off(position + 1).into_iter().filter_map(|message| match message {
            Message::Tool { call_id, text } => Some((call_id, present::without_step(&text))),
            Message::System { .. } | Message::User { .. } | Message::Assistant(_) => None,
        });
        let results = results.collect();
        for message in &mut before {
            if let Message::Tool { text, .. } = message {
                *text = present::without_step(text);
            }
        }
        Ok(match before.pop() {
            Some(Message::Assistant(last)) => Some(Rounds { before, last, results, of_client }),
            _ => None,
        })
    }
}

impl Rounds {
    fn bytes(&self) -> usize {
        let messages: usize = self.before.iter().map(bytes).sum();
        let results: usize = self.results.values().map(String::len).sum();
        messages.saturating_add(results).saturating_add(bytes(&Message::Assistant(self.last.clone())))
    }

    /// Writes the rounds, and the results that the client has sent for the calls of the last one.
    fn write(self, sent: &BTreeMap<String, String>, to: &mut Vec<Message>) {
        let Rounds { before, last, mut results, of_client } = self;
        let task = of_client.first().map(|id| id.task);
        to.extend(before);
        let answers = last.calls.iter().enumerate().filter_map(|(position, call)| {
            let id = task.map(|task| ClientCallId { task, position }).filter(|id| of_client.contains(id));
            let text = match id {
                Some(id) => sent.get(&id.to_string()).map(|text| present::client_result(&call.name, text)),
                None => results.remove(&call.id),
            };
            text.map(|text| Message::Tool { call_id: call.id.clone(), text })
        });
        let answers: Vec<Message> = answers.collect();
        to.push(Message::Assistant(last));
        to.extend(answers);
    }
}

fn bytes(message: &Message) -> usize {
    serde_json::to_string(message).map_or(usize::MAX, |text| text.len())
}

/// Returns the ids of the calls of a message, if all are those of one task of this host.
fn ids_of(message: &Message) -> Option<BTreeSet<ClientCallId>> {
    let Message::Assistant(said) = message else { return None };
    let ids: BTreeSet<ClientCallId> =
        said.calls.iter().map(|call| ClientCallId::read(&call.id)).collect::<Option<_>>()?;
    let task = ids.first()?.task;
    (ids.len() == said.calls.len() && ids.iter().all(|id| id.task == task)).then_some(ids)
}

#[cfg(test)]
mod tests {
    use monstrum_llm::Arguments;
    use serde_json::{Map, json};

    use super::*;

    fn call(id: &str, name: &str) -> ToolCall {
        ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: Arguments::new("{}".to_owned()),
            extra: Map::new(),
            function_extra: Map::new(),
        }
    }

    fn said(calls: Vec<ToolCall>) -> Message {
        Message::Assistant(AssistantMessage { calls, ..AssistantMessage::default() })
    }

    #[test]
    fn ids_name_their_task_and_have_one_spelling() {
        let id = ClientCallId { task: TaskId::new(), position: 12 };
        let text = id.to_string();
        assert_eq!((ClientCallId::read(&text), text.len()), (Some(id), 40));
        let (task, short) = (&text[5..37], ClientCallId { position: 3, ..id }.to_string());
        assert!(ClientCallId::read(&short).is_some());
        for other in [
            text.to_uppercase(),
            text.replace("call_", ""),
            format!("call_{task}"),
            format!("call_{task}_"),
            format!("call_{task}_03"),
            format!("call_{task}_+3"),
            format!("call_{task}_{CALLS_MAX}"),
            format!("call_{}_3", &task[1..]),
            format!("call_{}_3", "é".repeat(16)),
            "call_0".to_owned(),
            String::new(),
        ] {
            assert_eq!(ClientCallId::read(&other), None, "{other}");
        }
    }

    #[test]
    fn only_calls_that_may_run_go_to_the_client() {
        let calls = ["a", "b", "c"].map(|id| call(id, if id == "b" { "own" } else { "theirs" }));
        let asked = vec![
            Asked::Run(Map::new()),
            Asked::Run(Map::new()),
            Asked::Refused("the arguments are no JSON".to_owned()),
        ];
        let divided = divided(&calls, asked, |name| name == "theirs");
        let own: Vec<&str> = divided.own.iter().map(|(call, _)| call.id.as_str()).collect();
        assert_eq!((own, divided.of_client), (vec!["b", "c"], vec![0]));
    }

    #[test]
    fn a_tool_of_the_bot_precedes_one_of_the_client() {
        let tool = |name: &str| ClientTool {
            name: name.to_owned(),
            description: String::new(),
            parameters: json!({ "type": "object" }),
        };
        let tools = ClientTools { tools: vec![tool("look"), tool("own")], are_alone: false };
        let names: Vec<String> = tools.offered(|name| name == "own").map(|tool| tool.name).collect();
        assert_eq!(names, ["look"]);
    }

    #[test]
    fn the_ids_of_a_message_are_those_of_one_task() {
        let (task, other) = (TaskId::new(), TaskId::new());
        let id = |task: TaskId, position: usize| ClientCallId { task, position }.to_string();
        let ids = |ids: &[String]| ids_of(&said(ids.iter().map(|id| call(id, "look")).collect()));
        assert_eq!(ids(&[id(task, 0), id(task, 2)]).map(|ids| ids.len()), Some(2));
        for none in [vec![], vec![id(task, 0), id(other, 1)], vec![id(task, 0), "call_1".to_owned()]] {
            assert_eq!(ids(&none), None);
        }
        assert_eq!(ids(&[id(task, 0), id(task, 0)]), None, "an id twice");
        assert_eq!(ids_of(&Message::user("Hi")), None);
    }

    #[test]
    fn results_stand_in_the_order_of_the_calls_with_the_ids_of_the_model() {
        let task = TaskId::new();
        let id = ClientCallId { task, position: 1 };
        let last = AssistantMessage { calls: vec![call("x", "own"), call("y", "look")], ..AssistantMessage::default() };
        let results = BTreeMap::from([("x".to_owned(), "mine".to_owned())]);
        let rounds = Rounds { before: vec![said(Vec::new())], last, results, of_client: BTreeSet::from([id]) };
        let mut written = Vec::new();
        rounds.write(&BTreeMap::from([(id.to_string(), "theirs".to_owned())]), &mut written);
        assert_eq!(written.len(), 4);
        assert_eq!(written[2], Message::Tool { call_id: "x".to_owned(), text: "mine".to_owned() });
        let text = "<tool-result tool=\"look\">\ntheirs\n</tool-result>".to_owned();
        assert_eq!(written[3], Message::Tool { call_id: "y".to_owned(), text });
    }
}
