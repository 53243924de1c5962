//! Calls without a bot: functions of a plugin, which infrastructure code calls under a root key, and the check of a
//! credential that a type declares. There are no roles to ask; everything else is as in a call of a tool.

use std::sync::Arc;

use monstrum_guardian::{CallFacts, Permit, authorize_check, authorize_function};
use monstrum_types::{CallOutcome, Code, Effort, ResourceTypeId};
use serde_json::{Map, Value};

use crate::call::{IncomingCall, Refusal, Unjudged};
use crate::checks::pay_for;
use crate::plugins::Plugin;
use crate::policy::{Policy, Resource, Snapshot};
use crate::tools::{Job, What, check_params, check_size};

/// What a call asks for.
#[derive(Clone, Debug)]
pub enum Asks {
    /// A bot, a tool.
    Tool,
    /// A root key, a function of the plugin that serves this type.
    Function { resource_type: ResourceTypeId, function: String },
    /// An administrator, the check of the resource's credential.
    CredentialCheck,
}

/// The name under which the audit knows a function.
pub fn function_name(resource_type: &str, function: &str) -> String {
    format!("platform.{resource_type}.{function}")
}

/// Finds what is asked for, and permits it where it is neither more nor less than that.
pub(super) fn judge(
    policy: &Policy,
    call: &IncomingCall,
    effort: &Effort,
) -> Result<(Job, Permit, Arc<Snapshot>), Unjudged> {
    if policy.is_stale() {
        return Err(unavailable("the permissions could not be read; try again").into());
    }
    let snapshot = policy.load();
    let resource = match call.resource {
        None => None,
        Some(id) => {
            let resource =
                snapshot.resource(call.workspace, id).ok_or_else(|| unavailable("the resource is not there"));
            Some(Arc::clone(resource?))
        }
    };
    let (job, permit) = match &call.asks {
        Asks::Function { resource_type, function } => {
            let plugin =
                snapshot.resource_type(resource_type).ok_or_else(|| unavailable("no plugin serves the type"))?;
            job_of_function(call, plugin, resource, function, effort)?
        }
        Asks::CredentialCheck => {
            job_of_check(call, resource.ok_or_else(|| unavailable("the resource is not there"))?, effort)?
        }
        Asks::Tool => return Err(unavailable("a tool is a bot's to call").into()),
    };
    Ok((job, permit, snapshot))
}

fn job_of_function(
    call: &IncomingCall,
    plugin: &Arc<Plugin>,
    resource: Option<Arc<Resource>>,
    function: &str,
    effort: &Effort,
) -> Result<(Job, Permit), Unjudged> {
    let is_there = plugin.component.as_ref().is_some_and(|one| one.functions().iter().any(|name| name == function));
    let is_its_own = resource.as_ref().is_none_or(|resource| Arc::ptr_eq(&resource.plugin, plugin));
    if !is_there || !is_its_own {
        return Err(unavailable("the plugin has no such function, or the resource is not of its type").into());
    }
    pay_for(&call.params, effort)?;
    let Value::Object(params) = call.params.clone() else {
        return Err(Box::new(CallOutcome::error(Code::InvalidParams, "Invalid parameters: expected an object")).into());
    };
    check_size(&call.params).map_err(|faults| Unjudged::invalid(&faults))?;
    let resource_type = plugin.manifest.resource_type.id.as_str();
    let permit = authorize_function(resource_type, function, facts(call, plugin, params));
    let permit = permit.ok_or_else(|| unavailable("a function is not a bot's to call"))?;
    let what = What::Function(function.to_owned());
    Ok((Job { plugin: Arc::clone(plugin), resource, what }, permit))
}

fn job_of_check(call: &IncomingCall, resource: Arc<Resource>, effort: &Effort) -> Result<(Job, Permit), Unjudged> {
    let plugin = Arc::clone(&resource.plugin);
    let declared = plugin.manifest.resource_type.credential_check.as_ref();
    let declared = declared.ok_or_else(|| unavailable("the type declares no check"))?;
    let tool = plugin.tools.iter().find(|tool| tool.manifest.name == declared.tool);
    let tool = Arc::clone(tool.ok_or_else(|| unavailable("the type declares no check"))?);
    // With their defaults, on both sides.
    let filled = |params: &Value| check_params(&tool, params, effort)?.map_err(|faults| Unjudged::invalid(&faults));
    let (params, wanted) = (filled(&call.params)?, filled(&Value::Object(declared.params.clone()))?);
    let permit = authorize_check(&tool.rules, (&declared.tool, &wanted), facts(call, &plugin, params));
    let permit = permit.ok_or_else(|| unavailable("only the declared check may be run this way"))?;
    Ok((Job { plugin, resource: Some(resource), what: What::Check(tool) }, permit))
}

fn facts(call: &IncomingCall, plugin: &Plugin, params: Map<String, Value>) -> CallFacts {
    CallFacts {
        request_id: call.request_id,
        workspace: call.workspace,
        bot: call.bot,
        binding: None,
        resource: call.resource,
        plugin: plugin.name.clone(),
        plugin_digest: plugin.digest().cloned(),
        params,
    }
}

fn unavailable(message: &str) -> Refusal {
    Box::new(CallOutcome::error(Code::Unavailable, message))
}
