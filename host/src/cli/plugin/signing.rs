//! The user's key for signing packages. The first use creates the key file, which only its owner can read.

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
const HINT: &str = "choose another file with --key-file";

/// Reads or creates the key in `path` or, without a path, in the user's settings folder.
pub(super) fn key(path: Option<&Path>) -> Result<SigningKey, Failure> {
    let path = path.map(Path::to_owned).or_else(default_path).ok_or_else(|| {
        Failure::new("the signing key has no default path: this user has no home directory", "set --key-file")
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
        let message = format!("the signing key {} is accessible to other users (mode {mode:03o})", path.display());
        let hint = format!(
            "other users who read the key can sign as you; create a new key, or run: chmod 600 {}",
            path.display()
        );
        return Err(Failure::new(message, hint));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| failed(&error))?;
    let key = SigningKey::from_text(&text);
    key.map_err(|error| Failure::of(format!("{} contains no signing key", path.display()), &error, HINT))
}

fn make(path: &Path) -> Result<SigningKey, Failure> {
    let failed = |error: &std::io::Error| Failure::of(format!("cannot write {}", path.display()), error, HINT);
    let key = SigningKey::generate()
        .map_err(|error| Failure::of("cannot create a signing key", &error, "check that /dev/urandom is readable"))?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| failed(&error))?;
    }
    // This must not overwrite a key that another process has created at the same time.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(key.to_text().expose().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    written.map_err(|error| failed(&error))?;
    output::note(&format!(
        "created a signing key in {}; back it up and keep it secret",
        output::plain(&path.display().to_string())
    ));
    Ok(key)
}
