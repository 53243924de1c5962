//! Credentials: sealed when they are saved, opened only for egress, and only for what they were given for.
//!
//! What a credential was given for (its plugin, type, method, audience and inject rules) is part of the associated data of its
//! record, so an edit of the database cannot point it elsewhere. When manifest or configuration say more than that, the
//! credential waits until an admin saves it anew. What OAuth has brought is refreshed in time ([`Refresher`]).

pub mod provider;
mod refresh;
pub mod token_endpoint;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use futures::FutureExt;
use futures::future::BoxFuture;
use monstrum_egress::{Credential, CredentialSource, CredentialState, Redactor};
use monstrum_manifest::{AuthKind, AuthMethod, FieldKind, InjectRule, Manifest, OriginPattern, ResourceType};
use monstrum_store::{CredentialRow, OauthProviderRow, ResourceRow};
use monstrum_types::{Clock, CredentialId, PluginName, ResourceId, ResourceTypeId, Secret, UtcMillis, WorkspaceId};
use monstrum_vault::{AssociatedData, Sealed, Vault, VaultError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::refresh::{RefreshTarget, Refresher};

use crate::policy::Resource;

/// What a credential was given for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenFor {
    /// The plugin that served the type. Absent in records from before types had owners: these were given for the plugin that
    /// owned the type when the owners were filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginName>,
    pub resource_type: ResourceTypeId,
    pub auth_method: AuthKind,
    /// The origins that may get it.
    pub audience: Vec<OriginPattern>,
    /// How it is added to a request.
    pub inject: Vec<InjectRule>,
    /// The fields that were not secret: only these may ever be shown.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub plain_fields: BTreeSet<String>,
    /// Who has issued it and refreshes it, where OAuth has brought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth: Option<Issuer>,
}

/// Where a token comes from: a refresh token goes nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issuer {
    pub token_url: String,
    pub client_id: String,
}

impl Issuer {
    /// The provider of this row.
    pub fn of(provider: &OauthProviderRow) -> Issuer {
        Issuer { token_url: provider.token_url.clone(), client_id: provider.client_id.clone() }
    }

    /// Whether the provider of this row is it.
    pub fn is(&self, provider: &OauthProviderRow) -> bool {
        *self == Issuer::of(provider)
    }
}

impl GivenFor {
    /// What the manifest and the configuration say now.
    pub fn now(manifest: &Manifest, method: &AuthMethod, config: &Map<String, Value>) -> GivenFor {
        let Manifest { resource_type, executor, .. } = manifest;
        GivenFor {
            plugin: Some(manifest.name.clone()),
            resource_type: resource_type.id.clone(),
            auth_method: method.method,
            audience: method.audience(config, executor),
            inject: method.inject_rules(),
            plain_fields: plain_fields(resource_type, method),
            oauth: None,
        }
    }

    /// The same of a credential that this provider issues. All that it brings is secret, whatever the contract says.
    pub fn obtained_from(self, provider: &OauthProviderRow) -> GivenFor {
        GivenFor { plain_fields: BTreeSet::new(), oauth: Some(Issuer::of(provider)), ..self }
    }

    /// What the contract and configuration of `resource` say now about the method of this credential.
    fn wanted_by(&self, resource: &Resource) -> Option<GivenFor> {
        let manifest = &resource.plugin.manifest;
        let methods = &manifest.resource_type.auth_methods;
        let method = methods.iter().find(|method| method.method == self.auth_method)?;
        let now = GivenFor::now(manifest, method, &resource.config);
        Some(GivenFor { oauth: self.oauth.clone(), ..now })
    }

    /// The audience that both this, the sealed one, and `now` allow; `None` where `now` asks for more than was given.
    /// `legacy_plugin` is the plugin for which records were given that name none.
    fn narrowed_to(&self, now: &GivenFor, legacy_plugin: Option<&PluginName>) -> Option<Vec<OriginPattern>> {
        let plugin = self.plugin.as_ref().or(legacy_plugin);
        let same = plugin.is_some()
            && plugin == now.plugin.as_ref()
            && self.resource_type == now.resource_type
            && self.auth_method == now.auth_method
            && self.inject == now.inject
            && now.audience.iter().all(|origin| self.audience.iter().any(|given| given.covers(origin)));
        same.then(|| now.audience.clone())
    }
}

/// Seals the fields of a credential for exactly what it is given for.
fn seal(
    vault: &Vault,
    workspace: WorkspaceId,
    resource: ResourceId,
    id: CredentialId,
    given_for: &GivenFor,
    fields: &BTreeMap<String, Secret>,
) -> Result<Sealed, VaultError> {
    let exposed: BTreeMap<&str, &str> = fields.iter().map(|(name, secret)| (name.as_str(), secret.expose())).collect();
    let plaintext = zeroize::Zeroizing::new(serde_json::to_vec(&exposed).expect("a map of texts is JSON"));
    vault.seal(&plaintext, place(workspace, resource, id, given_for))
}

/// The row of a credential that is new for its resource.
pub fn new_row(
    vault: &Vault,
    resource: &ResourceRow,
    given_for: &GivenFor,
    fields: &BTreeMap<String, Secret>,
    now: UtcMillis,
) -> Result<CredentialRow, VaultError> {
    let id = CredentialId::new();
    let sealed = seal(vault, resource.workspace_id, resource.id, id, given_for, fields)?;
    Ok(CredentialRow {
        id,
        workspace_id: resource.workspace_id,
        resource_id: resource.id,
        subject_kind: "shared".to_owned(),
        subject_id: String::new(),
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

/// What the sealed fields of a credential are bound to.
pub fn place(workspace: WorkspaceId, resource: ResourceId, id: CredentialId, given_for: &GivenFor) -> AssociatedData {
    let given_for = serde_json::to_value(given_for).expect("plain names and lists are JSON");
    AssociatedData::credential(workspace, id, resource, "fields", &given_for)
}

/// The status of a row that may be used, and of one that its provider no longer honours.
const READY: &str = "ready";
const NEEDS_AUTHORIZATION: &str = "needs-authorization";

/// A stored credential. It is opened on first use and kept open as long as its row does not change.
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
    /// Opens the record of a row. What goes wrong is put into words that hold nothing of it.
    fn open(row: &CredentialRow, vault: &Vault) -> Result<Opened, String> {
        let given_for: GivenFor = serde_json::from_value(row.given_for.clone()).map_err(|error| error.to_string())?;
        let sealed: Sealed = row.sealed.parse().map_err(|error: VaultError| error.to_string())?;
        let associated = place(row.workspace_id, row.resource_id, row.id, &given_for);
        let plaintext = vault.unseal(&sealed, associated).map_err(|error| error.to_string())?;
        let fields = serde_json::from_slice(&plaintext).map_err(|_| "the sealed fields are not JSON".to_owned())?;
        Ok(Opened { given_for, fields })
    }

    /// Whether the one who has issued it can be asked for a newer one.
    fn is_refreshable(&self) -> bool {
        let is_of_client = self.given_for.auth_method == AuthKind::Oauth2ClientCreds;
        self.given_for.oauth.is_some() && (is_of_client || self.fields.contains_key("refresh_token"))
    }
}

impl HeldCredential {
    /// Nothing is opened yet.
    pub fn new(row: CredentialRow, refresher: Arc<Refresher>) -> Self {
        HeldCredential { row, refresher, opened: OnceLock::new() }
    }

    /// Whether it was made from this very row.
    pub fn is_of(&self, row: &CredentialRow) -> bool {
        self.row == *row
    }

    /// Whether it can be refreshed when it ends, `issuer` being who issues the tokens of its type at present. Where that is
    /// another by now, or has refused this host, a person has to see to it.
    pub fn can_go_on(&self, issuer: Option<&Issuer>) -> bool {
        match self.opened().and_then(|opened| opened.given_for.oauth.as_ref()) {
            Some(own) => issuer == Some(own) && !self.refresher.is_refused(self.row.resource_id),
            None => true,
        }
    }

    /// `None` where the record cannot be opened: another key, or an edited row.
    fn opened(&self) -> Option<&Opened> {
        let open = || {
            let opened = Opened::open(&self.row, &self.refresher.vault);
            if let Err(error) = &opened {
                tracing::error!(credential.id = %self.row.id, %error, "the credential cannot be opened");
            }
            opened.ok()
        };
        self.opened.get_or_init(open).as_ref()
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
        let sealed =
            seal(&self.refresher.vault, row.workspace_id, row.resource_id, row.id, &given_for, &opened.fields)?;
        Ok(CredentialRow {
            key_version: i64::from(sealed.key_version()),
            sealed: sealed.to_string(),
            given_for: serde_json::to_value(&given_for).expect("plain names and lists are JSON"),
            ..row.clone()
        })
    }
}

/// The credential of one resource, as egress takes it.
pub struct ResourceCredential {
    state: CredentialState,
    clock: Option<Arc<dyn Clock>>,
    /// The newest; a refresh puts its own in place.
    credential: ArcSwapOption<Credential>,
    redactor: Arc<Redactor>,
    requested_audience: Option<Vec<OriginPattern>>,
    refreshed_by: Option<RefreshedBy>,
}

/// Who refreshes a credential, and what is needed for it.
struct RefreshedBy {
    refresher: Arc<Refresher>,
    target: RefreshTarget,
}

impl ResourceCredential {
    /// Judges what is stored for `resource` by what manifest and configuration say now.
    pub fn of(resource: &Resource) -> ResourceCredential {
        let methods = &resource.plugin.manifest.resource_type.auth_methods;
        let needed = methods.iter().any(|method| method.method != AuthKind::None);
        let absent = if needed { CredentialState::None } else { CredentialState::NotNeeded };
        let without = ResourceCredential::without;
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
            refreshable: opened.is_refreshable(),
            expires_at: held.row.expires_at,
        };
        let redactor = Arc::new(Redactor::new(credential.secret_values()));
        let Some(audience) =
            wanted.as_ref().and_then(|wanted| given_for.narrowed_to(wanted, resource.legacy_plugin.as_ref()))
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
            resource_type: resource.row.resource_type.clone(),
            network: resource.scope.network.clone(),
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

    /// That of a call without a resource: requests go without.
    pub fn nothing() -> ResourceCredential {
        ResourceCredential::without(CredentialState::NotNeeded, Arc::default())
    }

    fn without(state: CredentialState, redactor: Arc<Redactor>) -> ResourceCredential {
        ResourceCredential {
            state,
            clock: None,
            credential: ArcSwapOption::empty(),
            redactor,
            requested_audience: None,
            refreshed_by: None,
        }
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
        let credential = self.credential.load();
        let ends_at = credential.as_ref().filter(|credential| !credential.refreshable).and_then(|held| held.expires_at);
        match (ends_at, &self.clock) {
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
                // Where it may go and how is not the provider's to say.
                ..stale.clone()
            });
            self.credential.store(Some(Arc::clone(&fresh)));
            Ok(fresh)
        }
        .boxed()
    }
}

/// What a token is told apart by.
fn access_token(fields: &BTreeMap<String, Secret>) -> Option<Secret> {
    fields.get("access_token").cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn given_for(plugin: Option<&str>) -> GivenFor {
        let mut value = json!({
            "resource_type": "github", "auth_method": "token", "audience": ["https://api.example"],
            "inject": [{ "header": "Authorization", "value": "Bearer {access_token}" }],
        });
        if let Some(plugin) = plugin {
            value["plugin"] = json!(plugin);
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_credential_is_good_for_the_plugin_that_it_was_given_for() {
        let (github, other): (PluginName, PluginName) = ("github".parse().unwrap(), "other".parse().unwrap());
        for (given, legacy, now, expected) in [
            (Some("github"), None, "github", true),
            (Some("github"), Some(&other), "github", true),
            (Some("github"), None, "other", false),
            (Some("github"), Some(&other), "other", false),
            // A record from before names no plugin: it was given for the owner of that time.
            (None, Some(&github), "github", true),
            (None, Some(&github), "other", false),
            // A type that had no owner then has no such record.
            (None, None, "github", false),
        ] {
            let narrowed = given_for(given).narrowed_to(&given_for(Some(now)), legacy);
            assert_eq!(narrowed.is_some(), expected, "{given:?} {legacy:?} {now}");
        }
    }

    /// Whatever a record was sealed with is what opens it.
    #[test]
    fn a_record_without_a_plugin_keeps_its_text() {
        let text = serde_json::to_value(given_for(None)).unwrap();
        assert_eq!(text.get("plugin"), None);
        assert_eq!(serde_json::to_value(given_for(Some("github"))).unwrap()["plugin"], "github");
    }
}
