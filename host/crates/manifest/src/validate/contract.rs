//! Validation of the resource type: its name, tools, scope dimensions and schemas.

use std::collections::HashMap;

use monstrum_types::{Effort, Params};
use serde_json::Value;

use crate::configured;
use crate::error::FieldPath;
use crate::model::{Mode, ResourceType, ScopeDimension, Tool, ToolDiscovery};
use crate::schema::{CHECK_STEPS_MAX, InputSchema, MANIFEST_STEPS_MAX, OutputSchema, SchemaLimits};

use super::{
    ContentErrors, DIMENSIONS_MAX, ENTRIES_MAX, FieldUse, NEW_RESERVED_TOOL_PREFIXES, PATTERNS_MAX, RESERVED_NAMES,
    RESERVED_TOOL_PREFIXES, TOOLS_MAX, auth, check_file_name, fields,
};

pub(super) fn check(errors: &mut ContentErrors, resource_type: &ResourceType, limits: SchemaLimits, at: &FieldPath) {
    if RESERVED_NAMES.contains(&resource_type.id.as_str()) {
        errors.add(at.key("id"), format!("`{}` is a built-in type and cannot be replaced", resource_type.id));
    }
    errors.short_text(at.key("name"), &resource_type.name);
    if resource_type.mode != Mode::Plugin {
        let message =
            "the mode of a plugin folder must be `plugin`: `system` is for built-in types, and `endpoint` is reserved";
        errors.add(at.key("mode"), message);
    }
    if let Err(why) = check_icon(&resource_type.icon) {
        errors.add(at.key("icon"), why);
    }
    tools(errors, &resource_type.tools, limits, &at.key("tools"));
    let own_tools = resource_type.config_schema.iter().position(|field| field.field == configured::TOOLS);
    if resource_type.tool_discovery == ToolDiscovery::Dynamic {
        let message = "`dynamic` is for built-in types, whose tools come from a server or an agent";
        errors.add(at.key("tool_discovery"), message);
    }
    if let Some(index) = own_tools.filter(|_| resource_type.tool_discovery == ToolDiscovery::Configured) {
        let message =
            "with tool_discovery `configured`, the field name `tools` is reserved for the resource's own tools";
        errors.add(at.key("config_schema").index(index).key("field"), message);
    }
    dimensions(errors, &resource_type.scope_dimensions, &at.key("scope_dimensions"));
    fields(errors, &resource_type.config_schema, &at.key("config_schema"), FieldUse::Config);
    fields(errors, &resource_type.credential_schema, &at.key("credential_schema"), FieldUse::Credential);
    auth::check(errors, resource_type, &at.key("auth_methods"));
    credential_check(errors, resource_type, &at.key("credential_check"));
}

/// Validates the tool and the fixed parameters of the credential check.
fn credential_check(errors: &mut ContentErrors, resource_type: &ResourceType, at: &FieldPath) {
    let Some(check) = &resource_type.credential_check else { return };
    let Some(tool) = resource_type.tools.iter().find(|tool| tool.name == check.tool) else {
        errors.add(at.key("tool"), format!("this manifest has no tool `{}`", check.tool));
        return;
    };
    // The validation of the tools reports schemas that do not compile.
    let effort = Effort::of(CHECK_STEPS_MAX);
    let Ok(schema) = InputSchema::compile(&tool.input_schema, SchemaLimits::Stored, &effort) else { return };
    match schema.check(&Params::new(Value::Object(check.params.clone())), &effort) {
        Ok(checked) => {
            for error in checked.err().unwrap_or_default() {
                let place = if error.path.is_empty() { String::new() } else { format!("at `{}`: ", error.path) };
                errors
                    .add(at.key("params"), format!("does not match the tool's input_schema: {place}{}", error.message));
            }
        }
        Err(overrun) => errors.add(at.key("params"), format!("cannot be checked: {overrun}")),
    }
}

/// Checks an icon: a semantic name, or an image file that cannot run scripts.
fn check_icon(icon: &str) -> Result<(), &'static str> {
    let lower = icon.to_ascii_lowercase();
    if lower.ends_with(".svg") || lower.ends_with(".svgz") {
        return Err("an SVG may run scripts: use a PNG or WebP file");
    }
    if icon.is_empty() || icon.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        return if icon.len() > 64 { Err("must not be longer than 64 characters") } else { Ok(()) };
    }
    check_file_name(icon)?;
    if lower.ends_with(".png") || lower.ends_with(".webp") {
        return Ok(());
    }
    Err("expected a name such as `github`, or a PNG or WebP file")
}

/// Validates a list of tools.
pub(crate) fn tools(errors: &mut ContentErrors, tools: &[Tool], limits: SchemaLimits, at: &FieldPath) {
    errors.cap(at.clone(), tools, TOOLS_MAX);
    let effort = Effort::of(MANIFEST_STEPS_MAX);
    let mut patterns = 0;
    let mut seen = HashMap::new();
    // Tools over the limit are rejected anyway, so their schemas are not compiled.
    for (index, tool) in tools.iter().enumerate().take(TOOLS_MAX) {
        let at = at.index(index);
        if let Some(first) = seen.insert(tool.name.as_str(), index) {
            errors.add(at.key("name"), format!("tools[{first}] already has the name `{}`", tool.name));
        }
        if let Some(prefix) = reserved_prefix(tool.name.as_str(), limits) {
            errors.add(at.key("name"), format!("names that start with `{prefix}` are reserved for the platform"));
        }
        if tool.description.trim().is_empty() {
            errors.add(at.key("description"), "must not be empty, because models choose tools by their description");
        }
        if !is_operation(&tool.operation) {
            let message = "expected a name such as `issue.read`: 1 to 128 letters, digits, `.`, `_`, `-` or `:`";
            errors.add(at.key("operation"), message);
        }
        if let Some(cost) = &tool.cost
            && !(cost.credits.is_finite() && cost.credits >= 0.0)
        {
            errors.add(at.key("cost").key("credits"), "must not be negative");
        }
        patterns += schemas(errors, tool, limits, &effort, &at);
        if patterns > PATTERNS_MAX {
            errors.add(
                at.key("input_schema"),
                format!("the schemas of all tools have more than {PATTERNS_MAX} patterns in total"),
            );
            return;
        }
    }
}

/// Returns the reserved prefix with which `name` starts, if any.
pub(crate) fn reserved_prefix(name: &str, limits: SchemaLimits) -> Option<&'static str> {
    let new = (limits == SchemaLimits::Current).then(|| new_reserved_prefix(name)).flatten();
    RESERVED_TOOL_PREFIXES.into_iter().find(|prefix| name.starts_with(prefix)).or(new)
}

/// Returns the prefix with which `name` starts, if it was reserved after the first release. Stored versions of plugins
/// may have tools with such names.
#[must_use]
pub fn new_reserved_prefix(name: &str) -> Option<&'static str> {
    NEW_RESERVED_TOOL_PREFIXES.into_iter().find(|prefix| name.starts_with(prefix))
}

/// Validates the schemas of a tool. Returns the number of their regular expressions.
fn schemas(errors: &mut ContentErrors, tool: &Tool, limits: SchemaLimits, effort: &Effort, at: &FieldPath) -> usize {
    let mut patterns = 0;
    let exceeds = |field: &str, sentences: &[String], errors: &mut ContentErrors| {
        for sentence in sentences.iter().filter(|_| limits == SchemaLimits::Current) {
            errors.add(at.key(field), sentence);
        }
    };
    // The schema is compiled with the limits for stored versions, so that each exceeded limit is reported separately.
    match InputSchema::compile(&tool.input_schema, SchemaLimits::Stored, effort) {
        Ok(schema) => {
            patterns += schema.patterns();
            exceeds("input_schema", schema.exceeds(), errors);
        }
        Err(why) => errors.add(at.key("input_schema"), why),
    }
    match tool.output_schema.as_ref().map(|schema| OutputSchema::compile(schema, SchemaLimits::Stored)) {
        Some(Ok(schema)) => {
            patterns += schema.patterns();
            exceeds("output_schema", schema.exceeds(), errors);
        }
        Some(Err(why)) => errors.add(at.key("output_schema"), why),
        None => {}
    }
    patterns
}

/// Returns whether `text` is a valid operation. Roles match operations with globs, so glob characters and blanks are
/// not allowed.
fn is_operation(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':'))
}

pub(crate) fn dimensions(errors: &mut ContentErrors, dimensions: &[ScopeDimension], at: &FieldPath) {
    errors.cap(at.clone(), dimensions, DIMENSIONS_MAX);
    errors.unique(
        dimensions.iter().enumerate().map(|(index, dimension)| (at.index(index).key("key"), dimension.key.as_str())),
    );
    for (index, dimension) in dimensions.iter().enumerate() {
        let at = at.index(index);
        errors.short_text(at.key("key"), &dimension.key);
        let paths = at.key("param_paths");
        if dimension.param_paths.is_empty() {
            errors.add(paths.clone(), "must not be empty, because the dimension would not check anything");
        }
        errors.cap(paths.clone(), &dimension.param_paths, ENTRIES_MAX);
        for (index, path) in dimension.param_paths.iter().enumerate() {
            param_path(errors, path, paths.index(index));
        }
        if let Some(glob) = &dimension.operation_filter {
            errors.short_text(at.key("operation_filter"), glob);
        }
    }
}

fn param_path(errors: &mut ContentErrors, path: &str, at: FieldPath) {
    if path.starts_with('_') {
        errors.add(at, "parameters that start with `_` are reserved for the platform");
    } else if path.split('.').any(str::is_empty) {
        errors
            .add(at, "expected the name of a parameter; dots separate the keys of nested objects, as in `target.repo`");
    } else {
        errors.short_text(at, path);
    }
}
