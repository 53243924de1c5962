//! The bodies of requests that create objects.

use anyhow::Result;
use serde_json::{Value, json};

/// Returns the body for a schedule that never fires.
pub(super) fn schedule(name: &str, bot: &str) -> Value {
    json!({ "name": name, "bot_id": bot, "instruction": "x", "every_s": 3600, "enabled": false })
}

/// Returns the body for a subscription that matches nothing.
pub(super) fn subscription(bot: &str) -> Value {
    json!({ "bot_id": bot, "pattern": "nothing", "instruction": "x", "active": false })
}

/// Returns the body for a webhook.
pub(super) fn webhook(name: &str) -> Value {
    json!({ "name": name, "event": "e", "verify": { "kind": "token" } })
}

/// Returns the body for trusting a new key.
pub(super) fn trust(name: &str) -> Result<Value> {
    let key = monstrum_package::SigningKey::generate()?.public();
    Ok(json!({ "public_key": key.to_string(), "name_glob": name }))
}
