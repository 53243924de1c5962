//! OAuth providers: their endpoints and their sealed client secrets.

use monstrum_manifest::{OauthConfig, ResourceType};
use monstrum_store::OauthProviderRow;
use monstrum_types::{OauthProviderId, ResourceTypeId, Secret, TokenAuth, WorkspaceId};
use monstrum_vault::{AssociatedData, Sealed, Vault, VaultError};
use serde::{Deserialize, Serialize};
use url::Url;

/// What an admin has confirmed of the metadata of an authorization server, besides its endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmedServer {
    /// The issuer identifier, which answers must name exactly (RFC 9207).
    pub issuer: String,
    /// The protected resource for which tokens are requested (RFC 8707).
    pub resource: String,
    pub token_auth: TokenAuth,
    /// Whether each answer of the authorization endpoint names the issuer.
    pub requires_iss: bool,
}

/// The stored metadata of an authorization server cannot be read, so the provider must not be used.
#[derive(Debug, thiserror::Error)]
#[error("the stored metadata of the OAuth provider cannot be read")]
pub struct UnreadableServer;

impl ConfirmedServer {
    /// Reads the confirmed metadata of a provider. Returns `None` for a provider whose values an admin has entered.
    pub fn of(row: &OauthProviderRow) -> Result<Option<ConfirmedServer>, UnreadableServer> {
        let server = row.server.as_ref();
        server.map(|server| serde_json::from_value(server.clone()).map_err(|_| UnreadableServer)).transpose()
    }
}

/// Seals a client secret for the provider of `row`. The result cannot be decrypted for another client or endpoint.
pub fn seal_secret(vault: &Vault, row: &OauthProviderRow, secret: &Secret) -> Result<Sealed, VaultError> {
    vault.seal(secret.expose().as_bytes(), place_of(row))
}

/// Decrypts the client secret of a provider. Returns `None` for a public client.
pub fn open_secret(vault: &Vault, row: &OauthProviderRow) -> Result<Option<Secret>, VaultError> {
    let Some(sealed) = &row.client_secret else { return Ok(None) };
    let plaintext = vault.unseal(&sealed.parse()?, place_of(row))?;
    let text = std::str::from_utf8(&plaintext).map_err(|_| VaultError::NotSealed { what: "it is not UTF-8 text" })?;
    Ok(Some(Secret::new(text.to_owned())))
}

fn place_of(row: &OauthProviderRow) -> AssociatedData {
    let device_authorization_url = row.device_authorization_url.as_deref().unwrap_or_default();
    place(row.workspace_id, row.id, &row.resource_type, &row.client_id, &row.token_url, device_authorization_url)
}

/// Returns the associated data of a client secret. The associated data contains the endpoints, so that an edit of the
/// row cannot redirect the secret.
pub fn place(
    workspace: WorkspaceId,
    provider: OauthProviderId,
    resource_type: &ResourceTypeId,
    client_id: &str,
    token_url: &str,
    device_authorization_url: &str,
) -> AssociatedData {
    AssociatedData::new("oauth provider")
        .with("workspace", &workspace)
        .with("provider", &provider)
        .with("resource_type", resource_type)
        .with("client_id", client_id)
        .with("token_url", token_url)
        .with("device_authorization_url", device_authorization_url)
}

/// Returns the requested scopes, separated by spaces (RFC 6749, section 3.3).
pub fn scopes(row: &OauthProviderRow) -> String {
    let scopes = row.scopes.as_array().into_iter().flatten();
    scopes.filter_map(serde_json::Value::as_str).collect::<Vec<_>>().join(" ")
}

/// Merges the OAuth settings of all auth methods of a resource type. For each field, the first value takes precedence.
pub fn proposed(resource_type: &ResourceType) -> OauthConfig {
    let methods = resource_type.auth_methods.iter().filter(|method| method.method.is_oauth());
    let mut proposed = OauthConfig {
        authorization_url: None,
        token_url: None,
        device_authorization_url: None,
        scopes: Vec::new(),
        pkce_required: false,
    };
    for config in methods.filter_map(|method| method.oauth_config.as_ref()) {
        let first = |held: &mut Option<String>, offered: &Option<String>| {
            if held.is_none() {
                held.clone_from(offered);
            }
        };
        first(&mut proposed.authorization_url, &config.authorization_url);
        first(&mut proposed.token_url, &config.token_url);
        first(&mut proposed.device_authorization_url, &config.device_authorization_url);
        if proposed.scopes.is_empty() {
            proposed.scopes.clone_from(&config.scopes);
        }
    }
    proposed
}

/// Parses the URL of a provider. The URL must use https, or http with a loopback address. It must not contain a user,
/// password or fragment.
pub fn parse_url(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "expected an absolute URL")?;
    let is_local = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => return Err("expected an absolute URL"),
    };
    match url.scheme() {
        "https" => {}
        "http" if is_local => {}
        "http" => return Err("expected https://; http:// is allowed only for loopback addresses"),
        _ => return Err("expected https://"),
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("must not contain a user, password or fragment");
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use monstrum_types::UtcMillis;
    use monstrum_vault::MasterKeys;

    use super::*;

    #[test]
    fn a_secret_of_another_provider_does_not_open() {
        let folder = tempfile::tempdir().unwrap();
        let vault = Vault::new(MasterKeys::create(&folder.path().join("master.key")).unwrap());
        let mut row = OauthProviderRow {
            id: OauthProviderId::new(),
            workspace_id: WorkspaceId::new(),
            resource_type: "github".parse().unwrap(),
            resource_id: None,
            client_id: "client".to_owned(),
            client_secret: None,
            authorization_url: None,
            token_url: "https://id.example/token".to_owned(),
            device_authorization_url: None,
            scopes: serde_json::json!([]),
            server: None,
            created_at: UtcMillis(0),
            updated_at: UtcMillis(0),
        };
        assert!(open_secret(&vault, &row).unwrap().is_none(), "a public client");
        let sealed = seal_secret(&vault, &row, &Secret::new("a client secret".to_owned())).unwrap();
        row.client_secret = Some(sealed.to_string());
        assert_eq!(open_secret(&vault, &row).unwrap().unwrap().expose(), "a client secret");
        for moved in [
            OauthProviderRow { id: OauthProviderId::new(), ..row.clone() },
            OauthProviderRow { workspace_id: WorkspaceId::new(), ..row.clone() },
            OauthProviderRow { resource_type: "jira".parse().unwrap(), ..row.clone() },
            OauthProviderRow { client_id: "another".to_owned(), ..row.clone() },
            OauthProviderRow { token_url: "https://evil.example/token".to_owned(), ..row.clone() },
            OauthProviderRow { device_authorization_url: Some("https://evil.example/".to_owned()), ..row.clone() },
        ] {
            assert!(open_secret(&vault, &moved).is_err(), "{moved:?}");
        }
        // The authorization URL is not part of the associated data, because the secret is never sent to it.
        let row = OauthProviderRow { authorization_url: Some("https://id.example/a".to_owned()), ..row };
        assert!(open_secret(&vault, &row).is_ok());
    }

    #[test]
    fn urls_are_https_or_loopback() {
        for good in [
            "https://id.example.com/token?tenant=a",
            "http://127.0.0.1:8080/token",
            "http://localhost/t",
            "http://[::1]/",
        ] {
            assert!(parse_url(good).is_ok(), "{good}");
        }
        for bad in [
            "http://id.example.com/token",
            "ftp://id.example.com/",
            "token",
            "https://user@id.example.com/",
            "https://id.example.com/#a",
            "http://127.0.0.1.example.com/",
            "javascript:alert(1)",
        ] {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
    }
}
