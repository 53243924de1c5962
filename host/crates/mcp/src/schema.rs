//! Prepares the schemas of tools for clients.

use serde_json::{Map, Value};

/// The keyword by which a schema asks a client to copy a parameter into an HTTP header. Headers are logged in many
/// places, so clients must never see this keyword in a schema of a plugin.
const HEADER_KEYWORD: &str = "x-mcp-header";
/// The keywords whose members are schemas under names that the author chooses.
const NAMED_SCHEMAS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// The keywords whose values are data and not schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Returns whether a schema may contain the keyword [`HEADER_KEYWORD`], which may be written with escape sequences.
pub(crate) fn may_have_headers(schema: &str) -> bool {
    schema.contains(HEADER_KEYWORD) || schema.contains("\\u")
}

/// Removes the keyword [`HEADER_KEYWORD`] from all parts of a schema. Properties of this name stay.
pub(crate) fn without_headers(schema: &mut Map<String, Value>) {
    schema.shift_remove(HEADER_KEYWORD);
    for (keyword, value) in schema {
        match value {
            _ if DATA.contains(&keyword.as_str()) => {}
            Value::Object(schemas) if NAMED_SCHEMAS.contains(&keyword.as_str()) => {
                schemas.values_mut().for_each(without_headers_in);
            }
            value => without_headers_in(value),
        }
    }
}

fn without_headers_in(value: &mut Value) {
    match value {
        Value::Object(schema) => without_headers(schema),
        Value::Array(schemas) => schemas.iter_mut().for_each(without_headers_in),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_that_may_have_the_keyword_is_recognised_by_its_text() {
        assert!(may_have_headers(r#"{"x-mcp-header":"A"}"#) && may_have_headers(r#"{"x-mcp-h\u0065ader":"A"}"#));
        assert!(!may_have_headers(r#"{"type":"object","description":"a \"b\"\n"}"#));
    }

    #[test]
    fn a_schema_loses_the_keyword_and_keeps_properties_and_data_of_this_name() {
        let mut schema = json!({
            "type": "object",
            "x-mcp-header": "A",
            "properties": {
                "x-mcp-header": {"type": "string", "x-mcp-header": "B"},
                "list": {"items": {"x-mcp-header": "C"}, "anyOf": [{"x-mcp-header": "D", "type": "array"}]},
                "fixed": {"const": {"x-mcp-header": "E"}},
            },
        });
        without_headers(schema.as_object_mut().unwrap());
        assert_eq!(
            schema,
            json!({
                "type": "object",
                "properties": {
                    "x-mcp-header": {"type": "string"},
                    "list": {"items": {}, "anyOf": [{"type": "array"}]},
                    "fixed": {"const": {"x-mcp-header": "E"}},
                },
            })
        );
    }
}
