//! This host as an OAuth client: its metadata document, and its registration with an authorization server (RFC 7591).

use monstrum_api::oauth::ClientDocument;
use monstrum_egress::Redactor;
use monstrum_types::{HttpRequest, Secret, TokenAuth};
use serde_json::{Map, Value, json};

use super::metadata::Proposal;
use super::{Oauth, OauthError, stored_url};
use crate::credentials::token_endpoint::{TokenError, members};
use crate::policy::Resource;

const CLIENT_NAME: &str = "Monstrum";

/// A client that an authorization server has registered.
pub struct Registered {
    pub client_id: String,
    pub client_secret: Option<Secret>,
    pub token_auth: TokenAuth,
}

impl Oauth {
    /// Returns the client id that is the URL of this host's metadata, or `None` if browsers do not reach this host by
    /// https: an authorization server accepts only https URLs.
    pub fn client_id(&self) -> Option<String> {
        if self.is_secure() { self.own_url("oauth/client.json").ok() } else { None }
    }

    /// Returns the metadata of this host as a client, if its URL can serve as a client id.
    pub fn client_document(&self) -> Option<ClientDocument> {
        Some(ClientDocument {
            client_id: self.client_id()?,
            client_name: CLIENT_NAME,
            client_uri: self.own_url("").ok()?,
            application_type: "web",
            redirect_uris: vec![self.callback_url().ok()?],
            grant_types: vec!["authorization_code", "refresh_token"],
            response_types: vec!["code"],
            token_endpoint_auth_method: TokenAuth::None,
        })
    }

    /// Registers a client with the authorization server of a proposal that an admin confirms.
    pub async fn register(&self, resource: &Resource, proposal: &Proposal) -> Result<Registered, OauthError> {
        let url = proposal.registration_url.as_deref().ok_or(OauthError::NoUrl { field: "registration_url" })?;
        let url = stored_url(url)?;
        let mut metadata = json!({
            "client_name": CLIENT_NAME,
            "application_type": "web",
            "redirect_uris": [self.callback_url()?],
            "grant_types": proposal.grant_types,
            "response_types": ["code"],
            "token_endpoint_auth_method": proposal.token_auth,
        });
        if !proposal.scopes.is_empty() {
            metadata["scope"] = json!(proposal.scopes.join(" "));
        }
        let request = HttpRequest {
            method: "POST".to_owned(),
            url: url.to_string(),
            headers: vec![
                ("accept".to_owned(), "application/json".to_owned()),
                ("content-type".to_owned(), "application/json".to_owned()),
            ],
            body: Some(metadata.to_string().into_bytes()),
            ..HttpRequest::default()
        };
        let _place = self.lookups.acquire().await;
        let answer = self.whole(resource, &url, request).await.map_err(TokenError::Unreachable)?;
        Ok(registered(&members(&answer, &Redactor::default())?, proposal)?)
    }
}

/// Reads the answer to a registration. The authorization server may register another way of authentication than the
/// requested one.
fn registered(answer: &Map<String, Value>, proposal: &Proposal) -> Result<Registered, TokenError> {
    let unusable = |why| TokenError::Unusable { why };
    let text = |name: &str| match answer.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(unusable("a member of the registration is not a text")),
    };
    let client_id = text("client_id")?.ok_or(unusable("the registration has no client_id"))?;
    let token_auth = match text("token_endpoint_auth_method")? {
        None => proposal.token_auth,
        Some(word) => TokenAuth::from_word(&word).ok_or(unusable("it registered an unknown client authentication"))?,
    };
    let client_secret = text("client_secret")?.map(Secret::new).filter(|_| token_auth != TokenAuth::None);
    if client_secret.is_none() && token_auth != TokenAuth::None {
        return Err(unusable("the registration has no client_secret"));
    }
    Ok(Registered { client_id, client_secret, token_auth })
}

#[cfg(test)]
mod tests {
    use monstrum_types::ClientRegistration;

    use super::*;

    fn read(answer: &Value) -> Result<(String, Option<String>, TokenAuth), String> {
        let proposal = Proposal {
            resource: "https://mcp.example/".to_owned(),
            issuer: "https://id.example".to_owned(),
            authorization_url: "https://id.example/a".to_owned(),
            token_url: "https://id.example/t".to_owned(),
            registration_url: None,
            token_auth: TokenAuth::ClientSecretBasic,
            token_auths: Vec::new(),
            scopes: Vec::new(),
            registration: ClientRegistration::Dynamic,
            requires_iss: false,
            grant_types: Vec::new(),
        };
        let read = registered(answer.as_object().unwrap(), &proposal).map_err(|error| error.to_string())?;
        let secret = read.client_secret.map(|secret| secret.expose().to_owned());
        Ok((read.client_id, secret, read.token_auth))
    }

    #[test]
    fn a_registration_has_an_id_and_the_secret_that_its_authentication_needs() {
        let secret = || Some("the-secret".to_owned());
        assert_eq!(
            read(&json!({"client_id": "c", "client_secret": "the-secret", "client_secret_expires_at": 0})),
            Ok(("c".to_owned(), secret(), TokenAuth::ClientSecretBasic))
        );
        let posting = json!({
            "client_id": "c", "client_secret": "the-secret", "token_endpoint_auth_method": "client_secret_post",
        });
        assert_eq!(read(&posting), Ok(("c".to_owned(), secret(), TokenAuth::ClientSecretPost)));
        let public = json!({"client_id": "c", "client_secret": "x", "token_endpoint_auth_method": "none"});
        assert_eq!(read(&public), Ok(("c".to_owned(), None, TokenAuth::None)));
        for bad in [
            json!({"client_secret": "the-secret"}),
            json!({"client_id": 7, "client_secret": "the-secret"}),
            json!({"client_id": "c"}),
            json!({"client_id": "c", "client_secret": ["the-secret"]}),
            json!({"client_id": "c", "client_secret": "the-secret", "token_endpoint_auth_method": "private_key_jwt"}),
        ] {
            let error = read(&bad).unwrap_err();
            assert!(!error.contains("the-secret"), "{bad}: {error}");
        }
    }
}
