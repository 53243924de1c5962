//! Calls of tools of MCP servers, and the platform functions of the type `mcp`.

mod functions;

use std::sync::Arc;

use monstrum_guardian::Permit;
use monstrum_manifest::{Effect, json_depth};
use monstrum_mcp::client::{CalledTool, ClientError, shortened};
use monstrum_runtime::{RESULT_BYTES_MAX, RESULT_DEPTH_MAX, StopReason};
use monstrum_types::{AwaitedAuthorization, CallOutcome, Code, Failure, FailureCode, JsonText};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::call::permitted::{Execution, TargetKind};
use crate::call_types::refusal::Refusal;
use crate::mcp::{Access, Mcp, McpCall};
use crate::meters;
use crate::plugins::Tool;
use crate::policy::Resource;

/// The maximum length of the text with which a tool reports a failure, in bytes.
const FAILURE_BYTES_MAX: usize = 4096;
/// The message for a failed call that may have reached the server.
const UNCERTAIN: &str = "the call may have been carried out";

/// The limits of one call.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub until: Instant,
    pub fuel: u64,
}

/// Runs a tool of an MCP server, or a platform function.
pub async fn run(mcp: &Arc<Mcp>, execution: &Execution<'_>, permit: &Permit, bounds: Bounds) -> CallOutcome {
    match (&execution.target.kind, execution.target.tool()) {
        (TargetKind::Function(name), _) => functions::run(mcp, execution, permit, name, bounds).await,
        (_, Some(tool)) => call(mcp, execution, tool, permit.params(), bounds).await,
        (_, None) => CallOutcome::error(Code::Unavailable, "this server cannot run the tool"),
    }
}

/// Calls `tool` with these arguments, which match its schema.
async fn call(
    mcp: &Arc<Mcp>,
    execution: &Execution<'_>,
    tool: &Tool,
    arguments: &Map<String, Value>,
    bounds: Bounds,
) -> CallOutcome {
    let (Some(resource), Some(remote)) = (&execution.target.resource, &tool.remote) else {
        return CallOutcome::error(Code::Unavailable, "this server cannot run the tool");
    };
    let access = match access(execution, resource) {
        Ok(access) => access,
        Err(refused) => return *refused,
    };
    let is_repeatable = tool.manifest.effect != Effect::Write;
    let call = McpCall {
        name: &remote.original_name,
        arguments,
        input_schema: &tool.manifest.input_schema,
        is_repeatable,
        secrets: execution.secrets,
        until: bounds.until,
        fuel: bounds.fuel,
    };
    let called = mcp.call(&access, &call).await;
    if called.as_ref().is_err_and(is_unanswered) {
        execution.entry.left_unanswered();
    }
    match called {
        Ok(called) => result(called),
        // Only an admin can add scopes, so the user need not authorize again yet.
        Err(error @ ClientError::InsufficientScope(_)) => failure(&error, is_repeatable),
        Err(error) if resource.has_user_credentials() => of_user(execution, resource, failure(&error, is_repeatable)),
        Err(error) => failure(&error, is_repeatable),
    }
}

/// Returns the refusal of a call of a tool that needs a credential of its user, if the user lacks it.
pub fn without_credential(execution: &Execution<'_>) -> Option<CallOutcome> {
    let resource = execution.target.resource.as_ref().filter(|_| execution.target.tool().is_some())?;
    access(execution, resource).err().map(|refused| *refused)
}

/// Returns the access of a call to the server: with the credential of its user, if the resource requires it.
fn access(execution: &Execution<'_>, resource: &Arc<Resource>) -> Result<Access, Refusal> {
    if !resource.has_user_credentials() {
        return Ok(Access::shared(resource));
    }
    let refused = |message: String| Box::new(lacking(execution, resource, message));
    let name = &resource.row.name;
    let Some(user) = execution.call.app_user() else {
        return Err(refused(format!(
            "the resource `{name}` needs a credential of the user, and the call names no user"
        )));
    };
    let snapshot = execution.pipeline.policy.load();
    let Some(credential) = snapshot.user_credential(resource.row.id, &user) else {
        return Err(refused(format!("the user of this call has not authorized the resource `{name}`")));
    };
    Ok(Access::of_user(resource, credential))
}

/// Returns the outcome of a failed call with the credential of a user. A credential that cannot be used must be obtained
/// again by the user, not by an admin.
fn of_user(execution: &Execution<'_>, resource: &Resource, outcome: CallOutcome) -> CallOutcome {
    if outcome.code != Some(Code::Unauthenticated) {
        return outcome;
    }
    let name = &resource.row.name;
    let message = format!(
        "the credential of the user for the resource `{name}` is not accepted; the user must authorize it again"
    );
    lacking(execution, resource, message)
}

fn lacking(execution: &Execution<'_>, resource: &Resource, message: String) -> CallOutcome {
    let authorization = AwaitedAuthorization { resource_id: resource.row.id, user: execution.call.app_user() };
    CallOutcome::error(Code::Unauthenticated, message).lacking(authorization)
}

fn result(called: CalledTool) -> CallOutcome {
    let CalledTool { content, structured, is_error, dropped_blocks, .. } = called;
    if dropped_blocks > 0 {
        meters::dropped_blocks(dropped_blocks);
    }
    if is_error {
        return CallOutcome::error(Code::Plugin, text_of(&content));
    }
    let mut data = Map::from_iter([("content".to_owned(), Value::Array(content))]);
    data.extend(structured.map(|structured| ("structured".to_owned(), structured)));
    let data = JsonText::from(&data);
    if data.as_str().len() > RESULT_BYTES_MAX {
        return CallOutcome::error(StopReason::ResultTooLarge.code(), "the MCP server returned more than 1 MiB");
    }
    if json_depth(data.as_str().as_bytes()) > RESULT_DEPTH_MAX {
        let message = format!("the result of the MCP server is nested more than {RESULT_DEPTH_MAX} levels deep");
        return CallOutcome::error(Code::BadResult, message);
    }
    CallOutcome::success(data)
}

/// Returns the text with which a tool reports a failure.
fn text_of(content: &[Value]) -> String {
    let is_text = |block: &&Value| block.get("type").and_then(Value::as_str) == Some("text");
    let texts = content.iter().filter(is_text).filter_map(|block| block.get("text")?.as_str());
    let text = texts.collect::<Vec<_>>().join("\n");
    match shortened(&text, FAILURE_BYTES_MAX).trim() {
        "" => "the tool reported a failure without a text".to_owned(),
        text => text.to_owned(),
    }
}

/// Returns whether a request may have reached the server, and has no usable answer.
fn is_unanswered(error: &ClientError) -> bool {
    is_cut_off(error) || matches!(error, ClientError::Invalid(_) | ClientError::TooMuch(_))
}

/// Returns whether a request may have reached the server, and has no answer.
fn is_cut_off(error: &ClientError) -> bool {
    matches!(error, ClientError::Failed(failure) if failure.sent && failure.code != FailureCode::Unauthenticated)
}

/// Returns the outcome of a call that has no usable result.
fn failure(error: &ClientError, is_repeatable: bool) -> CallOutcome {
    let code = match error {
        ClientError::Unauthenticated | ClientError::InsufficientScope(_) => Code::Unauthenticated,
        ClientError::Failed(Failure { code, .. }) => match code {
            FailureCode::Unauthenticated => Code::Unauthenticated,
            FailureCode::Timeout => Code::Timeout,
            FailureCode::TooLarge => Code::ResultTooLarge,
            FailureCode::Unavailable | FailureCode::Internal => Code::Unavailable,
            _ => Code::Upstream,
        },
        _ => Code::Upstream,
    };
    let message = error.to_string();
    let is_uncertain = !is_repeatable && is_cut_off(error);
    let message = if is_uncertain { format!("{message}; {UNCERTAIN}") } else { message };
    CallOutcome::error(code, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn called(content: Vec<Value>) -> CalledTool {
        CalledTool { content, structured: None, is_error: false, dropped_blocks: 0, is_list_changed: false }
    }

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn results_become_content_and_failures_become_texts() {
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        let outcome =
            result(CalledTool { structured: Some(json!({"a": 1})), ..called(vec![text("a"), image.clone()]) });
        let data = outcome.data.unwrap().value();
        assert_eq!(data, json!({"content": [text("a"), image], "structured": {"a": 1}}));
        let failed = |content: Vec<Value>| {
            let outcome = result(CalledTool { is_error: true, ..called(content) });
            (outcome.code, outcome.message.unwrap())
        };
        assert_eq!(failed(vec![text("no such"), image.clone(), text("file")]).1, "no such\nfile");
        assert_eq!(failed(vec![image]), (Some(Code::Plugin), "the tool reported a failure without a text".to_owned()));
        assert_eq!(failed(vec![text(&"\u{e9}".repeat(4000))]).1.len(), FAILURE_BYTES_MAX);
    }

    #[test]
    fn results_over_the_limits_are_refused() {
        let large = result(called(vec![text(&"x".repeat(RESULT_BYTES_MAX))]));
        assert_eq!(large.code, Some(Code::ResultTooLarge));
        let deep = (0..70).fold(json!(1), |inner, _| json!([inner]));
        let deep = result(CalledTool { structured: Some(deep), ..called(Vec::new()) });
        assert_eq!(deep.code, Some(Code::BadResult));
    }

    #[test]
    fn failures_have_the_code_of_their_cause() {
        let sent = |code| ClientError::Failed(Failure::sent(code, "it failed"));
        let unsent = |code| ClientError::Failed(Failure::unsent(code, "it failed"));
        for (error, code) in [
            (ClientError::Unauthenticated, Code::Unauthenticated),
            (ClientError::InsufficientScope(vec!["a".to_owned()]), Code::Unauthenticated),
            (unsent(FailureCode::Unauthenticated), Code::Unauthenticated),
            (unsent(FailureCode::Connect), Code::Upstream),
            (unsent(FailureCode::Denied), Code::Upstream),
            (sent(FailureCode::Timeout), Code::Timeout),
            (sent(FailureCode::TooLarge), Code::ResultTooLarge),
            (ClientError::Status(500), Code::Upstream),
            (ClientError::Rpc { code: -32602, message: "no".to_owned() }, Code::Upstream),
            (ClientError::Unsupported("sampling".to_owned()), Code::Upstream),
        ] {
            assert_eq!(failure(&error, true).code, Some(code), "{error}");
        }
        let message = |error: &ClientError, is_repeatable| failure(error, is_repeatable).message.unwrap();
        assert_eq!(message(&sent(FailureCode::Protocol), false), "it failed; the call may have been carried out");
        assert_eq!(message(&sent(FailureCode::Protocol), true), "it failed");
        assert_eq!(message(&unsent(FailureCode::Connect), false), "it failed");
        for (error, expected) in [
            (sent(FailureCode::Protocol), true),
            (sent(FailureCode::Timeout), true),
            (ClientError::Invalid("no".to_owned()), true),
            (ClientError::TooMuch("no".to_owned()), true),
            (unsent(FailureCode::Timeout), false),
            (sent(FailureCode::Unauthenticated), false),
            (ClientError::Status(500), false),
            (ClientError::Rpc { code: -32602, message: "no".to_owned() }, false),
        ] {
            assert_eq!(is_unanswered(&error), expected, "{error}");
        }
    }
}
