//! The master keys and their file.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::{VaultError, random};

/// The largest size of a key file. A file of this size holds hundreds of keys, so a larger file is not a key file.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// The longest line: a version of ten digits, a space, a key of 64 hex digits and a newline.
const LINE_BYTES_MAX: usize = 10 + 1 + 64 + 1;

/// The keys that seal records, by version. The newest key seals new records, and each key unseals the records that it
/// sealed.
///
/// Each line of the file contains one key: its version and 64 hex digits. If the file is lost, all secrets are lost.
/// Writes are therefore atomic, and only a rotation overwrites an existing file. Only the owner may have access to the
/// file.
#[derive(Clone)]
pub struct MasterKeys {
    keys: BTreeMap<u32, Zeroizing<[u8; 32]>>,
    newest: u32,
}

impl MasterKeys {
    /// Reads the key file, or creates it with a new key.
    pub fn open_or_create(path: &Path) -> Result<Self, VaultError> {
        if let Some(keys) = MasterKeys::open(path)? {
            return Ok(keys);
        }
        match MasterKeys::create(path) {
            // Another process created the file first, so use that file.
            Err(VaultError::Create { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {
                MasterKeys::open(path)?
                    .ok_or(VaultError::Read { path: path.to_owned(), source: ErrorKind::NotFound.into() })
            }
            created => created,
        }
    }

    /// Reads the key file. Returns `None` if the file does not exist.
    pub fn open(path: &Path) -> Result<Option<Self>, VaultError> {
        let failed = |source| VaultError::Read { path: path.to_owned(), source };
        // Do not follow a symlink, and do not block on a named pipe.
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

    /// Creates the key file with a new key. Fails if the file already exists.
    pub fn create(path: &Path) -> Result<Self, VaultError> {
        let keys = MasterKeys { keys: BTreeMap::from([(1, Zeroizing::new(random::<32>()?))]), newest: 1 };
        write_new(path, &keys.to_text()).map_err(|source| VaultError::Create { path: path.to_owned(), source })?;
        Ok(keys)
    }

    /// Parses keys from text in the format of a key file, with newlines or commas between the keys.
    pub fn from_text(text: &str) -> Result<Self, VaultError> {
        let mut lines = Zeroizing::new(Vec::with_capacity(text.len() + 1));
        for line in text.trim().split([',', '\n']) {
            if !lines.is_empty() {
                lines.push(b'\n');
            }
            lines.extend_from_slice(line.trim().as_bytes());
        }
        parse(&lines).map_err(|(line, what)| VaultError::MalformedText { line, what })
    }

    /// Adds a new key to the file as its newest key, and returns all keys. Concurrent calls could lose keys, so the
    /// caller must prevent them.
    pub fn add_fresh(path: &Path) -> Result<Self, VaultError> {
        let mut keys = MasterKeys::open_existing(path)?;
        let full = || VaultError::Full { path: path.to_owned() };
        keys.newest = keys.newest.checked_add(1).ok_or_else(full)?;
        keys.keys.insert(keys.newest, Zeroizing::new(random::<32>()?));
        keys.replace(path)?;
        Ok(keys)
    }

    /// Removes all keys older than the newest key of `verified` from the file, and returns their versions. Fails if the
    /// file does not contain that newest key, because records that this key sealed could then not be unsealed.
    pub fn prune(path: &Path, verified: &MasterKeys) -> Result<Vec<u32>, VaultError> {
        let mut keys = MasterKeys::open_existing(path)?;
        let (version, key) = verified.newest();
        if !keys.key(version).is_some_and(|own| own.ct_eq(key).into()) {
            return Err(VaultError::UnknownKey { version });
        }
        let removed: Vec<u32> = keys.keys.range(..version).map(|(version, _)| *version).collect();
        if !removed.is_empty() {
            keys.keys.retain(|own, _| *own >= version);
            keys.replace(path)?;
        }
        Ok(removed)
    }

    /// Creates a key set that is not stored in a file.
    pub(crate) fn of(keys: BTreeMap<u32, Zeroizing<[u8; 32]>>, newest: u32) -> Self {
        MasterKeys { keys, newest }
    }

    /// Returns the versions of the keys, oldest first.
    pub fn versions(&self) -> impl Iterator<Item = u32> {
        self.keys.keys().copied()
    }

    fn open_existing(path: &Path) -> Result<Self, VaultError> {
        let missing = || VaultError::Read { path: path.to_owned(), source: ErrorKind::NotFound.into() };
        MasterKeys::open(path)?.ok_or_else(missing)
    }

    /// Replaces the file atomically. Preserves its owner, even if another user runs the rotation.
    fn replace(&self, path: &Path) -> Result<(), VaultError> {
        let text = self.to_text();
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(VaultError::Full { path: path.to_owned() });
        }
        write_over(path, &text).map_err(|source| VaultError::Write { path: path.to_owned(), source })
    }

    fn to_text(&self) -> Zeroizing<Vec<u8>> {
        let mut text = Zeroizing::new(Vec::with_capacity(self.keys.len() * LINE_BYTES_MAX));
        for (version, key) in &self.keys {
            let mut digits = Zeroizing::new([0u8; 64]);
            hex::encode_to_slice(key.as_slice(), digits.as_mut_slice()).expect("64 digits hold 32 bytes");
            text.extend_from_slice(version.to_string().as_bytes());
            text.push(b' ');
            text.extend_from_slice(digits.as_slice());
            text.push(b'\n');
        }
        text
    }

    /// Returns the version and the bytes of the newest key, which seals new records.
    pub(crate) fn newest(&self) -> (u32, &[u8; 32]) {
        (self.newest, self.keys.get(&self.newest).expect("the newest key is one of the keys"))
    }

    /// Returns the key of a version.
    pub(crate) fn key(&self, version: u32) -> Option<&[u8; 32]> {
        self.keys.get(&version).map(|key| &**key)
    }
}

/// Writes a draft file and hard-links it to `path`. A crash leaves no incomplete key file, and an existing file is
/// never replaced.
fn write_new(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let draft = draft_of(path, &hex::encode(random::<8>().map_err(std::io::Error::other)?))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| std::fs::hard_link(&draft, path));
    let removed = std::fs::remove_file(&draft);
    written?;
    removed?;
    File::open(folder_of(path))?.sync_all()
}

/// Writes a draft file and renames it to `path`, so that after a crash `path` contains either the old or the new
/// text. The draft has a fixed name, so that the next attempt deletes a draft with keys that a crash left behind.
fn write_over(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let draft = draft_of(path, "new")?;
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let owner = std::fs::metadata(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (owner.uid(), owner.gid()) {
        std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&draft, path)?;
    File::open(folder_of(path))?.sync_all()
}

fn draft_of(path: &Path, suffix: &str) -> std::io::Result<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(ErrorKind::InvalidInput)?);
    name.push(format!(".{suffix}"));
    Ok(path.with_file_name(name))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Parses the keys in `text`. An error contains the number of the malformed line (0 for the whole text) and a
/// message.
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
            return Err((index + 1, "the version occurs more than once"));
        }
    }
    let newest = *keys.keys().next_back().ok_or((0, "it is empty"))?;
    Ok(MasterKeys { keys, newest })
}

fn parse_line(line: &[u8]) -> Result<(u32, Zeroizing<[u8; 32]>), &'static str> {
    const EXPECTED: &str = "expected a version number of at least 1, a space and 64 hex digits";
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
