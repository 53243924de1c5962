//! Literal parameters fit the schemas of the tools.

use std::collections::HashMap;

use jsonschema::Validator;

use super::{Found, KnownTool};
use crate::expr::Known;
use crate::fault::{Spot, nearest};
use crate::model::{Definition, StepKind, ToolUse};
use crate::parse::schema;

pub(super) fn check(definition: &Definition, tools: Option<&[KnownTool]>, found: &mut Found) {
    let Some(tools) = tools else { return };
    let mut validators = HashMap::new();
    definition.walk(&mut |step| {
        if let StepKind::Tool(tool) = &step.kind {
            check_use(tool, tools, &mut validators, found);
        }
        if let Some(undo) = &step.undo {
            check_use(undo, tools, &mut validators, found);
        }
    });
}

/// The validators of tools by name. A schema that is too large for one is left to the call.
type Validators<'t> = HashMap<&'t str, Option<Validator>>;

fn check_use<'t>(tool: &ToolUse, tools: &'t [KnownTool], validators: &mut Validators<'t>, found: &mut Found) {
    let Some(known) = tools.iter().find(|known| known.name == tool.tool) else {
        let warning = tool.spot.fault(format!("the bot has no tool `{}` now", tool.tool));
        found.warn(match nearest(&tool.tool, tools.iter().map(|tool| tool.name.as_str())) {
            Some(name) => warning.hint(format!("did you mean `{name}`?")),
            None => warning,
        });
        return;
    };
    let compiled = || known.input_schema.as_ref().and_then(|schema| schema::compile(schema).ok());
    let Some(validator) = validators.entry(&known.name).or_insert_with(compiled) else { return };
    for error in schema::errors(validator, &tool.params.skeleton()) {
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
