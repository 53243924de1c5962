//! Step 4: the addresses that a request may connect to.
//!
//! A name is resolved once. All its addresses must be allowed, and the connection uses exactly these addresses. A name
//! that resolves differently between the check and the connection (DNS rebinding) therefore cannot bypass the check.

use std::net::IpAddr;

use ipnet::IpNet;
use monstrum_types::special_purpose::is_public;
use monstrum_types::{Failure, FailureCode};
use url::{Host, Url};

use crate::Network;
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

/// Resolves the host of `url` and returns its addresses in the order of the answer. Fails unless all addresses are
/// allowed.
pub(crate) async fn resolve(url: &Url, network: &Network, resolver: &dyn Resolve) -> Result<Vec<IpAddr>, Failure> {
    let (addresses, host) = match url.host() {
        Some(Host::Ipv4(address)) => (vec![IpAddr::V4(address)], address.to_string()),
        Some(Host::Ipv6(address)) => (vec![IpAddr::V6(address)], format!("[{address}]")),
        Some(Host::Domain(name)) => {
            if is_local_name(name) {
                let message =
                    format!("`{name}` is a name of the local machine, to which this resource may not connect");
                return Err(Failure::unsent(FailureCode::Denied, message));
            }
            (look_up(name, resolver).await?, name.to_owned())
        }
        None => return Err(Failure::unsent(FailureCode::Invalid, "the URL has no host")),
    };
    if addresses.iter().all(|address| is_allowed(*address, &network.allow_addresses)) {
        Ok(addresses)
    } else {
        let message = format!("`{host}` has an address to which this resource may not connect");
        Err(Failure::unsent(FailureCode::Denied, message))
    }
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
