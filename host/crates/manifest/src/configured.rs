//! The configuration of a resource, including the resource's own tools if its type allows them.
//!
//! If the `tool_discovery` of a type is `configured`, the tools of a resource are part of its configuration: a list
//! `tools`, whose entries have the same format as tools in a manifest. The plugin receives the configuration unchanged,
//! including keys that start with `x-`, which are reserved for the plugin.

use monstrum_types::{InputError, ToolName};
use serde_json::{Map, Value};

use crate::error::{FieldPath, Segment};
use crate::fields::{check_fields, escape};
use crate::model::{ResourceType, Tool, ToolDiscovery};
use crate::remote;
use crate::schema::SchemaLimits;
use crate::validate::{ContentErrors, contract};

/// The key of the tool list in the configuration.
pub(crate) const TOOLS: &str = "tools";
/// Separates the resource name from the tool name in a full tool name.
pub(crate) const SEPARATOR: &str = "__";

/// A valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedConfig {
    /// The values, including the defaults of the type.
    pub values: Map<String, Value>,
    /// The resource's own tools.
    pub tools: Vec<ConfiguredTool>,
}

/// A tool that belongs to one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfiguredTool {
    /// The tool with its full name, `{resource}__{tool}`, for bots, roles and the audit.
    pub tool: Tool,
    /// The tool name that the plugin receives, without the resource name.
    pub own_name: ToolName,
}

/// Validates the configuration of the resource `name` against its type.
///
/// # Errors
/// Returns all validation errors, with pointers into the configuration. The pointer `/name` means the name of the
/// resource.
pub fn check_config(
    resource_type: &ResourceType,
    name: &str,
    mut config: Map<String, Value>,
) -> Result<CheckedConfig, Vec<InputError>> {
    let written = take_tools(resource_type, &mut config);
    let tools = tools(resource_type, name, written.as_ref(), SchemaLimits::Current);
    let is_dynamic = resource_type.tool_discovery == ToolDiscovery::Dynamic;
    let of_name = if is_dynamic { remote::name_error(name) } else { None };
    let of_name = of_name.map(|message| InputError { path: "/name".to_owned(), message });
    let values = check_fields(&resource_type.config_schema, config).and_then(|values| {
        let errors = if is_dynamic { dynamic_errors(&values) } else { Vec::new() };
        if errors.is_empty() { Ok(values) } else { Err(errors) }
    });
    let values =
        if is_dynamic { values.map_err(|errors| errors.into_iter().map(remote::explained).collect()) } else { values };
    match (of_name, values, tools) {
        (None, Ok(mut values), Ok(tools)) => {
            values.extend(written.map(|written| (TOOLS.to_owned(), written)));
            Ok(CheckedConfig { values, tools })
        }
        (of_name, values, tools) => {
            let found = [values.err(), tools.err()].into_iter().flatten().flatten();
            Err(of_name.into_iter().chain(found).collect())
        }
    }
}

/// Returns the errors of the configuration of a resource whose tools come from outside.
fn dynamic_errors(values: &Map<String, Value>) -> Vec<InputError> {
    let dimensions = remote::config_dimensions(values).err().unwrap_or_default();
    dimensions.into_iter().chain(remote::endpoint_errors(values)).collect()
}

/// Returns the values of a configuration, including the defaults of the type. The tools are included but not validated,
/// because validation would compile their schemas; see [`configured_tools`].
///
/// # Errors
/// Returns all validation errors of the fields, with pointers into the configuration.
pub fn config_values(
    resource_type: &ResourceType,
    mut config: Map<String, Value>,
) -> Result<Map<String, Value>, Vec<InputError>> {
    let written = take_tools(resource_type, &mut config);
    let mut values = check_fields(&resource_type.config_schema, config)?;
    values.extend(written.map(|written| (TOOLS.to_owned(), written)));
    Ok(values)
}

/// Returns the tools of the resource `name`, from the values of its stored configuration. Their schemas may exceed the
/// current limits, because an earlier release may have accepted them.
///
/// # Errors
/// Returns all validation errors of the tools, with pointers into the configuration.
pub fn configured_tools(
    resource_type: &ResourceType,
    name: &str,
    values: &Map<String, Value>,
) -> Result<Vec<ConfiguredTool>, Vec<InputError>> {
    if resource_type.tool_discovery != ToolDiscovery::Configured {
        return Ok(Vec::new());
    }
    tools(resource_type, name, values.get(TOOLS), SchemaLimits::Stored)
}

/// Returns the names of the tools that the configuration `values` of the resource `name` defines, without checking the
/// tools.
#[must_use]
pub fn configured_tool_names(resource_type: &ResourceType, name: &str, values: &Map<String, Value>) -> Vec<String> {
    if resource_type.tool_discovery != ToolDiscovery::Configured {
        return Vec::new();
    }
    let tools = values.get(TOOLS).and_then(Value::as_array).into_iter().flatten();
    tools.filter_map(|tool| tool["name"].as_str()).map(|own| format!("{name}{SEPARATOR}{own}")).collect()
}

/// Returns whether `tool` has the name format of a tool that belongs to the resource `resource`.
#[must_use]
pub fn is_own_tool(resource: &str, tool: &ToolName) -> bool {
    tool.as_str().strip_prefix(resource).is_some_and(|rest| rest.starts_with(SEPARATOR))
}

fn take_tools(resource_type: &ResourceType, config: &mut Map<String, Value>) -> Option<Value> {
    if resource_type.tool_discovery != ToolDiscovery::Configured {
        return None;
    }
    config.remove(TOOLS).filter(|tools| !tools.is_null())
}

fn tools(
    resource_type: &ResourceType,
    name: &str,
    written: Option<&Value>,
    limits: SchemaLimits,
) -> Result<Vec<ConfiguredTool>, Vec<InputError>> {
    written.map_or_else(|| Ok(Vec::new()), |tools| check_tools(resource_type, name, tools, limits))
}

fn check_tools(
    resource_type: &ResourceType,
    name: &str,
    written: &Value,
    limits: SchemaLimits,
) -> Result<Vec<ConfiguredTool>, Vec<InputError>> {
    let list = FieldPath::default().key(TOOLS);
    let Value::Array(entries) = written else { return Err(vec![input_error(&list, "expected a list of tools")]) };
    let mut errors = Vec::new();
    let mut tools = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        match serde_path_to_error::deserialize::<_, Tool>(without_free_keys(entry)) {
            Ok(tool) => tools.push(tool),
            Err(error) => {
                let mut at = list.index(index);
                at.0.extend(error.path().iter().filter_map(segment));
                errors.push(input_error(&at, &error.inner().to_string()));
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut found = ContentErrors::default();
    contract::tools(&mut found, &tools, limits, &list);
    if !tools.is_empty() && !is_prefix(name) {
        let message = "the name of a resource with tools must start with a letter, contain only a-z, 0-9 and `_`, not \
                       end with `_` and not contain `__`, because the name becomes part of the tool names";
        errors.push(InputError { path: "/name".to_owned(), message: message.to_owned() });
    }
    let mut configured = Vec::new();
    for (index, mut tool) in tools.into_iter().enumerate() {
        let full = format!("{name}{SEPARATOR}{}", tool.name);
        let at = list.index(index).key("name");
        if resource_type.tools.iter().any(|own| own.name.as_str() == full) {
            found.add(at.clone(), format!("the resource type already has a tool `{full}`"));
        }
        if contract::reserved_prefix(&full, limits).is_some() {
            found.add(
                at.clone(),
                format!("the tool name `{full}` would start with a reserved prefix; rename the resource"),
            );
        }
        match full.parse() {
            Ok(full) => {
                let own_name = std::mem::replace(&mut tool.name, full);
                configured.push(ConfiguredTool { tool, own_name });
            }
            Err(_) if is_prefix(name) => {
                found.add(at, format!("the tool name `{full}` would be longer than 64 characters"));
            }
            Err(_) => {}
        }
    }
    errors.extend(found.into_iter().map(|(at, message)| input_error(&at, &message)));
    if errors.is_empty() { Ok(configured) } else { Err(errors) }
}

/// Returns whether the resource name `name` can be the prefix of tool names. The rules ensure that a full tool name
/// identifies exactly one resource and one tool.
pub(crate) fn is_prefix(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && !name.ends_with('_')
        && !name.contains(SEPARATOR)
}

fn without_free_keys(tool: &Value) -> Value {
    let Value::Object(members) = tool else { return tool.clone() };
    members.iter().filter(|(key, _)| !key.starts_with("x-")).map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(crate) fn segment(segment: &serde_path_to_error::Segment) -> Option<Segment> {
    match segment {
        serde_path_to_error::Segment::Map { key } => Some(Segment::Key(key.clone())),
        serde_path_to_error::Segment::Seq { index } => Some(Segment::Index(*index)),
        _ => None,
    }
}

pub(crate) fn input_error(at: &FieldPath, message: &str) -> InputError {
    let step = |segment: &Segment| match segment {
        Segment::Key(key) => format!("/{}", escape(key)),
        Segment::Index(index) => format!("/{index}"),
    };
    InputError { path: at.0.iter().map(step).collect(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse;

    fn resource_type(discovery: &str) -> ResourceType {
        let text = format!(
            "name: a\nversion: 1.0.0\nresource_type:\n  id: a\n  name: A\n  tool_discovery: {discovery}\n  tools:\n    \
             - {{ name: shop__list, description: d, operation: a.list, input_schema: {{}} }}\n  config_schema:\n    \
             - {{ field: api_base, type: url, default: \"https://a.example\" }}\n"
        );
        parse("monstrum.yaml", &text).unwrap().resource_type
    }

    fn check(name: &str, config: Value) -> Result<CheckedConfig, Vec<String>> {
        let Value::Object(config) = config else { panic!("the configuration must be an object") };
        let told =
            |errors: Vec<InputError>| errors.into_iter().map(|error| format!("{}: {}", error.path, error.message));
        check_config(&resource_type("configured"), name, config).map_err(|errors| told(errors).collect())
    }

    fn tool(name: &str) -> Value {
        json!({"name": name, "description": "d", "operation": "a.read", "input_schema": {}})
    }

    #[test]
    fn tools_are_named_after_their_resource_and_the_configuration_is_unchanged() {
        let mut written = tool("orders");
        written["x-path"] = json!("/orders");
        let checked = check("shop_2", json!({"tools": [written]})).unwrap();
        assert_eq!(checked.values["tools"][0]["x-path"], "/orders");
        assert_eq!(checked.values["api_base"], "https://a.example");
        let [one] = checked.tools.as_slice() else { panic!("expected one tool: {checked:?}") };
        assert_eq!((one.tool.name.as_str(), one.own_name.as_str()), ("shop_2__orders", "orders"));
        assert_eq!(check("Any name", json!({})).unwrap().tools, []);
        assert_eq!(check("Any name", json!({"tools": []})).unwrap().tools, []);
    }

    #[test]
    fn every_error_has_its_place() {
        let told = |config: Value| check("shop", config).unwrap_err().join("\n");
        assert_eq!(told(json!({"tools": {}})), "/tools: expected a list of tools");
        let typo = told(json!({"tools": [{"name": "a", "descripton": "d"}], "api_bse": ""}));
        assert!(typo.contains("/api_bse: unknown field\n/tools/0/descripton: unknown field"), "{typo}");
        let named = told(json!({"tools": [tool("Orders")]}));
        assert!(named.starts_with("/tools/0/name: "), "{named}");
        let twice = told(json!({"tools": [tool("a"), tool("a")]}));
        assert_eq!(twice, "/tools/1/name: tools[0] already has the name `a`");
        let mut broken = tool("a");
        broken["input_schema"] = json!({"properties": {"x": {"type": "strin"}}});
        broken["description"] = json!(" ");
        let broken = told(json!({"tools": [broken]}));
        assert!(broken.contains("/tools/0/description: must not be empty"), "{broken}");
        assert!(broken.contains("/tools/0/input_schema: "), "{broken}");
        assert_eq!(
            told(json!({"tools": [tool("list")]})),
            "/tools/0/name: the resource type already has a tool `shop__list`"
        );
        let long = "a".repeat(60);
        let long = told(json!({"tools": [tool(&long)]}));
        assert!(long.ends_with("would be longer than 64 characters"), "{long}");
    }

    #[test]
    fn a_resource_with_an_ambiguous_name_may_not_have_tools() {
        for name in ["Shop", "my shop", "1shop", "shop_", "a__b", "", "shöp"] {
            let told = check(name, json!({"tools": [tool("a")]})).unwrap_err().join("\n");
            assert!(told.starts_with("/name: the name of a resource with tools"), "{name}: {told}");
        }
        let told = check("sandbox", json!({"tools": [tool("a")]})).unwrap_err().join("\n");
        assert!(told.contains("rename the resource"), "{told}");
    }

    #[test]
    fn other_types_may_not_have_tools_in_their_configuration() {
        let config = Map::from_iter([(TOOLS.to_owned(), json!([tool("a")]))]);
        let errors = check_config(&resource_type("static"), "shop", config).unwrap_err();
        assert_eq!((errors[0].path.as_str(), errors[0].message.as_str()), ("/tools", "unknown field"));
    }

    #[test]
    fn the_key_is_reserved_in_types_with_configured_tools() {
        let text = |discovery: &str| {
            format!(
                "name: a\nversion: 1.0.0\nresource_type:\n  id: a\n  name: A\n  tool_discovery: {discovery}\n  \
                 config_schema: [{{ field: tools, type: string }}]\n"
            )
        };
        assert!(parse("monstrum.yaml", &text("static")).is_ok());
        let errors = parse("monstrum.yaml", &text("configured")).unwrap_err().to_string();
        assert!(errors.contains("resource_type.config_schema[0].field: with tool_discovery `configured`"), "{errors}");
    }
}
