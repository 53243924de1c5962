//! What a bot can do: every tool of its bindings with the rule that hides it, and the effect of a binding that is not
//! saved. Both use the functions of the Guardian that judge calls.

use std::sync::Arc;

use monstrum_api::access::{
    AccessList, NamedRole, Preview, PreviewInput, PreviewedTool, SampleCheck, ScopeAccess, ToolAccess, WasVisible,
};
use monstrum_api::tools::NamedResource;
use monstrum_guardian::{Decision, Question};
use monstrum_manifest::ScopeDimension;
use monstrum_types::{BindingId, BotId, Effort, Overrun};
use serde_json::{Value, json};

use super::bindings::input;
use super::tools::{check_decision, incoming, session, unchecked};
use super::{Caller, InputErrors, OperationError, Operator, rules};
use crate::app::App;
use crate::call::check;
use crate::call::resolve::{self, ResolvedCall};
use crate::call::session::Session;
use crate::plugins::Tool;
use crate::policy::pattern_limits::{compiled_bytes, lists_of_binding};
use crate::policy::{Binding, Bot};

/// The maximum number of sample calls of a preview.
const SAMPLES_MAX: usize = 20;

/// Lists every tool of the bot's bindings, also those that a rule hides.
pub async fn list(app: &App, caller: &Operator, bot: BotId) -> Result<AccessList, OperationError> {
    let session = opened(app, caller, bot)?;
    let answered = app.calls.ask(caller.workspace, bot, move |effort| {
        let mut items = Vec::new();
        for binding in &session.bot.bindings {
            let inactive = inactive(binding, &session);
            for (tool, judged) in judged(&session, binding, effort)? {
                items.push(access(binding, &tool, inactive, judged));
            }
        }
        items.sort_by(|a, b| (&a.resource.name, &a.tool).cmp(&(&b.resource.name, &b.tool)));
        Ok(AccessList { items })
    });
    answered.await.map_err(unchecked)
}

/// Shows what a binding would do if it were saved. The draft passes the checks of saving.
pub async fn preview(app: &App, caller: &Operator, bot: BotId, draft: PreviewInput) -> Result<Preview, OperationError> {
    let PreviewInput { binding_id, draft, samples } = draft;
    let session = opened(app, caller, bot)?;
    let before = match binding_id {
        None => None,
        Some(id) => {
            let row = app.store.binding(caller.workspace, bot, id).await?;
            Some(row.ok_or_else(|| OperationError::not_found("binding"))?)
        }
    };
    let mut row = input::row(draft, caller.workspace, bot, app.clock.now());
    let mut errors = InputErrors::default();
    if samples.len() > SAMPLES_MAX {
        errors.add("/samples", format!("at most {SAMPLES_MAX} calls can be checked"));
    }
    if let Some(before) = &before {
        if before.resource_id != row.resource_id {
            errors.add("/draft/resource_id", "the resource of a binding cannot be changed");
        }
        row.id = before.id;
    }
    errors.check()?;
    let scopes_are_new = before.as_ref().is_none_or(|before| before.scope_constraints != row.scope_constraints);
    input::check(app, &row, before.as_ref(), scopes_are_new).await.map_err(|error| error.under("/draft"))?;
    let replaced = before.as_ref().map_or(0, |before| compiled_bytes(lists_of_binding(before)));
    let _room = rules::pattern_room(app, caller.workspace, replaced, compiled_bytes(lists_of_binding(&row))).await?;
    let drafted = session.snapshot.drafted(&row);
    let drafted = drafted
        .ok_or_else(|| OperationError::invalid_at("/draft/resource_id", "the plugin of this resource is not loaded"))?;
    let mut calls = Vec::new();
    for sample in samples {
        let params = Value::Object(sample.params);
        calls.push(incoming(caller, bot, caller.request, sample.tool, params).with_resource(Some(row.resource_id)));
    }
    let replaced = before.map(|before| before.id);
    let answered = app.calls.ask(caller.workspace, bot, move |effort| {
        let was = session.bot.bindings.iter().find(|binding| Some(binding.row.id) == replaced);
        let after = session.with_binding(&drafted);
        let tools = previewed(&session, was, &after, &drafted, effort)?;
        let mut checks = Vec::new();
        for call in &calls {
            let predicted = check::predict(&after, call, effort)?;
            let decision = check_decision(&predicted);
            let check::Prediction { message, rule, reason, .. } = predicted;
            checks.push(SampleCheck { decision, message, rule, reason });
        }
        Ok(Preview { tools, checks })
    });
    answered.await.map_err(unchecked)
}

fn opened(app: &App, caller: &Caller, bot: BotId) -> Result<Session, OperationError> {
    let call = incoming(caller, bot, caller.request, String::new(), json!({}));
    session(app, &call)
}

/// Returns the rule by which a binding grants nothing now.
fn inactive(binding: &Binding, session: &Session) -> Option<&'static str> {
    match binding.is_active(session.now) {
        true => None,
        false if binding.row.enabled => Some("binding.expires_at"),
        false => Some("binding.enabled"),
    }
}

/// Whether a tool is visible: the rule that hides it, or whether gates may ask.
enum Judged {
    Visible { asks: bool },
    Hidden { rule: String },
}

/// Judges each tool of a binding.
fn judged(session: &Session, binding: &Arc<Binding>, effort: &Effort) -> Result<Vec<(ResolvedCall, Judged)>, Overrun> {
    let mut judged = Vec::new();
    for resolved in resolve::tools_of(session, binding, effort)? {
        let one = match resolved.decide(Question::List, effort)? {
            Decision::Deny(denial) => Judged::Hidden { rule: denial.rule },
            Decision::Allow | Decision::Ask(_) => Judged::Visible { asks: resolved.may_ask(effort)? },
        };
        judged.push((resolved, one));
    }
    Ok(judged)
}

fn access(binding: &Binding, resolved: &ResolvedCall, inactive: Option<&'static str>, judged: Judged) -> ToolAccess {
    let tool: &Tool = resolved.tool();
    let (visible, rule, asks) = match (inactive, judged) {
        (Some(rule), _) => (false, Some(rule.to_owned()), None),
        (None, Judged::Hidden { rule }) => (false, Some(rule), None),
        (None, Judged::Visible { asks }) => (true, None, Some(asks)),
    };
    let role = binding.role.as_ref().map(|role| NamedRole { id: role.row.id, name: role.row.name.clone() });
    let resource = NamedResource { id: binding.row.resource_id, name: binding.resource.row.name.clone() };
    ToolAccess {
        tool: tool.manifest.name.to_string(),
        operation: tool.manifest.operation.clone(),
        resource,
        binding_id: binding.row.id,
        role,
        switch: binding.resource.stored_id().is_none().then_some("use_agent_sandbox"),
        visible,
        rule,
        asks,
        scopes: scopes(binding, tool),
    }
}

/// Returns the scopes that restrict the calls of a tool.
fn scopes(binding: &Binding, tool: &Tool) -> Vec<ScopeAccess> {
    let row = binding.row.unpacked();
    let of_role = binding.role.as_ref().map(|role| ("role", &role.row.scope_constraints));
    let sets: Vec<(&str, &Value)> = of_role.into_iter().chain([("binding", &row.scope_constraints)]).collect();
    let applies = |dimension: &&ScopeDimension| {
        let filter = dimension.operation_filter.as_deref();
        filter.is_none_or(|filter| monstrum_guardian::match_glob(&tool.manifest.operation, filter))
    };
    let mut scopes = Vec::new();
    for dimension in binding.resource.dimensions().iter().filter(applies) {
        for (source, set) in &sets {
            let Some(entries) = set.get(&dimension.key).and_then(Value::as_array) else { continue };
            scopes.push(ScopeAccess {
                dimension: dimension.key.clone(),
                match_mode: json!(dimension.match_mode).as_str().unwrap_or_default().to_owned(),
                source: (*source).to_owned(),
                entries: entries.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            });
        }
    }
    scopes
}

/// Returns the tools of the drafted binding, each with its state under the binding that the draft replaces.
fn previewed(
    session: &Session,
    was: Option<&Arc<Binding>>,
    after: &Session,
    drafted: &Arc<Binding>,
    effort: &Effort,
) -> Result<Vec<PreviewedTool>, Overrun> {
    let state = |session: &Session, binding: &Binding, judged: Judged| match (inactive(binding, session), judged) {
        (Some(rule), _) => (false, Some(rule.to_owned())),
        (None, Judged::Hidden { rule }) => (false, Some(rule)),
        (None, Judged::Visible { .. }) => (true, None),
    };
    let mut before = Vec::new();
    if let Some(was) = was {
        for (resolved, one) in judged(session, was, effort)? {
            let (visible, rule) = state(session, was, one);
            before.push((resolved.tool().manifest.name.clone(), WasVisible { visible, rule }));
        }
    }
    let mut tools = Vec::new();
    for (resolved, one) in judged(after, drafted, effort)? {
        let manifest = &resolved.tool().manifest;
        let (visible, rule) = state(after, drafted, one);
        let at = before.iter().position(|(name, _)| *name == manifest.name);
        let was = at.map(|at| before.swap_remove(at).1);
        tools.push(PreviewedTool {
            name: manifest.name.to_string(),
            operation: manifest.operation.clone(),
            visible,
            rule,
            was,
        });
    }
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tools)
}

impl Session {
    /// Returns the session as it would be with this binding, which replaces a binding with the same id.
    fn with_binding(&self, drafted: &Arc<Binding>) -> Session {
        let id: BindingId = drafted.row.id;
        let mut bindings: Vec<Arc<Binding>> =
            self.bot.bindings.iter().filter(|binding| binding.row.id != id).map(Arc::clone).collect();
        bindings.push(Arc::clone(drafted));
        let (row, gates, dormant) = (self.bot.row.clone(), self.bot.gates.clone(), self.bot.dormant.clone());
        Session {
            snapshot: Arc::clone(&self.snapshot),
            bot: Arc::new(Bot { row, gates, bindings, dormant }),
            now: self.now,
            delegation: Arc::clone(&self.delegation),
            labels: self.labels.clone(),
        }
    }
}
