//! Signs users in at the issuer with a browser, by `OpenID` Connect: the authorization code flow with PKCE and a nonce. The
//! result is the subject of the user. The tokens of the issuer are verified and dropped.

use jsonwebtoken::{Validation, decode, decode_header};
use monstrum_types::Secret;
use serde::Deserialize;
use serde_json::Value;
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;
use url::Url;

use super::{ALGORITHMS, AccessTokens, LEEWAY_MS, TOKEN_BYTES_MAX, is_subject, millis};
use crate::credentials::token_endpoint::{ANSWER_WAIT_MAX, Grant, Provider};

/// The client of this host at the issuer.
#[derive(Clone)]
pub struct IssuerClient {
    pub id: String,
    /// The secret; `None` for a public client.
    pub secret: Option<Secret>,
}

impl std::fmt::Debug for IssuerClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("IssuerClient").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The values with which a browser is sent to the issuer.
pub struct SignInRequest<'a> {
    pub state: &'a Secret,
    pub nonce: &'a Secret,
    /// The PKCE challenge.
    pub challenge: &'a str,
    pub redirect_uri: &'a str,
}

/// The reason why a user could not be signed in.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    #[error("this server has no client at the issuer of access tokens")]
    NoClient,
    #[error("the metadata of the issuer cannot be used")]
    Metadata,
    #[error("the answer came from another issuer")]
    OtherIssuer,
    #[error("the issuer refused the code: {0}")]
    Code(String),
    #[error("the ID token of the issuer is not valid: {0}")]
    IdToken(&'static str),
}

/// The claims of an ID token that are checked here. The library checks the others.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
    nonce: Option<String>,
    azp: Option<String>,
}

impl AccessTokens {
    /// Returns whether users can sign in with a browser.
    pub fn signs_in(&self) -> bool {
        self.client.is_some()
    }

    /// Returns the URL at the issuer to which a browser is sent.
    pub async fn sign_in_url(&self, request: &SignInRequest<'_>) -> Result<Url, SignInError> {
        let client = self.client.as_ref().ok_or(SignInError::NoClient)?;
        let mut url = self.endpoint("authorization_endpoint").await?;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &client.id)
            .append_pair("redirect_uri", request.redirect_uri)
            .append_pair("scope", "openid")
            .append_pair("state", request.state.expose())
            .append_pair("nonce", request.nonce.expose())
            .append_pair("code_challenge", request.challenge)
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Exchanges the code of an answer, and returns the subject of the user who has signed in. `issuer` is the parameter
    /// `iss` of the answer (RFC 9207).
    pub async fn signed_in(
        &self,
        code: &Secret,
        issuer: Option<&str>,
        (verifier, nonce): (&Secret, &Secret),
        redirect_uri: &str,
    ) -> Result<String, SignInError> {
        let client = self.client.as_ref().ok_or(SignInError::NoClient)?;
        // The code of another issuer must not be sent to this one.
        if issuer.is_some_and(|issuer| issuer != &*self.issuer) {
            return Err(SignInError::OtherIssuer);
        }
        let token_url = self.endpoint("token_endpoint").await?;
        let provider = Provider {
            egress: &self.keys.egress,
            clock: self.clock.as_ref(),
            network: &self.keys.network,
            client_id: &client.id,
            client_secret: client.secret.as_ref(),
            auth: None,
            resource: None,
        };
        let answer = provider.ask(&token_url, &Grant::Code { code, verifier, redirect_uri }.form()).await;
        let answer = answer.map_err(|error| SignInError::Code(error.to_string()))?;
        let token = answer.get("id_token").and_then(Value::as_str).ok_or(SignInError::IdToken("it is missing"))?;
        self.subject_of(token, &client.id, nonce).await
    }

    /// Verifies an ID token and returns its subject.
    async fn subject_of(&self, token: &str, client: &str, nonce: &Secret) -> Result<String, SignInError> {
        const NO_JWT: SignInError = SignInError::IdToken("expected a JWT that is signed with RS256, ES256 or EdDSA");
        if token.len() > TOKEN_BYTES_MAX {
            return Err(NO_JWT);
        }
        let header = decode_header(token).map_err(|_| NO_JWT)?;
        if !ALGORITHMS.contains(&header.alg) || header.crit.is_some() {
            return Err(NO_JWT);
        }
        let key = self.keys.find(header.alg, header.kid.as_deref()).await;
        let key = key.map_err(|_| SignInError::IdToken("its key is not a key of the issuer"))?;
        let mut validation = Validation::new(header.alg);
        validation.set_audience(&[client]);
        validation.set_issuer(&[&*self.issuer]);
        validation.set_required_spec_claims(&["aud", "exp", "iss", "sub"]);
        // The time is checked below, by the clock of the host.
        validation.validate_exp = false;
        let claims = decode::<Claims>(token, &key, &validation);
        let Claims { sub, exp, nonce: answered, azp } =
            claims.map_err(|_| SignInError::IdToken("its signature, issuer or audience is wrong"))?.claims;
        if millis(exp).plus_ms(LEEWAY_MS) <= self.clock.now() {
            return Err(SignInError::IdToken("it has expired"));
        }
        let answered = answered.unwrap_or_default();
        if !bool::from(answered.as_bytes().ct_eq(nonce.expose().as_bytes())) {
            return Err(SignInError::IdToken("its nonce is another one"));
        }
        if azp.is_some_and(|azp| azp != client) {
            return Err(SignInError::IdToken("it was issued for another client"));
        }
        if is_subject(&sub) { Ok(sub) } else { Err(SignInError::IdToken("its subject is not valid")) }
    }

    /// Returns the URL of an endpoint of the issuer.
    async fn endpoint(&self, name: &'static str) -> Result<Url, SignInError> {
        let metadata = self.keys.metadata(Instant::now() + ANSWER_WAIT_MAX).await;
        let metadata = metadata.map_err(|error| {
            tracing::warn!(error, "the metadata of the MCP issuer could not be fetched");
            SignInError::Metadata
        })?;
        let url = metadata.get(name).and_then(Value::as_str).and_then(|text| Url::parse(text).ok());
        let is_allowed =
            |url: &Url| url.scheme() == "https" || (url.scheme() == "http" && self.keys.network.allow_http);
        url.filter(|url| is_allowed(url) && url.has_host() && url.username().is_empty()).ok_or(SignInError::Metadata)
    }
}
