//! Literal parameters fit the schemas of the tools.

use super::{Found, KnownTool};
use crate::fault::nearest;
use crate::model::{Definition, StepKind, ToolUse};
use crate::parse::schema;

pub(super) fn check(definition: &Definition, tools: Option<&[KnownTool]>, found: &mut Found) {
    let Some(tools) = tools else { return };
    definition.walk(&mut |step| {
        if let StepKind::Tool(tool) = &step.kind {
            check_use(tool, tools, found);
        }
        if let Some(undo) = &step.undo {
            check_use(undo, tools, found);
        }
    });
}

fn check_use(tool: &ToolUse, tools: &[KnownTool], found: &mut Found) {
    let Some(known) = tools.iter().find(|known| known.name == tool.tool) else {
        let warning = tool.spot.fault(format!("the bot has no tool `{}` now", tool.tool));
        found.warn(match nearest(&tool.tool, tools.iter().map(|tool| tool.name.as_str())) {
            Some(name) => warning.hint(format!("did you mean `{name}`?")),
            None => warning,
        });
        return;
    };
    // The host has checked the schema when it admitted the tool. A schema beyond our limits is left to the call.
    let Some(validator) = known.input_schema.as_ref().and_then(|schema| schema::compile(schema).ok()) else { return };
    let (value, holes) = tool.params.skeleton();
    for error in schema::errors(&validator, &value) {
        let is_hole = |hole: &String| hole == &error.pointer || error.pointer.starts_with(&format!("{hole}/"));
        let is_around = |hole: &String| hole.starts_with(&format!("{}/", error.pointer));
        // The value of an expression is not known, and so are the values around it; their keys and types are.
        if holes.iter().any(is_hole) || (holes.iter().any(is_around) && !error.is_about_keys) {
            continue;
        }
        let parent = tool.spot.path.strip_suffix("/tool").unwrap_or(&tool.spot.path);
        let mut spot = tool.spot.clone();
        spot.path = format!("{parent}/params{}", error.pointer);
        let fault = spot.fault(format!("`{}` does not accept this: {}", tool.tool, error.message));
        found.fault(fault.hint(format!("see the parameters of `{}` in its description", tool.tool)));
    }
}
