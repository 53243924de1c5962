//! The built-in resource types. A built-in type has a manifest like a plugin, so that lists, roles, scopes and the
//! audit need no special case. A built-in type has no folder and no component, because the pipeline of calls runs its
//! tools. The names of built-in types are reserved, so that no plugin can replace a built-in type.

mod agent;
mod llm;
mod mcp;
mod sandbox;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use monstrum_guardian::{DimensionModes, PatternSet};
use monstrum_manifest::{DIMENSIONS_FIELD, Locales, Manifest, MatchMode};
use serde_json::{Value, json};

pub use agent::AGENT;
pub use llm::{
    CONCURRENT as LLM_CONCURRENT, CONCURRENT_MAX as LLM_CONCURRENT_MAX, FIRST_BYTE_S, IDLE_S, LLM, LLM_MODELS,
    LLM_OPERATION, TOTAL_S, TOTAL_S_MAX,
};
pub use mcp::{MCP, MCP_CALL_TOOL, MCP_CREDENTIAL, MCP_CREDENTIAL_USER, MCP_LIST_TOOLS, MCP_URL};
pub use sandbox::{
    COMMAND_BYTES_MAX, LIST_FILES, LOST_KEY, LOST_TEXT, READ_FILE, SANDBOX, SANDBOX_TOOLS, SHELL, UNAVAILABLE_KEY,
    UNAVAILABLE_TEXT, WRITE_FILE,
};

use crate::plugins::{Plugin, Tool};

/// The resource type whose resources are other bots.
pub const BOT: &str = "bot";
/// The tool that lists the tools that the other bot may call on behalf of the calling bot.
pub const LIST_TOOLS: &str = "bot_list_tools";
/// The tool that makes the other bot call a tool.
pub const CALL_TOOL: &str = "bot_call_tool";
/// The tool that gives the other bot a task.
pub const EXECUTE_TASK: &str = "bot_execute_task";
/// The tool that gives the other bot a task and waits for its answer.
pub const QUERY: &str = "bot_query";
/// The tool that reports about a task of the other bot.
pub const TASK_STATUS: &str = "bot_task_status";
/// The platform functions of the type, in the same order.
pub const BOT_FUNCTIONS: [&str; 3] = ["execute_task", "query", "status"];
/// The maximum time for which a query waits for an answer.
pub const QUERY_MAX: Duration = Duration::from_secs(300);

/// Returns all built-in plugins.
pub(crate) fn all() -> Vec<Arc<Plugin>> {
    let mut bot = built_in(bot(), Locales::default());
    for tool in &mut bot.tools {
        let tool = Arc::get_mut(tool).expect("no other reference exists");
        // The Guardian decides separately about the calls that the other bot then makes. The same delegation rules apply
        // to these calls.
        tool.rules = tool.rules.clone().forwarding();
    }
    let others = [sandbox::plugin(), mcp::plugin(), agent::plugin(), llm::plugin()];
    [bot].into_iter().chain(others).map(Arc::new).collect()
}

fn bot() -> Value {
    json!({
        "name": BOT,
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Other bots of the workspace",
        "author": "Monstrum",
        "resource_type": {
            "id": BOT,
            "name": "Bot",
            "mode": "system",
            "description": "Another bot of the same workspace, which acts on behalf of each bot that has a binding to \
                it. The `delegate` of a binding restricts the tools and scopes that the other bot may use.",
            "icon": "bot",
            "auth_flow": "none",
            "config_schema": [{"field": "bot", "description": "Name or id of a bot of the same workspace"}],
            // The dimension applies to `bot.call`, `bot.execute` and `bot.query`. The tools that start tasks have no parameter
            // that names a tool, so a constraint of the dimension denies them.
            "scope_dimensions": [{
                "key": "tools",
                "param_paths": ["tool"],
                "operation_filter": "bot.[ceq]*",
                "error_template": "Tool {value} of the other bot is not authorized",
            }],
            "tools": [
                {
                    "name": LIST_TOOLS,
                    "description": "Lists the tools that the other bot can call on your behalf, with their parameters.",
                    "operation": "bot.status",
                    "effect": "read",
                    "input_schema": {"type": "object", "properties": {}},
                },
                {
                    "name": CALL_TOOL,
                    "description": "Makes the other bot call one of its tools on your behalf and returns the result.",
                    "operation": "bot.call",
                    "input_schema": {
                        "type": "object",
                        "properties": {
                            "tool": {"type": "string", "description": "A name from bot_list_tools"},
                            "params": {
                                "type": "object",
                                "description": "The parameters of that tool",
                                "additionalProperties": true,
                                "default": {},
                            },
                        },
                        "required": ["tool"],
                    },
                },
                {
                    "name": EXECUTE_TASK,
                    "description": "Gives the other bot a task on your behalf and returns the id of the task at once. \
                        The other bot works on it with its own model and its own tools.",
                    "operation": "bot.execute",
                    "input_schema": {
                        "type": "object",
                        "properties": {
                            "instruction": {"type": "string", "description": "What the other bot is to do"},
                            "params": {
                                "type": "object",
                                "description": "Data that the other bot reads below the instruction",
                                "additionalProperties": true,
                            },
                        },
                        "required": ["instruction"],
                    },
                },
                {
                    "name": QUERY,
                    "description": "Asks the other bot a question on your behalf and waits up to five minutes for its \
                        answer.",
                    "operation": "bot.query",
                    "input_schema": {
                        "type": "object",
                        "properties": {
                            "question": {"type": "string", "description": "The question, with all that the other bot \
                                must know to answer it"},
                        },
                        "required": ["question"],
                    },
                },
                {
                    "name": TASK_STATUS,
                    "description": "Returns the status of a task that you have given the other bot, and its result if \
                        it is completed.",
                    "operation": "bot.status",
                    "effect": "read",
                    "input_schema": {
                        "type": "object",
                        "properties": {
                            "task_id": {"type": "string", "description": "A task_id from bot_execute_task"},
                        },
                        "required": ["task_id"],
                    },
                },
            ],
        },
        "executor": {"capabilities": []},
    })
}

fn built_in(manifest: Value, locales: Locales) -> Plugin {
    let manifest: Manifest = serde_json::from_value(manifest).expect("a built-in manifest is valid");
    let dimensions = &manifest.resource_type.scope_dimensions;
    let tools = manifest.resource_type.tools.iter().map(|tool| {
        let compiled = Tool::compile(tool.clone(), tool.name.clone(), dimensions);
        Arc::new(compiled.unwrap_or_else(|(field, why)| panic!("{} of built-in tool {}: {why}", field, tool.name)))
    });
    Plugin {
        name: manifest.name.clone(),
        tools: tools.collect(),
        component: None,
        locales,
        icon: None,
        files: None,
        warnings: Vec::new(),
        calls: PatternSet::new(MatchMode::Pattern, Vec::<String>::new()),
        dimension_modes: DimensionModes::of(dimensions),
        manifest,
    }
}

/// Returns the field `dimensions`, which gives the resource scope dimensions over the arguments of its tools.
fn dimensions_field() -> Value {
    json!({
        "field": DIMENSIONS_FIELD,
        "type": "json",
        "required": false,
        "schema": {
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "object",
                "properties": {
                    "key": {"type": "string"},
                    "param_paths": {"type": "array", "items": {"type": "string"}},
                    "match_mode": {"enum": ["pattern", "path", "exact"]},
                    "operation_filter": {"type": ["string", "null"]},
                    "error_template": {"type": "string"},
                },
                "required": ["key", "param_paths"],
                "additionalProperties": false,
            },
        },
        "description": "Scope dimensions over the arguments of the tools, as in a manifest",
    })
}

/// Returns an optional integer field with bounds.
fn integer_field(name: &str, (minimum, maximum): (u32, u32), default: u32, description: &str) -> Value {
    json!({
        "field": name,
        "type": "integer",
        "required": false,
        "default": default,
        "schema": {"type": "integer", "minimum": minimum, "maximum": maximum},
        "description": description,
    })
}

/// Builds translations from lists of keys and texts, one list for each language tag.
fn locales(files: &[(&str, &[(&str, &str)])]) -> Locales {
    let text = |texts: &[(&str, &str)]| json!(texts.iter().copied().collect::<BTreeMap<_, _>>()).to_string();
    let files = files.iter().map(|(tag, texts)| ((*tag).to_owned(), text(texts))).collect();
    Locales::load(files).expect("built-in translations are valid")
}

#[cfg(test)]
mod tests {
    use monstrum_manifest::ToolDiscovery;

    use super::*;

    #[test]
    fn built_in_types_have_tools_and_reserved_names() {
        for plugin in all() {
            let is_dynamic = plugin.manifest.resource_type.tool_discovery == ToolDiscovery::Dynamic;
            assert_eq!(plugin.tools.is_empty(), is_dynamic, "{}", plugin.name);
            let text = serde_json::to_string(&plugin.manifest).unwrap();
            let refused = monstrum_manifest::parse("built-in", &text).unwrap_err().to_string();
            assert!(refused.contains("is a built-in type and cannot be replaced"), "{refused}");
            assert!(is_dynamic || refused.contains("are reserved for the platform"), "{refused}");
        }
    }
}
