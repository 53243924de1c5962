//! The upstream of the demo: notebooks with pages, in the memory of this process. It listens on a loopback address, so
//! that other machines cannot reach it, and wants a bearer token, which changes at each start.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use axum::{Json, Router};
use http::{StatusCode, header};
use monstrum_core::operations::demo::Upstream;
use monstrum_types::Secret;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The maximum number of connections at once. Egress of this server is the only client.
const CONNECTIONS_MAX: usize = 16;
/// The maximum size of a request body: more than a page of text needs.
const BODY_BYTES_MAX: usize = 64 << 10;
/// The maximum number of pages, so that the memory stays small.
const PAGES_MAX: usize = 100;
/// The maximum size of a name of a notebook or a page.
const NAME_BYTES_MAX: usize = 64;
const TOKEN_BYTES: usize = 32;

/// A page that exists from the start, as notebook, page and text.
const PAGES: [(&str, &str, &str); 2] = [
    ("team", "welcome", "Welcome to the notebook of the team. A bot reads this page with a token that it never sees."),
    ("board", "minutes", "The minutes of the board. Only a binding that allows the notebook `board` leads here."),
];

/// The upstream while it runs. Dropping it ends the upstream.
pub(super) struct Running {
    upstream: Upstream,
    _stop: DropGuard,
}

impl Running {
    /// Starts the upstream on a free port. It also ends with `server`.
    pub(super) async fn start(server: &CancellationToken) -> io::Result<Running> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let mut bits = [0; TOKEN_BYTES];
        getrandom::fill(&mut bits).map_err(io::Error::other)?;
        let token = Secret::new(hex::encode(bits));
        let router = router(&token);
        let stop = server.child_token();
        let ended = stop.clone().cancelled_owned();
        let listener = Limited { listener, room: Arc::new(Semaphore::new(CONNECTIONS_MAX)) };
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(ended).await {
                tracing::error!(%error, "the upstream of the demo ended");
            }
        });
        Ok(Running { upstream: Upstream { url, token }, _stop: stop.drop_guard() })
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.upstream
    }
}

/// The pages, by notebook and name.
type Pages = BTreeMap<(String, String), String>;

struct Notebooks {
    /// The hash of the token. Comparing hashes reveals nothing about the token.
    token: [u8; 32],
    pages: Mutex<Pages>,
}

type Shared = State<Arc<Notebooks>>;

fn router(token: &Secret) -> Router {
    let pages = PAGES.map(|(notebook, page, text)| ((notebook.to_owned(), page.to_owned()), text.to_owned()));
    let token = Sha256::digest(token.expose()).into();
    let notebooks = Arc::new(Notebooks { token, pages: Mutex::new(Pages::from(pages)) });
    Router::new()
        .route("/notebooks/{notebook}/pages", get(list))
        .route("/notebooks/{notebook}/pages/{page}", get(read).put(write))
        .fallback(|| async { refused(StatusCode::NOT_FOUND, "no such route") })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(Arc::clone(&notebooks), authenticate))
        .with_state(notebooks)
}

async fn authenticate(State(notebooks): Shared, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    let is_known = given.is_some_and(|token| <[u8; 32]>::from(Sha256::digest(token)) == notebooks.token);
    if is_known { next.run(request).await } else { refused(StatusCode::UNAUTHORIZED, "the bearer token is not known") }
}

fn refused(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({ "error": error }))).into_response()
}

async fn list(State(notebooks): Shared, Path(notebook): Path<String>) -> Json<Value> {
    let pages = notebooks.pages.lock();
    let names: Vec<&str> = pages.keys().filter(|(of, _)| *of == notebook).map(|(_, page)| page.as_str()).collect();
    Json(json!({ "notebook": notebook, "pages": names }))
}

async fn read(State(notebooks): Shared, Path((notebook, page)): Path<(String, String)>) -> Response {
    let key = (notebook, page);
    match notebooks.pages.lock().get(&key) {
        Some(text) => shown(&key, text),
        None => refused(StatusCode::NOT_FOUND, "no such page"),
    }
}

/// The body of a request that writes a page.
#[derive(Deserialize)]
struct Written {
    text: String,
}

async fn write(
    State(notebooks): Shared,
    Path((notebook, page)): Path<(String, String)>,
    Json(Written { text }): Json<Written>,
) -> Response {
    if [&notebook, &page].into_iter().any(|name| name.len() > NAME_BYTES_MAX) {
        return refused(StatusCode::UNPROCESSABLE_ENTITY, "the name is too long");
    }
    let key = (notebook, page);
    let mut pages = notebooks.pages.lock();
    if pages.len() >= PAGES_MAX && !pages.contains_key(&key) {
        return refused(StatusCode::INSUFFICIENT_STORAGE, "the demo keeps no more pages");
    }
    let answer = shown(&key, &text);
    pages.insert(key, text);
    answer
}

fn shown((notebook, page): &(String, String), text: &str) -> Response {
    Json(json!({ "notebook": notebook, "page": page, "text": text })).into_response()
}

/// A listener that accepts a connection only if fewer than [`CONNECTIONS_MAX`] are open.
struct Limited {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let room = Arc::clone(&self.room).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (Connection { stream, _room: room }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that takes one place of [`Limited`].
struct Connection {
    stream: TcpStream,
    _room: OwnedSemaphorePermit,
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::Method;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn sent(router: &Router, method: Method, path: &str, token: &str, body: String) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.header(header::AUTHORIZATION, token).body(Body::from(body)).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn every_request_needs_the_token() {
        let router = router(&Secret::new("t".to_owned()));
        for token in ["", "Bearer ", "Bearer T", "Bearer tt", "Basic t", "t", "bearer t"] {
            for path in ["/notebooks/team/pages/welcome", "/notebooks/team/pages", "/"] {
                assert_eq!(sent(&router, Method::GET, path, token, String::new()).await.0, 401, "{token} {path}");
            }
        }
        let (status, page) =
            sent(&router, Method::GET, "/notebooks/team/pages/welcome", "Bearer t", String::new()).await;
        assert_eq!((status, &page["page"]), (200, &json!("welcome")));
    }

    #[tokio::test]
    async fn a_written_page_is_read_and_listed() {
        let router = router(&Secret::new("t".to_owned()));
        let send = async |method, path, body| sent(&router, method, path, "Bearer t", body).await;
        let page = json!({ "notebook": "team", "page": "plan", "text": "Ship it" });
        let body = json!({ "text": "Ship it" }).to_string();
        assert_eq!(send(Method::PUT, "/notebooks/team/pages/plan", body).await, (200, page.clone()));
        assert_eq!(send(Method::GET, "/notebooks/team/pages/plan", String::new()).await, (200, page));
        let listed = json!({ "notebook": "team", "pages": ["plan", "welcome"] });
        assert_eq!(send(Method::GET, "/notebooks/team/pages", String::new()).await, (200, listed));
        assert_eq!(send(Method::GET, "/notebooks/team/pages/none", String::new()).await.0, 404);
    }

    #[tokio::test]
    async fn pages_names_and_bodies_are_limited() {
        let router = router(&Secret::new("t".to_owned()));
        let put = async |path: &str, text: &str| {
            sent(&router, Method::PUT, path, "Bearer t", json!({ "text": text }).to_string()).await.0
        };
        assert_eq!(put(&format!("/notebooks/{}/pages/a", "n".repeat(65)), "x").await, 422);
        assert_eq!(put("/notebooks/team/pages/a", &"x".repeat(BODY_BYTES_MAX)).await, 413);
        for number in 0..PAGES_MAX - PAGES.len() {
            assert_eq!(put(&format!("/notebooks/team/pages/{number}"), "x").await, 200);
        }
        assert_eq!(put("/notebooks/team/pages/more", "x").await, 507);
        assert_eq!(put("/notebooks/team/pages/welcome", "x").await, 200, "an existing page is replaced");
    }

    #[tokio::test]
    async fn the_upstream_listens_on_a_loopback_address_and_ends() {
        let server = CancellationToken::new();
        let running = Running::start(&server).await.unwrap();
        let other = Running::start(&server).await.unwrap();
        let address = running.upstream().url.strip_prefix("http://").unwrap().parse::<SocketAddr>().unwrap();
        assert!(address.ip().is_loopback());
        assert_ne!(running.upstream().token.expose(), other.upstream().token.expose());
        TcpStream::connect(address).await.unwrap();
        drop(running);
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
