//! Credentials: sealed when they are saved, opened only for egress, and only for what they were given for.
//!
//! What a credential was given for (its type, method, audience and inject rules) is part of the associated data of its
//! record, so an edit of the database cannot point it elsewhere. When manifest or configuration say more than that, the
//! credential waits until an admin saves it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use monstrum_egress::{Credential, CredentialSource, CredentialState, Redactor};
use monstrum_manifest::{AuthKind, AuthMethod, FieldKind, InjectRule, OriginPattern, ResourceType};
use monstrum_store::CredentialRow;
use monstrum_types::{CredentialId, ResourceId, ResourceTypeId, Secret, WorkspaceId};
use monstrum_vault::{AssociatedData, Sealed, Vault, VaultError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::policy::Resource;

/// What a credential was given for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenFor {
    pub resource_type: ResourceTypeId,
    pub auth_method: AuthKind,
    /// The origins that may get it.
    pub audience: Vec<OriginPattern>,
    /// How it is added to a request.
    pub inject: Vec<InjectRule>,
    /// The fields that were not secret: only these may ever be shown.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub plain_fields: BTreeSet<String>,
}

impl GivenFor {
    /// What the manifest and the configuration say now.
    pub fn now(
        resource_type: &ResourceType,
        method: &AuthMethod,
        config: &Map<String, Value>,
        executor: &monstrum_manifest::Executor,
    ) -> GivenFor {
        GivenFor {
            resource_type: resource_type.id.clone(),
            auth_method: method.method,
            audience: method.audience(config, executor),
            inject: method.inject_rules(),
            plain_fields: plain_fields(resource_type, method),
        }
    }

    /// What the contract and configuration of `resource` say now about the method of this credential.
    fn wanted_by(&self, resource: &Resource) -> Option<GivenFor> {
        let manifest = &resource.plugin.manifest;
        let methods = &manifest.resource_type.auth_methods;
        let method = methods.iter().find(|method| method.method == self.auth_method)?;
        Some(GivenFor::now(&manifest.resource_type, method, &resource.config, &manifest.executor))
    }

    /// The audience that both this, the sealed one, and `now` allow; `None` where `now` asks for more than was given.
    fn narrowed_to(&self, now: &GivenFor) -> Option<Vec<OriginPattern>> {
        let same = self.resource_type == now.resource_type
            && self.auth_method == now.auth_method
            && self.inject == now.inject
            && now.audience.iter().all(|origin| self.audience.iter().any(|given| given.covers(origin)));
        same.then(|| now.audience.clone())
    }
}

/// Seals the fields of a credential for exactly what it is given for.
pub fn seal(
    vault: &Vault,
    workspace: WorkspaceId,
    resource: ResourceId,
    id: CredentialId,
    given_for: &GivenFor,
    fields: &BTreeMap<String, Secret>,
) -> Result<Sealed, VaultError> {
    let exposed: BTreeMap<&str, &str> = fields.iter().map(|(name, secret)| (name.as_str(), secret.expose())).collect();
    let plaintext = zeroize::Zeroizing::new(serde_json::to_vec(&exposed).expect("a map of texts is JSON"));
    vault.seal(&plaintext, associated_data(workspace, resource, id, given_for))
}

fn associated_data(
    workspace: WorkspaceId,
    resource: ResourceId,
    id: CredentialId,
    given_for: &GivenFor,
) -> AssociatedData {
    let given_for = serde_json::to_value(given_for).expect("plain names and lists are JSON");
    AssociatedData::credential(workspace, id, resource, "fields", &given_for)
}

/// A stored credential. It is opened on first use and kept open as long as its row does not change.
pub struct HeldCredential {
    pub row: CredentialRow,
    vault: Arc<Vault>,
    opened: OnceLock<Option<Opened>>,
}

struct Opened {
    given_for: GivenFor,
    fields: BTreeMap<String, Secret>,
}

impl HeldCredential {
    /// Nothing is opened yet.
    pub fn new(row: CredentialRow, vault: Arc<Vault>) -> Self {
        HeldCredential { row, vault, opened: OnceLock::new() }
    }

    /// Whether it was made from this very row.
    pub fn is_of(&self, row: &CredentialRow) -> bool {
        self.row == *row
    }

    /// `None` where the record cannot be opened: another key, or an edited row.
    fn opened(&self) -> Option<&Opened> {
        let open = || {
            let opened = self.open();
            if let Err(error) = &opened {
                tracing::error!(credential.id = %self.row.id, %error, "the credential cannot be opened");
            }
            opened.ok()
        };
        self.opened.get_or_init(open).as_ref()
    }

    fn open(&self) -> Result<Opened, String> {
        let row = &self.row;
        let given_for: GivenFor = serde_json::from_value(row.given_for.clone()).map_err(|error| error.to_string())?;
        let sealed: Sealed = row.sealed.parse().map_err(|error: VaultError| error.to_string())?;
        let associated = associated_data(row.workspace_id, row.resource_id, row.id, &given_for);
        let plaintext = self.vault.unseal(&sealed, associated).map_err(|error| error.to_string())?;
        let fields = serde_json::from_slice(&plaintext).map_err(|_| "the sealed fields are not JSON".to_owned())?;
        Ok(Opened { given_for, fields })
    }
}

/// Why a credential cannot be given for what is asked now.
#[derive(Debug, thiserror::Error)]
pub enum ConfirmError {
    #[error("the stored credential cannot be opened; save it anew")]
    Unreadable,
    #[error("the type of this resource has no auth method `{method}` any more; save the credential anew")]
    MethodGone { method: AuthKind },
    #[error("the stored credential lacks what the type asks for ({what}); save it anew")]
    Incomplete { what: String },
    #[error("the credential could not be sealed")]
    Vault(#[from] VaultError),
}

impl HeldCredential {
    /// Its row, sealed for what the contract and configuration of `resource` ask for now.
    pub fn confirmed(&self, resource: &Resource) -> Result<CredentialRow, ConfirmError> {
        let opened = self.opened().ok_or(ConfirmError::Unreadable)?;
        let gone = || ConfirmError::MethodGone { method: opened.given_for.auth_method };
        let mut given_for = opened.given_for.wanted_by(resource).ok_or_else(gone)?;
        // Confirming says where it may go; what was given as a secret stays one until it is saved anew.
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
        let sealed = seal(&self.vault, row.workspace_id, row.resource_id, row.id, &given_for, &opened.fields)?;
        Ok(CredentialRow {
            key_version: i64::from(sealed.key_version()),
            sealed: sealed.to_string(),
            given_for: serde_json::to_value(&given_for).expect("plain names and lists are JSON"),
            status: "ready".to_owned(),
            ..row.clone()
        })
    }
}

/// The credential of one resource, as egress takes it.
pub struct ResourceCredential {
    state: CredentialState,
    credential: Option<Arc<Credential>>,
    redactor: Arc<Redactor>,
    requested_audience: Option<Vec<OriginPattern>>,
}

impl ResourceCredential {
    /// Judges what is stored for `resource` by what manifest and configuration say now.
    pub fn of(resource: &Resource) -> ResourceCredential {
        let methods = &resource.plugin.manifest.resource_type.auth_methods;
        let needed = methods.iter().any(|method| method.method != AuthKind::None);
        let absent = if needed { CredentialState::None } else { CredentialState::NotNeeded };
        let without =
            |state, redactor| ResourceCredential { state, credential: None, redactor, requested_audience: None };
        let Some(held) = &resource.credential else {
            return without(absent, Arc::default());
        };
        let Some(opened) = held.opened() else {
            return without(CredentialState::NeedsAuthorization, Arc::default());
        };
        let given_for = &opened.given_for;
        let wanted = given_for.wanted_by(resource);
        // A field that is not plain by both contracts stays secret, so that a changed contract uncovers nothing.
        let plain_fields = match &wanted {
            Some(wanted) => given_for.plain_fields.intersection(&wanted.plain_fields).cloned().collect(),
            None => BTreeSet::new(),
        };
        let mut credential = Credential {
            fields: opened.fields.clone(),
            plain_fields,
            inject: given_for.inject.clone(),
            audience: Vec::new(),
            refreshable: false,
            expires_at: held.row.expires_at,
        };
        let redactor = Arc::new(Redactor::new(credential.secret_values()));
        let Some(audience) = wanted.as_ref().and_then(|wanted| given_for.narrowed_to(wanted)) else {
            let requested_audience = wanted.map(|wanted| wanted.audience);
            return ResourceCredential { requested_audience, ..without(CredentialState::NeedsAuthorization, redactor) };
        };
        credential.audience = audience;
        let credential = Some(Arc::new(credential));
        ResourceCredential { state: CredentialState::Ready, credential, redactor, requested_audience: None }
    }

    /// That of a call without a resource: requests go without.
    pub fn nothing() -> ResourceCredential {
        let state = CredentialState::NotNeeded;
        ResourceCredential { state, credential: None, redactor: Arc::default(), requested_audience: None }
    }

    /// Who would get the credential if it was confirmed, while it needs authorization.
    pub fn requested_audience(&self) -> Option<&[OriginPattern]> {
        self.requested_audience.as_deref()
    }

    /// Takes every secret of the resource out of what passes through it.
    pub fn redactor(&self) -> &Arc<Redactor> {
        &self.redactor
    }
}

/// The fields that the contract calls something other than secret.
fn plain_fields(resource_type: &ResourceType, method: &AuthMethod) -> BTreeSet<String> {
    let declared = method.credential_fields(resource_type).iter();
    declared.filter(|field| field.kind != FieldKind::Secret).map(|field| field.field.clone()).collect()
}

impl CredentialSource for ResourceCredential {
    fn status(&self) -> CredentialState {
        self.state
    }

    fn current(&self) -> BoxFuture<'_, Result<Arc<Credential>, CredentialState>> {
        let current = self.credential.clone().ok_or(self.state);
        async move { current }.boxed()
    }

    /// Static credentials are never refreshed; what OAuth stores is, once the platform speaks OAuth.
    fn refresh<'a>(&'a self, _stale: &'a Credential) -> BoxFuture<'a, Result<Arc<Credential>, CredentialState>> {
        let state = CredentialState::Expired;
        async move { Err(state) }.boxed()
    }
}
