//! The limits of a request.

use std::time::Duration;

pub use monstrum_types::{REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES_MAX, REQUEST_HEADERS_MAX, URL_BYTES_MAX};

/// The maximum size of a decoded response body: the same as for request bodies, and a sixth of a plugin's default
/// memory limit.
pub const RESPONSE_BODY_BYTES_MAX: usize = 10 * 1024 * 1024;

/// The maximum number of headers of a response: more than twice the maximum for a request.
pub const RESPONSE_HEADERS_MAX: usize = 256;

/// The maximum total length of the header names and values of a response: twice the maximum for a request.
pub const RESPONSE_HEADER_BYTES_MAX: usize = 64 * 1024;

/// The maximum number of redirects of a request, even if a manifest allows more.
pub(crate) const REDIRECTS_MAX: u8 = 10;

/// The remaining lifetime below which a token is refreshed before use.
pub(crate) const REFRESH_BEFORE_MS: i64 = 60_000;

/// The connect time-out: a third of a call's default time limit, so that the plugin receives a failure before the call
/// times out.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum time that a request waits for a newer token while the current one is still valid.
pub(crate) const REFRESH_WAIT_MAX: Duration = Duration::from_secs(1);

/// The lifetime of an idle connection. Servers typically close idle connections after a similar time.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum number of idle connections of one client: the default maximum number of concurrent calls of one plugin.
pub(crate) const IDLE_CONNECTIONS_MAX: usize = 64;

/// The maximum number of cached clients, one for each destination in use. The least recently used client is evicted
/// first.
pub(crate) const CLIENTS_MAX: usize = 256;
