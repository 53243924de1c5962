//! Step 4: the addresses that a request may connect to.
//!
//! A name is resolved once in 30 s (`names`). All its addresses must be allowed, and the connection uses exactly these
//! addresses. A name that resolves differently between the check and the connection (DNS rebinding) therefore cannot
//! bypass the check.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use monstrum_types::special_purpose::is_public;
use monstrum_types::{Failure, FailureCode};
use url::{Host, Url};

use crate::Network;
use crate::names::{Key, Names};
use crate::resolve::{LookupError, Resolve};

/// The maximum number of addresses of one name. Real services have fewer addresses. If a name has more addresses, the
/// request is rejected.
const ADDRESSES_MAX: usize = 64;

/// Returns whether `address` is allowed. `opened` lists the ranges that the operator allows in addition to the public
/// internet. An IPv4 range in `opened` does not allow IPv6 addresses that embed IPv4 addresses of the range.
#[must_use]
pub fn is_allowed(address: IpAddr, opened: &[IpNet]) -> bool {
    opened.iter().any(|net| net.contains(&address)) || is_public(address)
}

/// Returns the addresses of the host of `url`, in the order of the resolver's answer. Fails unless all addresses are
/// allowed.
pub(crate) async fn resolve(
    url: &Url,
    network: &Network,
    names: &Names,
    resolver: &Arc<dyn Resolve>,
) -> Result<Arc<[IpAddr]>, Failure> {
    let (address, host) = match url.host() {
        Some(Host::Ipv4(address)) => (IpAddr::V4(address), address.to_string()),
        Some(Host::Ipv6(address)) => (IpAddr::V6(address), format!("[{address}]")),
        Some(Host::Domain(name)) => {
            if is_local_name(name) {
                let message =
                    format!("`{name}` is a name of the local machine, to which this resource may not connect");
                return Err(Failure::unsent(FailureCode::Denied, message));
            }
            let key = Key { name: name.to_owned(), network: network.clone() };
            let resolver = Arc::clone(resolver);
            let look_up = |Key { name, network }: Key| async move {
                let addresses = look_up(&name, resolver.as_ref()).await?;
                check(&addresses, &network, &name).map(|()| addresses.into())
            };
            return names.answer(key, look_up).await;
        }
        None => return Err(Failure::unsent(FailureCode::Invalid, "the URL has no host")),
    };
    check(&[address], network, &host).map(|()| [address].into())
}

/// Fails unless all addresses are allowed.
fn check(addresses: &[IpAddr], network: &Network, host: &str) -> Result<(), Failure> {
    if addresses.iter().all(|address| is_allowed(*address, &network.allow_addresses)) {
        return Ok(());
    }
    let message = format!("`{host}` has an address to which this resource may not connect");
    Err(Failure::unsent(FailureCode::Denied, message))
}

/// Returns whether the name belongs to the loopback interface (RFC 6761), regardless of the resolver.
fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

async fn look_up(name: &str, resolver: &dyn Resolve) -> Result<Vec<IpAddr>, Failure> {
    let dns = |message: String| Failure::unsent(FailureCode::Dns, message);
    let answer = resolver.lookup(name).await.map_err(|error| match error {
        LookupError::Busy => {
            Failure::unsent(FailureCode::Unavailable, "too many names are being resolved; try again later")
        }
        LookupError::Failed => dns(format!("`{name}` could not be resolved")),
    })?;
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(answer.len().min(ADDRESSES_MAX));
    for address in answer {
        if !addresses.contains(&address) {
            if addresses.len() == ADDRESSES_MAX {
                return Err(dns(format!("`{name}` has more than {ADDRESSES_MAX} addresses")));
            }
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(dns(format!("`{name}` has no addresses"))) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests;
