//! Limits of schemas, which bound the work of a check.

/// The limits that a schema must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaLimits {
    /// The current limits. A schema that exceeds one of these limits is rejected.
    Current,
    /// The limits for plugin versions that an earlier release accepted. The host uses a schema that exceeds the current
    /// limits, with a warning. The budget of each check still bounds the work.
    Stored,
}

/// Maximum number of steps for one check of parameters or of a result: at most a quarter of a second. Parameters of an
/// ordinary tool take about ten thousand steps. A list of a thousand objects with a hundred members each takes ten
/// million.
pub const CHECK_STEPS_MAX: u64 = 1 << 28;
/// Maximum number of steps to check the defaults of all tools while a manifest is loaded: about one second. A hundred
/// tools with ten defaults each take about ten million steps.
pub const MANIFEST_STEPS_MAX: u64 = 1 << 30;

/// Maximum length, in characters, of a text with a `pattern`, unless the schema has a larger `maxLength`. Names, ids
/// and addresses are shorter, and a page of prose is about this long.
pub(super) const TEXT_CHARS_MAX: u64 = 4_096;
/// Maximum `maxLength` next to a `pattern`. Matching a text of this length with the largest pattern uses most of the
/// budget of a check.
pub(super) const STATED_CHARS_MAX: u64 = 65_536;
/// Maximum size of a compiled pattern in bytes: about a hundred ASCII classes. The work of a match grows with this
/// size.
pub(super) const PATTERN_BYTES_MAX: usize = 10 * 1024;
/// Maximum size, in bytes, of a compiled pattern in a stored version, to which the older limit applies.
pub(super) const PATTERN_BYTES_STORED_MAX: usize = 512 * 1024;
/// Maximum number of steps for one value of the parameters or of a result: about one millisecond. A hundred branches of
/// `anyOf` with twenty properties each take a tenth of this limit.
pub(super) const VALUE_STEPS_MAX: u64 = 1 << 20;
