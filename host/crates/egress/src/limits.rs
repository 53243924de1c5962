//! The limits of one request, as the plugin contract has them.

use std::time::Duration;

pub use monstrum_types::{REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES_MAX, REQUEST_HEADERS_MAX, URL_BYTES_MAX};

/// A decoded response body: as much as a plugin may send, and a sixth of its default memory.
pub const RESPONSE_BODY_BYTES_MAX: usize = 10 * 1024 * 1024;

/// Headers of a response: more than twice what a plugin may send.
pub const RESPONSE_HEADERS_MAX: usize = 256;

/// Names and values of a response's headers together: twice what a plugin may send.
pub const RESPONSE_HEADER_BYTES_MAX: usize = 64 * 1024;

/// The most redirects that are followed, whatever a manifest says.
pub(crate) const REDIRECTS_MAX: u8 = 10;

/// A token that expires this soon is refreshed before it is used.
pub(crate) const REFRESH_BEFORE_MS: i64 = 60_000;

/// How long a connection may take to come about: a third of a call's time, so that the failure is told as one.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request waits for a newer token while the one at hand is good.
pub(crate) const REFRESH_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long an unused connection is kept: about what servers keep theirs.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Unused connections kept per client: the calls that one plugin may have in flight.
pub(crate) const IDLE_CONNECTIONS_MAX: usize = 64;

/// Clients kept: one per place that is in use; the one that was used longest ago goes first.
pub(crate) const CLIENTS_MAX: usize = 256;
