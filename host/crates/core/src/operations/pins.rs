//! The tools of resources that come from outside: lists them, and records the decisions of admins.

use monstrum_api::pins::{
    ApprovedDefinition, Discovery, DiscoveryResult, EarlierDecision, PinDecision, PinDecisions, PinnedTool, PinnedTools,
};
use monstrum_store::{ResourceRow, ResourceToolRow};
use monstrum_types::{DiscoveryStatus, ResourceId, ResourceTypeId};

use super::change::Change;
use super::resources::resource;
use super::{Admin, InputErrors, OperationError, Operator};
use crate::app::App;
use crate::mcp::DiscoveryError;
use crate::pins::{self, Choice, Refusal, TOOLS_MAX, Verdict};
use crate::plugins::{built_in, remote};

/// The reason why no decision was recorded.
#[derive(Debug)]
pub enum Undecided {
    /// The tools are no longer those that the admin has read. The message says which, and the tools are the current ones.
    Conflict(String, Vec<PinnedTool>),
    Operation(OperationError),
}

impl From<OperationError> for Undecided {
    fn from(error: OperationError) -> Self {
        Undecided::Operation(error)
    }
}

/// Lists the tools of a resource that come from its server or agent, with the decisions about them.
pub async fn list(app: &App, caller: &Operator, id: ResourceId) -> Result<PinnedTools, OperationError> {
    let row = resource(app, caller, id).await?;
    has_remote_tools(app, &row.resource_type)?;
    shown(app, &row).await
}

/// Returns the resource if its tools come from outside.
pub async fn decidable(app: &App, caller: &Admin, id: ResourceId) -> Result<ResourceRow, OperationError> {
    let row = resource(app, caller, id).await?;
    has_remote_tools(app, &row.resource_type)?;
    Ok(row)
}

/// Records decisions about declared definitions, all or none. Each decision names the digest of the definition that the
/// admin has read.
pub async fn decide(
    app: &App,
    caller: &Admin,
    row: ResourceRow,
    verdict: Verdict,
    input: PinDecisions,
) -> Result<PinnedTools, Undecided> {
    match record(app, caller, &row, verdict, input).await {
        Ok(()) => Ok(shown(app, &row).await?),
        Err(OperationError::Conflict(message)) => Err(Undecided::Conflict(message, shown(app, &row).await?.items)),
        Err(error) => Err(error.into()),
    }
}

async fn record(
    app: &App,
    caller: &Admin,
    row: &ResourceRow,
    verdict: Verdict,
    input: PinDecisions,
) -> Result<(), OperationError> {
    let known: Vec<_> =
        input.tools.iter().map(|decision| (decision.original_name.clone(), decision.was.clone())).collect();
    let choices = choices(input.tools)?;
    let (workspace, id) = (row.workspace_id, row.id);
    let before = app.store.resource_tools(workspace, id).await?;
    // The rows are written only if they are still those that are compared here.
    if let Some(index) = known.iter().position(|(name, was)| !is_known(&before, name, was.as_ref())) {
        return Err(OperationError::conflict(format!(
            "entry {index}: another request has decided about the tool; nothing was decided; read the tools again"
        )));
    }
    let first = app.store.first_discovery(workspace, id).await?;
    let writes = verdict.writes(&choices, before, first, (caller.key, app.clock.now())).map_err(refused)?;
    let (before, after) = pins::recorded(&row.name, &writes);
    let what = match verdict {
        Verdict::Approve => "resource.approve_tools",
        Verdict::Reject => "resource.reject_tools",
    };
    let change = Change::new(what, &id).of_resource(id).from(&before).to(&after);
    change.update(app, caller, app.store.write_resource_tools(workspace, id, &writes)).await
}

/// Returns whether the earlier decision about a tool is the one that a caller knows.
fn is_known(rows: &[ResourceToolRow], name: &str, was: Option<&EarlierDecision>) -> bool {
    let Some(was) = was else { return true };
    let row = rows.iter().find(|row| remote::written_out(&row.original_name) == name);
    let approved = row.and_then(|row| row.approved_digest.as_ref().map(|digest| (digest.to_string(), &row.effect)));
    match (&was.approved_digest, approved) {
        (None, approved) => approved.is_none(),
        (Some(_), None) => false,
        (Some(known), Some((digest, effect))) => {
            *known == digest && was.effect.as_ref().is_none_or(|was| was == effect)
        }
    }
}

/// Returns the last discovery of a resource, or `None` if the tools of its type do not come from outside.
pub(super) async fn discovery(app: &App, row: &ResourceRow) -> Result<Option<Discovery>, OperationError> {
    if has_remote_tools(app, &row.resource_type).is_err() {
        return Ok(None);
    }
    let never = Discovery {
        status: DiscoveryStatus::Never,
        last_discovery_at: None,
        error: None,
        server: None,
        protocol: None,
    };
    let stored = app.pins.discovery(row).await?;
    Ok(Some(stored.map_or(never, |stored| Discovery {
        status: stored.status,
        last_discovery_at: stored.last_discovery_at,
        error: stored.error,
        server: stored.server.map(|server| remote::value_written_out(&server)),
        protocol: stored.protocol,
    })))
}

/// Discovers the tools of an MCP server. Returns the result, even if the discovery has failed.
pub async fn discover(app: &App, caller: &Operator, id: ResourceId) -> Result<DiscoveryResult, OperationError> {
    let row = resource(app, caller, id).await?;
    if row.resource_type.as_str() != built_in::MCP {
        return Err(OperationError::conflict(format!(
            "the tools of a resource of type `{}` do not come from an MCP server",
            row.resource_type
        )));
    }
    let discovered = match discover_once(app, caller, id).await {
        // A refresh of the credential by the discovery itself is a change too.
        Err(DiscoveryError::Changed) => discover_once(app, caller, id).await,
        ended => ended,
    };
    discovered.map_err(|error| match error {
        DiscoveryError::Claimed | DiscoveryError::Changed => OperationError::Conflict(format!("{error}; try again")),
        DiscoveryError::Busy => OperationError::Busy(error.to_string()),
        DiscoveryError::Stopped => OperationError::Unavailable(error.to_string()),
        DiscoveryError::Store(error) => error.into(),
    })?;
    let discovery = discovery(app, &row).await?.ok_or_else(|| OperationError::not_found("discovery"))?;
    Ok(DiscoveryResult { discovery })
}

async fn discover_once(app: &App, caller: &Operator, id: ResourceId) -> Result<(), DiscoveryError> {
    // A resource that was deleted meanwhile counts as changed.
    let served = app.policy.load().resource(caller.workspace, id).cloned();
    app.mcp.discover(&served.ok_or(DiscoveryError::Changed)?).await
}

fn has_remote_tools(app: &App, resource_type: &ResourceTypeId) -> Result<(), OperationError> {
    let snapshot = app.policy.load();
    if snapshot.resource_type(resource_type).is_some_and(|plugin| plugin.has_remote_tools()) {
        return Ok(());
    }
    Err(OperationError::conflict(format!(
        "the tools of a resource of type `{resource_type}` do not come from a server or an agent"
    )))
}

fn choices(decisions: Vec<PinDecision>) -> Result<Vec<Choice>, OperationError> {
    let mut errors = InputErrors::default();
    if decisions.is_empty() {
        errors.add("/tools", "must not be empty");
    }
    if decisions.len() > TOOLS_MAX {
        errors.add("/tools", format!("must have at most {TOOLS_MAX} entries"));
        errors.check()?;
        return Ok(Vec::new());
    }
    let mut choices = Vec::with_capacity(decisions.len());
    for (index, PinDecision { original_name, digest, effect, was: _ }) in decisions.into_iter().enumerate() {
        match digest.parse() {
            Ok(digest) => choices.push(Choice { original_name, digest, effect: effect.unwrap_or_default() }),
            Err(_) => errors.add(format!("/tools/{index}/digest"), "expected the `digest` of the tool"),
        }
    }
    errors.check()?;
    Ok(choices)
}

fn refused(refusal: Refusal) -> OperationError {
    match refusal {
        Refusal::Unknown(index) => {
            OperationError::invalid_at(format!("/tools/{index}/original_name"), "the resource has no such tool")
        }
        Refusal::Twice(index) => {
            OperationError::invalid_at(format!("/tools/{index}/original_name"), "an earlier entry names the same tool")
        }
        Refusal::Invalid(index, reason) => OperationError::invalid_at(
            format!("/tools/{index}"),
            format!("the definition cannot be approved: {}", remote::written_out(&reason)),
        ),
        Refusal::OtherDigest(index, digest) => OperationError::conflict(format!(
            "entry {index}: the tool is now declared with the definition {digest}; nothing was decided; read the tools \
             again"
        )),
        Refusal::Gone(index) => OperationError::conflict(format!(
            "entry {index}: the tool is no longer declared, so it cannot be approved; nothing was decided"
        )),
    }
}

async fn shown(app: &App, row: &ResourceRow) -> Result<PinnedTools, OperationError> {
    let items = app.pins.of(row).await?.into_iter().map(view).collect();
    Ok(PinnedTools { items })
}

/// Converts a tool to the form of the API, in which a person sees every character.
pub fn view(tool: pins::PinnedTool) -> PinnedTool {
    PinnedTool {
        name: tool.name,
        original_name: remote::written_out(&tool.original_name),
        status: tool.status,
        reason: tool.reason.map(|reason| remote::written_out(&reason)),
        digest: tool.digest.to_string(),
        effect: tool.effect,
        hint: tool.hint,
        definition: remote::object_written_out(&tool.definition),
        approved: tool.approved.map(|approved| ApprovedDefinition {
            digest: approved.digest.to_string(),
            definition: remote::object_written_out(&approved.definition),
            by: approved.by,
            at: approved.at,
        }),
    }
}
