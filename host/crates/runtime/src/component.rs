//! Loads components: checks, compiles and links them, and starts each component once as a trial.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use monstrum_manifest::Capability;
use monstrum_types::{Digest, Failure, FailureCode, HttpRequest, HttpResponse, PluginName};
use sha2::{Digest as _, Sha256};
use wasmtime::Store;
use wasmtime::component::InstancePre;

use crate::bindings::{Functions, FunctionsIndices, Guest, GuestIndices};
use crate::cache::Cache;
use crate::call;
use crate::compile::NotCompiled;
use crate::engine::{Engine, Runtime};
use crate::error::{Cause, LoadError};
use crate::host::HostCalls;
use crate::imports::{self, EXECUTOR, FUNCTIONS};
use crate::limits::CallLimits;
use crate::store::State;

/// The time-out of a component's start during loading. Interpreters start within milliseconds, but the time also passes
/// while a busy machine runs other programs. A start that computes ends earlier, by its fuel.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of functions of one plugin. Infrastructure programs call functions by name.
const FUNCTIONS_MAX: usize = 100;
/// The maximum length of a function's name in characters, which is also the limit for tool names.
const FUNCTION_NAME_MAX: usize = 64;

/// A component that was checked, compiled and started once. This type is cheap to clone. Each call runs in a fresh
/// instance.
#[derive(Clone)]
pub struct Component(Arc<Loaded>);

struct Loaded {
    engine: Arc<Engine>,
    digest: Digest,
    imports: Vec<String>,
    instance: InstancePre<State>,
    exports: GuestIndices,
    functions: Option<FunctionsIndices>,
    /// The names of the component's functions, which are set after the trial.
    function_names: OnceLock<Vec<String>>,
}

/// The result of an earlier load of a component. See [`Runtime::load_cached`].
#[derive(Clone, Debug)]
pub struct KnownComponent {
    /// The plugin.
    pub plugin: PluginName,
    /// The SHA-256 of the component's bytes.
    pub digest: Digest,
    /// The capabilities that the manifest lists.
    pub capabilities: Vec<Capability>,
    /// The names of the component's functions.
    pub functions: Vec<String>,
}

/// The exports of an instance.
pub(crate) struct Started {
    pub(crate) executor: Guest,
    pub(crate) functions: Option<Functions>,
}

impl Component {
    /// Returns the SHA-256 of the component's bytes.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.0.digest
    }

    /// Returns the interfaces that the component imports.
    #[must_use]
    pub fn imports(&self) -> &[String] {
        &self.0.imports
    }

    /// Returns the names of the functions that the component exports besides its tools.
    #[must_use]
    pub fn functions(&self) -> &[String] {
        self.0.function_names.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Creates an instance in `store`.
    pub(crate) async fn start(&self, store: &mut Store<State>) -> Result<Started, StartError> {
        let instance = self.0.instance.instantiate_async(&mut *store).await.map_err(StartError::Instance)?;
        let executor = self.0.exports.load(&mut *store, &instance).map_err(StartError::Exports)?;
        let functions = self.0.functions.as_ref().map(|functions| functions.load(store, &instance)).transpose();
        Ok(Started { executor, functions: functions.map_err(StartError::Exports)? })
    }
}

impl std::fmt::Debug for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Component").field(&self.0.digest).finish()
    }
}

/// The reason why an instance did not start.
pub(crate) enum StartError {
    /// The start function failed, or a limit was reached.
    Instance(wasmtime::Error),
    /// The exports do not have the types that `wit/` defines.
    Exports(wasmtime::Error),
}

/// Implements [`Runtime::load`].
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
        wasm: Arc::new(wasm),
    });
    let panicked = || {
        // The component most likely caused the panic of the parser or the compiler.
        tracing::error!(plugin.name = %plugin, "the compiler panicked while compiling a component");
        LoadError::NotAComponent { plugin: plugin.clone(), reason: "it cannot be compiled".to_owned() }
    };
    let here = Arc::clone(&work);
    let checked = tokio::task::spawn_blocking(move || here.checked()).await.map_err(|_| panicked())??;
    let component = match checked {
        Checked::Known(component) => component,
        Checked::New { imports, digest } => {
            let limit = runtime.compile_timeout;
            let compiled = runtime.engine.compiler.run(limit, move || work.compiled(imports, digest)).await;
            compiled.map_err(|not_compiled| match not_compiled {
                NotCompiled::TimedOut => LoadError::CompileTimeout { plugin: plugin.clone(), limit },
                NotCompiled::Lost => panicked(),
            })??
        }
    };
    component.try_out(plugin, memory_bytes).await?;
    Ok(component)
}

/// Implements [`Runtime::load_cached`].
pub(crate) fn load_cached(
    runtime: &Runtime,
    known: &KnownComponent,
    wasm: &Arc<Vec<u8>>,
) -> Result<Option<Component>, LoadError> {
    let work = Work {
        engine: Arc::clone(&runtime.engine),
        cache: Arc::clone(&runtime.cache),
        plugin: known.plugin.clone(),
        capabilities: known.capabilities.clone(),
        wasm: Arc::clone(wasm),
    };
    let found = digest_of(wasm);
    if found != known.digest {
        return Err(LoadError::OtherDigest { plugin: known.plugin.clone(), digest: known.digest.clone(), found });
    }
    let Checked::Known(component) = work.checked_with(found)? else { return Ok(None) };
    component.0.function_names.get_or_init(|| known.functions.clone());
    Ok(Some(component))
}

/// The part of loading that computes and reads files. It runs on a blocking thread.
struct Work {
    engine: Arc<Engine>,
    cache: Arc<Cache>,
    plugin: PluginName,
    capabilities: Vec<Capability>,
    wasm: Arc<Vec<u8>>,
}

/// A component whose imports and exports were checked.
enum Checked {
    /// The compiled form was in the cache.
    Known(Component),
    /// The component must be compiled.
    New { imports: Vec<String>, digest: Digest },
}

impl Work {
    fn checked(&self) -> Result<Checked, LoadError> {
        self.checked_with(digest_of(&self.wasm))
    }

    fn checked_with(&self, digest: Digest) -> Result<Checked, LoadError> {
        let imports = imports::check(&self.plugin, &self.wasm, &self.capabilities)?;
        match self.cache.load(&self.engine.wasmtime, &digest) {
            Some(compiled) => self.linked(&compiled, imports, digest).map(Checked::Known),
            None => Ok(Checked::New { imports, digest }),
        }
    }

    fn compiled(&self, imports: Vec<String>, digest: Digest) -> Result<Component, LoadError> {
        let compiled = wasmtime::component::Component::from_binary(&self.engine.wasmtime, self.wasm.as_slice());
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
        // The check and the compiler use different parsers, so the imports that the compiler found are checked as well.
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
        let has_functions = compiled.component_type().exports(&self.engine.wasmtime).any(|(name, _)| name == FUNCTIONS);
        let functions = has_functions.then(|| FunctionsIndices::new(&instance)).transpose();
        let functions = functions.map_err(|source| wrong_types(FUNCTIONS, source))?;
        let engine = Arc::clone(&self.engine);
        let function_names = OnceLock::new();
        Ok(Component(Arc::new(Loaded { engine, digest, imports, instance, exports, functions, function_names })))
    }
}

/// Returns the import that an error of the linker refers to.
fn named_in<'imports>(error: &wasmtime::Error, imports: &'imports [String]) -> &'imports str {
    let text = format!("{error:#}");
    imports.iter().find(|import| text.contains(&format!("`{import}`"))).map_or("an import", String::as_str)
}

pub(crate) fn digest_of(wasm: &[u8]) -> Digest {
    let text = format!("sha256:{}", hex::encode(Sha256::digest(wasm)));
    text.parse().expect("a hexadecimal SHA-256 is a valid digest")
}

impl Component {
    /// Starts the component once, to detect exports with wrong types and start functions that do not return.
    async fn try_out(&self, plugin: &PluginName, memory_bytes: u64) -> Result<(), LoadError> {
        let limits = CallLimits { memory_bytes, timeout: TRIAL_TIMEOUT, ..CallLimits::default() };
        match call::trial(self, limits).await {
            Ok(names) => {
                check_functions(&names).map_err(|reason| LoadError::Trial { plugin: plugin.clone(), reason })?;
                // An earlier trial of the same component may already have set the names.
                self.0.function_names.get_or_init(|| names);
                Ok(())
            }
            Err(call::TrialError::WrongTypes(source)) => Err(LoadError::WrongTypes {
                plugin: plugin.clone(),
                interface: EXECUTOR.to_owned(),
                source: Cause::from(source),
            }),
            Err(call::TrialError::NotStarted(reason)) => Err(LoadError::Trial { plugin: plugin.clone(), reason }),
        }
    }
}

/// Checks the names of functions. The component chooses the names, and the host uses them in URLs and log lines.
fn check_functions(names: &[String]) -> Result<(), String> {
    if names.len() > FUNCTIONS_MAX {
        return Err(format!("the component has {} functions; at most {FUNCTIONS_MAX} are allowed", names.len()));
    }
    for (index, name) in names.iter().enumerate() {
        let is_plain = name.len() <= FUNCTION_NAME_MAX
            && name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !is_plain {
            return Err(format!(
                "function {index} has an invalid name; a name must consist of 1 to {FUNCTION_NAME_MAX} characters \
                 (a-z, 0-9 and `_`) and start with a letter"
            ));
        }
        if names[..index].contains(name) {
            return Err(format!("duplicate function `{name}`"));
        }
    }
    Ok(())
}

/// The host for a trial. All host calls fail, because a trial does not belong to a call.
pub(crate) struct NoHost;

impl HostCalls for NoHost {
    fn http_send(&self, _: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>> {
        let failure =
            Failure::unsent(FailureCode::Unavailable, "host calls are not available while a component is being loaded");
        Box::pin(std::future::ready(Err(failure)))
    }

    fn credential_status(&self) -> String {
        "none".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions_are_checked() {
        let check = |names: &[&str]| check_functions(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["sync", "rotate_2", &"a".repeat(64)]), Ok(()));
        for bad in ["", "Sync", "2nd", "_x", "a-b", "a/b", "a.b", "a\n", "é", &"a".repeat(65)] {
            let why = check(&["good", bad]).unwrap_err();
            let expected = "function 1 has an invalid name; a name must consist of 1 to 64 characters \
                            (a-z, 0-9 and `_`) and start with a letter";
            assert_eq!(why, expected, "{bad:?}");
        }
        assert_eq!(check(&["a", "b", "a"]).unwrap_err(), "duplicate function `a`");
        let many: Vec<String> = (0..101).map(|number| format!("f{number}")).collect();
        assert_eq!(check_functions(&many).unwrap_err(), "the component has 101 functions; at most 100 are allowed");
    }
}
