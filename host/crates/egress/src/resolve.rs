//! How names become addresses.
//!
//! The system's resolver blocks a thread for as long as a name server likes, so its look-ups are bounded in number: a
//! hostile name server must not use up the threads that others need. An abandoned look-up keeps its place until its
//! thread is free again.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;

/// Look-ups at one time: well under the 512 threads that tokio keeps for blocking work.
const LOOKUPS_MAX: usize = 64;

/// How long a look-up waits for its turn; the other ones time out within about that.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// A name that could not be resolved. Why is not told: the answer would describe the host's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The resolver has no answer.
    #[error("the name could not be resolved")]
    Failed,
    /// Too many look-ups are under way.
    #[error("too many names are being resolved")]
    Busy,
}

/// Resolves names.
pub trait Resolve: Send + Sync {
    /// All addresses of `host`. What may be done with them is decided by the caller.
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>>;
}

/// The machine's resolver, with its hosts file and search domains.
#[derive(Debug)]
pub struct SystemResolver {
    turns: Arc<Semaphore>,
}

impl Default for SystemResolver {
    fn default() -> Self {
        SystemResolver { turns: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

impl Resolve for SystemResolver {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        Box::pin(async move {
            let turn = tokio::time::timeout(TURN_WAIT, Arc::clone(&self.turns).acquire_owned())
                .await
                .map_err(|_| LookupError::Busy)?
                .map_err(|_| LookupError::Busy)?;
            let host = host.to_owned();
            let looked_up = tokio::task::spawn_blocking(move || {
                let answer = (host.as_str(), 0).to_socket_addrs().map(|all| all.map(|one| one.ip()).collect());
                drop(turn);
                answer
            });
            match looked_up.await {
                Ok(Ok(addresses)) => Ok(addresses),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "name not resolved");
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
    async fn without_a_turn_there_is_no_look_up() {
        let resolver = SystemResolver::default();
        resolver.turns.close();
        assert_eq!(resolver.lookup("127.0.0.1").await, Err(LookupError::Busy));
    }
}
