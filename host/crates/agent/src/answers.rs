//! The answers of tasks to clients that wait for them: whole, or the text as it arrives.
//!
//! The text of a task is the text of all its rounds, in their order. A listener gets each piece of it once.

use std::time::Duration;

use monstrum_api::tasks::Task;
use monstrum_core::call_types::round::RoundChannel;
use monstrum_core::operations::{Caller, OperationError};
use monstrum_store::{TaskRow, TaskStatus};
use monstrum_types::TaskId;

use crate::attendance::Attendance;
use crate::client_tools::{self, ClientCall};
use crate::following::{Following, TaskEvent};
use crate::journal::{self, StepContent};
use crate::tasks::{STEPS_READ, Tasks, internal};

/// The interval at which the row of a task is read, for tasks of other hosts.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum size of the text of all rounds that a client gets: that of one round. A task whose rounds have said so much
/// asks no further round.
pub(crate) const ANSWER_BYTES_MAX: usize = 8 << 20;
/// What stands between the texts of two rounds.
const SEPARATOR: &str = "\n\n";

/// The answer of a task.
#[derive(Clone, Debug)]
pub struct Answer {
    pub task: Task,
    /// The texts of all rounds.
    pub text: String,
    /// The text of the last round.
    pub last_text: String,
    /// The calls that the client is to run. A task that has not completed has none.
    pub client_calls: Vec<ClientCall>,
    /// Whether the last text was cut at the limit of output tokens that the client has set, or the texts at their maximum
    /// size.
    pub is_cut: bool,
    /// Whether a call that may change something has begun.
    pub has_written: bool,
}

impl Answer {
    /// Returns the text for the client. An answer with a form, such as JSON, is the last text alone.
    #[must_use]
    pub fn shown_text(&self, has_form: bool) -> &str {
        match (has_form, self.client_calls.is_empty()) {
            (false, _) => &self.text,
            (true, true) => self.last_text.trim(),
            // The answer follows after the calls of the client.
            (true, false) => "",
        }
    }
}

/// An event of an answer that is being made.
#[derive(Clone, Debug)]
pub enum AnswerEvent {
    /// The next piece of the text.
    Text(String),
    /// The task has ended. It is the last event.
    End(Box<Answer>),
}

/// Why an answer cannot be followed further.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Another host has taken the task over in the middle of a round and has asked the model again.
    #[error("the server has begun a part of the answer again; send the request again")]
    Diverged,
}

/// An answer that is being made, for a client that listens.
pub struct Answering {
    attendance: Attendance,
    following: Following,
    pieces: Pieces,
}

impl Tasks {
    async fn answer(&self, caller: &Caller, id: TaskId) -> Result<Answer, OperationError> {
        let row = self.row(caller, id).await?;
        self.answer_of(&row).await
    }

    /// Returns what a task has said so far.
    pub(crate) async fn answer_of(&self, row: &TaskRow) -> Result<Answer, OperationError> {
        let store = &self.app.store;
        let mut pieces = Pieces::default();
        let (mut text, mut last_text, mut is_cut, mut after) = (String::new(), String::new(), false, 0);
        let mut client_calls = Vec::new();
        loop {
            let rows = store.task_steps(row.workspace_id, row.id, after, STEPS_READ).await?;
            let Some(last) = rows.last() else { break };
            after = last.sequence;
            for row in rows {
                if let StepContent::Round(round) = journal::open_step(&self.app.vault, &row).map_err(internal)? {
                    is_cut = round.is_cut;
                    client_calls = client_tools::calls_of(row.task_id, &round);
                    text.extend(pieces.piece(row.sequence, &round.message.text));
                    last_text = round.message.text;
                }
            }
        }
        is_cut |= pieces.is_full;
        if row.status != TaskStatus::Completed {
            client_calls.clear();
        }
        let (task, has_written) = (self.view(row), self.has_written(row).await?);
        Ok(Answer { task, text, last_text, client_calls, is_cut, has_written })
    }
}

impl Attendance {
    /// Waits until the task has ended. Returns `None` when the key of the caller is deleted or rotated, and when the host
    /// stops.
    ///
    /// # Errors
    ///
    /// The database failed, or the task was deleted.
    pub async fn answer(&self) -> Result<Option<Answer>, OperationError> {
        let tasks = &self.tasks;
        let mut changes = self.live.changes();
        loop {
            if tasks.state(&self.caller, self.id).await?.ended_at.is_some() {
                return Ok(Some(tasks.answer(&self.caller, self.id).await?));
            }
            if !self.caller.is_known(&tasks.app.policy.load(), tasks.app.clock.now()) {
                return Ok(None);
            }
            tokio::select! {
                // Whether a change or the interval has ended the wait, the row is read again.
                _ = tokio::time::timeout(READ_INTERVAL, changes.changed()) => {}
                () = tasks.closed.cancelled() => return Ok(None),
            }
        }
    }

    /// Follows the answer from its beginning. The task must exist. `is_new` says that no round has begun before this
    /// client came.
    ///
    /// # Errors
    ///
    /// The database failed, or the task was deleted.
    pub async fn follow(mut self, is_new: bool) -> Result<Answering, OperationError> {
        let live = self.early.take().unwrap_or_else(|| self.live.listen());
        let task = std::sync::Arc::clone(&self.live);
        let following = self.tasks.follow_with(self.caller.clone(), self.id, 0, (task, live, !is_new)).await?;
        Ok(Answering { attendance: self, following, pieces: Pieces::default() })
    }
}

impl Answering {
    /// Waits for the next event. Returns `None` after the end, when the key of the caller is deleted or rotated, and when
    /// the host stops.
    ///
    /// # Errors
    ///
    /// The database failed, the task was deleted, or a part of the text that was sent is not in the answer.
    pub async fn next(&mut self) -> Result<Option<AnswerEvent>, AnswerError> {
        while let Some(event) = self.following.next().await? {
            if self.following.has_missed() {
                self.pieces.miss();
            }
            let text = match event {
                TaskEvent::Delta(delta) if delta.channel == RoundChannel::Text => {
                    self.pieces.delta(delta.step, &delta.text)
                }
                TaskEvent::Step(step) => match &step.text {
                    Some(text) => self.pieces.whole(step.sequence, text)?,
                    None => None,
                },
                TaskEvent::End(_) => {
                    let answer = self.attendance.tasks.answer(&self.attendance.caller, self.attendance.id).await?;
                    return Ok(Some(AnswerEvent::End(Box::new(answer))));
                }
                TaskEvent::Task(_) | TaskEvent::Call(_) | TaskEvent::Approval(_) | TaskEvent::Delta(_) => None,
            };
            if let Some(text) = text {
                return Ok(Some(AnswerEvent::Text(text)));
            }
        }
        Ok(None)
    }
}

/// Makes one text of the pieces of rounds and of whole rounds.
#[derive(Debug, Default)]
struct Pieces {
    /// The step of the last text, and what was sent of it.
    step: i64,
    sent: String,
    has_text: bool,
    /// Whether pieces before the next one may be missing.
    has_missed: bool,
    /// A step of which pieces are missing. Its text is sent when it has ended.
    skipped: Option<i64>,
    /// The size of all that was sent.
    bytes: usize,
    /// Whether a text was cut at [`ANSWER_BYTES_MAX`]. Nothing is sent after it.
    is_full: bool,
}

impl Pieces {
    fn miss(&mut self) {
        self.has_missed = true;
    }

    /// Adds a piece of a round that runs, and returns what is to be sent. If pieces before it may be missing, those that
    /// follow of the same round are left out too. A later round has begun after the gap.
    fn delta(&mut self, step: i64, text: &str) -> Option<String> {
        if std::mem::take(&mut self.has_missed) {
            self.skipped = Some(step);
        }
        if self.skipped == Some(step) { None } else { self.piece(step, text) }
    }

    /// Adds the text of a round that has ended, and returns what is still to be sent of it.
    fn whole(&mut self, step: i64, text: &str) -> Result<Option<String>, AnswerError> {
        let sent = if self.step == step { self.sent.as_str() } else { "" };
        let rest = text.strip_prefix(sent).ok_or(AnswerError::Diverged)?;
        Ok(self.piece(step, rest))
    }

    fn piece(&mut self, step: i64, text: &str) -> Option<String> {
        if text.is_empty() {
            return None;
        }
        let begins = self.step != step;
        if begins {
            self.step = step;
            self.sent.clear();
        }
        self.sent.push_str(text);
        let separator = if begins && self.has_text { SEPARATOR } else { "" };
        self.has_text = true;
        if self.is_full {
            return None;
        }
        let mut piece = format!("{separator}{text}");
        let room = ANSWER_BYTES_MAX - self.bytes;
        if piece.len() >= room {
            self.is_full = true;
            piece.truncate(piece.floor_char_boundary(room));
        }
        self.bytes += piece.len();
        (!piece.is_empty()).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_whole_rounds_make_one_text() {
        let mut pieces = Pieces::default();
        let mut text = String::new();
        text.extend(pieces.delta(1, "Let me "));
        text.extend(pieces.delta(1, "look."));
        text.extend(pieces.whole(1, "Let me look.").unwrap());
        text.extend(pieces.whole(3, "").unwrap());
        text.extend(pieces.whole(4, "There are ").unwrap());
        text.extend(pieces.delta(6, "tw"));
        text.extend(pieces.whole(6, "two.").unwrap());
        assert_eq!(text, "Let me look.\n\nThere are \n\ntwo.");
    }

    #[test]
    fn a_round_with_missing_pieces_is_sent_when_it_has_ended() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.delta(1, "One ").as_deref(), Some("One "));
        pieces.miss();
        assert_eq!(pieces.delta(1, "three"), None);
        assert_eq!(pieces.delta(1, " four"), None);
        assert_eq!(pieces.whole(1, "One two three four").unwrap().as_deref(), Some("two three four"));
        assert_eq!(pieces.delta(3, "Next").as_deref(), Some("\n\nNext"));
        pieces.miss();
        assert_eq!(pieces.whole(3, "Next one").unwrap().as_deref(), Some(" one"));
        assert_eq!(pieces.delta(5, "late"), None, "the gap may have been before this piece");
        assert_eq!(pieces.whole(5, "too late").unwrap().as_deref(), Some("\n\ntoo late"));
    }

    #[test]
    fn the_text_of_all_rounds_is_cut_at_its_maximum() {
        let round = "é".repeat(ANSWER_BYTES_MAX / 2 - 1);
        let mut pieces = Pieces::default();
        assert_eq!(pieces.whole(1, &round).unwrap().as_deref(), Some(round.as_str()));
        assert!(!pieces.is_full);
        // The separator fills the answer.
        assert_eq!(pieces.delta(3, "é").as_deref(), Some(SEPARATOR));
        assert!(pieces.is_full);
        assert_eq!(pieces.delta(3, "x"), None);
        assert_eq!(pieces.whole(3, "éxy").unwrap(), None, "the rest goes on as the text began");
        assert_eq!(pieces.whole(5, "z").unwrap(), None);
        assert_eq!(pieces.bytes, ANSWER_BYTES_MAX);
    }

    #[test]
    fn a_text_that_does_not_go_on_as_it_began_is_an_error() {
        let mut pieces = Pieces::default();
        pieces.delta(1, "I think");
        assert!(matches!(pieces.whole(1, "I know"), Err(AnswerError::Diverged)));
    }
}
