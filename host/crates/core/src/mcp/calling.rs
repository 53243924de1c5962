//! Calls of tools of MCP servers.

use std::sync::Arc;
use std::time::Duration;

use monstrum_egress::{RedactorCell, SearchBudget};
use monstrum_mcp::client::{CalledTool, ClientError, InFlight, RemoteCall};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::wire::ResourceWire;
use super::{Access, Link, Mcp};
use crate::call_types::call_secrets::CallSecrets;

/// The time that a server has to accept the notification about a cancelled call.
const CANCEL_MAX: Duration = Duration::from_secs(5);
/// The time for which a request may continue after the deadline of its call, so that the call itself times out first.
const REQUEST_MARGIN: Duration = Duration::from_secs(1);
/// The codes with which servers answer a call of a tool that they do not have: invalid parameters, unknown method.
const UNKNOWN_TOOL_CODES: [i64; 2] = [-32602, -32601];

/// A call of a tool of an MCP server. The pipeline has permitted and recorded the call.
pub struct McpCall<'a> {
    /// The name of the tool at the server.
    pub name: &'a str,
    pub arguments: &'a Map<String, Value>,
    /// The schema that was approved.
    pub input_schema: &'a Map<String, Value>,
    /// Whether the call may be sent again after its connection broke.
    pub is_repeatable: bool,
    pub secrets: &'a CallSecrets,
    pub until: Instant,
    pub fuel: u64,
}

impl Mcp {
    /// Calls a tool of the server with this access. Dropping the future cancels the call at the server.
    ///
    /// # Errors
    /// Fails if the server gives no usable result.
    pub async fn call(self: &Arc<Self>, access: &Access, call: &McpCall<'_>) -> Result<CalledTool, ClientError> {
        let budget = SearchBudget::of_fuel(call.fuel);
        let redactor = Arc::new(RedactorCell::new(access.credential.redactor()).with_budget(budget));
        let wire = ResourceWire {
            egress: self.egress.clone(),
            access: access.clone(),
            redactor: Arc::clone(&redactor),
            until: call.until + REQUEST_MARGIN,
        };
        let running = Running { mcp: self, link: self.link(access), wire, in_flight: Arc::default() };
        call.secrets.search_until(call.until);
        // A call that is dropped must be redacted too, so the secrets are known before the request is sent.
        call.secrets.redact_with(redactor.current());
        let remote = RemoteCall {
            name: call.name,
            arguments: call.arguments,
            input_schema: call.input_schema,
            is_repeatable: call.is_repeatable,
            in_flight: &running.in_flight,
        };
        let called = running.link.connection.call_tool(&running.wire, &remote).await;
        // A refresh during the call adds secrets.
        call.secrets.redact_with(redactor.current());
        let may_lack_tool = match &called {
            Ok(called) => called.is_list_changed,
            Err(ClientError::Rpc { code, .. }) => UNKNOWN_TOOL_CODES.contains(code),
            Err(_) => false,
        };
        if may_lack_tool {
            self.nudge(access.resource.row.id);
        }
        called
    }
}

/// A running call. Dropping it tells a server of an earlier revision that the call was cancelled, if the server has not
/// answered yet.
struct Running<'a> {
    mcp: &'a Arc<Mcp>,
    link: Arc<Link>,
    wire: ResourceWire,
    in_flight: Arc<InFlight>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.in_flight.must_be_cancelled() {
            return;
        }
        let (link, in_flight) = (Arc::clone(&self.link), Arc::clone(&self.in_flight));
        let wire = self.wire.until(Instant::now() + CANCEL_MAX);
        self.mcp.tasks.spawn(async move {
            if let Err(error) = link.connection.cancel(&wire, &in_flight).await {
                tracing::debug!(%error, "an MCP server did not accept the notification about a cancelled call");
            }
        });
    }
}
