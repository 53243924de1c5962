//! OAuth flows, from the begin page to the sealed credential.
//!
//! An authorization is bound to the API key that started it, the resource, the purpose of the credential, the provider
//! and one browser. Each step succeeds only once (`store::oauth_flows`). The database contains tokens, codes and
//! verifiers only as sealed records. The module `credentials` refreshes tokens.

pub mod challenge;
mod client;
mod connect;
mod device;
mod discovery;
mod flow;
mod indicator;
mod issuer;
mod metadata;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use monstrum_api::oauth::Started;
use monstrum_egress::Egress;
use monstrum_manifest::{AuthKind, AuthMethod};
use monstrum_store::{CredentialRow, FlowStatus, OauthFlowRow, OauthProviderRow, Store, StoreError};
use monstrum_types::{Clock, Code, KeyId, Secret, TokenAuth, UtcMillis};
use monstrum_vault::{Vault, VaultError};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::audit::{AuditUnavailable, Auditor, Change};
use crate::credentials::provider::{self, ConfirmedServer, UnreadableServer, open_secret, scopes};
use crate::credentials::token_endpoint::{Grant, Provider, TokenError, Tokens};
use crate::credentials::{GivenFor, Subject, new_row};
use crate::policy::{Policy, Resource};
use flow::{agreed, new_flow, place_of, same_browser};

use indicator::{indicator, is_same_url, server_url};
use issuer::check_issuer;

pub use client::Registered;
pub use connect::{SignIn, SignInStep};
pub use discovery::{LookupError, Proposed};
pub use flow::place;
pub use metadata::Proposal;
pub use users::{Consent, ReturnOrigin, ReturnTo, Wanted};

/// The time limit for an authorization, from its start to the provider's answer.
const AUTHORIZATION_LIFETIME_MS: i64 = 10 * 60 * 1000;
/// The time for which an expired authorization is kept, so that clients can read its result.
const KEPT_MS: i64 = 24 * 3600 * 1000;

/// The reason why an authorization failed.
#[derive(Debug, thiserror::Error)]
pub enum OauthError {
    #[error("this resource type has no auth method `{method}`")]
    NoMethod { method: AuthKind },
    #[error("no OAuth provider is confirmed for resource type `{resource_type}`; create one at /api/oauth/providers")]
    NoProvider { resource_type: String },
    #[error("the OAuth provider of this resource type has no {field}; add it at /api/oauth/providers")]
    NoUrl { field: &'static str },
    #[error(
        "browsers cannot return to this server: it has no public URL and does not listen on loopback only; \
         set --public-url"
    )]
    NoPublicUrl,
    #[error("the link was used in another browser or has expired; start the authorization again")]
    NotThisBrowser,
    #[error(
        "the resource, its plugin, the provider or the API key has changed since the authorization was started; start \
         the authorization again"
    )]
    Changed,
    #[error("the answer came from a provider other than the requested one; start the authorization again")]
    OtherIssuer,
    #[error("the answer does not name the provider that sent it; start the authorization again")]
    NoIssuer,
    #[error(
        "no OAuth provider is confirmed for this resource; look for its authorization server with \
         POST /api/resources/{{id}}/oauth/discover, and confirm it"
    )]
    NotDiscovered,
    #[error("the OAuth provider was confirmed for another URL of the resource; discover and confirm it again")]
    OtherUrl,
    #[error("resources of type `{resource_type}` have no server whose authorization server can be discovered")]
    NoServer { resource_type: String },
    #[error(transparent)]
    Lookup(Box<LookupError>),
    #[error(transparent)]
    Server(#[from] UnreadableServer),
    #[error("the person who signed in is not the user for whom the link was made; nothing was stored")]
    OtherPerson,
    #[error("the sign-in failed: {0}; start the authorization again")]
    SignIn(String),
    #[error("{}", refusal(.0))]
    Declined(String),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("a record of the authorization cannot be encrypted or decrypted; start the authorization again")]
    Vault(#[from] VaultError),
    #[error("the database is unavailable; try again")]
    Store(#[from] StoreError),
    #[error("the audit cannot be written, so the credential was not stored; try again")]
    Audit(#[from] AuditUnavailable),
}

fn refusal(word: &str) -> String {
    let word: String =
        word.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')).take(64).collect();
    format!("the provider refused the authorization: {word}")
}

/// The URL to which the host redirects a browser, and the secret that identifies the browser when it returns.
pub struct Begun {
    pub authorization_url: Url,
    pub browser: Secret,
}

/// Obtains credentials by OAuth.
pub struct Oauth {
    store: Store,
    vault: Arc<Vault>,
    egress: Egress,
    clock: Arc<dyn Clock>,
    policy: Arc<Policy>,
    auditor: Auditor,
    /// The URL at which browsers reach this server.
    public_url: Option<Url>,
    /// Limits the number of look-ups and registrations that run at once.
    lookups: Semaphore,
    running: TaskTracker,
}

impl Oauth {
    /// Creates the service for the resources of `policy`.
    pub fn new(
        store: Store,
        vault: Arc<Vault>,
        egress: Egress,
        clock: Arc<dyn Clock>,
        policy: Arc<Policy>,
        auditor: Auditor,
        public_url: Option<Url>,
    ) -> Oauth {
        let (lookups, running) = (Semaphore::new(discovery::LOOKUPS_AT_ONCE), TaskTracker::new());
        Oauth { store, vault, egress, clock, policy, auditor, public_url, lookups, running }
    }

    /// Returns whether browsers use https, so that cookies can require it.
    pub fn is_secure(&self) -> bool {
        self.public_url.as_ref().is_some_and(|url| url.scheme() == "https")
    }

    /// Starts an authorization in a browser.
    pub async fn start(&self, resource: &Resource, key: KeyId, wanted: Wanted) -> Result<Started, OauthError> {
        let ticket = random()?;
        let begin_url = self.own_url(&format!("oauth/begin/{}", ticket.expose()))?;
        self.callback_url()?;
        let (provider, given_for) = self.of_type(resource, AuthKind::Oauth2AuthCode).await?;
        if provider.authorization_url.is_none() {
            return Err(OauthError::NoUrl { field: "authorization_url" });
        }
        let now = self.clock.now();
        let flow = OauthFlowRow {
            status: FlowStatus::Started,
            ticket_hash: Some(hash(ticket.expose())),
            expires_at: now.plus_ms(AUTHORIZATION_LIFETIME_MS),
            subject: wanted.subject(),
            return_to: wanted.return_to.map(ReturnTo::into_text),
            ..new_flow(resource, &provider, key, &given_for, now)
        };
        self.store.insert_oauth_flow(&flow).await?;
        Ok(Started { authorization_url: begin_url, expires_at: flow.expires_at })
    }

    /// Returns the authorization whose begin page has this ticket in its URL.
    pub async fn of_ticket(&self, ticket: &str) -> Result<OauthFlowRow, OauthError> {
        let flow = self.store.oauth_flow_of_ticket(&hash(ticket), self.clock.now()).await?;
        flow.ok_or(OauthError::NotThisBrowser)
    }

    /// Returns the authorization with the `state` that the provider returned.
    pub async fn of_state(&self, state: &str) -> Result<OauthFlowRow, OauthError> {
        let flow = self.store.oauth_flow_of_state(&hash(state), self.clock.now()).await?;
        flow.ok_or(OauthError::NotThisBrowser)
    }

    /// Prepares the redirect of a browser to the provider. Only the browser that first opened the begin page may open
    /// it again. `browser` is the secret that this browser received.
    pub async fn begin(&self, flow: &OauthFlowRow, browser: Option<&str>) -> Result<Begun, OauthError> {
        let browser = match flow.status {
            // The user has confirmed the page in the browser that opened it.
            FlowStatus::Started if flow.subject.is_some() => self.confirmed(flow, browser)?,
            FlowStatus::Started => random()?,
            FlowStatus::Begun if !users::needs_sign_in(flow)? => same_browser(flow, browser)?,
            _ => return Err(OauthError::NotThisBrowser),
        };
        let (_, provider) = self.unchanged(flow).await?;
        let base = provider.authorization_url.as_deref().ok_or(OauthError::NoUrl { field: "authorization_url" })?;
        let mut authorization_url = stored_url(base)?;
        let (state, verifier) = (random()?, random()?);
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.expose().as_bytes()));
        {
            let mut query = authorization_url.query_pairs_mut();
            query.append_pair("response_type", "code").append_pair("client_id", &provider.client_id);
            query.append_pair("redirect_uri", &self.callback_url()?);
            let scopes = scopes(&provider);
            if !scopes.is_empty() {
                query.append_pair("scope", &scopes);
            }
            query.append_pair("state", state.expose());
            query.append_pair("code_challenge", &challenge).append_pair("code_challenge_method", "S256");
            if let Some(indicator) = &agreed(flow)?.indicator {
                query.append_pair("resource", indicator);
            }
        }
        let begun = OauthFlowRow {
            state_hash: Some(hash(state.expose())),
            browser_hash: Some(hash(browser.expose())),
            sealed: Some(self.seal(flow, &verifier)?),
            ..flow.clone()
        };
        if !self.store.begin_oauth_flow(flow, &begun).await? {
            return Err(OauthError::NotThisBrowser);
        }
        Ok(Begun { authorization_url, browser })
    }

    /// Handles the provider's answer, a code or an error code, and stores the credential. The host stores a fetched
    /// token even if the browser disconnects.
    pub async fn finish(
        self: &Arc<Self>,
        flow: OauthFlowRow,
        browser: Option<String>,
        code: Result<Secret, String>,
        issuer: Option<String>,
    ) -> Result<(), OauthError> {
        let this = Arc::clone(self);
        let answered = async move { this.take(&flow, browser.as_deref(), code, issuer.as_deref()).await };
        let task = self.running.spawn(answered);
        task.await.unwrap_or(Err(OauthError::Changed))
    }

    /// Waits until all authorizations in progress have ended.
    pub async fn shut_down(&self) {
        self.running.close();
        self.running.wait().await;
    }

    async fn take(
        &self,
        flow: &OauthFlowRow,
        browser: Option<&str>,
        code: Result<Secret, String>,
        issuer: Option<&str>,
    ) -> Result<(), OauthError> {
        same_browser(flow, browser)?;
        if !self.store.move_oauth_flow(flow.id, FlowStatus::Begun, FlowStatus::Taken, None).await? {
            return Err(OauthError::NotThisBrowser);
        }
        let fetched = async {
            let (resource, provider) = self.unchanged(flow).await?;
            check_issuer(issuer, &provider)?;
            let code = code.map_err(OauthError::Declined)?;
            let verifier = self.unseal(flow)?;
            let redirect_uri = self.callback_url()?;
            let grant = Grant::Code { code: &code, verifier: &verifier, redirect_uri: &redirect_uri };
            self.recorded(flow, &resource, self.ask(&resource, &provider, &grant)).await
        };
        self.end(flow, FlowStatus::Taken, fetched.await).await
    }

    /// Obtains a token for the client itself (RFC 6749, section 4.4) and stores it as the credential of `resource`.
    pub async fn obtain(&self, resource: &Resource) -> Result<(), OauthError> {
        let (provider, given_for) = self.of_type(resource, AuthKind::Oauth2ClientCreds).await?;
        let scopes = scopes(&provider);
        let tokens = self.ask(resource, &provider, &Grant::Client { scopes: &scopes }).await?;
        self.save(resource, &Subject::Shared, &given_for, tokens).await
    }

    /// Deletes authorizations that expired more than a day ago, and expired proposals.
    pub async fn purge(&self) -> Result<u64, StoreError> {
        let now = self.clock.now();
        self.store.purge_oauth_proposals(now).await?;
        self.store.purge_oauth_flows(now.plus_ms(-KEPT_MS)).await
    }

    /// Stores the result of an authorization and returns this result.
    async fn end(
        &self,
        flow: &OauthFlowRow,
        from: FlowStatus,
        ended: Result<(), OauthError>,
    ) -> Result<(), OauthError> {
        let (to, message) = match &ended {
            Ok(()) => (FlowStatus::Done, None),
            Err(error) => (FlowStatus::Failed, Some(error.to_string())),
        };
        if let Err(error) = self.store.move_oauth_flow(flow.id, from, to, message.as_deref()).await {
            tracing::error!(oauth_flow.id = %flow.id, %error, "failed to store the result of an authorization");
        }
        if let Some(message) = message {
            let resource = flow.resource_id;
            tracing::info!(oauth_flow.id = %flow.id, resource.id = %resource, message, "an authorization failed");
        }
        ended
    }

    /// Stores the credential that `obtain` returns, and records the change in the audit. The entry is opened before the
    /// request to the provider, because the host would lose a token whose change it cannot record. This function
    /// records the change because no API request makes it.
    async fn recorded(
        &self,
        flow: &OauthFlowRow,
        resource: &Resource,
        obtain: impl Future<Output = Result<Tokens, OauthError>>,
    ) -> Result<(), OauthError> {
        let user = users::user(flow)?;
        let change = Change {
            // A user who has signed in has no key.
            key: (!users::needs_sign_in(flow)?).then_some(flow.key_id),
            resource: Some(flow.resource_id),
            before: self.held_before(resource, user.as_ref()),
            after: users::with_user(json!({ "method": flow.auth_method, "oauth_flow": flow.id }), user.as_ref()),
            ..Change::new(flow.workspace_id, "credential.save", flow.resource_id.to_string())
        };
        let subject = user.as_ref().map_or(Subject::Shared, Subject::of_user);
        let save = async { self.save(resource, &subject, &agreed(flow)?, obtain.await?).await };
        let (saved, closed) = self.auditor.record(change, save, |_| Code::Unavailable).await?;
        if closed.is_err() {
            tracing::error!(oauth_flow.id = %flow.id, "the outcome of a change has not been written to the audit yet");
        }
        saved
    }

    async fn save(
        &self,
        resource: &Resource,
        subject: &Subject,
        given_for: &GivenFor,
        tokens: Tokens,
    ) -> Result<(), OauthError> {
        let row = credential_row(&self.vault, (resource, subject), given_for, tokens, self.clock.now())?;
        self.store.put_credential(&row).await?;
        self.policy.renew().await?;
        tracing::info!(resource.id = %row.resource_id, credential.id = %row.id, "a credential was obtained by OAuth");
        Ok(())
    }

    async fn ask(
        &self,
        resource: &Resource,
        provider: &OauthProviderRow,
        grant: &Grant<'_>,
    ) -> Result<Tokens, OauthError> {
        let client = self.client_of(resource, provider)?;
        let token_url = stored_url(&provider.token_url)?;
        Ok(self.provider(resource, provider, &client).tokens(&token_url, grant).await?)
    }

    /// Decrypts the client secret of a provider, and determines how the client sends its requests.
    fn client_of(&self, resource: &Resource, row: &OauthProviderRow) -> Result<Client, OauthError> {
        let secret = open_secret(&self.vault, row)?;
        let server = ConfirmedServer::of(row)?;
        let auth = server.as_ref().map(|server| server.token_auth);
        Ok(Client { secret, auth, indicator: indicator(resource, server) })
    }

    fn provider<'a>(&'a self, resource: &'a Resource, row: &'a OauthProviderRow, client: &'a Client) -> Provider<'a> {
        Provider {
            egress: &self.egress,
            clock: self.clock.as_ref(),
            network: &resource.scope.network,
            client_id: &row.client_id,
            client_secret: client.secret.as_ref(),
            auth: client.auth,
            resource: client.indicator.as_deref(),
        }
    }

    /// Returns the OAuth provider of `resource` or of its type, and the current purpose of a credential of method `kind`.
    async fn of_type(&self, resource: &Resource, kind: AuthKind) -> Result<(OauthProviderRow, GivenFor), OauthError> {
        let method = method(resource, kind).ok_or(OauthError::NoMethod { method: kind })?;
        let (row, resource_type) = (&resource.row, &resource.row.resource_type);
        let provider = self.store.oauth_provider_for(row.workspace_id, row.id, resource_type).await?;
        let missing = || match server_url(resource) {
            Some(_) => OauthError::NotDiscovered,
            None => OauthError::NoProvider { resource_type: resource_type.to_string() },
        };
        let provider = provider.ok_or_else(missing)?;
        let server = ConfirmedServer::of(&provider)?;
        if server.is_some_and(|server| server_url(resource).is_none_or(|url| !is_same_url(url, &server.resource))) {
            return Err(OauthError::OtherUrl);
        }
        let given_for = given_for(resource, method, &provider)?;
        Ok((provider, given_for))
    }

    /// Returns the resource and the provider of an authorization. Returns an error if the resource, the provider or the
    /// key has changed since the start of the authorization. Therefore the revocation of a key ends its authorizations.
    async fn unchanged(&self, flow: &OauthFlowRow) -> Result<(Arc<Resource>, OauthProviderRow), OauthError> {
        let snapshot = self.policy.load();
        let resource = snapshot.resource(flow.workspace_id, flow.resource_id).ok_or(OauthError::Changed)?;
        if !self.is_permitted(&snapshot, resource, flow)? {
            return Err(OauthError::Changed);
        }
        let provider = self.store.oauth_provider(flow.workspace_id, flow.provider_id).await?;
        let provider = provider.ok_or(OauthError::Changed)?;
        let then = agreed(flow)?;
        let method = method(resource, then.auth_method).ok_or(OauthError::Changed)?;
        if given_for(resource, method, &provider)? != then {
            return Err(OauthError::Changed);
        }
        Ok((Arc::clone(resource), provider))
    }

    fn own_url(&self, path: &str) -> Result<String, OauthError> {
        let base = self.public_url.as_ref().ok_or(OauthError::NoPublicUrl)?;
        Ok(format!("{}/{path}", base.as_str().trim_end_matches('/')))
    }

    /// Returns the URL to which providers redirect browsers.
    fn callback_url(&self) -> Result<String, OauthError> {
        self.own_url("api/oauth/callback")
    }

    fn seal(&self, flow: &OauthFlowRow, secret: &Secret) -> Result<String, OauthError> {
        Ok(self.vault.seal(secret.expose().as_bytes(), place_of(flow))?.to_string())
    }

    fn unseal(&self, flow: &OauthFlowRow) -> Result<Secret, OauthError> {
        let sealed = flow.sealed.as_deref().ok_or(OauthError::NotThisBrowser)?;
        let plaintext = self.vault.unseal(&sealed.parse()?, place_of(flow))?;
        let text = String::from_utf8(plaintext.to_vec())
            .map_err(|_| VaultError::NotSealed { what: "it is not UTF-8 text" })?;
        Ok(Secret::new(text))
    }
}

/// Creates the row of a credential that was obtained by OAuth.
fn credential_row(
    vault: &Vault,
    (resource, subject): (&Resource, &Subject),
    given_for: &GivenFor,
    tokens: Tokens,
    now: UtcMillis,
) -> Result<CredentialRow, VaultError> {
    let mut fields = BTreeMap::from([("access_token".to_owned(), tokens.access_token)]);
    fields.extend(tokens.refresh_token.map(|token| ("refresh_token".to_owned(), token)));
    let row = new_row(vault, &resource.row, subject, given_for, &fields, now)?;
    Ok(CredentialRow { expires_at: tokens.expires_at, ..row })
}

fn method(resource: &Resource, kind: AuthKind) -> Option<&AuthMethod> {
    resource.plugin.manifest.resource_type.auth_methods.iter().find(|method| method.method == kind)
}

/// The client of a provider, as this host represents it.
struct Client {
    secret: Option<Secret>,
    auth: Option<TokenAuth>,
    indicator: Option<String>,
}

fn given_for(
    resource: &Resource,
    method: &AuthMethod,
    provider: &OauthProviderRow,
) -> Result<GivenFor, UnreadableServer> {
    let indicator = indicator(resource, ConfirmedServer::of(provider)?);
    Ok(GivenFor::now(&resource.plugin.manifest, method, &resource.config).obtained_from(provider, indicator))
}

fn stored_url(text: &str) -> Result<Url, OauthError> {
    provider::parse_url(text).map_err(|_| OauthError::Changed)
}

/// Generates 256 random bits, encoded as text.
fn random() -> Result<Secret, OauthError> {
    let mut bits = zeroize::Zeroizing::new([0_u8; 32]);
    getrandom::fill(bits.as_mut_slice()).map_err(VaultError::Random)?;
    Ok(Secret::new(BASE64_URL_SAFE_NO_PAD.encode(*bits)))
}

fn hash(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}
