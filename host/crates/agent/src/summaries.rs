//! Rounds that summarise the oldest part of a conversation, so that it fits into the context of the model again.
//!
//! A summary is a round like any other: it is a call of the pipeline, it is charged, and it is a step of the journal. It
//! takes effect with its step, in one transaction: after a crash the task has the summary, or asks for it again. The text
//! comes from results, so the step has the labels of all that the model had read.

use monstrum_api::tasks::TokenUsage;
use monstrum_core::call_types::round::{RoundOptions, RoundRequest};
use monstrum_core::models::Candidate;
use monstrum_llm::{Message, Part};
use monstrum_store::{TaskProgress, TaskStepKind, TaskStepRow};
use monstrum_types::Status;

use crate::compact::Room;
use crate::journal::{self, RoundContent, StepContent};
use crate::present::{self, NO_SUMMARY, SUMMARISE};
use crate::rounds::{Answered, Asking, RoundEnd, ended_without};
use crate::runner::{Interrupted, TaskTurn};
use crate::state::State;

/// The maximum number of tokens of a summary, with what the model thinks before it.
const SUMMARY_TOKENS_MAX: u64 = 4_096;
/// The smallest part of a message that is summarised, if not all of it fits: enough for its kind and its beginning.
const MESSAGE_BYTES_MIN: usize = 200;

impl TaskTurn<'_> {
    /// Asks the model for a summary of `record`, the messages up to the round `through`, and writes it to the journal.
    pub(crate) async fn summarise(
        &self,
        state: &mut State,
        record: &[Message],
        (through, room): (i64, Room),
        candidates: &[Candidate],
    ) -> Result<RoundEnd, Interrupted> {
        let instruction = present::instruction(&self.content.instruction, self.content.params.as_ref());
        let messages = vec![
            Message::System { text: SUMMARISE.to_owned() },
            Message::user(asked(&instruction, record, room.record_bytes())),
        ];
        let bytes = messages.iter().map(bytes_of).sum();
        let output_tokens = Some(SUMMARY_TOKENS_MAX);
        let request = RoundRequest { messages, tools: Vec::new(), output_tokens, options: RoundOptions::default() };
        let asking = Asking { step: state.next_sequence(), labels: state.labels(), is_heard: false };
        match self.ask(&request, candidates, asking).await? {
            Ok(answered) => self.record_summary(state, answered, (through, room)).await,
            Err(no_answer) => Ok(ended_without(state, no_answer, bytes)),
        }
    }

    async fn record_summary(
        &self,
        state: &mut State,
        Answered { request_id, started_at, mut answer }: Answered,
        (through, room): (i64, Room),
    ) -> Result<RoundEnd, Interrupted> {
        let app = &self.runner.app;
        let usage = TokenUsage { input_tokens: answer.usage.input, output_tokens: answer.usage.output };
        answer.message.calls.clear();
        answer.message.text = kept(&answer.message.text, room.summary_bytes());
        let round = RoundContent {
            message: answer.message,
            reasoning: String::new(),
            model: answer.origin.model,
            usage,
            is_malformed: false,
            is_misfit: false,
            is_cut: false,
            note: None,
            labels: state.labels().clone(),
            client_calls: Vec::new(),
            summary_through: Some(through),
        };
        let mut row = TaskStepRow {
            task_id: self.row.id,
            sequence: state.next_sequence(),
            workspace_id: self.row.workspace_id,
            kind: TaskStepKind::Round,
            request_id: Some(request_id),
            tool: None,
            effect: None,
            status: Some(Status::Success.as_str().to_owned()),
            started_at,
            ended_at: Some(app.clock.now()),
            sealed: String::new(),
        };
        row.sealed = journal::seal_step(&app.vault, &row, &round)?;
        let progress = TaskProgress {
            task_id: self.row.id,
            input_tokens: i64::try_from(usage.input_tokens).unwrap_or(i64::MAX),
            output_tokens: i64::try_from(usage.output_tokens).unwrap_or(i64::MAX),
            labels: state.unrecorded_labels(),
            steps: vec![row.clone()],
        };
        if !app.store.advance_task(self.turn.claim(), &progress).await? {
            return Err(Interrupted::Gone);
        }
        state.labels_were_recorded();
        state.add(row, StepContent::Summary(Box::new(round)));
        self.live.changed();
        Ok(RoundEnd::Goes)
    }
}

/// Returns the text of a summary, which must not take the room that it makes.
fn kept(text: &str, bytes_max: usize) -> String {
    let text = text.trim();
    match text.is_empty() {
        true => NO_SUMMARY.to_owned(),
        false => text[..text.floor_char_boundary(bytes_max)].to_owned(),
    }
}

/// Returns what the model is asked to summarise. If the record has more than `bytes_max`, each message is cut.
fn asked(instruction: &str, record: &[Message], bytes_max: usize) -> String {
    let texts: Vec<(&str, String)> = record.iter().map(shown).collect();
    let total: usize = texts.iter().map(|(_, text)| text.len()).sum();
    let share = match total > bytes_max {
        true => (bytes_max / texts.len().max(1)).max(MESSAGE_BYTES_MIN),
        false => usize::MAX,
    };
    let beginning = &instruction[..instruction.floor_char_boundary(bytes_max / 4)];
    let mut asked = format!("The task:\n{beginning}\n\nThe record to summarise, as data:\n");
    for (who, text) in texts {
        let cut = text.floor_char_boundary(share);
        let mark = if cut < text.len() { " […]" } else { "" };
        asked.push_str(&format!("\n[{who}]\n{}{mark}\n", &text[..cut]));
    }
    asked
}

/// Returns who wrote a message, and its text.
fn shown(message: &Message) -> (&'static str, String) {
    match message {
        Message::System { text } => ("system", text.clone()),
        Message::User { parts } => ("user", parts.iter().map(text_of).collect::<Vec<_>>().join("\n")),
        Message::Assistant(message) => {
            let calls = message.calls.iter().map(|call| format!("calls {} {}", call.name, call.arguments.as_str()));
            let text = Some(message.text.clone()).filter(|text| !text.is_empty());
            ("assistant", text.into_iter().chain(calls).collect::<Vec<_>>().join("\n"))
        }
        Message::Tool { text, .. } => ("result", text.clone()),
    }
}

fn text_of(part: &Part) -> &str {
    match part {
        Part::Text { text } => text,
        Part::Image { .. } => "(an image)",
    }
}

fn bytes_of(message: &Message) -> usize {
    shown(message).1.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_record_is_cut_message_by_message() {
        let record = vec![
            Message::user("first"),
            Message::Tool { call_id: "c".to_owned(), text: "é".repeat(2_000) },
            Message::user("last"),
        ];
        let whole = asked("Do it.", &record, 10_000);
        assert!(whole.contains("[result]") && !whole.contains('…'), "{whole}");
        let cut = asked("Do it.", &record, 900);
        assert!(cut.len() < 900 && cut.contains("first") && cut.contains(" […]") && cut.contains("last"), "{cut}");
    }

    #[test]
    fn a_summary_is_bounded_and_never_empty() {
        assert_eq!(kept(" \n", 100), NO_SUMMARY);
        assert_eq!(kept(" ééé ", 3), "é");
    }
}
