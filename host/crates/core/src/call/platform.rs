//! Calls without a bot: platform functions of a plugin, which infrastructure calls with a root key, and checks of
//! credentials. Roles do not apply to these calls. Otherwise, these calls run like tool calls.

use std::sync::Arc;

use monstrum_guardian::{CallFacts, Permit, authorize_check, authorize_function};
use monstrum_types::{CallOutcome, Code, Effort, ObjectParams, Params, ResourceId, ResourceTypeId};
use serde_json::Value;

use crate::call::check::{check_params, check_size};
use crate::call::permitted::{PermittedCall, Target, TargetKind};
use crate::call_types::incoming::IncomingCall;
use crate::call_types::lineage::CallDigest;
use crate::call_types::refusal::{NotPermitted, Refusal};
use crate::checks::pay_for;
use crate::plugins::Plugin;
use crate::policy::{Policy, Resource, Snapshot};

/// Permits the call of a platform function without a resource, or with a resource of the plugin's type. Refuses the
/// call if the plugin does not have the function.
pub(super) fn judge_function(
    policy: &Policy,
    call: &IncomingCall,
    resource_type: &ResourceTypeId,
    function: &str,
    effort: &Effort,
) -> Result<PermittedCall, NotPermitted> {
    let snapshot = current(policy)?;
    let resource = call.resource().map(|id| resource(&snapshot, call, id)).transpose()?;
    let plugin =
        snapshot.resource_type(resource_type).ok_or_else(|| unavailable("no loaded plugin has this resource type"))?;
    let is_there = plugin.functions().contains(&function);
    let is_its_own = resource.as_ref().is_none_or(|resource| Arc::ptr_eq(&resource.plugin, plugin));
    if !is_there || !is_its_own {
        return Err(unavailable("the plugin has no such function, or the resource is not of its type").into());
    }
    pay_for(call.params().value(), effort)?;
    let Some(params) = call.params().object() else {
        return Err(Box::new(CallOutcome::error(Code::InvalidParams, "Invalid parameters: expected an object")).into());
    };
    check_size(call.params()).map_err(|faults| NotPermitted::invalid(&faults))?;
    let resource_type = plugin.manifest.resource_type.id.as_str();
    let permit = authorize_function(resource_type, function, facts(call, plugin, params));
    let permit = permit.ok_or_else(|| unavailable("a bot cannot call a platform function"))?;
    let target = Target { plugin: Arc::clone(plugin), resource, kind: TargetKind::Function(function.to_owned()) };
    Ok(permitted(call, permit, target, snapshot))
}

/// Permits only the credential check that the manifest of the resource's type declares.
pub(super) fn judge_check(
    policy: &Policy,
    call: &IncomingCall,
    effort: &Effort,
) -> Result<PermittedCall, NotPermitted> {
    let snapshot = current(policy)?;
    let id = call.resource().ok_or_else(|| unavailable("the resource does not exist"))?;
    let resource = resource(&snapshot, call, id)?;
    let plugin = Arc::clone(&resource.plugin);
    let declared = plugin.manifest.resource_type.credential_check.as_ref();
    let declared = declared.ok_or_else(|| unavailable("the resource type declares no credential check"))?;
    let tool = plugin.tools.iter().find(|tool| tool.manifest.name == declared.tool);
    let tool = Arc::clone(tool.ok_or_else(|| unavailable("the resource type declares no credential check"))?);
    // The defaults are filled in for both the declared and the received parameters, so that they can be compared.
    let filled =
        |params: &Params| check_params(&tool, params, effort)?.map_err(|faults| NotPermitted::invalid(&faults));
    let (params, wanted) = (filled(call.params())?, filled(&Params::new(Value::Object(declared.params.clone())))?);
    let permit = authorize_check(&tool.rules, (&declared.tool, wanted.members()), facts(call, &plugin, params));
    let permit =
        permit.ok_or_else(|| unavailable("the call is not the declared credential check, so it needs a bot"))?;
    let target = Target { plugin, resource: Some(resource), kind: TargetKind::CredentialCheck(tool) };
    Ok(permitted(call, permit, target, snapshot))
}

fn current(policy: &Policy) -> Result<Arc<Snapshot>, Refusal> {
    if policy.is_stale() {
        return Err(unavailable("the permissions could not be loaded; try again"));
    }
    Ok(policy.load())
}

fn resource(snapshot: &Snapshot, call: &IncomingCall, id: ResourceId) -> Result<Arc<Resource>, Refusal> {
    let resource = snapshot.resource(call.workspace(), id).ok_or_else(|| unavailable("the resource does not exist"));
    Ok(Arc::clone(resource?))
}

fn permitted(call: &IncomingCall, permit: Permit, target: Target, judged_by: Arc<Snapshot>) -> PermittedCall {
    let digest = target.plugin.makes_calls().then(|| CallDigest::of(call.tool(), permit.params()));
    PermittedCall { permit, target, digest, judged_by }
}

fn facts(call: &IncomingCall, plugin: &Plugin, params: ObjectParams) -> CallFacts {
    CallFacts {
        request_id: call.request_id(),
        workspace: call.workspace(),
        bot: call.bot(),
        binding: None,
        resource: call.resource(),
        plugin: plugin.name.clone(),
        plugin_digest: plugin.digest().cloned(),
        params,
    }
}

fn unavailable(message: &str) -> Refusal {
    Box::new(CallOutcome::error(Code::Unavailable, message))
}
