//! The public keys of the issuer, fetched through egress and kept for an hour.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use monstrum_egress::{Anonymous, Egress, Network, RedactorCell, Scope};
use monstrum_types::{Failure, HttpRequest};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::TokenError;

/// The time for which fetched keys are used. A key that the issuer has withdrawn is accepted for at most this time.
const KEPT_MAX: Duration = Duration::from_secs(60 * 60);
/// The minimum time between two fetches. Anyone can send a token with an unknown key, and such a token must not make the
/// host send many requests.
const FETCH_INTERVAL: Duration = Duration::from_secs(60);
/// The minimum time between two fetches after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The time limit of a fetch, because a request waits for it.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// The maximum size of a document of the issuer. Documents of large providers have some KiB.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// The maximum number of keys. Issuers have a few keys, of which they use one.
const KEYS_MAX: usize = 100;

/// The keys of the issuer.
pub(super) struct IssuerKeys {
    issuer: String,
    pub(super) network: Network,
    pub(super) egress: Egress,
    state: Mutex<State>,
    /// Held during a fetch, so that one request fetches and the others wait.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    keys: Vec<Key>,
    fetched_at: Option<Instant>,
    /// The time before which no fetch begins.
    rests_until: Option<Instant>,
}

/// A public key, and the algorithm for which it is used.
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl IssuerKeys {
    pub(super) fn new(issuer: String, network: Network, egress: Egress) -> IssuerKeys {
        IssuerKeys { issuer, network, egress, state: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// Returns the key with this id. Without an id, the issuer must have exactly one key for the algorithm. An unknown id
    /// fetches the keys anew.
    pub(super) async fn find(&self, algorithm: Algorithm, id: Option<&str>) -> Result<DecodingKey, TokenError> {
        if let Some(Some(key)) = self.held(algorithm, id) {
            return Ok(key);
        }
        let _turn = self.turn.lock().await;
        if let Some(Some(key)) = self.held(algorithm, id) {
            return Ok(key);
        }
        self.fetch_if_due().await;
        match self.held(algorithm, id) {
            Some(Some(key)) => Ok(key),
            Some(None) => Err(TokenError::Invalid("the issuer has no such key")),
            None => Err(TokenError::Unavailable),
        }
    }

    /// Returns the held key, or `Some(None)` if the issuer has no such key, or `None` if no current keys are held.
    #[expect(clippy::option_option, reason = "there may be no keys, or no such key")]
    fn held(&self, algorithm: Algorithm, id: Option<&str>) -> Option<Option<DecodingKey>> {
        let state = self.state.lock();
        state.fetched_at.filter(|fetched_at| fetched_at.elapsed() < KEPT_MAX)?;
        let is_wanted = |key: &&Key| key.algorithm == algorithm && id.is_none_or(|id| key.id.as_deref() == Some(id));
        let mut keys = state.keys.iter().filter(is_wanted);
        let found = keys.next().filter(|_| keys.next().is_none());
        Some(found.map(|key| key.key.clone()))
    }

    async fn fetch_if_due(&self) {
        if self.state.lock().rests_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let fetched = self.fetch(Instant::now() + FETCH_MAX).await;
        let now = Instant::now();
        let mut state = self.state.lock();
        match fetched {
            Ok(keys) => *state = State { keys, fetched_at: Some(now), rests_until: Some(now + FETCH_INTERVAL) },
            Err(error) => {
                state.rests_until = Some(now + RETRY_INTERVAL);
                tracing::warn!(error, "the keys of the MCP issuer could not be fetched");
            }
        }
    }

    async fn fetch(&self, until: Instant) -> Result<Vec<Key>, String> {
        let metadata = self.metadata(until).await?;
        let uri = metadata.get("jwks_uri").and_then(Value::as_str).ok_or("the metadata has no `jwks_uri`")?;
        let uri = Url::parse(uri).map_err(|error| format!("`jwks_uri` is not a URL: {error}"))?;
        let set = self.document(&uri, until).await?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("the key set has no list `keys`")?;
        Ok(keys.iter().take(KEYS_MAX).filter_map(key).collect())
    }

    /// Returns the metadata of the issuer, by RFC 8414, or else at the place where `OpenID` providers have it.
    pub(super) async fn metadata(&self, until: Instant) -> Result<Value, String> {
        let mut failures = Vec::new();
        for url in metadata_urls(&self.issuer)? {
            match self.document(&url, until).await {
                Ok(metadata) if metadata.get("issuer").and_then(Value::as_str) == Some(self.issuer.as_str()) => {
                    return Ok(metadata);
                }
                Ok(_) => failures.push(format!("{url}: `issuer` is not `{}`", self.issuer)),
                Err(failure) => failures.push(failure),
            }
        }
        Err(failures.join("; "))
    }

    async fn document(&self, url: &Url, until: Instant) -> Result<Value, String> {
        let scope = Scope { api_base: Some(url.clone()), network: self.network.clone(), ..Scope::default() };
        let request = HttpRequest {
            method: "GET".to_owned(),
            url: url.to_string(),
            headers: vec![("accept".to_owned(), "application/json".to_owned())],
            ..HttpRequest::default()
        };
        let nothing_to_do = || -> BoxFuture<'static, Result<(), Failure>> { async { Ok(()) }.boxed() };
        let sent = self.egress.send(&scope, &Anonymous, &RedactorCell::default(), request, until, &nothing_to_do).await;
        let answer = sent.map_err(|failure| format!("{url}: {}", failure.message))?;
        if answer.status != 200 {
            return Err(format!("{url}: status {}", answer.status));
        }
        if answer.body.len() > DOCUMENT_BYTES_MAX {
            return Err(format!("{url}: the document exceeds {DOCUMENT_BYTES_MAX} bytes"));
        }
        serde_json::from_slice(&answer.body).map_err(|error| format!("{url}: {error}"))
    }
}

/// Returns the URLs at which the metadata of an issuer may be.
fn metadata_urls(issuer: &str) -> Result<[Url; 2], String> {
    let url = Url::parse(issuer).map_err(|error| format!("the issuer is not a URL: {error}"))?;
    let path = url.path().trim_end_matches('/').to_owned();
    let at = |path: String| {
        let mut url = url.clone();
        url.set_path(&path);
        url
    };
    Ok([
        at(format!("/.well-known/oauth-authorization-server{path}")),
        at(format!("{path}/.well-known/openid-configuration")),
    ])
}

/// Reads a key that verifies signatures with one of the accepted algorithms. Other keys are skipped, because a set may
/// contain keys for other purposes.
fn key(value: &Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    let common = &jwk.common;
    let is_for_signatures = common.public_key_use.as_ref().is_none_or(|its| *its == PublicKeyUse::Signature);
    let is_for_algorithm = common.key_algorithm.as_ref().is_none_or(|its| *its == named);
    let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| is_for_signatures && is_for_algorithm)?;
    Some(Key { id: common.key_id.clone(), algorithm, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_of_an_issuer_with_a_path_is_below_its_host_or_its_path() {
        let urls = |issuer: &str| metadata_urls(issuer).unwrap().map(|url| url.to_string());
        assert_eq!(
            urls("https://id.example"),
            [
                "https://id.example/.well-known/oauth-authorization-server",
                "https://id.example/.well-known/openid-configuration",
            ]
        );
        assert_eq!(
            urls("https://id.example/realms/a/"),
            [
                "https://id.example/.well-known/oauth-authorization-server/realms/a",
                "https://id.example/realms/a/.well-known/openid-configuration",
            ]
        );
    }

    #[test]
    fn keys_for_other_purposes_are_skipped() {
        let ed = |more: Value| {
            let mut jwk = serde_json::json!({
                "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "kid": "a",
            });
            jwk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            key(&jwk).map(|key| key.algorithm)
        };
        assert_eq!(ed(serde_json::json!({})), Some(Algorithm::EdDSA));
        assert_eq!(ed(serde_json::json!({"use": "sig", "alg": "EdDSA"})), Some(Algorithm::EdDSA));
        assert_eq!(ed(serde_json::json!({"use": "enc"})), None);
        assert_eq!(ed(serde_json::json!({"alg": "ES256"})), None);
        let secret = serde_json::json!({"kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "HS256"});
        assert!(key(&secret).is_none(), "a shared secret verifies no token");
    }
}
