//! The cache of compiled components on disk, so that unchanged components are not compiled at each start.
//!
//! Loading machine code is equivalent to running it. Therefore only the owner has access to the folder. The cache loads
//! a file only if its MAC proves that this installation wrote the file under this name, with this build and engine. If
//! a file is missing, unreadable or forged, the component is compiled again. Cache errors never cause a load to fail.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hmac::{Hmac, KeyInit, Mac};
use monstrum_types::Digest;
use sha2::{Digest as _, Sha256};
use wasmtime::component::Component;

use crate::error::RuntimeError;

/// The exact versions of wasmtime and its dependencies. wasmtime's own check compares major versions only.
const LOCK_FILE: &[u8] = include_bytes!("../../../../Cargo.lock");

const MAC_BYTES: usize = 32;

/// The maximum size of a file. Machine code is about four times as large as its component.
const ENTRY_BYTES_MAX: u64 = 512 << 20;

/// The maximum number of files, enough for several versions of each plugin of a large installation. If there are more
/// files, the cache removes the oldest ones.
const ENTRIES_MAX: usize = 1024;

const SUFFIX: &str = "cwasm";
const TEMPORARY: &str = "tmp";

pub(crate) struct Cache {
    dir: PathBuf,
    mac: Hmac<Sha256>,
    build: [u8; 32],
    temporary: AtomicU64,
}

impl Cache {
    pub(crate) fn open(dir: PathBuf, mac_key: &[u8; 32], engine: &wasmtime::Engine) -> Result<Cache, RuntimeError> {
        prepare_folder(&dir)?;
        let mac = Hmac::new_from_slice(mac_key).expect("an HMAC accepts keys of any length");
        Ok(Cache { dir, mac, build: build_id(engine), temporary: AtomicU64::new(0) })
    }

    pub(crate) fn build_id(&self) -> [u8; 32] {
        self.build
    }

    /// Loads the compiled form of a component from the cache. Returns `None` if the cache has no entry for the
    /// component, or if the entry is not authentic or cannot be loaded.
    pub(crate) fn load(&self, engine: &wasmtime::Engine, digest: &Digest) -> Option<Component> {
        let name = self.name(digest);
        let entry = match read_entry(&self.dir.join(&name)) {
            Ok(entry) => entry,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = name, %error, "cannot read a compiled component; compiling it again");
                return None;
            }
        };
        let Some(code) = self.verified(&name, &entry) else {
            tracing::warn!(file = name, "the MAC of a compiled component is wrong; compiling it again");
            return None;
        };
        deserialize(engine, code)
            .inspect_err(|error| {
                tracing::warn!(file = name, %error, "cannot load a compiled component; compiling it again");
            })
            .ok()
    }

    /// Stores the compiled form of a component. If storing fails, the component is compiled again at the next start.
    pub(crate) fn store(&self, digest: &Digest, component: &Component) {
        let name = self.name(digest);
        let written = component
            .serialize()
            .map_err(io::Error::other)
            .and_then(|code| self.write(&name, &code))
            .and_then(|()| self.remove_oldest());
        if let Err(error) = written {
            tracing::warn!(file = name, %error, "cannot store a compiled component; the next start compiles it again");
        }
    }

    fn name(&self, digest: &Digest) -> String {
        let hash = Sha256::new().chain_update(self.build).chain_update(digest.as_str()).finalize();
        format!("{}.{SUFFIX}", hex::encode(hash))
    }

    /// Returns the code of an entry if its MAC is correct. The MAC covers the name, so that one entry cannot replace
    /// another.
    fn verified<'entry>(&self, name: &str, entry: &'entry [u8]) -> Option<&'entry [u8]> {
        let (mac, code) = entry.split_at_checked(MAC_BYTES)?;
        self.mac_of(name, code).verify_slice(mac).ok()?;
        Some(code)
    }

    fn mac_of(&self, name: &str, code: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update(name).chain_update(code)
    }

    /// Writes to a temporary file and renames it, so that readers never see a partial entry.
    fn write(&self, name: &str, code: &[u8]) -> io::Result<()> {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.dir.join(format!("{name}.{}.{number}.{TEMPORARY}", std::process::id()));
        let mac = self.mac_of(name, code).finalize().into_bytes();
        let written = (|| {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&mac)?;
            file.write_all(code)?;
            fs::rename(&temporary, self.dir.join(name))
        })();
        written.or_else(|error| remove(&temporary).and(Err(error)))
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let is_ours = path.extension().is_some_and(|extension| extension == SUFFIX || extension == TEMPORARY);
            match fs::symlink_metadata(&path) {
                Ok(metadata) if is_ours && metadata.is_file() => entries.push((metadata.modified()?, path)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        entries.sort();
        let too_many = entries.len().saturating_sub(ENTRIES_MAX);
        entries[..too_many].iter().try_for_each(|(_, path)| remove(path))
    }
}

/// Removes a file. Succeeds if the file does not exist, because another process that shares the folder may have removed
/// the file.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[expect(unsafe_code, reason = "wasmtime has no safe function to load machine code")]
fn deserialize(engine: &wasmtime::Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `code` must be the output of `Component::serialize` of the same wasmtime build. The MAC of exactly these
    // bytes was verified, so this installation, which holds the key, wrote them. The installation writes only such
    // output, under a name that identifies this build, the engine's settings and the component.
    unsafe { Component::deserialize(engine, code) }
}

fn prepare_folder(dir: &Path) -> Result<(), RuntimeError> {
    let failed = |source| RuntimeError::CacheFolder { path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let metadata = fs::symlink_metadata(dir).map_err(failed)?;
    if !metadata.is_dir() {
        return Err(RuntimeError::CacheNotAFolder { path: dir.to_owned() });
    }
    if metadata.permissions().mode() & 0o777 != 0o700 {
        // This call fails if another user owns the folder.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

fn read_entry(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    if bytes > ENTRY_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("the file has {bytes} bytes; at most {ENTRY_BYTES_MAX} are allowed"),
        ));
    }
    let mut entry = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    file.take(ENTRY_BYTES_MAX).read_to_end(&mut entry)?;
    Ok(entry)
}

/// Hashes the inputs of compilation besides the component: this build, the engine's settings and the machine's
/// features.
fn build_id(engine: &wasmtime::Engine) -> [u8; 32] {
    let mut hasher = Sha256Hasher(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher
        .0
        .chain_update(Sha256::digest(LOCK_FILE))
        .chain_update(env!("CARGO_PKG_VERSION"))
        .chain_update([u8::from(cfg!(debug_assertions))])
        .finalize()
        .into()
}

/// A collision-resistant hasher. The standard library's hashers have only 64 bits.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        digest.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
    }
}
