//! Writes a page of tools as the result of `tools/list`.

use std::borrow::Cow;
use std::sync::Arc;

use monstrum_manifest::Effect;
use monstrum_types::JsonText;
use rmcp::model::{CacheScope, ListToolsResult, MetaObject, ResultType, Tool, ToolAnnotations};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::offer::{OfferedPage, OfferedTool};
use crate::schema::{may_have_headers, without_headers};

/// How long a client may use a list without asking again.
const LIST_TTL_MS: u64 = 5_000;

/// Returns the result that rmcp writes.
pub(crate) fn by_rmcp(page: &OfferedPage) -> ListToolsResult {
    let mut list = ListToolsResult::with_all_items(page.tools.iter().map(tool).collect())
        .with_ttl_ms(LIST_TTL_MS)
        .with_cache_scope(CacheScope::Private);
    list.next_cursor = next_cursor(page).map(str::to_owned);
    list
}

fn tool(tool: &OfferedTool) -> Tool {
    let description = Some(Cow::Owned(tool.description.clone()));
    let mut listed = Tool::new_with_raw(tool.name.clone(), description, Arc::new(input(&tool.input_schema)));
    listed.title.clone_from(&tool.title);
    listed.output_schema = tool.output_schema.as_ref().map(|schema| Arc::new(object(schema)));
    listed.annotations = Some(annotations(tool.effect));
    let mut meta = MetaObject::new();
    meta.insert("monstrum/operation".to_owned(), Value::String(tool.operation.clone()));
    meta.insert("monstrum/asks".to_owned(), Value::Bool(tool.asks));
    listed.with_meta(meta)
}

/// The same result with schemas that are copied and not parsed: parsing and writing them takes several times longer than
/// everything else that a list needs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listed<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<ResultType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<&'a str>,
    ttl_ms: u64,
    cache_scope: CacheScope,
    tools: Vec<ListedTool<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedTool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    input_schema: Schema<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a JsonText>,
    annotations: ToolAnnotations,
    #[serde(rename = "_meta")]
    meta: ToolMeta<'a>,
}

#[derive(Serialize)]
struct ToolMeta<'a> {
    #[serde(rename = "monstrum/operation")]
    operation: &'a str,
    #[serde(rename = "monstrum/asks")]
    asks: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Schema<'a> {
    Text(&'a JsonText),
    Object(Map<String, Value>),
}

impl<'a> Listed<'a> {
    /// Returns the result for a client. If `is_legacy`, the result has no type, and output schemas describe objects.
    pub(crate) fn of(page: &'a OfferedPage, is_legacy: bool) -> Listed<'a> {
        Listed {
            result_type: (!is_legacy).then_some(ResultType::COMPLETE),
            next_cursor: next_cursor(page),
            ttl_ms: LIST_TTL_MS,
            cache_scope: CacheScope::Private,
            tools: page.tools.iter().map(|tool| ListedTool::of(tool, is_legacy)).collect(),
        }
    }
}

impl<'a> ListedTool<'a> {
    fn of(tool: &'a OfferedTool, is_legacy: bool) -> ListedTool<'a> {
        let schema = &tool.input_schema;
        ListedTool {
            name: &tool.name,
            title: tool.title.as_deref(),
            description: &tool.description,
            input_schema: match may_have_headers(schema.as_str()) {
                true => Schema::Object(input(schema)),
                false => Schema::Text(schema),
            },
            output_schema: tool.output_schema.as_ref().filter(|schema| !is_legacy || is_of_objects(schema)),
            annotations: annotations(tool.effect),
            meta: ToolMeta { operation: &tool.operation, asks: tool.asks },
        }
    }
}

/// Returns the cursor of the page after this one: the name of the last tool.
fn next_cursor(page: &OfferedPage) -> Option<&str> {
    page.tools.last().filter(|_| page.has_more).map(|last| last.name.as_str())
}

fn annotations(effect: Effect) -> ToolAnnotations {
    match effect {
        Effect::Read => ToolAnnotations::new().read_only(true),
        Effect::Idempotent => ToolAnnotations::new().idempotent(true),
        Effect::Write => ToolAnnotations::new().destructive(true),
    }
}

fn input(schema: &JsonText) -> Map<String, Value> {
    let mut input = object(schema);
    without_headers(&mut input);
    input
}

fn object(schema: &JsonText) -> Map<String, Value> {
    match schema.value() {
        Value::Object(object) => object,
        // The manifest's parser accepts only objects as schemas.
        _ => Map::new(),
    }
}

/// Returns whether the root of a schema has the type `object`, as revisions before 2026-07-28 require.
fn is_of_objects(schema: &JsonText) -> bool {
    #[derive(Deserialize)]
    struct Root {
        #[serde(rename = "type")]
        kind: Option<Value>,
    }
    let root = serde_json::from_str::<Root>(schema.as_str());
    root.is_ok_and(|root| root.kind.is_some_and(|kind| kind == "object"))
}

#[cfg(test)]
mod tests {
    use rmcp::model::ServerResult;
    use serde_json::json;

    use super::*;

    fn offered(name: &str, effect: Effect, input: &Value, output: Option<&Value>) -> OfferedTool {
        OfferedTool {
            name: name.to_owned(),
            title: (effect != Effect::Read).then(|| format!("The \"{name}\"\u{e9}")),
            description: format!("Says \"{name}\".\n"),
            input_schema: JsonText::from(input),
            output_schema: output.map(JsonText::from),
            operation: "echo.read".to_owned(),
            effect,
            asks: effect == Effect::Write,
        }
    }

    #[test]
    fn a_list_is_written_as_rmcp_writes_it() {
        let plain = json!({"type": "object", "properties": {"b": {"type": "string", "default": "é\n\u{1}"}, "a": {}}});
        let asks_for_header = json!({"properties": {"x-mcp-header": {"x-mcp-header": "A"}}, "x-mcp-header": "B"});
        let tools = vec![
            offered("a", Effect::Read, &plain, None),
            offered("b", Effect::Idempotent, &asks_for_header, Some(&plain)),
            offered("c", Effect::Write, &json!({}), Some(&json!({"anyOf": [{"type": "object"}]}))),
            offered("d", Effect::Write, &plain, Some(&json!({"type": ["object"]}))),
            offered("e", Effect::Write, &plain, Some(&json!({"properties": {}, "type": "object", "x-mcp-header": 1}))),
        ];
        for (tools, has_more) in [(tools.clone(), true), (tools, false), (Vec::new(), false)] {
            let page = OfferedPage { tools, has_more };
            let mut newest = ServerResult::ListToolsResult(by_rmcp(&page));
            newest.fill_missing_cache_hints();
            let mut legacy = newest.clone();
            legacy.strip_result_type_for_legacy_peer();
            legacy.strip_non_object_output_for_legacy_peer();
            for (expected, is_legacy) in [(newest, false), (legacy, true)] {
                let written = serde_json::to_string(&Listed::of(&page, is_legacy)).unwrap();
                assert_eq!(written, serde_json::to_string(&expected).unwrap());
            }
        }
    }

    #[test]
    fn a_cursor_is_the_last_name_of_a_page_that_is_not_the_last() {
        let names = ["a", "b"].map(|name| offered(name, Effect::Read, &json!({}), None));
        let cursor = |tools: &[OfferedTool], has_more| {
            next_cursor(&OfferedPage { tools: tools.to_vec(), has_more }).map(str::to_owned)
        };
        assert_eq!(cursor(&names, true).as_deref(), Some("b"));
        assert_eq!((cursor(&names, false), cursor(&[], true)), (None, None));
    }
}
