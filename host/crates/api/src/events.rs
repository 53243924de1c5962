//! Events, and their deliveries.

use monstrum_types::{BotId, DeliveryId, EventId, RequestId, RunId, TaskId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::list::lists;

/// An event: something that happened in the workspace.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Event {
    pub id: EventId,
    /// The position among the events of the workspace, without gaps; null until the event is dispatched.
    pub sequence: Option<i64>,
    /// The type, such as `task.completed`. Types that begin with `custom.` are those of plugins, webhooks and callers.
    #[schema(example = "custom.order.paid")]
    pub event_type: String,
    /// The kind and the id of the object that the event is about.
    #[schema(example = "platform")]
    pub source_type: String,
    pub source_id: String,
    /// The bot that the event belongs to. Absent for an event of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<BotId>,
    /// At most 64 KiB of JSON.
    pub data: Value,
    pub metadata: EventMetadata,
    pub created_at: UtcMillis,
}

/// What the platform knows about an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct EventMetadata {
    /// The task that has emitted the event, or that the event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The run of a workflow that has emitted the event, or that the event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The call that has emitted the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The delivery that has started the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<DeliveryId>,
    /// The event that the chain of causes began with.
    pub root_event_id: EventId,
    /// The number of causes between the first event and this one.
    pub depth: u64,
}

/// An event with its deliveries.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EventWithDeliveries {
    #[serde(flatten)]
    pub event: Event,
    /// At most 1000 deliveries, newest first.
    pub deliveries: Vec<Delivery>,
}

/// An event to emit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEvent {
    /// 1 to 128 of the characters A-Z a-z 0-9 . _ : - and without the prefix `custom.`, which is put before it.
    #[schema(example = "order.paid")]
    pub name: String,
    /// At most 64 KiB of JSON.
    #[serde(default = "empty")]
    pub data: Value,
    /// The bot that the event belongs to. Without it, the event is one of the platform.
    pub bot_id: Option<BotId>,
}

fn empty() -> Value {
    Value::Object(Map::new())
}

/// An event that was stored.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmittedEvent {
    pub event_id: EventId,
    #[schema(example = "custom.order.paid")]
    pub event_type: String,
}

/// The delivery of an event to one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Delivery {
    pub id: DeliveryId,
    pub event_id: EventId,
    pub target: DeliveryTarget,
    /// `pending`, `done` or `dead`.
    #[schema(example = "done")]
    pub status: String,
    /// The number of times that the host tried to start something.
    pub attempts: i64,
    /// The time of the next attempt. Absent if the delivery waits for the end of a task or a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<UtcMillis>,
    /// Why the delivery is dead: `deleted`, `disabled`, `budget`, `model`, `loop`, `overflow`, `expired`, `unreadable`,
    /// `input` or `skipped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "loop")]
    pub reason: Option<String>,
    /// With the reason `input`: the parts of the event's data that do not fit the input of the workflow, as JSON pointers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["/version"]))]
    pub invalid_paths: Option<Vec<String>>,
    /// The task that the delivery has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The run that the delivery has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    pub created_at: UtcMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<UtcMillis>,
}

/// The target of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DeliveryTarget {
    /// `subscription` or `trigger`.
    #[schema(example = "subscription")]
    pub kind: String,
    pub id: String,
}

lists! {
    Event => EventList "A page of events.",
    Delivery => DeliveryList "A page of deliveries.",
}
