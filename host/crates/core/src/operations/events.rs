//! Events: emitting, listing and showing them.

use monstrum_api::events::{EmittedEvent, Event, EventList, EventMetadata, EventWithDeliveries, NewEvent};
use monstrum_api::list::List;
use monstrum_guardian::match_glob;
use monstrum_store::{DeliveryFilter, EventFilter, EventRow, PAGE_ITEMS_MAX, Page, SequencedEvent};
use monstrum_types::{BotId, EventId, JsonText, WorkspaceId, with_causes};
use serde_json::{Value, json};

use super::change::Change;
use super::{Caller, OperationError, Operator, deliveries};
use crate::app::App;
use crate::call_types::call_secrets::CallSecrets;
use crate::emitter::EmitError;
use crate::events::{self, CustomName, DATA_BYTES_MAX, EventCause, EventError, EventLinks};

/// The number of events that are read at once.
const READ: u32 = 100;
/// The maximum number of reads for a page. A page whose filter matches few events ends early, with a cursor.
const READS_MAX: u32 = 50;
/// The size of the records from which a page has no further event, in bytes.
const PAGE_BYTES_MAX: usize = 8 << 20;
/// The maximum length of a glob over types.
const GLOB_CHARS_MAX: usize = 256;
/// The source of the events of the API.
const PLATFORM: &str = "platform";

/// What a list of events has to match.
#[derive(Clone, Debug, Default)]
pub struct EventsInput {
    /// A glob over the types.
    pub event_type: Option<String>,
    pub filter: EventFilter,
}

impl EventsInput {
    /// Checks the glob.
    pub fn check(&self) -> Result<(), OperationError> {
        match &self.event_type {
            Some(glob) if glob.chars().count() > GLOB_CHARS_MAX => {
                Err(OperationError::invalid_at("event_type", format!("must have at most {GLOB_CHARS_MAX} characters")))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether an event has a type that matches the glob.
    fn has_type(&self, event: &EventRow) -> bool {
        self.event_type.as_ref().is_none_or(|glob| match_glob(&event.event_type, glob))
    }

    /// Returns whether an event matches.
    fn matches(&self, event: &EventRow) -> bool {
        let EventFilter { source_type, bot, since, until } = &self.filter;
        self.has_type(event)
            && source_type.as_ref().is_none_or(|source| *source == event.source_type)
            && bot.is_none_or(|bot| event.bot_id == Some(bot))
            && since.is_none_or(|since| event.created_at >= since)
            && until.is_none_or(|until| event.created_at < until)
    }
}

/// Emits an event of the platform, or of a bot.
pub async fn emit(app: &App, caller: &Operator, new: NewEvent) -> Result<EmittedEvent, OperationError> {
    let row = row(app, caller, new).await?;
    let recorded = json!({ "event_type": row.event_type });
    let change = Change::new("event.emit", &row.id).of_bot(row.bot_id).to(&recorded);
    let insert = async { Ok(app.emitter.insert(&row).await?) };
    change.record(app, caller, insert).await?;
    Ok(emitted(&row))
}

/// Returns the event as the caller of the API learns about it.
pub(super) fn emitted(row: &EventRow) -> EmittedEvent {
    EmittedEvent { event_id: row.id, event_type: row.event_type.clone() }
}

/// Checks an event that a caller emits, and makes its row.
pub(super) async fn row(app: &App, caller: &Caller, new: NewEvent) -> Result<EventRow, OperationError> {
    let NewEvent { name, data, bot_id } = new;
    let name = CustomName::new(&name).map_err(|error| OperationError::invalid_at("/name", error.to_string()))?;
    if bot_id.is_some_and(|bot| app.policy.load().bot(caller.workspace, bot).is_none()) {
        return Err(OperationError::invalid_at("/bot_id", "no such bot"));
    }
    events::check_size(&data).map_err(of_event)?;
    let data = redacted(app, caller.workspace, bot_id, data).await?;
    let event = events::NewEvent {
        workspace_id: caller.workspace,
        event_type: events::EventName::Custom(name),
        source_type: PLATFORM,
        source_id: caller.key.to_string(),
        bot_id,
        links: EventLinks { request_id: Some(caller.request), ..EventLinks::default() },
        cause: None,
        data,
    };
    app.emitter.row(event).map_err(of_emission)
}

/// Redacts the credentials of the bot to which an event belongs.
async fn redacted(app: &App, workspace: WorkspaceId, bot: Option<BotId>, data: Value) -> Result<Value, OperationError> {
    let Some(bot) = bot else { return Ok(data) };
    let secrets = CallSecrets::new(Some(app.policy.load().redactors_of(workspace, bot, None)));
    match secrets.redacted_json(JsonText::from(&data)).await {
        Ok(text) => Ok(text.value()),
        Err(withheld) => Err(OperationError::OverLimit(withheld.message().to_owned())),
    }
}

fn of_event(error: EventError) -> OperationError {
    match error {
        EventError::TooLarge { bytes } => {
            let message = format!("must have at most {DATA_BYTES_MAX} bytes of JSON, but has {bytes}");
            OperationError::invalid_at("/data", message)
        }
        error => OperationError::internal(error),
    }
}

pub(super) fn of_emission(error: EmitError) -> OperationError {
    match error {
        EmitError::Limited(limited) => {
            OperationError::RateLimited { message: limited.to_string(), retry_after: limited.retry_after }
        }
        EmitError::Event(error) => of_event(error),
        EmitError::Store(error) => error.into(),
    }
}

/// Lists events, newest first. A page may have fewer events than its limit although there are more.
pub async fn list(
    app: &App,
    caller: &Operator,
    input: &EventsInput,
    page: &Page<EventId>,
) -> Result<EventList, OperationError> {
    input.check()?;
    let limit = usize::try_from(page.limit.clamp(1, PAGE_ITEMS_MAX)).unwrap_or(usize::MAX);
    let (mut items, mut bytes, mut cursor) = (Vec::new(), 0, page.cursor);
    for _ in 0..READS_MAX {
        let listed = app.store.events_page(caller.workspace, &input.filter, &Page { limit: READ, cursor }).await?;
        let last = listed.items.last().map(|event| event.row.id);
        for event in &listed.items {
            // An event that another program has written must not hide the others.
            let Some(shown) = input.has_type(&event.row).then(|| shown(app, event)).flatten() else { continue };
            bytes += event.row.sealed.len();
            items.push(shown);
            if items.len() >= limit || bytes >= PAGE_BYTES_MAX {
                let is_last = last == Some(event.row.id) && listed.next_cursor.is_none();
                let next_cursor = if is_last { None } else { Some(event.row.id.to_string()) };
                return Ok(List { items, next_cursor });
            }
        }
        cursor = listed.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(List { items, next_cursor: cursor.map(|cursor| cursor.to_string()) })
}

/// Shows an event with its deliveries.
pub async fn show(app: &App, caller: &Operator, id: EventId) -> Result<EventWithDeliveries, OperationError> {
    let event = app.store.sequenced_event(caller.workspace, id).await?;
    let event = event.and_then(|event| shown(app, &event)).ok_or_else(|| OperationError::not_found("event"))?;
    let filter = DeliveryFilter { event: Some(id), ..DeliveryFilter::default() };
    let listed = app.store.deliveries(caller.workspace, &filter, &Page::first(PAGE_ITEMS_MAX)).await?;
    Ok(EventWithDeliveries { event, deliveries: listed.items.into_iter().map(deliveries::shown).collect() })
}

/// Returns the position of the last event that was dispatched.
pub async fn last(app: &App, caller: &Operator) -> Result<i64, OperationError> {
    Ok(app.store.last_event_sequence(caller.workspace).await?)
}

/// Returns the matching events after a position, and the position up to which events were read.
pub async fn after(
    app: &App,
    caller: &Operator,
    input: &EventsInput,
    sequence: i64,
) -> Result<(Vec<Event>, i64), OperationError> {
    let read = app.store.events_after(caller.workspace, sequence, READ).await?;
    let last = read.last().and_then(|event| event.sequence).unwrap_or(sequence);
    let matching = read.iter().filter(|event| input.matches(&event.row));
    Ok((matching.filter_map(|event| shown(app, event)).collect(), last))
}

/// Returns whether the key of the caller still exists and is unchanged.
pub fn holds_its_key(app: &App, caller: &Caller) -> bool {
    caller.is_known(&app.policy.load(), app.clock.now())
}

/// Returns an event as the API shows it, or `None` if another program has edited it.
fn shown(app: &App, event: &SequencedEvent) -> Option<Event> {
    let read = events::open(&app.vault, &event.row).and_then(|data| of_data(event, data));
    read.inspect_err(|error| {
        tracing::error!(error = %with_causes(error), event.id = %event.row.id, "an event cannot be opened");
    })
    .ok()
}

/// Returns an event with its data.
///
/// # Errors
///
/// The row is not in the expected form.
pub fn of_data(event: &SequencedEvent, data: Value) -> Result<Event, EventError> {
    let SequencedEvent { sequence, row } = event;
    Ok(Event {
        id: row.id,
        sequence: *sequence,
        event_type: row.event_type.clone(),
        source_type: row.source_type.clone(),
        source_id: row.source_id.clone(),
        bot_id: row.bot_id,
        data,
        metadata: metadata(row)?,
        created_at: row.created_at,
    })
}

/// Returns what the platform knows about an event.
///
/// # Errors
///
/// The row is not in the expected form.
pub fn metadata(row: &EventRow) -> Result<EventMetadata, EventError> {
    let EventLinks { task_id, run_id, request_id, delivery_id } = serde_json::from_str(&row.links)?;
    let EventCause { root_event_id, depth } = EventCause::of(row);
    Ok(EventMetadata { task_id, run_id, request_id, delivery_id, root_event_id, depth })
}

/// Returns an event as a line of `CloudEvents` 1.0 in JSON.
#[must_use]
pub fn cloud_event(event: &Event) -> String {
    let mut line = json!({
        "specversion": "1.0",
        "id": event.id,
        "source": format!("/{}/{}", event.source_type, event.source_id),
        "type": event.event_type,
        "time": event.created_at,
        "datacontenttype": "application/json",
        "data": event.data,
    });
    // Names of extensions have only lower-case letters and digits.
    if let Some(sequence) = event.sequence {
        line["sequence"] = json!(sequence.to_string());
    }
    if let Some(bot) = event.bot_id {
        line["botid"] = json!(bot);
    }
    line.to_string()
}
