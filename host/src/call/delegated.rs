//! The tools of the built-in type `bot`: one bot acts on behalf of another.
//!
//! Whatever the other bot does is a call of its own, below the one that asked for it, judged by the other bot's roles and
//! scopes and by every link of the delegation that led there. A link only ever narrows.

use monstrum_guardian::{Decision, Permit, Question};
use monstrum_runtime::RESULT_BYTES_MAX;
use monstrum_types::{CallOutcome, Code, Effort, JsonText, Overrun};
use serde_json::{Map, Value, json};

use crate::call::nested::Nesting;
use crate::checks::pay_for_object;
use crate::executor::PermittedCall;
use crate::plugins::built_in::{CALL_TOOL, LIST_TOOLS};
use crate::session::Session;
use crate::tools;

/// Runs one of the tools.
pub async fn run(call: &PermittedCall<'_>, permit: &Permit, nesting: &Nesting) -> CallOutcome {
    match permit.tool() {
        CALL_TOOL => call_tool(permit.params(), nesting).await,
        LIST_TOOLS => list_tools(call, nesting).await,
        // Only reached if a tool is declared that nothing implements.
        _ => CallOutcome::error(Code::Unavailable, "this server cannot run the tool"),
    }
}

async fn call_tool(params: &Map<String, Value>, nesting: &Nesting) -> CallOutcome {
    let tool = params.get("tool").and_then(Value::as_str).unwrap_or_default().to_owned();
    let params = params.get("params").cloned().unwrap_or_else(|| json!({}));
    if let Err(failure) = nesting.count() {
        return CallOutcome::failure(failure.status, failure.code, failure.message);
    }
    // Exactly what the other bot read, so that the caller knows what stands in the way.
    match nesting.make(tool, params).await {
        Ok(outcome) => CallOutcome { rule: None, output_mismatch: false, ..outcome },
        Err(failure) => CallOutcome::failure(failure.status, failure.code, failure.message),
    }
}

/// The other bot's list under the delegation, less what this binding keeps from being called.
async fn list_tools(call: &PermittedCall<'_>, nesting: &Nesting) -> CallOutcome {
    let Some(session) = nesting.session() else {
        return CallOutcome::error(Code::Unavailable, "the bot of this resource cannot be used at present");
    };
    let sibling = call.job.resolved().and_then(|resolved| resolved.sibling(CALL_TOOL));
    let may_be_called = move |name: &str, effort: &Effort| {
        let Some(sibling) = &sibling else { return Ok(false) };
        let asked = Map::from_iter([("tool".to_owned(), Value::from(name)), ("params".to_owned(), json!({}))]);
        Ok(matches!(sibling.decide(Question::Call(&asked), effort)?, Decision::Allow))
    };
    let text = match nesting.check(move |effort| list(&session, &may_be_called, effort)).await {
        Ok(text) => text,
        Err(unchecked) => return unchecked.outcome(),
    };
    if text.as_str().len() > RESULT_BYTES_MAX {
        return CallOutcome::error(Code::ResultTooLarge, "the list of tools is larger than 1 MiB");
    }
    CallOutcome::success(text)
}

fn list(
    session: &Session,
    may_be_called: &impl Fn(&str, &Effort) -> Result<bool, Overrun>,
    effort: &Effort,
) -> Result<JsonText, Overrun> {
    let visible = tools::list(session, effort)?;
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
            "input_schema": tools::with_resource(manifest.input_schema.clone(), &names),
            "operation": manifest.operation,
            "resource_type": same[0].plugin.manifest.resource_type.id,
        }));
    }
    let shown = json!({ "bot": {"id": session.bot.row.id, "name": session.bot.row.name}, "tools": listed });
    Ok(JsonText::from(&shown))
}
