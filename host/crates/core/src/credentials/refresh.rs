//! Refreshes credentials that were obtained by OAuth. Each credential has at most one refresh in progress across all
//! hosts that share a database.
//!
//! Many providers accept a refresh token only once. Therefore a task that callers cannot cancel stores the new tokens
//! before it returns them to a caller. A second caller finds the newer token in the row. If the provider rejects the
//! grant and the row has not changed since the request, the task marks the credential, and a person has to authorize
//! it again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use monstrum_egress::{CredentialState, Egress, Network};
use monstrum_manifest::AuthKind;
use monstrum_store::{CredentialRow, OauthProviderRow, Store, StoreError};
use monstrum_types::{Clock, ResourceId, ResourceTypeId, Secret, UtcMillis, WorkspaceId};
use monstrum_vault::{Vault, VaultError};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::provider::{ConfirmedServer, UnreadableServer, open_secret, parse_url, scopes};
use super::token_endpoint::{ANSWER_WAIT_MAX, Grant, Provider, TokenError, Tokens};
use super::{GivenFor, NEEDS_AUTHORIZATION, Opened, READY, Subject, access_token, seal, subject_of};

/// The duration of a refresh lease in milliseconds. It covers two requests to the provider, with the client secret in
/// the header and in the body, and the time to store the result.
const CLAIM_MS: i64 = 2 * ANSWER_WAIT_MAX.as_millis() as i64 + 5_000;
/// The maximum time for which a caller waits for the refresh of another host.
const WAIT_MAX: Duration = Duration::from_millis(CLAIM_MS as u64 + 1_000);
/// The interval at which a caller checks whether another host has finished its refresh.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The pause after a failure. During the pause, this host sends no refresh request for the credential.
const BACKOFF: Duration = Duration::from_secs(2);
/// The time for which the host retries to store new tokens. A restart of the database takes less time.
const STORE_MAX: Duration = Duration::from_secs(120);
const STORE_RETRY: Duration = Duration::from_millis(200);
/// The minimum time between two refreshes of a credential by this host. Without this limit, every call would cause a
/// refresh if the upstream rejects a fresh token or the token has a very short lifetime.
const AGE_MIN: Duration = Duration::from_secs(10);
/// The number of entries at which entries of finished refreshes are removed. An entry uses about 100 bytes.
const REFRESHES_SWEEP_AT: usize = 1024;

/// Refreshes the credentials of all resources.
pub struct Refresher {
    pub(super) vault: Arc<Vault>,
    pub(super) store: Store,
    egress: Egress,
    pub(super) clock: Arc<dyn Clock>,
    refreshes: Mutex<HashMap<CredentialPlace, Arc<tokio::sync::Mutex<LastRefresh>>>>,
    /// Credentials whose provider refused the last refresh request of this host.
    refused: Mutex<HashSet<CredentialPlace>>,
    running: TaskTracker,
}

/// The credential that is refreshed. A new credential of the same subject has the same place.
type CredentialPlace = (ResourceId, Subject);

/// The last refresh of one credential by this host.
#[derive(Default)]
struct LastRefresh {
    /// The end of the pause after a failure, and the state that callers get during the pause.
    backoff: Option<(Instant, CredentialState)>,
    refreshed_at: Option<Instant>,
}

impl LastRefresh {
    /// Returns whether the last refresh still delays the next refresh.
    fn is_recent(&self) -> bool {
        self.backoff.as_ref().is_some_and(|(until, _)| Instant::now() < *until)
            || self.refreshed_at.is_some_and(|at| at.elapsed() < AGE_MIN)
    }
}

/// The resource whose credential is refreshed.
#[derive(Clone)]
pub struct RefreshTarget {
    pub workspace: WorkspaceId,
    pub resource: ResourceId,
    pub subject: Subject,
    pub resource_type: ResourceTypeId,
    pub network: Network,
    /// The purpose of the stale credential. A credential for another purpose does not replace it.
    pub given_for: GivenFor,
}

/// A newer credential.
pub struct Refreshed {
    pub fields: BTreeMap<String, Secret>,
    pub expires_at: Option<UtcMillis>,
}

/// The reason why a refresh obtained no tokens. Only [`RefreshError::Provider`] is about the provider's answer; the other
/// variants are about records of this host, and no request was sent.
#[derive(Debug, thiserror::Error)]
enum RefreshError {
    #[error("the stored client secret of the OAuth provider cannot be decrypted")]
    ClientSecret(#[source] VaultError),
    #[error("the stored token_url of the OAuth provider is invalid: {0}")]
    TokenUrl(&'static str),
    #[error("the stored credential has no refresh token")]
    NoRefreshToken,
    #[error(transparent)]
    Server(#[from] UnreadableServer),
    #[error(transparent)]
    Provider(#[from] TokenError),
}

impl RefreshError {
    /// Returns the provider's error code, if the provider sent one.
    fn code(&self) -> Option<&str> {
        match self {
            RefreshError::Provider(error) => error.code(),
            RefreshError::ClientSecret(_)
            | RefreshError::TokenUrl(_)
            | RefreshError::NoRefreshToken
            | RefreshError::Server(_) => None,
        }
    }

    /// Returns whether the provider rejected the grant itself.
    fn is_of_grant(&self) -> bool {
        matches!(self, RefreshError::Provider(error) if error.is_of_grant())
    }
}

/// The result of one attempt.
enum Attempt {
    Refreshed(Refreshed),
    /// Another host is refreshing the credential, or has just changed its row.
    TryAgain,
    Failed(CredentialState),
}

impl Refresher {
    /// Creates a refresher. It is idle until a caller requests a refresh.
    pub fn new(store: Store, vault: Arc<Vault>, egress: Egress, clock: Arc<dyn Clock>) -> Refresher {
        Refresher {
            vault,
            store,
            egress,
            clock,
            refreshes: Mutex::default(),
            refused: Mutex::default(),
            running: TaskTracker::new(),
        }
    }

    /// Returns a credential that is newer than the credential with the access token `stale`. Reads it from the
    /// database, or requests it from the provider.
    pub async fn refresh(
        self: &Arc<Self>,
        target: RefreshTarget,
        stale: Option<Secret>,
    ) -> Result<Refreshed, CredentialState> {
        let this = Arc::clone(self);
        // If the caller is cancelled, the task still stores the tokens that it has fetched.
        let task = self.running.spawn(async move { this.wait_and_refresh(&target, stale.as_ref()).await });
        task.await.unwrap_or(Err(CredentialState::Unavailable))
    }

    /// Returns whether the provider refused this host's last refresh of the credential of this row.
    pub(super) fn is_refused(&self, row: &CredentialRow) -> bool {
        let refused = self.refused.lock();
        !refused.is_empty() && place_of(row).is_some_and(|place| refused.contains(&place))
    }

    /// Waits until all refreshes in progress have ended.
    pub async fn shut_down(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// Returns the entry of a credential. Concurrent callers get the same entry.
    fn in_progress(&self, place: CredentialPlace) -> Arc<tokio::sync::Mutex<LastRefresh>> {
        let mut refreshes = self.refreshes.lock();
        if refreshes.len() >= REFRESHES_SWEEP_AT && !refreshes.contains_key(&place) {
            // An entry that is referenced outside the map is in use.
            refreshes.retain(|_, refresh| {
                Arc::strong_count(refresh) > 1 || refresh.try_lock().is_ok_and(|refresh| refresh.is_recent())
            });
        }
        Arc::clone(refreshes.entry(place).or_default())
    }

    async fn wait_and_refresh(
        &self,
        target: &RefreshTarget,
        stale: Option<&Secret>,
    ) -> Result<Refreshed, CredentialState> {
        let last = self.in_progress((target.resource, target.subject.clone()));
        let mut last = last.lock().await;
        let until = Instant::now() + WAIT_MAX;
        loop {
            let attempt = self.attempt(target, stale, &mut last).await.unwrap_or_else(|error| {
                tracing::warn!(resource.id = %target.resource, %error, "failed to refresh a credential");
                Attempt::Failed(CredentialState::Unavailable)
            });
            match attempt {
                Attempt::Refreshed(refreshed) => return Ok(refreshed),
                Attempt::Failed(state) => return Err(state),
                Attempt::TryAgain if Instant::now() >= until => return Err(CredentialState::Unavailable),
                Attempt::TryAgain => sleep(POLL_INTERVAL).await,
            }
        }
    }

    async fn attempt(
        &self,
        target: &RefreshTarget,
        stale: Option<&Secret>,
        last: &mut LastRefresh,
    ) -> Result<Attempt, StoreError> {
        self.store.require_verified(target.workspace)?;
        let row = match &target.subject {
            Subject::Shared => self.store.credential(target.workspace, target.resource).await?,
            Subject::User(user) => self.store.user_credential(target.workspace, target.resource, user).await?,
        };
        let Some(row) = row else {
            return Ok(Attempt::Failed(CredentialState::None));
        };
        let Ok(opened) = Opened::open(&row, &self.vault) else {
            return Ok(Attempt::Failed(CredentialState::NeedsAuthorization));
        };
        if opened.given_for != target.given_for {
            // The credential was saved again for another purpose. The next policy snapshot contains the new credential.
            return Ok(Attempt::Failed(CredentialState::Unavailable));
        }
        let now = self.clock.now();
        let differs = access_token(&opened.fields).as_ref().map(Secret::expose) != stale.map(Secret::expose);
        if differs && row.status == READY && row.expires_at.is_none_or(|end| now < end) {
            return Ok(Attempt::Refreshed(Refreshed { fields: opened.fields, expires_at: row.expires_at }));
        }
        let is_young = last.refreshed_at.is_some_and(|at| at.elapsed() < AGE_MIN);
        if !differs && is_young && row.status == READY && row.expires_at.is_none_or(|end| now < end) {
            return Ok(Attempt::Refreshed(Refreshed { fields: opened.fields, expires_at: row.expires_at }));
        }
        if row.status == NEEDS_AUTHORIZATION || !opened.is_refreshable() {
            return Ok(Attempt::Failed(CredentialState::NeedsAuthorization));
        }
        if let Some((until, state)) = last.backoff.filter(|(until, _)| Instant::now() < *until) {
            tracing::debug!(resource.id = %target.resource, ?until, "skipped a refresh in the pause after a failure");
            return Ok(Attempt::Failed(state));
        }
        let provider = self.store.oauth_provider_for(target.workspace, target.resource, &target.resource_type).await?;
        let issuer = opened.given_for.oauth.as_ref();
        let Some(provider) = provider.filter(|provider| issuer.is_some_and(|issuer| issuer.is(provider))) else {
            return Ok(Attempt::Failed(CredentialState::NeedsAuthorization));
        };
        if !self.store.is_verified_provider(&provider)? {
            // The row differs from the verified row. Either the row is older, or another host has just written it. The
            // next policy snapshot verifies the row again.
            return Ok(Attempt::Failed(CredentialState::Unavailable));
        }
        let now = self.clock.now();
        let until = now.plus_ms(CLAIM_MS);
        if !self.store.claim_refresh(&row, now, until).await? {
            return Ok(Attempt::TryAgain);
        }
        match self.ask(target, &opened, &provider).await {
            Ok(tokens) => self.save(&row, opened, tokens, last).await,
            Err(error) => {
                let cause = error.source().map(ToString::to_string);
                tracing::warn!(resource.id = %target.resource, %error, cause, "no new token was obtained");
                self.record_failure(&row, until, &error, last).await
            }
        }
    }

    async fn ask(
        &self,
        target: &RefreshTarget,
        opened: &Opened,
        provider: &OauthProviderRow,
    ) -> Result<Tokens, RefreshError> {
        let secret = open_secret(&self.vault, provider).map_err(RefreshError::ClientSecret)?;
        let token_url = parse_url(&provider.token_url).map_err(RefreshError::TokenUrl)?;
        let server = ConfirmedServer::of(provider)?;
        let asked = Provider {
            egress: &self.egress,
            clock: self.clock.as_ref(),
            network: &target.network,
            client_id: &provider.client_id,
            client_secret: secret.as_ref(),
            auth: server.map(|server| server.token_auth),
            resource: opened.given_for.indicator.as_deref(),
        };
        let scopes = scopes(provider);
        let grant = match opened.fields.get("refresh_token") {
            Some(refresh_token) => Grant::Refresh { refresh_token },
            None if opened.given_for.auth_method == AuthKind::Oauth2ClientCreds => Grant::Client { scopes: &scopes },
            None => return Err(RefreshError::NoRefreshToken),
        };
        Ok(asked.tokens(&token_url, &grant).await?)
    }

    /// Stores the new tokens, then returns them.
    async fn save(
        &self,
        row: &CredentialRow,
        opened: Opened,
        tokens: Tokens,
        last: &mut LastRefresh,
    ) -> Result<Attempt, StoreError> {
        let Opened { given_for, mut fields } = opened;
        fields.insert("access_token".to_owned(), tokens.access_token);
        // If the answer has no new refresh token, the old refresh token stays valid (RFC 6749, section 6).
        fields.extend(tokens.refresh_token.map(|token| ("refresh_token".to_owned(), token)));
        let sealed = match seal(&self.vault, row.workspace_id, row.resource_id, subject_of(row), &given_for, &fields) {
            Ok(sealed) => sealed,
            Err(error) => {
                tracing::error!(credential.id = %row.id, %error, "failed to encrypt a refreshed credential");
                return Ok(Attempt::Failed(CredentialState::Unavailable));
            }
        };
        let fresh = CredentialRow {
            key_version: i64::from(sealed.key_version()),
            sealed: sealed.to_string(),
            status: READY.to_owned(),
            expires_at: tokens.expires_at,
            updated_at: self.clock.now(),
            ..row.clone()
        };
        let expires_at = fresh.expires_at;
        if self.replace(&fresh, &row.sealed).await? {
            *last = LastRefresh { backoff: None, refreshed_at: Some(Instant::now()) };
            if let Some(place) = place_of(row) {
                self.refused.lock().remove(&place);
            }
            Ok(Attempt::Refreshed(Refreshed { fields, expires_at }))
        } else {
            // The credential was saved again during the refresh. The saved credential takes precedence.
            Ok(Attempt::TryAgain)
        }
    }

    /// Replaces the row whose sealed text is `sealed`. Returns false if the row has changed. While the database is
    /// unavailable, this function retries, because the old refresh token may no longer be valid. Callers that need the
    /// credential wait for this function.
    async fn replace(&self, row: &CredentialRow, sealed: &str) -> Result<bool, StoreError> {
        let until = Instant::now() + STORE_MAX;
        loop {
            match self.store.put_refreshed(row, sealed).await {
                Err(error) if Instant::now() < until => {
                    tracing::debug!(credential.id = %row.id, %error, "retrying to store a refreshed credential");
                    sleep(STORE_RETRY).await;
                }
                Err(error) => {
                    tracing::error!(credential.id = %row.id, %error, "failed to store a refreshed credential");
                    return Err(error);
                }
                Ok(is_written) => return Ok(is_written),
            }
        }
    }

    /// Marks the credential if its grant is invalid. Otherwise releases the lease and starts a pause.
    async fn record_failure(
        &self,
        row: &CredentialRow,
        until: UtcMillis,
        error: &RefreshError,
        last: &mut LastRefresh,
    ) -> Result<Attempt, StoreError> {
        if error.is_of_grant() {
            let refused =
                CredentialRow { status: NEEDS_AUTHORIZATION.to_owned(), updated_at: self.clock.now(), ..row.clone() };
            let is_marked = self.store.put_refused(&refused, &row.sealed).await?;
            // If the row has changed, another refresh or a save has succeeded.
            return Ok(if is_marked {
                Attempt::Failed(CredentialState::NeedsAuthorization)
            } else {
                Attempt::TryAgain
            });
        }
        self.store.release_refresh(row, until).await?;
        // If the provider rejects the client, a person must change the provider, but the credential stays valid.
        let state = match error.code() {
            None | Some("temporarily_unavailable" | "server_error" | "slow_down") => CredentialState::Unavailable,
            Some(_) => {
                self.refused.lock().extend(place_of(row));
                CredentialState::NeedsAuthorization
            }
        };
        last.backoff = Some((Instant::now() + BACKOFF, state));
        Ok(Attempt::Failed(state))
    }
}

fn place_of(row: &CredentialRow) -> Option<CredentialPlace> {
    Subject::of_row(row).map(|subject| (row.resource_id, subject))
}

#[cfg(test)]
mod tests;
