//! The limit of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one: the soft one is low for the sake of programs that use `select`, which this is
/// not. Where that is refused, the server runs with what it has.
pub fn raise() {
    let Rlimit { current: Some(current), maximum } = getrlimit(Resource::Nofile) else { return };
    if maximum.is_some_and(|maximum| maximum <= current) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, current, "the limit of open files cannot be raised (ulimit -n)");
    }
}

/// How many files may be open at once.
pub(super) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
