//! The built-in type `llm`: the models of a server with OpenAI's Chat Completions. Its only tool runs a round. The tool
//! is hidden, because a round is a step of a task and not a call that a model or a client makes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Locales, Plugin, built_in, integer_field};
use crate::call_types::round::LLM_COMPLETE;

/// The name of the type and of its plugin.
pub const LLM: &str = "llm";
/// The operation of a round.
pub const LLM_OPERATION: &str = "llm.complete";
/// The field of the configuration with the models.
pub const LLM_MODELS: &str = "models";

/// The default time in seconds until the first byte of an answer. Models that think, and servers that load a model first,
/// take more than a minute.
pub const FIRST_BYTE_S: u32 = 120;
/// The default time in seconds between two parts of an answer. Most servers send a comment every 15 to 30 s.
pub const IDLE_S: u32 = 60;
/// The default time in seconds of a whole round, with all tries.
pub const TOTAL_S: u32 = 600;
/// The longest time that a configuration can set, in seconds.
pub const TOTAL_S_MAX: u32 = 3600;
/// The default number of concurrent rounds of a resource, and the maximum.
pub const CONCURRENT: u32 = 64;
/// The largest number of concurrent rounds of a resource. `--max-llm-calls` limits the rounds of all resources.
pub const CONCURRENT_MAX: u32 = 4096;

/// The maximum number of models of a resource. A person chooses among them.
const MODELS_MAX: u32 = 64;
/// The largest number of tokens that a configuration can name. No model has a longer context.
const TOKENS_MAX: u32 = 100_000_000;
/// The largest price in credits for a million tokens.
const PRICE_MAX: u32 = 1_000_000;

pub(super) fn plugin() -> Plugin {
    let mut plugin = built_in(manifest(), Locales::default());
    for tool in &mut plugin.tools {
        let tool = Arc::get_mut(tool).expect("no other reference exists");
        tool.is_hidden = true;
        tool.rules = tool.rules.clone().own_step();
    }
    plugin
}

fn manifest() -> Value {
    json!({
        "name": LLM,
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Language models",
        "author": "Monstrum",
        "resource_type": {
            "id": LLM,
            "name": "Language models",
            "mode": "system",
            "description": "The models of a server with OpenAI's Chat Completions.",
            "icon": "llm",
            "auth_flow": "manual",
            "config_schema": [
                {
                    "field": "api_base", "type": "url",
                    "description": "The URL below which the server has `/chat/completions`, such as \
                                    https://api.example.com/v1",
                },
                {
                    "field": "key_header", "required": false, "default": "Authorization",
                    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                    "description": "The header in which the API key is sent: as `Bearer` in Authorization, and bare in any \
                                    other header",
                },
                {
                    "field": LLM_MODELS, "type": "json", "schema": models(),
                    "description": "The models, each with its `id`, the length of its context and its price",
                },
                integer_field(
                    "first_byte_s", (1, TOTAL_S_MAX), FIRST_BYTE_S, "The time until an answer begins, in seconds"
                ),
                integer_field("idle_s", (1, TOTAL_S_MAX), IDLE_S, "The time between two parts of an answer, in seconds"),
                integer_field("total_s", (1, TOTAL_S_MAX), TOTAL_S, "The time limit of a round, in seconds"),
                integer_field("concurrent", (1, CONCURRENT_MAX), CONCURRENT, "The maximum number of concurrent rounds"),
            ],
            "auth_methods": [
                {
                    "method": "api_key", "label": "API key",
                    "credential_schema": [{"field": "api_key", "type": "secret", "description": "The API key"}],
                    "inject": [{"header": "Authorization", "value": "Bearer {api_key}"}],
                },
                {"method": "none", "label": "No credential"},
            ],
            "scope_dimensions": [{
                "key": "models",
                "param_paths": ["model"],
                "match_mode": "exact",
                "error_template": "Model {value} is not authorized",
            }],
            "tools": [complete()],
        },
        "executor": {"capabilities": []},
    })
}

/// The schema of the field `models`.
fn models() -> Value {
    let name = json!({"type": "string", "minLength": 1, "maxLength": 200});
    let tokens = json!({"type": "integer", "minimum": 1, "maximum": TOKENS_MAX});
    let price = json!({"type": "number", "minimum": 0, "maximum": PRICE_MAX});
    json!({
        "type": "array",
        "minItems": 1,
        "maxItems": MODELS_MAX,
        "items": {
            "type": "object",
            "properties": {
                "id": name,
                "alias": name,
                "context_tokens": tokens,
                "output_tokens": tokens,
                "tools": {"type": "boolean"},
                "parallel_tools": {"type": "boolean"},
                "vision": {"type": "boolean"},
                "tool_schema": {"enum": ["full", "plain"]},
                "price": {
                    "type": "object",
                    "properties": {"input": price, "cached_input": price, "output": price},
                    "required": ["input", "output"],
                    "additionalProperties": false,
                },
                "output_field": {"enum": ["max_tokens", "max_completion_tokens"]},
                "extra": {"type": "object", "additionalProperties": true},
            },
            "required": ["id", "context_tokens"],
            "additionalProperties": false,
        },
    })
}

fn complete() -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    json!({
        "name": LLM_COMPLETE,
        "description": "Asks a model for its next message. Only tasks call this tool.",
        "operation": LLM_OPERATION,
        "input_schema": {
            "type": "object",
            "properties": {
                "model": {"type": "string", "description": "The id of the model"},
                "messages": count,
                "bytes": count,
                "digest": {"type": "string", "description": "sha256 of the request"},
                "tools": count,
                "output_tokens": count,
            },
            "required": ["model", "messages", "bytes", "digest", "tools", "output_tokens"],
            "additionalProperties": false,
        },
    })
}
