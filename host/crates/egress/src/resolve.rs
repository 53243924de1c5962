//! Name resolution.
//!
//! The system's resolver blocks a thread until the name server answers. The number of concurrent look-ups is therefore
//! limited, so that a hostile name server cannot block all threads. An abandoned look-up keeps its permit until its
//! thread becomes free.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;

/// The maximum number of concurrent look-ups: far fewer than the 512 threads that tokio has for blocking work.
const LOOKUPS_MAX: usize = 64;

/// The maximum time that a look-up waits for a permit. The system's resolver typically uses a similar time-out for a
/// look-up.
const PERMIT_WAIT: Duration = Duration::from_secs(5);

/// The reason why a name was not resolved. The error does not include the cause, because the cause could describe the
/// host's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The resolver has no answer.
    #[error("the name could not be resolved")]
    Failed,
    /// Too many look-ups are running.
    #[error("too many names are being resolved")]
    Busy,
}

/// Resolves names.
pub trait Resolve: Send + Sync {
    /// Returns all addresses of `host`. The caller decides which of them are allowed.
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>>;
}

/// The resolver of the operating system, which also uses the hosts file and the search domains.
#[derive(Debug)]
pub struct SystemResolver {
    permits: Arc<Semaphore>,
}

impl Default for SystemResolver {
    fn default() -> Self {
        SystemResolver { permits: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

impl Resolve for SystemResolver {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        Box::pin(async move {
            let permit = tokio::time::timeout(PERMIT_WAIT, Arc::clone(&self.permits).acquire_owned())
                .await
                .map_err(|_| LookupError::Busy)?
                .map_err(|_| LookupError::Busy)?;
            let host = host.to_owned();
            let looked_up = tokio::task::spawn_blocking(move || {
                let answer = (host.as_str(), 0).to_socket_addrs().map(|all| all.map(|one| one.ip()).collect());
                drop(permit);
                answer
            });
            match looked_up.await {
                Ok(Ok(addresses)) => Ok(addresses),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "cannot resolve a name");
                    Err(LookupError::Failed)
                }
                Err(_) => Err(LookupError::Failed),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_literal_needs_no_network() {
        let resolver = SystemResolver::default();
        assert_eq!(resolver.lookup("127.0.0.1").await, Ok(vec!["127.0.0.1".parse().unwrap()]));
        assert_eq!(resolver.lookup("not a\0name").await, Err(LookupError::Failed));
    }

    #[tokio::test]
    async fn a_look_up_without_a_permit_fails() {
        let resolver = SystemResolver::default();
        resolver.permits.close();
        assert_eq!(resolver.lookup("127.0.0.1").await, Err(LookupError::Busy));
    }
}
