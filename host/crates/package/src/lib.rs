//! Packages of plugins: `.mst` archives, their signatures, and the index of a registry.
//!
//! A package is hostile input until its signature has been checked, and hardly less so after: [`Archive`] reads bytes
//! into memory under limits on what really comes out, and takes only archives that every reader understands alike.
//! Nothing here touches the disk, the network or a database; who is trusted is decided by the host.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod archive;
mod file_name;
mod index;
mod limits;
mod pack;
mod signature;

pub use archive::{Archive, ArchiveError, Fault, NameFault};
pub use file_name::{SIGNATURE_SUFFIX, SUFFIX, claimed_by_name, package_file, signature_file};
pub use index::{Index, IndexEntry, IndexError, Listing, ResolveError};
pub use limits::{
    ENTRIES_MAX, FILE_BYTES_MAX, FILES_MAX, INDEX_BYTES_MAX, INDEX_ENTRIES_MAX, MANIFEST_BYTES_MAX, METADATA_BYTES_MAX,
    PACKAGE_BYTES_MAX, SIGNATURE_BYTES_MAX, TAGS_MAX, UNPACKED_BYTES_MAX,
};
pub use pack::{PackError, pack};
pub use signature::{PackageSignature, PublicKey, SignatureError, SigningKey, digest};

/// The manifest's name in a package.
pub const MANIFEST: &str = "monstrum.yaml";
