//! The master keys and the file in which they live.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

use crate::{VaultError, random};

/// Hundreds of keys fit; a file that is larger is something else.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The keys under which records are sealed, by version. The newest seals, all of them unseal.
///
/// The file holds one key a line: its version and 64 hex digits. Losing it loses every secret, so it is written whole
/// or not at all, and never over an existing one. Only its owner may have access to it.
pub struct MasterKeys {
    keys: BTreeMap<u32, Zeroizing<[u8; 32]>>,
    newest: u32,
}

impl MasterKeys {
    /// Reads the key file, or makes one with a fresh key where there is none.
    pub fn open_or_create(path: &Path) -> Result<Self, VaultError> {
        if let Some(keys) = MasterKeys::open(path)? {
            return Ok(keys);
        }
        match MasterKeys::create(path) {
            // Someone was faster: theirs counts.
            Err(VaultError::Create { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {
                MasterKeys::open(path)?
                    .ok_or(VaultError::Read { path: path.to_owned(), source: ErrorKind::NotFound.into() })
            }
            created => created,
        }
    }

    /// Reads the key file; None where there is none.
    pub fn open(path: &Path) -> Result<Option<Self>, VaultError> {
        let failed = |source| VaultError::Read { path: path.to_owned(), source };
        // Never follows a link and never waits on a pipe.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(source) if source.kind() == ErrorKind::NotFound => return Ok(None),
            Err(_) if path.is_symlink() => return Err(VaultError::Symlink { path: path.to_owned() }),
            Err(source) => return Err(failed(source)),
        };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(VaultError::NotAFile { path: path.to_owned() });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(VaultError::Permissions { path: path.to_owned(), mode });
        }
        let mut text = Zeroizing::new(Vec::with_capacity(4096));
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
        parse(&text).map(Some).map_err(|(line, what)| VaultError::Malformed { path: path.to_owned(), line, what })
    }

    /// Makes the key file with one fresh key; fails where there is one already.
    pub fn create(path: &Path) -> Result<Self, VaultError> {
        let key = Zeroizing::new(random::<32>()?);
        write_new(path, &key).map_err(|source| VaultError::Create { path: path.to_owned(), source })?;
        Ok(MasterKeys { keys: BTreeMap::from([(1, key)]), newest: 1 })
    }

    /// The key that seals, with its version.
    pub(crate) fn newest(&self) -> (u32, &[u8; 32]) {
        (self.newest, self.keys.get(&self.newest).expect("the newest key is one of the keys"))
    }

    /// The key of a version.
    pub(crate) fn key(&self, version: u32) -> Option<&[u8; 32]> {
        self.keys.get(&version).map(|key| &**key)
    }
}

/// Writes the file under another name first and links it into place: a crash leaves no half of a key file, and a file
/// that is there already is never replaced.
fn write_new(path: &Path, key: &[u8; 32]) -> std::io::Result<()> {
    let mut digits = Zeroizing::new([0u8; 64]);
    hex::encode_to_slice(key, digits.as_mut_slice()).expect("64 digits hold 32 bytes");
    let draft = draft_of(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file
        .write_all(b"1 ")
        .and_then(|()| file.write_all(digits.as_slice()))
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::hard_link(&draft, path));
    let removed = std::fs::remove_file(&draft);
    written?;
    removed?;
    File::open(folder_of(path))?.sync_all()
}

fn draft_of(path: &Path) -> std::io::Result<PathBuf> {
    let suffix = random::<8>().map_err(std::io::Error::other)?;
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(ErrorKind::InvalidInput)?);
    name.push(format!(".{}", hex::encode(suffix)));
    Ok(path.with_file_name(name))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The keys in `text`, or the line that is wrong and what was expected there.
fn parse(text: &[u8]) -> Result<MasterKeys, (usize, &'static str)> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err((0, "it is larger than 64 KiB"));
    }
    let mut keys = BTreeMap::new();
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    if body.is_empty() {
        return Err((0, "it is empty"));
    }
    for (index, line) in body.split(|byte| *byte == b'\n').enumerate() {
        let (version, key) = parse_line(line).map_err(|what| (index + 1, what))?;
        if keys.insert(version, key).is_some() {
            return Err((index + 1, "the version stands there twice"));
        }
    }
    let newest = *keys.keys().next_back().ok_or((0, "it is empty"))?;
    Ok(MasterKeys { keys, newest })
}

fn parse_line(line: &[u8]) -> Result<(u32, Zeroizing<[u8; 32]>), &'static str> {
    const EXPECTED: &str = "expected a version from 1, a space and 64 hex digits";
    let space = line.iter().position(|byte| *byte == b' ').ok_or(EXPECTED)?;
    let (version, digits) = (&line[..space], &line[space + 1..]);
    if version.first().is_none_or(|first| !(b'1'..=b'9').contains(first)) {
        return Err(EXPECTED);
    }
    let version = std::str::from_utf8(version).ok().and_then(|text| text.parse().ok()).ok_or(EXPECTED)?;
    let mut key = Zeroizing::new([0; 32]);
    hex::decode_to_slice(digits, key.as_mut_slice()).map_err(|_| EXPECTED)?;
    Ok((version, key))
}
