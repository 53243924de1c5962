//! Literal parameters fit the schemas of the tools.

use std::collections::HashMap;

use serde_json::Value;

use super::{Found, KnownTool};
use crate::expr::Known;
use crate::fault::{Spot, nearest};
use crate::model::{Definition, StepKind, ToolUse};
use crate::parse::schema::{self, Schema};

/// The parameter that names the resource of a tool that the bot has for several. Which ones it has can change until a run
/// starts, so the call decides about them.
const RESOURCE: &str = "_resource";

pub(super) fn check(definition: &Definition, tools: Option<&[KnownTool]>, found: &mut Found) {
    let Some(tools) = tools else { return };
    let mut schemas = Schemas { compiled: HashMap::new(), left: schema::WORK_MAX };
    definition.walk(&mut |step| {
        if let StepKind::Tool(tool) = &step.kind {
            check_use(tool, tools, &mut schemas, found);
        }
        if let Some(undo) = &step.undo {
            check_use(undo, tools, &mut schemas, found);
        }
    });
}

/// The schemas of the tools, which plugins wrote.
struct Schemas<'t> {
    /// By the name of the tool. What is too large to compile or to check is left to the call.
    compiled: HashMap<&'t str, Option<Schema>>,
    /// The work that is left for all steps of the definition.
    left: u64,
}

impl<'t> Schemas<'t> {
    fn of(&mut self, tool: &'t KnownTool) -> Option<&Schema> {
        if self.left > 0 && !self.compiled.contains_key(tool.name.as_str()) {
            let schema = tool.input_schema.as_ref().map(without_resource);
            let compiled = schema.and_then(|schema| schema::compile(&schema).ok());
            self.left = self.left.saturating_sub(compiled.as_ref().map_or(0, Schema::compile_work));
            self.compiled.insert(&tool.name, compiled);
        }
        self.compiled.get(tool.name.as_str())?.as_ref()
    }
}

/// Returns the schema of a tool without the name of the resource.
fn without_resource(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.remove(RESOURCE);
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name != RESOURCE);
    }
    schema
}

fn check_use<'t>(tool: &ToolUse, tools: &'t [KnownTool], schemas: &mut Schemas<'t>, found: &mut Found) {
    let Some(known) = tools.iter().find(|known| known.name == tool.tool) else {
        let warning = tool.spot.fault(format!("the bot has no tool `{}` now", tool.tool));
        found.warn(match nearest(&tool.tool, tools.iter().map(|tool| tool.name.as_str())) {
            Some(name) => warning.hint(format!("did you mean `{name}`?")),
            None => warning,
        });
        return;
    };
    if found.is_full() {
        return;
    }
    let mut params = tool.params.skeleton();
    if let Value::Object(params) = &mut params {
        params.remove(RESOURCE);
    }
    let left = schemas.left;
    let Some(schema) = schemas.of(known) else { return };
    let work = schema.work(&params);
    if work > left {
        return;
    }
    let errors = schema::errors(schema, &params, work);
    schemas.left = schemas.left.saturating_sub(work);
    for error in errors {
        // The value of an expression is not known, and so are the values around it; their keys and types are.
        match tool.params.known_at(&error.pointer) {
            Known::Nothing => continue,
            Known::Around if !error.is_about_keys => continue,
            Known::Around | Known::All => {}
        }
        let parent = tool.spot.path.strip_suffix("/tool").unwrap_or(&tool.spot.path);
        let parent = Spot { path: parent.into(), ..tool.spot };
        let spot = parent.below("/params").below(&error.pointer);
        let fault = spot.fault(format!("`{}` does not accept this: {}", tool.tool, error.message));
        found.fault(fault.hint(format!("see the parameters of `{}` in its description", tool.tool)));
    }
}
