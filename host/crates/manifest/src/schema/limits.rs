//! Limits of schemas, which bound the work of a check.

/// The limits that a schema must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaLimits {
    /// The current limits: a schema that exceeds one is rejected.
    Current,
    /// For versions that an earlier release accepted: a schema that exceeds the current limits is used with a warning.
    /// The budget of each check still bounds the work.
    Stored,
}

/// Steps of one check of parameters or of a result: at most a quarter of a second. Parameters of an ordinary tool take
/// about ten thousand, a list of a thousand objects with a hundred members each ten million.
pub const CHECK_STEPS_MAX: u64 = 1 << 28;
/// Steps to check the defaults of all tools while a manifest is loaded: about a second. A hundred tools with ten
/// defaults each take about ten million.
pub const MANIFEST_STEPS_MAX: u64 = 1 << 30;

/// Characters of a text with a `pattern`, unless the schema has a larger `maxLength`: names, ids and addresses are
/// shorter, and a page of prose is about as long.
pub(super) const TEXT_CHARS_MAX: u64 = 4_096;
/// Largest `maxLength` next to a `pattern`: a text of this length and the largest pattern take most of a check.
pub(super) const STATED_CHARS_MAX: u64 = 65_536;
/// Bytes of a compiled pattern: about a hundred ASCII classes. The work of a match grows with it.
pub(super) const PATTERN_BYTES_MAX: usize = 10 * 1024;
/// Bytes of a compiled pattern of a stored version, for which the older limit applies.
pub(super) const PATTERN_BYTES_STORED_MAX: usize = 512 * 1024;
/// Steps for one value of the parameters or of a result: about a millisecond. A hundred branches of `anyOf` with twenty
/// properties each take a tenth of it.
pub(super) const VALUE_STEPS_MAX: u64 = 1 << 20;
