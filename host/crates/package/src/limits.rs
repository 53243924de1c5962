//! The limits of a package and of a registry's index.

/// Files in a package.
pub const FILES_MAX: usize = 512;

/// Entries in an archive: its files, and as many folders.
pub const ENTRIES_MAX: usize = 2 * FILES_MAX;

/// Total unpacked size of a package.
pub const UNPACKED_BYTES_MAX: usize = 64 << 20;

/// Unpacked size of one file: room for the largest component that the host loads.
pub const FILE_BYTES_MAX: usize = 32 << 20;

/// Unpacked size of the manifest.
pub const MANIFEST_BYTES_MAX: usize = 256 << 10;

/// Size of a package: incompressible content, plus the archive's own records.
pub const PACKAGE_BYTES_MAX: usize = UNPACKED_BYTES_MAX + (1 << 20);

/// Length of a path: longer than any path that a plugin needs.
pub(crate) const PATH_BYTES_MAX: usize = 256;

/// Nesting of folders; a plugin needs one level, for its locales.
pub(crate) const DEPTH_MAX: usize = 8;

/// Size of a signature file, which has six short fields.
pub const SIGNATURE_BYTES_MAX: usize = 4 << 10;

/// Size of a registry's index.
pub const INDEX_BYTES_MAX: usize = 16 << 20;

/// Packages in an index: a thousand plugins with ten versions each.
pub const INDEX_ENTRIES_MAX: usize = 10_000;

/// Length of a package's description in an index.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 1024;

/// Length in bytes of the author, the license and each tag of an index entry: what fits in a line of a list.
pub const METADATA_BYTES_MAX: usize = 256;

/// Tags of an index entry: as many as a manifest may have.
pub const TAGS_MAX: usize = 64;
