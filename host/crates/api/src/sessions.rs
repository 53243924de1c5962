//! Sessions: the tasks of one conversation.

use monstrum_types::{BotId, SessionId, TaskId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;
use crate::tools::Chat;

/// A session: the tasks of one conversation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Session {
    pub id: SessionId,
    pub bot_id: BotId,
    /// The conversation. A session that a task has for itself has a conversation of its own, in the app `task`.
    pub chat: Chat,
    /// The labels of the resources whose results the tasks of the session have read; `*` is every label.
    pub labels: Vec<String>,
    pub created_at: UtcMillis,
    /// The time of the last message, or of the end of its task.
    pub used_at: UtcMillis,
    /// The time at which the session expired. An expired session can be read, but has no further messages.
    pub expired_at: Option<UtcMillis>,
}

/// A message to a session, and the answer of the bot. Each message is a task.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SessionMessage {
    pub task_id: TaskId,
    /// The status of the task.
    #[schema(example = "completed")]
    pub status: String,
    pub text: String,
    /// The answer. Null while the task runs, and if it failed or was cancelled.
    pub answer: Option<String>,
    pub created_at: UtcMillis,
    pub ended_at: Option<UtcMillis>,
}

/// A message to a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    /// The text, at most 64 KiB.
    pub text: String,
}

lists! {
    Session => SessionList "A page of sessions.",
    SessionMessage => SessionMessageList "A page of the messages of a session.",
}
