//! Emits events, and subscribes the bot that calls it. The result of a call also reports failures.

#![forbid(unsafe_code)]

use monstrum_sdk::events::{self, Subscription};
use monstrum_sdk::{Error, Executor, Failure, Operations, Request, Value, json, operations};

struct Events;

impl Executor for Events {
    const OPERATIONS: Operations = operations! {
        "events.emit" => emit,
        "events.subscribe" => subscribe,
        "events.read" => list,
    };
}

monstrum_sdk::export!(Events);

fn emit(request: &Request) -> Result<Value, Error> {
    let name: String = request.param("name")?;
    let data: Value = request.optional_param("data")?.unwrap_or_else(|| json!({}));
    let mut ids = Vec::new();
    for _ in 0..request.optional_param::<u32>("times")?.unwrap_or(1) {
        match events::emit(&name, &data) {
            Ok(id) => ids.push(id),
            Err(failure) => return Ok(json!({ "ids": ids, "failure": told(Err(failure)) })),
        }
    }
    if request.optional_param("fail")?.unwrap_or(false) {
        return Err(Error::message("the call fails after its events"));
    }
    Ok(json!({ "ids": ids }))
}

fn subscribe(request: &Request) -> Result<Value, Error> {
    if request.tool_name == "test_events_unsubscribe" {
        let id: String = request.param("id")?;
        return Ok(told(events::unsubscribe(&id).map(Value::from)));
    }
    let (pattern, instruction): (String, String) = (request.param("pattern")?, request.param("instruction")?);
    Ok(told(events::subscribe(&pattern, &instruction).map(Value::from)))
}

fn list(_: &Request) -> Result<Value, Error> {
    Ok(told(events::subscriptions().map(|listed| {
        let listed = listed.into_iter().map(|Subscription { id, pattern, instruction, active, created_at }| {
            json!({
                "id": id, "pattern": pattern, "instruction": instruction, "active": active, "created_at": created_at,
            })
        });
        listed.collect()
    })))
}

fn told(ended: Result<Value, Failure>) -> Value {
    ended.unwrap_or_else(
        |Failure { code, message, sent, .. }| json!({ "code": code.as_str(), "message": message, "sent": sent }),
    )
}
