//! A scripted OAuth authorization server. It records all requests, registers clients, and can give any answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use reqwest::Url;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::{McpReply, Recorded};

const BODY_BYTES_MAX: usize = 1 << 20;
/// The place of the metadata (RFC 8414).
const METADATA: &str = "/.well-known/oauth-authorization-server";

/// A running server. Dropping the value stops it.
pub struct AuthorizationServer {
    address: SocketAddr,
    shared: Arc<Mutex<World>>,
    task: JoinHandle<()>,
}

struct World {
    metadata: Value,
    /// The `iss` of answers, or `None` to leave it out.
    iss: Option<String>,
    /// Prepared answers, by the path.
    replies: BTreeMap<String, McpReply>,
    /// The number of issued codes, tokens and clients.
    issued: u32,
    /// The access token that was issued last.
    access_token: String,
    requests: Vec<Recorded>,
}

impl AuthorizationServer {
    /// The secret of the clients that register.
    pub const CLIENT_SECRET: &str = "registered-canary-9d7b1c44e0";

    /// Starts a server that registers clients and names itself in each answer.
    pub async fn start() -> Result<AuthorizationServer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the OAuth server cannot listen on a port")?;
        let address = listener.local_addr().context("the OAuth server has no address")?;
        let issuer = format!("http://{address}");
        let metadata = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"),
            "registration_endpoint": format!("{issuer}/register"),
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "scopes_supported": ["openid", "offline_access"],
            "authorization_response_iss_parameter_supported": true,
        });
        let world = World {
            metadata,
            iss: Some(issuer),
            replies: BTreeMap::new(),
            issued: 0,
            access_token: String::new(),
            requests: Vec::new(),
        };
        let shared = Arc::new(Mutex::new(world));
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the OAuth server serves until it is dropped");
        });
        Ok(AuthorizationServer { address, shared, task })
    }

    /// Returns the issuer, which is the URL of the server.
    #[must_use]
    pub fn issuer(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes a member of the metadata. Null removes it.
    pub fn set_metadata(&self, member: &str, value: &Value) {
        let mut world = self.world();
        if let Some(metadata) = world.metadata.as_object_mut() {
            metadata.remove(member);
            if !value.is_null() {
                metadata.insert(member.to_owned(), value.clone());
            }
        }
    }

    /// Sets the `iss` of the answers of the authorization endpoint.
    pub fn set_iss(&self, iss: Option<&str>) {
        self.world().iss = iss.map(str::to_owned);
    }

    /// Sets the answer to all requests for this path.
    pub fn reply(&self, path: &str, reply: McpReply) {
        self.world().replies.insert(path.to_owned(), reply);
    }

    /// Returns the access token that was issued last.
    #[must_use]
    pub fn access_token(&self) -> String {
        self.world().access_token.clone()
    }

    /// Returns the access token that the next request for a token gets, unless another code or client is issued first.
    #[must_use]
    pub fn next_access_token(&self) -> String {
        numbered("access", self.world().issued + 1)
    }

    /// Returns all requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.world().requests.clone()
    }

    /// Returns the requests for this path.
    #[must_use]
    pub fn requests_for(&self, path: &str) -> Vec<Recorded> {
        self.requests().into_iter().filter(|request| request.path == path).collect()
    }

    /// Returns the forms that the token endpoint has received.
    #[must_use]
    pub fn forms(&self) -> Vec<BTreeMap<String, String>> {
        self.requests_for("/token").iter().map(|request| pairs(&request.body)).collect()
    }

    /// Opens the authorization page `url` like a person who agrees. Returns the URL to which the browser is redirected.
    pub async fn person_at(&self, url: &str) -> Result<String> {
        crate::install_tls();
        let redirect = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder().no_proxy().redirect(redirect).tls_certs_only([]).build()?;
        let answer = http.get(url).send().await?;
        let location = answer.headers().get("location").and_then(|location| location.to_str().ok());
        location.map(str::to_owned).with_context(|| format!("{url} answered {}", answer.status()))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.shared)
    }
}

impl Drop for AuthorizationServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the text of an issued secret. It is long enough not to occur by chance.
fn numbered(kind: &str, number: u32) -> String {
    format!("{kind}-canary-5e2f7a31-{number:04}")
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a form or a query.
fn pairs(text: &[u8]) -> BTreeMap<String, String> {
    let url = Url::parse(&format!("http://form/?{}", String::from_utf8_lossy(text)));
    url.map(|url| url.query_pairs().into_owned().collect()).unwrap_or_default()
}

async fn answer(State(world): State<Arc<Mutex<World>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.unwrap_or_default();
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let recorded = Recorded {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: body.to_vec(),
    };
    let mut world = lock(&world);
    world.requests.push(recorded.clone());
    if let Some(reply) = world.replies.get(&recorded.path) {
        return reply.clone().response(&Value::Null);
    }
    match (recorded.method.as_str(), recorded.path.as_str()) {
        ("GET", METADATA) => json_answer(200, &world.metadata),
        ("GET", "/authorize") => world.authorize(&recorded),
        ("POST", "/token") => world.token(&recorded),
        ("POST", "/register") => world.register(&recorded),
        _ => json_answer(404, &json!({"error": "not_found"})),
    }
}

fn json_answer(status: u16, body: &Value) -> Response {
    McpReply::json(status, body).response(&Value::Null)
}

impl World {
    fn next(&mut self, kind: &str) -> String {
        self.issued += 1;
        numbered(kind, self.issued)
    }

    fn authorize(&mut self, request: &Recorded) -> Response {
        let asked = pairs(request.query.as_bytes());
        let code = self.next("code");
        let Some(mut back) = asked.get("redirect_uri").and_then(|uri| Url::parse(uri).ok()) else {
            return json_answer(400, &json!({"error": "invalid_request"}));
        };
        {
            let mut query = back.query_pairs_mut();
            query.append_pair("code", &code);
            query.append_pair("state", asked.get("state").map_or("", String::as_str));
            if let Some(iss) = &self.iss {
                query.append_pair("iss", iss);
            }
        }
        let response = Response::builder().status(302).header("location", back.as_str());
        response.body(Body::empty()).expect("a URL is a valid header")
    }

    fn token(&mut self, request: &Recorded) -> Response {
        let form = pairs(&request.body);
        let known = ["authorization_code", "refresh_token", "client_credentials"];
        if !form.get("grant_type").is_some_and(|grant| known.contains(&grant.as_str())) {
            return json_answer(400, &json!({"error": "unsupported_grant_type"}));
        }
        self.access_token = self.next("access");
        let refresh_token = self.next("refresh");
        let body = json!({
            "access_token": self.access_token, "token_type": "Bearer", "expires_in": 3600,
            "refresh_token": refresh_token,
        });
        json_answer(200, &body)
    }

    fn register(&mut self, request: &Recorded) -> Response {
        let asked = request.json();
        let client_id = self.next("client");
        let mut client = json!({
            "client_id": client_id,
            "redirect_uris": asked["redirect_uris"],
            "token_endpoint_auth_method": asked["token_endpoint_auth_method"],
        });
        if asked["token_endpoint_auth_method"] != "none" {
            client["client_secret"] = json!(AuthorizationServer::CLIENT_SECRET);
            client["client_secret_expires_at"] = json!(0);
        }
        json_answer(201, &client)
    }
}
