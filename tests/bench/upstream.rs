//! An upstream that answers immediately, late, or on demand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::routing::get;
use axum::serve::Listener;
use axum::{Json, Router};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The path that is answered immediately.
pub const OK: &str = "/ok";
/// The path that is answered after [`SLOWNESS`].
pub const SLOW: &str = "/slow";
/// The path that is answered when all held requests are released. Requests may be held forever.
pub const HELD: &str = "/held";

const SLOWNESS: Duration = Duration::from_millis(300);

/// A running upstream. Dropping the value stops it.
pub struct Upstream {
    scheme: &'static str,
    address: SocketAddr,
    held: Arc<Held>,
    task: JoinHandle<()>,
}

struct Held {
    /// The number of held requests.
    count: watch::Sender<usize>,
    /// The number of releases so far.
    releases: watch::Sender<usize>,
}

impl Upstream {
    /// Starts an upstream on a free port.
    pub async fn start() -> Result<Upstream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the upstream cannot listen on a port")?;
        Upstream::serve("http", listener)
    }

    /// Starts an upstream on a free port that speaks TLS. Its certificate is issued by [`authority`].
    pub async fn start_tls() -> Result<Upstream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the upstream cannot listen on a port")?;
        Upstream::serve("https", TlsListener { listener, acceptor: acceptor()? })
    }

    fn serve(scheme: &'static str, listener: impl Listener<Addr = SocketAddr>) -> Result<Upstream> {
        let address = listener.local_addr().context("the upstream has no address")?;
        let held = Arc::new(Held { count: watch::Sender::new(0), releases: watch::Sender::new(0) });
        let router = Router::new()
            .route(OK, get(answer))
            .route(SLOW, get(slow))
            .route(HELD, get(hold))
            .with_state(Arc::clone(&held));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the upstream serves until it is dropped");
        });
        Ok(Upstream { scheme, address, held, task })
    }

    /// Returns the URL `http://127.0.0.1:PORT`, or the same with `https`.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Waits until at least `count` requests are held.
    pub async fn holds(&self, count: usize) -> Result<()> {
        let mut held = self.held.count.subscribe();
        held.wait_for(|held| *held >= count).await.context("the upstream ended early")?;
        Ok(())
    }

    /// Answers every held request.
    pub fn release(&self) {
        self.held.releases.send_modify(|releases| *releases += 1);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the certificate authority of the upstream, as PEM and as DER.
pub fn authority() -> Result<(&'static [u8], CertificateDer<'static>)> {
    let pem = include_bytes!("tls/ca.pem");
    Ok((pem, CertificateDer::from_pem_slice(pem).context("the certificate authority is not readable")?))
}

fn acceptor() -> Result<TlsAcceptor> {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("tls/cert.pem"))?;
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("tls/key.pem"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts connections and their TLS handshakes, one after another.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            // The client reports a failed handshake.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

async fn answer() -> Json<Value> {
    Json(json!({ "id": 1347, "state": "open", "title": "Found a bug", "labels": ["bug"] }))
}

async fn slow() -> Json<Value> {
    tokio::time::sleep(SLOWNESS).await;
    answer().await
}

async fn hold(State(held): State<Arc<Held>>) -> Json<Value> {
    /// Counts a request while the request is held. If the caller disconnects, the value is dropped.
    struct Counted(Arc<Held>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.count.send_modify(|count| *count -= 1);
        }
    }
    let mut releases = held.releases.subscribe();
    held.count.send_modify(|count| *count += 1);
    let counted = Counted(Arc::clone(&held));
    // `changed` fails only if the sender is dropped, and `held` owns the sender.
    let _ = releases.changed().await;
    drop(counted);
    answer().await
}
