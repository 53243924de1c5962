//! The issuer of an answer of an authorization endpoint.

use monstrum_store::OauthProviderRow;
use url::Url;

use super::OauthError;
use crate::credentials::provider::ConfirmedServer;

/// Checks the `iss` of an answer (RFC 9207). The code of another issuer must not be sent to this provider (mix-up attack).
/// If the metadata of the provider are not known, `iss` must have the origin of one of its endpoints.
pub(super) fn check_issuer(issuer: Option<&str>, provider: &OauthProviderRow) -> Result<(), OauthError> {
    let server = ConfirmedServer::of(provider)?;
    match (issuer, server) {
        (None, Some(server)) if server.requires_iss => Err(OauthError::NoIssuer),
        (None, _) => Ok(()),
        (Some(issuer), Some(server)) if issuer == server.issuer => Ok(()),
        (Some(issuer), None) if is_of_provider(issuer, provider) => Ok(()),
        (Some(_), _) => Err(OauthError::OtherIssuer),
    }
}

fn is_of_provider(issuer: &str, provider: &OauthProviderRow) -> bool {
    let origin = |text: &str| Url::parse(text).ok().map(|url| url.origin().ascii_serialization());
    let known = [provider.authorization_url.as_deref(), Some(provider.token_url.as_str())];
    let issuer = origin(issuer);
    issuer.is_some() && known.into_iter().flatten().any(|url| origin(url) == issuer)
}

#[cfg(test)]
mod tests {
    use monstrum_types::{OauthProviderId, UtcMillis, WorkspaceId};
    use serde_json::{Value, json};

    use super::*;

    fn provider(server: Option<Value>) -> OauthProviderRow {
        OauthProviderRow {
            id: OauthProviderId::new(),
            workspace_id: WorkspaceId::new(),
            resource_type: "mcp".parse().unwrap(),
            resource_id: None,
            client_id: "client".to_owned(),
            client_secret: None,
            authorization_url: Some("https://login.example/a".to_owned()),
            token_url: "https://id.example/token".to_owned(),
            device_authorization_url: None,
            scopes: json!([]),
            server,
            created_at: UtcMillis(0),
            updated_at: UtcMillis(0),
        }
    }

    #[test]
    fn a_confirmed_issuer_is_compared_exactly() {
        let confirmed = |requires_iss: bool| {
            provider(Some(json!({
                "issuer": "https://id.example", "resource": "https://mcp.example/", "token_auth": "none",
                "requires_iss": requires_iss,
            })))
        };
        for (issuer, requires_iss, is_accepted) in [
            (Some("https://id.example"), true, true),
            (Some("https://id.example/"), true, false),
            (Some("https://login.example"), false, false),
            (Some(""), false, false),
            (None, false, true),
            (None, true, false),
        ] {
            let checked = check_issuer(issuer, &confirmed(requires_iss));
            assert_eq!(checked.is_ok(), is_accepted, "{issuer:?} {requires_iss} {checked:?}");
        }
        assert!(check_issuer(None, &provider(Some(json!({"issuer": 1})))).is_err(), "unreadable metadata");
    }

    #[test]
    fn an_entered_provider_is_recognized_by_its_origins() {
        for (issuer, is_accepted) in [
            (None, true),
            (Some("https://id.example/tenant"), true),
            (Some("https://login.example"), true),
            (Some("https://evil.example"), false),
            (Some("id.example"), false),
        ] {
            assert_eq!(check_issuer(issuer, &provider(None)).is_ok(), is_accepted, "{issuer:?}");
        }
    }
}
