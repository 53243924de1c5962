//! Step 5, second half: the HTTP clients, and the conversion of their errors.
//!
//! A client is bound to one host and one set of checked addresses. Its resolver always fails, so that a second look-up
//! cannot return another answer, and its pooled connections go only to these addresses. The cache key consists of
//! exactly the checked properties, so a name with new addresses gets a new client.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use monstrum_types::{Clock, Failure, FailureCode, SystemClock};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use url::Url;

use crate::inject::Outgoing;
use crate::limits::{
    CLIENTS_MAX, CONNECT_TIMEOUT, IDLE_CONNECTIONS_MAX, IDLE_TIMEOUT, RESPONSE_BODY_BYTES_MAX,
    RESPONSE_HEADER_BYTES_MAX, RESPONSE_HEADERS_MAX,
};
use crate::policy::Network;
use crate::resolve::{Resolve, SystemResolver};
use crate::send::StepObserver;

/// The settings of an [`crate::Egress`].
pub struct EgressOptions {
    /// The resolver of names.
    pub resolver: Arc<dyn Resolve>,
    /// Certificate authorities that are trusted in addition to the public certificate authorities.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// The clock for checking the expiry of tokens.
    pub clock: Arc<dyn Clock>,
    /// A function that is called at the start of each step.
    pub observer: Option<Arc<StepObserver>>,
    /// The maximum size of a decoded response body, in bytes.
    pub response_body_bytes_max: usize,
    /// The replacement for the network in `monstrum plugin test`, or `None` to use the network.
    pub transport: Option<Arc<dyn Transport>>,
}

/// A replacement for the network. Egress checks each request and adds the credential before it calls the transport, and
/// limits and redacts the response afterwards, as for requests over the network.
pub trait Transport: Send + Sync {
    /// Sends a request and returns its response.
    fn exchange(&self, request: http::Request<Vec<u8>>) -> BoxFuture<'_, Result<http::Response<Vec<u8>>, Failure>>;
}

impl Default for EgressOptions {
    fn default() -> Self {
        EgressOptions {
            resolver: Arc::new(SystemResolver::default()),
            extra_roots: Vec::new(),
            clock: Arc::new(SystemClock),
            observer: None,
            response_body_bytes_max: RESPONSE_BODY_BYTES_MAX,
            transport: None,
        }
    }
}

/// The cache key of a client, which consists of the checked properties.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    network: Network,
    host: String,
    port: Option<u16>,
    /// The checked addresses, sorted.
    addresses: Vec<IpAddr>,
}

struct Kept {
    client: reqwest::Client,
    used: u64,
}

#[derive(Default)]
struct Cache {
    clients: HashMap<Key, Kept>,
    uses: u64,
}

/// The cache of clients.
pub(crate) struct Clients {
    tls: ClientConfig,
    cache: Mutex<Cache>,
}

impl Clients {
    pub(crate) fn new(extra_roots: Vec<CertificateDer<'static>>) -> Self {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let given = extra_roots.len();
        let (added, _) = roots.add_parsable_certificates(extra_roots);
        if added < given {
            tracing::warn!(ignored = given - added, "ignoring root certificates that cannot be read");
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the cipher suites of the default TLS versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Clients { tls, cache: Mutex::default() }
    }

    /// Returns a client that connects only to `addresses`, for the host of `url`.
    pub(crate) fn client(
        &self,
        url: &Url,
        addresses: &[IpAddr],
        network: &Network,
    ) -> Result<reqwest::Client, Failure> {
        let mut sorted = addresses.to_vec();
        sorted.sort_unstable();
        let host = url.host_str().unwrap_or_default().to_owned();
        let key = Key { network: network.clone(), host, port: url.port_or_known_default(), addresses: sorted };
        let mut cache = self.cache.lock();
        cache.uses += 1;
        let now = cache.uses;
        if let Some(kept) = cache.clients.get_mut(&key) {
            kept.used = now;
            return Ok(kept.client.clone());
        }
        let client = self.build(&key.host, addresses).map_err(|error| {
            tracing::error!(%error, "cannot create an HTTP client");
            Failure::unsent(FailureCode::Internal, "the HTTP client for the request could not be created")
        })?;
        if cache.clients.len() >= CLIENTS_MAX {
            let oldest = cache.clients.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone());
            oldest.and_then(|key| cache.clients.remove(&key));
        }
        cache.clients.insert(key, Kept { client: client.clone(), used: now });
        Ok(client)
    }

    fn build(&self, host: &str, addresses: &[IpAddr]) -> reqwest::Result<reqwest::Client> {
        // Port 0 means the port of the URL, which has been checked.
        let addresses: Vec<SocketAddr> = addresses.iter().map(|address| SocketAddr::new(*address, 0)).collect();
        reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .dns_resolver(NoResolver)
            .resolve_to_addrs(host, &addresses)
            .no_proxy()
            .no_gzip()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http1_max_headers(RESPONSE_HEADERS_MAX)
            .http2_max_header_list_size(u32::try_from(RESPONSE_HEADER_BYTES_MAX).unwrap_or(u32::MAX))
            .build()
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.cache.lock().clients.len()
    }
}

/// A resolver that fails all look-ups, because names were resolved before.
struct NoResolver;

impl reqwest::dns::Resolve for NoResolver {
    fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(async { Err("names are resolved before the client is used".into()) })
    }
}

/// Converts `outgoing` for the client.
pub(crate) fn request(outgoing: Outgoing) -> reqwest::Request {
    let mut request = reqwest::Request::new(outgoing.method, outgoing.url);
    *request.headers_mut() = outgoing.headers;
    *request.body_mut() = outgoing.body.map(reqwest::Body::from);
    request
}

/// Converts `outgoing` for a [`Transport`].
pub(crate) fn plain_request(outgoing: Outgoing) -> Result<http::Request<Vec<u8>>, Failure> {
    let mut request = http::Request::new(outgoing.body.unwrap_or_default());
    *request.method_mut() = outgoing.method;
    let uri = outgoing.url.as_str().parse();
    *request.uri_mut() =
        uri.map_err(|_| Failure::unsent(FailureCode::Invalid, "the HTTP client does not accept the URL"))?;
    *request.headers_mut() = outgoing.headers;
    Ok(request)
}

/// Returns whether the error proves that the request did not reach the server.
pub(crate) fn is_unsent(error: &reqwest::Error) -> bool {
    error.is_connect() || error.is_builder()
}

/// Converts `error` for the plugin. The message contains only the host, which the plugin chose.
pub(crate) fn failure(error: reqwest::Error, host: &str) -> Failure {
    // The URL may contain an injected secret.
    let error = error.without_url();
    let (code, message) = if is_tls(&error) {
        (FailureCode::Tls, format!("no TLS connection to `{host}` could be established"))
    } else if error.is_timeout() {
        (FailureCode::Timeout, format!("`{host}` did not respond in time"))
    } else if error.is_builder() {
        (FailureCode::Invalid, "the HTTP client does not accept the URL".to_owned())
    } else if error.is_connect() {
        (FailureCode::Connect, format!("no connection to `{host}` could be established"))
    } else {
        (FailureCode::Protocol, format!("`{host}` closed the connection or sent an invalid HTTP response"))
    };
    tracing::debug!(code = code.as_str(), cause = deepest(&error), "an outbound request failed");
    Failure { code, message, sent: !is_unsent(&error), retry_after_ms: None }
}

/// Returns whether TLS caused the error. The connector wraps the cause in I/O errors, which do not return their inner
/// error as `source`.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    inner.is_some_and(|inner| is_tls(inner)) || error.source().is_some_and(is_tls)
}

fn deepest(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_for(clients: &Clients, url: &str, address: u8, network: &Network) {
        let address = IpAddr::from([192, 0, 2, address]);
        clients.client(&Url::parse(url).unwrap(), &[address], network).unwrap();
    }

    #[tokio::test]
    async fn clients_are_cached_by_all_checked_properties() {
        let clients = Clients::new(Vec::new());
        let network = Network::default();
        let opened = Network { allow_http: true, ..Network::default() };
        client_for(&clients, "https://a.example/", 1, &network);
        client_for(&clients, "https://a.example/other", 1, &network);
        assert_eq!(clients.kept(), 1);
        client_for(&clients, "https://a.example:8443/", 1, &network);
        client_for(&clients, "https://b.example/", 1, &network);
        client_for(&clients, "https://a.example/", 2, &network);
        client_for(&clients, "https://a.example/", 1, &opened);
        assert_eq!(clients.kept(), 5);
    }

    #[tokio::test]
    async fn the_order_of_addresses_does_not_matter() {
        let clients = Clients::new(Vec::new());
        let url = Url::parse("https://a.example/").unwrap();
        let (one, two) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        for addresses in [[one, two], [two, one]] {
            clients.client(&url, &addresses, &Network::default()).unwrap();
        }
        assert_eq!(clients.kept(), 1);
    }

    #[tokio::test]
    async fn the_number_of_clients_is_limited() {
        let clients = Clients::new(Vec::new());
        for port in 1..=CLIENTS_MAX + 10 {
            client_for(&clients, &format!("https://a.example:{port}/"), 1, &Network::default());
        }
        assert_eq!(clients.kept(), CLIENTS_MAX);
    }
}
