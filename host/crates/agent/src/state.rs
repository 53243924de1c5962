//! The state of a task: what its journal says, as the conversation with the model and the counts of the guards.

use monstrum_api::tasks::TokenUsage;
use monstrum_llm::Message;
use monstrum_manifest::Effect;
use monstrum_store::TaskStepRow;
use monstrum_types::{Labels, RequestId};

use crate::compact::{Conversation, Round};
use crate::guards::{EndedCall, Guards, Verdict};
use crate::journal::{CallContent, RoundContent, StepContent, StepOutcome};
use crate::present::{self, Shown};
use crate::round::malformed_in_a_row;

/// A call that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCall {
    pub(crate) row: TaskStepRow,
    pub(crate) content: CallContent,
}

impl PlannedCall {
    /// Returns the effect of the tool when the call was planned. An effect that cannot be read counts as the gravest.
    #[must_use]
    pub(crate) fn effect(&self) -> Effect {
        self.row.effect.as_deref().and_then(Effect::from_word).unwrap_or(Effect::Write)
    }

    /// Returns the id of the call in the audit.
    #[must_use]
    pub(crate) fn request_id(&self) -> Option<RequestId> {
        self.row.request_id
    }
}

/// The state of a task.
#[derive(Debug, Default)]
pub(crate) struct State {
    messages: Vec<Message>,
    /// The number of messages of earlier tasks, which precede the instruction.
    earlier: usize,
    /// The position of each round, and of its first message in `messages`.
    rounds: Vec<(i64, usize)>,
    /// The newest summary: its text, and the last round that it has in it.
    summary: Option<(String, i64)>,
    /// The size of the last request that was too long for the model, and the number of such requests in a row.
    refused: Option<usize>,
    refusals: u32,
    /// The calls of the last round, in the order in which the model asked for them, each with its result.
    calls: Vec<(PlannedCall, Option<StepOutcome>)>,
    /// What the model reads after the results of the last round.
    note: Option<String>,
    guards: Guards,
    is_stuck: bool,
    malformed: u32,
    /// The number of answers that do not fit the schema of the task, and whether the last round has such an answer.
    misfits: u32,
    is_misfit: bool,
    last_sequence: i64,
    used_steps: u32,
    usage: TokenUsage,
    /// The text of the last round, if it asked for nothing more than calls of the client's tools.
    answer: Option<String>,
    /// The length of the texts of all rounds.
    said_bytes: usize,
    /// The labels of what the model has read.
    labels: Labels,
    /// Whether a result was too long to be read whole.
    has_long_results: bool,
    /// Whether the labels are those of the last round that is in the journal.
    has_recorded_labels: bool,
}

impl State {
    /// Creates the state of a task that begins with `messages`: those of earlier tasks, and the instruction. `labels` are
    /// those of the messages.
    #[must_use]
    pub(crate) fn new(messages: Vec<Message>, labels: Labels) -> State {
        State { earlier: messages.len().saturating_sub(1), messages, labels, ..State::default() }
    }

    /// Creates the state of a task whose client sends the whole conversation. Its messages are never left out: the client
    /// decides what the model reads.
    #[must_use]
    pub(crate) fn of_conversation(messages: Vec<Message>, labels: Labels) -> State {
        State { messages, labels, ..State::default() }
    }

    /// Adds a step of the journal. Steps are added in their order.
    pub(crate) fn add(&mut self, row: TaskStepRow, content: StepContent) {
        self.last_sequence = row.sequence;
        match content {
            StepContent::Round(round) => self.add_round(row.sequence, *round),
            StepContent::Summary(round) => self.add_summary(*round),
            StepContent::Call(content) => {
                let outcome = content.outcome.clone();
                self.used_steps += u32::from(row.request_id.is_some());
                self.calls.push((PlannedCall { row, content: *content }, outcome));
            }
        }
    }

    fn add_round(&mut self, sequence: i64, round: RoundContent) {
        self.count(&round);
        self.refusals = 0;
        self.malformed = malformed_in_a_row(self.malformed, round.is_malformed);
        self.misfits += u32::from(round.is_misfit);
        self.is_misfit = round.is_misfit;
        // With calls of a client's tools, the client has the next word.
        let asks_here = !round.message.calls.is_empty() && round.client_calls.is_empty();
        let is_last = !asks_here && round.note.is_none();
        self.said_bytes = self.said_bytes.saturating_add(round.message.text.len());
        self.answer = is_last.then(|| round.message.text.clone());
        self.note = round.note;
        self.rounds.push((sequence, self.messages.len()));
        self.messages.push(Message::Assistant(round.message));
    }

    fn add_summary(&mut self, round: RoundContent) {
        self.count(&round);
        self.summary = round.summary_through.map(|through| (round.message.text, through));
    }

    /// Counts what every round uses. The round follows the results of the one before it.
    fn count(&mut self, round: &RoundContent) {
        self.close_round();
        self.used_steps += 1;
        self.usage.input_tokens = self.usage.input_tokens.saturating_add(round.usage.input_tokens);
        self.usage.output_tokens = self.usage.output_tokens.saturating_add(round.usage.output_tokens);
        self.labels.add(&round.labels);
    }

    /// Records the end of a call.
    pub(crate) fn end(&mut self, sequence: i64, outcome: StepOutcome) {
        if let Some((_, end)) = self.calls.iter_mut().find(|(call, _)| call.row.sequence == sequence) {
            *end = Some(outcome);
        }
    }

    /// Returns the calls that have not ended, in the order in which the model asked for them.
    #[must_use]
    pub(crate) fn unended(&self) -> Vec<PlannedCall> {
        self.calls.iter().filter(|(_, outcome)| outcome.is_none()).map(|(call, _)| call.clone()).collect()
    }

    /// Adds the results of the last round to the conversation. All its calls must have ended.
    pub(crate) fn close_round(&mut self) {
        for (call, outcome) in std::mem::take(&mut self.calls) {
            let Some(outcome) = outcome else { continue };
            // The model reads the result now, and not before: the calls of a round were asked for without it.
            let before = self.labels.clone();
            self.labels.add(&outcome.labels);
            self.has_recorded_labels &= self.labels == before;
            self.has_long_results |= outcome.data.as_ref().is_some_and(|data| data.len() > present::RESULT_BYTES_MAX);
            let tool = call.row.tool.as_deref().unwrap_or_default();
            let params = serde_json::to_string(&call.content.params).unwrap_or_default();
            let result = outcome.data.as_deref().or(outcome.message.as_deref()).unwrap_or_default();
            let verdict = self.guards.count(EndedCall { tool, params: &params, status: outcome.status, result });
            self.is_stuck |= verdict == Verdict::Stuck;
            let text = present::result(&Shown {
                tool,
                step: call.row.sequence.unsigned_abs(),
                status: outcome.status,
                code: outcome.code,
                message: outcome.message.as_deref(),
                data: outcome.data.as_deref(),
                note: (verdict != Verdict::GoOn).then_some(present::REPEATED),
            });
            self.messages.push(Message::Tool { call_id: call.content.call_id, text });
        }
        if let Some(note) = self.note.take() {
            self.messages.push(Message::user(note));
        }
    }

    /// Returns whether a result of the task was too long to be read whole.
    #[must_use]
    pub(crate) fn has_long_results(&self) -> bool {
        self.has_long_results
    }

    /// Returns the labels of what the model has read.
    #[must_use]
    pub(crate) fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Returns the labels if they are to be written with the next round.
    #[must_use]
    pub(crate) fn unrecorded_labels(&self) -> Option<Labels> {
        (!self.has_recorded_labels).then(|| self.labels.clone())
    }

    /// Records that the labels were written.
    pub(crate) fn labels_were_recorded(&mut self) {
        self.has_recorded_labels = true;
    }

    /// Returns the labels of the results that the model has not read.
    #[must_use]
    pub(crate) fn labels_of_results(&self) -> Labels {
        let mut labels = Labels::none();
        for outcome in self.calls.iter().filter_map(|(_, outcome)| outcome.as_ref()) {
            labels.add(&outcome.labels);
        }
        labels
    }

    /// Returns all messages, those that a summary stands for included.
    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns what the model is asked: the conversation between the system prompt and the last note. What was summarised is
    /// left out.
    #[must_use]
    pub(crate) fn conversation(&self, system: Message, last: Option<Message>) -> Conversation {
        let first = self.rounds.first().map_or(self.messages.len(), |(_, first)| *first);
        let (before, _) = self.messages.split_at(first);
        let (earlier, instruction) = before.split_at(self.earlier.min(first));
        let through = self.summary.as_ref().map_or(-1, |(_, through)| *through);
        let ends = self.rounds.iter().skip(1).map(|(_, first)| *first).chain([self.messages.len()]);
        let rounds = self.rounds.iter().zip(ends).filter(|((sequence, _), _)| *sequence > through);
        let round = |(&(sequence, first), end): (&(i64, usize), usize)| {
            let messages = self.messages.get(first..end).unwrap_or_default().to_vec();
            Round { sequence, messages }
        };
        Conversation {
            system,
            earlier: if through < 0 { earlier.to_vec() } else { Vec::new() },
            instruction: instruction.to_vec(),
            summary: self.summary.as_ref().map(|(text, _)| Message::user(present::summary(text))),
            rounds: rounds.map(round).collect(),
            last,
        }
    }

    /// Returns whether the model can ask for results that it no longer sees.
    #[must_use]
    pub(crate) fn has_summary(&self) -> bool {
        self.summary.is_some()
    }

    /// Returns the size of the last request that was too long for the model.
    #[must_use]
    pub(crate) fn refused(&self) -> Option<usize> {
        self.refused
    }

    /// Returns the number of requests in a row that were too long for the model.
    #[must_use]
    pub(crate) fn refusals(&self) -> u32 {
        self.refusals
    }

    /// Records that a request of this size was too long for the model. Returns whether a smaller one is to be tried: once
    /// until a round succeeds.
    #[must_use]
    pub(crate) fn was_refused(&mut self, bytes: usize) -> bool {
        self.refused = Some(bytes);
        self.refusals += 1;
        self.refusals == 1
    }

    /// Returns the text of the last round, if the model asked for nothing more.
    #[must_use]
    pub(crate) fn answer(&self) -> Option<&str> {
        self.answer.as_deref()
    }

    /// Returns the text of the last round, if the texts of all rounds have at least `bytes_max` bytes.
    #[must_use]
    pub(crate) fn last_text_of_many(&self, bytes_max: usize) -> Option<&str> {
        let said = self.messages.iter().rev().find_map(|message| match message {
            Message::Assistant(said) => Some(said.text.as_str()),
            _ => None,
        });
        said.filter(|_| self.said_bytes >= bytes_max)
    }

    /// Returns whether the task makes no progress.
    #[must_use]
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Returns the number of rounds in a row with calls that could not run.
    #[must_use]
    pub(crate) fn malformed(&self) -> u32 {
        self.malformed
    }

    /// Returns the number of answers that do not fit the schema of the task.
    #[must_use]
    pub(crate) fn misfits(&self) -> u32 {
        self.misfits
    }

    /// Returns whether the last round has an answer that does not fit the schema of the task.
    #[must_use]
    pub(crate) fn is_misfit(&self) -> bool {
        self.is_misfit
    }

    /// Returns the position of the next step.
    #[must_use]
    pub(crate) fn next_sequence(&self) -> i64 {
        self.last_sequence + 1
    }

    /// Returns the number of steps: rounds, and calls that reached the pipeline.
    #[must_use]
    pub(crate) fn used_steps(&self) -> u32 {
        self.used_steps
    }

    /// Returns the tokens that the rounds have used.
    #[must_use]
    pub(crate) fn usage(&self) -> TokenUsage {
        self.usage
    }
}

#[cfg(test)]
mod tests {
    use monstrum_llm::{Arguments, AssistantMessage, ToolCall};
    use monstrum_store::TaskStepKind;
    use monstrum_types::{Code, Status, TaskId, UtcMillis, WorkspaceId};
    use serde_json::Map;

    use super::*;

    fn row(sequence: i64, kind: TaskStepKind) -> TaskStepRow {
        TaskStepRow {
            task_id: TaskId::new(),
            sequence,
            workspace_id: WorkspaceId::new(),
            kind,
            request_id: Some(RequestId::new()),
            tool: (kind == TaskStepKind::Call).then(|| "echo".to_owned()),
            effect: Some("read".to_owned()),
            status: None,
            started_at: UtcMillis(0),
            ended_at: None,
            sealed: String::new(),
        }
    }

    fn round(text: &str, calls: &[&str]) -> StepContent {
        let call = |id: &&str| ToolCall {
            id: (*id).to_owned(),
            name: "echo".to_owned(),
            arguments: Arguments::new("{}".to_owned()),
            extra: Map::new(),
            function_extra: Map::new(),
        };
        let calls = calls.iter().map(call).collect();
        StepContent::Round(Box::new(RoundContent {
            message: AssistantMessage { text: text.to_owned(), calls, ..AssistantMessage::default() },
            reasoning: String::new(),
            model: "m".to_owned(),
            usage: TokenUsage { input_tokens: 10, output_tokens: 2 },
            is_malformed: false,
            is_cut: false,
            note: None,
            labels: Labels::none(),
            is_misfit: false,
            client_calls: Vec::new(),
            summary_through: None,
        }))
    }

    fn call(id: &str, outcome: Option<StepOutcome>) -> StepContent {
        let (params, makes_calls) = (Map::new(), false);
        StepContent::Call(Box::new(CallContent { call_id: id.to_owned(), params, makes_calls, outcome }))
    }

    #[test]
    fn results_stand_in_the_order_in_which_they_were_asked_for() {
        let mut state = State::new(vec![Message::user("go")], Labels::none());
        state.add(row(1, TaskStepKind::Round), round("", &["a", "b"]));
        state.add(row(2, TaskStepKind::Call), call("a", None));
        state.add(row(3, TaskStepKind::Call), call("b", Some(StepOutcome::failed(Code::InvalidParams, "bad"))));
        assert_eq!(state.unended().len(), 1);
        let (data, labels) = (Some("1".to_owned()), Labels::from_text("untrusted"));
        let done = StepOutcome { status: Status::Success, code: None, message: None, data, labels };
        state.end(2, done);
        assert!(state.labels().is_none(), "the model has not read the result");
        state.labels_were_recorded();
        state.close_round();
        assert_eq!(state.unrecorded_labels(), Some(Labels::from_text("untrusted")));
        let ids: Vec<&str> = state
            .messages
            .iter()
            .filter_map(|message| match message {
                Message::Tool { call_id, .. } => Some(call_id.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!((ids, state.answer()), (vec!["a", "b"], None));
        state.add(row(4, TaskStepKind::Round), round("done", &[]));
        assert_eq!((state.answer(), state.used_steps(), state.next_sequence()), (Some("done"), 4, 5));
        assert_eq!(state.usage(), TokenUsage { input_tokens: 20, output_tokens: 4 });
    }

    #[test]
    fn the_texts_of_all_rounds_are_counted() {
        let mut state = State::of_conversation(vec![Message::user("go")], Labels::none());
        state.add(row(1, TaskStepKind::Round), round("12345", &["a"]));
        state.add(row(2, TaskStepKind::Call), call("a", Some(StepOutcome::failed(Code::Plugin, "no"))));
        state.close_round();
        assert_eq!(state.last_text_of_many(6), None);
        state.add(row(3, TaskStepKind::Round), round("6", &["a"]));
        state.add(row(4, TaskStepKind::Call), call("a", Some(StepOutcome::failed(Code::Plugin, "no"))));
        state.close_round();
        assert_eq!((state.last_text_of_many(6), state.last_text_of_many(7)), (Some("6"), None));
    }

    #[test]
    fn a_round_with_calls_of_the_client_is_the_last_one() {
        let mut state = State::of_conversation(vec![Message::user("go")], Labels::none());
        let StepContent::Round(mut asked) = round("Let me see.", &["a", "b"]) else { panic!("a round") };
        asked.client_calls = vec![1];
        state.add(row(1, TaskStepKind::Round), StepContent::Round(asked));
        state.add(row(2, TaskStepKind::Call), call("a", None));
        assert_eq!((state.unended().len(), state.answer()), (1, Some("Let me see.")));
    }

    #[test]
    fn a_task_is_stuck_after_five_same_calls() {
        let mut state = State::new(Vec::new(), Labels::none());
        for sequence in 0..5 {
            assert!(!state.is_stuck());
            let failed = StepOutcome::failed(Code::Plugin, "no");
            state.add(row(2 * sequence + 1, TaskStepKind::Round), round("", &["a"]));
            state.add(row(2 * sequence + 2, TaskStepKind::Call), call("a", Some(failed)));
            state.close_round();
        }
        assert!(state.is_stuck());
        let told = |message: &&Message| matches!(message, Message::Tool { text, .. } if text.contains("same result"));
        assert_eq!(state.messages.iter().filter(told).count(), 3);
    }

    #[test]
    fn a_summary_takes_the_place_of_what_it_summarises() {
        let said = |text: &str| Message::Assistant(AssistantMessage { text: text.to_owned(), ..Default::default() });
        let mut state = State::new(vec![Message::user("before"), said("ok"), Message::user("go")], Labels::none());
        for sequence in [1, 3, 5] {
            state.add(row(sequence, TaskStepKind::Round), round("look", &["a"]));
            state.add(row(sequence + 1, TaskStepKind::Call), call("a", Some(StepOutcome::failed(Code::Plugin, "no"))));
            state.close_round();
        }
        let system = || Message::System { text: "s".to_owned() };
        let whole = state.conversation(system(), None);
        assert_eq!((whole.earlier.len(), whole.instruction.len(), whole.rounds.len()), (2, 1, 3));
        assert!(whole.rounds.iter().all(|round| round.messages.len() == 2), "each call has its result");
        let StepContent::Round(mut content) = round("found nothing", &[]) else { panic!("it is a round") };
        content.summary_through = Some(3);
        state.add(row(7, TaskStepKind::Round), StepContent::Summary(content));
        let short = state.conversation(system(), None);
        let sequences: Vec<i64> = short.rounds.iter().map(|round| round.sequence).collect();
        assert_eq!((short.earlier.len(), short.instruction, sequences), (0, vec![Message::user("go")], vec![5]));
        let Some(Message::User { parts }) = short.summary else { panic!("there is no summary") };
        assert!(format!("{parts:?}").contains("found nothing"));
        assert_eq!((state.answer(), state.used_steps(), state.next_sequence()), (None, 7, 8));
    }

    #[test]
    fn a_request_that_was_too_long_is_made_smaller_once() {
        let mut state = State::new(Vec::new(), Labels::none());
        assert!(state.was_refused(100) && !state.was_refused(90));
        state.add(row(1, TaskStepKind::Round), round("ok", &[]));
        assert!(state.was_refused(95));
        assert_eq!(state.refused(), Some(95));
    }

    #[test]
    fn an_effect_that_cannot_be_read_is_a_write() {
        let content = CallContent { call_id: "a".to_owned(), params: Map::new(), makes_calls: false, outcome: None };
        let mut planned = PlannedCall { row: row(1, TaskStepKind::Call), content };
        assert_eq!(planned.effect(), Effect::Read);
        planned.row.effect = Some("harmless".to_owned());
        assert_eq!(planned.effect(), Effect::Write);
    }
}
