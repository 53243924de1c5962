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
use crate::compile::NotCompiled;
use crate::engine::{Engine, Runtime};
use crate::error::{Cause, LoadError};
use crate::host::HostCalls;
use crate::imports::{self, EXECUTOR};
use crate::limits::CallLimits;
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

/// [`Runtime::load`].
pub(crate) async fn load(
    runtime: &Runtime,
    plugin: &PluginName,
    wasm: Vec<u8>,
    capabilities: &[Capability],
    memory_bytes: u64,
) -> Result<Component, LoadError> {
    let work = Arc::new(Work {
        engine: Arc::clone(&runtime.engine),
        cache: Arc::clone(&runtime.cache),
        plugin: plugin.clone(),
        capabilities: capabilities.to_vec(),
        wasm,
    });
    let unforeseen = || {
        // A panic of a parser or the compiler is the component's fault as far as anybody can tell.
        tracing::error!(plugin.name = %plugin, "compiling a component failed in an unforeseen way");
        LoadError::NotAComponent { plugin: plugin.clone(), reason: "it cannot be compiled".to_owned() }
    };
    let here = Arc::clone(&work);
    let checked = tokio::task::spawn_blocking(move || here.checked()).await.map_err(|_| unforeseen())??;
    let component = match checked {
        Checked::Known(component) => component,
        Checked::New { imports, digest } => {
            let limit = runtime.compile_timeout;
            let compiled = runtime.engine.compiler.run(limit, move || work.compiled(imports, digest)).await;
            compiled.map_err(|not_compiled| match not_compiled {
                NotCompiled::TimedOut => LoadError::CompileTimeout { plugin: plugin.clone(), limit },
                NotCompiled::Lost => unforeseen(),
            })??
        }
    };
    component.try_out(plugin, memory_bytes).await?;
    Ok(component)
}

/// The part of loading that computes and reads files.
struct Work {
    engine: Arc<Engine>,
    cache: Arc<Cache>,
    plugin: PluginName,
    capabilities: Vec<Capability>,
    wasm: Vec<u8>,
}

/// What the outside of a component has shown.
enum Checked {
    /// Its compiled form was in the cache.
    Known(Component),
    New {
        imports: Vec<String>,
        digest: Digest,
    },
}

impl Work {
    fn checked(&self) -> Result<Checked, LoadError> {
        let imports = imports::check(&self.plugin, &self.wasm, &self.capabilities)?;
        let digest = digest_of(&self.wasm);
        match self.cache.load(&self.engine.wasmtime, &digest) {
            Some(compiled) => self.linked(&compiled, imports, digest).map(Checked::Known),
            None => Ok(Checked::New { imports, digest }),
        }
    }

    fn compiled(&self, imports: Vec<String>, digest: Digest) -> Result<Component, LoadError> {
        let compiled = wasmtime::component::Component::from_binary(&self.engine.wasmtime, &self.wasm);
        let compiled = compiled.map_err(|source| LoadError::Compile {
            plugin: self.plugin.clone(),
            digest: digest.clone(),
            source: Cause::from(source),
        })?;
        self.cache.store(&digest, &compiled);
        self.linked(&compiled, imports, digest)
    }

    fn linked(
        &self,
        compiled: &wasmtime::component::Component,
        imports: Vec<String>,
        digest: Digest,
    ) -> Result<Component, LoadError> {
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
            .instantiate_pre(compiled)
            .map_err(|source| wrong_types(named_in(&source, &imports), source))?;
        let exports = GuestIndices::new(&instance).map_err(|source| wrong_types(EXECUTOR, source))?;
        Ok(Component(Arc::new(Loaded { engine: Arc::clone(&self.engine), digest, imports, instance, exports })))
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
    async fn try_out(&self, plugin: &PluginName, memory_bytes: u64) -> Result<(), LoadError> {
        let limits = CallLimits { memory_bytes, timeout: TRIAL_TIMEOUT, ..CallLimits::default() };
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
