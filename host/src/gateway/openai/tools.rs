//! The tools that clients bring. Only a bot with `client_tools` admits them.
//!
//! A client's tool is text that a model reads, and a name that comes back to the client. It must not have the name of a tool
//! that this server would run: the model could not tell them apart, and the record of a call would say the wrong thing.

use std::collections::BTreeSet;

use monstrum_agent::client_tools::{ClientTool, ClientTools};
use monstrum_core::operations::Caller;
use monstrum_core::policy::Bot;
use monstrum_llm::ToolChoice;
use serde_json::{Value, json};

use crate::gateway::http::state::HttpState;
use crate::gateway::openai::errors::OpenAiError;

/// The maximum number of tools of a request, as OpenAI permits.
const TOOLS_MAX: usize = 128;
/// The maximum length of a name, as OpenAI permits.
const NAME_CHARS_MAX: usize = 64;
/// The maximum size of a description. Those of coding agents are pages long.
const DESCRIPTION_BYTES_MAX: usize = 16 << 10;
/// The maximum size of the schema of a tool, and of all tools of a request. The model reads them in each round.
const SCHEMA_BYTES_MAX: usize = 64 << 10;
const ALL_BYTES_MAX: usize = 512 << 10;
/// The maximum nesting of a schema. Schemas that programs generate have about ten levels.
const LEVELS_MAX: usize = 32;
/// The beginnings of the names of tools that only the server has.
const RESERVED: [&str; 3] = ["agent_", "llm_", "task_"];

/// How a route writes tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Chat Completions: the function is an object of its own.
    Chat,
    /// Responses: the fields of the function are those of the tool.
    Responses,
}

/// What a request says about tools.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) tools: Option<Value>,
    pub(super) tool_choice: Option<Value>,
    pub(super) parallel_tool_calls: Option<bool>,
}

/// The tools of a request, and how the model may use them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Offered {
    pub(super) tools: Option<ClientTools>,
    pub(super) choice: Option<ToolChoice>,
    pub(super) parallel: Option<bool>,
}

/// Reads the tools of a request. Without tools, all else that a request says about them is ignored.
pub(super) async fn offered(
    state: &HttpState,
    caller: &Caller,
    bot: &Bot,
    form: Form,
    input: &Input,
) -> Result<Offered, OpenAiError> {
    let Some(tools) = input.tools.as_ref().filter(|tools| !is_empty(tools)) else { return Ok(Offered::default()) };
    if !bot.row.admits_client_tools() {
        let message = "`tools` is refused: the bot has tools of its own, and does not admit those of clients";
        return Err(OpenAiError::invalid("tools", message));
    }
    let tools = read(form, tools)?;
    let names = state.tasks.tool_names(caller, bot.row.id).await?;
    if let Some(index) = tools.iter().position(|tool| names.contains(&tool.name)) {
        let message = format!("the bot has a tool `{}` of its own; use another name", tools[index].name);
        return Err(OpenAiError::invalid(form.name_of(index), message));
    }
    chosen(form, tools, input)
}

/// Refuses tools in the form that OpenAI has replaced.
pub(super) fn refuse_functions(functions: Option<&Value>) -> Result<(), OpenAiError> {
    match functions {
        Some(functions) if !is_empty(functions) => {
            Err(OpenAiError::invalid("functions", "`functions` is not supported; use `tools`"))
        }
        _ => Ok(()),
    }
}

/// Returns tools as a response shows them.
pub(super) fn shown(tools: &ClientTools) -> Value {
    let tool = |tool: &ClientTool| {
        json!({
            "type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters,
            "strict": false,
        })
    };
    tools.tools.iter().map(tool).collect()
}

fn is_empty(tools: &Value) -> bool {
    tools.is_null() || tools.as_array().is_some_and(Vec::is_empty)
}

impl Form {
    /// Returns the place of the function of a tool.
    fn function_of(self, index: usize) -> String {
        match self {
            Form::Chat => format!("tools[{index}].function"),
            Form::Responses => format!("tools[{index}]"),
        }
    }

    fn name_of(self, index: usize) -> String {
        format!("{}.name", self.function_of(index))
    }
}

fn read(form: Form, tools: &Value) -> Result<Vec<ClientTool>, OpenAiError> {
    let Value::Array(tools) = tools else { return Err(OpenAiError::invalid("tools", "expected a list of tools")) };
    if tools.len() > TOOLS_MAX {
        return Err(OpenAiError::invalid("tools", format!("expected at most {TOOLS_MAX} tools")));
    }
    let (mut read, mut names, mut bytes) = (Vec::with_capacity(tools.len()), BTreeSet::new(), 0);
    for (index, tool) in tools.iter().enumerate() {
        let tool = read_tool(form, index, tool)?;
        bytes += tool.description.len() + tool.parameters.to_string().len();
        if bytes > ALL_BYTES_MAX {
            let message = format!("the descriptions and parameters of all tools have more than {ALL_BYTES_MAX} bytes");
            return Err(OpenAiError::invalid("tools", message));
        }
        if !names.insert(tool.name.clone()) {
            let message = format!("two tools have the name `{}`", tool.name);
            return Err(OpenAiError::invalid(form.name_of(index), message));
        }
        read.push(tool);
    }
    Ok(read)
}

fn read_tool(form: Form, index: usize, tool: &Value) -> Result<ClientTool, OpenAiError> {
    if tool["type"] != "function" {
        let message = "only tools of the type `function` are supported; the client runs them";
        return Err(OpenAiError::invalid(format!("tools[{index}].type"), message));
    }
    let place = form.function_of(index);
    let function = if form == Form::Chat { &tool["function"] } else { tool };
    let invalid = |field: &str, message: String| Err(OpenAiError::invalid(format!("{place}.{field}"), message));
    let name = function["name"].as_str().unwrap_or_default();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.bytes().all(is_name) {
        return invalid("name", format!("expected 1 to {NAME_CHARS_MAX} letters, digits, `_` and `-`"));
    }
    if let Some(start) = RESERVED.into_iter().find(|start| name.starts_with(start)) {
        return invalid(
            "name",
            format!("names that begin with `{start}` are reserved for the server; use another name"),
        );
    }
    let description = match function.get("description") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) if text.len() <= DESCRIPTION_BYTES_MAX => text,
        Some(_) => return invalid("description", format!("expected a text of at most {DESCRIPTION_BYTES_MAX} bytes")),
    };
    let parameters = match function.get("parameters") {
        None | Some(Value::Null) => json!({ "type": "object", "properties": {} }),
        Some(schema @ Value::Object(_)) if !is_deeper(schema, LEVELS_MAX) => schema.clone(),
        Some(_) => return invalid("parameters", format!("expected a JSON Schema of at most {LEVELS_MAX} levels")),
    };
    if parameters.to_string().len() > SCHEMA_BYTES_MAX {
        return invalid("parameters", format!("expected at most {SCHEMA_BYTES_MAX} bytes"));
    }
    Ok(ClientTool { name: name.to_owned(), description: description.to_owned(), parameters })
}

/// Returns whether a value has more levels than this.
fn is_deeper(value: &Value, levels: usize) -> bool {
    let Some(inner) = levels.checked_sub(1) else { return true };
    match value {
        Value::Array(values) => values.iter().any(|value| is_deeper(value, inner)),
        Value::Object(fields) => fields.values().any(|value| is_deeper(value, inner)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Returns what the model is offered. It cannot call a tool of the client before one of the bot if the client wants a call
/// of a certain tool, so it is then offered that tool only.
fn chosen(form: Form, mut tools: Vec<ClientTool>, input: &Input) -> Result<Offered, OpenAiError> {
    let parallel = input.parallel_tool_calls;
    let offered =
        |tools, are_alone, choice| Ok(Offered { tools: Some(ClientTools { tools, are_alone }), choice, parallel });
    let choice = input.tool_choice.as_ref().unwrap_or(&Value::Null);
    match choice.as_str() {
        Some("none") => return Ok(Offered::default()),
        Some("auto") => return offered(tools, false, None),
        Some("required") => return offered(tools, false, Some(ToolChoice::Required)),
        _ if choice.is_null() => return offered(tools, false, None),
        _ => {}
    }
    let function = if form == Form::Chat { &choice["function"] } else { choice };
    let name = function["name"].as_str().filter(|_| choice["type"] == "function");
    let Some(name) = name else {
        let message = "expected none, auto, required, or a function of `tools`";
        return Err(OpenAiError::invalid("tool_choice", message));
    };
    tools.retain(|tool| tool.name == name);
    if tools.is_empty() {
        return Err(OpenAiError::invalid("tool_choice", "no function of `tools` has this name"));
    }
    offered(tools, true, Some(ToolChoice::Required))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name } })
    }

    fn param(error: &OpenAiError) -> String {
        error.body()["error"]["param"].as_str().unwrap_or_default().to_owned()
    }

    fn nested(levels: usize) -> Value {
        (1..levels).fold(json!({}), |inner, _| json!({ "items": inner }))
    }

    #[test]
    fn tools_are_read_in_both_forms() {
        let look =
            json!({ "name": "look", "description": "Looks", "parameters": { "type": "object" }, "strict": true });
        let mut flat = look.clone();
        flat["type"] = json!("function");
        let chat = read(Form::Chat, &json!([{ "type": "function", "function": look }])).unwrap();
        assert_eq!(chat, read(Form::Responses, &json!([flat])).unwrap());
        assert_eq!((chat[0].name.as_str(), chat[0].description.as_str()), ("look", "Looks"));
        let bare = read(Form::Chat, &json!([function("Look-2")])).unwrap();
        assert_eq!(bare[0].parameters, json!({ "type": "object", "properties": {} }));
    }

    #[test]
    fn tools_that_are_not_right_are_refused_with_their_place() {
        let with = |field: &str, value: Value| {
            let mut tool = function("look");
            tool["function"][field] = value;
            json!([function("first"), tool])
        };
        let many: Vec<Value> = (0..=TOOLS_MAX).map(|number| function(&format!("tool{number}"))).collect();
        let large = json!({ "description": "x".repeat(SCHEMA_BYTES_MAX - 100) });
        let mut all: Vec<Value> = (0..9).map(|number| function(&format!("tool{number}"))).collect();
        for tool in &mut all {
            tool["function"]["parameters"] = large.clone();
        }
        for (tools, place) in [
            (json!({}), "tools"),
            (json!(many), "tools"),
            (json!(all), "tools"),
            (json!([{ "type": "web_search" }]), "tools[0].type"),
            (json!([{ "function": { "name": "look" } }]), "tools[0].type"),
            (json!([function("")]), "tools[0].function.name"),
            (json!([function("a b")]), "tools[0].function.name"),
            (json!([function("é")]), "tools[0].function.name"),
            (json!([function(&"x".repeat(NAME_CHARS_MAX + 1))]), "tools[0].function.name"),
            (json!([function("llm_complete")]), "tools[0].function.name"),
            (json!([function("task_call_tool")]), "tools[0].function.name"),
            (json!([function("agent_x")]), "tools[0].function.name"),
            (json!([function("look"), function("look")]), "tools[1].function.name"),
            (with("description", json!(7)), "tools[1].function.description"),
            (with("description", json!("x".repeat(DESCRIPTION_BYTES_MAX + 1))), "tools[1].function.description"),
            (with("parameters", json!([])), "tools[1].function.parameters"),
            (with("parameters", json!({ "x": "x".repeat(SCHEMA_BYTES_MAX) })), "tools[1].function.parameters"),
            (with("parameters", nested(LEVELS_MAX + 1)), "tools[1].function.parameters"),
        ] {
            assert_eq!(param(&read(Form::Chat, &tools).unwrap_err()), place, "{tools}");
        }
        assert!(read(Form::Chat, &json!(many[..TOOLS_MAX])).is_ok());
        assert!(read(Form::Chat, &with("parameters", nested(LEVELS_MAX))).is_ok());
    }

    #[test]
    fn a_choice_narrows_what_the_model_is_offered() {
        let tools = || read(Form::Chat, &json!([function("look"), function("see")])).unwrap();
        let chosen = |choice: Value| {
            let input = Input { tool_choice: Some(choice), parallel_tool_calls: Some(false), ..Input::default() };
            chosen(Form::Chat, tools(), &input)
        };
        let names = |offered: &Offered| -> Vec<String> {
            offered.tools.iter().flat_map(|tools| &tools.tools).map(|tool| tool.name.clone()).collect()
        };
        let auto = chosen(json!("auto")).unwrap();
        assert_eq!((names(&auto), auto.choice, auto.parallel), (vec!["look".into(), "see".into()], None, Some(false)));
        assert_eq!(chosen(json!("none")).unwrap(), Offered::default());
        let required = chosen(json!("required")).unwrap();
        assert_eq!((names(&required).len(), required.choice), (2, Some(ToolChoice::Required)));
        assert!(required.tools.is_some_and(|tools| !tools.are_alone));
        let see = chosen(function("see")).unwrap();
        assert_eq!((names(&see), see.choice), (vec!["see".to_owned()], Some(ToolChoice::Required)));
        assert!(see.tools.is_some_and(|tools| tools.are_alone));
        for bad in [json!("any"), json!(7), json!({}), function("absent"), json!({ "type": "allowed_tools" })] {
            assert_eq!(param(&chosen(bad).unwrap_err()), "tool_choice");
        }
    }
}
