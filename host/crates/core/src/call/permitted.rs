//! A call that the Guardian has permitted, and the data that the executor needs to run it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use monstrum_guardian::Permit;
use monstrum_manifest::ResultForm;
use monstrum_types::{CallOutcome, Clock, Code, Failure, FailureCode};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::approvals::Approvals;
use crate::audit::Entry;
use crate::call::resolve::ResolvedCall;
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::lineage::CallDigest;
use crate::call_types::runs_calls::RunsCalls;
use crate::checks::{Asker, CheckedOutput, Checks};
use crate::plugins::{Plugin, Tool, built_in};
use crate::policy::{Binding, Policy, Resource, Snapshot};

/// Waits until the row `started` is on disk, and asks the lease of the call's task. The call must not send data from this
/// host before.
pub async fn record_start(entry: &Entry) -> Result<(), Failure> {
    let recorded = entry.started().await;
    recorded.map_err(|_| Failure::unsent(FailureCode::Unavailable, "the audit cannot be written"))
}

/// A permitted call, which can run only once.
pub struct PermittedCall {
    pub permit: Permit,
    pub target: Target,
    /// The digest that identifies the call among its ancestors and descendants, or `None` if the call has no parent and
    /// cannot make child calls.
    pub digest: Option<CallDigest>,
    /// The policy snapshot by which the call was judged.
    pub judged_by: Arc<Snapshot>,
}

/// The parts of the pipeline that a call needs to make child calls.
#[derive(Clone)]
pub struct Pipeline {
    pub runs: Arc<dyn RunsCalls>,
    pub policy: Arc<Policy>,
    pub approvals: Arc<Approvals>,
    pub checks: Arc<Checks>,
    pub clock: Arc<dyn Clock>,
    /// The child calls of this call, and the tasks of its requests. All of them end before the call.
    pub children: TaskTracker,
}

/// The data that the executor needs, in addition to the permit, for one run of a permitted call.
#[derive(Clone, Copy)]
pub struct Execution<'a> {
    pub call: &'a IncomingCall,
    pub target: &'a Target,
    pub digest: Option<CallDigest>,
    pub pipeline: &'a Pipeline,
    pub entry: &'a Arc<Entry>,
    pub secrets: &'a Arc<CallSecrets>,
    /// The policy snapshot by which the call was judged.
    pub judged_by: &'a Arc<Snapshot>,
    pub passed: &'a Passed,
}

/// The checks that a call passes once, even if it is judged again afterwards.
#[derive(Default)]
pub struct Passed {
    rate: AtomicBool,
    charge: AtomicBool,
}

impl Passed {
    /// Returns whether the call counts against the rate limit of its binding now.
    pub fn enters_rate(&self) -> bool {
        !self.rate.swap(true, Ordering::Relaxed)
    }

    /// Returns whether the call is charged now.
    pub fn enters_charge(&self) -> bool {
        !self.charge.swap(true, Ordering::Relaxed)
    }
}

impl Execution<'_> {
    /// Returns whether the call runs a tool of the built-in type `sandbox`.
    pub fn is_of_sandbox(&self) -> bool {
        self.target.plugin.name.as_str() == built_in::SANDBOX
    }

    /// Returns whether the call waits for the answer of another bot. While it waits, it holds no room that the tasks of that
    /// bot may need.
    pub fn is_query(&self) -> bool {
        let [_, query, _] = built_in::BOT_FUNCTIONS;
        self.target.plugin.name.as_str() == built_in::BOT
            && match &self.target.kind {
                TargetKind::Tool(resolved) => resolved.tool().manifest.name.as_str() == built_in::QUERY,
                TargetKind::Function(name) => name == query,
                TargetKind::CredentialCheck(_) => false,
            }
    }

    /// Returns whether the call is a round with a model.
    pub fn is_round(&self) -> bool {
        self.target.plugin.name.as_str() == built_in::LLM
    }

    /// Checks the data of a result against the declarations of `tool`. The check ends at `until`.
    pub async fn checked(&self, tool: Option<&Arc<Tool>>, mut outcome: CallOutcome, until: Instant) -> CallOutcome {
        let Some((tool, result)) = tool.zip(outcome.data.as_ref()) else { return outcome };
        let form = tool.manifest.result;
        if tool.output.is_none() && form == ResultForm::Json {
            return outcome;
        }
        let (workspace, bot) = (self.call.workspace(), self.call.bot());
        let share = self.pipeline.policy.load().share_of_host(workspace);
        let asker = Asker { workspace, bot, share, until };
        match self.pipeline.checks.output(asker, form, tool.output.clone(), result.clone()).await {
            CheckedOutput::Matches => outcome,
            CheckedOutput::Mismatch => {
                outcome.output_mismatch = true;
                outcome
            }
            CheckedOutput::Invalid(fault) => {
                let source = if tool.remote.is_some() { "the tool" } else { "the plugin" };
                CallOutcome::error(Code::BadResult, format!("{source} returned invalid content: {fault}"))
            }
        }
    }
}

/// The part of a plugin that a permitted call runs, and its resource.
pub struct Target {
    pub plugin: Arc<Plugin>,
    /// The resource of the call, or `None` for a function that is called without a resource.
    pub resource: Option<Arc<Resource>>,
    pub kind: TargetKind,
}

/// The entry points of a plugin.
pub enum TargetKind {
    /// A tool that a bot calls.
    Tool(ResolvedCall),
    /// The tool that checks the credential of a resource.
    CredentialCheck(Arc<Tool>),
    /// A platform function, which infrastructure programs call.
    Function(String),
}

impl Target {
    /// Returns the target of a bot's call.
    pub fn of(resolved: ResolvedCall) -> Target {
        let resource = Some(Arc::clone(&resolved.binding.resource));
        Target { plugin: Arc::clone(&resolved.plugin), resource, kind: TargetKind::Tool(resolved) }
    }

    /// Returns the resolved call; `None` for a call without a bot.
    pub fn resolved(&self) -> Option<&ResolvedCall> {
        match &self.kind {
            TargetKind::Tool(resolved) => Some(resolved),
            TargetKind::CredentialCheck(_) | TargetKind::Function(_) => None,
        }
    }

    /// Returns the tool; `None` for a function.
    pub fn tool(&self) -> Option<&Arc<Tool>> {
        match &self.kind {
            TargetKind::Tool(resolved) => Some(resolved.shared_tool()),
            TargetKind::CredentialCheck(tool) => Some(tool),
            TargetKind::Function(_) => None,
        }
    }

    /// Returns the binding of the call; `None` for a call without a bot.
    pub fn binding(&self) -> Option<&Arc<Binding>> {
        self.resolved().map(|resolved| &resolved.binding)
    }
}
