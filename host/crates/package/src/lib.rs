//! Plugin packages: `.mst` archives, their signatures, and the index of a registry.
//!
//! A package is untrusted input, both before and after its signature is verified. [`Archive`] unpacks it in memory,
//! enforces the limits on the actual output, and accepts only archives that all ZIP readers interpret alike. This
//! crate does not access the disk, the network or a database. The host decides which signers are trusted.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod archive;
mod file_name;
mod index;
mod limits;
mod pack;
mod signature;

pub use archive::{Archive, ArchiveError, EntryError, NameError};
pub use file_name::{SIGNATURE_SUFFIX, SUFFIX, claimed_by_name, package_file, signature_file};
pub use index::{Index, IndexEntry, IndexError, Listing, ResolveError};
pub use limits::{
    ENTRIES_MAX, FILE_BYTES_MAX, FILES_MAX, INDEX_BYTES_MAX, INDEX_ENTRIES_MAX, MANIFEST_BYTES_MAX, METADATA_BYTES_MAX,
    PACKAGE_BYTES_MAX, SIGNATURE_BYTES_MAX, TAGS_MAX, UNPACKED_BYTES_MAX,
};
pub use pack::{PackError, pack};
pub use signature::{PackageSignature, PublicKey, SignatureError, SigningKey, digest};

/// The file name of the manifest in a package.
pub const MANIFEST: &str = "monstrum.yaml";
