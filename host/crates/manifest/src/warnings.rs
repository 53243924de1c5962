//! Warnings about valid manifests that probably contain a mistake.

use monstrum_types::Effort;

use crate::model::{Manifest, ScopeDimension, Tool, ToolDiscovery};
use crate::schema::{InputSchema, MANIFEST_STEPS_MAX, SchemaLimits};

/// Returns the warnings about a valid manifest. `matches_glob(value, pattern)` is the host's glob matcher, passed as a
/// parameter because its crate depends on this one.
#[must_use]
pub fn warnings(manifest: &Manifest, matches_glob: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let resource_type = &manifest.resource_type;
    let mut found = Vec::new();
    if resource_type.tool_discovery == ToolDiscovery::Static && resource_type.tools.is_empty() {
        found
            .push("the resource type has no tools and its tool_discovery is `static`, so no bot can use it".to_owned());
    }
    // If a schema does not compile, the tool is treated as a tool without parameters. This case does not occur in valid
    // manifests, because the parser rejects such schemas.
    let effort = Effort::of(MANIFEST_STEPS_MAX);
    let compile = |tool: &Tool| InputSchema::compile(&tool.input_schema, SchemaLimits::Stored, &effort).ok();
    let schemas: Vec<Option<InputSchema>> = resource_type.tools.iter().map(compile).collect();
    for dimension in &resource_type.scope_dimensions {
        let concerned = |tool: &Tool| {
            dimension.operation_filter.as_deref().is_none_or(|filter| matches_glob(&tool.operation, filter))
        };
        let tools: Vec<(&Tool, bool)> = resource_type
            .tools
            .iter()
            .zip(&schemas)
            .filter(|(tool, _)| concerned(tool))
            .map(|(tool, schema)| (tool, schema.as_ref().is_some_and(|schema| declares_one(schema, dimension))))
            .collect();
        if tools.is_empty() && !resource_type.tools.is_empty() {
            found.push(format!(
                "scope dimension `{}`: its operation_filter does not match the operation of any tool",
                dimension.key
            ));
        }
        for (tool, _) in tools.iter().filter(|(_, declares)| !declares) {
            found.push(format!(
                "scope dimension `{}`: tool `{}` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool",
                dimension.key, tool.name
            ));
        }
    }
    found
}

fn declares_one(schema: &InputSchema, dimension: &ScopeDimension) -> bool {
    dimension.param_paths.iter().any(|path| schema.declares(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(discovery: &str, dimension: &str) -> String {
        let text = format!(
            "name: a\nversion: 1.0.0\nresource_type:\n  id: a\n  name: A\n  tool_discovery: {discovery}\n  tools:\n    - {{ name: a_read, description: d, operation: a.read, input_schema: {{ properties: {{ x: {{}} }} }} }}\n    - {{ name: a_list, description: d, operation: a.list, input_schema: {{}} }}\n  scope_dimensions:\n    - {{ key: xs, {dimension} }}\n"
        );
        warnings(&crate::parse("m", &text).unwrap(), |value, pattern| value == pattern).join("\n")
    }

    #[test]
    fn probable_mistakes_are_reported() {
        assert_eq!(says("static", "param_paths: [x], operation_filter: a.read"), "");
        assert_eq!(
            says("static", "param_paths: [x]"),
            "scope dimension `xs`: tool `a_list` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool"
        );
        assert_eq!(
            says("static", "param_paths: [x], operation_filter: b.read"),
            "scope dimension `xs`: its operation_filter does not match the operation of any tool"
        );
        let bare = crate::parse("m", "name: a\nversion: 1.0.0\nresource_type: { id: a, name: A }").unwrap();
        assert_eq!(
            warnings(&bare, |_, _| true),
            ["the resource type has no tools and its tool_discovery is `static`, so no bot can use it"]
        );
    }
}
