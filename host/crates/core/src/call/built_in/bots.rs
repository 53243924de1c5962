//! The tools of the built-in type `bot`: one bot acts on behalf of another, or works on a task for it.
//!
//! Each call of the other bot is a child call. The roles and scopes of the other bot and the constraints of every
//! delegation in the chain apply to the call. A delegation can only narrow the permissions.

mod tasks;

use std::sync::Arc;

use monstrum_guardian::{Decision, Permit, Question};
use monstrum_runtime::RESULT_BYTES_MAX;
use monstrum_types::{CallOutcome, Code, Effort, JsonText, Overrun};
use serde_json::{Map, Value, json};

use crate::call::child_calls::ChildCalls;
use crate::call::permitted::{Execution, TargetKind};
use crate::call::resolve;
use crate::call::session::Session;
use crate::call_types::starts_tasks::StartsTasks;
use crate::checks::pay_for_object;
use crate::plugins::built_in::{CALL_TOOL, LIST_TOOLS};

/// Runs a tool of the type, or a platform function. `tasks` is `None` on a host without tasks.
pub async fn run(
    tasks: Option<Arc<dyn StartsTasks>>,
    execution: &Execution<'_>,
    permit: &Permit,
    child_calls: Option<&ChildCalls>,
) -> CallOutcome {
    match (&execution.target.kind, permit.tool(), child_calls, tasks) {
        (TargetKind::Function(name), _, _, Some(tasks)) => tasks::run_function(tasks, execution, permit, name).await,
        (TargetKind::Tool(_), CALL_TOOL, Some(child_calls), _) => call_tool(permit.params(), child_calls).await,
        (TargetKind::Tool(_), LIST_TOOLS, Some(child_calls), _) => list_tools(execution, child_calls).await,
        (TargetKind::Tool(_), _, Some(child_calls), Some(tasks)) => {
            tasks::run(tasks, execution, permit, child_calls).await
        }
        _ => CallOutcome::error(Code::Unavailable, "this server cannot run the tool"),
    }
}

async fn call_tool(params: &Map<String, Value>, child_calls: &ChildCalls) -> CallOutcome {
    let tool = params.get("tool").and_then(Value::as_str).unwrap_or_default().to_owned();
    let params = params.get("params").cloned().unwrap_or_else(|| json!({}));
    if let Err(failure) = child_calls.count() {
        return CallOutcome::failure(failure.status, failure.code, failure.message);
    }
    // The answer of the other bot is passed on unchanged, so that the caller learns the reason for a refusal.
    match child_calls.make(tool, params).await {
        Ok(outcome) => CallOutcome { rule: None, output_mismatch: false, retry_after: None, ..outcome },
        Err(failure) => CallOutcome::failure(failure.status, failure.code, failure.message),
    }
}

/// Lists the tools of the other bot that the delegation and this binding permit.
async fn list_tools(execution: &Execution<'_>, child_calls: &ChildCalls) -> CallOutcome {
    let Some(session) = child_calls.session() else {
        return CallOutcome::error(Code::Unavailable, "the bot of this resource is not available");
    };
    let sibling = execution.target.resolved().and_then(|resolved| resolved.sibling(CALL_TOOL));
    let may_be_called = move |name: &str, effort: &Effort| {
        let Some(sibling) = &sibling else { return Ok(false) };
        let asked = Map::from_iter([("tool".to_owned(), Value::from(name)), ("params".to_owned(), json!({}))]);
        Ok(!matches!(sibling.decide(Question::Call(&asked), effort)?, Decision::Deny(_)))
    };
    let text = match child_calls.check(move |effort| list(&session, &may_be_called, effort)).await {
        Ok(text) => text,
        Err(unchecked) => return unchecked.outcome(),
    };
    if text.as_str().len() > RESULT_BYTES_MAX {
        return CallOutcome::error(Code::ResultTooLarge, "the list of tools exceeds the limit of 1 MiB");
    }
    CallOutcome::success(text)
}

fn list(
    session: &Session,
    may_be_called: &impl Fn(&str, &Effort) -> Result<bool, Overrun>,
    effort: &Effort,
) -> Result<JsonText, Overrun> {
    let visible = resolve::list(session, effort)?;
    let mut listed = Vec::new();
    for same in visible.chunk_by(|a, b| a.tool().manifest.name == b.tool().manifest.name) {
        let manifest = &same[0].tool().manifest;
        if !may_be_called(manifest.name.as_str(), effort)? {
            continue;
        }
        pay_for_object(&manifest.input_schema, effort)?;
        let names: Vec<&str> = same.iter().map(|resolved| resolved.binding.resource.row.name.as_str()).collect();
        listed.push(json!({
            "name": manifest.name,
            "description": manifest.description,
            "input_schema": resolve::with_resource(manifest.input_schema.clone(), &names),
            "operation": manifest.operation,
            "resource_type": same[0].plugin.manifest.resource_type.id,
        }));
    }
    let shown = json!({ "bot": {"id": session.bot.row.id, "name": session.bot.row.name}, "tools": listed });
    Ok(JsonText::from(&shown))
}
