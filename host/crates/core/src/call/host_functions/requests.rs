//! The requests that one call sends to upstreams.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use monstrum_egress::{CredentialSource as _, CredentialState, Egress, Redactor, RedactorCell, Scope, SearchBudget};
use monstrum_types::{Code, Failure, FailureCode, HttpRequest, HttpResponse};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::audit::Entry;
use crate::call::permitted::{Target, record_start};
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

/// Records at its drop that a request of a call had no answer, unless it was emptied before.
struct Unanswered<'a>(Option<&'a Entry>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        // Before the row `started` is on disk, nothing was sent.
        if let Some(entry) = self.0.filter(|entry| entry.has_started()) {
            entry.left_unanswered();
        }
    }
}

/// Returns whether a failed request did nothing at the upstream: it was not sent, or the upstream refused its credential.
fn is_answered(failure: &Failure) -> bool {
    !failure.sent || failure.code == FailureCode::Unauthenticated
}

/// The outbound requests of one call.
pub(super) struct Requests {
    egress: Egress,
    reach: Reach,
    entry: Arc<Entry>,
    until: Instant,
    /// The redactor with every secret that the call has used.
    redactor: RedactorCell,
    failures: Mutex<Vec<FailureCode>>,
}

impl Requests {
    /// Prepares the requests of a call of `target`, whose deadline is `until` and whose fuel limit is `fuel`.
    pub(super) fn new(egress: Egress, target: &Target, entry: Arc<Entry>, until: Instant, fuel: u64) -> Requests {
        let reach = Reach::of(target);
        Requests {
            egress,
            entry,
            until: until + REQUEST_MARGIN,
            redactor: RedactorCell::new(reach.credential().redactor()).with_budget(SearchBudget::of_fuel(fuel)),
            reach,
            failures: Mutex::default(),
        }
    }

    /// Sends one request. The row `started` of the call is on disk before the first byte leaves.
    pub(super) async fn send(&self, request: HttpRequest) -> Result<HttpResponse, Failure> {
        let began = Instant::now();
        // A request that is dropped while it runs has no answer either.
        let mut unanswered = Unanswered(Some(&self.entry));
        let before_sending = || record_start(&self.entry).boxed();
        let (scope, credential) = (self.reach.scope(), self.reach.credential());
        let sent = self
            .egress
            .send(scope, credential, &self.redactor, request, self.until, &before_sending)
            .instrument(tracing::debug_span!("egress"))
            .await;
        if sent.as_ref().err().is_none_or(is_answered) {
            unanswered.0 = None;
        }
        drop(unanswered);
        let outcome = sent.as_ref().map(|response| response.status).map_err(|failure| failure.code);
        meters::egress(meters::outcome_of_request(outcome), began.elapsed());
        if let Err(failure) = &sent {
            self.failures.lock().push(failure.code);
        }
        sent
    }

    /// Returns the redactor for all secrets that the call has used so far.
    pub(super) fn redactor(&self) -> Arc<Redactor> {
        self.redactor.current()
    }

    /// Returns the fuel consumed by searches for secrets in requests and responses.
    pub(super) fn search_fuel_used(&self) -> u64 {
        self.redactor.budget().fuel_used()
    }

    /// Returns the state of the credential of the call's resource.
    pub(super) fn credential_status(&self) -> CredentialState {
        self.reach.credential().status()
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
}
