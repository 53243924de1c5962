//! Refreshing what OAuth has brought: one refresh at a time for a credential, over all hosts of a database.
//!
//! A refresh token is often good for one use only, so what it brings is stored before anybody gets it, by a task that no
//! caller can cancel. Who comes second finds the newer token in the row. Only where the provider calls the grant void,
//! and the row is still the one that was tried, the credential is marked: a person has to authorize it again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use monstrum_egress::{CredentialState, Egress, Network};
use monstrum_manifest::AuthKind;
use monstrum_store::{CredentialRow, OauthProviderRow, Store, StoreError};
use monstrum_types::{Clock, ResourceId, ResourceTypeId, Secret, UtcMillis, WorkspaceId};
use monstrum_vault::Vault;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::provider::{open_secret, parse_url, scopes};
use super::token_endpoint::{ANSWER_WAIT_MAX, Grant, Provider, TokenError, Tokens};
use super::{GivenFor, NEEDS_AUTHORIZATION, Opened, READY, access_token, seal};

/// A host that claims a refresh and dies is waited for so long: the longest answer in each place of the secret, and the
/// time to store it.
const CLAIM_MS: i64 = 2 * ANSWER_WAIT_MAX.as_millis() as i64 + 5_000;
/// How long a caller waits for another host's refresh.
const WAIT_MAX: Duration = Duration::from_millis(CLAIM_MS as u64 + 1_000);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// After a failure the provider is left alone for a moment, however many calls come.
const REST: Duration = Duration::from_secs(2);
/// What was fetched is tried to be stored for so long: longer than a database takes to be started anew.
const STORE_MAX: Duration = Duration::from_secs(120);
const STORE_RETRY: Duration = Duration::from_millis(200);
/// A token that this host has just fetched and that is refused, or of a short life, is not exchanged for another one with
/// each call.
const AGE_MIN: Duration = Duration::from_secs(10);
/// Flights that say nothing any more are dropped when this many are held: some 100 bytes each.
const FLIGHTS_SWEEP_AT: usize = 1024;

/// Refreshes the credentials of all resources.
pub struct Refresher {
    pub(super) vault: Arc<Vault>,
    store: Store,
    egress: Egress,
    pub(super) clock: Arc<dyn Clock>,
    flights: Mutex<HashMap<ResourceId, Arc<tokio::sync::Mutex<Flight>>>>,
    /// Whose provider has refused this host the last time it asked.
    refused: Mutex<HashSet<ResourceId>>,
    running: TaskTracker,
}

/// What this host knows of the refreshes of one resource.
#[derive(Default)]
struct Flight {
    rest: Option<(Instant, CredentialState)>,
    refreshed_at: Option<Instant>,
}

impl Flight {
    /// Whether the next refresh has to know of it.
    fn counts(&self) -> bool {
        self.rest.as_ref().is_some_and(|(until, _)| Instant::now() < *until)
            || self.refreshed_at.is_some_and(|at| at.elapsed() < AGE_MIN)
    }
}

/// Whose credential is refreshed.
#[derive(Clone)]
pub struct RefreshTarget {
    pub workspace: WorkspaceId,
    pub resource: ResourceId,
    pub resource_type: ResourceTypeId,
    pub network: Network,
    /// What the stale credential was given for. One that was given for anything else is no newer one of it.
    pub given_for: GivenFor,
}

/// A newer credential.
pub struct Refreshed {
    pub fields: BTreeMap<String, Secret>,
    pub expires_at: Option<UtcMillis>,
}

/// What an attempt has come to.
enum Attempt {
    Refreshed(Refreshed),
    /// Another host is at it, or has just been.
    LookAgain,
    Failed(CredentialState),
}

impl Refresher {
    /// Nothing is refreshed before somebody asks.
    pub fn new(store: Store, vault: Arc<Vault>, egress: Egress, clock: Arc<dyn Clock>) -> Refresher {
        Refresher {
            vault,
            store,
            egress,
            clock,
            flights: Mutex::default(),
            refused: Mutex::default(),
            running: TaskTracker::new(),
        }
    }

    /// A newer credential than the one with the access token `stale`.
    pub async fn refresh(
        self: &Arc<Self>,
        target: RefreshTarget,
        stale: Option<Secret>,
    ) -> Result<Refreshed, CredentialState> {
        let this = Arc::clone(self);
        // A caller that goes away must not take along a token that was fetched and is not stored.
        let task = self.running.spawn(async move { this.fly(&target, stale.as_ref()).await });
        task.await.unwrap_or(Err(CredentialState::Unavailable))
    }

    /// Whether the provider has refused this host the last time that it asked for this resource.
    pub(super) fn is_refused(&self, resource: ResourceId) -> bool {
        self.refused().contains(&resource)
    }

    fn refused(&self) -> std::sync::MutexGuard<'_, HashSet<ResourceId>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for refreshes that are under way.
    pub async fn shut_down(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// The flight of a resource. Two callers that hold it at once hold the same one.
    fn flight(&self, resource: ResourceId) -> Arc<tokio::sync::Mutex<Flight>> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if flights.len() >= FLIGHTS_SWEEP_AT && !flights.contains_key(&resource) {
            // A flight that is held by anything but the map is under way.
            flights.retain(|_, flight| {
                Arc::strong_count(flight) > 1 || flight.try_lock().is_ok_and(|flight| flight.counts())
            });
        }
        Arc::clone(flights.entry(resource).or_default())
    }

    async fn fly(&self, target: &RefreshTarget, stale: Option<&Secret>) -> Result<Refreshed, CredentialState> {
        let flight = self.flight(target.resource);
        let mut flight = flight.lock().await;
        let until = Instant::now() + WAIT_MAX;
        loop {
            let attempt = self.attempt(target, stale, &mut flight).await.unwrap_or_else(|error| {
                tracing::warn!(resource.id = %target.resource, %error, "a credential could not be refreshed");
                Attempt::Failed(CredentialState::Unavailable)
            });
            match attempt {
                Attempt::Refreshed(refreshed) => return Ok(refreshed),
                Attempt::Failed(state) => return Err(state),
                Attempt::LookAgain if Instant::now() >= until => return Err(CredentialState::Unavailable),
                Attempt::LookAgain => sleep(LOOK_AGAIN).await,
            }
        }
    }

    async fn attempt(
        &self,
        target: &RefreshTarget,
        stale: Option<&Secret>,
        flight: &mut Flight,
    ) -> Result<Attempt, StoreError> {
        self.store.require_verified(target.workspace)?;
        let Some(row) = self.store.credential(target.workspace, target.resource).await? else {
            return Ok(Attempt::Failed(CredentialState::None));
        };
        let Ok(opened) = Opened::open(&row, &self.vault) else {
            return Ok(Attempt::Failed(CredentialState::NeedsAuthorization));
        };
        if opened.given_for != target.given_for {
            // It was saved for another audience or with other rules, by which it is not sent: the policy follows at once.
            return Ok(Attempt::Failed(CredentialState::Unavailable));
        }
        let now = self.clock.now();
        let differs = access_token(&opened.fields).as_ref().map(Secret::expose) != stale.map(Secret::expose);
        if differs && row.status == READY && row.expires_at.is_none_or(|end| now < end) {
            return Ok(Attempt::Refreshed(Refreshed { fields: opened.fields, expires_at: row.expires_at }));
        }
        let is_young = flight.refreshed_at.is_some_and(|at| at.elapsed() < AGE_MIN);
        if !differs && is_young && row.status == READY && row.expires_at.is_none_or(|end| now < end) {
            return Ok(Attempt::Refreshed(Refreshed { fields: opened.fields, expires_at: row.expires_at }));
        }
        if row.status == NEEDS_AUTHORIZATION || !opened.is_refreshable() {
            return Ok(Attempt::Failed(CredentialState::NeedsAuthorization));
        }
        if let Some((until, state)) = flight.rest.filter(|(until, _)| Instant::now() < *until) {
            tracing::debug!(resource.id = %target.resource, ?until, "the provider has just refused a refresh");
            return Ok(Attempt::Failed(state));
        }
        let provider = self.store.oauth_provider_of_type(target.workspace, &target.resource_type).await?;
        let issuer = opened.given_for.oauth.as_ref();
        let Some(provider) = provider.filter(|provider| issuer.is_some_and(|issuer| issuer.is(provider))) else {
            return Ok(Attempt::Failed(CredentialState::NeedsAuthorization));
        };
        if !self.store.is_verified_provider(&provider)? {
            // An older version of the row, or one that another host has just written: the policy follows at once.
            return Ok(Attempt::Failed(CredentialState::Unavailable));
        }
        let now = self.clock.now();
        let until = now.plus_ms(CLAIM_MS);
        if !self.store.claim_refresh(&row, now, until).await? {
            return Ok(Attempt::LookAgain);
        }
        match self.ask(target, &opened, &provider).await {
            Ok(tokens) => self.take(&row, opened, tokens, flight).await,
            Err(error) => {
                tracing::warn!(resource.id = %target.resource, %error, "the provider has not refreshed a token");
                self.give_up(&row, until, &error, flight).await
            }
        }
    }

    async fn ask(
        &self,
        target: &RefreshTarget,
        opened: &Opened,
        provider: &OauthProviderRow,
    ) -> Result<Tokens, TokenError> {
        let unusable = |why| TokenError::Unusable { why };
        let secret = open_secret(&self.vault, provider).map_err(|_| unusable("its client secret cannot be opened"))?;
        let token_url = parse_url(&provider.token_url).map_err(|_| unusable("its token_url is no URL"))?;
        let asked = Provider {
            egress: &self.egress,
            clock: self.clock.as_ref(),
            network: &target.network,
            client_id: &provider.client_id,
            client_secret: secret.as_ref(),
        };
        let scopes = scopes(provider);
        let grant = match opened.fields.get("refresh_token") {
            Some(refresh_token) => Grant::Refresh { refresh_token },
            None if opened.given_for.auth_method == AuthKind::Oauth2ClientCreds => Grant::Client { scopes: &scopes },
            None => return Err(unusable("there is no refresh token")),
        };
        asked.tokens(&token_url, &grant).await
    }

    /// Stores what was fetched, then hands it out.
    async fn take(
        &self,
        row: &CredentialRow,
        opened: Opened,
        tokens: Tokens,
        flight: &mut Flight,
    ) -> Result<Attempt, StoreError> {
        let Opened { given_for, mut fields } = opened;
        fields.insert("access_token".to_owned(), tokens.access_token);
        // Without a new one the old one goes on (RFC 6749, section 6).
        fields.extend(tokens.refresh_token.map(|token| ("refresh_token".to_owned(), token)));
        let sealed = match seal(&self.vault, row.workspace_id, row.resource_id, row.id, &given_for, &fields) {
            Ok(sealed) => sealed,
            Err(error) => {
                tracing::error!(credential.id = %row.id, %error, "a refreshed credential cannot be sealed");
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
        if self.keep(&fresh, &row.sealed).await? {
            *flight = Flight { rest: None, refreshed_at: Some(Instant::now()) };
            self.refused().remove(&row.resource_id);
            Ok(Attempt::Refreshed(Refreshed { fields, expires_at }))
        } else {
            // Somebody has saved the credential anew: theirs counts.
            Ok(Attempt::LookAgain)
        }
    }

    /// Writes a refreshed row over the one with the text `sealed`; whether that was still there. The old refresh token may
    /// be spent, so a database that is away is waited for, by whoever else needs the credential as well.
    async fn keep(&self, row: &CredentialRow, sealed: &str) -> Result<bool, StoreError> {
        let until = Instant::now() + STORE_MAX;
        loop {
            match self.store.put_refreshed(row, sealed).await {
                Err(error) if Instant::now() < until => {
                    tracing::debug!(credential.id = %row.id, %error, "a refreshed credential cannot be stored yet");
                    sleep(STORE_RETRY).await;
                }
                Err(error) => {
                    tracing::error!(credential.id = %row.id, %error, "a refreshed credential is lost");
                    return Err(error);
                }
                Ok(is_written) => return Ok(is_written),
            }
        }
    }

    async fn give_up(
        &self,
        row: &CredentialRow,
        until: UtcMillis,
        error: &TokenError,
        flight: &mut Flight,
    ) -> Result<Attempt, StoreError> {
        if error.is_of_grant() {
            let refused =
                CredentialRow { status: NEEDS_AUTHORIZATION.to_owned(), updated_at: self.clock.now(), ..row.clone() };
            let is_marked = self.store.put_refreshed(&refused, &row.sealed).await?;
            // Where the row is another by now, somebody else has had more luck.
            return Ok(if is_marked {
                Attempt::Failed(CredentialState::NeedsAuthorization)
            } else {
                Attempt::LookAgain
            });
        }
        self.store.release_refresh(row, until).await?;
        // A provider that no longer knows the client waits for a person, too, but the credential is not to blame.
        let state = match error.word() {
            None | Some("temporarily_unavailable" | "server_error" | "slow_down") => CredentialState::Unavailable,
            Some(_) => {
                self.refused().insert(row.resource_id);
                CredentialState::NeedsAuthorization
            }
        };
        flight.rest = Some((Instant::now() + REST, state));
        Ok(Attempt::Failed(state))
    }
}

#[cfg(test)]
mod tests {
    use monstrum_egress::EgressOptions;
    use monstrum_store::{DEFAULT_WORKSPACE, ResourceRow, StoreOptions};
    use monstrum_types::{OauthProviderId, SystemClock};
    use monstrum_vault::MasterKeys;
    use serde_json::json;

    use super::super::new_row;
    use super::*;
    use crate::policy::row_seals;

    fn given_for(origin: &str) -> GivenFor {
        let given_for = json!({
            "resource_type": "github", "auth_method": "oauth2_auth_code", "audience": [origin],
            "inject": [{ "header": "Authorization", "value": "Bearer {access_token}" }],
        });
        serde_json::from_value(given_for).unwrap()
    }

    /// A store with a vault, in a folder of their own.
    async fn opened(folder: &tempfile::TempDir) -> (Store, Arc<Vault>) {
        let store = row_seals::open_for_tests(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        let vault = Arc::new(Vault::new(MasterKeys::create(&folder.path().join("master.key")).unwrap()));
        (store, vault)
    }

    #[tokio::test]
    async fn flights_that_have_ended_are_not_kept_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let (store, vault) = opened(&folder).await;
        let refresher = Refresher::new(store, vault, Egress::new(EgressOptions::default()), Arc::new(SystemClock));
        let under_way = refresher.flight(ResourceId::new());
        let recent = ResourceId::new();
        refresher.flight(recent).lock().await.refreshed_at = Some(Instant::now());
        for _ in 0..3 * FLIGHTS_SWEEP_AT {
            refresher.flight(ResourceId::new());
        }
        let flights = refresher.flights.lock().unwrap();
        assert!(flights.len() <= FLIGHTS_SWEEP_AT, "{} are held", flights.len());
        assert!(flights.contains_key(&recent));
        assert!(flights.values().any(|flight| Arc::ptr_eq(flight, &under_way)));
    }

    /// The row of a provider that is not the one that was verified gets no refresh token.
    #[tokio::test]
    async fn a_provider_that_was_not_verified_is_not_asked() {
        let folder = tempfile::tempdir().unwrap();
        let (store, vault) = opened(&folder).await;
        let (workspace, now) = (store.workspace_named(DEFAULT_WORKSPACE).await.unwrap().unwrap().id, SystemClock.now());
        let resource = resource(workspace, now);
        store.insert_resource(&resource).await.unwrap();
        store.snapshot().await.unwrap();
        let provider = OauthProviderRow {
            id: OauthProviderId::new(),
            workspace_id: workspace,
            resource_type: resource.resource_type.clone(),
            client_id: "client".to_owned(),
            client_secret: None,
            authorization_url: None,
            // Nothing can be reached there.
            token_url: "https://127.0.0.1:1/token".to_owned(),
            device_authorization_url: None,
            scopes: json!([]),
            created_at: now,
            updated_at: now,
        };
        store.insert_oauth_provider(&provider).await.unwrap();
        let given_for = given_for("https://here.example").obtained_from(&provider);
        let secret = |text: &str| Secret::new(text.to_owned());
        let fields = BTreeMap::from([
            ("access_token".to_owned(), secret("stale")),
            ("refresh_token".to_owned(), secret("refresh")),
        ]);
        store.put_credential(&new_row(&vault, &resource, &given_for, &fields, now).unwrap()).await.unwrap();
        let egress = Egress::new(EgressOptions::default());
        let refresher = Arc::new(Refresher::new(store.clone(), vault, egress, Arc::new(SystemClock)));
        let was_asked = async || {
            let target = RefreshTarget {
                workspace,
                resource: resource.id,
                resource_type: resource.resource_type.clone(),
                network: Network::default(),
                given_for: given_for.clone(),
            };
            let refreshed = refresher.refresh(target, Some(Secret::new("stale".to_owned()))).await;
            assert!(matches!(refreshed, Err(CredentialState::Unavailable)));
            refresher.flight(resource.id).lock().await.rest.is_some()
        };
        assert!(!was_asked().await, "it was added after the workspace was verified last");
        store.snapshot().await.unwrap();
        assert!(was_asked().await);
    }

    fn resource(workspace: WorkspaceId, now: UtcMillis) -> ResourceRow {
        ResourceRow {
            id: ResourceId::new(),
            workspace_id: workspace,
            resource_type: "github".parse().unwrap(),
            name: "r".to_owned(),
            config: json!({}),
            network: json!({}),
            created_at: now,
            updated_at: now,
        }
    }

    /// What was saved for another audience in the meantime is not sent by the rules of the one before.
    #[tokio::test]
    async fn what_was_given_for_something_else_is_no_newer_token() {
        let folder = tempfile::tempdir().unwrap();
        let (store, vault) = opened(&folder).await;
        let workspace = store.workspace_named(DEFAULT_WORKSPACE).await.unwrap().unwrap().id;
        let now = SystemClock.now();
        let resource = resource(workspace, now);
        store.insert_resource(&resource).await.unwrap();
        let (here, there) = (given_for("https://here.example"), given_for("https://there.example"));
        let fields = BTreeMap::from([("access_token".to_owned(), Secret::new("the newer token".to_owned()))]);
        store.put_credential(&new_row(&vault, &resource, &there, &fields, now).unwrap()).await.unwrap();
        let egress = Egress::new(EgressOptions::default());
        let refresher = Arc::new(Refresher::new(store, vault, egress, Arc::new(SystemClock)));
        let refreshed = async |given_for: GivenFor| {
            let target = RefreshTarget {
                workspace,
                resource: resource.id,
                resource_type: resource.resource_type.clone(),
                network: Network::default(),
                given_for,
            };
            let refreshed = refresher.refresh(target, Some(Secret::new("the stale token".to_owned()))).await;
            refreshed.map(|refreshed| refreshed.fields["access_token"].expose().to_owned())
        };
        assert_eq!(refreshed(here).await, Err(CredentialState::Unavailable));
        assert_eq!(refreshed(there).await, Ok("the newer token".to_owned()));
    }
}
