//! The state that handlers share: the host, and the options of the HTTP API.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use monstrum_core::app::App;

use crate::gateway::mcp::Mcp;

/// The options of the HTTP API.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether /metrics, /docs and the API description are served without a key.
    pub public_docs: bool,
}

/// The state of the router. Handlers extract the parts that they need.
#[derive(Clone)]
pub struct HttpState {
    pub app: Arc<App>,
    pub options: Options,
    pub(crate) mcp: Arc<Mcp>,
}

/// The host, for handlers.
pub(crate) struct Host(pub Arc<App>);

impl Deref for Host {
    type Target = Arc<App>;

    fn deref(&self) -> &Arc<App> {
        &self.0
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

impl FromRef<HttpState> for Options {
    fn from_ref(state: &HttpState) -> Options {
        state.options
    }
}
