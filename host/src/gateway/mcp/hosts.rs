//! Checks from where a request comes, before anything else of it is read.
//!
//! A browser must not reach this server through a name that an attacker has pointed at it (DNS rebinding), and pages of
//! other sites must not use it. The API key is checked later.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};

use crate::config::{McpHost, McpOrigin, PublicUrl};
use crate::gateway::http::headers::{address_of, host_of, is_loopback};
use crate::gateway::http::problem::Problem;
use crate::gateway::mcp::{METADATA_PATH, Mcp, PATH};

/// The hosts and origins that may reach the route.
pub(super) struct AllowedHosts {
    pub address: SocketAddr,
    pub public_url: Option<PublicUrl>,
    pub hosts: Vec<McpHost>,
    pub origins: Vec<McpOrigin>,
}

impl AllowedHosts {
    /// Returns the origin of the request, if it has one.
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<HeaderValue>, Problem> {
        if !host_of(uri, headers).is_some_and(|host| self.admits(&host)) {
            return Err(Problem::not_allowed(
                "the header `Host` names another server; add the host name to --mcp-hosts if clients use this name",
            ));
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let origin = origins.next();
        let is_known = |origin: &HeaderValue| {
            origin.to_str().is_ok_and(|origin| self.origins.iter().any(|known| known.matches(origin)))
        };
        if origins.next().is_some() || origin.is_some_and(|origin| !is_known(origin)) {
            return Err(Problem::not_allowed(
                "pages of this origin may not use this server; add the origin to --mcp-origins to permit it",
            ));
        }
        Ok(origin.cloned())
    }

    fn admits(&self, host: &Authority) -> bool {
        let (name, port) = (host.host(), host.port_u16());
        let is_own = is_loopback(name) || address_of(name) == Some(self.address.ip());
        if is_own && port.unwrap_or(80) == self.address.port() {
            return true;
        }
        self.hosts.iter().any(|known| known.matches(name, port)) || self.is_public_url(name, port)
    }

    fn is_public_url(&self, name: &str, port: Option<u16>) -> bool {
        let Some(url) = self.public_url.as_ref().map(PublicUrl::url) else { return false };
        let default = if url.scheme() == "https" { 443 } else { 80 };
        url.host_str().is_some_and(|host| host.eq_ignore_ascii_case(name))
            && url.port_or_known_default() == Some(port.unwrap_or(default))
    }
}

/// Checks requests to the route, and answers browsers that ask whether a page may use it.
pub(in crate::gateway) async fn guard(State(mcp): State<Arc<Mcp>>, request: Request, next: Next) -> Response {
    // Pages that use the route also read its metadata.
    let is_guarded = |path: &MatchedPath| [PATH, METADATA_PATH].contains(&path.as_str());
    if !request.extensions().get::<MatchedPath>().is_some_and(is_guarded) {
        return next.run(request).await;
    }
    let origin = match mcp.allowed.check(request.uri(), request.headers()) {
        Ok(origin) => origin,
        Err(problem) => return problem.into_response(),
    };
    let mut response = match *request.method() {
        Method::OPTIONS => preflight(request.headers()),
        _ => next.run(request).await,
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate, X-Request-Id");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
    }
    response
}

/// Answers `OPTIONS`. A page of a permitted origin may send any header, because the server reads only known ones.
fn preflight(request: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, HeaderValue::from_static("GET, POST"));
    if request.contains_key(header::ORIGIN) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        if let Some(asked) = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(public_url: Option<&str>) -> AllowedHosts {
        AllowedHosts {
            address: "192.0.2.7:8080".parse().unwrap(),
            public_url: public_url.map(|url| url.parse().unwrap()),
            hosts: vec!["monstrum.internal".parse().unwrap()],
            origins: vec!["https://app.example".parse().unwrap()],
        }
    }

    fn check(allowed: &AllowedHosts, hosts: &[&str], origins: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        for origin in origins {
            headers.append(header::ORIGIN, origin.parse().unwrap());
        }
        allowed.check(&Uri::from_static("/mcp/bot"), &headers).is_ok()
    }

    #[test]
    fn only_known_hosts_are_admitted() {
        let allowed = allowed(Some("https://mcp.example/base"));
        for host in [
            "localhost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "192.0.2.7:8080",
            "monstrum.internal",
            "MONSTRUM.internal:99",
            "mcp.example",
            "mcp.example:443",
        ] {
            assert!(check(&allowed, &[host], &[]), "{host}");
        }
        for host in [
            "localhost",
            "localhost:8081",
            "192.0.2.8:8080",
            "evil.example",
            "mcp.example:80",
            "mcp.example.evil",
            "localhost:8080@evil.example",
            "a b",
            "",
        ] {
            assert!(!check(&allowed, &[host], &[]), "{host}");
        }
        assert!(!check(&allowed, &[], &[]), "a request without a host");
        assert!(!check(&allowed, &["localhost:8080", "evil.example"], &[]), "two hosts");
    }

    #[test]
    fn only_known_origins_are_admitted() {
        let allowed = allowed(None);
        let from = |origins: &[&str]| check(&allowed, &["localhost:8080"], origins);
        assert!(from(&[]) && from(&["https://app.example"]));
        for origin in ["null", "", "http://app.example", "https://app.example:8443", "http://localhost:8080"] {
            assert!(!from(&[origin]), "{origin}");
        }
        assert!(!from(&["https://app.example", "https://evil.example"]));
    }
}
