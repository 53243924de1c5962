//! Step 5, second half: the HTTP clients, and the conversion of their errors.
//!
//! A client is bound to one host, one set of network rules and one set of addresses, all of which these rules allow. Its
//! pooled connections go only to these addresses. The client is reused while the name resolves to some of these
//! addresses, so that a name server that rotates its answers does not end kept connections; a name with another address
//! gets another client. New connections go only to the addresses of the latest answer: the client's resolver returns
//! exactly these and never asks a name server.

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

/// The checked properties of a destination, except for its addresses.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Destination {
    network: Network,
    host: String,
    port: Option<u16>,
}

struct Kept {
    client: reqwest::Client,
    /// All addresses to which the client may have connections.
    addresses: Vec<IpAddr>,
    pinned: Arc<Pinned>,
    used: u64,
}

#[derive(Default)]
struct Cache {
    clients: HashMap<Destination, Vec<Kept>>,
    /// The number of clients of all destinations.
    count: usize,
    uses: u64,
}

impl Cache {
    /// Removes the least recently used client.
    fn evict(&mut self) {
        let oldest = |kept: &Vec<Kept>| kept.iter().map(|kept| kept.used).min();
        let Some((destination, used)) = self
            .clients
            .iter()
            .filter_map(|(destination, kept)| Some((destination.clone(), oldest(kept)?)))
            .min_by_key(|(_, used)| *used)
        else {
            return;
        };
        if let Some(clients) = self.clients.get_mut(&destination) {
            clients.retain(|kept| kept.used != used);
            self.count -= 1;
            if clients.is_empty() {
                self.clients.remove(&destination);
            }
        }
    }
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

    /// Returns a client for the host of `url` that opens connections only to `addresses`, which `network` allows.
    pub(crate) fn client(
        &self,
        url: &Url,
        addresses: &Arc<[IpAddr]>,
        network: &Network,
    ) -> Result<reqwest::Client, Failure> {
        let host = url.host_str().unwrap_or_default().to_owned();
        let destination = Destination { network: network.clone(), host, port: url.port_or_known_default() };
        let mut cache = self.cache.lock();
        cache.uses += 1;
        let now = cache.uses;
        let has_all = |kept: &&mut Kept| addresses.iter().all(|address| kept.addresses.contains(address));
        if let Some(kept) = cache.clients.get_mut(&destination).and_then(|clients| clients.iter_mut().find(has_all)) {
            kept.used = now;
            kept.pinned.set(addresses);
            return Ok(kept.client.clone());
        }
        let pinned = Arc::new(Pinned { host: destination.host.clone(), addresses: Mutex::new(Arc::clone(addresses)) });
        let client = self.build(&pinned).map_err(|error| {
            tracing::error!(%error, "cannot create an HTTP client");
            Failure::unsent(FailureCode::Internal, "the HTTP client for the request could not be created")
        })?;
        if cache.count >= CLIENTS_MAX {
            cache.evict();
        }
        let kept = Kept { client: client.clone(), addresses: addresses.to_vec(), pinned, used: now };
        cache.clients.entry(destination).or_default().push(kept);
        cache.count += 1;
        Ok(client)
    }

    fn build(&self, pinned: &Arc<Pinned>) -> reqwest::Result<reqwest::Client> {
        reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .dns_resolver(Arc::clone(pinned))
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
        let cache = self.cache.lock();
        assert_eq!(cache.clients.values().map(Vec::len).sum::<usize>(), cache.count);
        cache.count
    }
}

/// The resolver of a client, which returns the checked addresses of the latest request and asks no name server. A host
/// that is an IP address is not resolved.
struct Pinned {
    host: String,
    addresses: Mutex<Arc<[IpAddr]>>,
}

impl Pinned {
    fn set(&self, addresses: &Arc<[IpAddr]>) {
        *self.addresses.lock() = Arc::clone(addresses);
    }
}

impl reqwest::dns::Resolve for Pinned {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let addresses = name.as_str().eq_ignore_ascii_case(&self.host).then(|| self.addresses.lock().to_vec());
        Box::pin(async {
            let addresses = addresses.ok_or("the client is bound to another host")?;
            // Port 0 means the port of the URL, which has been checked.
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as reqwest::dns::Addrs)
        })
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

    fn addresses(last: &[u8]) -> Arc<[IpAddr]> {
        last.iter().map(|last| IpAddr::from([192, 0, 2, *last])).collect()
    }

    fn client_for(clients: &Clients, url: &str, last: &[u8], network: &Network) {
        clients.client(&Url::parse(url).unwrap(), &addresses(last), network).unwrap();
    }

    #[tokio::test]
    async fn clients_are_cached_by_all_checked_properties() {
        let clients = Clients::new(Vec::new());
        let network = Network::default();
        let opened = Network { allow_http: true, ..Network::default() };
        client_for(&clients, "https://a.example/", &[1], &network);
        client_for(&clients, "https://a.example/other", &[1], &network);
        assert_eq!(clients.kept(), 1);
        client_for(&clients, "https://a.example:8443/", &[1], &network);
        client_for(&clients, "https://b.example/", &[1], &network);
        client_for(&clients, "https://a.example/", &[2], &network);
        client_for(&clients, "https://a.example/", &[1], &opened);
        assert_eq!(clients.kept(), 5);
    }

    #[tokio::test]
    async fn a_client_serves_every_subset_of_its_addresses() {
        let clients = Clients::new(Vec::new());
        for subset in [&[1, 2, 3][..], &[3, 1, 2], &[2], &[3, 2], &[1, 2, 3]] {
            client_for(&clients, "https://a.example/", subset, &Network::default());
            assert_eq!(clients.kept(), 1, "{subset:?}");
        }
        for (other, kept) in [(&[3, 4][..], 2), (&[1, 2, 3, 4], 3), (&[4], 3), (&[1], 3), (&[5], 4)] {
            client_for(&clients, "https://a.example/", other, &Network::default());
            assert_eq!(clients.kept(), kept, "{other:?}");
        }
    }

    /// Checks that a reused client opens no connection to an address that the latest answer lacks.
    #[tokio::test]
    async fn new_connections_go_to_the_addresses_of_the_latest_answer() {
        let clients = Clients::new(Vec::new());
        let pinned = async |host: &str| {
            let pinned = Arc::clone(&clients.cache.lock().clients.values().next().unwrap()[0].pinned);
            let resolved = reqwest::dns::Resolve::resolve(pinned.as_ref(), host.parse().unwrap()).await;
            resolved.map(|all| all.map(|address| address.to_string()).collect::<Vec<_>>()).map_err(|_| ())
        };
        client_for(&clients, "https://a.example/", &[1, 2], &Network::default());
        assert_eq!(pinned("a.example").await, Ok(vec!["192.0.2.1:0".to_owned(), "192.0.2.2:0".to_owned()]));
        client_for(&clients, "https://a.example/", &[2], &Network::default());
        assert_eq!(pinned("A.Example").await, Ok(vec!["192.0.2.2:0".to_owned()]));
        assert_eq!(pinned("b.example").await, Err(()));
    }

    #[tokio::test]
    async fn the_least_recently_used_client_is_evicted() {
        let clients = Clients::new(Vec::new());
        let mut ports = 1..;
        for port in ports.by_ref().take(CLIENTS_MAX) {
            client_for(&clients, &format!("https://a.example:{port}/"), &[1], &Network::default());
        }
        client_for(&clients, "https://a.example:1/", &[1], &Network::default());
        for port in ports.take(CLIENTS_MAX - 1) {
            client_for(&clients, &format!("https://a.example:{port}/"), &[1], &Network::default());
            assert_eq!(clients.kept(), CLIENTS_MAX);
        }
        let has_port = |port| clients.cache.lock().clients.keys().any(|destination| destination.port == Some(port));
        assert!(has_port(1) && !has_port(2) && has_port(257));
    }
}
