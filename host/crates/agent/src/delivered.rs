//! Tasks that deliveries of events start.
//!
//! Such a task has no key and acts as its bot. What it reads first is a stranger's text, so it begins with the label
//! `untrusted`, and what the subscription narrows is a link of the task.

use monstrum_api::tasks::Narrow;
use monstrum_api::tools::Chat;
use monstrum_core::app::App;
use monstrum_core::events::{self, EventCause, EventLinks, EventType, NewEvent};
use monstrum_core::models;
use monstrum_core::operations::OperationError;
use monstrum_store::{DeliveredTask, DeliveryRow, EventRow, NewSession, NewWake, SessionRow, TasksMax};
use monstrum_types::{KeyId, Labels, SessionId, SubscriptionId, UtcMillis, WakeKey, WakeKind};
use serde_json::json;

use crate::journal::{self, Source, TaskContent};
use crate::links::TaskLink;
use crate::schedules::task::limits;
use crate::tasks::{self, OWN_APP};

/// The label of what the author of an event has written.
pub const UNTRUSTED: &str = "untrusted";

/// The maximum numbers for tasks that deliveries start.
pub const TASKS_MAX: TasksMax = tasks::TASKS_MAX;

/// A task for an event.
pub struct TaskOfEvent<'a> {
    pub delivery: &'a DeliveryRow,
    pub event: &'a EventRow,
    pub subscription: SubscriptionId,
    /// The rendered instruction, and the random part of the names of its frames.
    pub instruction: String,
    pub nonce: String,
    /// What the task may do less than its bot.
    pub narrow: Option<Narrow>,
    /// The keys that made or changed the subscription.
    pub starters: Vec<KeyId>,
}

/// A task that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum NotPrepared {
    #[error("the bot has no model")]
    NoModel,
    #[error("the task cannot be prepared")]
    Failed(#[from] OperationError),
}

impl TaskOfEvent<'_> {
    /// Prepares the task, with a session of its own.
    ///
    /// # Errors
    ///
    /// The bot has no model or does not exist.
    pub fn prepare(self, app: &App, now: UtcMillis) -> Result<DeliveredTask, NotPrepared> {
        let TaskOfEvent { delivery, event, subscription, instruction, nonce, narrow, starters } = self;
        let (workspace, bot) = (delivery.workspace_id, delivery.bot_id);
        let snapshot = app.policy.load();
        let found = snapshot.bot(workspace, bot).ok_or_else(|| OperationError::not_found("bot"))?;
        models::candidates(&snapshot, workspace, bot, app.clock.now()).map_err(|_| NotPrepared::NoModel)?;
        let labels: Labels = [UNTRUSTED.to_owned()].into_iter().collect();
        let source = Source::Event { delivery: delivery.id, subscription, nonce, starters };
        let mut content = TaskContent::new(instruction, limits(&found.row), source);
        content.links = narrow.into_iter().map(TaskLink::Narrow).collect();
        content.cause = Some(EventCause::of(event));
        content.labels = labels.clone();
        let id = SessionId::new();
        let session = SessionRow {
            id,
            workspace_id: workspace,
            bot_id: bot,
            app_id: OWN_APP.to_owned(),
            user_id: subscription.to_string(),
            chat_id: id.to_string(),
            created_at: now,
            used_at: now,
            expired_at: None,
            labels: labels.clone(),
        };
        let (app_id, user_id, chat_id) = (session.app_id.clone(), session.user_id.clone(), session.chat_id.clone());
        content.chat = Some(Chat { app_id, user_id, chat_id });
        let mut row = tasks::new_row((workspace, bot), Some(id), now);
        row.labels = labels;
        row.sealed = journal::seal_task(&app.vault, &row, &content).map_err(tasks::internal)?;
        let created = NewEvent {
            workspace_id: workspace,
            event_type: EventType::SessionCreated.into(),
            source_type: "session",
            source_id: id.to_string(),
            bot_id: Some(bot),
            links: EventLinks { delivery_id: Some(delivery.id), ..EventLinks::default() },
            // A subscription to new sessions must not start tasks without an end.
            cause: content.cause,
            data: json!({ "bot_id": bot, "chat": { "app_id": session.app_id, "chat_id": session.chat_id } }),
        };
        let created = events::seal(&app.vault, created, now).map_err(OperationError::internal)?;
        let key = WakeKey::new(WakeKind::Task, row.id).map_err(OperationError::internal)?;
        let wake = NewWake { key, workspace_id: workspace, due_at: now, claim: None };
        Ok(DeliveredTask { row, session: NewSession { row: session, created, after: None }, wake })
    }
}
