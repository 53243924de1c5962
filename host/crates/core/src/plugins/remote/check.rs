//! The rules for definitions that come from outside. A tool whose definition breaks a rule is not served.

use std::collections::HashSet;

use monstrum_manifest::{InputSchema, MANIFEST_STEPS_MAX, OutputSchema, SchemaLimits, json_depth};
use monstrum_types::Effort;
use serde_json::{Map, Value};

/// Maximum length of a tool's name in bytes, as the Model Context Protocol recommends.
pub const NAME_BYTES_MAX: usize = 128;
/// Maximum length of a description in bytes. A model reads the description with every list, and the longest descriptions
/// of well-known servers have about 6 KiB.
const DESCRIPTION_BYTES_MAX: usize = 8 << 10;
/// Maximum length of a title in bytes. A title is a short text for people.
const TITLE_BYTES_MAX: usize = 1 << 10;
/// Maximum size of the annotations in bytes. The specification defines five short members.
const ANNOTATIONS_BYTES_MAX: usize = 8 << 10;
/// Maximum size of a schema in bytes: twice the largest schemas that generators of clients write.
const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// Maximum nesting depth of a schema as JSON. Hand-written schemas have fewer than 20 levels.
const SCHEMA_DEPTH_MAX: usize = 32;
/// The keyword by which a server asks clients to copy a parameter into a header.
const HEADER_KEYWORD: &str = "x-mcp-header";
/// Keywords whose members are schemas with free names.
const NAMED_SCHEMAS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// Keywords whose value is data, not a schema.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Checks a definition. This compiles the schemas, so it must run beside the serving threads.
///
/// # Errors
/// Returns the first broken rule, as a text for an admin.
pub fn check(original_name: &str, definition: &Map<String, Value>) -> Result<(), String> {
    if original_name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    if original_name.len() > NAME_BYTES_MAX {
        return Err(format!("the name is longer than {NAME_BYTES_MAX} bytes"));
    }
    if original_name.contains('\0') {
        return Err("the name contains a NUL".to_owned());
    }
    if definition.get("name").and_then(Value::as_str) != Some(original_name) {
        return Err("the definition has another name than the tool".to_owned());
    }
    text(definition, "title", TITLE_BYTES_MAX)?;
    text(definition, "description", DESCRIPTION_BYTES_MAX)?;
    if let Some(annotations) = object(definition, "annotations")?
        && Value::from(annotations.clone()).to_string().len() > ANNOTATIONS_BYTES_MAX
    {
        return Err(format!("the annotations are larger than {ANNOTATIONS_BYTES_MAX} bytes"));
    }
    let Some(input) = object(definition, "inputSchema")? else { return Err("the inputSchema is missing".to_owned()) };
    size("inputSchema", input)?;
    let effort = Effort::of(MANIFEST_STEPS_MAX);
    InputSchema::compile(input, SchemaLimits::Current, &effort).map_err(|why| format!("inputSchema: {why}"))?;
    headers(&Value::from(input.clone()), &mut HashSet::new())?;
    if let Some(output) = object(definition, "outputSchema")? {
        size("outputSchema", output)?;
        OutputSchema::compile(output, SchemaLimits::Current).map_err(|why| format!("outputSchema: {why}"))?;
    }
    Ok(())
}

fn text(definition: &Map<String, Value>, member: &str, bytes_max: usize) -> Result<(), String> {
    match definition.get(member) {
        None => Ok(()),
        Some(Value::String(text)) if text.len() <= bytes_max => Ok(()),
        Some(Value::String(_)) => Err(format!("the {member} is longer than {bytes_max} bytes")),
        Some(_) => Err(format!("the {member} is not a string")),
    }
}

fn object<'d>(definition: &'d Map<String, Value>, member: &str) -> Result<Option<&'d Map<String, Value>>, String> {
    match definition.get(member) {
        None => Ok(None),
        Some(Value::Object(members)) => Ok(Some(members)),
        Some(_) => Err(format!("the {member} is not an object")),
    }
}

fn size(member: &str, schema: &Map<String, Value>) -> Result<(), String> {
    let text = Value::from(schema.clone()).to_string();
    if text.len() > SCHEMA_BYTES_MAX {
        return Err(format!("the {member} is larger than {SCHEMA_BYTES_MAX} bytes"));
    }
    if json_depth(text.as_bytes()) > SCHEMA_DEPTH_MAX {
        return Err(format!("the {member} is nested deeper than {SCHEMA_DEPTH_MAX} levels"));
    }
    Ok(())
}

/// Checks the keyword `x-mcp-header` in a schema: its value is a header name, unique in the schema regardless of case,
/// and the parameter is a string, an integer or a boolean. The depth of the schema is limited.
fn headers(schema: &Value, seen: &mut HashSet<String>) -> Result<(), String> {
    match schema {
        Value::Array(schemas) => schemas.iter().try_for_each(|schema| headers(schema, seen)),
        Value::Object(members) => {
            if let Some(header) = members.get(HEADER_KEYWORD) {
                header_rule(header, members.get("type"), seen)?;
            }
            members.iter().filter(|(keyword, _)| !DATA.contains(&keyword.as_str())).try_for_each(|(keyword, value)| {
                match value {
                    Value::Object(named) if NAMED_SCHEMAS.contains(&keyword.as_str()) => {
                        named.values().try_for_each(|schema| headers(schema, seen))
                    }
                    value => headers(value, seen),
                }
            })
        }
        _ => Ok(()),
    }
}

fn header_rule(header: &Value, kind: Option<&Value>, seen: &mut HashSet<String>) -> Result<(), String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let name = header.as_str().filter(|name| !name.is_empty() && name.bytes().all(is_token));
    let Some(name) = name else { return Err(format!("inputSchema: {HEADER_KEYWORD} is not a header name")) };
    if !matches!(kind.and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
        return Err(format!("inputSchema: {HEADER_KEYWORD} is only allowed for a string, an integer or a boolean"));
    }
    if !seen.insert(name.to_ascii_lowercase()) {
        return Err(format!("inputSchema: {HEADER_KEYWORD} names the same header twice"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(definition: Value) -> String {
        let Value::Object(definition) = definition else { panic!("a definition is an object") };
        let name = definition["name"].as_str().unwrap().to_owned();
        check(&name, &definition).err().unwrap_or_else(|| "valid".to_owned())
    }

    fn with_schema(schema: &Value) -> String {
        told(json!({"name": "a", "inputSchema": schema}))
    }

    #[test]
    fn ordinary_definitions_are_valid() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {"x-mcp-header": {"type": "string"}, "at": {"$ref": "#/definitions/at"}},
            "definitions": {"at": {"type": "string", "x-mcp-header": "At"}},
        });
        let annotations = json!({"readOnlyHint": true});
        let definition = json!({"name": "Get a.b/c", "title": "T", "description": "D\n", "inputSchema": schema,
            "outputSchema": {"type": "object"}, "annotations": annotations});
        assert_eq!(told(definition), "valid");
    }

    #[test]
    fn each_broken_rule_has_its_reason() {
        let schema = json!({"type": "object"});
        assert_eq!(told(json!({"name": "", "inputSchema": schema})), "the name is empty");
        assert_eq!(told(json!({"name": "a\0", "inputSchema": schema})), "the name contains a NUL");
        let long = "n".repeat(129);
        assert_eq!(told(json!({"name": long, "inputSchema": schema})), "the name is longer than 128 bytes");
        let long = "d".repeat((8 << 10) + 1);
        let told_long = told(json!({"name": "a", "description": long, "inputSchema": schema}));
        assert_eq!(told_long, "the description is longer than 8192 bytes");
        assert_eq!(
            told(json!({"name": "a", "description": 1, "inputSchema": schema})),
            "the description is not a string"
        );
        assert_eq!(told(json!({"name": "a"})), "the inputSchema is missing");
        assert_eq!(told(json!({"name": "a", "inputSchema": []})), "the inputSchema is not an object");
        let output = told(json!({"name": "a", "inputSchema": schema, "outputSchema": {"type": "nothing"}}));
        assert!(output.starts_with("outputSchema: not a JSON Schema"), "{output}");
    }

    #[test]
    fn schemas_are_bounded_and_refer_to_nothing_outside() {
        let many: Map<String, Value> = (0..4_000).map(|index| (format!("property_{index}"), json!({}))).collect();
        assert_eq!(with_schema(&json!({"properties": many})), "the inputSchema is larger than 65536 bytes");
        let deep = (0..40).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(with_schema(&json!({"properties": {"x": deep}})), "the inputSchema is nested deeper than 32 levels");
        for outside in ["http://example.com/schema", "https://example.com/s#/a", "file:///etc/passwd", "other.json"] {
            let told = with_schema(&json!({"properties": {"x": {"$ref": outside}}}));
            assert!(told.starts_with("inputSchema: "), "{outside}: {told}");
        }
        let reserved = with_schema(&json!({"properties": {"_resource": {"type": "string"}}}));
        assert!(reserved.contains("`_resource`"), "{reserved}");
        let draft = with_schema(&json!({"$schema": "https://example.com/draft"}));
        assert!(draft.starts_with("inputSchema: "), "{draft}");
    }

    #[test]
    fn headers_of_parameters_follow_the_specification() {
        let with = |property: Value| with_schema(&json!({"properties": {"x": property}}));
        for kind in ["string", "integer", "boolean"] {
            assert_eq!(with(json!({"type": kind, "x-mcp-header": "Region"})), "valid");
        }
        for bad in [json!(""), json!("a b"), json!("a:b"), json!("é"), json!(1)] {
            let told = with(json!({"type": "string", "x-mcp-header": bad}));
            assert_eq!(told, "inputSchema: x-mcp-header is not a header name", "{bad}");
        }
        for kind in [json!("object"), json!("array"), json!("number"), json!(null), json!(["string", "null"])] {
            let told = with(json!({"x-mcp-header": "A", "type": kind}));
            assert_ne!(told, "valid", "{kind}");
        }
        let property = |name: &str| json!({"type": "string", "x-mcp-header": name});
        let twice =
            with_schema(&json!({"properties": {"x": property("A"), "y": {"properties": {"z": property("a")}}}}));
        assert_eq!(twice, "inputSchema: x-mcp-header names the same header twice");
    }
}
