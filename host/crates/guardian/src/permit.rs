//! The permit, without which the executor does not run a call.
//!
//! Only the functions of this module create permits. A permit can be used once and owns the parameters that were
//! checked, so that only the allowed call can run.

use monstrum_types::{
    ApprovalId, BindingId, BotId, Digest, Effort, ObjectParams, Overrun, PluginName, RequestId, ResourceId, ToolName,
    WorkspaceId,
};
use serde_json::{Map, Value};

use crate::consent::{self, CallContext, Consent};
use crate::decide::{Decision, Question, Subject, decide_within};
use crate::denial::Denial;
use crate::gates::Asked;
use crate::policy::ToolRules;

/// The call to authorize.
#[derive(Clone)]
pub struct CallFacts {
    /// The id of the call.
    pub request_id: RequestId,
    /// The workspace of the call.
    pub workspace: WorkspaceId,
    /// The bot that makes the call; `None` for calls by infrastructure.
    pub bot: Option<BotId>,
    /// The binding that grants the tool to the bot.
    pub binding: Option<BindingId>,
    /// The resource that the call acts on.
    pub resource: Option<ResourceId>,
    /// The plugin to run.
    pub plugin: PluginName,
    /// The digest of the plugin's component, from whose manifest the rules were compiled; `None` for built-in tools.
    pub plugin_digest: Option<Digest>,
    /// The parameters, which satisfy the tool's `input_schema` and include its defaults.
    pub params: ObjectParams,
}

/// Permission to run one call, once. A permit cannot be cloned, deserialized, or constructed outside this module.
pub struct Permit {
    facts: CallFacts,
    tool: String,
    operation: String,
    scope_json: String,
    consent: Option<Consent>,
}

/// The result of judging a call that no rule denies.
#[expect(
    clippy::large_enum_variant,
    reason = "most calls are permitted, and a box would cost each of them an allocation"
)]
#[derive(Debug)]
pub enum Authorized {
    /// The call may run.
    Permitted(Permit),
    /// Gates require that a person approves the call.
    Asks(Box<PendingPermit>),
}

/// A call that may run if a person approves it.
#[derive(Debug)]
pub struct PendingPermit {
    permit: Permit,
    asked: Asked,
}

/// Decides whether a call may run and, if so, creates its permit.
///
/// # Errors
/// The outer error means that the budget of steps was exhausted before the decision was known. The inner error is the
/// denial, which the response and the audit contain.
pub fn authorize(
    subject: &Subject<'_>,
    call: CallFacts,
    effort: &Effort,
) -> Result<Result<Authorized, Denial>, Overrun> {
    let asked = match decide_within(subject, Question::Call(call.params.members()), effort)? {
        Decision::Deny(denial) => return Ok(Err(denial)),
        Decision::Ask(asked) => Some(asked),
        Decision::Allow => None,
    };
    let permit = Permit {
        tool: subject.tool.tool.to_string(),
        operation: subject.tool.operation.clone(),
        scope_json: scope_json(subject),
        facts: call,
        consent: None,
    };
    Ok(Ok(match asked {
        None => Authorized::Permitted(permit),
        Some(asked) => Authorized::Asks(Box::new(PendingPermit { permit, asked })),
    }))
}

impl PendingPermit {
    /// Returns what the gates require.
    #[must_use]
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// Returns the call that waits for a consent.
    #[must_use]
    pub fn call(&self) -> &CallFacts {
        &self.permit.facts
    }

    /// Returns the name of the tool.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.permit.tool
    }

    /// Returns the operation of the tool.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.permit.operation
    }

    /// Returns the digest that identifies the call for its approval.
    #[must_use]
    pub fn digest(&self, context: &CallContext<'_>) -> Digest {
        consent::digest(&self.permit.tool, &self.permit.operation, &self.permit.facts, context)
    }

    /// Creates the permit if the consent is to exactly this call.
    ///
    /// # Errors
    /// Returns the pending permit if the consent is to another call.
    pub fn with_consent(
        mut self: Box<Self>,
        consent: &Consent,
        context: &CallContext<'_>,
    ) -> Result<Permit, Box<PendingPermit>> {
        if self.digest(context) != consent.digest {
            return Err(self);
        }
        self.permit.consent = Some(consent.clone());
        Ok(self.permit)
    }
}

/// Creates a permit for a function of a plugin, which infrastructure calls with a root key. The call involves no bot
/// and no roles, because the check of the key has already authorized the caller. Returns `None` for calls of a bot.
#[must_use]
pub fn authorize_function(resource_type: &str, function: &str, call: CallFacts) -> Option<Permit> {
    let name = format!("platform.{resource_type}.{function}");
    let is_a_bots = call.bot.is_some() || call.binding.is_some();
    (!is_a_bots).then(|| Permit {
        tool: name.clone(),
        operation: name,
        scope_json: "[]".to_owned(),
        facts: call,
        consent: None,
    })
}

/// Creates a permit for the credential check that a manifest declares. The permit allows exactly the declared tool with
/// exactly the declared parameters, on one resource. Returns `None` for all other calls.
#[must_use]
pub fn authorize_check(
    tool: &ToolRules,
    declared: (&ToolName, &Map<String, Value>),
    call: CallFacts,
) -> Option<Permit> {
    let is_a_bots = call.bot.is_some() || call.binding.is_some();
    let is_declared = tool.tool == *declared.0 && call.params.members() == declared.1 && call.resource.is_some();
    (is_declared && !is_a_bots).then(|| Permit {
        tool: tool.tool.to_string(),
        operation: tool.operation.clone(),
        scope_json: "[]".to_owned(),
        facts: call,
        consent: None,
    })
}

impl Permit {
    /// Returns the approval that permits the call, if a gate required one. The call must use it up before it runs.
    #[must_use]
    pub fn approval(&self) -> Option<ApprovalId> {
        self.consent.as_ref().map(|consent| consent.approval)
    }

    /// Returns the consent that permits the call, if a gate required one.
    #[must_use]
    pub fn consent(&self) -> Option<&Consent> {
        self.consent.as_ref()
    }

    /// Returns the id of the call.
    #[must_use]
    pub fn request_id(&self) -> RequestId {
        self.facts.request_id
    }

    /// Returns the workspace of the call.
    #[must_use]
    pub fn workspace(&self) -> WorkspaceId {
        self.facts.workspace
    }

    /// Returns the bot that makes the call, if any.
    #[must_use]
    pub fn bot(&self) -> Option<BotId> {
        self.facts.bot
    }

    /// Returns the binding that grants the tool to the bot.
    #[must_use]
    pub fn binding(&self) -> Option<BindingId> {
        self.facts.binding
    }

    /// Returns the resource that the call acts on.
    #[must_use]
    pub fn resource(&self) -> Option<ResourceId> {
        self.facts.resource
    }

    /// Returns the plugin to run.
    #[must_use]
    pub fn plugin(&self) -> &PluginName {
        &self.facts.plugin
    }

    /// Returns the digest of the component to run, if there is one.
    #[must_use]
    pub fn plugin_digest(&self) -> Option<&Digest> {
        self.facts.plugin_digest.as_ref()
    }

    /// Returns the checked parameters.
    #[must_use]
    pub fn params(&self) -> &Map<String, Value> {
        self.facts.params.members()
    }

    /// Returns the checked parameters as JSON text.
    #[must_use]
    pub fn params_text(&self) -> &str {
        self.facts.params.text()
    }

    /// Returns the name of the tool or function.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Returns the operation of the tool or function.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Returns the constraint sets that applied, as a JSON array of objects: role, binding, then each link of the
    /// delegation. Empty sets are omitted.
    #[must_use]
    pub fn scope_json(&self) -> String {
        self.scope_json.clone()
    }
}

/// Omits the parameters, which only the plugin may see.
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
