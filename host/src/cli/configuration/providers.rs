//! The OAuth providers of the files. A client secret is a reference, which this program reads and sends to the server.

use monstrum_types::Secret;
use serde_json::{Value, json};

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::output;
use super::credentials::secret;
use super::document::{Lines, Provider};

/// The providers of the files that differ from those of the server, with their secrets.
pub(super) struct Providers(Vec<Planned>);

struct Planned {
    resource_type: String,
    /// The existing provider, which is changed.
    present: Option<Value>,
    /// The fields, without the secret.
    fields: Value,
    secret: Option<Secret>,
}

/// Returns the providers of resource types. Providers of single resources result from a discovery, which is repeated.
pub(super) async fn exported(client: &Client) -> Result<Vec<Provider>, Failure> {
    let mut providers = Vec::new();
    for item in present(client).await? {
        let text = |field: &str| item[field].as_str().map(str::to_owned);
        let scopes = item["scopes"].as_array().into_iter().flatten();
        providers.push(Provider {
            resource_type: output::cell(&item["resource_type"]),
            client_id: output::cell(&item["client_id"]),
            client_secret: None,
            authorization_url: text("authorization_url"),
            token_url: text("token_url"),
            device_authorization_url: text("device_authorization_url"),
            scopes: Some(scopes.filter_map(Value::as_str).map(str::to_owned).collect()),
        });
    }
    providers.sort_by(|a, b| a.resource_type.cmp(&b.resource_type));
    Ok(providers)
}

async fn present(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut items = client.items(&["api", "oauth", "providers"], &[]).await?;
    items.retain(|item| item["resource_id"].is_null());
    Ok(items)
}

impl Providers {
    /// Reads the secrets of all providers, and keeps the providers that are missing or differ on the server. A secret
    /// cannot be compared, so that it is set if the provider is written or has none; with `replaces`, always.
    pub(super) async fn plan(lines: &Lines, client: &Client, replaces: bool) -> Result<Providers, Failure> {
        let mut given = Vec::new();
        for (at, provider) in lines.providers() {
            let reference = provider.client_secret.as_ref();
            let secret = reference.map(|reference| secret(reference)).transpose();
            let secret = secret.map_err(|failure| failure.about(&at.place("client_secret")))?;
            given.push((provider, secret));
        }
        if given.is_empty() {
            return Ok(Providers(Vec::new()));
        }
        let present = present(client).await?;
        let planned = given.into_iter().filter_map(|(provider, secret)| planned(provider, secret, &present, replaces));
        Ok(Providers(planned.collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the resource types of the providers.
    pub(super) fn resource_types(&self) -> Vec<&str> {
        self.0.iter().map(|planned| planned.resource_type.as_str()).collect()
    }

    /// Creates and changes the providers. A provider that another command has changed since the plan stays, and the
    /// command fails.
    pub(super) async fn set(&self, client: &Client) -> Result<(), Failure> {
        for Planned { resource_type, present, fields, secret } in &self.0 {
            let mut body = fields.clone();
            if let Some(secret) = secret {
                body["client_secret"] = json!(secret.expose());
            }
            let saved = match present {
                Some(present) => {
                    let id = output::cell(&present["id"]);
                    client.patch_present(&["api", "oauth", "providers", &id], present, &body).await
                }
                None => {
                    body["resource_type"] = json!(resource_type);
                    client.post(&["api", "oauth", "providers"], Some(&body)).await
                }
            };
            saved
                .map_err(|failure| failure.about(&format!("the OAuth provider of {}", output::plain(resource_type))))?;
        }
        Ok(())
    }
}

/// Returns what has to be written for a provider of a file, or `None` if the server has it already. Fields that the file
/// leaves out are not compared.
fn planned(provider: &Provider, secret: Option<Secret>, present: &[Value], replaces: bool) -> Option<Planned> {
    let Provider { resource_type, client_id, authorization_url, token_url, device_authorization_url, scopes, .. } =
        provider;
    let found = present.iter().find(|item| item["resource_type"] == **resource_type);
    let mut fields = json!({ "client_id": client_id });
    let texts = [
        ("authorization_url", authorization_url),
        ("token_url", token_url),
        ("device_authorization_url", device_authorization_url),
    ];
    for (field, text) in texts {
        if let Some(text) = text {
            fields[field] = json!(text);
        }
    }
    if let Some(scopes) = scopes {
        fields["scopes"] = json!(scopes);
    }
    if let Some(found) = found {
        let differs = fields.as_object().into_iter().flatten().any(|(field, value)| found[field] != *value);
        let lacks_secret = secret.is_some() && (replaces || found["has_client_secret"] == false);
        if !differs && !lacks_secret {
            return None;
        }
    }
    Some(Planned { resource_type: resource_type.clone(), present: found.cloned(), fields, secret })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_written() {
        let provider: Provider =
            serde_json::from_value(json!({ "type": "github", "client_id": "a", "scopes": ["repo"] })).unwrap();
        let present = json!({ "id": "1", "resource_type": "github", "client_id": "a", "scopes": ["repo"],
            "token_url": "https://id.example/token", "has_client_secret": true });
        let is_planned = |secret: Option<&str>, present: &Value, replaces: bool| {
            let secret = secret.map(|secret| Secret::new(secret.to_owned()));
            let planned = planned(&provider, secret, std::slice::from_ref(present), replaces);
            planned.map(|planned| planned.present.map(|present| output::cell(&present["id"])))
        };
        assert_eq!(is_planned(None, &present, true), None);
        assert_eq!(is_planned(Some("s"), &present, false), None, "the server has a secret");
        let found = Some(Some("1".to_owned()));
        assert_eq!(is_planned(Some("s"), &present, true), found);
        let mut other = present.clone();
        other["has_client_secret"] = json!(false);
        assert_eq!(is_planned(Some("s"), &other, false), found);
        other = present;
        other["scopes"] = json!([]);
        assert_eq!(is_planned(None, &other, false), found);
        other["resource_type"] = json!("gitlab");
        assert_eq!(is_planned(None, &other, false), Some(None), "the type has no provider");
    }
}
