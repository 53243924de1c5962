//! The events that a plugin emits during a call, and the subscriptions that it makes.
//!
//! An event of a call belongs to the bot that makes the call. Emitting counts as an effect outside of the host: the row
//! `started` of the call, the event and its wake are on disk before the plugin goes on, and the event stays if the call
//! then fails. Subscribing needs a binding that permits it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use monstrum_manifest::json_depth;
use monstrum_store::StoreRow;
use monstrum_types::{BotId, Failure, FailureCode, JsonText, PluginSubscription, RequestId, WorkspaceId};
use serde::Deserialize as _;

use crate::audit::Entry;
use crate::call::permitted::Execution;
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::task_step::Origin;
use crate::emitter::{EmitError, Emitter, PluginSubscriber, SubscribeError};
use crate::events::rates::OF_CALL;
use crate::events::{CustomName, DATA_BYTES_MAX, EventError, EventLinks, EventName, NewEvent};

/// The maximum depth of the data of an event, as for parameters.
const DATA_DEPTH_MAX: usize = 64;

/// What a plugin may do with events during one call.
pub(crate) struct PluginEvents {
    emitter: Arc<Emitter>,
    entry: Arc<Entry>,
    secrets: Arc<CallSecrets>,
    workspace: WorkspaceId,
    request: RequestId,
    /// The task or the run for which the call is made.
    origin: Option<Origin>,
    /// The bot that makes the call; `None` for a call without a bot.
    bot: Option<BotId>,
    /// What subscriptions of the plugin need, or why it may not subscribe.
    subscriber: Result<PluginSubscriber, &'static str>,
    /// The number of events that the root call and all calls below it have emitted.
    emitted: Arc<AtomicU32>,
}

impl PluginEvents {
    /// Prepares the functions for a call. `emitted` counts the events of the root call and of all calls below it.
    pub(crate) fn of(execution: &Execution<'_>, emitted: Arc<AtomicU32>) -> PluginEvents {
        let Execution { call, entry, secrets, pipeline, .. } = *execution;
        PluginEvents {
            emitter: Arc::clone(pipeline.approvals.emitter()),
            entry: Arc::clone(entry),
            secrets: Arc::clone(secrets),
            workspace: call.workspace(),
            request: call.request_id(),
            origin: call.origin(),
            bot: call.bot(),
            subscriber: subscriber(execution, call),
            emitted,
        }
    }

    /// Stores an event, and returns its id.
    pub(super) async fn emit(&self, name: &str, data: &str) -> Result<String, Failure> {
        let bot = self.bot.ok_or_else(|| denied("a call without a bot emits no events"))?;
        if self.emitted.fetch_add(1, Ordering::Relaxed) >= OF_CALL {
            return Err(limit(format!("a call and the calls below it may emit at most {OF_CALL} events")));
        }
        let name = CustomName::new(name).map_err(|error| invalid(error.to_string()))?;
        if data.len() > DATA_BYTES_MAX {
            return Err(limit(format!("the data of an event may have at most {DATA_BYTES_MAX} bytes")));
        }
        // The depth is checked before parsing, so that deep nesting cannot exhaust the stack.
        if json_depth(data.as_bytes()) > DATA_DEPTH_MAX {
            return Err(invalid(format!("the data is nested more than {DATA_DEPTH_MAX} levels deep")));
        }
        let data = JsonText::parse(data).map_err(|_| invalid("the data is not JSON"))?;
        let data = self.secrets.redacted_json(data).await.map_err(|withheld| limit(withheld.message()))?;
        let cause = match self.origin {
            Some(origin) => {
                let cause = self.emitter.cause_of(self.workspace, origin).await;
                cause.map_err(|error| unavailable(error.to_string()))?
            }
            None => None,
        };
        let links = EventLinks {
            task_id: self.origin.and_then(Origin::task).map(|position| position.task.to_string()),
            run_id: self.origin.and_then(Origin::run),
            request_id: Some(self.request),
            ..EventLinks::default()
        };
        let event = NewEvent {
            workspace_id: self.workspace,
            event_type: EventName::Custom(name),
            source_type: "bot",
            source_id: bot.to_string(),
            bot_id: Some(bot),
            links,
            cause,
            data: data.value(),
        };
        let row = self.emitter.row(event).map_err(of_emission)?;
        let with_start = vec![StoreRow::Event(Box::new(row.clone()))];
        let is_written = self.entry.started_with(with_start).await.map_err(|error| unavailable(error.to_string()))?;
        if is_written {
            self.emitter.signal(&row);
        } else {
            self.emitter.insert(&row).await.map_err(|_| unavailable("the event could not be stored"))?;
        }
        Ok(row.id.to_string())
    }

    /// Subscribes the bot to events of its own, and returns the id of the subscription.
    pub(super) async fn subscribe(&self, pattern: String, instruction: String) -> Result<String, Failure> {
        let by = self.subscriber()?;
        self.started().await?;
        let made = self.emitter.subscribe(by, pattern, instruction).await;
        made.map(|id| id.to_string()).map_err(of_subscription)
    }

    /// Removes a subscription that the plugin has made for the bot. Returns `false` if the plugin has not made it.
    pub(super) async fn unsubscribe(&self, id: &str) -> Result<bool, Failure> {
        let by = self.subscriber()?;
        let Ok(id) = id.parse() else { return Ok(false) };
        self.started().await?;
        self.emitter.unsubscribe(by, id).await.map_err(of_subscription)
    }

    /// Returns the subscriptions that the plugin has made for the bot.
    pub(super) fn subscriptions(&self) -> Result<Vec<PluginSubscription>, Failure> {
        let by = self.subscriber()?;
        let now = self.emitter.now();
        let shown = self.emitter.subscriptions(by).into_iter().map(|subscription| {
            let row = &subscription.row;
            PluginSubscription {
                id: row.id.to_string(),
                pattern: row.pattern.clone(),
                instruction: row.instruction.clone(),
                active: row.is_in_force(now),
                created_at: row.created_at.to_string(),
            }
        });
        Ok(shown.collect())
    }

    fn subscriber(&self) -> Result<&PluginSubscriber, Failure> {
        self.subscriber.as_ref().map_err(|why| denied(why))
    }

    /// Waits until the row `started` of the call is on disk.
    async fn started(&self) -> Result<(), Failure> {
        self.entry.started().await.map_err(|error| unavailable(error.to_string()))
    }
}

/// Returns what the subscriptions of the plugin need, or why it may not subscribe the bot.
fn subscriber(execution: &Execution<'_>, call: &IncomingCall) -> Result<PluginSubscriber, &'static str> {
    let target = execution.target;
    let binding = target.binding().ok_or("a call without a bot subscribes nothing")?.row.unpacked();
    if !binding.allow_subscribe {
        return Err("the binding does not permit the plugin to subscribe the bot to events");
    }
    // The tasks of a subscription would not have these restrictions.
    if !call.links().is_empty() {
        return Err("a call under a delegation or a restriction subscribes nothing");
    }
    let own = target.plugin.tools.iter().map(|tool| tool.manifest.name.to_string());
    let called = Vec::<String>::deserialize(&binding.allow_calls).unwrap_or_default();
    Ok(PluginSubscriber {
        workspace: call.workspace(),
        bot: binding.bot_id,
        plugin: target.plugin.name.clone(),
        tools: own.chain(called).collect(),
    })
}

fn of_emission(error: EmitError) -> Failure {
    match error {
        EmitError::Limited(limited) => {
            let retry_after_ms = u32::try_from(limited.retry_after.as_millis()).ok();
            Failure { retry_after_ms, ..limit(limited.to_string()) }
        }
        EmitError::Event(error @ EventError::TooLarge { .. }) => limit(error.to_string()),
        EmitError::Event(_) | EmitError::Store(_) => unavailable("the event could not be stored"),
    }
}

fn of_subscription(error: SubscribeError) -> Failure {
    match error {
        SubscribeError::Invalid(message) => invalid(message),
        SubscribeError::Full => limit(error.to_string()),
        SubscribeError::Audit(_) | SubscribeError::Store(_) => unavailable("the subscription could not be changed"),
    }
}

fn denied(message: &str) -> Failure {
    Failure::unsent(FailureCode::Denied, message)
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::unsent(FailureCode::Invalid, message)
}

fn limit(message: impl Into<String>) -> Failure {
    Failure::unsent(FailureCode::Limit, message)
}

fn unavailable(message: impl Into<String>) -> Failure {
    Failure::unsent(FailureCode::Unavailable, message)
}
