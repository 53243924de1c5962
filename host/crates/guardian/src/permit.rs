//! The permit: the only way to the executor.
//!
//! It is made by [`authorize`] and by nothing else, can be used once, and owns the parameters that were judged,
//! so that what runs is what was allowed.

use monstrum_types::{
    BindingId, BotId, Digest, Effort, Overrun, PluginName, RequestId, ResourceId, ToolName, WorkspaceId,
};
use serde_json::{Map, Value};

use crate::decide::{Decision, Question, Subject, decide_within};
use crate::denial::Denial;
use crate::policy::ToolRules;

/// The call that is judged.
#[derive(Clone)]
pub struct CallFacts {
    /// The call.
    pub request_id: RequestId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// The bot that acts; none where infrastructure does.
    pub bot: Option<BotId>,
    /// The binding that lets it.
    pub binding: Option<BindingId>,
    /// The resource it acts on.
    pub resource: Option<ResourceId>,
    /// The plugin that will run.
    pub plugin: PluginName,
    /// The plugin's component, whose manifest the rules were compiled from; none for what the platform serves itself.
    pub plugin_digest: Option<Digest>,
    /// The parameters, valid against the tool's input_schema, defaults filled in.
    pub params: Map<String, Value>,
}

/// One call that may run, once. It is neither copied, nor built from parts, nor read from outside.
pub struct Permit {
    facts: CallFacts,
    tool: String,
    operation: String,
    scope_json: String,
}

/// Judges a call and, if it may run, makes its permit.
///
/// # Errors
/// The budget of steps is used up, so there is no permit. The inner error is the refusal, ready to be answered and recorded.
pub fn authorize(subject: &Subject<'_>, call: CallFacts, effort: &Effort) -> Result<Result<Permit, Denial>, Overrun> {
    if let Decision::Deny(denial) = decide_within(subject, Question::Call(&call.params), effort)? {
        return Ok(Err(denial));
    }
    Ok(Ok(Permit {
        tool: subject.tool.tool.to_string(),
        operation: subject.tool.operation.clone(),
        scope_json: scope_json(subject),
        facts: call,
    }))
}

/// Permits a function of a plugin, which infrastructure code calls under a root key. There is no bot and there are no
/// roles: whoever has let the caller in has judged. A bot's call is never permitted this way.
#[must_use]
pub fn authorize_function(resource_type: &str, function: &str, call: CallFacts) -> Option<Permit> {
    let name = format!("platform.{resource_type}.{function}");
    let is_a_bots = call.bot.is_some() || call.binding.is_some();
    (!is_a_bots).then(|| Permit { tool: name.clone(), operation: name, scope_json: "[]".to_owned(), facts: call })
}

/// Permits the check of a credential that a manifest declares: this very tool with these very parameters, on one resource,
/// and nothing else.
#[must_use]
pub fn authorize_check(
    tool: &ToolRules,
    declared: (&ToolName, &Map<String, Value>),
    call: CallFacts,
) -> Option<Permit> {
    let is_a_bots = call.bot.is_some() || call.binding.is_some();
    let is_declared = tool.tool == *declared.0 && call.params == *declared.1 && call.resource.is_some();
    (is_declared && !is_a_bots).then(|| Permit {
        tool: tool.tool.to_string(),
        operation: tool.operation.clone(),
        scope_json: "[]".to_owned(),
        facts: call,
    })
}

impl Permit {
    /// The call.
    #[must_use]
    pub fn request_id(&self) -> RequestId {
        self.facts.request_id
    }

    /// The call's workspace.
    #[must_use]
    pub fn workspace(&self) -> WorkspaceId {
        self.facts.workspace
    }

    /// The bot that acts, if one does.
    #[must_use]
    pub fn bot(&self) -> Option<BotId> {
        self.facts.bot
    }

    /// The binding that lets it.
    #[must_use]
    pub fn binding(&self) -> Option<BindingId> {
        self.facts.binding
    }

    /// The resource it acts on.
    #[must_use]
    pub fn resource(&self) -> Option<ResourceId> {
        self.facts.resource
    }

    /// The plugin that may run.
    #[must_use]
    pub fn plugin(&self) -> &PluginName {
        &self.facts.plugin
    }

    /// The component that may run, where there is one.
    #[must_use]
    pub fn plugin_digest(&self) -> Option<&Digest> {
        self.facts.plugin_digest.as_ref()
    }

    /// The parameters that were judged.
    #[must_use]
    pub fn params(&self) -> &Map<String, Value> {
        &self.facts.params
    }

    /// The tool or function.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Its operation.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The sets of constraints that applied, as a JSON array of objects: role, binding, then each link of the delegation,
    /// without those that constrain nothing.
    #[must_use]
    pub fn scope_json(&self) -> String {
        self.scope_json.clone()
    }
}

/// Without the parameters: they are nobody's business but the plugin's.
impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit")
            .field("request_id", &self.facts.request_id)
            .field("bot", &self.facts.bot)
            .field("tool", &self.tool)
            .finish_non_exhaustive()
    }
}

fn scope_json(subject: &Subject<'_>) -> String {
    let own = subject.binding.sets.iter().map(|(_, set)| &**set);
    let all = own.chain(subject.delegation.iter().map(|link| &link.set));
    let texts: Vec<&str> = all.filter(|set| !set.constraints.is_empty()).map(|set| set.json.as_str()).collect();
    format!("[{}]", texts.join(","))
}
