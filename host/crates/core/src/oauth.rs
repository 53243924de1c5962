//! OAuth flows, from the begin page to the sealed credential.
//!
//! An authorization is bound to the API key that started it, the resource, the purpose of the credential, the provider
//! and one browser. Each step succeeds only once (`store::oauth_flows`). The database contains tokens, codes and
//! verifiers only as sealed records. The module `credentials` refreshes tokens.

mod device;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use monstrum_api::oauth::Started;
use monstrum_egress::Egress;
use monstrum_manifest::{AuthKind, AuthMethod};
use monstrum_store::{CredentialRow, FlowStatus, OauthFlowRow, OauthProviderRow, Store, StoreError};
use monstrum_types::{Clock, Code, KeyId, OauthFlowId, OauthProviderId, ResourceId, Secret, UtcMillis, WorkspaceId};
use monstrum_vault::{AssociatedData, Vault, VaultError};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::audit::{AuditUnavailable, Auditor, Change};
use crate::credentials::provider::{self, open_secret, scopes};
use crate::credentials::token_endpoint::{Grant, Provider, TokenError, Tokens};
use crate::credentials::{GivenFor, new_row};
use crate::policy::{Policy, Resource};

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
        Oauth { store, vault, egress, clock, policy, auditor, public_url, running: TaskTracker::new() }
    }

    /// Returns whether browsers use https, so that cookies can require it.
    pub fn is_secure(&self) -> bool {
        self.public_url.as_ref().is_some_and(|url| url.scheme() == "https")
    }

    /// Starts an authorization in a browser.
    pub async fn start(&self, resource: &Resource, key: KeyId) -> Result<Started, OauthError> {
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
            FlowStatus::Started => random()?,
            FlowStatus::Begun => same_browser(flow, browser)?,
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
            let code = code.map_err(OauthError::Declined)?;
            let (resource, provider) = self.unchanged(flow).await?;
            if issuer.is_some_and(|issuer| !is_of_provider(issuer, &provider)) {
                return Err(OauthError::OtherIssuer);
            }
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
        self.save(resource, &given_for, tokens).await
    }

    /// Deletes authorizations that expired more than a day ago.
    pub async fn purge(&self) -> Result<u64, StoreError> {
        self.store.purge_oauth_flows(self.clock.now().plus_ms(-KEPT_MS)).await
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
        let held = resource.credential.as_ref().map(|held| json!({ "method": held.row.auth_method }));
        let change = Change {
            key: Some(flow.key_id),
            resource: Some(flow.resource_id),
            before: held.unwrap_or_default(),
            after: json!({ "method": flow.auth_method, "oauth_flow": flow.id }),
            ..Change::new(flow.workspace_id, "credential.save", flow.resource_id.to_string())
        };
        let save = async { self.save(resource, &agreed(flow)?, obtain.await?).await };
        let (saved, closed) = self.auditor.record(change, save, |_| Code::Unavailable).await?;
        if closed.is_err() {
            tracing::error!(oauth_flow.id = %flow.id, "the outcome of a change has not been written to the audit yet");
        }
        saved
    }

    async fn save(&self, resource: &Resource, given_for: &GivenFor, tokens: Tokens) -> Result<(), OauthError> {
        let row = credential_row(&self.vault, resource, given_for, tokens, self.clock.now())?;
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
        let secret = open_secret(&self.vault, provider)?;
        let token_url = stored_url(&provider.token_url)?;
        Ok(self.provider(resource, provider, secret.as_ref()).tokens(&token_url, grant).await?)
    }

    fn provider<'a>(
        &'a self,
        resource: &'a Resource,
        row: &'a OauthProviderRow,
        client_secret: Option<&'a Secret>,
    ) -> Provider<'a> {
        Provider {
            egress: &self.egress,
            clock: self.clock.as_ref(),
            network: &resource.scope.network,
            client_id: &row.client_id,
            client_secret,
        }
    }

    /// Returns the OAuth provider for the type of `resource`, and the current purpose of a credential of method `kind`.
    async fn of_type(&self, resource: &Resource, kind: AuthKind) -> Result<(OauthProviderRow, GivenFor), OauthError> {
        let method = method(resource, kind).ok_or(OauthError::NoMethod { method: kind })?;
        let resource_type = &resource.row.resource_type;
        let provider = self.store.oauth_provider_of_type(resource.row.workspace_id, resource_type).await?;
        let missing = || OauthError::NoProvider { resource_type: resource_type.to_string() };
        let provider = provider.ok_or_else(missing)?;
        let given_for = given_for(resource, method, &provider);
        Ok((provider, given_for))
    }

    /// Returns the resource and the provider of an authorization. Returns an error if the resource, the provider or the
    /// key has changed since the start of the authorization. Therefore the revocation of a key ends its authorizations.
    async fn unchanged(&self, flow: &OauthFlowRow) -> Result<(Arc<Resource>, OauthProviderRow), OauthError> {
        let snapshot = self.policy.load();
        if !snapshot.key_of_id(flow.key_id).is_some_and(|key| key.administers(flow.workspace_id)) {
            return Err(OauthError::Changed);
        }
        let resource = snapshot.resource(flow.workspace_id, flow.resource_id).ok_or(OauthError::Changed)?;
        let provider = self.store.oauth_provider(flow.workspace_id, flow.provider_id).await?;
        let provider = provider.ok_or(OauthError::Changed)?;
        let then = agreed(flow)?;
        let method = method(resource, then.auth_method).ok_or(OauthError::Changed)?;
        if given_for(resource, method, &provider) != then {
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
    resource: &Resource,
    given_for: &GivenFor,
    tokens: Tokens,
    now: UtcMillis,
) -> Result<CredentialRow, VaultError> {
    let mut fields = BTreeMap::from([("access_token".to_owned(), tokens.access_token)]);
    fields.extend(tokens.refresh_token.map(|token| ("refresh_token".to_owned(), token)));
    let row = new_row(vault, &resource.row, given_for, &fields, now)?;
    Ok(CredentialRow { expires_at: tokens.expires_at, ..row })
}

fn method(resource: &Resource, kind: AuthKind) -> Option<&AuthMethod> {
    resource.plugin.manifest.resource_type.auth_methods.iter().find(|method| method.method == kind)
}

fn given_for(resource: &Resource, method: &AuthMethod, provider: &OauthProviderRow) -> GivenFor {
    GivenFor::now(&resource.plugin.manifest, method, &resource.config).obtained_from(provider)
}

fn new_flow(
    resource: &Resource,
    provider: &OauthProviderRow,
    key: KeyId,
    given_for: &GivenFor,
    now: UtcMillis,
) -> OauthFlowRow {
    OauthFlowRow {
        id: OauthFlowId::new(),
        workspace_id: resource.row.workspace_id,
        resource_id: resource.row.id,
        provider_id: provider.id,
        key_id: key,
        auth_method: given_for.auth_method.as_str().to_owned(),
        given_for: json!(given_for),
        status: FlowStatus::Failed,
        ticket_hash: None,
        state_hash: None,
        browser_hash: None,
        sealed: None,
        message: None,
        poll_interval_s: None,
        next_poll_at: None,
        created_at: now,
        expires_at: now,
    }
}

/// Returns the purpose of the credential that was recorded at the start of the authorization.
fn agreed(flow: &OauthFlowRow) -> Result<GivenFor, OauthError> {
    serde_json::from_value(flow.given_for.clone()).map_err(|_| OauthError::Changed)
}

fn place_of(flow: &OauthFlowRow) -> AssociatedData {
    place(flow.workspace_id, flow.id, flow.resource_id, flow.provider_id, &flow.given_for)
}

/// Returns the associated data of a sealed flow: its ids, and the purpose that was recorded at its start.
pub fn place(
    workspace: WorkspaceId,
    flow: OauthFlowId,
    resource: ResourceId,
    provider: OauthProviderId,
    given_for: &serde_json::Value,
) -> AssociatedData {
    AssociatedData::new("oauth flow")
        .with("workspace", &workspace)
        .with("flow", &flow)
        .with("resource", &resource)
        .with("provider", &provider)
        .with_json("given_for", given_for)
}

/// Checks that `browser` is the secret of the browser that opened the begin page, and returns this secret.
fn same_browser(flow: &OauthFlowRow, browser: Option<&str>) -> Result<Secret, OauthError> {
    let (Some(expected), Some(browser)) = (&flow.browser_hash, browser) else {
        return Err(OauthError::NotThisBrowser);
    };
    let is_same: bool = hash(browser).as_bytes().ct_eq(expected.as_bytes()).into();
    if is_same { Ok(Secret::new(browser.to_owned())) } else { Err(OauthError::NotThisBrowser) }
}

/// Returns whether the `iss` of an answer (RFC 9207) has the origin of an endpoint of this provider. The code of
/// another issuer must not be sent to this provider (mix-up attack).
fn is_of_provider(issuer: &str, provider: &OauthProviderRow) -> bool {
    let origin = |text: &str| Url::parse(text).ok().map(|url| url.origin().ascii_serialization());
    let known = [provider.authorization_url.as_deref(), Some(provider.token_url.as_str())];
    let issuer = origin(issuer);
    issuer.is_some() && known.into_iter().flatten().any(|url| origin(url) == issuer)
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
