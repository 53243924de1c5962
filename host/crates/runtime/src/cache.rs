//! Compiled components on disk, so that a start does not compile what has not changed.
//!
//! Loading machine code is as good as running it. So the folder is the owner's alone, and a file is loaded only if its
//! MAC proves that this installation wrote it, under this name, with this build and engine. A file that is missing,
//! unreadable or forged means compiling again; the cache never fails a load.

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

/// What this program was built from: the exact version of wasmtime and of all it compiles with. wasmtime's own check
/// compares major versions only.
const LOCK_FILE: &[u8] = include_bytes!("../../../../Cargo.lock");

const MAC_BYTES: usize = 32;

/// The largest file that is read: machine code is about four times as large as its component.
const ENTRY_BYTES_MAX: u64 = 512 << 20;

/// Compiled components that are kept, the newest: several versions of every plugin of a large installation.
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
        let mac = Hmac::new_from_slice(mac_key).expect("an HMAC takes keys of every length");
        Ok(Cache { dir, mac, build: build_id(engine), temporary: AtomicU64::new(0) })
    }

    /// The compiled form of a component, if it is here and genuine.
    pub(crate) fn load(&self, engine: &wasmtime::Engine, digest: &Digest) -> Option<Component> {
        let name = self.name(digest);
        let entry = match read_entry(&self.dir.join(&name)) {
            Ok(entry) => entry,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = name, %error, "a compiled component cannot be read, it is compiled again");
                return None;
            }
        };
        let Some(code) = self.verified(&name, &entry) else {
            tracing::warn!(file = name, "a compiled component is not genuine, it is compiled again");
            return None;
        };
        deserialize(engine, code)
            .inspect_err(|error| {
                tracing::warn!(file = name, %error, "a compiled component does not fit, it is compiled again");
            })
            .ok()
    }

    /// Keeps the compiled form of a component. Not being able to costs time at the next start and nothing else.
    pub(crate) fn store(&self, digest: &Digest, component: &Component) {
        let name = self.name(digest);
        let written = component
            .serialize()
            .map_err(io::Error::other)
            .and_then(|code| self.write(&name, &code))
            .and_then(|()| self.remove_oldest());
        if let Err(error) = written {
            tracing::warn!(file = name, %error, "a compiled component cannot be kept");
        }
    }

    fn name(&self, digest: &Digest) -> String {
        let hash = Sha256::new().chain_update(self.build).chain_update(digest.as_str()).finalize();
        format!("{}.{SUFFIX}", hex::encode(hash))
    }

    /// The code of an entry, if its MAC is right. The MAC covers the name, so that no entry can stand in for another.
    fn verified<'entry>(&self, name: &str, entry: &'entry [u8]) -> Option<&'entry [u8]> {
        let (mac, code) = entry.split_at_checked(MAC_BYTES)?;
        self.mac_of(name, code).verify_slice(mac).ok()?;
        Some(code)
    }

    fn mac_of(&self, name: &str, code: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update(name).chain_update(code)
    }

    /// Writes beside the place and renames, so that no reader sees half an entry.
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

/// Removes a file that somebody else may just have removed.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[expect(unsafe_code, reason = "machine code can be loaded in no other way")]
fn deserialize(engine: &wasmtime::Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `code` must be what `Component::serialize` returned in a build of the same wasmtime. The MAC has just been
    // checked over these very bytes: they were written by a holder of this installation's key, which writes nothing else,
    // under a name that stands for this build, this engine's settings and one component.
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
        // Fails where the folder is somebody else's.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

fn read_entry(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    if bytes > ENTRY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("the file has {bytes} bytes")));
    }
    let mut entry = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    file.take(ENTRY_BYTES_MAX).read_to_end(&mut entry)?;
    Ok(entry)
}

/// What compiled code depends on besides the component: this build, the engine's settings, and the machine's features.
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

/// A hasher that keeps all of its input apart, where std's would give 64 bits.
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
