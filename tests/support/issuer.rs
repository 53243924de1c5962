//! An authorization server that issues any access token, valid or not.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use aws_lc_rs::{error::Unspecified, hmac};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A running authorization server with one key for each algorithm. Dropping the value stops it.
pub struct TokenIssuer {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    task: JoinHandle<()>,
}

struct Shared {
    keys: Keys,
    /// The paths of the received requests.
    requests: Vec<String>,
}

struct Keys {
    rsa: RsaKeyPair,
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
}

impl Keys {
    fn new() -> Result<Keys> {
        Ok(Keys {
            rsa: RsaKeyPair::generate(KeySize::Rsa2048).map_err(failed)?,
            ec: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(failed)?,
            ed: Ed25519KeyPair::generate().map_err(failed)?,
        })
    }

    fn to_json(&self) -> Value {
        let rsa = self.rsa.public_key();
        // An uncompressed point is a byte, and then both coordinates.
        let point = self.ec.public_key().as_ref().to_vec();
        json!({"keys": [
            {
                "kty": "RSA", "kid": "RS256", "use": "sig", "alg": "RS256",
                "n": encoded(rsa.modulus().big_endian_without_leading_zero()),
                "e": encoded(rsa.exponent().big_endian_without_leading_zero()),
            },
            {"kty": "EC", "crv": "P-256", "kid": "ES256", "x": encoded(&point[1..33]), "y": encoded(&point[33..])},
            {"kty": "OKP", "crv": "Ed25519", "kid": "EdDSA", "x": encoded(self.ed.public_key().as_ref())},
        ]})
    }

    fn sign(&self, algorithm: &str, text: &[u8]) -> Result<Vec<u8>> {
        Ok(match algorithm {
            "RS256" => {
                let mut signature = vec![0; self.rsa.public_modulus_len()];
                self.rsa.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text, &mut signature).map_err(failed)?;
                signature
            }
            "ES256" => self.ec.sign(&SystemRandom::new(), text).map_err(failed)?.as_ref().to_vec(),
            "EdDSA" => self.ed.sign(text).as_ref().to_vec(),
            // The public key of RSA as the secret of an HMAC.
            "HS256" => {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, self.rsa.public_key().as_ref()), text).as_ref().to_vec()
            }
            _ => Vec::new(),
        })
    }
}

fn failed(_: Unspecified) -> anyhow::Error {
    anyhow!("a key cannot be generated or used")
}

fn encoded(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

impl TokenIssuer {
    /// Starts a server.
    pub async fn start() -> Result<TokenIssuer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the issuer cannot listen on a port")?;
        let address = listener.local_addr().context("the issuer has no address")?;
        let shared = Arc::new(Mutex::new(Shared { keys: Keys::new()?, requests: Vec::new() }));
        let state = (format!("http://{address}"), Arc::clone(&shared));
        let router = Router::new().fallback(answer).with_state(state);
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the issuer serves until it is dropped");
        });
        Ok(TokenIssuer { address, shared, task })
    }

    /// Returns the URL `http://127.0.0.1:PORT`, which identifies the issuer.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns claims of a token that is valid for an hour.
    pub fn claims(&self, audience: &str, subject: &str) -> Result<Value> {
        let exp = now_s()? + 3600;
        Ok(json!({"iss": self.url(), "sub": subject, "aud": audience, "exp": exp, "scope": "mcp:tools"}))
    }

    /// Returns a token with any algorithm and claims. An unknown algorithm gives a token without a signature, and HS256
    /// one that is signed with the public key of RS256.
    pub fn token(&self, algorithm: &str, claims: &Value) -> Result<String> {
        let header = json!({"alg": algorithm, "typ": "at+jwt", "kid": algorithm.replace("HS", "RS")});
        let text = format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
        let signature = locked(&self.shared).keys.sign(algorithm, text.as_bytes())?;
        Ok(format!("{text}.{}", encoded(&signature)))
    }

    /// Replaces the keys. Their ids stay the same.
    pub fn replace_keys(&self) -> Result<()> {
        locked(&self.shared).keys = Keys::new()?;
        Ok(())
    }

    /// Returns the paths of the requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        locked(&self.shared).requests.clone()
    }
}

impl Drop for TokenIssuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the time in seconds since 1970.
pub fn now_s() -> Result<u64> {
    #[expect(clippy::disallowed_methods, reason = "tokens contain the time of the host")]
    let now = SystemTime::now();
    Ok(now.duration_since(UNIX_EPOCH)?.as_secs())
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(State((url, shared)): State<(String, Arc<Mutex<Shared>>)>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let mut shared = locked(&shared);
    shared.requests.push(path.clone());
    match path.as_str() {
        "/.well-known/openid-configuration" => {
            axum::Json(json!({"issuer": url, "jwks_uri": format!("{url}/jwks")})).into_response()
        }
        "/jwks" => axum::Json(shared.keys.to_json()).into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
