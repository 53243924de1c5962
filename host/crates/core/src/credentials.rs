//! Credentials. A credential is sealed when it is saved. The host decrypts it only for egress, and only for the purpose
//! for which it was saved.
//!
//! The purpose ([`GivenFor`]: plugin, type, method, audience and inject rules) is part of the associated data of the
//! sealed record, so an edit of the database cannot redirect a credential. If the manifest or the configuration
//! requires more than the purpose allows, the credential cannot be used until an admin confirms it or saves it again.
//! The [`Refresher`] refreshes credentials that were obtained by OAuth.

mod given_for;
mod missing_scopes;
pub mod provider;
mod refresh;
mod subject;
pub mod token_endpoint;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use futures::FutureExt;
use futures::future::BoxFuture;
use monstrum_egress::{Credential, CredentialSource, CredentialState, Network, Redactor};
use monstrum_manifest::{AuthKind, InjectRule, Manifest, OriginPattern};
use monstrum_store::{CredentialRow, ResourceRow};
use monstrum_types::{Clock, CredentialId, PluginName, ResourceId, Secret, UtcMillis, WorkspaceId};
use monstrum_vault::{AssociatedData, Sealed, Vault, VaultError};
use serde_json::{Map, Value};

pub use self::given_for::{GivenFor, Issuer};
pub use self::missing_scopes::missing_scopes;
pub use self::refresh::{RefreshTarget, Refresher};
pub use self::subject::Subject;

/// Seals the fields of a credential for its purpose.
fn seal(
    vault: &Vault,
    workspace: WorkspaceId,
    resource: ResourceId,
    (id, kind, subject): (CredentialId, &str, &str),
    given_for: &GivenFor,
    fields: &BTreeMap<String, Secret>,
) -> Result<Sealed, VaultError> {
    let exposed: BTreeMap<&str, &str> = fields.iter().map(|(name, secret)| (name.as_str(), secret.expose())).collect();
    let plaintext = zeroize::Zeroizing::new(serde_json::to_vec(&exposed).expect("a map of texts is JSON"));
    vault.seal(&plaintext, place(workspace, resource, (id, kind, subject), given_for))
}

/// Creates the row of a new credential.
pub fn new_row(
    vault: &Vault,
    resource: &ResourceRow,
    subject: &Subject,
    given_for: &GivenFor,
    fields: &BTreeMap<String, Secret>,
    now: UtcMillis,
) -> Result<CredentialRow, VaultError> {
    let id = CredentialId::new();
    let of_subject = (id, subject.kind(), subject.id());
    let sealed = seal(vault, resource.workspace_id, resource.id, of_subject, given_for, fields)?;
    Ok(CredentialRow {
        id,
        workspace_id: resource.workspace_id,
        resource_id: resource.id,
        subject_kind: subject.kind().to_owned(),
        subject_id: subject.id().to_owned(),
        auth_method: given_for.auth_method.as_str().to_owned(),
        key_version: i64::from(sealed.key_version()),
        sealed: sealed.to_string(),
        given_for: serde_json::to_value(given_for).expect("plain names and lists are JSON"),
        status: READY.to_owned(),
        expires_at: None,
        created_at: now,
        updated_at: now,
    })
}

/// Returns the associated data of the sealed fields of a credential, which has this id, kind of subject and id of the
/// subject. A record that is moved to the row of another user cannot be decrypted.
pub fn place(
    workspace: WorkspaceId,
    resource: ResourceId,
    (id, kind, subject): (CredentialId, &str, &str),
    given_for: &GivenFor,
) -> AssociatedData {
    let given_for = serde_json::to_value(given_for).expect("plain names and lists are JSON");
    subject::bound_to(AssociatedData::credential(workspace, id, resource, "fields", &given_for), kind, subject)
}

/// Returns the id and the subject of a row, to which its record is bound.
fn subject_of(row: &CredentialRow) -> (CredentialId, &str, &str) {
    (row.id, &row.subject_kind, &row.subject_id)
}

/// The status of a credential that can be used.
const READY: &str = "ready";
/// The status of a credential whose grant the provider has rejected.
const NEEDS_AUTHORIZATION: &str = "needs-authorization";

/// A stored credential. The host decrypts it on first use and keeps it decrypted until its row changes.
pub struct HeldCredential {
    pub row: CredentialRow,
    refresher: Arc<Refresher>,
    opened: OnceLock<Option<Opened>>,
}

struct Opened {
    given_for: GivenFor,
    fields: BTreeMap<String, Secret>,
}

impl Opened {
    /// Decrypts the record of a row. The error text does not contain any part of the record.
    fn open(row: &CredentialRow, vault: &Vault) -> Result<Opened, String> {
        let given_for: GivenFor = serde_json::from_value(row.given_for.clone()).map_err(|error| error.to_string())?;
        let sealed: Sealed = row.sealed.parse().map_err(|error: VaultError| error.to_string())?;
        let associated = place(row.workspace_id, row.resource_id, subject_of(row), &given_for);
        let plaintext = vault.unseal(&sealed, associated).map_err(|error| error.to_string())?;
        let fields = serde_json::from_slice(&plaintext).map_err(|_| "the decrypted fields are not JSON".to_owned())?;
        Ok(Opened { given_for, fields })
    }

    /// Returns whether a newer token can be requested from the issuer.
    fn is_refreshable(&self) -> bool {
        let is_of_client = self.given_for.auth_method == AuthKind::Oauth2ClientCreds;
        self.given_for.oauth.is_some() && (is_of_client || self.fields.contains_key("refresh_token"))
    }
}

impl HeldCredential {
    /// Creates the credential of this row without decrypting the record.
    pub fn new(row: CredentialRow, refresher: Arc<Refresher>) -> Self {
        HeldCredential { row, refresher, opened: OnceLock::new() }
    }

    /// Returns whether the credential was created from exactly this row.
    pub fn is_of(&self, row: &CredentialRow) -> bool {
        self.row == *row
    }

    /// Returns whether the credential needs no new authorization by a person. A credential that was obtained by OAuth
    /// needs a new authorization if the current issuer of its type (`issuer`) is not the issuer that issued it, or if
    /// that issuer has refused the last refresh request of this host. All other credentials need none, including
    /// credentials that cannot be decrypted.
    pub fn can_go_on(&self, issuer: Option<&Issuer>) -> bool {
        match self.opened().and_then(|opened| opened.given_for.oauth.as_ref()) {
            Some(own) => issuer == Some(own) && !self.refresher.is_refused(&self.row),
            None => true,
        }
    }

    /// Returns the decrypted record, or `None` if it cannot be decrypted because the key is missing or the row was
    /// edited.
    fn opened(&self) -> Option<&Opened> {
        let open = || {
            let opened = Opened::open(&self.row, &self.refresher.vault);
            if let Err(error) = &opened {
                tracing::error!(credential.id = %self.row.id, %error, "failed to decrypt a credential; save it again");
            }
            opened.ok()
        };
        self.opened.get_or_init(open).as_ref()
    }
}

/// The reason why a credential cannot be confirmed for the current manifest and configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfirmError {
    #[error("the stored credential cannot be decrypted; save it again")]
    Unreadable,
    #[error("the resource type no longer has the auth method `{method}`; save the credential again")]
    MethodGone { method: AuthKind },
    #[error("the stored credential lacks fields that the resource type requires ({what}); save it again")]
    Incomplete { what: String },
    #[error("failed to encrypt the credential")]
    Vault(#[from] VaultError),
}

impl HeldCredential {
    /// Returns the row of the credential, sealed for the purpose that results from the current manifest and
    /// configuration.
    pub fn confirmed(&self, manifest: &Manifest, config: &Map<String, Value>) -> Result<CredentialRow, ConfirmError> {
        let opened = self.opened().ok_or(ConfirmError::Unreadable)?;
        let gone = || ConfirmError::MethodGone { method: opened.given_for.auth_method };
        let mut given_for = opened.given_for.wanted_by(manifest, config).ok_or_else(gone)?;
        // A confirmation changes only how and where the credential may be sent. A secret field stays secret until the
        // credential is saved again.
        given_for.plain_fields.retain(|field| opened.given_for.plain_fields.contains(field));
        let missing: BTreeSet<&str> = given_for
            .inject
            .iter()
            .flat_map(InjectRule::templates)
            .flat_map(monstrum_manifest::placeholders)
            .filter(|field| !opened.fields.contains_key(*field))
            .collect();
        if !missing.is_empty() {
            let what = missing.into_iter().collect::<Vec<_>>().join(", ");
            return Err(ConfirmError::Incomplete { what });
        }
        let row = &self.row;
        let sealed = seal(
            &self.refresher.vault,
            row.workspace_id,
            row.resource_id,
            subject_of(row),
            &given_for,
            &opened.fields,
        )?;
        Ok(CredentialRow {
            key_version: i64::from(sealed.key_version()),
            sealed: sealed.to_string(),
            given_for: serde_json::to_value(&given_for).expect("plain names and lists are JSON"),
            ..row.clone()
        })
    }
}

/// The current state of a resource, with which a stored credential is compared.
#[derive(Clone, Copy)]
pub struct ServedResource<'a> {
    pub row: &'a ResourceRow,
    pub manifest: &'a Manifest,
    pub config: &'a Map<String, Value>,
    pub network: &'a Network,
    /// The plugin to which credentials of this type belong if their record names no plugin.
    pub legacy_plugin: Option<&'a PluginName>,
}

/// The source from which egress reads the credential of one resource.
pub struct ResourceCredential {
    state: CredentialState,
    clock: Option<Arc<dyn Clock>>,
    /// The newest credential. A refresh replaces it.
    credential: ArcSwapOption<Credential>,
    /// The redactor for the secrets of the newest credential and of the previous credential.
    redactor: ArcSwap<Redactor>,
    requested_audience: Option<Vec<OriginPattern>>,
    refreshed_by: Option<RefreshedBy>,
}

/// The refresher of a credential and its arguments.
struct RefreshedBy {
    refresher: Arc<Refresher>,
    target: RefreshTarget,
}

impl ResourceCredential {
    /// Checks the stored credential against the current manifest and configuration of the resource.
    pub fn of(resource: ServedResource<'_>, held: Option<&HeldCredential>) -> ResourceCredential {
        let methods = &resource.manifest.resource_type.auth_methods;
        let needed = methods.iter().any(|method| method.method != AuthKind::None);
        let absent = if needed { CredentialState::None } else { CredentialState::NotNeeded };
        let without = ResourceCredential::without;
        let Some(held) = held else {
            return without(absent, Arc::default());
        };
        let Some(opened) = held.opened() else {
            return without(CredentialState::NeedsAuthorization, Arc::default());
        };
        let Some(subject) = Subject::of_row(&held.row) else {
            return without(CredentialState::NeedsAuthorization, Arc::default());
        };
        let given_for = &opened.given_for;
        let wanted = given_for.wanted_by(resource.manifest, resource.config);
        // A field is plain only if it is plain in the old and in the new manifest, so that a changed manifest cannot
        // reveal a secret.
        let plain_fields = match &wanted {
            Some(wanted) => given_for.plain_fields.intersection(&wanted.plain_fields).cloned().collect(),
            None => BTreeSet::new(),
        };
        let mut credential = Credential {
            fields: opened.fields.clone(),
            plain_fields,
            inject: given_for.inject.clone(),
            audience: Vec::new(),
            refreshable: opened.is_refreshable(),
            expires_at: held.row.expires_at,
        };
        let redactor = Arc::new(Redactor::new(credential.secret_values()));
        let Some(audience) = wanted.as_ref().and_then(|wanted| given_for.narrowed_to(wanted, resource.legacy_plugin))
        else {
            let requested_audience = wanted.map(|wanted| wanted.audience);
            return ResourceCredential { requested_audience, ..without(CredentialState::NeedsAuthorization, redactor) };
        };
        if held.row.status == NEEDS_AUTHORIZATION {
            return without(CredentialState::NeedsAuthorization, redactor);
        }
        credential.audience = audience;
        let target = RefreshTarget {
            workspace: resource.row.workspace_id,
            resource: resource.row.id,
            subject,
            resource_type: resource.row.resource_type.clone(),
            network: resource.network.clone(),
            given_for: given_for.clone(),
        };
        let refresher = Arc::clone(&held.refresher);
        ResourceCredential {
            refreshed_by: credential.refreshable.then_some(RefreshedBy { refresher, target }),
            clock: Some(Arc::clone(&held.refresher.clock)),
            credential: ArcSwapOption::from_pointee(credential),
            ..without(CredentialState::Ready, redactor)
        }
    }

    /// Returns the source of a user who has no credential.
    pub fn absent() -> ResourceCredential {
        ResourceCredential::without(CredentialState::None, Arc::default())
    }

    /// Returns the source for a call without a resource. The requests of such a call carry no credential.
    pub fn nothing() -> ResourceCredential {
        ResourceCredential::without(CredentialState::NotNeeded, Arc::default())
    }

    fn without(state: CredentialState, redactor: Arc<Redactor>) -> ResourceCredential {
        ResourceCredential {
            state,
            clock: None,
            credential: ArcSwapOption::empty(),
            redactor: ArcSwap::new(redactor),
            requested_audience: None,
            refreshed_by: None,
        }
    }

    /// Returns the audience that a confirmation would allow, or `None` if the credential needs no confirmation.
    pub fn requested_audience(&self) -> Option<&[OriginPattern]> {
        self.requested_audience.as_deref()
    }

    /// Returns the time at which the credential ends. `None` if it has no end, or if the host refreshes it.
    pub fn ends_at(&self) -> Option<UtcMillis> {
        let credential = self.credential.load();
        credential.as_ref().filter(|credential| !credential.refreshable).and_then(|held| held.expires_at)
    }

    /// Returns the redactor for the secrets of the credential.
    pub fn redactor(&self) -> Arc<Redactor> {
        self.redactor.load_full()
    }
}

impl CredentialSource for ResourceCredential {
    fn status(&self) -> CredentialState {
        match (self.ends_at(), &self.clock) {
            (Some(end), Some(clock)) if end <= clock.now() => CredentialState::Expired,
            _ => self.state,
        }
    }

    fn current(&self) -> BoxFuture<'_, Result<Arc<Credential>, CredentialState>> {
        let current = self.credential.load_full().ok_or(self.state);
        async move { current }.boxed()
    }

    fn refresh<'a>(&'a self, stale: &'a Credential) -> BoxFuture<'a, Result<Arc<Credential>, CredentialState>> {
        async move {
            let Some(RefreshedBy { refresher, target }) = &self.refreshed_by else {
                return Err(CredentialState::Expired);
            };
            let refreshed = refresher.refresh(target.clone(), access_token(&stale.fields)).await?;
            let fresh = Arc::new(Credential {
                fields: refreshed.fields,
                expires_at: refreshed.expires_at,
                // The provider decides neither the audience nor the inject rules.
                ..stale.clone()
            });
            // The redactor is replaced before the credential, so that no caller gets a secret that is not redacted. The
            // new redactor also removes the stale secrets, because a provider may accept them for a while.
            let secrets = stale.secret_values().into_iter().chain(fresh.secret_values());
            self.redactor.store(Arc::new(Redactor::new(secrets)));
            self.credential.store(Some(Arc::clone(&fresh)));
            Ok(fresh)
        }
        .boxed()
    }
}

/// Returns the access token, which identifies a version of a credential.
fn access_token(fields: &BTreeMap<String, Secret>) -> Option<Secret> {
    fields.get("access_token").cloned()
}
