//! The functions of the platform for events, beside the functions of plugins: for infrastructure code with a root key.
//!
//! They do what the operations on events and subscriptions do, and are recorded like calls.

use std::sync::Arc;

use monstrum_api::events::NewEvent;
use monstrum_api::subscriptions::NewSubscription;
use monstrum_api::tools::CallResult;
use monstrum_store::Page;
use monstrum_types::{BotId, CallOutcome, Code, JsonText, RequestId, ResourceTypeId, SubscriptionId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Caller, OperationError, Operator, Root, events, json_pointer, shape_error, subscriptions};
use crate::app::App;
use crate::audit::AuditUnavailable;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::refusal::invalid_params;

/// The type under which the functions are called.
pub(super) const EVENTS: &str = "events";
/// The names of the functions.
pub(super) const FUNCTIONS: [&str; 4] = ["emit", "subscribe", "unsubscribe", "get_subscriptions"];
/// The maximum number of subscriptions that a bot has.
const LISTED_MAX: u32 = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    pattern: String,
    bot_id: BotId,
    instruction: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsubscribe {
    subscription_id: SubscriptionId,
    bot_id: BotId,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetSubscriptions {
    bot_id: BotId,
}

/// Runs a function, and records it as a call.
pub(super) async fn call(
    app: &App,
    caller: &Root,
    function: &str,
    params: Map<String, Value>,
) -> Result<CallResult, OperationError> {
    let resource_type: ResourceTypeId = EVENTS.parse().map_err(OperationError::internal)?;
    let incoming = IncomingCall::platform_function(
        caller.request,
        caller.workspace,
        resource_type,
        function.to_owned(),
        params.clone(),
    );
    let incoming = incoming.with_key(caller.caller_key());
    let no_audit = |AuditUnavailable| OperationError::unavailable("the audit cannot be written; try again later");
    let entry = app.auditor.open(&incoming, Arc::default()).map_err(no_audit)?;
    // The function changes something, so its row `started` is on disk before.
    entry.started().await.map_err(no_audit)?;
    let done = run(app, caller, function, Value::Object(params)).await;
    let (outcome, error) = match done {
        Ok(data) => (CallOutcome::success(JsonText::from(&data)), None),
        Err(OperationError::Invalid(errors)) => (invalid_params(&errors), None),
        Err(error @ OperationError::RateLimited { .. }) => {
            (CallOutcome::error(Code::Limit, error.to_string()), Some(error))
        }
        Err(OperationError::NotFound(message) | OperationError::Conflict(message)) => {
            (CallOutcome::error(Code::InvalidParams, message), None)
        }
        Err(error) => (CallOutcome::error(error.code(), error.to_string()), Some(error)),
    };
    let closed = entry.close(&outcome, Vec::new()).await.map_err(no_audit)?;
    let duration_ms = closed.committed().await.map_err(no_audit)?;
    if let Some(error) = error {
        return Err(error);
    }
    let CallOutcome { status, code, message, data, .. } = outcome;
    let request_id = caller.request;
    Ok(CallResult { request_id, status, code, message, data, approval: None, authorization: None, duration_ms })
}

async fn run(app: &App, caller: &Root, function: &str, params: Value) -> Result<Value, OperationError> {
    // A root key has the rights of an operator. The changes have records of their own, beside that of the call.
    let operator = Operator::try_from(Caller { request: RequestId::new(), ..(**caller).clone() })?;
    match function {
        "emit" => {
            let row = events::row(app, caller, parsed::<NewEvent>(params)?).await?;
            app.emitter.insert(&row).await?;
            Ok(json!(events::emitted(&row)))
        }
        "subscribe" => {
            let Subscribe { pattern, bot_id, instruction } = parsed(params)?;
            let new = NewSubscription {
                bot_id,
                pattern,
                instruction,
                from: None,
                narrow: None,
                active: true,
                expires_at: None,
            };
            let made = subscriptions::create(app, &operator, new).await?;
            Ok(json!({ "subscription_id": made.id, "pattern": made.pattern }))
        }
        "unsubscribe" => {
            let Unsubscribe { subscription_id, bot_id } = parsed(params)?;
            let is_own = match subscriptions::show(app, &operator, subscription_id).await {
                Ok(found) => found.bot_id == bot_id,
                Err(OperationError::NotFound(_)) => false,
                Err(error) => return Err(error),
            };
            if is_own {
                Box::pin(subscriptions::delete(app, &operator, subscription_id)).await?;
            }
            Ok(json!({ "subscription_id": subscription_id, "removed": is_own }))
        }
        _ => {
            let GetSubscriptions { bot_id } = parsed(params)?;
            let listed = subscriptions::list(app, &operator, Some(bot_id), &Page::first(LISTED_MAX)).await?;
            let now = app.clock.now();
            let shown = listed.items.into_iter().map(|it| {
                json!({
                    "subscription_id": it.id,
                    "pattern": it.pattern,
                    "instruction": it.instruction,
                    "active": it.active && it.expires_at.is_none_or(|end| end > now),
                    "created_at": it.created_at,
                })
            });
            Ok(Value::Array(shown.collect()))
        }
    }
}

/// Reads the parameters of a function.
fn parsed<T: DeserializeOwned>(params: Value) -> Result<T, OperationError> {
    serde_path_to_error::deserialize(params).map_err(|error| {
        let path = json_pointer(error.path());
        let fault = shape_error(&path, &error.inner().to_string());
        OperationError::Invalid(vec![fault])
    })
}
