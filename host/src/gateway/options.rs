//! Options that only the HTTP API needs.

/// The options of the HTTP API. Handlers find them among the extensions of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether /metrics, /docs and the API description are served without a key.
    pub public_docs: bool,
}
