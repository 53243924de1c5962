//! The built-in type `mcp`: a server of the Model Context Protocol. Its tools are the approved tools that the server
//! declares.

use serde_json::{Value, json};

use super::{Locales, Plugin, built_in, dimensions_field, integer_field};

/// The name of the type and of its plugin.
pub const MCP: &str = "mcp";
/// The field of the configuration with the URL of the server.
pub const MCP_URL: &str = "url";
/// The field of the configuration that selects whose credential calls use.
pub const MCP_CREDENTIAL: &str = "credential";
/// The value of that field with which each call uses the credential of its user.
pub const MCP_CREDENTIAL_USER: &str = "user";

/// The platform function that lists the approved tools of a server.
pub const MCP_LIST_TOOLS: &str = "list_tools";
/// The platform function that calls an approved tool of a server.
pub const MCP_CALL_TOOL: &str = "call_tool";

pub(super) fn plugin() -> Plugin {
    built_in(manifest(), Locales::default())
}

fn manifest() -> Value {
    let token = json!([{"field": "access_token", "type": "secret", "description": "The access token"}]);
    json!({
        "name": MCP,
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Servers of the Model Context Protocol",
        "author": "Monstrum",
        "resource_type": {
            "id": MCP,
            "name": "MCP server",
            "mode": "system",
            "description": "A server of the Model Context Protocol over Streamable HTTP. An admin approves its tools.",
            "icon": "mcp",
            "auth_flow": "manual",
            "tool_discovery": "dynamic",
            "config_schema": [
                {"field": MCP_URL, "type": "url", "description": "The URL of the server's endpoint"},
                {
                    "field": "definitions", "type": "enum", "enum_values": ["review", "first"], "required": false,
                    "default": "review",
                    "description": "`review`: an admin approves each tool. `first`: the tools of the first successful \
                                    discovery are approved; tools that come or change later wait for an admin.",
                },
                {
                    "field": MCP_CREDENTIAL, "type": "enum", "enum_values": ["shared", MCP_CREDENTIAL_USER],
                    "required": false, "default": "shared",
                    "description": "`shared`: all calls use the credential of the resource. `user`: each call uses the \
                                    credential of its user, and discoveries use the credential of the resource, if any.",
                },
                {
                    "field": "key_header", "required": false, "default": "X-API-Key",
                    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                    "description": "The header in which an API key is sent",
                },
                dimensions_field(),
                integer_field("refresh_s", (60, 86_400), 900, "The time between two discoveries, in seconds"),
                integer_field("timeout_s", (1, 600), 60, "The time limit of a call, in seconds"),
                integer_field("concurrent", (1, 64), 16, "The maximum number of concurrent calls"),
            ],
            "auth_methods": [
                {"method": "none", "label": "No credential"},
                {"method": "token", "label": "Token", "credential_schema": token},
                {
                    "method": "api_key", "label": "API key",
                    "credential_schema": [{"field": "api_key", "type": "secret", "description": "The API key"}],
                },
                {"method": "oauth2_auth_code", "label": "OAuth"},
                {"method": "oauth2_client_creds", "label": "OAuth client credentials"},
            ],
        },
        "executor": {"capabilities": []},
    })
}
