//! What can go wrong with keys and sealed records. No message ever holds key material or plaintext.

use std::path::PathBuf;

/// A key file that cannot be used, or a record that does not open.
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
    /// The key file is a symlink, and whoever owns the link would choose the keys.
    #[error("key file `{}` is a symlink: put the file itself there", path.display())]
    Symlink {
        /// The file.
        path: PathBuf,
    },
    /// The key file is a folder, a pipe or a device.
    #[error("key file `{}` is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Group or others may do something with the key file.
    #[error("key file `{}` is open to others (mode {mode:04o}): run chmod 600 on it", path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The key file does not say what it should.
    #[error("key file `{}` is malformed{}: {what}", path.display(), at(*line))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 for the whole file.
        line: usize,
        /// What was expected, without what was found: it may be a key.
        what: &'static str,
    },
    /// The key file could not be written anew. It is as it was.
    #[error("failed to write key file `{}`; it is as it was", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The key file takes no more keys.
    #[error("key file `{}` takes no more keys: remove old ones first", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Keys that were given as text do not say what they should.
    #[error("the master keys are malformed{}: {what}", at(*line))]
    MalformedText {
        /// The line, from 1; 0 for the whole text.
        line: usize,
        /// What was expected, without what was found: it may be a key.
        what: &'static str,
    },
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes")]
    Random(#[source] getrandom::Error),
    /// The text or bytes are no sealed record.
    #[error("not a sealed record: {what}")]
    NotSealed {
        /// What was expected.
        what: &'static str,
    },
    /// The master key that sealed the record is not among those at hand.
    #[error("the record was sealed with master key version {version}, which is not among the master keys")]
    UnknownKey {
        /// The version.
        version: u32,
    },
    /// The record was altered, stands in another row, or was sealed with another key of the same version.
    #[error(
        "the record does not open with master key version {version}: it was altered, moved to another row, \
         or sealed with another key"
    )]
    Refused {
        /// The version of the master key that was tried.
        version: u32,
    },
    /// The plaintext is larger than a record may be.
    #[error("a sealed record holds at most {max} bytes")]
    TooLarge {
        /// The limit.
        max: usize,
    },
}

fn at(line: usize) -> String {
    if line == 0 { String::new() } else { format!(" at line {line}") }
}
