//! How a task ends between two rounds.

use crate::answers::ANSWER_BYTES_MAX;
use crate::output::MISFITS_MAX;
use crate::round::MALFORMED_ROUNDS_MAX;
use crate::runner::{Ending, Interrupted, TaskCode, TaskTurn};
use crate::state::State;

impl TaskTurn<'_> {
    /// Returns how the task ends, if it ends between two rounds.
    pub(crate) fn ending(&self, state: &State) -> Option<Ending> {
        let failed = |code, message: &str| Some(Ending::Failed(code, message.to_owned()));
        let limits = self.content.limits;
        if let Some(answer) = state.answer() {
            let answer = if self.content.output_schema.is_some() { answer.trim() } else { answer };
            return Some(Ending::Completed(answer.to_owned()));
        }
        // The client has as much text as an answer may have, so no further round is asked.
        if self.content.request.is_some()
            && let Some(text) = state.last_text_of_many(ANSWER_BYTES_MAX)
        {
            return Some(Ending::Completed(text.to_owned()));
        }
        if state.is_stuck() {
            let message =
                "the task makes no progress: the bot repeats one call with the same result, or all its calls fail";
            return failed(TaskCode::Stuck, message);
        }
        if state.malformed() >= MALFORMED_ROUNDS_MAX {
            let message = "the model did not manage to write its calls or its answer in three rounds in a row";
            return failed(TaskCode::ModelOutput, message);
        }
        let has_used_its_steps = state.used_steps() >= limits.steps;
        if state.misfits() >= MISFITS_MAX || (state.is_misfit() && has_used_its_steps) {
            let message = "the model did not manage to write an answer that fits `output_schema`";
            return failed(TaskCode::ModelOutput, message);
        }
        if has_used_its_steps {
            return failed(TaskCode::Steps, "the task has used all its steps without an answer");
        }
        let used = state.usage().input_tokens.saturating_add(state.usage().output_tokens);
        if limits.tokens.is_some_and(|limit| used >= limit) {
            return failed(TaskCode::Budget, "the task has used all its tokens without an answer");
        }
        None
    }

    /// Returns whether the rounds and calls of the task have cost all credits that it has.
    pub(crate) async fn has_spent_its_credits(&self) -> Result<bool, Interrupted> {
        const MILLIONTHS: f64 = 1_000_000.0;
        let Some(limit) = self.content.limits.credits else { return Ok(false) };
        let (store, task) = (&self.runner.app.store, self.row.id.to_string());
        let months = store.usage(self.row.workspace_id, self.row.bot_id, Some(&task)).await?;
        let spent: i64 = months.iter().map(|month| month.credits_millionths).fold(0, i64::saturating_add);
        let spent = spent as f64;
        Ok(spent >= limit * MILLIONTHS)
    }
}
