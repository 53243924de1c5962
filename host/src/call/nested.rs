//! Calls under a call: where each stands, what it was made by, and how far this may go.
//!
//! A nested call is a call like any other, with a row of its own in the audit, judged by the policy of its own moment. What
//! is added here only refuses: the grants by which a plugin may call, and the limits on depth, number and repetition.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::Redactor;
use monstrum_guardian::{Denial, PatternSet};
use monstrum_manifest::json_depth;
use monstrum_runtime::DelegateConstraints;
use monstrum_store::BindingRow;
use monstrum_types::{BindingId, BotId, CallOutcome, Code, Effort, JsonText, Overrun, RequestId, ToolFailure};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::auditor::AuditUnavailable;
use crate::authorize::refuse;
use crate::call::{Attached, Calls, IncomingCall, Refusal, Unjudged};
use crate::checks::Unchecked;
use crate::plugins::built_in;
use crate::policy::Binding;
use crate::session::Session;
use crate::tools::{PARAMS_BYTES_MAX, PARAMS_DEPTH_MAX};

/// Calls that one call may stand under (plugin-contract): deeper than any composition that a person would draw.
pub const DEPTH_MAX: u8 = 8;
/// Calls under one root (plugin-contract): each is a row in the audit, and work that nobody waits for but the root.
pub const CALLS_MAX: u32 = 100;
/// No tool has a longer name; the start of what is no name is enough for the audit.
const NAME_BYTES_MAX: usize = 256;

/// Where a call stands under the call that made it.
#[derive(Clone, Debug)]
pub struct Lineage {
    pub parent: RequestId,
    /// 1 for a call that a root has made.
    pub depth: u8,
    /// When the call that made it ends.
    pub until: Instant,
    /// Bindings in which an ancestor has its place.
    pub held: Vec<BindingId>,
    /// The secrets that the calls under this root have met.
    pub secrets: Secrets,
    /// Who acts on behalf of whom, outermost first.
    pub links: Vec<Link>,
    made_by: MadeBy,
    ancestors: Vec<Identity>,
    made: Arc<AtomicU32>,
}

/// By what right a call was made by another.
#[derive(Clone, Debug)]
enum MadeBy {
    /// A plugin's own wish: its manifest and the binding through which it runs must both name the tool.
    Plugin { binding: BindingId, calls: PatternSet },
    /// A bot that may call another one, which the last link says.
    Bot,
    /// A plugin that imports `sandbox`: its manifest has the capability, and the switch of the bot grants the tools.
    SandboxImport,
}

/// One bot acts on behalf of another.
#[derive(Clone, Debug, Serialize)]
pub struct Link {
    #[serde(rename = "binding_id")]
    pub binding: BindingId,
    pub from: BotId,
    pub to: BotId,
    /// The constraints as they were when the call began. It is judged by what they are.
    pub delegate: Option<Value>,
}

/// Constraints over this are recorded by their digest.
const DELEGATE_BYTES_MAX: usize = 4 << 10;

impl Link {
    fn recorded(&self) -> Value {
        let mut link = self.clone();
        let text = self.delegate.as_ref().map(Value::to_string).unwrap_or_default();
        if text.len() > DELEGATE_BYTES_MAX {
            link.delegate = Some(json!({"digest": format!("sha256:{}", hex::encode(Sha256::digest(text)))}));
        }
        json!(link)
    }
}

/// What a call is recognised by in its own chain: the tool and its parameters, however they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity([u8; 32]);

impl Identity {
    /// The identity of a call of `tool`. `params` have their defaults filled in.
    pub fn of(tool: &str, params: &Map<String, Value>) -> Identity {
        let mut canonical = format!("{tool}\n");
        write_object(params, &mut canonical);
        Identity(Sha256::digest(canonical).into())
    }
}

/// JSON with sorted keys, and numbers written in one way whatever way they came.
fn write(value: &Value, text: &mut String) {
    match value {
        Value::Array(elements) => {
            text.push('[');
            for element in elements {
                write(element, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(fields) => write_object(fields, text),
        Value::Number(number) => text.push_str(&match number.as_f64() {
            // What a double holds exactly is the same number with and without a point.
            Some(double) if double.fract() == 0.0 && double.abs() < 9.0e15 => format!("{}", double + 0.0),
            _ => number.to_string(),
        }),
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
    }
}

fn write_object(fields: &Map<String, Value>, text: &mut String) {
    let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    text.push('{');
    for (key, value) in sorted {
        text.push_str(&Value::from(key.as_str()).to_string());
        text.push(':');
        write(value, text);
        text.push(',');
    }
    text.push('}');
}

/// The redactors of all calls under one root. What one call has met may come out of another only in pieces that no
/// redactor of its own knows, so each answer goes through all of them.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Mutex<Vec<Arc<Redactor>>>>);

impl Secrets {
    /// Adds the secrets of one more call.
    pub fn add(&self, redactor: &Arc<Redactor>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|known| Arc::ptr_eq(known, redactor)) {
            known.push(Arc::clone(redactor));
        }
    }

    /// Those of every call so far.
    pub fn all(&self) -> Vec<Arc<Redactor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Lineage {
    /// The links as the audit keeps them; `None` where the bot acts for itself.
    pub fn delegation(&self) -> Option<String> {
        let links: Vec<Value> = self.links.iter().map(Link::recorded).collect();
        (!links.is_empty()).then(|| Value::from(links).to_string())
    }

    /// The constraints of the nearest link, for the plugin.
    pub fn delegate(&self) -> Option<DelegateConstraints> {
        let delegation = self.links.last()?.delegate.clone().unwrap_or_default();
        let list = delegation.get("allowed_tools").cloned().and_then(|list| serde_json::from_value(list).ok());
        let scopes =
            delegation.get("scope_constraints").filter(|scopes| scopes.as_object().is_some_and(|map| !map.is_empty()));
        Some(DelegateConstraints { allowed_tools: list, scope_constraints: scopes.map(Value::to_string) })
    }

    /// Whether the call may be made at all by what made it, in the words of a tool that does not exist.
    pub fn check(&self, session: &Session, call: &IncomingCall, effort: &Effort) -> Result<(), Unjudged> {
        if self.depth > DEPTH_MAX {
            return Err(limit(format!("calls of tools are nested {DEPTH_MAX} deep at most")).into());
        }
        match &self.made_by {
            MadeBy::Bot => {}
            MadeBy::SandboxImport => {
                if !built_in::SANDBOX_TOOLS.contains(&call.tool.as_str()) {
                    return Err(hidden(call, "executor.capabilities", "the import leads to the sandbox alone").into());
                }
            }
            MadeBy::Plugin { binding, calls } => {
                if !calls.matches_within(&call.tool, effort)? {
                    let reason = "the calling plugin's manifest does not name the tool";
                    return Err(hidden(call, "executor.calls", reason).into());
                }
                // By the policy of this moment, not of the one when the calling call began.
                let caller = session.bindings().find(|present| present.row.id == *binding);
                let is_allowed = caller.map(|caller| caller.allows_call(&call.tool, effort)).transpose()?;
                if is_allowed != Some(true) {
                    let reason = "the binding of the calling plugin does not name the tool";
                    return Err(hidden(call, "binding.allow_calls", reason).into());
                }
            }
        }
        Ok(())
    }

    /// Whether a plugin has made the call by importing `sandbox`.
    pub fn is_of_the_sandbox_import(&self) -> bool {
        matches!(self.made_by, MadeBy::SandboxImport)
    }

    /// Whether no call above is this very one.
    pub fn check_new(&self, identity: Identity) -> Result<(), Refusal> {
        if self.ancestors.contains(&identity) {
            return Err(limit("the same call is already under way above this one".to_owned()));
        }
        Ok(())
    }
}

fn limit(message: String) -> Refusal {
    Box::new(CallOutcome::error(Code::Limit, message).by_rule("nesting"))
}

fn hidden(call: &IncomingCall, rule: &str, reason: &str) -> Refusal {
    let (rule, reason) = (rule.to_owned(), reason.to_owned());
    refuse(Denial { rule, reason, ..Denial::unknown_tool(&call.tool) })
}

/// What a permitted call needs to make calls of its own.
#[derive(Clone)]
pub struct Below {
    pub calls: Arc<Calls>,
    /// Outlived by the call.
    pub children: TaskTracker,
    /// `None` where nothing of the call could make another one.
    pub identity: Option<Identity>,
}

/// The calls that one running call makes.
pub struct Nesting {
    below: Below,
    parent: IncomingCall,
    child: Lineage,
}

impl Nesting {
    /// For `parent`, which ends at `until` and whose plugin may call what `calls` names. `binding` is the one through which
    /// it runs.
    pub fn of_plugin(
        below: &Below,
        parent: &IncomingCall,
        until: Instant,
        binding: BindingId,
        calls: PatternSet,
    ) -> Nesting {
        Nesting::new(below, parent, until, binding, MadeBy::Plugin { binding, calls })
    }

    /// For `parent`, by which its bot has `to` act on its behalf through `binding`.
    pub fn of_bot(below: &Below, parent: &IncomingCall, until: Instant, binding: &Binding, to: BotId) -> Nesting {
        let BindingRow { id, bot_id: from, delegate, .. } = &binding.row;
        let mut nesting = Nesting::new(below, parent, until, *id, MadeBy::Bot);
        nesting.child.links.push(Link { binding: *id, from: *from, to, delegate: delegate.clone() });
        nesting.parent.bot = Some(to);
        nesting
    }

    fn new(below: &Below, parent: &IncomingCall, until: Instant, binding: BindingId, made_by: MadeBy) -> Nesting {
        let above = parent.under.as_deref();
        let mut ancestors = above.map(|above| above.ancestors.clone()).unwrap_or_default();
        ancestors.extend(below.identity);
        let mut held = above.map(|above| above.held.clone()).unwrap_or_default();
        held.push(binding);
        let child = Lineage {
            parent: parent.request_id,
            depth: above.map_or(0, |above| above.depth) + 1,
            until,
            held,
            secrets: above.map(|above| above.secrets.clone()).unwrap_or_default(),
            links: above.map(|above| above.links.clone()).unwrap_or_default(),
            made_by,
            ancestors,
            made: above.map(|above| Arc::clone(&above.made)).unwrap_or_default(),
        };
        Nesting { below: below.clone(), parent: parent.without_params(), child }
    }

    /// The same for what the plugin does by importing `sandbox`: as deep, and counted together.
    pub fn of_sandbox_import(&self) -> Nesting {
        let child = Lineage { made_by: MadeBy::SandboxImport, ..self.child.clone() };
        Nesting { below: self.below.clone(), parent: self.parent.clone(), child }
    }

    /// The secrets of all calls under the root.
    pub fn secrets(&self) -> &Secrets {
        &self.child.secrets
    }

    /// Counts one more call. One too many is none: it is not made, and not recorded.
    pub fn count(&self) -> Result<(), ToolFailure> {
        if self.child.made.fetch_add(1, Ordering::Relaxed) < CALLS_MAX {
            return Ok(());
        }
        Err(ToolFailure::error(Code::Limit, format!("{CALLS_MAX} calls have been made under one, which is the limit")))
    }

    /// What is in force for whoever makes the calls. `None` where that cannot be read, or the bot is gone.
    pub fn session(&self) -> Option<Session> {
        let calls = &self.below.calls;
        Session::open(&calls.policy, calls.clock.now(), &self.next(String::new(), Value::Null)).ok()
    }

    /// Runs a check on behalf of the call, in place if it needs little.
    pub async fn check<T: Send + 'static>(
        &self,
        check: impl Fn(&Effort) -> Result<T, Overrun> + Send + 'static,
    ) -> Result<T, Unchecked> {
        let calls = &self.below.calls;
        calls.checks.run(calls.asker(&self.next(String::new(), Value::Null)), check).await
    }

    /// Calls a tool for a plugin: `params` is whatever it has written.
    pub async fn call(&self, mut tool: String, params: &str) -> Result<JsonText, ToolFailure> {
        tool.truncate(tool.floor_char_boundary(NAME_BYTES_MAX));
        answer(self.make(tool, parse(params)?).await?)
    }

    /// Makes a call through the whole pipeline; how it ended. Boxed, for a call may hold another of its kind.
    pub fn make(&self, tool: String, params: Value) -> BoxFuture<'_, Result<CallOutcome, ToolFailure>> {
        self.make_with(tool, params, Attached::default())
    }

    /// The same for a call with something attached.
    pub fn make_with(
        &self,
        tool: String,
        params: Value,
        attached: Attached,
    ) -> BoxFuture<'_, Result<CallOutcome, ToolFailure>> {
        let call = IncomingCall { attached, ..self.next(tool, params) };
        let made = self.below.calls.run_below(call, &self.below.children);
        let unavailable =
            |_: AuditUnavailable| ToolFailure::error(Code::Unavailable, "the audit cannot be written at present");
        async move { made.await.map(|answer| answer.outcome).map_err(unavailable) }.boxed()
    }

    fn next(&self, tool: String, params: Value) -> IncomingCall {
        let parent = &self.parent;
        IncomingCall {
            request_id: RequestId::new(),
            tool,
            params,
            task_id: Some(parent.task_id.clone().unwrap_or_else(|| parent.request_id.to_string())),
            resource: None,
            under: Some(Arc::new(self.child.clone())),
            attached: Attached::default(),
            ..parent.clone()
        }
    }
}

fn parse(params: &str) -> Result<Value, ToolFailure> {
    let invalid = |what: &str| ToolFailure::error(Code::InvalidParams, format!("Invalid parameters: {what}"));
    if params.len() > PARAMS_BYTES_MAX {
        return Err(invalid("more than 1 MiB"));
    }
    // Before parsing, so that no nesting can exhaust a stack.
    if json_depth(params.as_bytes()) > PARAMS_DEPTH_MAX {
        return Err(invalid("nested more than 64 levels deep"));
    }
    serde_json::from_str(params).map_err(|_| invalid("not JSON"))
}

fn answer(outcome: CallOutcome) -> Result<JsonText, ToolFailure> {
    let CallOutcome { status, code, message, data, .. } = outcome;
    match (code, data) {
        (None, Some(data)) => Ok(data),
        (code, _) => {
            Err(ToolFailure { message: message.unwrap_or_default(), status, code: code.unwrap_or(Code::Unavailable) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_the_same_however_it_is_written() {
        let identity = |tool: &str, params: &str| Identity::of(tool, &serde_json::from_str(params).unwrap());
        let one = identity("t", r#"{"a": 1, "b": {"x": [1, 2.5, "s"], "y": null}}"#);
        for same in [
            r#"{"b": {"y": null, "x": [1.0, 2.50, "\u0073"]}, "a": 1e0}"#,
            r#"{"a": 10e-1, "b": {"x": [1, 25e-1, "s"], "y": null}}"#,
        ] {
            assert_eq!(identity("t", same), one, "{same}");
        }
        for other in [
            r#"{"a": "1", "b": {"x": [1, 2.5, "s"], "y": null}}"#,
            r#"{"a": 1, "b": {"x": [2.5, 1, "s"], "y": null}}"#,
            r#"{"a": 1, "b": {"x": [1, 2.5, "s"]}}"#,
            r#"{"a": 9007199254740993, "b": {"x": [1, 2.5, "s"], "y": null}}"#,
        ] {
            assert_ne!(identity("t", other), one, "{other}");
        }
        assert_ne!(identity("u", r#"{"a": 1}"#), identity("t", r#"{"a": 1}"#));
        assert_ne!(identity("t", r#"{"a": 9007199254740993}"#), identity("t", r#"{"a": 9007199254740992}"#));
        assert_eq!(identity("t", r#"{"a": -0.0}"#), identity("t", r#"{"a": 0}"#));
        // No name and no text can pass for the structure around it.
        assert_ne!(identity("t", r#"{"a":1,"b":2}"#), identity("t", r#"{"a\":1,\"b":2}"#));
        assert_ne!(identity("t", "{}"), Identity::of("t\n{}", &Map::new()));
    }

    #[test]
    fn parameters_are_json_of_bounded_size_and_depth() {
        assert_eq!(parse(r#"{"a": [1]}"#), Ok(json!({"a": [1]})));
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        let long = format!("\"{}\"", "x".repeat(PARAMS_BYTES_MAX));
        for (params, what) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            (&deep, "nested more than 64 levels deep"),
            (&long, "more than 1 MiB"),
        ] {
            let failure = parse(params).unwrap_err();
            assert_eq!((failure.code, failure.message), (Code::InvalidParams, format!("Invalid parameters: {what}")));
        }
    }
}
