//! Access tokens with which users of MCP clients call the tools of a bot.
//!
//! The tokens are JWTs of one authorization server, the issuer. This module verifies them and fetches the keys of the
//! issuer. Whether a bot admits the user of a token is part of the policy. The text of a token is not stored, not logged
//! and not passed on.

mod keys;
mod sign_in;

use std::sync::Arc;

use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use monstrum_egress::{Egress, Network};
use monstrum_types::{BotId, Clock, UtcMillis};
use serde::Deserialize;
use serde_json::Value;

use crate::call_types::incoming::TokenUser;
use keys::IssuerKeys;

pub use sign_in::{IssuerClient, SignInError, SignInRequest};

/// The scope that a token must have.
pub const SCOPE: &str = "mcp:tools";

/// The maximum length of a token. Headers of a request have up to 64 KiB, and tokens with many claims have some KiB.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// The algorithms of signatures that are accepted. All of them use public keys.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
/// The maximum difference between the clocks of the issuer and of this host.
const LEEWAY_MS: i64 = 60 * 1000;
/// The maximum time until a token expires. A token cannot be revoked, so a longer validity is not accepted.
const VALID_MS_MAX: i64 = 24 * 60 * 60 * 1000;
/// The maximum length of a subject: the limit of the other ids of users.
const SUBJECT_BYTES_MAX: usize = 256;

/// The authorization server whose tokens are accepted.
#[derive(Clone, Debug)]
pub struct TokenIssuer {
    /// The URL that identifies the issuer, as the claim `iss` contains it.
    pub url: String,
    /// Access to the issuer beyond https to public addresses.
    pub network: Network,
    /// The URL at which clients reach this host, without a trailing slash.
    pub public_url: String,
    /// The client with which this host lets users sign in at the issuer, if it has one.
    pub client: Option<IssuerClient>,
}

/// Verifies access tokens.
pub struct AccessTokens {
    issuer: Arc<str>,
    public_url: String,
    keys: IssuerKeys,
    client: Option<IssuerClient>,
    clock: Arc<dyn Clock>,
}

/// The reason why a token is not accepted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the access token is not valid: {0}")]
    Invalid(&'static str),
    #[error("the access token does not have the scope `mcp:tools`")]
    Scope,
    #[error("the keys of the authorization server cannot be fetched; try again")]
    Unavailable,
}

/// The claims that are checked here. The library checks the others.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
    nbf: Option<f64>,
    scope: Option<Value>,
}

impl AccessTokens {
    /// Creates a verifier without keys. The first token fetches the keys.
    pub fn new(issuer: TokenIssuer, egress: Egress, clock: Arc<dyn Clock>) -> AccessTokens {
        let TokenIssuer { url, network, public_url, client } = issuer;
        let keys = IssuerKeys::new(url.clone(), network, egress);
        AccessTokens { keys, issuer: url.into(), public_url, client, clock }
    }

    /// Returns the URL that identifies the issuer.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns the URL that identifies the bot as a protected resource. Tokens for the bot have it in the claim `aud`.
    pub fn resource(&self, bot: BotId) -> String {
        format!("{}/mcp/{bot}", self.public_url)
    }

    /// Returns the URL of the metadata of the protected resource (RFC 9728).
    pub fn metadata_url(&self, bot: BotId) -> String {
        format!("{}/.well-known/oauth-protected-resource/mcp/{bot}", self.public_url)
    }

    /// Verifies a token for the bot and returns its user.
    pub async fn verify(&self, token: &str, bot: BotId) -> Result<TokenUser, TokenError> {
        const NO_JWT: TokenError = TokenError::Invalid("expected a JWT that is signed with RS256, ES256 or EdDSA");
        if token.len() > TOKEN_BYTES_MAX {
            return Err(NO_JWT);
        }
        let header = decode_header(token).map_err(|_| NO_JWT)?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(NO_JWT);
        }
        if header.crit.is_some() {
            return Err(TokenError::Invalid("its header has critical members that this server does not support"));
        }
        let key = self.keys.find(header.alg, header.kid.as_deref()).await?;
        let mut validation = Validation::new(header.alg);
        validation.set_audience(&[self.resource(bot)]);
        validation.set_issuer(&[&*self.issuer]);
        validation.set_required_spec_claims(&["aud", "exp", "iss", "sub"]);
        // The times are checked below, by the clock of the host.
        validation.validate_exp = false;
        let claims = decode::<Claims>(token, &key, &validation).map_err(|error| refusal(&error))?.claims;
        self.user(claims, bot)
    }

    /// Checks the claims that the library does not check.
    fn user(&self, claims: Claims, bot: BotId) -> Result<TokenUser, TokenError> {
        let Claims { sub, exp, nbf, scope } = claims;
        let now = self.clock.now();
        let expires_at = millis(exp).plus_ms(LEEWAY_MS);
        if expires_at <= now {
            return Err(TokenError::Invalid("it has expired"));
        }
        if expires_at.since_ms(now) > VALID_MS_MAX + 2 * LEEWAY_MS {
            return Err(TokenError::Invalid("it is valid for more than 24 hours"));
        }
        if nbf.is_some_and(|nbf| millis(nbf) > now.plus_ms(LEEWAY_MS)) {
            return Err(TokenError::Invalid("it is not valid yet"));
        }
        if !is_subject(&sub) {
            return Err(TokenError::Invalid(
                "its subject must be 1 to 256 bytes long and must not contain control characters",
            ));
        }
        if !has_scope(scope.as_ref()) {
            return Err(TokenError::Scope);
        }
        Ok(TokenUser { issuer: Arc::clone(&self.issuer), subject: sub.into(), bot, expires_at })
    }
}

/// Returns whether a subject can be the id of a user.
fn is_subject(sub: &str) -> bool {
    !sub.is_empty() && sub.len() <= SUBJECT_BYTES_MAX && !sub.chars().any(char::is_control)
}

/// Returns whether the claim `scope`, a text or a list of texts, contains [`SCOPE`].
fn has_scope(scope: Option<&Value>) -> bool {
    match scope {
        Some(Value::String(scopes)) => scopes.split(' ').any(|scope| scope == SCOPE),
        Some(Value::Array(scopes)) => scopes.iter().any(|scope| scope == SCOPE),
        _ => false,
    }
}

fn refusal(error: &jsonwebtoken::errors::Error) -> TokenError {
    use jsonwebtoken::errors::ErrorKind;
    TokenError::Invalid(match error.kind() {
        ErrorKind::InvalidSignature => "its signature is wrong",
        ErrorKind::InvalidIssuer => "it is from another issuer",
        ErrorKind::InvalidAudience => "its audience is not this URL",
        ErrorKind::MissingRequiredClaim(_) => "it must have the claims `iss`, `aud`, `exp` and `sub`",
        _ => "it cannot be verified",
    })
}

/// Converts a time in seconds. Times beyond the range become its ends.
#[expect(clippy::cast_possible_truncation, reason = "the conversion saturates")]
fn millis(seconds: f64) -> UtcMillis {
    // A quarter of the range leaves room for the leeway.
    UtcMillis(((seconds * 1000.0) as i64).clamp(i64::MIN / 4, i64::MAX / 4))
}

#[cfg(test)]
mod tests;
