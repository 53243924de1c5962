//! Second stage: selects the binding that a call uses, and lists the tools that a bot may see.
//!
//! The list and the call use the same function of the Guardian, so a bot sees exactly the tools that it can call.

use std::sync::Arc;

use monstrum_guardian::{Decision, DelegationRules, Denial, Gates, Question, Subject, decide_within, may_ask};
use monstrum_types::{Effort, InputError, Labels, Overrun, Status, ToolName};
use serde_json::{Map, Value, json};

use crate::call::session::Session;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::refusal::{NotPermitted, Refusal, invalid_params, refuse};
use crate::plugins::built_in::SHELL;
use crate::plugins::{Plugin, Tool};
use crate::policy::{Binding, Resource};

/// The parameter that names the resource if a bot has a tool through several resources. Names that start with `_` are
/// reserved, so this name cannot collide with a parameter of a tool.
pub const RESOURCE_PARAM: &str = "_resource";

/// The number of steps charged for each tool of each binding that the search considers.
const CANDIDATE_STEPS: u64 = 64;

/// A tool, the version of the plugin that serves it, and the binding that grants it to the bot.
#[derive(Clone)]
pub struct ResolvedCall {
    pub binding: Arc<Binding>,
    pub plugin: Arc<Plugin>,
    tool: Arc<Tool>,
    delegation: Arc<[Arc<DelegationRules>]>,
    bot_gates: Gates,
    labels: Labels,
}

impl ResolvedCall {
    fn of(session: &Session, binding: &Arc<Binding>, tool: &Arc<Tool>) -> ResolvedCall {
        ResolvedCall {
            binding: Arc::clone(binding),
            plugin: Arc::clone(&binding.resource.plugin),
            tool: Arc::clone(tool),
            delegation: Arc::clone(&session.delegation),
            bot_gates: session.bot.gates.clone(),
            labels: session.labels.clone(),
        }
    }

    /// Returns the tool.
    pub fn tool(&self) -> &Tool {
        &self.tool
    }

    /// Returns the tool as a shared reference.
    pub fn shared_tool(&self) -> &Arc<Tool> {
        &self.tool
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            tool: &self.tool().rules,
            binding: &self.binding.rules,
            delegation: &self.delegation,
            bot_gates: &self.bot_gates,
            labels: &self.labels,
        }
    }

    /// Returns another tool of the same plugin, through the same binding.
    pub fn sibling(&self, name: &str) -> Option<ResolvedCall> {
        let tool = self.plugin.tools.iter().find(|tool| tool.manifest.name.as_str() == name)?;
        Some(ResolvedCall { tool: Arc::clone(tool), ..self.clone() })
    }

    /// Returns a copy of this call for the same tool, with the rules of `binding`, and with those of the delegations and
    /// of the bot in `session`.
    pub fn with_rules_of(&self, binding: &Arc<Binding>, session: &Session) -> ResolvedCall {
        let (binding, delegation) = (Arc::clone(binding), Arc::clone(&session.delegation));
        ResolvedCall { binding, delegation, bot_gates: session.bot.gates.clone(), ..self.clone() }
    }

    /// Returns whether the call was resolved under exactly these delegations.
    pub fn is_delegated_by(&self, delegation: &[Arc<DelegationRules>]) -> bool {
        self.delegation.len() == delegation.len()
            && self.delegation.iter().zip(delegation).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// Returns whether the call was resolved with these gates of the bot.
    pub fn is_gated_by(&self, bot_gates: &Gates) -> bool {
        self.bot_gates.is_same(bot_gates)
    }

    /// Returns whether a gate may ask before a call of the tool.
    pub fn may_ask(&self, effort: &Effort) -> Result<bool, Overrun> {
        may_ask(&self.subject(), effort)
    }

    /// Returns the Guardian's decision on `question`.
    pub fn decide(&self, question: Question<'_>, effort: &Effort) -> Result<Decision, Overrun> {
        decide_within(&self.subject(), question, effort)
    }

    /// Calls `ask` with the rules of the tool, the binding and the delegations.
    pub fn with_subject<T>(&self, ask: impl FnOnce(&Subject<'_>) -> T) -> T {
        ask(&self.subject())
    }
}

/// Returns the tools of a binding, except those that only plugins call.
fn offered<'a>(binding: &'a Binding, effort: &Effort) -> Result<impl Iterator<Item = &'a Arc<Tool>>, Overrun> {
    let tools = binding.resource.plugin.tools.iter().chain(binding.resource.tools(effort)?);
    Ok(tools.filter(|tool| !tool.is_hidden))
}

/// Returns each tool of a binding, except those that only plugins call.
pub fn tools_of(session: &Session, binding: &Arc<Binding>, effort: &Effort) -> Result<Vec<ResolvedCall>, Overrun> {
    let mut found = Vec::new();
    for tool in offered(binding, effort)? {
        effort.spend(CANDIDATE_STEPS)?;
        found.push(ResolvedCall::of(session, binding, tool));
    }
    Ok(found)
}

/// Tools that a bot may see, sorted by name. A tool appears once for each binding that grants it.
pub struct Visible {
    pub calls: Vec<ResolvedCall>,
    /// Whether the bot may see tools after these.
    pub has_more: bool,
}

/// Lists every tool that the bot may see.
pub fn list(session: &Session, effort: &Effort) -> Result<Vec<ResolvedCall>, Overrun> {
    Ok(page(session, None, usize::MAX, effort)?.calls)
}

/// Lists the first `count` tools that the bot may see, or the first `count` of those after the name `after`. Only as
/// many tools are judged as this takes.
pub fn page(session: &Session, after: Option<&str>, count: usize, effort: &Effort) -> Result<Visible, Overrun> {
    let mut candidates = Vec::new();
    for binding in session.bindings() {
        for tool in offered(binding, effort)? {
            effort.spend(CANDIDATE_STEPS)?;
            if after.is_none_or(|after| tool.manifest.name.as_str() > after) {
                candidates.push((binding, tool));
            }
        }
    }
    candidates.sort_by(|(_, a), (_, b)| a.manifest.name.cmp(&b.manifest.name));
    let (mut calls, mut names) = (Vec::<ResolvedCall>::new(), 0);
    for (binding, tool) in candidates {
        let is_new = calls.last().is_none_or(|last| last.tool().manifest.name != tool.manifest.name);
        let resolved = ResolvedCall::of(session, binding, tool);
        if !matches!(resolved.decide(Question::List, effort)?, Decision::Allow) {
            continue;
        }
        if is_new && names == count {
            return Ok(Visible { calls, has_more: true });
        }
        names += usize::from(is_new);
        calls.push(resolved);
    }
    Ok(Visible { calls, has_more: false })
}

/// The refusal of a call that was not resolved, with the data that the audit records.
pub struct Refused {
    pub refusal: NotPermitted,
    pub tool: Option<(Arc<Plugin>, Arc<Tool>)>,
    /// The resource, if only one resource is possible.
    pub resource: Option<Arc<Resource>>,
}

/// Finds the binding that grants the tool to the bot. A tool that does not exist and a tool that no role of the bot
/// permits get the same answer.
pub fn resolve(session: &Session, call: &IncomingCall, effort: &Effort) -> Result<ResolvedCall, Refused> {
    let tool = |resolved: &ResolvedCall| (Arc::clone(&resolved.plugin), Arc::clone(&resolved.tool));
    find(session, call, effort).map_err(|unresolved| match unresolved {
        Unresolved::Overrun(overrun) => Refused { refusal: overrun.into(), tool: None, resource: None },
        Unresolved::Denied(denial, found) => Refused {
            refusal: refuse(*denial).into(),
            tool: found.as_deref().map(tool),
            resource: found.map(|resolved| Arc::clone(&resolved.binding.resource)),
        },
        Unresolved::Input(refusal, found) => {
            Refused { refusal: refusal.into(), tool: found.as_deref().map(tool), resource: None }
        }
    })
}

/// Returns the denial for a tool that the bot does not have. For the shell tool, the denial names the switch that
/// grants sandbox tools.
fn unknown(tool: &str) -> Denial {
    let denial = Denial::unknown_tool(tool);
    if tool != SHELL {
        return denial;
    }
    Denial {
        reason: "the switch `use_agent_sandbox` of the bot is off".to_owned(),
        smallest_change: "turn on the switch `use_agent_sandbox` of the bot".to_owned(),
        ..denial
    }
}

/// The reason why no single binding was found.
pub(super) enum Unresolved {
    /// No binding permits the tool. The second field is a binding that has the tool but does not permit it, if such a
    /// binding exists.
    Denied(Box<Denial>, Option<Box<ResolvedCall>>),
    /// The bot has the tool through several resources, and the call names no resource or a wrong resource.
    Input(Refusal, Option<Box<ResolvedCall>>),
    /// The search exceeds its limit of steps.
    Overrun(Overrun),
}

impl From<Overrun> for Unresolved {
    fn from(overrun: Overrun) -> Self {
        Unresolved::Overrun(overrun)
    }
}

pub(super) fn find(session: &Session, call: &IncomingCall, effort: &Effort) -> Result<ResolvedCall, Unresolved> {
    let unknown = || Unresolved::Denied(Box::new(unknown(call.tool())), None);
    let name: ToolName = call.tool().parse().map_err(|_| unknown())?;
    let declared = session.snapshot.tool(&name);
    let mut denied = None;
    let mut candidates = Vec::new();
    for binding in session.bindings() {
        if call.resource().is_some_and(|wanted| wanted != binding.row.resource_id) {
            continue;
        }
        let plugin = &binding.resource.plugin;
        effort.spend(CANDIDATE_STEPS)?;
        let of_type = declared.filter(|(owner, _)| owner.name == plugin.name).map(|(_, tool)| tool);
        let tool = match of_type {
            Some(tool) => tool,
            None => match binding.resource.tool(&name, effort)? {
                Some(tool) => tool,
                None => continue,
            },
        };
        if tool.is_hidden && !call.may_use_hidden(name.as_str()) {
            continue;
        }
        let resolved = ResolvedCall::of(session, binding, tool);
        match resolved.decide(Question::List, effort)? {
            // A scope violation does not rule out the binding: scopes are judged later, with the parameters.
            Decision::Deny(denial) if denial.status == Status::PermissionDenied => denied = Some((denial, resolved)),
            Decision::Deny(_) | Decision::Allow | Decision::Ask(_) => candidates.push(resolved),
        }
    }
    if candidates.is_empty() {
        return Err(denied.map_or_else(unknown, |(denial, resolved)| {
            Unresolved::Denied(Box::new(denial), Some(Box::new(resolved)))
        }));
    }
    choose(call, &mut candidates).map_err(|refusal| Unresolved::Input(refusal, candidates.pop().map(Box::new)))
}

/// Selects the only candidate, or the candidate whose resource the call names.
fn choose(call: &IncomingCall, candidates: &mut Vec<ResolvedCall>) -> Result<ResolvedCall, Refusal> {
    let names = |candidates: &[ResolvedCall]| -> String {
        let quoted = candidates.iter().map(|candidate| format!("`{}`", candidate.binding.resource.row.name));
        quoted.collect::<Vec<_>>().join(", ")
    };
    let misnamed =
        |message: String| Box::new(invalid_params(&[InputError { path: format!("/{RESOURCE_PARAM}"), message }]));
    match call.params().value().get(RESOURCE_PARAM) {
        Some(Value::String(name)) => {
            let wanted = candidates.iter().position(|candidate| candidate.binding.resource.row.name == *name);
            wanted
                .map(|index| candidates.swap_remove(index))
                .ok_or_else(|| misnamed(format!("expected one of {}", names(candidates))))
        }
        Some(_) => Err(misnamed("expected a string".to_owned())),
        None => match (candidates.pop(), candidates.len()) {
            (Some(only), 0) => Ok(only),
            (last, _) => {
                candidates.extend(last);
                Err(misnamed(format!(
                    "`{}` is available through {} resources; set `_resource` to one of {}, or send the \
                     resource's id as `resource_id`",
                    call.tool(),
                    candidates.len(),
                    names(candidates)
                )))
            }
        },
    }
}

/// Adds the parameter [`RESOURCE_PARAM`] to the schema if `names` has several resources.
pub fn with_resource(mut schema: Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    if names.len() < 2 {
        return schema;
    }
    let parameter = json!({"type": "string", "enum": names, "description": "The resource to use"});
    // If present, `properties` is an object and `required` an array: the schema was validated when the plugin was
    // loaded.
    if let Value::Object(properties) = schema.entry("properties").or_insert_with(|| json!({})) {
        properties.insert(RESOURCE_PARAM.to_owned(), parameter);
    }
    if let Value::Array(required) = schema.entry("required").or_insert_with(|| json!([])) {
        required.push(json!(RESOURCE_PARAM));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_asks_for_the_resource_only_where_there_are_several() {
        let schema = json!({"type": "object", "properties": {"repo": {"type": "string"}}, "required": ["repo"]});
        let with =
            |schema: &Value, names: &[&str]| Value::Object(with_resource(schema.as_object().unwrap().clone(), names));
        assert_eq!(with(&schema, &["a"]), schema);
        let several = with(&schema, &["a", "b"]);
        assert_eq!(several["properties"]["_resource"]["enum"], json!(["a", "b"]));
        assert_eq!(several["properties"]["repo"], json!({"type": "string"}));
        assert_eq!(several["required"], json!(["repo", "_resource"]));
        assert_eq!(with(&json!({"type": "object"}), &["a", "b"])["required"], json!(["_resource"]));
    }
}
