//! Connections of remote agents.

use super::{AgentCaller, OperationError};
use crate::app::App;
use crate::plugins::built_in;
use crate::remote_agents::{AgentKey, SocketPlace};

/// Permits an agent to connect. Returns its key and the place of its socket.
pub fn connect(app: &App, caller: &AgentCaller) -> Result<(AgentKey, SocketPlace), OperationError> {
    let snapshot = app.policy.load();
    // In an unverified scope, rows may be forged, and an agent brings tools.
    if let Some(found) = snapshot.verification.unverified_for(caller.workspace) {
        return Err(OperationError::unverified(&found.scope.to_string()));
    }
    let resource = caller.resource.and_then(|id| snapshot.resource(caller.workspace, id));
    let resource = resource.filter(|resource| resource.row.resource_type.as_str() == built_in::AGENT);
    let resource = resource.ok_or_else(|| OperationError::not_found("resource"))?.row.id;
    if app.agents.is_stopping() {
        return Err(OperationError::Unavailable("the server stops".to_owned()));
    }
    let place = app.agents.place(resource);
    let place = place.ok_or_else(|| OperationError::Busy("the resource has too many open sockets".to_owned()))?;
    Ok((AgentKey { key: caller.caller_key(), workspace: caller.workspace, resource }, place))
}
