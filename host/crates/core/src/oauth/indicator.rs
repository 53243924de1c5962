//! The parameter `resource` of requests to a provider (RFC 8707), and the URL of the server that it names.

use serde_json::Value;
use url::Url;

use crate::credentials::provider::ConfirmedServer;
use crate::plugins::built_in::{MCP, MCP_URL};
use crate::policy::Resource;

/// Returns the value of the parameter `resource` (RFC 8707). An MCP server is named even to a provider whose metadata
/// are not known, so that a token for it is not valid for other servers.
pub(super) fn indicator(resource: &Resource, server: Option<ConfirmedServer>) -> Option<String> {
    server.map(|server| server.resource).or_else(|| server_url(resource).map(str::to_owned))
}

/// Returns the URL of an MCP server, or `None` for a resource of another type.
pub(super) fn server_url(resource: &Resource) -> Option<&str> {
    let is_server = resource.plugin.name.as_str() == MCP;
    resource.config.get(MCP_URL).and_then(Value::as_str).filter(|_| is_server)
}

/// Returns whether two texts are the same URL.
pub(super) fn is_same_url(one: &str, other: &str) -> bool {
    matches!((Url::parse(one), Url::parse(other)), (Ok(one), Ok(other)) if one == other)
}
