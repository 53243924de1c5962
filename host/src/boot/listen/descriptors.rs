//! The limit of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. The soft limit is low for programs that use `select`, which this program does
/// not. If that is refused, the server runs with the soft limit.
pub(crate) fn raise() {
    let Rlimit { current: Some(current), maximum } = getrlimit(Resource::Nofile) else { return };
    if maximum.is_some_and(|maximum| maximum <= current) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, current, "the limit of open files cannot be raised (ulimit -n)");
    }
}

/// How many files may be open at the same time.
pub(super) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
