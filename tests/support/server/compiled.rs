//! Compiled components that the servers of a test process share.
//!
//! A server compiles its plugins when it first starts, which takes most of the time of a start, and most tests use the
//! same few plugins. After the first start of a plugin, its compiled form is kept in memory. It is written to the data
//! folders of later servers before their first start. Such a server reads it as after a restart: it accepts the file
//! only with the MAC of its own master key.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use aws_lc_rs::hmac;
use monstrum_vault::{MasterKeys, Vault};
use sha2::{Digest as _, Sha256};

/// The label under which the server derives the key of its cache.
const LABEL: &str = "precompiled cache";
const MAC_BYTES: usize = 32;
const SUFFIX: &str = "cwasm";

/// A component as one program compiles it.
type Key = (PathBuf, [u8; 32]);

/// A file of the cache without its MAC.
#[derive(Clone)]
struct Compiled {
    name: String,
    code: Arc<[u8]>,
}

static KEPT: Mutex<BTreeMap<Key, Compiled>> = Mutex::new(BTreeMap::new());

/// The folders of a server before its first start.
pub(super) struct FirstStart {
    program: PathBuf,
    components: Vec<[u8; 32]>,
    cache: PathBuf,
}

impl FirstStart {
    /// Creates the data folder with a master key and the known compiled forms of the plugins.
    pub(super) fn prepare(program: PathBuf, plugins: &Path, data: &Path) -> Result<FirstStart> {
        let start = FirstStart { program, components: components(plugins)?, cache: data.join("cache") };
        let known: Vec<Compiled> = start.kept();
        if !known.is_empty() {
            DirBuilder::new().recursive(true).mode(0o700).create(&start.cache)?;
            let keys = MasterKeys::create(&data.join("master.key"))?;
            let key = Vault::new(keys).derive(LABEL);
            let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_slice());
            known.iter().try_for_each(|compiled| start.write(&key, compiled))?;
        }
        Ok(start)
    }

    fn write(&self, key: &hmac::Key, compiled: &Compiled) -> Result<()> {
        let mut mac = hmac::Context::with_key(key);
        mac.update(compiled.name.as_bytes());
        mac.update(&compiled.code);
        let path = self.cache.join(&compiled.name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(mac.sign().as_ref())?;
        Ok(file.write_all(&compiled.code)?)
    }

    /// Keeps what the server has compiled. If it has compiled several components, their files cannot be told apart, and
    /// nothing is kept.
    pub(super) fn keep(&self) -> Result<()> {
        let known = self.kept();
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<Key> = self
            .components
            .iter()
            .map(|digest| (self.program.clone(), *digest))
            .filter(|key| !kept.contains_key(key))
            .collect();
        drop(kept);
        let [key] = missing.as_slice() else { return Ok(()) };
        let Ok(entries) = fs::read_dir(&self.cache) else { return Ok(()) };
        let mut compiled = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(OsStr::to_str).context("the name of a file is not UTF-8")?.to_owned();
            let is_entry = path.extension().is_some_and(|extension| extension == SUFFIX);
            if is_entry && !known.iter().any(|compiled| compiled.name == name) {
                compiled.push((name, path));
            }
        }
        if let [(name, path)] = compiled.as_slice() {
            let file = fs::read(path)?;
            let code = Arc::from(file.get(MAC_BYTES..).context("the file is shorter than its MAC")?);
            let compiled = Compiled { name: name.clone(), code };
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), compiled);
        }
        Ok(())
    }

    /// Returns the compiled forms that are kept.
    fn kept(&self) -> Vec<Compiled> {
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |digest: &[u8; 32]| kept.get(&(self.program.clone(), *digest)).cloned();
        self.components.iter().filter_map(of).collect()
    }
}

/// Returns the digests of the components in the plugins folder.
fn components(plugins: &Path) -> Result<Vec<[u8; 32]>> {
    let mut digests = Vec::new();
    for folder in fs::read_dir(plugins)? {
        let folder = folder?.path();
        let Ok(files) = fs::read_dir(&folder) else { continue };
        for file in files {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "wasm") {
                digests.push(Sha256::digest(fs::read(&path)?).into());
            }
        }
    }
    digests.sort_unstable();
    digests.dedup();
    Ok(digests)
}
