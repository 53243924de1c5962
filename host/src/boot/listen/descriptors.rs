//! The limit of open files (file descriptors) of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. Systems set a low soft limit for programs that use `select`, which this
/// program does not use. If the limit cannot be raised, the server runs with the soft limit.
pub(crate) fn raise() {
    let Rlimit { current: Some(current), maximum } = getrlimit(Resource::Nofile) else { return };
    if maximum.is_some_and(|maximum| maximum <= current) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, current, "the limit of open files cannot be raised (ulimit -n)");
    }
}

/// Returns the maximum number of open files.
pub(super) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
