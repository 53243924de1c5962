//! Calls of tools of remote agents.

use std::time::Duration;

use monstrum_guardian::Permit;
use monstrum_types::{CallOutcome, Code, Status};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::call::permitted::Execution;
use crate::call_types::progress;
use crate::remote_agents::{CallError, Ended, OutgoingCall, RemoteAgents};

const NO_AGENT: &str = "no agent is connected for this tool; try again later";
const OTHER_HOST: &str =
    "the agent of this tool is connected to another host of this installation, which must make the call";
const OTHER_TOOLS: &str = "the connected agent offers another version of this tool";
const BUSY: &str = "the agent is busy";
const UNCERTAIN: &str = "the connection to the agent ended while it ran this call. The call may or may not have taken \
    effect; find out before you repeat it.";

/// Runs a tool of a remote agent. `timeout` is the time limit of the call, which the caller enforces by dropping the
/// future.
pub async fn run(agents: &RemoteAgents, execution: &Execution<'_>, permit: &Permit, timeout: Duration) -> CallOutcome {
    let Execution { call, target, judged_by, secrets, .. } = *execution;
    let remote = target.tool().and_then(|tool| tool.remote.as_ref());
    let (Some(remote), Some(resource)) = (remote, target.resource.as_ref()) else {
        return CallOutcome::error(Code::Unavailable, "this server cannot run the tool");
    };
    let bot = call.bot().and_then(|bot| judged_by.bot(call.workspace(), bot));
    let (listener, messages) = match &call.attachments().progress {
        Some(listener) => {
            // The agent sends at most one message in a second.
            let (sender, messages) = mpsc::channel(1);
            (Some(sender), Some((listener, messages)))
        }
        None => (None, None),
    };
    let call = OutgoingCall {
        id: permit.request_id().to_string(),
        tool: remote.original_name.to_string(),
        params: permit.params_text().to_owned(),
        bot_id: bot.map(|bot| bot.row.id.to_string()).unwrap_or_default(),
        bot_name: bot.map(|bot| bot.row.name.clone()).unwrap_or_default(),
        task_id: call.task_or_request_id(),
        chat: call.context().get("chat").cloned().unwrap_or(Value::Null),
        locale: call.language().tag().to_owned(),
        deadline_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        listener,
    };
    let until = Instant::now() + timeout;
    let passing_on = async {
        if let Some((listener, messages)) = messages {
            progress::pass_on(messages, listener, secrets).await;
        }
        std::future::pending().await
    };
    let ran = tokio::select! {
        ran = agents.call(resource.row.id, &call, &remote.digest, until) => ran,
        never = passing_on => never,
    };
    match ran {
        Ok(ended) => outcome(ended),
        Err(CallError::OtherHost(host)) => CallOutcome::error(Code::Unavailable, format!("{OTHER_HOST} (host {host})")),
        Err(CallError::NoAgent) => CallOutcome::error(Code::Unavailable, NO_AGENT),
        Err(CallError::OtherTools) => CallOutcome::error(Code::Unavailable, OTHER_TOOLS),
        Err(CallError::Busy) => CallOutcome::error(Code::Busy, BUSY),
        Err(CallError::Uncertain) => CallOutcome::error(Code::Uncertain, UNCERTAIN),
    }
}

fn outcome(ended: Ended) -> CallOutcome {
    match ended {
        Ended::Success(data) => CallOutcome::success(data),
        Ended::Error(message) => CallOutcome::error(Code::Plugin, message),
        Ended::ScopeViolation(reason) => {
            let message = format!("Scope violation: {reason}");
            CallOutcome::failure(Status::ScopeViolation, Code::Scope, message).by_rule("plugin")
        }
        Ended::Invalid(why) => CallOutcome::error(Code::BadResult, why),
        Ended::TooLarge => CallOutcome::error(Code::ResultTooLarge, "the agent returned more than 1 MiB"),
    }
}
