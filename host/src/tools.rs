//! Second stage, the ToolResolver: what a bot may see, and which binding a call goes through.
//!
//! The list and the call ask the same function of the Guardian, so a bot sees exactly what it could call.

use std::sync::Arc;

use monstrum_egress::Redactor;
use monstrum_guardian::{Decision, DelegationRules, Denial, Question, Subject, decide_within};
use monstrum_manifest::json_depth;
use monstrum_types::{CallOutcome, Code, Effort, InputError, Overrun, Status, ToolName};
use serde_json::{Map, Value, json};

use crate::authorize::refuse;
use crate::call::{IncomingCall, Refusal, Unjudged};
use crate::checks::pay_for;
use crate::plugins::built_in::SHELL;
use crate::plugins::{Plugin, Tool};
use crate::policy::{Binding, Resource};
use crate::session::Session;

/// The parameter by which a caller names the resource, where a bot has a tool through several. Names that start with
/// `_` are reserved, so no tool has a parameter like it.
pub const RESOURCE_PARAM: &str = "_resource";

/// Steps to look at a tool of a binding.
const CANDIDATE_STEPS: u64 = 64;

/// A tool, the version of the plugin that serves it, and the binding through which this bot has it.
#[derive(Clone)]
pub struct ResolvedCall {
    pub binding: Arc<Binding>,
    pub plugin: Arc<Plugin>,
    tool: Arc<Tool>,
    delegation: Arc<[Arc<DelegationRules>]>,
}

impl ResolvedCall {
    /// The tool.
    pub fn tool(&self) -> &Tool {
        &self.tool
    }

    /// The parameters, without the name of the resource, valid against the tool's schema and with its defaults filled
    /// in.
    pub fn checked_params(&self, call: &IncomingCall, effort: &Effort) -> Result<Map<String, Value>, Unjudged> {
        check_params(self.tool(), &call.params, effort)?.map_err(|faults| Unjudged::invalid(&faults))
    }

    fn subject(&self) -> Subject<'_> {
        Subject { tool: &self.tool().rules, binding: &self.binding.rules, delegation: &self.delegation }
    }

    /// Another tool of the same plugin, through the same binding.
    pub fn sibling(&self, name: &str) -> Option<ResolvedCall> {
        let tool = self.plugin.tools.iter().find(|tool| tool.manifest.name.as_str() == name)?;
        Some(ResolvedCall { tool: Arc::clone(tool), ..self.clone() })
    }

    /// The same tool, judged by what the binding and the links of the delegation say in `session`.
    pub fn by(&self, binding: &Arc<Binding>, session: &Session) -> ResolvedCall {
        let (binding, delegation) = (Arc::clone(binding), Arc::clone(&session.delegation));
        ResolvedCall { binding, delegation, ..self.clone() }
    }

    /// Whether these very links of the delegation, and no others, were part of the decision.
    pub fn is_under(&self, delegation: &[Arc<DelegationRules>]) -> bool {
        self.delegation.len() == delegation.len()
            && self.delegation.iter().zip(delegation).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// What the Guardian says to `question`.
    pub fn decide(&self, question: Question<'_>, effort: &Effort) -> Result<Decision, Overrun> {
        decide_within(&self.subject(), question, effort)
    }

    /// What the Guardian needs to know of this call's two sides.
    pub fn with_subject<T>(&self, ask: impl FnOnce(&Subject<'_>) -> T) -> T {
        ask(&self.subject())
    }
}

/// What a permitted call runs.
pub struct Job {
    pub plugin: Arc<Plugin>,
    /// None for a function that is called without one.
    pub resource: Option<Arc<Resource>>,
    pub what: What,
}

/// One of the things that a plugin can be asked to do.
pub enum What {
    /// A tool, for a bot.
    Tool(ResolvedCall),
    /// A tool, for whoever checks the credential of a resource.
    Check(Arc<Tool>),
    /// A function, for infrastructure code.
    Function(String),
}

impl Job {
    /// A bot's call of a tool.
    pub fn of(resolved: ResolvedCall) -> Job {
        let resource = Some(Arc::clone(&resolved.binding.resource));
        Job { plugin: Arc::clone(&resolved.plugin), resource, what: What::Tool(resolved) }
    }

    /// What a bot's call has been resolved to.
    pub fn resolved(&self) -> Option<&ResolvedCall> {
        match &self.what {
            What::Tool(resolved) => Some(resolved),
            What::Check(_) | What::Function(_) => None,
        }
    }

    /// The tool, unless it is a function.
    pub fn tool(&self) -> Option<&Arc<Tool>> {
        match &self.what {
            What::Tool(resolved) => Some(&resolved.tool),
            What::Check(tool) => Some(tool),
            What::Function(_) => None,
        }
    }

    /// The binding through which a bot acts.
    pub fn binding(&self) -> Option<&Arc<Binding>> {
        self.resolved().map(|resolved| &resolved.binding)
    }
}

/// Every tool that the bot may see, by name, each with the bindings through which it has it.
pub fn list(session: &Session, effort: &Effort) -> Result<Vec<ResolvedCall>, Overrun> {
    let mut visible = Vec::new();
    for binding in session.bindings() {
        let plugin = &binding.resource.plugin;
        let tools = plugin.tools.iter().chain(binding.resource.tools(effort)?).filter(|tool| !tool.is_hidden);
        for tool in tools {
            effort.spend(CANDIDATE_STEPS)?;
            let resolved = ResolvedCall {
                binding: Arc::clone(binding),
                plugin: Arc::clone(plugin),
                tool: Arc::clone(tool),
                delegation: Arc::clone(&session.delegation),
            };
            if let Decision::Allow = resolved.decide(Question::List, effort)? {
                visible.push(resolved);
            }
        }
    }
    visible.sort_by(|a, b| a.tool().manifest.name.cmp(&b.tool().manifest.name));
    Ok(visible)
}

/// Why a call was not resolved, and what is known of it nevertheless, for the audit.
pub struct Refused {
    pub refusal: Unjudged,
    pub tool: Option<(Arc<Plugin>, Arc<Tool>)>,
    /// Where it is clear which one is meant.
    pub resource: Option<Arc<Resource>>,
}

/// Finds the binding through which the bot has the tool. A tool that does not exist and one that no role of the bot
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

/// The answer for a tool that the bot does not have. That of the sandbox comes by a switch.
fn unknown(tool: &str) -> Denial {
    let denial = Denial::unknown_tool(tool);
    if tool != SHELL {
        return denial;
    }
    Denial {
        reason: "the switch use_agent_sandbox of the bot is off".to_owned(),
        smallest_change: "turn the bot's switch use_agent_sandbox on".to_owned(),
        ..denial
    }
}

/// Why no single binding was found.
enum Unresolved {
    /// With the tool and the binding that does not permit it, where there are such.
    Denied(Box<Denial>, Option<Box<ResolvedCall>>),
    /// The call does not say which resource it means, or names none through which the bot has the tool, which it has
    /// through several.
    Input(Refusal, Option<Box<ResolvedCall>>),
    /// Finding it takes more work than it may.
    Overrun(Overrun),
}

impl From<Overrun> for Unresolved {
    fn from(overrun: Overrun) -> Self {
        Unresolved::Overrun(overrun)
    }
}

fn find(session: &Session, call: &IncomingCall, effort: &Effort) -> Result<ResolvedCall, Unresolved> {
    let unknown = || Unresolved::Denied(Box::new(unknown(&call.tool)), None);
    let name: ToolName = call.tool.parse().map_err(|_| unknown())?;
    let declared = session.snapshot.tool(&name);
    let mut denied = None;
    let mut candidates = Vec::new();
    for binding in session.bindings() {
        if call.resource.is_some_and(|wanted| wanted != binding.row.resource_id) {
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
        if tool.is_hidden && !call.is_of_the_sandbox_import() {
            continue;
        }
        let resolved = ResolvedCall {
            binding: Arc::clone(binding),
            plugin: Arc::clone(plugin),
            tool: Arc::clone(tool),
            delegation: Arc::clone(&session.delegation),
        };
        match resolved.decide(Question::List, effort)? {
            // What a role permits is known to the bot; its scopes are judged with the parameters at hand.
            Decision::Deny(denial) if denial.status == Status::PermissionDenied => denied = Some((denial, resolved)),
            Decision::Deny(_) | Decision::Allow => candidates.push(resolved),
        }
    }
    if candidates.is_empty() {
        return Err(denied.map_or_else(unknown, |(denial, resolved)| {
            Unresolved::Denied(Box::new(denial), Some(Box::new(resolved)))
        }));
    }
    choose(call, &mut candidates).map_err(|refusal| Unresolved::Input(refusal, candidates.pop().map(Box::new)))
}

/// The one of `candidates` that the call means: the only one, or the one whose resource it names.
fn choose(call: &IncomingCall, candidates: &mut Vec<ResolvedCall>) -> Result<ResolvedCall, Refusal> {
    let names = |candidates: &[ResolvedCall]| -> String {
        let quoted = candidates.iter().map(|candidate| format!("`{}`", candidate.binding.resource.row.name));
        quoted.collect::<Vec<_>>().join(", ")
    };
    let misnamed =
        |message: String| Box::new(invalid_params(&[InputError { path: format!("/{RESOURCE_PARAM}"), message }]));
    match call.params.get(RESOURCE_PARAM) {
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
                    "`{}` is available through {} resources; name one of {}, or its id as resource_id",
                    call.tool,
                    candidates.len(),
                    names(candidates)
                )))
            }
        },
    }
}

/// The schema with the parameter that says which of several resources is meant.
pub fn with_resource(mut schema: Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    if names.len() < 2 {
        return schema;
    }
    let parameter = json!({"type": "string", "enum": names, "description": "The resource to use"});
    // Both are of these kinds where they are present: the schema was compiled when the plugin was loaded.
    if let Value::Object(properties) = schema.entry("properties").or_insert_with(|| json!({})) {
        properties.insert(RESOURCE_PARAM.to_owned(), parameter);
    }
    if let Value::Array(required) = schema.entry("required").or_insert_with(|| json!([])) {
        required.push(json!(RESOURCE_PARAM));
    }
    schema
}

/// What would become of a call, without running it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// What the caller would read.
    pub message: Option<String>,
    pub rule: Option<String>,
    /// For whoever could change the rules.
    pub reason: Option<String>,
    pub smallest_change: Option<String>,
}

/// Judges a call by the same functions that would run it.
pub fn check(session: &Session, call: &IncomingCall, effort: &Effort) -> Result<Verdict, Overrun> {
    let resolved = match find(session, call, effort) {
        Ok(resolved) => resolved,
        Err(Unresolved::Denied(denial, _)) => return Ok(Verdict::denied(*denial)),
        Err(Unresolved::Input(outcome, _)) => return Ok(Verdict::unfit(*outcome)),
        Err(Unresolved::Overrun(overrun)) => return Err(overrun),
    };
    let verdict = match resolved.checked_params(call, effort) {
        Err(Unjudged::Refused(outcome)) => Verdict::unfit(*outcome),
        Err(Unjudged::Overrun(overrun)) => return Err(overrun),
        Ok(params) => match resolved.decide(Question::Call(&params), effort)? {
            Decision::Allow => Verdict { allowed: true, ..Verdict::default() },
            Decision::Deny(denial) => Verdict::denied(call.language.of_denial(denial, &resolved.plugin.locales)),
        },
    };
    Ok(verdict.redacted(resolved.binding.resource.credential_source().redactor()))
}

impl Verdict {
    fn denied(denial: Denial) -> Verdict {
        Verdict {
            allowed: false,
            message: Some(denial.message),
            rule: Some(denial.rule),
            reason: Some(denial.reason),
            smallest_change: Some(denial.smallest_change),
        }
    }

    /// The same without the secrets of the resource, which a caller may have put into the parameters.
    fn redacted(self, redactor: &Redactor) -> Verdict {
        let redact = |text: Option<String>| text.map(|text| redactor.redact_text(text));
        Verdict {
            message: redact(self.message),
            reason: redact(self.reason),
            smallest_change: redact(self.smallest_change),
            ..self
        }
    }

    /// Parameters that are at fault: no rule of the bot stands in the way.
    fn unfit(outcome: CallOutcome) -> Verdict {
        let reason = Some("the parameters do not satisfy the tool's input_schema".to_owned());
        Verdict { allowed: false, message: outcome.message, rule: outcome.rule, reason, smallest_change: None }
    }
}

/// The longest text of parameters, through every door (plugin-contract).
pub const PARAMS_BYTES_MAX: usize = 1 << 20;
/// Their deepest nesting, through every door: that of results and manifests.
pub const PARAMS_DEPTH_MAX: usize = 64;

/// Refuses parameters that are too long or too deep.
pub fn check_size(params: &Value) -> Result<(), Vec<InputError>> {
    let text = serde_json::to_vec(params).expect("a JSON value has a text");
    let bytes = text.len();
    let message = if bytes > PARAMS_BYTES_MAX {
        format!("the parameters have {bytes} bytes; at most {PARAMS_BYTES_MAX} are allowed")
    } else if json_depth(&text) > PARAMS_DEPTH_MAX {
        format!("nested more than {PARAMS_DEPTH_MAX} levels deep")
    } else {
        return Ok(());
    };
    Err(vec![InputError { path: String::new(), message }])
}

/// The parameters as the tool's schema wants them, or what is wrong with them.
pub fn check_params(
    tool: &Tool,
    params: &Value,
    effort: &Effort,
) -> Result<Result<Map<String, Value>, Vec<InputError>>, Overrun> {
    pay_for(params, effort)?;
    if let Err(faults) = check_size(params) {
        return Ok(Err(faults));
    }
    let mut params = params.clone();
    if let Value::Object(params) = &mut params {
        params.shift_remove(RESOURCE_PARAM);
    }
    tool.input.check(params, effort)
}

/// The answer to parameters that fail the schema: each fault with its JSON pointer.
pub fn invalid_params(faults: &[InputError]) -> CallOutcome {
    let listed: Vec<String> = faults
        .iter()
        .map(|fault| match fault.path.as_str() {
            "" => fault.message.clone(),
            path => format!("{path}: {}", fault.message),
        })
        .collect();
    CallOutcome::error(Code::InvalidParams, format!("Invalid parameters: {}", listed.join("; "))).by_rule("input")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_one_limit_of_depth() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(check_size(&nested(64)), Ok(()));
        let faults = check_size(&nested(65)).unwrap_err();
        assert_eq!(invalid_params(&faults).message.unwrap(), "Invalid parameters: nested more than 64 levels deep");
    }

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
