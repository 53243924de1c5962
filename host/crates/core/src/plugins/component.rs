//! The component of a plugin, which is loaded together with the plugin or at its first use.
//!
//! A component that an earlier start has checked is loaded at its first use. Only the bytes with the recorded digest are
//! loaded. If the bytes in the plugin's folder have another digest, the component does not load, and all calls of the
//! plugin fail.

use std::path::PathBuf;
use std::sync::Arc;

use monstrum_runtime::{Component, KnownComponent, Runtime};
use monstrum_store::Store;
use monstrum_types::{Digest, with_causes};
use tokio::sync::{OnceCell, Semaphore};

use crate::beside;
use crate::plugins::LoadError;
use crate::plugins::folder::{COMPONENT_BYTES_MAX, FileId, PluginFolder};

/// The maximum number of components that calls load at the same time. Loading a component takes processor time only, so
/// more loads would not end earlier.
const LOADS_MAX: usize = 4;

static LOADS: Semaphore = Semaphore::const_new(LOADS_MAX);

/// The component of a plugin.
pub struct PluginComponent {
    digest: Digest,
    imports: Vec<String>,
    functions: Vec<String>,
    /// The component, or the reason why it cannot be loaded.
    loaded: OnceCell<Result<Component, Arc<LoadError>>>,
    /// The source of a component that is loaded at its first use.
    source: Option<Source>,
}

/// The result of an earlier load, and the place of the bytes.
pub(super) struct Source {
    pub(super) runtime: Runtime,
    pub(super) store: Store,
    pub(super) known: KnownComponent,
    pub(super) imports: Vec<String>,
    pub(super) memory_bytes: u64,
    pub(super) manifest_digest: Digest,
    /// The plugin's folder.
    pub(super) folder: PathBuf,
    /// The path of the component in the folder.
    pub(super) file: String,
    /// The identity of the file when its digest was computed.
    pub(super) id: FileId,
}

/// The threads on which a component is loaded.
#[derive(Clone, Copy)]
enum Threads {
    /// Threads of normal priority, because a call waits.
    Serving,
    /// Threads of low priority.
    Beside,
}

/// What the file in the folder contains.
enum Found {
    Loaded(Component),
    /// The component must be compiled.
    NotCompiled(Arc<Vec<u8>>),
    /// The folder contains another version by now.
    OtherFile,
}

impl PluginComponent {
    /// Returns a component that is loaded.
    pub(super) fn loaded(component: Component) -> PluginComponent {
        PluginComponent {
            digest: component.digest().clone(),
            imports: component.imports().to_vec(),
            functions: component.functions().to_vec(),
            loaded: OnceCell::new_with(Some(Ok(component))),
            source: None,
        }
    }

    /// Returns a component that is loaded at its first use.
    pub(super) fn known(source: Source) -> PluginComponent {
        PluginComponent {
            digest: source.known.digest.clone(),
            imports: source.imports.clone(),
            functions: source.known.functions.clone(),
            loaded: OnceCell::new(),
            source: Some(source),
        }
    }

    /// Returns the SHA-256 of the component's bytes.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Returns the interfaces that the component imports.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// Returns the names of the functions that the component exports besides its tools.
    pub fn functions(&self) -> &[String] {
        &self.functions
    }

    /// Returns the component if it is loaded.
    pub fn ready(&self) -> Option<&Component> {
        self.loaded.get()?.as_ref().ok()
    }

    /// Returns the reason why the component cannot be loaded, if a load has failed.
    pub fn failure(&self) -> Option<&LoadError> {
        self.loaded.get()?.as_ref().err().map(Arc::as_ref)
    }

    /// Returns the component, and loads it at its first use. All callers share one load, and a component that cannot be
    /// loaded is not loaded again. After an error of the database, the next caller tries again.
    pub async fn load(&self) -> Result<&Component, Arc<LoadError>> {
        if let Some(loaded) = self.loaded.get() {
            return loaded.as_ref().map_err(Arc::clone);
        }
        let _place = LOADS.acquire().await.expect("the semaphore is never closed");
        self.load_on(Threads::Serving).await
    }

    /// Loads the component on threads of low priority, if it is not loaded yet.
    pub(super) async fn load_beside(&self) -> Result<(), Arc<LoadError>> {
        self.load_on(Threads::Beside).await.map(|_| ())
    }

    async fn load_on(&self, threads: Threads) -> Result<&Component, Arc<LoadError>> {
        let load = async || {
            let source = self.source.as_ref().expect("a component without a source is loaded from the beginning");
            match source.load(threads).await {
                Ok(component) => Ok(Ok(component)),
                Err(error) => {
                    let plugin = &source.known.plugin;
                    tracing::error!(plugin.name = %plugin, error = %with_causes(&error), "failed to load a component");
                    let error = Arc::new(error);
                    // Another attempt may succeed after an error of the database, but after no other error.
                    if matches!(*error, LoadError::Store(_)) { Err(error) } else { Ok(Err(error)) }
                }
            }
        };
        self.loaded.get_or_try_init(load).await?.as_ref().map_err(Arc::clone)
    }
}

impl Source {
    async fn load(&self, threads: Threads) -> Result<Component, LoadError> {
        let (folder, file, id) = (self.folder.clone(), self.file.clone(), self.id);
        let (runtime, known) = (self.runtime.clone(), self.known.clone());
        let found = threads.run(move || {
            // A folder that cannot be read is treated as changed. The watch reports it.
            let bytes = PluginFolder::open(&folder).and_then(|folder| folder.bytes_of(&file, id, COMPONENT_BYTES_MAX));
            let Ok(Some(bytes)) = bytes else { return Ok(Found::OtherFile) };
            cached(&runtime, &known, Arc::new(bytes))
        });
        let found = match found.await?? {
            Found::OtherFile => {
                let bytes = self.stored().await?;
                let (runtime, known) = (self.runtime.clone(), self.known.clone());
                threads.run(move || cached(&runtime, &known, bytes)).await??
            }
            found => found,
        };
        match found {
            Found::Loaded(component) => Ok(component),
            Found::NotCompiled(bytes) => {
                let KnownComponent { plugin, capabilities, .. } = &self.known;
                let bytes = Arc::unwrap_or_clone(bytes);
                Ok(self.runtime.load(plugin, bytes, capabilities, self.memory_bytes).await?)
            }
            Found::OtherFile => Err(self.altered()),
        }
    }

    /// Reads the bytes from the database, because the folder contains another version by now, which does not serve yet.
    async fn stored(&self) -> Result<Arc<Vec<u8>>, LoadError> {
        let KnownComponent { plugin, digest, .. } = &self.known;
        let stored = self.store.plugin_version(plugin, &self.manifest_digest, digest).await?;
        stored.map(|stored| Arc::new(stored.component)).ok_or_else(|| self.altered())
    }

    fn altered(&self) -> LoadError {
        LoadError::Altered { plugin: self.known.plugin.clone() }
    }
}

/// Loads the compiled form of these bytes from the cache. Fails if their digest is not the known digest.
fn cached(runtime: &Runtime, known: &KnownComponent, bytes: Arc<Vec<u8>>) -> Result<Found, LoadError> {
    Ok(match runtime.load_cached(known, &bytes)? {
        Some(component) => Found::Loaded(component),
        None => Found::NotCompiled(bytes),
    })
}

impl Threads {
    async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, LoadError> {
        let done = match self {
            Threads::Serving => tokio::task::spawn_blocking(work).await,
            Threads::Beside => beside::spawn(work).await,
        };
        done.map_err(|_| LoadError::Unexpected)
    }
}
