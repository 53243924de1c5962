//! What can be wrong with a component, or with the machine it is to run on.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use monstrum_types::{Digest, PluginName};

/// The cause of an error, without saying from which library it comes.
pub(crate) type Cause = Box<dyn Error + Send + Sync>;

/// The runtime cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The engine refuses this machine.
    #[error("failed to set up the WebAssembly engine")]
    Engine {
        /// Why.
        #[source]
        source: Cause,
    },
    /// The thread that interrupts guests cannot be started.
    #[error("failed to start the thread that interrupts plugins")]
    Ticker {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The threads that compile cannot be started.
    #[error("failed to start the threads that compile components")]
    Threads {
        /// Why.
        #[source]
        source: Cause,
    },
    /// The folder of compiled components cannot be had.
    #[error("failed to prepare the component cache `{}`", path.display())]
    CacheFolder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The folder of compiled components is a symlink, a file, or somebody else's.
    #[error("the component cache `{}` must be a folder of its own, not a symlink or a file", path.display())]
    CacheNotAFolder {
        /// The folder.
        path: PathBuf,
    },
}

/// A component cannot be loaded. Every message names the plugin and the thing.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Over the limit.
    #[error("the component of plugin `{plugin}` has {bytes} bytes, at most {bytes_max} are allowed")]
    TooLarge {
        /// Whose component.
        plugin: PluginName,
        /// Its size.
        bytes: usize,
        /// What is allowed.
        bytes_max: usize,
    },
    /// Not a component at all.
    #[error("the component of plugin `{plugin}` is not a WebAssembly component: {reason}")]
    NotAComponent {
        /// Whose component.
        plugin: PluginName,
        /// What it is instead.
        reason: String,
    },
    /// It wants something that this host does not know.
    #[error("the component of plugin `{plugin}` imports `{import}`, which this host does not know")]
    UnknownImport {
        /// Whose component.
        plugin: PluginName,
        /// What it wants.
        import: String,
    },
    /// It wants something that its manifest does not list.
    #[error(
        "the component of plugin `{plugin}` imports `{import}`, but its manifest does not list `{capability}` under \
         executor.capabilities"
    )]
    CapabilityMissing {
        /// Whose component.
        plugin: PluginName,
        /// What it wants.
        import: String,
        /// What the manifest would have to list.
        capability: &'static str,
    },
    /// It wants something that is part of the contract, but not provided by this version of the host.
    #[error("the component of plugin `{plugin}` imports `{import}`, which this version of the host does not provide")]
    UnsupportedImport {
        /// Whose component.
        plugin: PluginName,
        /// What it wants.
        import: String,
    },
    /// It does not export what every plugin exports.
    #[error("the component of plugin `{plugin}` does not export `{export}`: it is made for another world")]
    WrongWorld {
        /// Whose component.
        plugin: PluginName,
        /// What is not there.
        export: String,
    },
    /// A name is right, but the type behind it is not.
    #[error("the component of plugin `{plugin}` has other types in `{interface}` than this host")]
    WrongTypes {
        /// Whose component.
        plugin: PluginName,
        /// Where they differ.
        interface: String,
        /// How they differ.
        #[source]
        source: Cause,
    },
    /// It is not valid, or over a limit of the engine.
    #[error("failed to compile component `{digest}` of plugin `{plugin}`")]
    Compile {
        /// Whose component.
        plugin: PluginName,
        /// Which.
        digest: Digest,
        /// Why.
        #[source]
        source: Cause,
    },
    /// It takes longer than anybody should wait.
    #[error("compiling the component of plugin `{plugin}` took longer than {} s", limit.as_secs_f64())]
    CompileTimeout {
        /// Whose component.
        plugin: PluginName,
        /// What it had.
        limit: Duration,
    },
    /// It compiles, but does not start.
    #[error("the component of plugin `{plugin}` does not start: {reason}")]
    Trial {
        /// Whose component.
        plugin: PluginName,
        /// How the trial ended.
        reason: String,
    },
}
