//! Child calls: the calls that a running call makes.
//!
//! A child call passes through the whole pipeline, and the audit has a row for each child call. The policy in force at
//! the start of the child call applies. The additional checks of child calls are in `check.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_guardian::PatternSet;
use monstrum_manifest::json_depth;
use monstrum_store::BindingRow;
use monstrum_types::{AwaitedApproval, BotId, CallOutcome, Code, Effort, JsonText, Overrun, ToolFailure};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::call::check::{PARAMS_BYTES_MAX, PARAMS_DEPTH_MAX};
use crate::call::permitted::Pipeline;
use crate::call::session::Session;
use crate::call_types::call_secrets::SharedRedactors;
use crate::call_types::incoming::{Attachments, IncomingCall};
use crate::call_types::lineage::{CallDigest, Lineage, MadeBy};
use crate::call_types::links::{DelegationLink, Link};
use crate::checks::{Asker, Unchecked};
use crate::policy::Binding;

/// The maximum number of child calls below one root call. The limit exists because each call writes to the audit.
pub const CALLS_MAX: u32 = 100;
/// Tool names that plugins pass are truncated to this length. No tool has a longer name, and the audit needs only the
/// beginning.
const NAME_BYTES_MAX: usize = 256;

/// The child calls of one running call.
pub struct ChildCalls {
    pipeline: Pipeline,
    /// The running call, without its parameters.
    parent: IncomingCall,
    /// The bot that makes the calls.
    bot: BotId,
    lineage: Lineage,
    /// The approval that the last refused call waits for.
    awaited: Arc<Mutex<Option<AwaitedApproval>>>,
}

impl ChildCalls {
    /// Prepares the child calls of the plugin that `parent` runs through `binding`. The deadline of the child calls is
    /// `until`. The plugin may call the tools that match `calls`.
    pub fn of_plugin(
        pipeline: &Pipeline,
        parent: &IncomingCall,
        digest: Option<CallDigest>,
        until: Instant,
        binding: &Binding,
        calls: PatternSet,
    ) -> ChildCalls {
        let made_by = MadeBy::Plugin { binding: binding.row.id, calls };
        ChildCalls::new(pipeline, parent, digest, until, binding, made_by)
    }

    /// Prepares the child calls that the bot `to` makes on behalf of the bot of `parent`, through `binding`. The
    /// deadline of the child calls is `until`.
    pub fn of_bot(
        pipeline: &Pipeline,
        parent: &IncomingCall,
        digest: Option<CallDigest>,
        until: Instant,
        binding: &Binding,
        to: BotId,
    ) -> ChildCalls {
        let mut calls = ChildCalls::new(pipeline, parent, digest, until, binding, MadeBy::Bot);
        let BindingRow { id, bot_id: from, delegate, .. } = binding.row.unpacked();
        calls.lineage.links.push(Link::Delegation(DelegationLink { binding: id, from, to, delegate }));
        calls.bot = to;
        calls
    }

    fn new(
        pipeline: &Pipeline,
        parent: &IncomingCall,
        digest: Option<CallDigest>,
        until: Instant,
        binding: &Binding,
        made_by: MadeBy,
    ) -> ChildCalls {
        let above = parent.lineage().map(Arc::as_ref);
        let of_parent = (parent.request_id(), parent.links());
        let mut lineage = Lineage::of_children(above, of_parent, until, made_by);
        if let Some(shared) = parent.shared_redactors() {
            lineage.secrets = shared;
        }
        lineage.ancestors.extend(digest);
        lineage.held.push(binding.row.id);
        let (pipeline, parent) = (pipeline.clone(), parent.without_params());
        ChildCalls { pipeline, parent, bot: binding.row.bot_id, lineage, awaited: Arc::default() }
    }

    /// Prepares the calls that the same plugin makes through the import `sandbox`. The depth and the limit of these
    /// calls are the same as for the other child calls of the plugin.
    pub fn of_sandbox_import(&self) -> ChildCalls {
        let mut lineage = self.lineage.clone();
        lineage.made_by = MadeBy::SandboxImport;
        let (pipeline, parent, awaited) = (self.pipeline.clone(), self.parent.clone(), Arc::clone(&self.awaited));
        ChildCalls { pipeline, parent, bot: self.bot, lineage, awaited }
    }

    /// Makes these calls set `unanswered` if they end and their effect is unknown.
    #[must_use]
    pub fn with_unanswered(mut self, unanswered: Arc<AtomicBool>) -> ChildCalls {
        self.lineage.unanswered = unanswered;
        self
    }

    /// Returns the bot that makes the calls.
    pub fn bot(&self) -> BotId {
        self.bot
    }

    /// Returns the links under which the bot makes the calls.
    pub fn links(&self) -> &[Link] {
        &self.lineage.links
    }

    /// Returns the redactors of the root call and of all its descendants.
    pub fn secrets(&self) -> &SharedRedactors {
        &self.lineage.secrets
    }

    /// Returns the number of events that the root call and all calls below it have emitted, which they share.
    pub fn emitted(&self) -> Arc<AtomicU32> {
        self.lineage.emitted()
    }

    /// Counts one more call. Returns an error if the call exceeds the limit. The caller must then neither make nor
    /// record the call.
    pub fn count(&self) -> Result<(), ToolFailure> {
        if self.lineage.count() < CALLS_MAX {
            return Ok(());
        }
        Err(ToolFailure::error(Code::Limit, format!("the root call has reached its limit of {CALLS_MAX} child calls")))
    }

    /// Opens a session of the bot that makes the calls. Returns `None` if the policy cannot be read or the bot was
    /// deleted.
    pub fn session(&self) -> Option<Session> {
        let Pipeline { policy, clock, .. } = &self.pipeline;
        Session::open(policy, clock.now(), &self.next(String::new(), Value::Null)).ok()
    }

    /// Runs a check on behalf of the call. A small check runs in place.
    pub async fn check<T: Send + 'static>(
        &self,
        check: impl Fn(&Effort) -> Result<T, Overrun> + Send + 'static,
    ) -> Result<T, Unchecked> {
        let workspace = self.parent.workspace();
        let share = self.pipeline.policy.load().share_of_host(workspace);
        let asker = Asker { workspace, bot: Some(self.bot), share, until: self.lineage.until };
        self.pipeline.checks.run(asker, check).await
    }

    /// Calls a tool for a plugin. `params` is the JSON text from the plugin.
    pub async fn call(&self, mut tool: String, params: &str) -> Result<JsonText, ToolFailure> {
        tool.truncate(tool.floor_char_boundary(NAME_BYTES_MAX));
        answer(self.make(tool, parse(params)?).await?)
    }

    /// Runs a child call through the whole pipeline.
    pub fn make(&self, tool: String, params: Value) -> BoxFuture<'_, Result<CallOutcome, ToolFailure>> {
        self.make_with(tool, params, Attachments::default())
    }

    /// Runs a child call with attachments.
    pub fn make_with(
        &self,
        tool: String,
        params: Value,
        attachments: Attachments,
    ) -> BoxFuture<'_, Result<CallOutcome, ToolFailure>> {
        let call = self.next(tool, params).with_attachments(attachments);
        async move {
            let ran = Arc::clone(&self.pipeline.runs).run_child(call, &self.pipeline.children).await;
            // A call whose end could not be recorded may have had an effect.
            let outcome = ran.inspect_err(|_| self.lineage.unanswered.store(true, Ordering::Release))?;
            if let Some(approval) = &outcome.approval {
                *self.awaited.lock() = Some((**approval).clone());
            }
            Ok(outcome)
        }
        .boxed()
    }

    /// Returns the approval that a call of these waits for, if there is one. If the plugin fails, its caller needs this
    /// approval before it repeats the call.
    pub fn awaited(&self) -> Option<AwaitedApproval> {
        self.awaited.lock().clone()
    }

    fn next(&self, tool: String, params: Value) -> IncomingCall {
        self.parent.child(self.bot, Arc::new(self.lineage.clone()), tool, params)
    }
}

fn parse(params: &str) -> Result<Value, ToolFailure> {
    let invalid = |what: &str| ToolFailure::error(Code::InvalidParams, format!("Invalid parameters: {what}"));
    if params.len() > PARAMS_BYTES_MAX {
        return Err(invalid("the size exceeds 1 MiB"));
    }
    // The depth is checked before parsing, so that deep nesting cannot exhaust the stack.
    if json_depth(params.as_bytes()) > PARAMS_DEPTH_MAX {
        return Err(invalid("nested more than 64 levels deep"));
    }
    serde_json::from_str(params).map_err(|_| invalid("expected JSON"))
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
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_json_of_bounded_size_and_depth() {
        assert_eq!(parse(r#"{"a": [1]}"#), Ok(json!({"a": [1]})));
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        let long = format!("\"{}\"", "x".repeat(PARAMS_BYTES_MAX));
        for (params, what) in [
            ("", "expected JSON"),
            ("{", "expected JSON"),
            (&deep, "nested more than 64 levels deep"),
            (&long, "the size exceeds 1 MiB"),
        ] {
            let failure = parse(params).unwrap_err();
            assert_eq!((failure.code, failure.message), (Code::InvalidParams, format!("Invalid parameters: {what}")));
        }
    }
}
