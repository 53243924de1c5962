//! An authorization server that issues any access token, valid or not. It also signs people in without asking them: the
//! test says who is in front of the browser.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use aws_lc_rs::digest::{SHA256, digest};
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
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
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
    /// The codes that were issued and not used yet.
    codes: BTreeMap<String, Code>,
    /// The number of issued codes and tokens, which makes them different.
    issued: u32,
    /// Members that replace claims of ID tokens.
    id_claims: Value,
    /// The algorithm that signs ID tokens.
    id_algorithm: String,
    /// The client secret that is required, if any.
    secret: Option<String>,
}

/// A code, and the request for which it was issued.
struct Code {
    subject: String,
    client_id: String,
    redirect_uri: String,
    nonce: Option<String>,
    challenge: String,
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

    fn token(&self, algorithm: &str, claims: &Value) -> Result<String> {
        let header = json!({"alg": algorithm, "typ": "at+jwt", "kid": algorithm.replace("HS", "RS")});
        let text = format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
        let signature = self.sign(algorithm, text.as_bytes())?;
        Ok(format!("{text}.{}", encoded(&signature)))
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
        let shared = Arc::new(Mutex::new(Shared {
            keys: Keys::new()?,
            requests: Vec::new(),
            codes: BTreeMap::new(),
            issued: 0,
            id_claims: json!({}),
            id_algorithm: "EdDSA".to_owned(),
            secret: None,
        }));
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
        locked(&self.shared).keys.token(algorithm, claims)
    }

    /// Signs in this person at the URL of the authorization endpoint to which a browser was sent. Returns the URL to which
    /// the browser is sent back.
    pub fn sign_in(&self, url: &str, subject: &str) -> Result<String> {
        let url = reqwest::Url::parse(url)?;
        anyhow::ensure!(url.as_str().starts_with(&format!("{}/authorize?", self.url())), "{url}");
        let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
        let given = |name: &str| query.get(name).cloned().with_context(|| format!("{url} has no `{name}`"));
        let code = Code {
            subject: subject.to_owned(),
            client_id: given("client_id")?,
            redirect_uri: given("redirect_uri")?,
            nonce: query.get("nonce").cloned(),
            challenge: given("code_challenge")?,
        };
        let mut shared = locked(&self.shared);
        shared.issued += 1;
        let text = format!("code-{}", shared.issued);
        let back = format!("{}?code={text}&state={}", code.redirect_uri, given("state")?);
        shared.codes.insert(text, code);
        Ok(back)
    }

    /// Requires this client secret.
    pub fn require_secret(&self, secret: &str) {
        locked(&self.shared).secret = Some(secret.to_owned());
    }

    /// Changes claims of ID tokens, and the algorithm that signs them.
    pub fn forge_id_tokens(&self, algorithm: &str, claims: &Value) {
        let mut shared = locked(&self.shared);
        shared.id_claims = claims.clone();
        algorithm.clone_into(&mut shared.id_algorithm);
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
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let body = axum::body::to_bytes(body, FORM_BYTES_MAX).await.unwrap_or_default();
    let mut shared = locked(&shared);
    shared.requests.push(path.clone());
    match path.as_str() {
        "/.well-known/openid-configuration" => axum::Json(json!({
            "issuer": url, "jwks_uri": format!("{url}/jwks"), "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
        }))
        .into_response(),
        "/jwks" => axum::Json(shared.keys.to_json()).into_response(),
        "/token" => {
            let basic = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
            match shared.tokens(&url, &body, basic) {
                Ok(tokens) => axum::Json(tokens).into_response(),
                Err(why) => (StatusCode::BAD_REQUEST, axum::Json(json!({ "error": why.to_string() }))).into_response(),
            }
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// The maximum size of a form.
const FORM_BYTES_MAX: usize = 64 << 10;

impl Shared {
    /// Answers a request at the token endpoint. Each code is good for one answer. Tokens name
    /// their user: `access-of-USER-NUMBER`.
    fn tokens(&mut self, issuer: &str, form: &[u8], basic: Option<&str>) -> Result<Value> {
        // A URL parses its query like a form.
        let form = format!("http://form/?{}", std::str::from_utf8(form)?);
        let form: BTreeMap<String, String> = reqwest::Url::parse(&form)?.query_pairs().into_owned().collect();
        let given = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        if let Some(secret) = &self.secret {
            let pair = format!("{}:{secret}", given("client_id"));
            let expected = format!("Basic {}", BASE64_STANDARD.encode(pair));
            anyhow::ensure!(basic == Some(&expected), "invalid_client");
        }
        let (subject, code) = match given("grant_type") {
            "authorization_code" => {
                let code = self.codes.remove(given("code")).context("invalid_grant")?;
                let challenge = encoded(digest(&SHA256, given("code_verifier").as_bytes()).as_ref());
                let is_own = code.challenge == challenge
                    && code.redirect_uri == given("redirect_uri")
                    && code.client_id == given("client_id");
                anyhow::ensure!(is_own, "invalid_grant");
                (code.subject.clone(), Some(code))
            }
            "refresh_token" => {
                let rest = given("refresh_token").strip_prefix("refresh-of-").context("invalid_grant")?;
                let (subject, number) = rest.rsplit_once('-').context("invalid_grant")?;
                anyhow::ensure!(number.parse::<u32>()? <= self.issued, "invalid_grant");
                (subject.to_owned(), None)
            }
            _ => anyhow::bail!("unsupported_grant_type"),
        };
        self.issued += 1;
        let number = self.issued;
        let mut tokens = json!({
            "access_token": format!("access-of-{subject}-{number}"),
            "refresh_token": format!("refresh-of-{subject}-{number}"),
            "token_type": "bearer",
            "expires_in": 3600,
        });
        if let Some((nonce, code)) = code.and_then(|code| Some((code.nonce.clone()?, code))) {
            let mut claims = json!({
                "iss": issuer, "sub": subject, "aud": code.client_id, "exp": now_s()? + 300, "nonce": nonce,
            });
            let forged = self.id_claims.as_object().cloned().unwrap_or_default();
            claims.as_object_mut().context("claims")?.extend(forged);
            tokens["id_token"] = json!(self.keys.token(&self.id_algorithm, &claims)?);
        }
        Ok(tokens)
    }
}
