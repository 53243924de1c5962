//! The server side: a bot with the tools that the suite calls, behind a forwarder that adds the key of the bot.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use support::{Api, Forwarder, Server};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The plugin with the tools of the suite.
const PLUGIN: &str = "test-conformance";

/// A running server whose bot the suite can use. Dropping the value stops everything.
pub(crate) struct ServerScene {
    pub(crate) server: Server,
    forwarder: Forwarder,
    bot: String,
    upstream: JoinHandle<()>,
}

/// A list of tools that changes when a tool asks for it.
struct ChangingList {
    api: Api,
    /// The path of the binding.
    binding: String,
    is_short: AtomicBool,
}

impl ServerScene {
    pub(crate) async fn start() -> Result<ServerScene> {
        let forwarder = Forwarder::open().await?;
        let host = forwarder.address().to_string();
        let server = Server::prepare(&[PLUGIN])?.argument("--sandbox").argument("off");
        // For clients, the forwarder is the server, so requests have its name as `Host` and `Origin`.
        let server = server.argument("--mcp-hosts").argument(&host);
        let mut server = server.argument("--mcp-origins").argument(&format!("http://{host}"));
        server.launch().await?;
        let (api, address) = (server.api()?, server.url().and_then(|url| url.strip_prefix("http://")));
        let address = address.context("the server is not running")?.parse::<SocketAddr>()?;
        let bot = api.bot("conformance").await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = format!("http://{}", listener.local_addr()?);
        let bound = api.grant(&bot, PLUGIN, (&upstream, "the token of the upstream"), &["*"], &json!({})).await?;
        let binding = format!("/api/bots/{bot}/resources/{}", bound.binding);
        let list = Arc::new(ChangingList { api: api.clone(), binding, is_short: AtomicBool::new(false) });
        let router = Router::new().fallback(change).with_state(list);
        let upstream = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the upstream serves until it is dropped");
        });
        forwarder.forward_to(address, &api.new_key("bot", Some(&bot)).await?)?;
        Ok(ServerScene { server, forwarder, bot, upstream })
    }

    /// Returns the URL at which the suite reaches the bot.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp/{}", self.forwarder.address(), self.bot)
    }
}

impl Drop for ServerScene {
    fn drop(&mut self) {
        self.upstream.abort();
    }
}

/// Takes `sometimes_listed` off the list of the bot, or puts it back.
async fn change(State(list): State<Arc<ChangingList>>) -> StatusCode {
    let was_short = list.is_short.fetch_xor(true, Ordering::Relaxed);
    let permissions = if was_short { Value::Null } else { json!({ "allowed_tools": ["test_*", "json_*"] }) };
    match list.api.patch(&list.binding, &json!({ "permissions": permissions })).await {
        Ok((200, _)) => StatusCode::NO_CONTENT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
