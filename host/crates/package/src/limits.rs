//! The limits of a package and of a registry index.

/// The maximum number of files in a package.
pub const FILES_MAX: usize = 512;

/// The maximum number of entries in an archive: its files, plus the same number of folders.
pub const ENTRIES_MAX: usize = 2 * FILES_MAX;

/// The maximum total unpacked size of a package, in bytes.
pub const UNPACKED_BYTES_MAX: usize = 64 << 20;

/// The maximum unpacked size of one file, in bytes. The largest component that the host accepts does not exceed this
/// limit.
pub const FILE_BYTES_MAX: usize = 32 << 20;

/// The maximum unpacked size of the manifest, in bytes.
pub const MANIFEST_BYTES_MAX: usize = 256 << 10;

/// The maximum size of a package, in bytes. A package of incompressible files, including its headers, fits within this
/// limit.
pub const PACKAGE_BYTES_MAX: usize = UNPACKED_BYTES_MAX + (1 << 20);

/// The maximum length of a path, in bytes. No plugin needs a longer path.
pub(crate) const PATH_BYTES_MAX: usize = 256;

/// The maximum nesting depth of folders. A plugin needs only one level, for its locales.
pub(crate) const DEPTH_MAX: usize = 8;

/// The maximum size of a signature file, in bytes. The file has six short fields.
pub const SIGNATURE_BYTES_MAX: usize = 4 << 10;

/// The maximum size of a registry index, in bytes.
pub const INDEX_BYTES_MAX: usize = 16 << 20;

/// The maximum number of packages in an index, which allows a thousand plugins with ten versions each.
pub const INDEX_ENTRIES_MAX: usize = 10_000;

/// The maximum length of a package's description in an index, in bytes.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 1024;

/// The maximum length of the author, the license and each tag of an index entry, in bytes, so that each fits on one
/// line of a list.
pub const METADATA_BYTES_MAX: usize = 256;

/// The maximum number of tags of an index entry, which equals the maximum for a manifest.
pub const TAGS_MAX: usize = 64;
