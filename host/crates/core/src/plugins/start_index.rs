//! The start index: what the last start learned about the plugins folder, in one file of the data folder.
//!
//! A plugin whose files have not changed since is neither read nor checked again. The index approves nothing: a plugin
//! of the index serves only if the database records the same version as the serving version. A file with a wrong MAC, or
//! of another build, data folder or plugins folder, is ignored and written again.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use monstrum_manifest::{Locales, Manifest};
use monstrum_runtime::Runtime;
use monstrum_types::{Digest, PluginName};
use monstrum_vault::FileKey;
use serde::{Deserialize, Serialize};

use crate::plugins::folder::Opened;

/// The name of the file in the data folder.
pub const START_INDEX_FILE: &str = "plugins.index";
/// The maximum size of the file. A plugin takes about 10 KB, and at most about 1 MB.
const INDEX_BYTES_MAX: u64 = 1 << 30;
/// The version of the format.
const FORMAT: u32 = 1;
const MAC_BYTES: usize = 32;

/// The place of a start index, and the key that authenticates it.
pub struct StartIndex {
    path: PathBuf,
    key: FileKey,
    /// The name of this data folder's audit chain, which no other data folder has.
    node: String,
}

/// The first line of the file. An index is valid only for the host and the folder that its header names.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: u32,
    build: String,
    node: String,
    plugins_dir: PathBuf,
}

/// A line of the file: a plugin that served, and the files from which it was read.
#[derive(Serialize, Deserialize)]
pub(super) struct IndexedPlugin<'a> {
    pub(super) name: PluginName,
    pub(super) opened: Cow<'a, [Opened]>,
    pub(super) manifest_digest: Digest,
    pub(super) component_digest: Digest,
    /// The memory limit of the trial.
    pub(super) memory_bytes: u64,
    pub(super) imports: Cow<'a, [String]>,
    pub(super) functions: Cow<'a, [String]>,
    pub(super) warnings: Cow<'a, [String]>,
    pub(super) manifest: Cow<'a, Manifest>,
    pub(super) locales: Cow<'a, Locales>,
}

impl IndexedPlugin<'_> {
    /// Returns the line, or `None` if it does not contain everything that the plugin has. A manifest can have values,
    /// such as some floats, that differ after they were written and read.
    pub(super) fn line(&self) -> Option<String> {
        let line = serde_json::to_string(self).ok()?;
        let read: IndexedPlugin<'_> = serde_json::from_str(&line).ok()?;
        (read.manifest == self.manifest && read.locales == self.locales && read.opened == self.opened).then_some(line)
    }
}

impl StartIndex {
    /// Creates the index in the data folder `data_dir`, whose audit chain has the name `node`. Reads no file.
    pub fn new(data_dir: &Path, key: FileKey, node: String) -> StartIndex {
        StartIndex { path: data_dir.join(START_INDEX_FILE), key, node }
    }

    /// Reads the lines of the file. Returns `None` if the file is missing or invalid.
    pub(super) fn read(&self, runtime: &Runtime, plugins_dir: &Path) -> Option<Vec<String>> {
        let bytes = match read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, "cannot read the start index; reading all plugins");
                }
                return None;
            }
        };
        let lines = bytes.split_at_checked(MAC_BYTES).filter(|(mac, text)| self.key.verifies(text, mac));
        let Some(mut lines) = lines.and_then(|(_, text)| std::str::from_utf8(text).ok()).map(str::lines) else {
            tracing::warn!("the MAC of the start index is wrong; reading all plugins");
            return None;
        };
        let header = lines.next().and_then(|line| serde_json::from_str::<Header>(line).ok());
        if header.is_none() || header != self.header(runtime, plugins_dir) {
            tracing::info!("the start index belongs to another build or folder; reading all plugins");
            return None;
        }
        Some(lines.map(str::to_owned).collect())
    }

    /// Replaces the file. The file may be lost in a power cut, because the next start can recreate it.
    pub(super) fn write(&self, runtime: &Runtime, plugins_dir: &Path, lines: &[String]) -> io::Result<()> {
        let Some(header) = self.header(runtime, plugins_dir) else { return Ok(()) };
        let mut text = serde_json::to_string(&header)?;
        text.push('\n');
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        let beside = self.path.with_extension("new");
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(&self.key.mac(text.as_bytes()))?;
        file.write_all(text.as_bytes())?;
        fs::rename(&beside, &self.path)
    }

    /// Returns the header of an index that this process writes. Returns `None` if the program cannot be identified.
    fn header(&self, runtime: &Runtime, plugins_dir: &Path) -> Option<Header> {
        let build = format!("{} {}", hex::encode(runtime.build_id()), program().ok()?);
        let (node, plugins_dir) = (self.node.clone(), plugins_dir.to_owned());
        Some(Header { format: FORMAT, build, node, plugins_dir })
    }
}

/// Returns the size and the time of the program's file. Two builds of one version have different files, and they may
/// check manifests differently.
fn program() -> io::Result<String> {
    let metadata = fs::metadata(std::env::current_exe()?)?;
    Ok(format!("{} {}.{}", metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(INDEX_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
