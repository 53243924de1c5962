//! Calls of other plugins' tools.
//!
//! A child call runs as the same bot, passes all permission checks, and is limited to the remaining time of the parent
//! call. A child call requires three grants: the manifest has the capability `tools` and lists the tool under
//! `executor.calls`, the binding lists the tool under `allow_calls`, and the bot may call the tool. A call of a tool
//! that is not granted returns the same error as a call of a tool that does not exist.

use std::fmt;

use serde_json::Value;

use crate::host;

/// A client that calls the tools of one other plugin by their short names.
///
/// ```
/// use monstrum_sdk::{Error, PluginClient, Request, Value, json};
/// # use monstrum_sdk::{Executor, Operations, operations, testing::Call};
/// # struct Plugin;
/// # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "report.write" => report }; }
///
/// fn report(request: &Request) -> Result<Value, Error> {
///     let repo: String = request.param("repo")?;
///     let issues = PluginClient::new("github").call("list_issues", json!({ "repo": repo }))?;
///     Ok(json!({ "open": issues.as_array().map_or(0, Vec::len) }))
/// }
///
/// let call = Call::new("report_write", "report.write").param("repo", "acme/site");
/// let run = call.clone().tool("github_list_issues", json!([1, 2])).run(&Plugin);
/// assert_eq!(run.tool_calls[0].params, json!({ "repo": "acme/site" }));
/// assert_eq!(run.success(), json!({ "open": 2 }));
///
/// let refused = call.tool_failure("github_list_issues", "permission_denied", "denied", "Permission denied: no");
/// assert_eq!(refused.run(&Plugin).error(), "Permission denied: no");
/// ```
#[derive(Clone, Debug)]
pub struct PluginClient {
    prefix: String,
}

impl PluginClient {
    /// Creates a client for the tools of `plugin`. By convention, the names of these tools start with the plugin's name
    /// and `_`. Tool names cannot contain hyphens, so each hyphen in the plugin's name becomes `_`: the tools of
    /// `acme-tickets` are `acme_tickets_…`.
    ///
    /// For tools with other names, use [`call_tool`].
    #[must_use]
    pub fn new(plugin: &str) -> Self {
        PluginClient { prefix: format!("{}_", plugin.replace('-', "_")) }
    }

    /// Calls the tool whose full name is the plugin's name, `_` and `tool`.
    ///
    /// ```
    /// # use monstrum_sdk::{Error, Executor, Operations, PluginClient, Request, Value, json, operations, testing::Call};
    /// # struct Plugin;
    /// # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "report.write" => report }; }
    /// fn report(_: &Request) -> Result<Value, Error> {
    ///     Ok(PluginClient::new("acme-tickets").call("get_item", json!({ "id": "7" }))?)
    /// }
    /// # let call = Call::new("report_write", "report.write").tool("acme_tickets_get_item", json!("the item"));
    /// # assert_eq!(call.run(&Plugin).success(), json!("the item"));
    /// ```
    ///
    /// # Errors
    /// Returns an error if the call is rejected or fails.
    pub fn call(&self, tool: &str, params: impl Into<Value>) -> Result<Value, ToolError> {
        call_tool(&format!("{}{tool}", self.prefix), params)
    }
}

/// Calls a tool by its full name.
///
/// # Errors
/// Returns an error if the call is rejected or fails.
pub fn call_tool(tool: &str, params: impl Into<Value>) -> Result<Value, ToolError> {
    let data = host::call_tool(tool, &params.into().to_string()).map_err(|failure| ToolError {
        message: failure.message,
        status: failure.status,
        code: failure.code,
    })?;
    serde_json::from_str(&data).map_err(|error| ToolError {
        message: format!("the result of the tool is not valid JSON: {error}"),
        status: "error".to_owned(),
        code: "bad_result".to_owned(),
    })
}

/// A failed call of another tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolError {
    /// The message, which is written for a model.
    pub message: String,
    /// The status: `error`, `scope_violation`, `permission_denied` or `approval_required`. Treat an unknown status as a
    /// failed call.
    pub status: String,
    /// The error code, which is also a code of the HTTP API, such as `denied`, `scope`, `limit`, `busy` or `timeout`.
    pub code: String,
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.message.is_empty() { &self.code } else { &self.message })
    }
}

impl std::error::Error for ToolError {}
