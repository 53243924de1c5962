//! The tools that the runner itself has for a model: reading on in a long result, and finding and calling the tools of a bot
//! that has too many for one request.
//!
//! These tools give no rights: they read what the model was given before, or lead to a call of a tool of the bot, which is
//! judged and recorded as a call of that tool. They are in no list of tools, and only the runner makes their calls. From any
//! other caller, a tool of such a name is an unknown tool.

use std::collections::BTreeMap;

use monstrum_core::call_types::call_labels::CallLabels;
use monstrum_core::call_types::round::RoundTool;
use monstrum_llm::ToolCall;
use monstrum_types::{CallOutcome, Code, JsonText};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::find;
use crate::journal::{self, StepContent};
use crate::present::RESULT_BYTES_MAX;
use crate::round::Asked;
use crate::rounds::Offered;
use crate::runner::{Interrupted, TaskTurn};

/// Reads on in a result of an earlier step.
pub(crate) const READ_RESULT: &str = "task_read_result";
/// Searches the tools of the bot.
pub(crate) const FIND_TOOLS: &str = "task_find_tools";
/// Stands for a call of another tool, which takes its place before anything is recorded.
pub(crate) const CALL_TOOL: &str = "task_call_tool";

/// The maximum number of tools that a bot has in each request. Models choose worse among more, and OpenAI allows 128.
pub(crate) const TOOLS_OFFERED_MAX: usize = 64;
/// The part of a model's context that the tools may fill, as a divisor.
pub(crate) const TOOLS_SHARE: usize = 5;
/// The size of a part of a result as JSON, with room for what stands around it.
const PART_BYTES_MAX: usize = RESULT_BYTES_MAX - 1_000;
/// The maximum number of tools that a search returns, and the maximum size of them all.
const FOUND_MAX: usize = 10;
const FOUND_BYTES_MAX: usize = RESULT_BYTES_MAX - 1_000;

/// Returns whether the runner answers a call of this tool itself.
pub(crate) fn is_own(tool: &str) -> bool {
    matches!(tool, READ_RESULT | FIND_TOOLS)
}

/// Returns the tool that reads results.
pub(crate) fn read_result() -> RoundTool {
    tool(
        READ_RESULT,
        "Reads a result of an earlier step of this task that was truncated or omitted. Returns a part of it as text, and \
         `next_offset` if there is more.",
        &json!({
            "step": { "type": "integer", "minimum": 1, "description": "The number of the step, as in its <tool-result>." },
            "pointer": { "type": "string", "description": "A JSON Pointer to the part of the result to read, such as /items/0." },
            "offset": { "type": "integer", "minimum": 0, "description": "The byte at which to begin. The default is 0." },
        }),
        &["step"],
    )
}

/// Returns the tools that stand for those of a bot that has `count` tools.
pub(crate) fn search_tools(count: usize) -> [RoundTool; 2] {
    let find = format!(
        "Searches your {count} tools by words for what you want to do, for example `create issue`. Returns the tools that fit \
         best, with their parameters. Call them with {CALL_TOOL}."
    );
    [
        tool(FIND_TOOLS, &find, &json!({ "query": { "type": "string" } }), &["query"]),
        tool(
            CALL_TOOL,
            "Calls one of your tools, which you have found with task_find_tools.",
            &json!({
                "tool": { "type": "string", "description": "The name of the tool." },
                "params": { "type": "object", "description": "The parameters of the tool." },
            }),
            &["tool"],
        ),
    ]
}

fn tool(name: &str, description: &str, properties: &Value, required: &[&str]) -> RoundTool {
    let parameters = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    RoundTool { name: name.to_owned(), description: description.to_owned(), parameters }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalledTool {
    tool: String,
    #[serde(default)]
    params: Map<String, Value>,
}

/// Returns the tool that a call is for, and what it asks for: a call of [`CALL_TOOL`] is a call of the tool that it names.
pub(crate) fn aimed(call: &ToolCall, asked: Asked) -> (String, Asked) {
    let Asked::Run(params) = &asked else { return (call.name.clone(), asked) };
    if call.name != CALL_TOOL {
        return (call.name.clone(), asked);
    }
    match parsed::<CalledTool>(params) {
        Ok(CalledTool { tool, params }) if tool != CALL_TOOL => (tool, Asked::Run(params)),
        Ok(_) => {
            let message = format!("This call did not run: {CALL_TOOL} cannot call itself.");
            (call.name.clone(), Asked::Refused(message))
        }
        Err(message) => (call.name.clone(), Asked::Refused(format!("This call did not run: {message}"))),
    }
}

fn parsed<T: DeserializeOwned>(params: &Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(params.clone())).map_err(|error| format!("invalid parameters: {error}"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadParams {
    step: i64,
    #[serde(default)]
    pointer: Option<String>,
    #[serde(default)]
    offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FindParams {
    query: String,
}

impl TaskTurn<'_> {
    /// Answers a call of a tool of the runner. `labels` get the labels of what the call reads.
    pub(crate) async fn own_call(
        &self,
        tool: &str,
        params: &Map<String, Value>,
        labels: &CallLabels,
    ) -> Result<CallOutcome, Interrupted> {
        let answered = match tool {
            READ_RESULT => match parsed::<ReadParams>(params) {
                Ok(params) => self.read_result(&params, labels).await?,
                Err(message) => Err(message),
            },
            _ => match parsed::<FindParams>(params) {
                Ok(params) => Ok(found(&self.offered().await?, &params.query)),
                Err(message) => Err(message),
            },
        };
        Ok(match answered {
            Ok(value) => CallOutcome::success(JsonText::from(&value)),
            Err(message) => CallOutcome::error(Code::InvalidParams, message),
        })
    }

    /// Reads a part of the result of an earlier call of this task.
    async fn read_result(
        &self,
        params: &ReadParams,
        labels: &CallLabels,
    ) -> Result<Result<Value, String>, Interrupted> {
        let (store, vault) = (&self.runner.app.store, &self.runner.app.vault);
        let none = || Ok(Err(format!("step {} is not a call with a result", params.step)));
        let Some(before) = params.step.checked_sub(1) else { return none() };
        let rows = store.task_steps(self.row.workspace_id, self.row.id, before, 1).await?;
        let Some(row) = rows.into_iter().find(|row| row.sequence == params.step) else { return none() };
        let StepContent::Call(call) = journal::open_step(vault, &row)? else { return none() };
        let Some(outcome) = call.outcome else { return none() };
        labels.has_read(&outcome.labels);
        let Some(data) = outcome.data else { return none() };
        let text = match &params.pointer {
            None => data,
            Some(pointer) => {
                let value: Value =
                    serde_json::from_str(&data).map_err(|error| Interrupted::Failed(error.to_string()))?;
                match value.pointer(pointer) {
                    Some(part) => part.to_string(),
                    None => return Ok(Err(format!("the result of step {} has nothing at this pointer", params.step))),
                }
            }
        };
        Ok(part(&text, params.offset).map(|(part, next)| {
            json!({ "step": params.step, "offset": params.offset, "bytes": text.len(), "next_offset": next, "text": part })
        }))
    }
}

/// Returns the part of a text that begins at an offset and fits into a result, and where the next part begins.
fn part(text: &str, offset: usize) -> Result<(&str, Option<usize>), String> {
    let Some(rest) = text.get(offset..) else {
        return Err(format!("the offset must be the beginning of a character, and at most {}", text.len()));
    };
    let mut bytes = 0;
    for (at, character) in rest.char_indices() {
        // As JSON, a character has an escape of up to 6 bytes, and another one if the frame escapes it again.
        bytes += match character {
            '"' | '\\' => 2,
            '<' | '\0'..='\x1f' => 6,
            character => character.len_utf8(),
        };
        if bytes > PART_BYTES_MAX {
            return Ok((&rest[..at], Some(offset + at)));
        }
    }
    Ok((rest, None))
}

/// Returns the tools that fit a query, with their parameters.
fn found(offered: &BTreeMap<String, Offered>, query: &str) -> Value {
    let tools: Vec<&RoundTool> = offered.values().map(|offered| &offered.tool).collect();
    let (mut shown, mut bytes) = (Vec::new(), 0);
    for tool in find::found(&tools, query).into_iter().take(FOUND_MAX) {
        let RoundTool { name, description, parameters } = tool;
        let mut one = json!({ "tool": name, "description": description, "parameters": parameters });
        let mut size = one.to_string().len();
        if size > FOUND_BYTES_MAX {
            one = json!({ "tool": name, "parameters": "too long to show" });
            size = one.to_string().len();
        }
        if bytes + size > FOUND_BYTES_MAX {
            break;
        }
        bytes += size + 1;
        shown.push(one);
    }
    json!({ "tools": shown })
}

#[cfg(test)]
mod tests {
    use monstrum_llm::Arguments;

    use super::*;

    fn call(name: &str, params: &Value) -> (String, Asked) {
        let (id, extra, function_extra) = ("c".to_owned(), Map::new(), Map::new());
        let arguments = Arguments::new(params.to_string());
        let call = ToolCall { id, name: name.to_owned(), arguments, extra, function_extra };
        aimed(&call, Asked::Run(params.as_object().unwrap().clone()))
    }

    #[test]
    fn a_call_through_the_search_is_a_call_of_the_tool() {
        let params = json!({ "tool": "echo", "params": { "a": 1 } });
        let inner = || json!({ "a": 1 }).as_object().unwrap().clone();
        assert_eq!(call(CALL_TOOL, &params), ("echo".to_owned(), Asked::Run(inner())));
        assert_eq!(call("echo", &params).0, "echo");
        for refused in
            [json!({}), json!({ "tool": CALL_TOOL }), json!({ "tool": "echo", "params": "{}" }), json!({ "tool": 1 })]
        {
            let (tool, asked) = call(CALL_TOOL, &refused);
            assert!(tool == CALL_TOOL && matches!(asked, Asked::Refused(_)), "{refused}");
        }
    }

    #[test]
    fn parts_of_a_result_are_the_whole() {
        let text = json!("<\"é\u{1}".repeat(40_000)).to_string();
        let (mut read, mut offset) = (String::new(), 0);
        loop {
            let (part, next) = part(&text, offset).unwrap();
            assert!(json!(part).to_string().replace('<', "\\u003c").len() <= RESULT_BYTES_MAX);
            read.push_str(part);
            match next {
                Some(next) => offset = next,
                None => break,
            }
        }
        assert_eq!(read, text);
        assert_eq!(part("abc", 3), Ok(("", None)));
        assert!(part("abc", 4).is_err() && part("é", 1).is_err());
    }
}
