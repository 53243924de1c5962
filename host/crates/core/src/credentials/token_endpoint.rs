//! The client of token endpoints (RFC 6749, section 3.2). Requests go through egress, like all outgoing traffic.
//!
//! The parser of answers is lenient, because providers deviate from the standard. For example, an error may have
//! status 200, and a lifetime may be a string or missing. The checks of a request's target and of the displayed parts
//! of an answer are strict.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::{Anonymous, Egress, Network, Redactor, RedactorCell, SECRET_BYTES_MIN, Scope};
use monstrum_types::{Clock, Failure, HttpRequest, HttpResponse, Secret, TokenAuth, UtcMillis, is_invisible};
use serde_json::{Map, Value};
use tokio::time::Instant;
use url::Url;
use url::form_urlencoded::{Serializer, byte_serialize};

/// The maximum time for an answer, because a call waits for it. A working provider answers faster.
pub const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);
/// The maximum size of a token, which must fit into a header block together with other headers.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// The maximum lifetime in seconds: ten years. A longer lifetime is reduced to this maximum.
const LIFETIME_S_MAX: i64 = 10 * 365 * 24 * 3600;
/// The maximum number of characters of a provider's error description. A longer description is truncated.
const DESCRIPTION_CHARS_MAX: usize = 200;
const ERROR_CHARS_MAX: usize = 64;

/// A provider, and the OAuth client that represents this host.
pub struct Provider<'a> {
    pub egress: &'a Egress,
    pub clock: &'a dyn Clock,
    /// The network rules of the resource. These rules also apply to requests to the provider.
    pub network: &'a Network,
    pub client_id: &'a str,
    pub client_secret: Option<&'a Secret>,
    /// How the client authenticates, or `None` if the metadata of the provider are not known.
    pub auth: Option<TokenAuth>,
    /// The value of the parameter `resource` of each request (RFC 8707).
    pub resource: Option<&'a str>,
}

/// The grant that is exchanged for an access token.
pub enum Grant<'a> {
    Code { code: &'a Secret, verifier: &'a Secret, redirect_uri: &'a str },
    Refresh { refresh_token: &'a Secret },
    Client { scopes: &'a str },
    Device { device_code: &'a Secret },
}

/// The tokens of an answer.
pub struct Tokens {
    pub access_token: Secret,
    pub refresh_token: Option<Secret>,
    /// The expiry of the access token by the clock of this host, or `None` if the answer has no lifetime.
    pub expires_at: Option<UtcMillis>,
}

/// The reason why no tokens were obtained.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// An error response of RFC 6749 or RFC 8628, sanitized for display.
    #[error("the provider answered `{error}`{description}")]
    Refused { error: String, description: String },
    #[error("the provider answered with status {status}")]
    Status { status: u16 },
    #[error("the provider's answer cannot be used: {why}")]
    Unusable { why: &'static str },
    #[error("the request to the provider failed: {}", .0.message)]
    Unreachable(Failure),
}

impl TokenError {
    /// Returns the provider's error code, if it sent one.
    pub fn code(&self) -> Option<&str> {
        match self {
            TokenError::Refused { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns whether the grant itself is invalid, so that a retry with it cannot succeed.
    pub fn is_of_grant(&self) -> bool {
        // Only GitHub uses the code `bad_refresh_token`.
        matches!(self.code(), Some("invalid_grant" | "bad_refresh_token" | "access_denied" | "expired_token"))
    }

    /// Returns whether the provider may have rejected the request because of the location of the client secret.
    fn may_be_of_client(&self) -> bool {
        const CODES: [&str; 4] =
            ["invalid_client", "incorrect_client_credentials", "invalid_request", "unauthorized_client"];
        match self {
            TokenError::Refused { error, .. } => CODES.contains(&error.as_str()),
            TokenError::Status { status } => (400..500).contains(status) && *status != 429,
            TokenError::Unusable { .. } | TokenError::Unreachable(_) => false,
        }
    }
}

/// The location of the client secret in a request.
#[derive(Clone, Copy)]
enum SecretIn {
    Header,
    Body,
    /// The client is public.
    Nothing,
}

impl Provider<'_> {
    /// Requests tokens from the token endpoint.
    pub async fn tokens(&self, token_url: &Url, grant: &Grant<'_>) -> Result<Tokens, TokenError> {
        let asked_at = self.clock.now();
        let answer = self.ask(token_url, &grant.form()).await?;
        Tokens::read(&answer, asked_at)
    }

    /// Sends a form to an endpoint of the provider and returns the members of the answer. If it is not known how the
    /// client authenticates, the first request has the client secret in the header, which every server must accept
    /// (RFC 6749, section 2.3.1). If the provider rejects that request, a second request has the secret in the body.
    pub async fn ask(&self, url: &Url, form: &[(&str, &str)]) -> Result<Map<String, Value>, TokenError> {
        if let Some(auth) = self.auth {
            let secret_in = match auth {
                TokenAuth::None => SecretIn::Nothing,
                TokenAuth::ClientSecretBasic => SecretIn::Header,
                TokenAuth::ClientSecretPost => SecretIn::Body,
            };
            return self.ask_with(url, form, secret_in).await;
        }
        let answer = self.ask_with(url, form, SecretIn::Header).await;
        match answer {
            Err(error) if self.client_secret.is_some() && error.may_be_of_client() => {
                self.ask_with(url, form, SecretIn::Body).await
            }
            answer => answer,
        }
    }

    async fn ask_with(
        &self,
        url: &Url,
        form: &[(&str, &str)],
        secret_in: SecretIn,
    ) -> Result<Map<String, Value>, TokenError> {
        let request = self.request(url, form, secret_in);
        // The answer is not redacted, because it may contain a value from the request that the host needs, such as the
        // refresh token.
        let scope = Scope { api_base: Some(url.clone()), network: self.network.clone(), ..Scope::default() };
        let until = Instant::now() + ANSWER_WAIT_MAX;
        let nothing_to_do = || -> BoxFuture<'static, Result<(), Failure>> { async { Ok(()) }.boxed() };
        let sent = self.egress.send(&scope, &Anonymous, &RedactorCell::default(), request, until, &nothing_to_do).await;
        let secrets = self.client_secret.into_iter().cloned().chain(form.iter().filter_map(secret_of));
        members(&sent.map_err(TokenError::Unreachable)?, &Redactor::new(secrets.collect::<Vec<_>>()))
    }

    fn request(&self, url: &Url, form: &[(&str, &str)], secret_in: SecretIn) -> HttpRequest {
        let mut headers = vec![
            ("accept".to_owned(), "application/json".to_owned()),
            ("content-type".to_owned(), "application/x-www-form-urlencoded".to_owned()),
        ];
        let mut body = Serializer::new(String::new());
        body.extend_pairs(form);
        match (self.client_secret, secret_in) {
            (Some(secret), SecretIn::Header) => {
                let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
                let pair = format!("{}:{}", encoded(self.client_id), encoded(secret.expose()));
                headers.push(("authorization".to_owned(), format!("Basic {}", BASE64_STANDARD.encode(pair))));
            }
            (Some(secret), SecretIn::Body) => {
                body.append_pair("client_secret", secret.expose());
            }
            (Some(_), SecretIn::Nothing) | (None, _) => {}
        }
        if let Some(resource) = self.resource {
            body.append_pair("resource", resource);
        }
        // The body always contains the client id, even if the header contains it too, because device endpoints require
        // it in the body (RFC 8628, section 3.1).
        body.append_pair("client_id", self.client_id);
        HttpRequest {
            method: "POST".to_owned(),
            url: url.to_string(),
            headers,
            body: Some(body.finish().into_bytes()),
            ..HttpRequest::default()
        }
    }
}

/// Returns the value of a form field if the value is a secret, which an error message must not contain.
fn secret_of((name, value): &(&str, &str)) -> Option<Secret> {
    const SECRETS: [&str; 4] = ["code", "code_verifier", "refresh_token", "device_code"];
    SECRETS.contains(name).then(|| Secret::new((*value).to_owned()))
}

impl Grant<'_> {
    /// Returns the fields of a request with this grant.
    pub fn form(&self) -> Vec<(&str, &str)> {
        match self {
            Grant::Code { code, verifier, redirect_uri } => vec![
                ("grant_type", "authorization_code"),
                ("code", code.expose()),
                ("code_verifier", verifier.expose()),
                ("redirect_uri", redirect_uri),
            ],
            Grant::Refresh { refresh_token } => {
                vec![("grant_type", "refresh_token"), ("refresh_token", refresh_token.expose())]
            }
            Grant::Client { scopes: "" } => vec![("grant_type", "client_credentials")],
            Grant::Client { scopes } => vec![("grant_type", "client_credentials"), ("scope", scopes)],
            Grant::Device { device_code } => vec![
                ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
                ("device_code", device_code.expose()),
            ],
        }
    }
}

/// Returns the members of a successful answer, or the error that the answer contains.
pub fn members(answer: &HttpResponse, redactor: &Redactor) -> Result<Map<String, Value>, TokenError> {
    let members: Option<Map<String, Value>> = serde_json::from_slice(&answer.body).ok();
    let error = members.as_ref().and_then(|members| members.get("error")).filter(|error| !error.is_null());
    // A gateway in front of the provider may put any text into `error` if the provider is unavailable. Such a text is
    // not an OAuth error.
    let is_away = answer.status >= 500 || answer.status == 429;
    let is_of_oauth = |error: &Value| matches!(error.as_str(), Some("slow_down" | "authorization_pending"));
    if let Some(error) = error.filter(|error| !is_away || is_of_oauth(error)) {
        let text =
            |value: Option<&Value>| redactor.redact_text(value.and_then(Value::as_str).unwrap_or_default().into());
        let description = shown(&text(members.as_ref().and_then(|members| members.get("error_description"))));
        let description = if description.is_empty() { description } else { format!(": {description}") };
        let code: String = text(Some(error)).chars().filter(is_of_code).take(ERROR_CHARS_MAX).collect();
        let error = if code.is_empty() { "error".to_owned() } else { code };
        return Err(TokenError::Refused { error, description });
    }
    match members {
        Some(members) if (200..300).contains(&answer.status) => Ok(members),
        _ if !(200..300).contains(&answer.status) => Err(TokenError::Status { status: answer.status }),
        _ => Err(TokenError::Unusable { why: "it is not a JSON object" }),
    }
}

fn is_of_code(character: &char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.')
}

/// Truncates a provider's text and removes invisible characters.
fn shown(text: &str) -> String {
    text.chars().filter(|character| !is_invisible(*character)).take(DESCRIPTION_CHARS_MAX).collect()
}

impl Tokens {
    fn read(answer: &Map<String, Value>, asked_at: UtcMillis) -> Result<Tokens, TokenError> {
        let unusable = |why| TokenError::Unusable { why };
        let token_type = answer.get("token_type").and_then(Value::as_str);
        if token_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
            return Err(unusable("its token_type is not `bearer`"));
        }
        let access_token = token(answer, "access_token").map_err(unusable)?;
        Ok(Tokens {
            access_token: access_token.ok_or(unusable("it has no access_token"))?,
            refresh_token: token(answer, "refresh_token").map_err(unusable)?,
            expires_at: lifetime_s(answer.get("expires_in")).map(|lifetime_s| asked_at.plus_ms(lifetime_s * 1000)),
        })
    }
}

/// Reads a token from an answer. Rejects a token that is not valid in a header or too short to be redacted.
fn token(answer: &Map<String, Value>, name: &str) -> Result<Option<Secret>, &'static str> {
    let text = match answer.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => text,
        Some(_) => return Err("it contains a token that is not a string"),
    };
    if !(SECRET_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len()) {
        return Err("it contains a token that is shorter than 8 bytes or longer than 16 KiB");
    }
    if text.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        return Err("it contains a token with characters that are not allowed in a header");
    }
    Ok(Some(Secret::new(text.clone())))
}

/// Parses a lifetime in seconds from a number or a numeric string. Returns `None` for any other value.
pub fn lifetime_s(expires_in: Option<&Value>) -> Option<i64> {
    let seconds = match expires_in? {
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|seconds| seconds as i64))?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    (seconds > 0).then(|| seconds.min(LIFETIME_S_MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: UtcMillis = UtcMillis(1_000_000);

    fn read(status: u16, body: &Value) -> Result<(String, Option<String>, Option<i64>), String> {
        let answer = HttpResponse { status, body: body.to_string().into_bytes(), ..HttpResponse::default() };
        let redactor = Redactor::new(vec![Secret::new("the-client-secret".to_owned())]);
        let read = members(&answer, &redactor).and_then(|members| Tokens::read(&members, NOW));
        read.map_err(|error| error.to_string()).map(|tokens| {
            let refresh_token = tokens.refresh_token.map(|token| token.expose().to_owned());
            (tokens.access_token.expose().to_owned(), refresh_token, tokens.expires_at.map(|end| end.since_ms(NOW)))
        })
    }

    #[test]
    fn answers_of_the_standard_and_of_real_providers_are_parsed() {
        let token = "access-token";
        for (answer, refresh_token, lifetime_ms) in [
            (json!({"access_token": token, "token_type": "Bearer", "expires_in": 3600}), None, Some(3_600_000)),
            (json!({"access_token": token, "token_type": "bearer", "scope": ["a", "b"]}), None, None),
            (
                json!({"access_token": token, "expires_in": "60", "refresh_token": "refresh-token"}),
                Some("refresh-token"),
                Some(60_000),
            ),
            (json!({"access_token": token, "expires_in": 59.9, "refresh_token": null}), None, Some(59_000)),
            (json!({"access_token": token, "expires_in": 0, "refresh_token": ""}), None, None),
            (json!({"access_token": token, "expires_in": -5, "error": null}), None, None),
            (json!({"access_token": token, "expires_in": "soon", "scope": null}), None, None),
            (json!({"access_token": token, "expires_in": 1e300}), None, Some(LIFETIME_S_MAX * 1000)),
        ] {
            let expected = (token.to_owned(), refresh_token.map(str::to_owned), lifetime_ms);
            assert_eq!(read(200, &answer), Ok(expected), "{answer}");
        }
    }

    #[test]
    fn unusable_answers_are_rejected() {
        for (status, answer, why) in [
            (
                200,
                json!({"error": "bad_verification_code", "error_description": "The code\nis\u{0} wrong"}),
                "the provider answered `bad_verification_code`: The codeis wrong",
            ),
            (
                400,
                json!({"error": "invalid_client", "error_description": "no client the-client-secret"}),
                "the provider answered `invalid_client`: no client [redacted]",
            ),
            (400, json!({"error": {"code": 7}}), "the provider answered `error`"),
            (400, json!({"error": "<script>alert(1)</script>"}), "the provider answered `scriptalert1script`"),
            (500, json!({"access_token": "access-token"}), "the provider answered with status 500"),
            (503, json!({"status": 503, "error": "Service Unavailable"}), "the provider answered with status 503"),
            (429, json!({"error": "rate_limit_exceeded"}), "the provider answered with status 429"),
            (429, json!({"error": "slow_down"}), "the provider answered `slow_down`"),
            (302, json!({}), "the provider answered with status 302"),
            (200, json!([]), "the provider's answer cannot be used: it is not a JSON object"),
            (200, json!({}), "the provider's answer cannot be used: it has no access_token"),
            (
                200,
                json!({"access_token": "short"}),
                "the provider's answer cannot be used: it contains a token that is shorter than 8 bytes or longer than \
                 16 KiB",
            ),
            (
                200,
                json!({"access_token": 123_456_789}),
                "the provider's answer cannot be used: it contains a token that is not a string",
            ),
            (
                200,
                json!({"access_token": "access\r\ntoken"}),
                "the provider's answer cannot be used: it contains a token with characters that are not allowed in a \
                 header",
            ),
            (
                200,
                json!({"access_token": "access-token", "token_type": "DPoP"}),
                "the provider's answer cannot be used: its token_type is not `bearer`",
            ),
        ] {
            assert_eq!(read(status, &answer), Err(why.to_owned()), "{answer}");
        }
    }
}
