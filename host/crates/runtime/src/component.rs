//! From bytes to a component that is ready to be called.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use monstrum_manifest::Capability;
use monstrum_types::{Digest, Failure, FailureCode, HttpRequest, HttpResponse, PluginName};
use sha2::{Digest as _, Sha256};
use wasmtime::Store;
use wasmtime::component::InstancePre;

use crate::bindings::{Guest, GuestIndices};
use crate::cache::Cache;
use crate::call;
use crate::engine::Engine;
use crate::error::{Cause, LoadError};
use crate::host::HostCalls;
use crate::imports::{self, EXECUTOR};
use crate::limits::{CallLimits, MEMORY_BYTES_MAX};
use crate::store::State;

/// How long a component may take to start at load. An interpreter takes milliseconds.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A component that has been checked, compiled and tried out. Cheap to clone; every call has an instance of its own.
#[derive(Clone)]
pub struct Component(Arc<Loaded>);

struct Loaded {
    engine: Arc<Engine>,
    digest: Digest,
    imports: Vec<String>,
    instance: InstancePre<State>,
    exports: GuestIndices,
}

impl Component {
    /// The SHA-256 of the component as it was given.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.0.digest
    }

    /// The interfaces that the component imports.
    #[must_use]
    pub fn imports(&self) -> &[String] {
        &self.0.imports
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// A fresh instance in `store`.
    pub(crate) async fn start(&self, store: &mut Store<State>) -> Result<Guest, StartError> {
        let instance = self.0.instance.instantiate_async(&mut *store).await.map_err(StartError::Instance)?;
        self.0.exports.load(store, &instance).map_err(StartError::Exports)
    }
}

impl std::fmt::Debug for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Component").field(&self.0.digest).finish()
    }
}

/// Why there is no instance.
pub(crate) enum StartError {
    /// The component's own start failed, or a limit was reached.
    Instance(wasmtime::Error),
    /// The types of its exports are not those of the contract.
    Exports(wasmtime::Error),
}

/// [`crate::Runtime::load`].
pub(crate) async fn load(
    engine: &Arc<Engine>,
    cache: &Arc<Cache>,
    plugin: &PluginName,
    wasm: Vec<u8>,
    capabilities: &[Capability],
) -> Result<Component, LoadError> {
    let work = Work {
        engine: Arc::clone(engine),
        cache: Arc::clone(cache),
        plugin: plugin.clone(),
        capabilities: capabilities.to_vec(),
    };
    let place = Arc::clone(&engine.compilations).acquire_owned().await.expect("nobody closes this semaphore");
    let prepared = tokio::task::spawn_blocking(move || {
        // The place is the work's, which goes on when the one who asked for it goes away.
        let _place = place;
        work.prepare(&wasm)
    })
    .await;
    let component = match prepared {
        Ok(component) => component?,
        // A panic of the compiler is the component's fault as far as anybody can tell.
        Err(error) => {
            tracing::error!(plugin.name = %plugin, %error, "compiling a component failed in an unforeseen way");
            let reason = "it cannot be compiled".to_owned();
            return Err(LoadError::NotAComponent { plugin: plugin.clone(), reason });
        }
    };
    component.try_out(plugin).await?;
    Ok(component)
}

/// The part of loading that computes and reads files.
struct Work {
    engine: Arc<Engine>,
    cache: Arc<Cache>,
    plugin: PluginName,
    capabilities: Vec<Capability>,
}

impl Work {
    fn prepare(&self, wasm: &[u8]) -> Result<Component, LoadError> {
        let imports = imports::check(&self.plugin, wasm, &self.capabilities)?;
        let digest = digest_of(wasm);
        let compiled = self.compiled(wasm, &digest)?;
        // What the compiler took for imports must be what was checked: two parsers can differ.
        for (name, _) in compiled.component_type().imports(&self.engine.wasmtime) {
            imports::check_import(&self.plugin, name, &self.capabilities)?;
        }
        let wrong_types = |interface: &str, source| LoadError::WrongTypes {
            plugin: self.plugin.clone(),
            interface: interface.to_owned(),
            source: Cause::from(source),
        };
        let instance = self
            .engine
            .linker
            .instantiate_pre(&compiled)
            .map_err(|source| wrong_types(named_in(&source, &imports), source))?;
        let exports = GuestIndices::new(&instance).map_err(|source| wrong_types(EXECUTOR, source))?;
        Ok(Component(Arc::new(Loaded { engine: Arc::clone(&self.engine), digest, imports, instance, exports })))
    }

    fn compiled(&self, wasm: &[u8], digest: &Digest) -> Result<wasmtime::component::Component, LoadError> {
        if let Some(compiled) = self.cache.load(&self.engine.wasmtime, digest) {
            return Ok(compiled);
        }
        let compiled = wasmtime::component::Component::from_binary(&self.engine.wasmtime, wasm).map_err(|source| {
            LoadError::Compile { plugin: self.plugin.clone(), digest: digest.clone(), source: Cause::from(source) }
        })?;
        self.cache.store(digest, &compiled);
        Ok(compiled)
    }
}

/// The import that an error of the linker speaks of.
fn named_in<'imports>(error: &wasmtime::Error, imports: &'imports [String]) -> &'imports str {
    let text = format!("{error:#}");
    imports.iter().find(|import| text.contains(&format!("`{import}`"))).map_or("an import", String::as_str)
}

fn digest_of(wasm: &[u8]) -> Digest {
    let text = format!("sha256:{}", hex::encode(Sha256::digest(wasm)));
    text.parse().expect("a SHA-256 in hexadecimal is a digest")
}

impl Component {
    /// Starts the component once: the types of its exports show only then, and so does a start that never ends.
    async fn try_out(&self, plugin: &PluginName) -> Result<(), LoadError> {
        // The limits of its calls are the operator's to say and not known here, so memory has only the ceiling of all.
        let limits = CallLimits { memory_bytes: MEMORY_BYTES_MAX, timeout: TRIAL_TIMEOUT, ..CallLimits::default() };
        match call::trial(self, limits).await {
            Ok(()) => Ok(()),
            Err(call::TrialError::WrongTypes(source)) => Err(LoadError::WrongTypes {
                plugin: plugin.clone(),
                interface: EXECUTOR.to_owned(),
                source: Cause::from(source),
            }),
            Err(call::TrialError::Stopped(reason)) => Err(LoadError::Trial { plugin: plugin.clone(), reason }),
        }
    }
}

/// The host of a trial: there is no call on whose behalf it could do anything.
pub(crate) struct NoHost;

impl HostCalls for NoHost {
    fn http_send(&self, _: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        let failure = Failure::unsent(FailureCode::Unavailable, "there is no call yet");
        Box::pin(std::future::ready(Err(failure)))
    }

    fn credential_status(&self) -> String {
        "none".to_owned()
    }
}
