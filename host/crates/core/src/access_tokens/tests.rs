//! Tokens of an issuer whose documents a scripted transport returns.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::{EgressOptions, LookupError, Resolve, Transport};
use monstrum_types::{Failure, FixedClock};
use parking_lot::Mutex;
use serde_json::json;

use super::*;

const ISSUER: &str = "https://id.example/tenant";
const NOW_S: i64 = 1_700_000_000;

/// An issuer with one key, which can be replaced.
struct Issuer {
    key: Mutex<(String, Ed25519KeyPair)>,
    /// The value of `issuer` in the metadata.
    name: Mutex<String>,
    is_down: Mutex<bool>,
    fetches: AtomicUsize,
}

impl Issuer {
    fn new() -> Arc<Issuer> {
        Arc::new(Issuer {
            key: Mutex::new(("first".to_owned(), new_key())),
            name: Mutex::new(ISSUER.to_owned()),
            is_down: Mutex::default(),
            fetches: AtomicUsize::default(),
        })
    }

    fn rotate(&self, id: &str) {
        *self.key.lock() = (id.to_owned(), new_key());
    }

    fn public_key(&self) -> Vec<u8> {
        self.key.lock().1.public_key().as_ref().to_vec()
    }

    /// Returns a token that is signed with the current key.
    fn token(&self, claims: &Value) -> String {
        let key = self.key.lock();
        self.signed(&json!({"alg": "EdDSA", "kid": key.0}), claims, |text| key.1.sign(text).as_ref().to_vec())
    }

    fn signed(&self, header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
        let encoded = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let text = format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
        let signature = sign(text.as_bytes());
        format!("{text}.{}", encoded(&signature))
    }
}

fn new_key() -> Ed25519KeyPair {
    Ed25519KeyPair::generate().unwrap()
}

impl Transport for Issuer {
    fn exchange(&self, request: http::Request<Vec<u8>>) -> BoxFuture<'_, Result<http::Response<Vec<u8>>, Failure>> {
        let (status, body) = match request.uri().path() {
            _ if *self.is_down.lock() => (503, json!({})),
            "/tenant/.well-known/openid-configuration" => {
                self.fetches.fetch_add(1, Ordering::Relaxed);
                (200, json!({"issuer": *self.name.lock(), "jwks_uri": "https://id.example/keys"}))
            }
            "/keys" => {
                let x = BASE64_URL_SAFE_NO_PAD.encode(self.public_key());
                (200, json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.key.lock().0}]}))
            }
            _ => (404, json!({})),
        };
        let answer = http::Response::builder().status(status).body(body.to_string().into_bytes()).unwrap();
        async move { Ok(answer) }.boxed()
    }
}

/// Every name has a public address, to which no connection is made.
impl Resolve for Issuer {
    fn lookup<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        async { Ok(vec![IpAddr::from(Ipv4Addr::new(192, 0, 0, 9))]) }.boxed()
    }
}

/// A verifier, and the bot of the tokens.
struct Scene {
    issuer: Arc<Issuer>,
    tokens: AccessTokens,
    bot: BotId,
}

impl Scene {
    fn new() -> Scene {
        let (issuer, clock) = (Issuer::new(), Arc::new(FixedClock::new(UtcMillis(NOW_S * 1000))));
        let transport = Some(Arc::clone(&issuer) as Arc<dyn Transport>);
        let resolver = Arc::clone(&issuer) as Arc<dyn Resolve>;
        let egress = Egress::new(EgressOptions { resolver, transport, ..EgressOptions::default() });
        let of_issuer = TokenIssuer {
            client: None,
            url: ISSUER.to_owned(),
            network: Network::default(),
            public_url: "https://monstrum.example".to_owned(),
        };
        let tokens = AccessTokens::new(of_issuer, egress, clock);
        Scene { issuer, tokens, bot: BotId::new() }
    }

    /// Returns claims that are valid for an hour, with these changes. Null removes a claim.
    fn claims(&self, changes: &Value) -> Value {
        let mut claims = json!({
            "iss": ISSUER, "sub": "ann", "aud": self.tokens.resource(self.bot), "exp": NOW_S + 3600, "scope": SCOPE,
        });
        let members = claims.as_object_mut().unwrap();
        for (name, value) in changes.as_object().unwrap() {
            members.insert(name.clone(), value.clone());
        }
        members.retain(|_, value| !value.is_null());
        claims
    }

    async fn told(&self, token: &str) -> String {
        match self.tokens.verify(token, self.bot).await {
            Ok(user) => user.subject.to_string(),
            Err(error) => error.to_string().replace("the access token is not valid: ", ""),
        }
    }

    async fn with(&self, changes: Value) -> String {
        self.told(&self.issuer.token(&self.claims(&changes))).await
    }
}

#[tokio::test]
async fn a_valid_token_names_its_user_until_a_minute_after_its_expiry() {
    let scene = Scene::new();
    let resource = scene.tokens.resource(scene.bot);
    let user = scene.tokens.verify(&scene.issuer.token(&scene.claims(&json!({}))), scene.bot).await.unwrap();
    assert_eq!((&*user.issuer, &*user.subject, user.bot), (ISSUER, "ann", scene.bot));
    assert_eq!(user.expires_at, UtcMillis((NOW_S + 3660) * 1000));
    for changes in [
        json!({"aud": ["https://other.example", resource]}),
        json!({"scope": "openid mcp:tools"}),
        json!({"scope": ["openid", SCOPE]}),
        json!({"exp": NOW_S - 59}),
        json!({"exp": NOW_S + 24 * 3600}),
        json!({"nbf": NOW_S + 60}),
    ] {
        assert_eq!(scene.with(changes.clone()).await, "ann", "{changes}");
    }
}

#[tokio::test]
async fn a_token_with_other_claims_is_refused() {
    let scene = Scene::new();
    let other_bot = scene.tokens.resource(BotId::new());
    let all = "it must have the claims `iss`, `aud`, `exp` and `sub`";
    let audience = "its audience is not this URL";
    for (changes, expected) in [
        (json!({"aud": other_bot}), audience),
        (json!({"aud": "https://monstrum.example/mcp/tester"}), audience),
        (json!({"aud": "https://monstrum.example"}), audience),
        (json!({"aud": []}), audience),
        (json!({"aud": null}), all),
        (json!({"iss": "https://evil.example"}), "it is from another issuer"),
        (json!({"iss": format!("{ISSUER}/")}), "it is from another issuer"),
        (json!({"iss": null}), all),
        (json!({"exp": NOW_S - 60}), "it has expired"),
        (json!({"exp": 0}), "it has expired"),
        (json!({"exp": null}), "it cannot be verified"),
        (json!({"exp": "tomorrow"}), "it cannot be verified"),
        (json!({"exp": NOW_S + 24 * 3600 + 61}), "it is valid for more than 24 hours"),
        (json!({"exp": 1.0e300}), all),
        (json!({"nbf": NOW_S + 61}), "it is not valid yet"),
        (json!({"sub": null}), "it cannot be verified"),
        (json!({"sub": 7}), "it cannot be verified"),
        (json!({"sub": ""}), "its subject must be 1 to 256 bytes long and must not contain control characters"),
        (json!({"sub": "a\nb"}), "its subject must be 1 to 256 bytes long and must not contain control characters"),
        (json!({"scope": null}), "the access token does not have the scope `mcp:tools`"),
        (json!({"scope": "openid mcp:toolsx"}), "the access token does not have the scope `mcp:tools`"),
    ] {
        assert_eq!(scene.with(changes.clone()).await, expected, "{changes}");
    }
}

#[tokio::test]
async fn a_forged_token_is_refused() {
    let scene = Scene::new();
    let claims = scene.claims(&json!({}));
    let no_jwt = "expected a JWT that is signed with RS256, ES256 or EdDSA";
    let issuer = &scene.issuer;
    let public_key = issuer.public_key();
    let by_public_key =
        |text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &public_key), text).as_ref().to_vec();
    let other_key = new_key();
    let by_other_key = |text: &[u8]| other_key.sign(text).as_ref().to_vec();
    let valid = issuer.token(&claims);
    let (text, signature) = valid.rsplit_once('.').unwrap();
    let (head, _) = text.split_once('.').unwrap();
    let other_claims = BASE64_URL_SAFE_NO_PAD.encode(scene.claims(&json!({"sub": "eve"})).to_string());
    let own_jwk = json!({"alg": "EdDSA", "kid": "first", "jwk": {
        "kty": "OKP", "crv": "Ed25519", "x": BASE64_URL_SAFE_NO_PAD.encode(other_key.public_key().as_ref()),
    }});
    for (what, token, expected) in [
        ("none", issuer.signed(&json!({"alg": "none"}), &claims, |_| Vec::new()), no_jwt),
        ("HS256", issuer.signed(&json!({"alg": "HS256", "kid": "first"}), &claims, by_public_key), no_jwt),
        (
            "another key",
            issuer.signed(&json!({"alg": "EdDSA", "kid": "first"}), &claims, by_other_key),
            "its signature is wrong",
        ),
        ("its own key", issuer.signed(&own_jwk, &claims, by_other_key), "its signature is wrong"),
        (
            "another algorithm",
            issuer.signed(&json!({"alg": "RS256", "kid": "first"}), &claims, by_other_key),
            "the issuer has no such key",
        ),
        ("other claims", format!("{head}.{other_claims}.{signature}"), "its signature is wrong"),
        ("no signature", format!("{text}."), "its signature is wrong"),
        (
            "critical",
            issuer.signed(&json!({"alg": "EdDSA", "kid": "first", "crit": ["x"]}), &claims, by_other_key),
            "its header has critical members that this server does not support",
        ),
        ("no text", String::new(), no_jwt),
        ("dots", "..".to_owned(), no_jwt),
        ("too long", "a".repeat(TOKEN_BYTES_MAX + 1), no_jwt),
    ] {
        assert_eq!(scene.told(&token).await, expected, "{what}");
    }
    assert_eq!(scene.told(&valid).await, "ann");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_fetches_the_keys_once_a_minute() {
    let scene = Scene::new();
    let fetches = || scene.issuer.fetches.load(Ordering::Relaxed);
    assert_eq!((scene.with(json!({})).await.as_str(), fetches()), ("ann", 1));
    scene.issuer.rotate("second");
    // The keys were fetched a moment ago.
    assert_eq!((scene.with(json!({})).await.as_str(), fetches()), ("the issuer has no such key", 1));
    tokio::time::advance(FETCHED_ANEW).await;
    assert_eq!((scene.with(json!({})).await.as_str(), fetches()), ("ann", 2));
    let unknown = scene.issuer.signed(&json!({"alg": "EdDSA", "kid": "x"}), &scene.claims(&json!({})), |_| vec![0; 64]);
    for _ in 0..5 {
        assert_eq!(scene.told(&unknown).await, "the issuer has no such key");
    }
    assert_eq!(fetches(), 2);
}

const FETCHED_ANEW: Duration = Duration::from_secs(61);

#[tokio::test(start_paused = true)]
async fn keys_are_kept_for_an_hour_and_not_longer() {
    let scene = Scene::new();
    assert_eq!(scene.with(json!({})).await, "ann");
    *scene.issuer.is_down.lock() = true;
    tokio::time::advance(Duration::from_secs(3500)).await;
    assert_eq!(scene.with(json!({})).await, "ann", "the issuer is not asked");
    tokio::time::advance(Duration::from_secs(200)).await;
    let unavailable = "the keys of the authorization server cannot be fetched; try again";
    assert_eq!(scene.with(json!({})).await, unavailable);
    *scene.issuer.is_down.lock() = false;
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(scene.with(json!({})).await, "ann");
}

#[tokio::test(start_paused = true)]
async fn the_metadata_must_name_the_issuer() {
    let scene = Scene::new();
    *scene.issuer.name.lock() = "https://evil.example".to_owned();
    assert_eq!(scene.with(json!({})).await, "the keys of the authorization server cannot be fetched; try again");
}
