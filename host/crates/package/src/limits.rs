//! The limits of a package and of a registry's index. Those that the plugin contract has are marked so.

/// Files of a package (plugin-contract).
pub const FILES_MAX: usize = 512;

/// Entries of an archive: its files, and as many folders.
pub const ENTRIES_MAX: usize = 2 * FILES_MAX;

/// All files of a package together, unpacked (plugin-contract).
pub const UNPACKED_BYTES_MAX: usize = 64 << 20;

/// One file, unpacked: the component is the largest that there can be (plugin-contract).
pub const FILE_BYTES_MAX: usize = 32 << 20;

/// The manifest, unpacked (plugin-contract).
pub const MANIFEST_BYTES_MAX: usize = 256 << 10;

/// A package as a file: what could not be compressed at all, and room for the archive's own records.
pub const PACKAGE_BYTES_MAX: usize = UNPACKED_BYTES_MAX + (1 << 20);

/// The path of one file: longer than any that the contract knows.
pub(crate) const PATH_BYTES_MAX: usize = 256;

/// How deep folders lie in each other; the contract needs one.
pub(crate) const DEPTH_MAX: usize = 8;

/// A signature file holds five short texts.
pub const SIGNATURE_BYTES_MAX: usize = 4 << 10;

/// The index of a registry: what egress reads, and room for every entry that is allowed.
pub const INDEX_BYTES_MAX: usize = 16 << 20;

/// Packages in one index: a thousand plugins with ten versions each.
pub const INDEX_ENTRIES_MAX: usize = 10_000;

/// The description of one package in an index.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 1024;

/// Author, license and one tag of an index's entry, in bytes: as much as a list shows in a line.
pub const METADATA_BYTES_MAX: usize = 256;

/// Tags of an index's entry: as many as a manifest may have.
pub const TAGS_MAX: usize = 64;
