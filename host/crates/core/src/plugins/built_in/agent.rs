//! The built-in type `agent`: a program that connects to the host and brings tools. Its tools are the approved tools
//! that the program declares.

use serde_json::{Value, json};

use super::{Locales, Plugin, built_in, dimensions_field, integer_field};

/// The name of the type and of its plugin.
pub const AGENT: &str = "agent";

pub(super) fn plugin() -> Plugin {
    built_in(manifest(), Locales::default())
}

fn manifest() -> Value {
    json!({
        "name": AGENT,
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Programs that connect to the server and bring tools",
        "author": "Monstrum",
        "resource_type": {
            "id": AGENT,
            "name": "Remote agent",
            "mode": "system",
            "description": "A program that connects to the server over a WebSocket and brings tools.",
            "icon": "agent",
            "auth_flow": "none",
            "tool_discovery": "dynamic",
            "config_schema": [
                {
                    "field": "definitions", "type": "enum", "enum_values": ["first", "review", "trusted"],
                    "required": false, "default": "first",
                    "description": "`first`: the tools of the first connection are approved; tools that come or change \
                                    later wait for an admin. `review`: an admin approves each tool. `trusted`: all \
                                    tools that the agent declares are approved.",
                },
                integer_field("timeout_s", (1, 600), 60, "The time limit of a call, in seconds"),
                dimensions_field(),
                integer_field("concurrent", (1, 64), 16, "The maximum number of concurrent calls"),
            ],
        },
        "executor": {"capabilities": []},
    })
}
