//! The metadata of a protected resource (RFC 9728) and of its authorization server (RFC 8414 and `OpenID` Connect
//! Discovery), and the proposal that results from them. A server writes these documents, so every value is checked.

use monstrum_types::{ClientRegistration, Digest, TokenAuth, canonical};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::challenge::scopes_of;
use super::is_same_url;
use crate::credentials::provider::parse_url;

/// The maximum length of a URL in a document.
const URL_BYTES_MAX: usize = 2048;
/// The scope with which a client asks for refresh tokens (`OpenID` Connect Core, section 11).
const OFFLINE_ACCESS: &str = "offline_access";
/// The supported ways of client authentication, the best first.
const TOKEN_AUTHS: [TokenAuth; 3] = [TokenAuth::ClientSecretBasic, TokenAuth::ClientSecretPost, TokenAuth::None];

/// What the look-ups have found. An admin confirms it by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The identifier of the protected resource, as its metadata state it.
    pub resource: String,
    pub issuer: String,
    pub authorization_url: String,
    pub token_url: String,
    pub registration_url: Option<String>,
    pub token_auth: TokenAuth,
    /// All ways of client authentication that the authorization server and this host support.
    pub token_auths: Vec<TokenAuth>,
    pub scopes: Vec<String>,
    pub registration: ClientRegistration,
    /// Whether each answer of the authorization endpoint names the issuer (RFC 9207).
    pub requires_iss: bool,
    /// The grant types that a registration requests.
    pub grant_types: Vec<String>,
}

impl Proposal {
    /// Returns the SHA-256 of the proposal in its canonical form.
    pub fn digest(&self) -> Digest {
        let mut text = String::new();
        canonical::write(&json!(self), &mut text);
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes())));
        digest.parse().expect("a SHA-256 has the form of a digest")
    }
}

/// The metadata of a protected resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProtectedResource {
    pub(super) resource: String,
    /// The issuer of the first authorization server.
    pub(super) issuer: String,
    pub(super) scopes: Vec<String>,
}

impl ProtectedResource {
    /// Reads the metadata of the server at `url`.
    pub(super) fn read(document: &Map<String, Value>, url: &str) -> Result<ProtectedResource, String> {
        let resource = text(document, "resource")?;
        if !is_same_url(&resource, url) {
            return Err("its `resource` is not the URL of the MCP server".to_owned());
        }
        let issuers = list(document, "authorization_servers").unwrap_or_default();
        let issuer = issuers.first().filter(|issuer| issuer.len() <= URL_BYTES_MAX);
        let issuer = issuer.ok_or("it names no authorization server in `authorization_servers`")?;
        let scopes = scopes_of(list(document, "scopes_supported").unwrap_or_default());
        Ok(ProtectedResource { resource, issuer: (*issuer).to_owned(), scopes })
    }
}

/// What a look-up knows before it reads the metadata of the authorization server.
pub(super) struct Wanted<'a> {
    pub(super) resource: &'a ProtectedResource,
    /// The scopes that the server named in its challenge.
    pub(super) challenged: &'a [String],
    /// Whether URLs may use http.
    pub(super) allow_http: bool,
    /// Whether this host publishes a document that serves as a client id.
    pub(super) has_client_document: bool,
}

impl Wanted<'_> {
    /// Reads the metadata of the authorization server and makes the proposal.
    pub(super) fn propose(&self, document: &Map<String, Value>) -> Result<Proposal, String> {
        let ProtectedResource { resource, issuer, scopes: of_resource } = self.resource;
        if text(document, "issuer")? != *issuer {
            return Err(format!("its `issuer` is not `{}`", issuer.escape_debug()));
        }
        let listed = |name: &str| list(document, name);
        if !listed("code_challenge_methods_supported").is_some_and(|methods| methods.contains(&"S256")) {
            return Err("it does not list `S256` in `code_challenge_methods_supported`".to_owned());
        }
        // Servers without a list support HTTP Basic (RFC 8414, section 2).
        let auths = listed("token_endpoint_auth_methods_supported");
        let auths = auths.unwrap_or_else(|| vec![TokenAuth::ClientSecretBasic.as_str()]);
        let token_auths: Vec<TokenAuth> =
            TOKEN_AUTHS.into_iter().filter(|auth| auths.contains(&auth.as_str())).collect();
        let best = *token_auths.first().ok_or("its token endpoint supports no client authentication of this server")?;
        let registration_url = match document.get("registration_endpoint") {
            None | Some(Value::Null) => None,
            Some(_) => Some(self.url(document, "registration_endpoint")?),
        };
        let is_true = |name: &str| document.get(name) == Some(&Value::Bool(true));
        let takes_document = is_true("client_id_metadata_document_supported") && token_auths.contains(&TokenAuth::None);
        let (registration, token_auth) = match &registration_url {
            _ if takes_document && self.has_client_document => (ClientRegistration::ClientIdMetadata, TokenAuth::None),
            Some(_) => (ClientRegistration::Dynamic, best),
            None => (ClientRegistration::Given, best),
        };
        let mut scopes = if self.challenged.is_empty() { of_resource.clone() } else { self.challenged.to_vec() };
        let has_offline = listed("scopes_supported").is_some_and(|scopes| scopes.contains(&OFFLINE_ACCESS));
        if has_offline && !scopes.iter().any(|scope| scope == OFFLINE_ACCESS) {
            scopes.push(OFFLINE_ACCESS.to_owned());
        }
        Ok(Proposal {
            resource: resource.clone(),
            issuer: issuer.clone(),
            authorization_url: self.url(document, "authorization_endpoint")?,
            token_url: self.url(document, "token_endpoint")?,
            registration_url,
            token_auth,
            token_auths,
            scopes,
            registration,
            requires_iss: is_true("authorization_response_iss_parameter_supported"),
            grant_types: grant_types(listed("grant_types_supported").as_deref(), token_auth),
        })
    }

    /// Reads a URL, which must use https, or http if the network rules of the resource allow it.
    fn url(&self, document: &Map<String, Value>, name: &str) -> Result<String, String> {
        let text = text(document, name)?;
        let url = parse_url(&text).map_err(|why| format!("its `{name}` is not usable: {why}"))?;
        if url.scheme() != "https" && !self.allow_http {
            return Err(format!("its `{name}` is not usable: expected https://"));
        }
        Ok(text)
    }
}

/// Returns the grant types that a registration requests. A client without a secret cannot use client credentials.
fn grant_types(supported: Option<&[&str]>, auth: TokenAuth) -> Vec<String> {
    let supports = |grant: &str| supported.is_some_and(|supported| supported.contains(&grant));
    let mut grants = vec!["authorization_code".to_owned()];
    // Servers without a list may support refresh tokens too.
    if supported.is_none() || supports("refresh_token") {
        grants.push("refresh_token".to_owned());
    }
    if supports("client_credentials") && auth != TokenAuth::None {
        grants.push("client_credentials".to_owned());
    }
    grants
}

fn text(document: &Map<String, Value>, name: &str) -> Result<String, String> {
    let text = document.get(name).and_then(Value::as_str).ok_or_else(|| format!("it has no text `{name}`"))?;
    if text.len() > URL_BYTES_MAX {
        return Err(format!("its `{name}` is longer than {URL_BYTES_MAX} bytes"));
    }
    Ok(text.to_owned())
}

fn list<'d>(document: &'d Map<String, Value>, name: &str) -> Option<Vec<&'d str>> {
    let list = document.get(name)?.as_array()?;
    Some(list.iter().filter_map(Value::as_str).collect())
}

/// Returns the URLs at which the metadata of the server at `url` may be, if the server does not name one.
pub(super) fn protected_resource_urls(url: &Url) -> Vec<Url> {
    let at = |suffix: &str| {
        let mut at = url.clone();
        at.set_path(&format!("/.well-known/oauth-protected-resource{suffix}"));
        at.set_fragment(None);
        at
    };
    let path = url.path().trim_end_matches('/');
    let mut urls = vec![at(path)];
    if !path.is_empty() {
        let mut root = at("");
        root.set_query(None);
        urls.push(root);
    }
    urls
}

/// Returns the URLs at which the metadata of an issuer may be, in the order in which they are read.
pub(super) fn server_urls(issuer: &Url) -> Vec<Url> {
    let at = |path: String| {
        let mut url = issuer.clone();
        url.set_path(&path);
        url
    };
    let path = issuer.path().trim_end_matches('/');
    let mut urls = vec![
        at(format!("/.well-known/oauth-authorization-server{path}")),
        at(format!("/.well-known/openid-configuration{path}")),
    ];
    if !path.is_empty() {
        urls.push(at(format!("{path}/.well-known/openid-configuration")));
    }
    urls
}

#[cfg(test)]
mod tests;
