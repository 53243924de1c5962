//! A response as OpenAI shows it.

use monstrum_agent::Answer;
use monstrum_agent::client_tools::{ClientCall, ClientTools};
use monstrum_agent::requests::{RequestContent, ResponseContent};
use monstrum_api::tasks::{Task, TokenUsage};
use monstrum_llm::ToolChoice;
use serde_json::{Value, json};

use super::{FUNCTION_CALL, MESSAGE, RESPONSE};
use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::tools;

/// What a response says about its request.
pub(super) struct About {
    about: Value,
    /// Whether the answer has a form, so that only the last text is its text.
    pub(super) has_form: bool,
}

/// How far a response is.
pub(super) enum Progress<'a> {
    Runs,
    /// The task has ended with an answer.
    Ended(&'a Answer),
    Failed(&'a OpenAiError),
    Cancelled,
}

impl About {
    pub(super) fn new(request: &RequestContent, response: &ResponseContent) -> About {
        let options = &request.options;
        let (tools, choice) = match &request.client_tools {
            None => (json!([]), json!("auto")),
            Some(tools) => (tools::shown(tools), choice_of(tools, options.tool_choice)),
        };
        let format = options.response_format.as_ref().map_or_else(|| json!({ "type": "text" }), format_of_response);
        let about = json!({
            "object": "response",
            "background": false,
            "instructions": request.instructions,
            "max_output_tokens": request.output_tokens,
            "model": response.model,
            "parallel_tool_calls": options.parallel_tool_calls != Some(false),
            "previous_response_id": response.previous.map(|id| format!("{RESPONSE}{id}")),
            "reasoning": { "effort": options.reasoning_effort, "summary": null },
            "store": response.is_stored,
            "temperature": options.temperature,
            "text": { "format": format },
            "tool_choice": choice,
            "tools": tools,
            "top_p": options.top_p,
            "truncation": "disabled",
            "metadata": response.metadata,
        });
        About { about, has_form: request.has_form() }
    }

    /// Returns the response of a task, as far as it is.
    pub(super) fn of_answer(&self, answer: &Answer) -> Value {
        match (OpenAiError::of_task(answer), answer.task.status.as_str()) {
            (None, _) => self.shown(&answer.task, &Progress::Ended(answer)),
            (Some(_), "queued" | "running" | "waiting") => self.shown(&answer.task, &Progress::Runs),
            (Some(_), "cancelled") => self.shown(&answer.task, &Progress::Cancelled),
            (Some(error), _) => self.shown(&answer.task, &Progress::Failed(&error)),
        }
    }

    pub(super) fn shown(&self, task: &Task, progress: &Progress<'_>) -> Value {
        let mut shown = self.about.clone();
        shown["id"] = json!(format!("{RESPONSE}{}", task.id));
        shown["created_at"] = json!(task.created_at.0 / 1000);
        let (status, output) = match progress {
            Progress::Runs => ("in_progress", json!([])),
            Progress::Failed(_) => ("failed", json!([])),
            Progress::Cancelled => ("cancelled", json!([])),
            Progress::Ended(answer) => {
                let status = if answer.is_cut { "incomplete" } else { "completed" };
                (status, Value::Array(self.output(answer, status)))
            }
        };
        (shown["status"], shown["output"]) = (json!(status), output);
        shown["error"] = match progress {
            Progress::Failed(error) => json!({ "code": error.code(), "message": error.message() }),
            Progress::Runs | Progress::Cancelled | Progress::Ended(_) => Value::Null,
        };
        (shown["incomplete_details"], shown["usage"]) = match progress {
            Progress::Ended(answer) => {
                let why = answer.is_cut.then(|| json!({ "reason": "max_output_tokens" }));
                (json!(why), usage(answer.task.usage))
            }
            Progress::Runs | Progress::Failed(_) | Progress::Cancelled => (Value::Null, Value::Null),
        };
        shown
    }

    /// Returns what an answer consists of: its message, and the calls that the client is to run.
    fn output(&self, answer: &Answer, status: &str) -> Vec<Value> {
        let text = answer.shown_text(self.has_form);
        let has_message = !text.is_empty() || answer.client_calls.is_empty();
        let message = has_message.then(|| message(&answer.task, Some(text), status));
        let calls = answer.client_calls.iter().map(|call| function_call(call, Some(&call.arguments)));
        message.into_iter().chain(calls).collect()
    }
}

/// Returns a call that the client is to run, with its arguments if they are known.
pub(super) fn function_call(call: &ClientCall, arguments: Option<&str>) -> Value {
    json!({
        "type": "function_call",
        "id": format!("{FUNCTION_CALL}{}", call.id.parts()),
        "call_id": call.id.to_string(),
        "name": call.name,
        "arguments": arguments.unwrap_or_default(),
        "status": if arguments.is_some() { "completed" } else { "in_progress" },
    })
}

/// Returns how the model could use the tools of a client.
fn choice_of(tools: &ClientTools, choice: Option<ToolChoice>) -> Value {
    match (tools.tools.as_slice(), choice) {
        ([tool], _) if tools.are_alone => json!({ "type": "function", "name": tool.name }),
        (_, choice) => json!(choice.unwrap_or(ToolChoice::Auto)),
    }
}

/// Returns the id of the message of a response.
pub(super) fn message_id(task: &Task) -> String {
    format!("{MESSAGE}{}", task.id)
}

/// Returns the message of a response, with its text if it has one.
pub(super) fn message(task: &Task, text: Option<&str>, status: &str) -> Value {
    let content: Vec<Value> = text.map(part).into_iter().collect();
    json!({ "type": "message", "id": message_id(task), "status": status, "role": "assistant", "content": content })
}

/// Returns the content of a message.
pub(super) fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn usage(usage: TokenUsage) -> Value {
    let TokenUsage { input_tokens, output_tokens } = usage;
    json!({
        "input_tokens": input_tokens,
        "input_tokens_details": { "cached_tokens": 0 },
        "output_tokens": output_tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": input_tokens.saturating_add(output_tokens),
    })
}

/// Returns a format in the form of Chat Completions, in which the schema has an object of its own. Plain text is no format.
pub(super) fn format_of_chat(format: Value) -> Option<Value> {
    match format["type"].as_str() {
        Some("text") => None,
        Some("json_schema") if format.get("json_schema").is_none() => {
            let mut schema = format;
            if let Some(fields) = schema.as_object_mut() {
                fields.remove("type");
            }
            Some(json!({ "type": "json_schema", "json_schema": schema }))
        }
        _ => Some(format),
    }
}

/// Returns a format in the form of responses.
fn format_of_response(format: &Value) -> Value {
    match (format["type"].as_str(), format.get("json_schema")) {
        (Some("json_schema"), Some(schema)) => {
            let mut shown = schema.clone();
            shown["type"] = json!("json_schema");
            shown
        }
        _ => format.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_translated_there_and_back() {
        let format = json!({ "type": "json_schema", "name": "n", "strict": true, "schema": { "type": "object" } });
        let of_chat = format_of_chat(format.clone()).unwrap();
        assert_eq!(of_chat["json_schema"]["schema"], json!({ "type": "object" }));
        assert_eq!(of_chat["json_schema"].get("type"), None);
        assert_eq!(format_of_response(&of_chat), format);
        assert_eq!(format_of_chat(json!({ "type": "text" })), None);
        assert_eq!(format_of_chat(json!({ "type": "json_object" })), Some(json!({ "type": "json_object" })));
    }
}
