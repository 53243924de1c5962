//! Calls of tools of MCP servers, and the platform functions of the type `mcp`.

mod functions;

use std::sync::Arc;

use monstrum_guardian::Permit;
use monstrum_manifest::{Effect, json_depth};
use monstrum_mcp::client::{CalledTool, ClientError, shortened};
use monstrum_runtime::{RESULT_BYTES_MAX, RESULT_DEPTH_MAX, StopReason};
use monstrum_types::{CallOutcome, Code, Failure, FailureCode, JsonText};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::call::permitted::{Execution, TargetKind};
use crate::mcp::{Mcp, McpCall};
use crate::meters;
use crate::plugins::Tool;

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
    match mcp.call(resource, &call).await {
        Ok(called) => result(called),
        Err(error) => failure(&error, is_repeatable),
    }
}

fn result(called: CalledTool) -> CallOutcome {
    let CalledTool { content, structured, is_error, dropped_blocks, .. } = called;
    if dropped_blocks > 0 {
        meters::dropped_blocks(dropped_blocks);
    }
    if is_error {
        return CallOutcome::error(Code::Plugin, text_of(&content));
    }
    let mut data = json!({ "content": content });
    if let Some(structured) = structured {
        data["structured"] = structured;
    }
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

/// Returns the outcome of a call that has no usable result.
fn failure(error: &ClientError, is_repeatable: bool) -> CallOutcome {
    let code = match error {
        ClientError::Unauthenticated => Code::Unauthenticated,
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
    let is_uncertain = !is_repeatable && matches!(error, ClientError::Failed(failure) if failure.sent);
    let message = if is_uncertain { format!("{message}; {UNCERTAIN}") } else { message };
    CallOutcome::error(code, message)
}

#[cfg(test)]
mod tests {
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
    }
}
