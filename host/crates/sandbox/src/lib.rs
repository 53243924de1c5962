//! The interface of sandbox providers. A sandbox is a Linux machine for one conversation.
//!
//! All other crates use only [`SandboxProvider`]. Providers differ only in their [`Capabilities`]. The caller decides
//! which conversation owns a sandbox, and when the sandbox is stopped or deleted.

#[cfg(all(feature = "contract", target_os = "linux"))]
pub mod contract;
mod error;
mod exec;
mod files;
mod provider;

pub use error::{SandboxError, Unavailable};
pub use exec::{
    Chunk, EXEC_TIMEOUT_DEFAULT, EXEC_TIMEOUT_MAX, ExecOutput, ExecRequest, Feed, OUTPUT_BYTES_MAX, Output, Stream,
    Termination,
};
pub use files::{
    ArchiveLimits, ByteStream, EntryKind, FILE_BYTES_MAX, FileEntry, LIST_ENTRIES_MAX, PATH_BYTES_MAX,
    SPARSE_BYTES_MAX, WORKSPACE,
};
pub use provider::{
    Capabilities, Degraded, Ensured, Inspection, Limits, Network, SandboxName, SandboxProvider, Spec, State,
};
