//! The rows of events: what happened in a workspace. The data of an event is a sealed record, bound to the other columns, so
//! that an event that another program wrote cannot be opened.
//!
//! An event is inserted in the transaction of the change that it reports: the caller makes a row with [`seal`] and gives
//! it to the store, which writes the wake of the event with it.
//!
//! sources.rs says whose events a subscription or a trigger takes, template.rs makes instructions of events, and rates.rs has the limits.

mod checks;
pub mod rates;
mod sources;
mod template;

pub use checks::{SUBSCRIPTIONS_MAX, subscription_faults};
pub use sources::{EventSource, UnknownSource};
pub use template::{EventValues, Nonce, Placeholder, Template, TemplateError, framed_value, rule, rule_of_values};

pub use monstrum_store::wake_of;

use monstrum_store::EventRow;
use monstrum_types::{BotId, DeliveryId, EventId, RequestId, RunId, UtcMillis, WorkspaceId, words};
use monstrum_vault::{AssociatedData, Vault, VaultError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The maximum size of the data of an event, as JSON text: enough for the result of a task, whose text is cut to 4 KiB, and
/// small enough that a thousand events fit into a page.
pub const DATA_BYTES_MAX: usize = 64 << 10;

words! {
    /// The types of the events that the platform makes.
    pub enum EventType {
        TaskCompleted = "task.completed",
        TaskFailed = "task.failed",
        TaskCancelled = "task.cancelled",
        SessionCreated = "session.created",
        SessionExpired = "session.expired",
        WorkflowCompleted = "workflow.completed",
        WorkflowFailed = "workflow.failed",
        ScheduleFired = "schedule.fired",
        ApprovalRequested = "approval.requested",
    }
}

/// The prefix of the types of events that others make.
const CUSTOM_PREFIX: &str = "custom.";
/// The maximum length of the name of such an event.
const NAME_CHARACTERS_MAX: usize = 128;

/// The type of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventName {
    /// An event of the platform, which only the platform makes.
    Platform(EventType),
    /// An event that a plugin, a webhook or a caller of the API makes.
    Custom(CustomName),
}

/// The type of an event that others make: a name with the prefix `custom.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomName(String);

/// The name of an event does not have the required form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of an event has 1 to {NAME_CHARACTERS_MAX} of the characters A-Z a-z 0-9 . _ : - and does not begin with `custom.`"
)]
pub struct InvalidName;

impl CustomName {
    /// Checks a name as a caller gives it, and adds the prefix.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if the name has other characters, is empty or too long, or has the prefix already.
    pub fn new(name: &str) -> Result<CustomName, InvalidName> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let fits = !name.is_empty() && name.len() <= NAME_CHARACTERS_MAX && name.bytes().all(known);
        if fits && !name.starts_with(CUSTOM_PREFIX) {
            Ok(CustomName(format!("{CUSTOM_PREFIX}{name}")))
        } else {
            Err(InvalidName)
        }
    }

    /// Returns the type with its prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl EventName {
    /// Returns the type as it is stored and shown.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            EventName::Platform(event_type) => event_type.as_str(),
            EventName::Custom(name) => name.as_str(),
        }
    }
}

impl From<EventType> for EventName {
    fn from(event_type: EventType) -> EventName {
        EventName::Platform(event_type)
    }
}

/// The objects that an event comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventLinks {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The delivery that started the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<DeliveryId>,
}

/// The event that caused another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCause {
    /// The event that the chain of causes began with.
    pub root_event_id: EventId,
    /// The number of causes between the first event and this cause.
    pub depth: u64,
}

impl EventCause {
    /// Returns the cause of the events of work that this event has started.
    #[must_use]
    pub fn of(event: &EventRow) -> EventCause {
        EventCause { root_event_id: event.root_event_id, depth: event.depth }
    }
}

/// An event to insert.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    pub workspace_id: WorkspaceId,
    pub event_type: EventName,
    /// The kind and the id of the object that the event is about.
    pub source_type: &'static str,
    pub source_id: String,
    /// The bot that the event belongs to; `None` for an event of the platform.
    pub bot_id: Option<BotId>,
    pub links: EventLinks,
    /// The event that caused this one, if an event did.
    pub cause: Option<EventCause>,
    /// The data, without secrets: the caller redacts it.
    pub data: Value,
}

/// An error while an event is sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error("the data of an event has {bytes} bytes; at most {DATA_BYTES_MAX} are possible")]
    TooLarge { bytes: usize },
    #[error("the data of an event cannot be sealed or opened")]
    Vault(#[from] VaultError),
    #[error("an event is not in the expected form")]
    Form(#[from] serde_json::Error),
}

/// Checks the size of the data of an event.
pub fn check_size(data: &Value) -> Result<(), EventError> {
    sized(data).map(drop)
}

fn sized(data: &Value) -> Result<Vec<u8>, EventError> {
    let text = serde_json::to_vec(data)?;
    if text.len() > DATA_BYTES_MAX { Err(EventError::TooLarge { bytes: text.len() }) } else { Ok(text) }
}

/// Makes the row of an event that happens at `now`.
pub fn seal(vault: &Vault, event: NewEvent, now: UtcMillis) -> Result<EventRow, EventError> {
    let NewEvent { workspace_id, event_type, source_type, source_id, bot_id, links, cause, data } = event;
    let data = sized(&data)?;
    let id = EventId::new();
    let (root_event_id, depth) = cause.map_or((id, 0), |cause| (cause.root_event_id, cause.depth.saturating_add(1)));
    let mut row = EventRow {
        id,
        workspace_id,
        event_type: event_type.as_str().to_owned(),
        source_type: source_type.to_owned(),
        source_id,
        bot_id,
        root_event_id,
        depth,
        links: serde_json::to_string(&links)?,
        created_at: now,
        sealed: String::new(),
    };
    row.sealed = vault.seal(&data, place_of(&row))?.to_string();
    Ok(row)
}

/// Returns the data of an event. Fails if a column of the row was edited.
pub fn open(vault: &Vault, row: &EventRow) -> Result<Value, EventError> {
    let data = vault.unseal(&row.sealed.parse()?, place_of(row))?;
    Ok(serde_json::from_slice(&data)?)
}

fn place_of(row: &EventRow) -> AssociatedData {
    let bot = row.bot_id.map(|id| id.to_string()).unwrap_or_default();
    let source = (row.source_type.as_str(), row.source_id.as_str());
    let cause = (row.root_event_id, row.depth.to_string());
    place((row.workspace_id, row.id), &row.event_type, source, &bot, (cause.0, &cause.1), &row.links)
}

/// Returns the associated data of the sealed record of an event. `bot` is empty for an event of the platform; `cause` is
/// the first event and the number of causes.
pub fn place(
    (workspace, event): (WorkspaceId, EventId),
    event_type: &str,
    (source_type, source_id): (&str, &str),
    bot: &str,
    (root_event, depth): (EventId, &str),
    links: &str,
) -> AssociatedData {
    AssociatedData::new("event")
        .with("workspace", &workspace)
        .with("event", &event)
        .with("event type", event_type)
        .with("source type", source_type)
        .with("source", source_id)
        .with("bot", bot)
        .with("root event", &root_event)
        .with("depth", depth)
        .with("links", links)
}

#[cfg(test)]
mod tests {
    use monstrum_vault::MasterKeys;
    use serde_json::json;

    use super::*;

    fn vault() -> Vault {
        Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap())
    }

    fn event(data: Value) -> NewEvent {
        NewEvent {
            workspace_id: WorkspaceId::new(),
            event_type: EventType::TaskCompleted.into(),
            source_type: "task",
            source_id: "t".to_owned(),
            bot_id: Some(BotId::new()),
            links: EventLinks { task_id: Some("t".to_owned()), ..EventLinks::default() },
            cause: None,
            data,
        }
    }

    #[test]
    fn an_event_opens_only_as_it_was_sealed() {
        let vault = vault();
        let row = seal(&vault, event(json!({"result": "done"})), UtcMillis(1)).unwrap();
        assert_eq!((row.root_event_id, row.depth, row.links.as_str()), (row.id, 0, r#"{"task_id":"t"}"#));
        assert_eq!(open(&vault, &row).unwrap(), json!({"result": "done"}));
        let edits: [fn(&mut EventRow); 9] = [
            |row| row.id = EventId::new(),
            |row| row.workspace_id = WorkspaceId::new(),
            |row| row.event_type = "task.failed".to_owned(),
            |row| row.source_type = "session".to_owned(),
            |row| row.source_id = "u".to_owned(),
            |row| row.bot_id = None,
            |row| row.root_event_id = EventId::new(),
            |row| row.depth = 1,
            |row| row.links = "{}".to_owned(),
        ];
        for edit in edits {
            let mut edited = row.clone();
            edit(&mut edited);
            assert!(matches!(open(&vault, &edited), Err(EventError::Vault(_))), "{edited:?}");
        }
    }

    #[test]
    fn an_effect_names_the_first_cause() {
        let root_event_id = EventId::new();
        let caused = NewEvent { cause: Some(EventCause { root_event_id, depth: 2 }), ..event(json!(null)) };
        let row = seal(&vault(), caused, UtcMillis(1)).unwrap();
        assert_eq!((row.root_event_id, row.depth), (root_event_id, 3));
    }

    #[test]
    fn names_get_a_prefix_once() {
        assert_eq!(CustomName::new("order.paid:eu-1_x").unwrap().as_str(), "custom.order.paid:eu-1_x");
        assert!(CustomName::new(&"x".repeat(128)).is_ok());
        for refused in ["", "custom.paid", "a b", "a/b", "ä", "a\n", &"x".repeat(129)] {
            assert_eq!(CustomName::new(refused), Err(InvalidName), "{refused:?}");
        }
    }

    #[test]
    fn large_data_is_refused() {
        let vault = vault();
        let fits = "x".repeat(DATA_BYTES_MAX - 2);
        assert!(seal(&vault, event(json!(fits)), UtcMillis(1)).is_ok());
        let refused = seal(&vault, event(json!(fits + "x")), UtcMillis(1));
        assert!(matches!(refused, Err(EventError::TooLarge { bytes }) if bytes == DATA_BYTES_MAX + 1), "{refused:?}");
    }
}
