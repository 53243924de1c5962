//! The host functions that a component may call during one call: requests to upstreams, child calls, the sandbox, and events.

mod events;
mod requests;
mod task;

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::{Egress, Redactor};
use monstrum_runtime::HostCalls;
use monstrum_types::{
    AwaitedApproval, Code, Failure, FailureCode, HttpRequest, HttpResponse, JsonText, PluginSubscription, SandboxEntry,
    SandboxOutput, ToolFailure,
};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::audit::Entry;
use crate::call::built_in::sandbox::import::SandboxImport;
use crate::call::child_calls::ChildCalls;
use crate::call::permitted::{Target, record_start};
use crate::call_types::call_secrets::CallSecrets;
use requests::Requests;

pub(crate) use events::PluginEvents;

/// The host functions of one call.
pub(super) struct HostFunctions {
    requests: Arc<Requests>,
    entry: Arc<Entry>,
    secrets: Arc<CallSecrets>,
    /// The child calls of the plugin, or `None` if the plugin may not call tools.
    child_calls: Option<ChildCalls>,
    events: Arc<PluginEvents>,
    /// The tasks that end before the call.
    tasks: TaskTracker,
}

impl HostFunctions {
    /// Creates the host functions for a call of `target`. The deadline of the call is `until`, and its fuel limit is
    /// `fuel`. The call must wait for all `tasks` before it ends.
    pub(super) fn new(
        egress: Egress,
        target: &Target,
        (entry, secrets): (&Arc<Entry>, &Arc<CallSecrets>),
        (child_calls, events): (Option<ChildCalls>, PluginEvents),
        tasks: TaskTracker,
        (until, fuel): (Instant, u64),
    ) -> HostFunctions {
        let requests = Arc::new(Requests::new(egress, target, Arc::clone(entry), until, fuel));
        let (entry, secrets, events) = (Arc::clone(entry), Arc::clone(secrets), Arc::new(events));
        HostFunctions { requests, entry, secrets, child_calls, events, tasks }
    }

    /// Returns the redactor for all secrets that the call has used so far.
    pub(super) fn redactor(&self) -> Arc<Redactor> {
        self.requests.redactor()
    }

    /// Returns the fuel consumed by searches for secrets in requests and responses.
    pub(super) fn search_fuel_used(&self) -> u64 {
        self.requests.search_fuel_used()
    }

    /// Returns the code for an error that the plugin reports. The code depends on the last failed request.
    pub(super) fn cause(&self) -> Code {
        self.requests.cause()
    }

    /// Returns the approval that a child call of the plugin waits for, if there is one.
    pub(super) fn awaited(&self) -> Option<AwaitedApproval> {
        self.child_calls.as_ref()?.awaited()
    }

    /// Waits until the row `started` of this call is on disk, so that the row precedes every command and every access
    /// to a file. Then returns the sandbox.
    async fn sandbox(&self) -> Result<SandboxImport, Failure> {
        let child_calls = self.child_calls.as_ref();
        let unavailable = || Failure::unsent(FailureCode::Unavailable, "a call without a bot has no sandbox");
        let import = SandboxImport::of(child_calls.ok_or_else(unavailable)?);
        record_start(&self.entry).await?;
        self.secrets.redact_with(self.redactor());
        Ok(import)
    }
}

impl HostCalls for HostFunctions {
    fn http_send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        let requests = Arc::clone(&self.requests);
        task::run(&self.tasks, async move { requests.send(request).await }).boxed()
    }

    fn tool_call(&self, tool: String, params: String) -> BoxFuture<'_, Result<JsonText, ToolFailure>> {
        async move {
            let Some(child_calls) = &self.child_calls else {
                return Err(ToolFailure::error(Code::Unavailable, "this plugin may not call tools"));
            };
            child_calls.count()?;
            // The row `started` of this call must be on disk before the child call has effects outside the host.
            let recorded = record_start(&self.entry).await;
            recorded.map_err(|failure| ToolFailure::error(Code::Unavailable, failure.message))?;
            self.secrets.redact_with(self.redactor());
            child_calls.call(tool, &params).await
        }
        .boxed()
    }

    fn sandbox_exec(&self, command: String, timeout_s: Option<u32>) -> BoxFuture<'_, Result<SandboxOutput, Failure>> {
        async move { self.sandbox().await?.exec(command, timeout_s).await }.boxed()
    }

    fn sandbox_list(&self, path: String) -> BoxFuture<'_, Result<Vec<SandboxEntry>, Failure>> {
        async move { self.sandbox().await?.list(path).await }.boxed()
    }

    fn sandbox_read(&self, path: String) -> BoxFuture<'_, Result<Vec<u8>, Failure>> {
        async move {
            let read = self.sandbox().await?.read(path).await?;
            let redacted = self.secrets.redacted_bytes(read).await;
            redacted.map_err(|withheld| Failure::unsent(FailureCode::Limit, withheld.message()))
        }
        .boxed()
    }

    fn sandbox_write(&self, path: String, content: Vec<u8>) -> BoxFuture<'_, Result<(), Failure>> {
        async move { self.sandbox().await?.write(path, content).await }.boxed()
    }

    fn event_emit(&self, name: String, data: String) -> BoxFuture<'_, Result<String, Failure>> {
        // The data may contain what the call has received until now.
        self.secrets.redact_with(self.redactor());
        let events = Arc::clone(&self.events);
        task::run(&self.tasks, async move { events.emit(&name, &data).await }).boxed()
    }

    fn event_subscribe(&self, pattern: String, instruction: String) -> BoxFuture<'_, Result<String, Failure>> {
        let events = Arc::clone(&self.events);
        task::run(&self.tasks, async move { events.subscribe(pattern, instruction).await }).boxed()
    }

    fn event_unsubscribe(&self, id: String) -> BoxFuture<'_, Result<bool, Failure>> {
        let events = Arc::clone(&self.events);
        task::run(&self.tasks, async move { events.unsubscribe(&id).await }).boxed()
    }

    fn event_subscriptions(&self) -> Result<Vec<PluginSubscription>, Failure> {
        self.events.subscriptions()
    }

    fn credential_status(&self) -> String {
        self.requests.credential_status().as_str().to_owned()
    }
}
