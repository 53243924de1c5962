//! Events of the bot that makes the call, and its subscriptions to them.
//!
//! A plugin can use events if the manifest lists the capability `events`. An event that a plugin emits belongs to the bot of
//! the call. Bots that subscribe to it get a task; what the task reads of the event is data, not instructions.
//!
//! [`subscribe`], [`unsubscribe`] and [`subscriptions`] need a binding with `allow_subscribe`. A subscription of a plugin
//! takes only events of the same bot, its tasks can use only the tools of the plugin and those that the binding lets it call,
//! and it ends after 30 days unless an admin confirms it. Calls without a bot have no events.

use serde_json::Value;

use crate::error::Failure;
use crate::host;
use crate::wit::monstrum::plugin::events as wire;

/// A subscription that the plugin has made for the bot of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The id.
    pub id: String,
    /// A glob over the types of events, such as `custom.ticket.*`.
    pub pattern: String,
    /// What the bot is to do.
    pub instruction: String,
    /// Whether events match the subscription now.
    pub active: bool,
    /// The time of the creation (RFC 3339).
    pub created_at: String,
}

/// Stores an event of the type `custom.{name}` and returns its id. The event stays if the call fails later.
///
/// ```
/// use monstrum_sdk::{Error, Request, Value, events, json};
/// # use monstrum_sdk::{Executor, Operations, operations, testing::Call};
/// # struct Plugin;
/// # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "ticket.close" => close }; }
///
/// fn close(request: &Request) -> Result<Value, Error> {
///     let id: u64 = request.param("id")?;
///     let event = events::emit("ticket.closed", &json!({ "id": id }))?;
///     Ok(json!({ "event": event }))
/// }
///
/// let run = Call::new("ticket_close", "ticket.close").param("id", 7).run(&Plugin);
/// assert_eq!(run.events, [("ticket.closed".to_owned(), json!({ "id": 7 }))]);
/// assert_eq!(run.success(), json!({ "event": "event-1" }));
/// ```
///
/// # Errors
/// Returns `invalid` for a name that is empty, longer than 128 characters, begins with `custom.` or has characters other
/// than A-Z, a-z, 0-9, `.`, `_`, `:` and `-`; `limit` for data of more than 64 KiB or too many events; and `denied` for a
/// call without a bot.
pub fn emit(name: &str, data: &Value) -> Result<String, Failure> {
    Ok(host::emit(name, &data.to_string())?)
}

/// Lets each event of the bot whose type matches `pattern` start a task of the bot with `instruction`. Returns the id of the
/// subscription.
///
/// In the instruction, `{event_type}`, `{source_type}`, `{source_id}`, `{data}` and `{metadata}` stand for the parts of the
/// event; `{{` and `}}` are braces.
///
/// ```
/// use monstrum_sdk::{Error, Request, Value, events, json};
/// # use monstrum_sdk::{Executor, Operations, operations, testing::Call};
/// # struct Plugin;
/// # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "ticket.watch" => watch }; }
///
/// fn watch(_: &Request) -> Result<Value, Error> {
///     if events::subscriptions()?.is_empty() {
///         events::subscribe("custom.ticket.*", "A ticket has changed: {data}")?;
///     }
///     Ok(json!("watching"))
/// }
///
/// let run = Call::new("ticket_watch", "ticket.watch").run(&Plugin);
/// assert_eq!(run.subscriptions[0].pattern, "custom.ticket.*");
/// ```
///
/// # Errors
/// Returns `invalid` for a pattern or an instruction that cannot be saved, `denied` if the binding does not permit
/// subscriptions or the call acts under a delegation or a restriction, and `limit` if the bot has 100 subscriptions.
pub fn subscribe(pattern: &str, instruction: &str) -> Result<String, Failure> {
    Ok(host::subscribe(pattern, instruction)?)
}

/// Removes a subscription that the plugin has made for the bot. Returns `false` if the plugin has not made it.
///
/// # Errors
/// Returns `denied` if the binding does not permit subscriptions.
pub fn unsubscribe(id: &str) -> Result<bool, Failure> {
    Ok(host::unsubscribe(id)?)
}

/// Returns the subscriptions that the plugin has made for the bot.
///
/// # Errors
/// Returns `denied` if the binding does not permit subscriptions.
pub fn subscriptions() -> Result<Vec<Subscription>, Failure> {
    Ok(host::subscriptions()?.into_iter().map(Subscription::from).collect())
}

impl From<wire::Subscription> for Subscription {
    fn from(subscription: wire::Subscription) -> Self {
        let wire::Subscription { id, pattern, instruction, active, created_at } = subscription;
        Subscription { id, pattern, instruction, active, created_at }
    }
}
