//! The host functions that a component may call during one call: requests to upstreams, child calls, and the sandbox.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::{CredentialSource, Egress, Redactor, RedactorCell, Scope, SearchBudget};
use monstrum_runtime::HostCalls;
use monstrum_types::{
    Code, Failure, FailureCode, HttpRequest, HttpResponse, JsonText, SandboxEntry, SandboxOutput, ToolFailure,
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::audit::Entry;
use crate::call::built_in::sandbox::import::SandboxImport;
use crate::call::child_calls::ChildCalls;
use crate::call::permitted::Target;
use crate::call_types::call_secrets::CallSecrets;
use crate::credentials::ResourceCredential;
use crate::meters;
use crate::policy::Resource;

/// The maximum time for which a request may continue after the deadline of its call. Because of this margin, the call
/// itself times out first if an upstream never answers, and the error names this time-out.
const REQUEST_MARGIN: Duration = Duration::from_secs(1);

/// The upstreams that a call may reach, and the credential for its requests.
enum Reach {
    Resource(Arc<Resource>),
    /// The hosts that the manifest lists under `egress`, for a call without a resource. The requests of such a call
    /// carry no credential.
    NoResource(Box<(Scope, ResourceCredential)>),
}

impl Reach {
    fn of(target: &Target) -> Reach {
        match &target.resource {
            Some(resource) => Reach::Resource(Arc::clone(resource)),
            None => Reach::NoResource(Box::new((target.plugin.bare_scope(), ResourceCredential::nothing()))),
        }
    }

    fn scope(&self) -> &Scope {
        match self {
            Reach::Resource(resource) => &resource.scope,
            Reach::NoResource(bare) => &bare.0,
        }
    }

    fn credential(&self) -> &ResourceCredential {
        match self {
            Reach::Resource(resource) => resource.credential_source(),
            Reach::NoResource(bare) => &bare.1,
        }
    }
}

/// The host functions of one call.
pub(super) struct HostFunctions {
    egress: Egress,
    reach: Reach,
    entry: Arc<Entry>,
    secrets: Arc<CallSecrets>,
    /// The child calls of the plugin, or `None` if the plugin may not call tools.
    child_calls: Option<ChildCalls>,
    until: Instant,
    /// The redactor with every secret that the call has used.
    redactor: RedactorCell,
    failures: Mutex<Vec<FailureCode>>,
}

impl HostFunctions {
    /// Creates the host functions for a call of `target`. The deadline of the call is `until`, and its fuel limit is
    /// `fuel`.
    pub(super) fn new(
        egress: Egress,
        target: &Target,
        (entry, secrets): (&Arc<Entry>, &Arc<CallSecrets>),
        child_calls: Option<ChildCalls>,
        until: Instant,
        fuel: u64,
    ) -> HostFunctions {
        let reach = Reach::of(target);
        HostFunctions {
            egress,
            entry: Arc::clone(entry),
            secrets: Arc::clone(secrets),
            child_calls,
            until: until + REQUEST_MARGIN,
            redactor: RedactorCell::new(reach.credential().redactor()).with_budget(SearchBudget::of_fuel(fuel)),
            reach,
            failures: Mutex::default(),
        }
    }

    /// Returns the redactor for all secrets that the call has used so far.
    pub(super) fn redactor(&self) -> Arc<Redactor> {
        self.redactor.current()
    }

    /// Returns the fuel consumed by searches for secrets in requests and responses.
    pub(super) fn search_fuel_used(&self) -> u64 {
        self.redactor.budget().fuel_used()
    }

    /// Returns the code for an error that the plugin reports: [`Code::Unauthenticated`] if the last failed request had
    /// no usable credential, [`Code::Upstream`] if that request failed because of DNS, the connection, TLS or the
    /// protocol, and [`Code::Plugin`] otherwise.
    pub(super) fn cause(&self) -> Code {
        let failures = self.failures.lock();
        match failures.last() {
            Some(FailureCode::Unauthenticated) => Code::Unauthenticated,
            Some(FailureCode::Dns | FailureCode::Connect | FailureCode::Tls | FailureCode::Protocol) => Code::Upstream,
            _ => Code::Plugin,
        }
    }

    /// Waits until the row `started` of this call is on disk, so that the row precedes every command and every access
    /// to a file. Then returns the sandbox.
    async fn sandbox(&self) -> Result<SandboxImport, Failure> {
        let child_calls = self.child_calls.as_ref();
        let unavailable = || Failure::unsent(FailureCode::Unavailable, "a call without a bot has no sandbox");
        let import = SandboxImport::of(child_calls.ok_or_else(unavailable)?);
        self.record_start().await?;
        self.secrets.redact_with(self.redactor.current());
        Ok(import)
    }

    /// Waits until the row `started` is on disk. The call must not send data from this host before the row is on disk.
    async fn record_start(&self) -> Result<(), Failure> {
        let recorded = self.entry.started().await;
        recorded.map_err(|_| Failure::unsent(FailureCode::Unavailable, "the audit cannot be written"))
    }
}

/// Returns the class of the response's status, or the code of the failure, for the metrics.
fn egress_outcome(sent: &Result<HttpResponse, Failure>) -> &'static str {
    match sent {
        Ok(response) => match response.status / 100 {
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            5 => "5xx",
            _ => "other",
        },
        Err(failure) => failure.code.as_str(),
    }
}

impl HostCalls for HostFunctions {
    fn http_send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        async move {
            let credential = self.reach.credential();
            let began = Instant::now();
            let before_sending = || self.record_start().boxed();
            let sent = self
                .egress
                .send(self.reach.scope(), credential, &self.redactor, request, self.until, &before_sending)
                .instrument(tracing::debug_span!("egress"))
                .await;
            meters::egress(egress_outcome(&sent), began.elapsed());
            if let Err(failure) = &sent {
                let mut failures = self.failures.lock();
                failures.push(failure.code);
            }
            sent
        }
        .boxed()
    }

    fn tool_call(&self, tool: String, params: String) -> BoxFuture<'_, Result<JsonText, ToolFailure>> {
        async move {
            let Some(child_calls) = &self.child_calls else {
                return Err(ToolFailure::error(Code::Unavailable, "this plugin may not call tools"));
            };
            child_calls.count()?;
            // The row `started` of this call must be on disk before the child call has effects outside the host.
            self.record_start().await.map_err(|failure| ToolFailure::error(Code::Unavailable, failure.message))?;
            self.secrets.redact_with(self.redactor.current());
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

    fn credential_status(&self) -> String {
        self.reach.credential().status().as_str().to_owned()
    }
}
