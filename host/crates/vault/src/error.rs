//! Errors of keys and sealed records. No message contains key material or plaintext.

use std::path::PathBuf;

/// An error from a key file, a sealed record or the random source.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The key file could not be read.
    #[error("failed to read key file `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The key file could not be created.
    #[error("failed to create key file `{}`", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The key file is a symlink, whose owner could choose the keys.
    #[error("key file `{}` is a symlink: replace it with the file itself", path.display())]
    Symlink {
        /// The file.
        path: PathBuf,
    },
    /// The key file is not a regular file but, for example, a folder, a pipe or a device.
    #[error("key file `{}` is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Other users have access to the key file.
    #[error("key file `{}` is accessible to other users (mode {mode:04o}): run chmod 600 on it", path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// The key file is malformed.
    #[error("key file `{}` is malformed{}: {what}", path.display(), at(*line))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line number, starting at 1; 0 for the whole file.
        line: usize,
        /// A description of the expected content. The message omits the text of the file, because the text may be a
        /// key.
        what: &'static str,
    },
    /// The key file could not be replaced. The existing file is unchanged.
    #[error("failed to write key file `{}`; the file is unchanged", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The key file has reached its size limit, or its newest key has the largest possible version.
    #[error("key file `{}` is full: remove old keys first", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The text of the master keys is malformed.
    #[error("the master keys are malformed{}: {what}", at(*line))]
    MalformedText {
        /// The line number, starting at 1; 0 for the whole text.
        line: usize,
        /// A description of the expected content. The message omits the text itself, because the text may be a key.
        what: &'static str,
    },
    /// The operating system failed to provide random bytes.
    #[error("the operating system failed to provide random bytes")]
    Random(#[source] getrandom::Error),
    /// The text or bytes are not a sealed record.
    #[error("not a sealed record: {what}")]
    NotSealed {
        /// A description of the defect.
        what: &'static str,
    },
    /// The master key that sealed the record is missing.
    #[error("the record was sealed with master key version {version}, which is not among the master keys")]
    UnknownKey {
        /// The version.
        version: u32,
    },
    /// The record was altered, was moved to another row, or was sealed with another key of the same version.
    #[error(
        "decryption with master key version {version} failed: the record was altered, moved to another row, or sealed \
         with another key"
    )]
    Refused {
        /// The version of the master key that was tried.
        version: u32,
    },
    /// The plaintext is too large for a record.
    #[error("the plaintext exceeds the limit of {max} bytes for a sealed record")]
    TooLarge {
        /// The limit.
        max: usize,
    },
}

fn at(line: usize) -> String {
    if line == 0 { String::new() } else { format!(" at line {line}") }
}
