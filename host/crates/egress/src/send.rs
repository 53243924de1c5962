//! The eight steps of an outbound request, in their required order.
//!
//! [`Egress::send`] returns the complete response. [`Egress::open`] returns after the head of the response, and the
//! caller reads the body while it arrives.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::url::Url;
use futures::future::BoxFuture;
use http::StatusCode;
use http::header::{ACCEPT_ENCODING, HeaderValue, USER_AGENT};
use monstrum_types::{Clock, Failure, FailureCode, HttpRequest, HttpResponse};
use tokio::time::{Instant, timeout, timeout_at};

use crate::client::{Clients, EgressOptions, Transport};
use crate::credential::{Credential, CredentialSource, CredentialState};
use crate::inject::{Outgoing, inject};
use crate::limits::{REDIRECTS_MAX, REFRESH_BEFORE_MS, REFRESH_WAIT_MAX};
use crate::names::Names;
use crate::policy::Scope;
use crate::redact::RedactorCell;
use crate::resolve::Resolve;
use crate::response::Received;
use crate::stream::StreamedResponse;
use crate::{addresses, client, headers, policy, redirect, scan, url};

/// The default User-Agent. Some upstreams reject requests without a User-Agent.
const AGENT: &str = concat!("monstrum/", env!("CARGO_PKG_VERSION"));

/// Sends outbound requests. This type is cheap to clone.
#[derive(Clone)]
pub struct Egress {
    inner: Arc<Inner>,
}

struct Inner {
    resolver: Arc<dyn Resolve>,
    names: Names,
    clients: Clients,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<StepObserver>>,
    response_body_bytes_max: usize,
    transport: Option<Arc<dyn Transport>>,
}

/// One step of a request. The order of the steps is guaranteed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Step 1: the URL and the headers are built and checked.
    Build,
    /// Step 2: the URL is checked against the allowed origins.
    CheckEgress,
    /// Step 3: the plugin's data is searched for secrets.
    Scan,
    /// Step 4: the name is resolved and the addresses are checked.
    Resolve,
    /// Step 5: the credential is added and the request is sent.
    Send,
    /// Step 6: a redirect is followed, starting at step 1.
    Redirect,
    /// Step 7: a rejected credential is refreshed, and the request is sent again.
    Refresh,
    /// Step 8: the size of the response is limited, headers that only the host needs are removed, and secrets are
    /// redacted.
    Respond,
}

/// A function that is called at the start of each step.
pub type StepObserver = dyn Fn(Step) + Send + Sync;

/// A function that is awaited once, before the first byte of a request is sent. It is not called if the request is
/// rejected earlier.
pub type BeforeSending<'a> = dyn Fn() -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'a;

impl Egress {
    /// Creates an egress with empty caches of names and clients, which are shared only with the clones of this egress.
    #[must_use]
    pub fn new(options: EgressOptions) -> Self {
        let clients = Clients::new(options.extra_roots);
        let EgressOptions { resolver, clock, observer, response_body_bytes_max, transport, .. } = options;
        let names = Names::default();
        let inner = Inner { resolver, names, clients, clock, observer, response_body_bytes_max, transport };
        Egress { inner: Arc::new(inner) }
    }

    /// Sends `request`, if `scope` allows it, and returns the redacted response.
    ///
    /// # Errors
    ///
    /// Fails with a message that the plugin may read. The failure includes whether the request may have reached the
    /// server.
    pub async fn send(
        &self,
        scope: &Scope,
        credentials: &dyn CredentialSource,
        redactor: &RedactorCell,
        request: HttpRequest,
        deadline: Instant,
        before_sending: &BeforeSending<'_>,
    ) -> Result<HttpResponse, Failure> {
        let deadline = deadline_of(&request, deadline);
        let sending = Sending::new(&self.inner, scope, credentials, redactor, before_sending, "gzip");
        sending.until(deadline, async { sending.run(request).await?.read(redactor).await }).await
    }

    /// Sends `request` like [`Egress::send`], but returns when the head of the response has been received, checked and
    /// redacted. The limit on the size of the response and the deadline also apply to the body. The request accepts no
    /// content encoding.
    ///
    /// # Errors
    ///
    /// Fails like [`Egress::send`].
    pub async fn open(
        &self,
        scope: &Scope,
        credentials: &dyn CredentialSource,
        redactor: &Arc<RedactorCell>,
        request: HttpRequest,
        deadline: Instant,
        before_sending: &BeforeSending<'_>,
    ) -> Result<StreamedResponse, Failure> {
        let deadline = deadline_of(&request, deadline);
        let sending = Sending::new(&self.inner, scope, credentials, redactor, before_sending, "identity");
        sending.until(deadline, async { sending.run(request).await?.open(redactor, deadline).await }).await
    }
}

/// Returns the deadline of `request`, which is at most the deadline of its call.
fn deadline_of(request: &HttpRequest, of_call: Instant) -> Instant {
    let asked = request.timeout_ms.map(|ms| Instant::now() + Duration::from_millis(ms.into()));
    asked.map_or(of_call, |asked| asked.min(of_call))
}

/// The state of one request.
struct Sending<'a, 'b> {
    egress: &'a Inner,
    scope: &'a Scope,
    credentials: &'a dyn CredentialSource,
    redactor: &'a RedactorCell,
    before_sending: &'a BeforeSending<'b>,
    /// The content encoding that the request accepts.
    accepted: &'static str,
    /// Whether `before_sending` has been awaited.
    announced: AtomicBool,
    /// Whether a byte of a request may have been sent.
    sent: AtomicBool,
}

impl<'a, 'b> Sending<'a, 'b> {
    fn new(
        egress: &'a Inner,
        scope: &'a Scope,
        credentials: &'a dyn CredentialSource,
        redactor: &'a RedactorCell,
        before_sending: &'a BeforeSending<'b>,
        accepted: &'static str,
    ) -> Self {
        let (announced, sent) = (AtomicBool::new(false), AtomicBool::new(false));
        Sending { egress, scope, credentials, redactor, before_sending, accepted, announced, sent }
    }

    /// Awaits `work` until `deadline`, and completes its failure.
    async fn until<T>(&self, deadline: Instant, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let late = || Err(Failure::unsent(FailureCode::Timeout, "the request timed out"));
        timeout_at(deadline, work).await.unwrap_or_else(|_| late()).map_err(|failure| {
            let sent = failure.sent || self.sent.load(Ordering::SeqCst);
            self.redactor.current().redact_failure(Failure { sent, ..failure })
        })
    }

    /// Runs the steps until the head of the final response has been received.
    async fn run(&self, mut request: HttpRequest) -> Result<Received, Failure> {
        let mut redirects_left = self.scope.follow_redirects.min(REDIRECTS_MAX);
        let mut may_refresh = true;
        loop {
            self.begin(Step::Build);
            let outgoing = self.build(&mut request)?;
            self.begin(Step::CheckEgress);
            policy::check(self.scope, &outgoing.url)?;
            self.begin(Step::Scan);
            scan::check(self.redactor, &mut request).await?;
            self.begin(Step::Resolve);
            let Inner { names, resolver, .. } = self.egress;
            let addresses = addresses::resolve(&outgoing.url, &self.scope.network, names, resolver).await?;
            self.begin(Step::Send);
            let mut credential = self.credential_for(&mut request, &outgoing.url).await?;
            let mut answer = self.exchange(&outgoing, credential.as_deref(), &addresses).await?;
            // A 401 is not a redirect, but the response of the second attempt may be one.
            if let Some(stale) = refused(&answer, credential.as_deref()).filter(|_| may_refresh) {
                self.begin(Step::Refresh);
                may_refresh = false;
                let fresh = self.refreshed(stale, &mut request, &outgoing.url).await?;
                answer = self.exchange(&outgoing, fresh.as_deref(), &addresses).await?;
                credential = fresh;
            }
            if redirects_left > 0
                && let Some(next) = redirect::next(&request, &outgoing.url, &answer)?
            {
                self.begin(Step::Redirect);
                redirects_left -= 1;
                request = next;
                continue;
            }
            self.begin(Step::Respond);
            let sealed = credential.as_ref().map_or(&[][..], |credential| &credential.inject);
            return Ok(Received {
                response: answer,
                method: outgoing.method,
                inject: [&self.scope.inject, sealed].concat(),
                received_at: self.egress.clock.now(),
                bytes_max: self.egress.response_body_bytes_max,
            });
        }
    }

    fn begin(&self, step: Step) {
        if let Some(observer) = &self.egress.observer {
            observer(step);
        }
    }

    /// Builds the outgoing request. Sets `request.authenticate` to false if a credential may not be sent to the URL.
    fn build(&self, request: &mut HttpRequest) -> Result<Outgoing, Failure> {
        let method = headers::method(request)?;
        headers::check_body(request)?;
        let url = url::build(self.scope.api_base.as_ref(), &request.url, &request.query)?;
        request.authenticate &= self.scope.may_authenticate(&url);
        let mut headers = headers::build(request, request.authenticate, &self.scope.inject)?;
        if !headers::is_injected(USER_AGENT.as_str(), &self.scope.inject) {
            headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        }
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(self.accepted));
        Ok(Outgoing { method, url, headers, body: request.body.clone() })
    }

    /// Returns the credential for `url`, or `None` if the request must be sent without a credential.
    async fn credential_for(&self, request: &mut HttpRequest, url: &Url) -> Result<Option<Arc<Credential>>, Failure> {
        if !request.authenticate {
            return Ok(None);
        }
        let credential = match self.credentials.current().await {
            Ok(credential) => credential,
            Err(CredentialState::NotNeeded) => return Ok(None),
            Err(state) => return Err(state.failure()),
        };
        if !credential.is_for(url) {
            return self.admit(credential, request, url).await;
        }
        let now = self.egress.clock.now();
        let expires_in_ms = credential.expires_at.map_or(i64::MAX, |end| end.since_ms(now));
        if credential.refreshable && expires_in_ms < REFRESH_BEFORE_MS {
            // The refresh also sends a request, so the call must be recorded first.
            self.announce().await?;
            // While the old credential is valid, the request waits only briefly. The refresh continues, so that later
            // requests can use the new credential.
            let refreshed = self.credentials.refresh(&credential);
            let refreshed = if expires_in_ms > 0 {
                timeout(REFRESH_WAIT_MAX, refreshed).await.unwrap_or(Err(CredentialState::Unavailable))
            } else {
                refreshed.await
            };
            match refreshed {
                Ok(fresh) => return self.admit(fresh, request, url).await,
                // The old credential is still valid.
                Err(CredentialState::Unavailable) if expires_in_ms > 0 => {}
                Err(state) => return Err(state.failure()),
            }
        }
        if expires_in_ms <= 0 && credential.is_for(url) {
            return Err(CredentialState::Expired.failure());
        }
        self.admit(credential, request, url).await
    }

    async fn refreshed(
        &self,
        stale: &Credential,
        request: &mut HttpRequest,
        url: &Url,
    ) -> Result<Option<Arc<Credential>>, Failure> {
        let fresh = self.credentials.refresh(stale).await.map_err(CredentialState::failure)?;
        self.admit(fresh, request, url).await
    }

    /// Adds the values of `credential` to the redactor. If one of the values is new, the request is searched again.
    async fn admit(
        &self,
        credential: Arc<Credential>,
        request: &mut HttpRequest,
        url: &Url,
    ) -> Result<Option<Arc<Credential>>, Failure> {
        if self.redactor.learn(credential.secret_values()) {
            scan::check(self.redactor, request).await?;
        }
        Ok(credential.is_for(url).then_some(credential))
    }

    /// Awaits `before_sending` once per request.
    async fn announce(&self) -> Result<(), Failure> {
        if self.announced.swap(true, Ordering::SeqCst) { Ok(()) } else { (self.before_sending)().await }
    }

    /// Sends the request once and returns the status and headers of its response, before the body is read.
    async fn exchange(
        &self,
        outgoing: &Outgoing,
        credential: Option<&Credential>,
        addresses: &Arc<[IpAddr]>,
    ) -> Result<reqwest::Response, Failure> {
        let outgoing = match credential {
            Some(credential) => inject(outgoing.clone(), credential)?,
            None => outgoing.clone(),
        };
        self.announce().await?;
        let sent_before = self.sent.swap(true, Ordering::SeqCst);
        self.transmit(outgoing, addresses).await.inspect_err(|failure| {
            self.sent.store(sent_before || failure.sent, Ordering::SeqCst);
        })
    }

    /// Sends the request over the network, or through the transport that replaces the network.
    async fn transmit(&self, outgoing: Outgoing, addresses: &Arc<[IpAddr]>) -> Result<reqwest::Response, Failure> {
        if let Some(transport) = &self.egress.transport {
            return transport.exchange(client::plain_request(outgoing)?).await.map(reqwest::Response::from);
        }
        let host = outgoing.url.host_str().unwrap_or_default().to_owned();
        let client = self.egress.clients.client(&outgoing.url, addresses, &self.scope.network)?;
        client.execute(client::request(outgoing)).await.map_err(|error| client::failure(error, &host))
    }
}

/// Returns the credential that the upstream has rejected, if it can be refreshed.
fn refused<'a>(answer: &reqwest::Response, credential: Option<&'a Credential>) -> Option<&'a Credential> {
    credential.filter(|credential| credential.refreshable && answer.status() == StatusCode::UNAUTHORIZED)
}
