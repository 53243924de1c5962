//! The events that report the ends of tasks.

use monstrum_core::events::{self, EventError, EventLinks, EventType, NewEvent};
use monstrum_store::{EventRow, TaskRow};
use monstrum_types::UtcMillis;
use monstrum_vault::Vault;
use serde_json::Value;

use crate::journal::TaskContent;

/// Returns the event that reports the end of a task. `content` is missing if the record of the task cannot be opened.
pub(crate) fn ended(
    vault: &Vault,
    (row, content): (&TaskRow, Option<&TaskContent>),
    (event_type, data): (EventType, Value),
    now: UtcMillis,
) -> Result<EventRow, EventError> {
    let of_row = || EventLinks { task_id: Some(row.id.to_string()), ..EventLinks::default() };
    let event = NewEvent {
        workspace_id: row.workspace_id,
        event_type: event_type.into(),
        source_type: "task",
        source_id: row.id.to_string(),
        bot_id: Some(row.bot_id),
        links: content.map_or_else(of_row, |content| content.event_links(row.id)),
        cause: content.and_then(|content| content.cause),
        data,
    };
    events::seal(vault, event, now)
}
