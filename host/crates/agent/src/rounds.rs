//! Asks models: writes the request of a round, tries the models of the bot in their order, and writes the answer with
//! the calls that it asks for to the journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use monstrum_api::tasks::TokenUsage;
use monstrum_core::call_types::call_labels::CallLabels;
use monstrum_core::call_types::incoming::{Attachments, IncomingCall};
use monstrum_core::call_types::round::{
    LLM_COMPLETE, RoundAnswer, RoundDelta, RoundExchange, RoundFailure, RoundRequest, RoundTool,
};
use monstrum_core::call_types::task_step::TaskOfCall;
use monstrum_core::language::Language;
use monstrum_core::models::{self, Candidate};
use monstrum_core::operations::OperationError;
use monstrum_core::operations::bots::prompt_of;
use monstrum_core::operations::tools::{Range, visible};
use monstrum_llm::{FinishReason, Message, ToolCall};
use monstrum_manifest::Effect;
use monstrum_store::{TaskProgress, TaskStepKind, TaskStepRow};
use monstrum_types::{CallOutcome, Code, Labels, RequestId, Status, UtcMillis, with_causes};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client_tools::{self, Divided};
use crate::compact::{Conversation, Room, bytes_of, has_omitted};
use crate::journal::{self, CallContent, RoundContent, StepContent, StepOutcome};
use crate::output;
use crate::own_tools;
use crate::present;
use crate::round::{Asked, Asks};
use crate::runner::{Ending, Interrupted, TaskCode, TaskTurn};
use crate::state::State;

/// The maximum number of tools of a bot that its tasks know. A search among more would slow each round down.
pub(crate) const TOOLS_MAX: usize = 2_000;
/// The maximum number of characters of a stored tool name, as in the audit.
const TOOL_CHARS_MAX: usize = 128;
/// The number of pieces of an answer that wait for their way to the listeners.
const DELTAS_WAITING_MAX: usize = 64;

/// What follows a round.
pub(crate) enum RoundEnd {
    /// The task goes on.
    Goes,
    Ends(Ending),
    /// The task stops.
    Stopped,
}

/// A tool that the bot has now.
pub(crate) struct Offered {
    pub(crate) tool: RoundTool,
    effect: Effect,
    makes_calls: bool,
}

impl Offered {
    /// Returns the effect of the tool. A tool whose plugin makes calls has the effect of these calls, which can be any.
    pub(crate) fn effect(&self) -> Effect {
        if self.makes_calls { Effect::Write } else { self.effect }
    }
}

/// The answer of a model, and the call that asked for it.
pub(crate) struct Answered {
    pub(crate) request_id: RequestId,
    pub(crate) started_at: UtcMillis,
    pub(crate) answer: RoundAnswer,
}

/// For what a model is asked.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    /// The position of the round.
    pub(crate) step: i64,
    /// The labels of what the model reads.
    pub(crate) labels: &'a Labels,
    /// Whether listeners hear the text while it arrives.
    pub(crate) is_heard: bool,
}

/// Why no model answered.
pub(crate) enum NoAnswer {
    Ending(Ending),
    Stopped,
}

impl TaskTurn<'_> {
    /// Asks a model for the next round.
    pub(crate) async fn round(&self, state: &mut State) -> Result<RoundEnd, Interrupted> {
        let app = &self.runner.app;
        let limits = self.content.limits;
        let left = limits.steps.saturating_sub(state.used_steps());
        // The last step is asked for an answer, so that the task has one.
        let is_last = left <= 1;
        let offered = self.offered().await?;
        let snapshot = app.policy.load();
        let (workspace, bot) = (self.row.workspace_id, self.row.bot_id);
        let candidates = match models::candidates(&snapshot, workspace, bot, app.clock.now()) {
            Ok(candidates) => candidates,
            Err(error) => return Ok(RoundEnd::Ends(Ending::Failed(TaskCode::Model, error.to_string()))),
        };
        // The first model decides how long the conversation can be. A fallback with a shorter context can refuse it.
        let context_tokens = candidates.first().map_or(u64::MAX, |first| first.model.context_tokens);
        let mut tools = if is_last { Vec::new() } else { self.tools_of_round(&offered, context_tokens) };
        let tools_bytes: usize = tools.iter().map(size).sum();
        let mut conversation = self.whole_conversation(state, is_last).await?;
        let room = Room::new(context_tokens, state.refused());
        if let Some(through) = conversation.shorten(tools_bytes, room) {
            let record = conversation.take_through(through);
            if !is_last {
                return self.summarise(state, &record, (through, room), &candidates).await;
            }
            conversation.summary = Some(Message::user(present::summary(present::NO_SUMMARY)));
        }
        let bytes = conversation.bytes().saturating_add(tools_bytes);
        let messages = conversation.into_messages();
        if !is_last && (state.has_long_results() || state.has_summary() || has_omitted(&messages)) {
            tools.push(own_tools::read_result());
        }
        // A request that is not smaller than one that was too long is not sent.
        if state.refusals() > 0 && state.refused().is_some_and(|refused| bytes >= refused) {
            return Ok(RoundEnd::Ends(Ending::Failed(TaskCode::Context, present::TOO_LONG.to_owned())));
        }
        let request = RoundRequest { messages, tools, output_tokens: self.output_tokens(), options: self.options() };
        let asking = Asking { step: state.next_sequence(), labels: state.labels(), is_heard: true };
        let answered = match self.ask(&request, &candidates, asking).await? {
            Ok(answered) => answered,
            Err(no_answer) => return Ok(ended_without(state, no_answer, bytes)),
        };
        // One step is this round, and one is for the answer.
        let calls_max = usize::try_from(left.saturating_sub(2)).unwrap_or(usize::MAX);
        self.record(state, answered, &offered, (!is_last, calls_max)).await
    }

    /// Returns what the model is asked, before it is shortened.
    async fn whole_conversation(&self, state: &State, is_last: bool) -> Result<Conversation, Interrupted> {
        let app = &self.runner.app;
        let bot = app.policy.load().bot(self.row.workspace_id, self.row.bot_id).cloned();
        let Some(bot) = bot else { return Err(Interrupted::Gone) };
        let own = prompt_of(app, &bot.row, &Language::default()).await.map_err(|error| failed(&error))?;
        let own = if own.trim().is_empty() { None } else { Some(own) };
        let form = self.content.output_schema.as_ref().map(output::rule);
        let of_event = self.content.source.rule();
        let parts = own.into_iter().chain([present::RULES.to_owned()]).chain(form).chain(of_event);
        let text = parts.collect::<Vec<_>>().join("\n\n");
        let system = Message::System { text: self.with_instructions(text) };
        let last = is_last.then(|| Message::user(present::LAST_STEP));
        Ok(state.conversation(system, last))
    }

    /// Returns the tools that the bot has now, by name.
    pub(crate) async fn offered(&self) -> Result<BTreeMap<String, Offered>, Interrupted> {
        let app = &self.runner.app;
        let (workspace, bot) = (self.row.workspace_id, self.row.bot_id);
        let call = IncomingCall::bot_tool(RequestId::new(), workspace, bot, String::new(), json!({}));
        let call = self.as_started(call);
        let range = Range { after: None, count: TOOLS_MAX };
        let page = match visible(app, &call, bot, Language::default(), range).await {
            Ok(page) => page,
            // A delegation is no longer in force, so the task makes no round and no call.
            Err(_) if self.has_lost_its_grounds() => return Ok(BTreeMap::new()),
            // The bot was deleted.
            Err(OperationError::NotFound(_)) => return Err(Interrupted::Gone),
            Err(error) => return Err(failed(&error)),
        };
        let callers = page.callers;
        let offered = page.tools.into_iter().map(|tool| {
            let makes_calls = callers.contains(&tool.name);
            let name = tool.name.to_string();
            let parameters = tool.input_schema.value();
            let effect = tool.effect;
            let tool = RoundTool { name: name.clone(), description: tool.description, parameters };
            (name, Offered { tool, effect, makes_calls })
        });
        Ok(offered.collect())
    }

    /// Asks the models in their order, until one answers.
    pub(crate) async fn ask(
        &self,
        request: &RoundRequest,
        candidates: &[Candidate],
        asking: Asking<'_>,
    ) -> Result<Result<Answered, NoAnswer>, Interrupted> {
        let mut last = NoAnswer::Ending(Ending::Failed(TaskCode::Model, "the bot has no model".to_owned()));
        for candidate in candidates {
            if self.stops() {
                return Ok(Err(NoAnswer::Stopped));
            }
            let (exchange, outcome, request_id, started_at) = self.exchange(request, candidate, asking).await?;
            if let Some(answer) = exchange.answer() {
                return Ok(Ok(Answered { request_id, started_at, answer: answer.clone() }));
            }
            // The round may have ended with the key or a delegation, before the task noticed it.
            if self.has_lost_its_grounds() {
                return Ok(Err(NoAnswer::Stopped));
            }
            let may_try_next = !exchange.has_sent_delta() && may_try_next(exchange.failure(), &outcome);
            last = NoAnswer::Ending(ending_of(candidate, exchange.failure(), &outcome));
            if !may_try_next {
                break;
            }
        }
        Ok(Err(last))
    }

    /// Runs one round with one model. The texts of the answer go to the listeners while they arrive.
    async fn exchange(
        &self,
        request: &RoundRequest,
        candidate: &Candidate,
        Asking { step, labels, is_heard }: Asking<'_>,
    ) -> Result<(Arc<RoundExchange>, CallOutcome, RequestId, UtcMillis), Interrupted> {
        let app = &self.runner.app;
        let (request_id, started_at) = (RequestId::new(), app.clock.now());
        let (sender, mut pieces) = mpsc::channel(DELTAS_WAITING_MAX);
        // A round without listeners has no channel for its text, so another model can be tried after it breaks.
        let deltas = (is_heard && self.live.has_listeners()).then_some(sender);
        let model = (candidate.model.id.as_str(), candidate.model.output_tokens);
        let exchange = Arc::new(RoundExchange::new(request.clone(), model, deltas));
        let params = Value::Object(exchange.params().clone());
        let (workspace, bot) = (self.row.workspace_id, self.row.bot_id);
        let attachments = Attachments { round: Some(Arc::clone(&exchange)), ..Attachments::default() };
        let call = IncomingCall::bot_tool(request_id, workspace, bot, LLM_COMPLETE.to_owned(), params)
            .with_resource(Some(candidate.resource_id))
            .with_attachments(attachments)
            .with_labels(CallLabels::new(labels.clone()));
        let call = self.of_task(call, TaskOfCall { step: None, lease: self.lease() });
        let send = |delta: RoundDelta| self.live.delta(step, delta.channel, delta.text);
        let mut run = std::pin::pin!(app.calls.run_until(call, &self.stop_calls));
        let ended = loop {
            tokio::select! {
                ended = &mut run => break ended,
                Some(delta) = pieces.recv() => send(delta),
            }
        };
        while let Ok(delta) = pieces.try_recv() {
            send(delta);
        }
        let answer = ended.map_err(|error| Interrupted::Failed(error.to_string()))?;
        Ok((exchange, answer.outcome, request_id, started_at))
    }

    /// Writes a round and the calls that it asks for in one transaction.
    async fn record(
        &self,
        state: &mut State,
        Answered { request_id, started_at, mut answer }: Answered,
        offered: &BTreeMap<String, Offered>,
        (may_call, calls_max): (bool, usize),
    ) -> Result<RoundEnd, Interrupted> {
        let app = &self.runner.app;
        if answer.finish == FinishReason::ContentFilter && answer.message.calls.is_empty() {
            let message = "the provider of the model filtered the answer".to_owned();
            return Ok(RoundEnd::Ends(Ending::Failed(TaskCode::Model, message)));
        }
        if !may_call && !answer.message.text.trim().is_empty() {
            // The model was asked without tools. Its text is the answer.
            answer.message.calls.clear();
        }
        let asks = Asks::of(&answer.message, &answer.finish, may_call);
        let is_cut = self.may_be_cut(&answer);
        let mut note = if is_cut { None } else { note(&answer, may_call) };
        let mut is_misfit = false;
        let is_malformed = asks.is_malformed || note.is_some();
        if note.is_none() && !is_cut && answer.message.calls.is_empty() {
            note = self.misfit(answer.message.text.trim()).await?;
            is_misfit = note.is_some();
        }
        let usage = TokenUsage { input_tokens: answer.usage.input, output_tokens: answer.usage.output };
        let is_of_client = |name: &str| !offered.contains_key(name) && self.client_has(name);
        let Divided { own, of_client } = client_tools::divided(&answer.message.calls, asks.calls, is_of_client);
        let round = RoundContent {
            reasoning: answer.reasoning,
            model: answer.origin.model,
            usage,
            is_malformed,
            is_misfit,
            is_cut,
            note,
            message: answer.message,
            labels: state.labels().clone(),
            client_calls: of_client,
            summary_through: None,
        };
        let now = app.clock.now();
        let first = state.next_sequence();
        let mut round_row = self.step_row(first, TaskStepKind::Round, Some(request_id));
        (round_row.status, round_row.started_at) = (Some(Status::Success.as_str().to_owned()), started_at);
        round_row.ended_at = Some(now);
        round_row.sealed = journal::seal_step(&app.vault, &round_row, &round)?;
        let mut steps = vec![(round_row, StepContent::Round(Box::new(round)))];
        steps.extend(self.planned(own, offered, (first + 1, calls_max))?);
        let progress = TaskProgress {
            task_id: self.row.id,
            input_tokens: i64::try_from(usage.input_tokens).unwrap_or(i64::MAX),
            output_tokens: i64::try_from(usage.output_tokens).unwrap_or(i64::MAX),
            labels: state.unrecorded_labels(),
            steps: steps.iter().map(|(row, _)| row.clone()).collect(),
        };
        if !app.store.advance_task(self.turn.claim(), &progress).await? {
            return Err(Interrupted::Gone);
        }
        state.labels_were_recorded();
        for (row, content) in steps {
            state.add(row, content);
        }
        self.live.changed();
        Ok(RoundEnd::Goes)
    }

    /// Returns the rows and the contents of calls that the task runs or refuses.
    fn planned(
        &self,
        calls: Vec<(ToolCall, Asked)>,
        offered: &BTreeMap<String, Offered>,
        (first, calls_max): (i64, usize),
    ) -> Result<Vec<(TaskStepRow, StepContent)>, Interrupted> {
        let vault = &self.runner.app.vault;
        let mut steps = Vec::with_capacity(calls.len());
        let mut planned = 0;
        for (sequence, (call, asked)) in (first..).zip(calls) {
            let asked = match asked {
                Asked::Run(_) if planned >= calls_max => {
                    Asked::Refused("This call did not run: the task has no steps left for it.".to_owned())
                }
                asked => asked,
            };
            let (tool, asked) = own_tools::aimed(&call, asked);
            let (effect, makes_calls) = planned_as(&tool, offered.get(&tool));
            let (params, outcome) = match asked {
                Asked::Run(params) => (params, None),
                Asked::Refused(message) => {
                    (Default::default(), Some(StepOutcome::failed(Code::InvalidParams, message)))
                }
            };
            planned += usize::from(outcome.is_none());
            let mut row = self.step_row(sequence, TaskStepKind::Call, outcome.is_none().then(RequestId::new));
            row.tool = Some(tool_name(&tool));
            row.effect = Some(effect.as_str().to_owned());
            if let Some(outcome) = &outcome {
                (row.status, row.ended_at) = (Some(outcome.status.as_str().to_owned()), Some(row.started_at));
            }
            let content = CallContent { call_id: call.id, params, makes_calls, outcome };
            row.sealed = journal::seal_step(vault, &row, &content)?;
            steps.push((row, StepContent::Call(Box::new(content))));
        }
        Ok(steps)
    }

    /// Returns the row of a new step.
    fn step_row(&self, sequence: i64, kind: TaskStepKind, request_id: Option<RequestId>) -> TaskStepRow {
        TaskStepRow {
            task_id: self.row.id,
            sequence,
            workspace_id: self.row.workspace_id,
            kind,
            request_id,
            tool: None,
            effect: None,
            status: None,
            started_at: self.runner.app.clock.now(),
            ended_at: None,
            sealed: String::new(),
        }
    }
}

/// Returns what follows a round of this size without an answer. One that was too long is tried once more, and smaller.
pub(crate) fn ended_without(state: &mut State, no_answer: NoAnswer, bytes: usize) -> RoundEnd {
    match no_answer {
        NoAnswer::Ending(Ending::Failed(TaskCode::Context, _)) if state.was_refused(bytes) => RoundEnd::Goes,
        NoAnswer::Ending(ending) => RoundEnd::Ends(ending),
        NoAnswer::Stopped => RoundEnd::Stopped,
    }
}

/// Returns the tools of a request: those of the bot or, if they are too many, those with which the model finds them.
pub(crate) fn tools_of(offered: &BTreeMap<String, Offered>, context_tokens: u64) -> Vec<RoundTool> {
    let bytes: usize = offered.values().map(|offered| size(&offered.tool)).sum();
    let is_fit =
        offered.len() <= own_tools::TOOLS_OFFERED_MAX && bytes <= bytes_of(context_tokens) / own_tools::TOOLS_SHARE;
    match is_fit {
        true => offered.values().map(|offered| offered.tool.clone()).collect(),
        false => own_tools::search_tools(offered.len()).to_vec(),
    }
}

fn size(tool: &RoundTool) -> usize {
    tool.name.len() + tool.description.len() + tool.parameters.to_string().len()
}

/// Returns the effect of a planned call, and whether its plugin makes calls. The pipeline may run a tool that was not
/// offered: one that the bot has just been given, or one beyond the maximum of a request. It counts as the gravest.
fn planned_as(tool: &str, offered: Option<&Offered>) -> (Effect, bool) {
    if own_tools::is_own(tool) {
        return (Effect::Read, false);
    }
    offered.map_or((Effect::Write, true), |tool| (tool.effect(), tool.makes_calls))
}

/// Returns the name of a tool that a model wrote, as it is stored. Names of tools that exist are not changed.
fn tool_name(written: &str) -> String {
    written.chars().take(TOOL_CHARS_MAX).map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Returns what a model reads after an answer without calls that is not an answer.
fn note(answer: &RoundAnswer, may_call: bool) -> Option<String> {
    if !answer.message.calls.is_empty() && may_call {
        return None;
    }
    if answer.finish == FinishReason::Length {
        let note = "Your answer was cut at the limit of output tokens. Answer again, and be shorter.";
        return Some(note.to_owned());
    }
    let is_empty = answer.message.text.trim().is_empty() && answer.message.calls.is_empty();
    is_empty.then(|| "Your answer was empty. Continue with the task, or answer.".to_owned())
}

/// Returns whether another model may be asked after a round without an answer. A round that was refused before it began
/// may find room or permission with another model, but not if the budget is spent.
fn may_try_next(failure: Option<RoundFailure>, outcome: &CallOutcome) -> bool {
    match failure {
        Some(failure) => failure.may_try_next_model(),
        None => matches!(outcome.code, Some(Code::Busy | Code::Limit | Code::Unavailable | Code::Denied | Code::Scope)),
    }
}

/// Returns how a task ends whose last model did not answer.
fn ending_of(candidate: &Candidate, failure: Option<RoundFailure>, outcome: &CallOutcome) -> Ending {
    let name = format!("{}/{}", candidate.resource_name, candidate.model.id);
    let message = outcome.message.as_deref().unwrap_or("the call of the model failed");
    let code = match (failure, outcome.code) {
        (Some(RoundFailure::ContextLength), _) => TaskCode::Context,
        (None, Some(Code::Budget)) => TaskCode::Budget,
        _ => TaskCode::Model,
    };
    Ending::Failed(code, format!("the model {name} did not answer: {message}"))
}

fn failed(error: &OperationError) -> Interrupted {
    Interrupted::Failed(with_causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_or_large_tools_are_searched() {
        let offered = |count: usize, bytes: usize| -> BTreeMap<String, Offered> {
            let tool = |number: usize| {
                let (name, description) = (format!("tool_{number}"), "x".repeat(bytes));
                let tool = RoundTool { name: name.clone(), description, parameters: json!({}) };
                (name, Offered { tool, effect: Effect::Read, makes_calls: false })
            };
            (0..count).map(tool).collect()
        };
        let names = |offered: &BTreeMap<String, Offered>| {
            tools_of(offered, 10_000).into_iter().map(|tool| tool.name).collect::<Vec<_>>()
        };
        let search = [own_tools::FIND_TOOLS, own_tools::CALL_TOOL];
        assert_eq!(names(&offered(64, 10)).len(), 64);
        assert_eq!(names(&offered(65, 10)), search);
        assert_eq!(names(&offered(2, 3_500)), search, "they take over a fifth of 30 000 bytes");
        assert_eq!(names(&offered(2, 2_500)).len(), 2);
    }

    #[test]
    fn a_tool_that_was_not_offered_counts_as_a_write() {
        let offered = |effect, makes_calls| {
            let parameters = json!({});
            let tool = RoundTool { name: "echo".to_owned(), description: String::new(), parameters };
            Offered { tool, effect, makes_calls }
        };
        assert_eq!(planned_as("echo", Some(&offered(Effect::Read, false))), (Effect::Read, false));
        assert_eq!(planned_as("echo", Some(&offered(Effect::Read, true))), (Effect::Write, true));
        assert_eq!(planned_as("echo", None), (Effect::Write, true));
        assert_eq!(planned_as(own_tools::READ_RESULT, None), (Effect::Read, false));
    }
}
