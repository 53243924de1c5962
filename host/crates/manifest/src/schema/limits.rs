//! The limits of schemas that bound the work of a check.

/// Which limits a schema is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaLimits {
    /// The present limits: a schema that exceeds one is refused.
    Current,
    /// For versions that an earlier release accepted: what exceeds the present limits serves on, with a warning. The
    /// budget of each check bounds the work all the same.
    Stored,
}

/// The steps of one check of parameters or of an answer: at most a quarter of a second. Parameters of an ordinary tool
/// take some ten thousand, a list of a thousand objects with a hundred members each ten million.
pub const CHECK_STEPS_MAX: u64 = 1 << 28;
/// The steps for the defaults of all tools of a manifest, while it is loaded: about a second. A hundred tools with ten
/// defaults each take some ten million.
pub const MANIFEST_STEPS_MAX: u64 = 1 << 30;

/// Characters of a text with a `pattern`, unless the schema states a larger `maxLength`: names, ids and addresses are
/// shorter, and a page of prose is about as long.
pub(super) const TEXT_CHARS_MAX: u64 = 4_096;
/// The largest `maxLength` beside a `pattern`: a text of this length and the largest pattern take most of a check.
pub(super) const STATED_CHARS_MAX: u64 = 65_536;
/// A compiled pattern, in bytes: some hundred ASCII classes. The work of a match grows with it.
pub(super) const PATTERN_BYTES_MAX: usize = 10 * 1024;
/// A compiled pattern of a stored version, in bytes: the limit before patterns had to be small.
pub(super) const PATTERN_BYTES_STORED_MAX: usize = 512 * 1024;
/// The steps that one value of the parameters or of an answer may take: about a millisecond. A hundred branches of
/// `anyOf` with twenty properties each take a tenth of it.
pub(super) const VALUE_STEPS_MAX: u64 = 1 << 20;
