//! Errors of components, and of the runtime that runs them.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use monstrum_types::{Digest, PluginName};

/// The source of an error. The type hides which library caused the error.
pub(crate) type Cause = Box<dyn Error + Send + Sync>;

/// The reason why the runtime cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The engine does not support this machine.
    #[error("failed to set up the WebAssembly engine")]
    Engine {
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The thread that interrupts guests did not start.
    #[error("failed to start the thread that interrupts plugins")]
    Ticker {
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The compiler threads did not start.
    #[error("failed to start the threads that compile components")]
    Threads {
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The folder of compiled components cannot be used.
    #[error("failed to prepare the component cache `{}`", path.display())]
    CacheFolder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The folder of compiled components is a symlink or a file.
    #[error("the component cache `{}` must be a folder, not a symlink or a file", path.display())]
    CacheNotAFolder {
        /// The folder.
        path: PathBuf,
    },
}

/// The reason why a component cannot be loaded. All messages name the plugin.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The component is too large.
    #[error("the component of plugin `{plugin}` has {bytes} bytes; at most {bytes_max} are allowed")]
    TooLarge {
        /// The plugin.
        plugin: PluginName,
        /// The size of the component.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The bytes are not a component.
    #[error("the component of plugin `{plugin}` is not a WebAssembly component: {reason}")]
    NotAComponent {
        /// The plugin.
        plugin: PluginName,
        /// The reason.
        reason: String,
    },
    /// The component has an unknown import.
    #[error("the component of plugin `{plugin}` imports `{import}`, which this host does not provide")]
    UnknownImport {
        /// The plugin.
        plugin: PluginName,
        /// The import.
        import: String,
    },
    /// The manifest does not list the capability for an import.
    #[error(
        "the component of plugin `{plugin}` imports `{import}`, but its manifest does not list `{capability}` under \
         executor.capabilities"
    )]
    CapabilityMissing {
        /// The plugin.
        plugin: PluginName,
        /// The import.
        import: String,
        /// The missing capability.
        capability: &'static str,
    },
    /// The component lacks a required export.
    #[error("the component of plugin `{plugin}` does not export `{export}`: it was built for a different WIT world")]
    WrongWorld {
        /// The plugin.
        plugin: PluginName,
        /// The missing export.
        export: String,
    },
    /// An import or export has the wrong type.
    #[error("the component of plugin `{plugin}` and this host define different types for `{interface}`")]
    WrongTypes {
        /// The plugin.
        plugin: PluginName,
        /// The interface with the wrong types.
        interface: String,
        /// The difference.
        #[source]
        source: Cause,
    },
    /// The component is invalid or exceeds a limit of the engine.
    #[error("failed to compile component `{digest}` of plugin `{plugin}`")]
    Compile {
        /// The plugin.
        plugin: PluginName,
        /// The digest of the component.
        digest: Digest,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The compilation exceeded its time limit.
    #[error("compiling the component of plugin `{plugin}` took longer than {} s", limit.as_secs_f64())]
    CompileTimeout {
        /// The plugin.
        plugin: PluginName,
        /// The time limit.
        limit: Duration,
    },
    /// The bytes of the component are not those that were loaded before.
    #[error(
        "the component of plugin `{plugin}` has the digest `{found}` in place of `{digest}`; install the plugin again"
    )]
    OtherDigest {
        /// The plugin.
        plugin: PluginName,
        /// The expected digest.
        digest: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// The component compiles, but does not start.
    #[error("the component of plugin `{plugin}` does not start: {reason}")]
    Trial {
        /// The plugin.
        plugin: PluginName,
        /// The reason.
        reason: String,
    },
}
