//! The headers of a request that several parts of the gateway read: the name of the server, and cookies.

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderMap, Uri, header};

/// Returns the host to which the request was sent, or `None` if it is missing, repeated or malformed.
pub(in crate::gateway) fn host_of(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let mut values = headers.get_all(header::HOST).iter();
    let authority = match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok()?.parse().ok()?,
        // A request over HTTP/2 names the host in its URI.
        (None, None) => uri.authority()?.clone(),
        _ => return None,
    };
    (!authority.as_str().contains('@')).then_some(authority)
}

/// Returns the IP address of a host whose name is an address.
pub(in crate::gateway) fn address_of(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Returns whether a host name always means the machine itself.
pub(in crate::gateway) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || address_of(host).is_some_and(|address| address.is_loopback())
}

/// Returns the value of a cookie.
pub(in crate::gateway) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}
