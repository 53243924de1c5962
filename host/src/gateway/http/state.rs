//! The state that handlers share: the host, and the options of the HTTP API.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use monstrum_agent::Tasks;
use monstrum_core::app::App;
use monstrum_work::runs::Runs;
use monstrum_work::workflows::Workflows;

use crate::config::{McpHost, PublicUrl};
use crate::gateway::demo::DemoServer;
use crate::gateway::mcp::Mcp;

/// The options of the HTTP API.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether /metrics, /docs and the API description are served without a key.
    pub public_docs: bool,
}

/// The settings of the console.
#[derive(Clone, Debug)]
pub struct ConsoleOptions {
    /// Whether the server serves the console.
    pub enabled: bool,
    /// Further host names by which browsers may reach the console.
    pub hosts: Vec<McpHost>,
    pub public_url: Option<PublicUrl>,
    /// The address on which the server listens.
    pub address: SocketAddr,
}

impl ConsoleOptions {
    /// Returns the URL of this server for links into the console, without a slash at its end. A server that listens on
    /// all addresses has the loopback address in its links.
    pub fn base_url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        self.public_url.as_ref().map_or_else(|| format!("http://{address}"), ToString::to_string)
    }

    /// Returns the URL to which OAuth providers redirect browsers. Without a public URL, it is known only if the server
    /// listens on loopback.
    pub(crate) fn callback_url(&self) -> Option<String> {
        let is_known = self.public_url.is_some() || self.address.ip().is_loopback();
        is_known.then(|| format!("{}/api/oauth/callback", self.base_url().trim_end_matches('/')))
    }
}

/// The state of the router. Handlers extract the parts that they need.
#[derive(Clone)]
pub struct HttpState {
    pub app: Arc<App>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) runs: Arc<Runs>,
    pub options: Options,
    pub(crate) mcp: Arc<Mcp>,
    pub(crate) console: Arc<ConsoleOptions>,
    pub(crate) demo: Arc<DemoServer>,
}

/// The host, for handlers.
pub(crate) struct Host(pub Arc<App>);

impl Deref for Host {
    type Target = Arc<App>;

    fn deref(&self) -> &Arc<App> {
        &self.0
    }
}

/// The tasks of the host, for handlers.
pub(crate) struct TasksOfHost(pub Arc<Tasks>);

impl Deref for TasksOfHost {
    type Target = Arc<Tasks>;

    fn deref(&self) -> &Arc<Tasks> {
        &self.0
    }
}

/// The runs of the host, for handlers.
pub(crate) struct RunsOfHost(pub Arc<Runs>);

impl Deref for RunsOfHost {
    type Target = Arc<Runs>;

    fn deref(&self) -> &Arc<Runs> {
        &self.0
    }
}

impl FromRequestParts<HttpState> for RunsOfHost {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, state: &HttpState) -> Result<Self, Infallible> {
        Ok(RunsOfHost(Arc::clone(&state.runs)))
    }
}

/// The operations on the workflows of the host, for handlers.
pub(crate) struct WorkflowsOfHost(pub Workflows);

impl Deref for WorkflowsOfHost {
    type Target = Workflows;

    fn deref(&self) -> &Workflows {
        &self.0
    }
}

impl FromRequestParts<HttpState> for WorkflowsOfHost {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, state: &HttpState) -> Result<Self, Infallible> {
        Ok(WorkflowsOfHost(Workflows::new(Arc::clone(&state.app))))
    }
}

impl FromRequestParts<HttpState> for TasksOfHost {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, state: &HttpState) -> Result<Self, Infallible> {
        Ok(TasksOfHost(Arc::clone(&state.tasks)))
    }
}

impl FromRequestParts<HttpState> for Host {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, state: &HttpState) -> Result<Self, Infallible> {
        Ok(Host(Arc::clone(&state.app)))
    }
}

impl FromRef<HttpState> for Arc<Mcp> {
    fn from_ref(state: &HttpState) -> Arc<Mcp> {
        Arc::clone(&state.mcp)
    }
}

impl FromRef<HttpState> for Arc<ConsoleOptions> {
    fn from_ref(state: &HttpState) -> Arc<ConsoleOptions> {
        Arc::clone(&state.console)
    }
}

impl FromRef<HttpState> for Arc<DemoServer> {
    fn from_ref(state: &HttpState) -> Arc<DemoServer> {
        Arc::clone(&state.demo)
    }
}

impl FromRef<HttpState> for Options {
    fn from_ref(state: &HttpState) -> Options {
        state.options
    }
}
