//! The purpose for which a credential is sealed.

use std::collections::BTreeSet;

use monstrum_manifest::{AuthKind, AuthMethod, FieldKind, InjectRule, Manifest, OriginPattern, ResourceType};
use monstrum_store::OauthProviderRow;
use monstrum_types::{PluginName, ResourceTypeId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The purpose of a credential: the plugin, type and method for which it was saved, and how it may be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenFor {
    /// The plugin that served the type when the credential was saved. Records of earlier releases, which stored no
    /// owners of types, have no plugin. Such a record belongs to the plugin that owned the type when the table `owners`
    /// was filled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginName>,
    pub resource_type: ResourceTypeId,
    pub auth_method: AuthKind,
    /// The origins that may receive the credential.
    pub audience: Vec<OriginPattern>,
    /// The rules for adding the credential to a request.
    pub inject: Vec<InjectRule>,
    /// The fields that were not secret when the credential was saved. All other fields must never be shown.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub plain_fields: BTreeSet<String>,
    /// The issuer that issued the credential and refreshes it, or `None` for a credential that was not obtained by
    /// OAuth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth: Option<Issuer>,
    /// The value of the parameter `resource` with which the credential was obtained (RFC 8707). Refreshes repeat it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indicator: Option<String>,
}

/// The issuer of a token. A refresh token is sent to its issuer only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issuer {
    pub token_url: String,
    pub client_id: String,
    /// The issuer identifier, if an admin has confirmed the metadata of the issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
}

impl Issuer {
    /// Returns the provider of this row as an issuer.
    pub fn of(provider: &OauthProviderRow) -> Issuer {
        let issuer = provider.server.as_ref().and_then(|server| server.get("issuer")).and_then(Value::as_str);
        Issuer {
            token_url: provider.token_url.clone(),
            client_id: provider.client_id.clone(),
            issuer: issuer.map(str::to_owned),
        }
    }

    /// Returns whether the provider of this row is the issuer.
    pub fn is(&self, provider: &OauthProviderRow) -> bool {
        *self == Issuer::of(provider)
    }
}

impl GivenFor {
    /// Returns the purpose that results from the current manifest and configuration.
    pub fn now(manifest: &Manifest, method: &AuthMethod, config: &Map<String, Value>) -> GivenFor {
        let Manifest { resource_type, executor, .. } = manifest;
        GivenFor {
            plugin: Some(manifest.name.clone()),
            resource_type: resource_type.id.clone(),
            auth_method: method.method,
            audience: method.audience(resource_type, config, executor),
            inject: method.inject_rules_for(resource_type, config),
            plain_fields: plain_fields(resource_type, method),
            oauth: None,
            indicator: None,
        }
    }

    /// Returns this purpose for a credential that `provider` issues for the resource `indicator`. All fields of such a
    /// credential are secret, even if the manifest declares otherwise.
    pub fn obtained_from(self, provider: &OauthProviderRow, indicator: Option<String>) -> GivenFor {
        GivenFor { plain_fields: BTreeSet::new(), oauth: Some(Issuer::of(provider)), indicator, ..self }
    }

    /// Returns the purpose that results from the current manifest and configuration for the auth method of this
    /// credential. Returns `None` if the manifest no longer has that method.
    pub(super) fn wanted_by(&self, manifest: &Manifest, config: &Map<String, Value>) -> Option<GivenFor> {
        let methods = &manifest.resource_type.auth_methods;
        let method = methods.iter().find(|method| method.method == self.auth_method)?;
        let now = GivenFor::now(manifest, method, config);
        Some(GivenFor { oauth: self.oauth.clone(), indicator: self.indicator.clone(), ..now })
    }

    /// Returns the audience of `now`, or `None` if `now` requires more than this sealed purpose allows. A record
    /// without a plugin belongs to `legacy_plugin`.
    pub(super) fn narrowed_to(&self, now: &GivenFor, legacy_plugin: Option<&PluginName>) -> Option<Vec<OriginPattern>> {
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

/// Returns the fields that the manifest does not declare as secret.
fn plain_fields(resource_type: &ResourceType, method: &AuthMethod) -> BTreeSet<String> {
    let declared = method.credential_fields(resource_type).iter();
    declared.filter(|field| field.kind != FieldKind::Secret).map(|field| field.field.clone()).collect()
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
    fn a_credential_is_valid_for_its_own_plugin_only() {
        let (github, other): (PluginName, PluginName) = ("github".parse().unwrap(), "other".parse().unwrap());
        for (given, legacy, now, expected) in [
            (Some("github"), None, "github", true),
            (Some("github"), Some(&other), "github", true),
            (Some("github"), None, "other", false),
            (Some("github"), Some(&other), "other", false),
            // A record of an earlier release names no plugin. It belongs to the plugin that owned the type.
            (None, Some(&github), "github", true),
            (None, Some(&github), "other", false),
            // If the type had no owner, there are no records of earlier releases for it.
            (None, None, "github", false),
        ] {
            let narrowed = given_for(given).narrowed_to(&given_for(Some(now)), legacy);
            assert_eq!(narrowed.is_some(), expected, "{given:?} {legacy:?} {now}");
        }
    }

    /// Checks that the JSON text of the purpose stays the same. The text is part of the associated data, so a sealed
    /// record could not be decrypted after a change of the text.
    #[test]
    fn a_record_without_a_plugin_keeps_its_text() {
        let text = serde_json::to_value(given_for(None)).unwrap();
        assert_eq!(text.get("plugin"), None);
        assert_eq!(serde_json::to_value(given_for(Some("github"))).unwrap()["plugin"], "github");
    }
}
