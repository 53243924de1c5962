//! The user's key for signing packages. It is created on first use and only its owner can read it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use monstrum_package::SigningKey;
use zeroize::Zeroizing;

use super::super::failure::Failure;
use super::super::output;
use crate::config;

/// The maximum size of a key file. The text of a key is far shorter.
const KEY_FILE_BYTES_MAX: u64 = 4096;
const HINT: &str = "--key-file names another file";

/// Reads or creates the key in `path` or, without a path, in the user's settings folder.
pub(super) fn key(path: Option<&Path>) -> Result<SigningKey, Failure> {
    let path = path.map(Path::to_owned).or_else(default_path).ok_or_else(|| {
        Failure::new("there is no place for a signing key: this user has no home", "name a file with --key-file")
    })?;
    match File::open(&path) {
        Ok(file) => read(file, &path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => make(&path),
        Err(error) => Err(Failure::of(format!("cannot read {}", path.display()), &error, HINT)),
    }
}

fn default_path() -> Option<PathBuf> {
    Some(config::user_config_dir()?.join("monstrum/signing.key"))
}

fn read(file: File, path: &Path) -> Result<SigningKey, Failure> {
    let failed = |error: &std::io::Error| Failure::of(format!("cannot read {}", path.display()), error, HINT);
    let mode = file.metadata().map_err(|error| failed(&error))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let message = format!("the signing key {} may be used by others (mode {mode:03o})", path.display());
        let hint = format!("whoever has read it can sign as you; make a new one, or: chmod 600 {}", path.display());
        return Err(Failure::new(message, hint));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| failed(&error))?;
    let key = SigningKey::from_text(&text);
    key.map_err(|error| Failure::of(format!("{} holds no signing key", path.display()), &error, HINT))
}

fn make(path: &Path) -> Result<SigningKey, Failure> {
    let failed = |error: &std::io::Error| Failure::of(format!("cannot write {}", path.display()), error, HINT);
    let key = SigningKey::generate()
        .map_err(|error| Failure::of("no signing key can be made", &error, "is /dev/urandom there?"))?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| failed(&error))?;
    }
    // This must not overwrite a key that another process has created meanwhile.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(key.to_text().expose().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    written.map_err(|error| failed(&error))?;
    output::note(&format!(
        "made a signing key in {}; keep it, and keep it to yourself",
        output::plain(&path.display().to_string())
    ));
    Ok(key)
}
