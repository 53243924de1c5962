//! A scripted server that records its requests, and a call with all inputs of egress.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use monstrum_egress::{
    Credential, CredentialSource, CredentialState, Egress, EgressOptions, LookupError, Network, Redactor, RedactorCell,
    Resolve, Scope, Step,
};
use monstrum_manifest::{BasicPair, BasicRule, HeaderRule, InjectRule, QueryRule};
use monstrum_types::{Failure, FailureCode, FixedClock, HttpRequest, HttpResponse, Secret, UtcMillis};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

pub(crate) const TOKEN: &str = "ghp_S3cr3t/T0ken+value=";

/// One request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A server on a loopback port, which the system assigns unless a test chooses an address. Dropping the value stops the
/// server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Starts a server that responds with the bytes of `answer`. If `answer` returns no bytes, the server does not
    /// respond.
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> Server {
        Server::start_at("127.0.0.1:0", answer).await
    }

    pub(crate) async fn start_at(address: &str, answer: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (answer, remembered, counted) = (Arc::new(answer), Arc::clone(&seen), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(stream, Arc::clone(&answer), Arc::clone(&remembered)));
            }
        });
        Server { address, seen, connections, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the number of connections that the server has accepted.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// Serves a connection until one side closes it.
async fn serve(mut stream: TcpStream, answer: Arc<impl Fn(&Seen) -> Vec<u8>>, seen: Arc<Mutex<Vec<Seen>>>) {
    while let Some(request) = read_request(&mut stream).await {
        let bytes = answer(&request);
        seen.lock().unwrap().push(request);
        if bytes.is_empty() {
            std::future::pending::<()>().await;
        }
        // The client may close early.
        if stream.write_all(&bytes).await.is_err() || is_last(&bytes) {
            return;
        }
    }
}

/// Returns whether the response closes the connection.
fn is_last(answer: &[u8]) -> bool {
    answer.split(|byte| *byte == b'\n').take_while(|line| line.len() > 1).any(|line| line == b"connection: close\r")
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut body = bytes[head_end + 4..].to_vec();
    let (line, headers) = head.split_once("\r\n").unwrap();
    let headers: Vec<(String, String)> = headers
        .split("\r\n")
        .map(|header| header.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Seen { line: line.to_owned(), headers, body })
}

/// Builds a response, including its Content-Length.
pub(crate) fn answer(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

pub(crate) fn ok(body: &str) -> Vec<u8> {
    answer("200 OK", &[], body.as_bytes())
}

/// A resolver with scripted answers for some names. The resolver repeats the last answer of a name. Names without
/// scripted answers do not exist.
pub(crate) struct Names {
    answers: Mutex<BTreeMap<String, Vec<Vec<IpAddr>>>>,
    pub(crate) asked: AtomicUsize,
}

impl Names {
    pub(crate) fn new(names: &[(&str, &[&[&str]])]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        let answers = names.iter().map(|(name, all)| ((*name).to_owned(), all.iter().map(parse).collect())).collect();
        Arc::new(Names { answers: Mutex::new(answers), asked: AtomicUsize::new(0) })
    }
}

impl Resolve for Names {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut all = self.answers.lock().unwrap();
        let answer = all.get_mut(host).map(|all| if all.len() > 1 { all.remove(0) } else { all[0].clone() });
        Box::pin(async { answer.ok_or(LookupError::Failed) })
    }
}

/// A scripted credential source.
pub(crate) struct Source {
    pub(crate) current: Result<Arc<Credential>, CredentialState>,
    pub(crate) refreshed: Result<Arc<Credential>, CredentialState>,
    pub(crate) refreshes: AtomicUsize,
}

impl CredentialSource for Source {
    fn current(&self) -> BoxFuture<'_, Result<Arc<Credential>, CredentialState>> {
        Box::pin(async { self.current.clone() })
    }

    fn refresh<'a>(&'a self, _: &'a Credential) -> BoxFuture<'a, Result<Arc<Credential>, CredentialState>> {
        self.refreshes.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { self.refreshed.clone() })
    }

    fn status(&self) -> CredentialState {
        self.current.as_ref().err().copied().unwrap_or(CredentialState::Ready)
    }
}

pub(crate) fn header(name: &str, value: &str) -> InjectRule {
    InjectRule::Header(HeaderRule { header: name.to_owned(), value: value.to_owned() })
}

pub(crate) fn query(name: &str, value: &str) -> InjectRule {
    InjectRule::Query(QueryRule { query: name.to_owned(), value: value.to_owned() })
}

pub(crate) fn basic(username: &str, password: &str) -> InjectRule {
    InjectRule::Basic(BasicRule { basic: BasicPair { username: username.to_owned(), password: password.to_owned() } })
}

/// One call with its settings, which tests change before sending.
pub(crate) struct Call {
    pub(crate) scope: Scope,
    pub(crate) credential: Credential,
    pub(crate) source: Source,
    pub(crate) redactor: RedactorCell,
    pub(crate) request: HttpRequest,
    pub(crate) names: Arc<Names>,
    pub(crate) roots: Vec<rustls::pki_types::CertificateDer<'static>>,
    /// The number of times that `before_sending` was awaited.
    pub(crate) announced: AtomicUsize,
    /// The result of `before_sending`.
    pub(crate) announcement: Result<(), Failure>,
    pub(crate) steps: Arc<Mutex<Vec<Step>>>,
}

pub(crate) const NOW: UtcMillis = UtcMillis(1_800_000_000_000);

impl Call {
    /// Creates a GET of `url` with the token as bearer, for a resource with the base URL `base`. Loopback addresses and
    /// http:// are allowed.
    pub(crate) fn new(base: &str, url: &str) -> Call {
        let rule = header("Authorization", "Bearer {access_token}");
        let credential = Credential {
            fields: [("access_token".to_owned(), Secret::new(TOKEN.to_owned()))].into(),
            plain_fields: Default::default(),
            inject: vec![rule.clone()],
            audience: vec![base.parse().unwrap()],
            refreshable: false,
            expires_at: None,
        };
        Call {
            scope: Scope {
                api_base: Some(base.parse().unwrap()),
                inject: vec![rule],
                audience: vec![base.parse().unwrap()],
                network: Network { allow_addresses: vec!["127.0.0.0/8".parse().unwrap()], allow_http: true },
                ..Scope::default()
            },
            source: Source {
                current: Err(CredentialState::Ready),
                refreshed: Err(CredentialState::Expired),
                refreshes: AtomicUsize::new(0),
            },
            redactor: RedactorCell::new(Arc::new(Redactor::new(credential.secret_values()))),
            credential,
            request: HttpRequest {
                method: "GET".to_owned(),
                url: url.to_owned(),
                authenticate: true,
                ..HttpRequest::default()
            },
            names: Names::new(&[]),
            roots: Vec::new(),
            announced: AtomicUsize::new(0),
            announcement: Ok(()),
            steps: Arc::default(),
        }
    }

    pub(crate) fn egress(&self) -> Egress {
        let steps = Arc::clone(&self.steps);
        Egress::new(EgressOptions {
            resolver: self.names.clone(),
            extra_roots: self.roots.clone(),
            clock: Arc::new(FixedClock::new(NOW)),
            observer: Some(Arc::new(move |step| steps.lock().unwrap().push(step))),
            ..EgressOptions::default()
        })
    }

    pub(crate) async fn send(&mut self) -> Result<HttpResponse, Failure> {
        let egress = self.egress();
        self.send_by(&egress).await
    }

    pub(crate) async fn send_by(&mut self, egress: &Egress) -> Result<HttpResponse, Failure> {
        if self.source.current.as_ref().err() == Some(&CredentialState::Ready) {
            self.source.current = Ok(Arc::new(self.credential.clone()));
        }
        // The deadline is generous, because a busy machine needs a long time for the largest bodies.
        let deadline = Instant::now() + Duration::from_secs(300);
        let before = || -> BoxFuture<'_, Result<(), Failure>> {
            self.announced.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { self.announcement.clone() })
        };
        // The future is boxed as `Send`, because callers move it to a task.
        let sending: BoxFuture<'_, _> =
            Box::pin(egress.send(&self.scope, &self.source, &self.redactor, self.request.clone(), deadline, &before));
        sending.await
    }

    /// Sends the request, and asserts that it was rejected with `code` before it was sent.
    pub(crate) async fn assert_refused(&mut self, code: FailureCode) -> Failure {
        let failure = self.send().await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (code, false), "{failure:?}");
        assert_eq!(self.announced.load(Ordering::SeqCst), 0, "announced although refused");
        failure
    }

    pub(crate) fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap().clone()
    }

    /// Makes the credential refreshable, with `token` as the new token.
    pub(crate) fn refresh_into(&mut self, token: &str) {
        self.credential.refreshable = true;
        let mut fresh = self.credential.clone();
        fresh.fields.insert("access_token".to_owned(), Secret::new(token.to_owned()));
        self.source.refreshed = Ok(Arc::new(fresh));
    }
}

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(include_bytes!("tls/cert.pem")).unwrap()
}

/// Starts a TLS server for one connection. The server answers with `response`.
pub(crate) fn tls_server(response: impl Into<Vec<u8>>) -> u16 {
    let response = response.into();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("tls/key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate()], key)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut tls = rustls::Stream::new(&mut connection, &mut stream);
        let mut request = [0; 4096];
        if tls.read(&mut request).is_ok_and(|length| length > 0) {
            tls.write_all(&response).unwrap();
        }
    });
    port
}

pub(crate) fn tls_call(port: u16, host: &str) -> Call {
    let mut call = Call::new(&format!("https://{host}:{port}"), "/x");
    call.scope.network.allow_http = false;
    call.names = Names::new(&[("tls.example", &[&["127.0.0.1"]]), ("other.example", &[&["127.0.0.1"]])]);
    call.roots = vec![certificate()];
    call
}

/// Returns the lines of a corpus: known cases, which run before the random cases.
pub(crate) fn corpus<T: serde::de::DeserializeOwned>(lines: &str) -> Vec<T> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}
