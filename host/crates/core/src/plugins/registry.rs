//! The client of a package registry. A registry is a folder or an index on a web server. Requests to the web server go
//! through egress.
//!
//! The client does not trust a registry. It checks the digest in the index and the signature of the package. A
//! malicious registry can only withhold packages.

mod place;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::BoxFuture;
use ipnet::IpNet;
use monstrum_egress::{Anonymous, Egress, EgressOptions, Network, RedactorCell, Scope};
use monstrum_package::{
    INDEX_BYTES_MAX, Index, IndexEntry, IndexError, PACKAGE_BYTES_MAX, SIGNATURE_BYTES_MAX, digest,
};
use monstrum_types::{Digest, Failure, HttpRequest};
use rustix::fs::{Mode, OFlags};
use tokio::time::Instant;

pub use self::place::Place;

/// The file name of the index.
const INDEX: &str = "index.json";
/// The time-out for fetching the index or a signature. It is short, because the caller sees no progress before the
/// index has arrived.
const INDEX_WAIT_MAX: Duration = Duration::from_secs(30);
/// The time-out for fetching a package. It is long enough for a package of maximum size at 2 Mbit/s.
const PACKAGE_WAIT_MAX: Duration = Duration::from_secs(300);

/// The reason why the registry could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("cannot read {} of the registry", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} of the registry has more than {bytes_max} bytes", path.display())]
    TooLarge { path: PathBuf, bytes_max: usize },
    #[error("cannot fetch {file} from the registry")]
    Fetch { file: String, source: Failure },
    #[error("the registry answered with status {status} for {file}")]
    Status { file: String, status: u16 },
    #[error("the registry cannot be used")]
    Index(#[from] IndexError),
    #[error("{file} of the registry does not match the index: expected digest {named}, found {found}")]
    Other { file: String, found: Digest, named: Digest },
    #[error("the registry could not be read completely; try again")]
    Interrupted,
}

/// A registry of packages.
pub enum Registry {
    Folder(PathBuf),
    Web(Box<Web>),
}

/// A registry on a web server.
pub struct Web {
    egress: Egress,
    scope: Scope,
}

impl Registry {
    /// Creates a client of the registry at `place`. The client connects only to public addresses, to the numeric
    /// address in `place`, if any, and to addresses in `allow_addresses`.
    pub fn new(place: Place, allow_addresses: &[IpNet]) -> Registry {
        let named = place.named_address();
        match place {
            Place::Folder(path) => Registry::Folder(path),
            Place::Web(url) => {
                let network = Network {
                    allow_addresses: allow_addresses.iter().copied().chain(named).collect(),
                    // The parser of settings accepts http:// only with loopback addresses.
                    allow_http: url.scheme() == "http",
                };
                let options = EgressOptions { response_body_bytes_max: PACKAGE_BYTES_MAX, ..EgressOptions::default() };
                let scope = Scope { api_base: Some(url), network, ..Scope::default() };
                Registry::Web(Box::new(Web { egress: Egress::new(options), scope }))
            }
        }
    }

    /// Reads the current index.
    pub async fn index(&self) -> Result<Index, RegistryError> {
        let bytes = self.fetch(INDEX, INDEX_BYTES_MAX, INDEX_WAIT_MAX).await?;
        Ok(Index::parse(&bytes)?)
    }

    /// Reads the package that an entry of the index names.
    pub async fn package(&self, entry: &IndexEntry) -> Result<Vec<u8>, RegistryError> {
        let bytes_max = usize::try_from(entry.size).map_or(PACKAGE_BYTES_MAX, |size| size.min(PACKAGE_BYTES_MAX));
        let package = self.fetch(&entry.file, bytes_max, PACKAGE_WAIT_MAX).await?;
        let found = digest(&package);
        if found == entry.sha256 {
            return Ok(package);
        }
        Err(RegistryError::Other { file: entry.file.clone(), found, named: entry.sha256.clone() })
    }

    /// Reads the signature of the package that an entry of the index names.
    pub async fn signature(&self, entry: &IndexEntry) -> Result<Vec<u8>, RegistryError> {
        self.fetch(&entry.signature, SIGNATURE_BYTES_MAX, INDEX_WAIT_MAX).await
    }

    /// Reads a file of the registry. `file` is a validated name: the name of the index, or a name in the index.
    async fn fetch(&self, file: &str, bytes_max: usize, wait: Duration) -> Result<Vec<u8>, RegistryError> {
        match self {
            Registry::Folder(folder) => {
                let path = folder.join(file);
                let read = tokio::task::spawn_blocking(move || read(&path, bytes_max));
                read.await.map_err(|_| RegistryError::Interrupted)?
            }
            Registry::Web(web) => web.fetch(file, bytes_max, wait).await,
        }
    }
}

impl Web {
    async fn fetch(&self, file: &str, bytes_max: usize, wait: Duration) -> Result<Vec<u8>, RegistryError> {
        let request = HttpRequest { method: "GET".to_owned(), url: format!("/{file}"), ..HttpRequest::default() };
        let nothing_to_do = || -> BoxFuture<'static, Result<(), Failure>> { Box::pin(async { Ok(()) }) };
        let redactor = RedactorCell::default();
        let until = Instant::now() + wait;
        let sent = self.egress.send(&self.scope, &Anonymous, &redactor, request, until, &nothing_to_do).await;
        let answer = sent.map_err(|source| RegistryError::Fetch { file: file.to_owned(), source })?;
        if answer.status != 200 {
            return Err(RegistryError::Status { file: file.to_owned(), status: answer.status });
        }
        if answer.body.len() > bytes_max {
            return Err(RegistryError::TooLarge { path: PathBuf::from(file), bytes_max });
        }
        Ok(answer.body)
    }
}

fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>, RegistryError> {
    let failed = |source| RegistryError::Read { path: path.to_owned(), source };
    // These flags reject a symbolic link and do not block on a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let file = File::from(file);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(std::io::ErrorKind::InvalidInput.into()));
    }
    let mut content = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() > bytes_max {
        return Err(RegistryError::TooLarge { path: path.to_owned(), bytes_max });
    }
    Ok(content)
}
