//! Reads the imports and exports of a component from its bytes, before it is compiled.
//!
//! Each import must be an inert interface of WASI, an interface that needs no capability, or an interface whose
//! capability the manifest lists. Otherwise, the component is rejected with an error that names the import.

use monstrum_manifest::Capability;
use monstrum_types::PluginName;
use wasmparser::{ComponentExternName, ComponentExternalKind, ComponentTypeRef, Encoding, Parser, Payload};

use crate::error::LoadError;

/// The maximum size of a component, which is also the limit in packages. `CPython` with its standard library has about
/// 20 MiB.
pub const COMPONENT_BYTES_MAX: usize = 32 << 20;

/// The export of all plugins.
pub(crate) const EXECUTOR: &str = "monstrum:plugin/executor@0.1.0";

/// The additional export of plugins with functions.
pub(crate) const FUNCTIONS: &str = "monstrum:plugin/functions@0.1.0";

/// The maximum number of imports of a component. No WIT world of a plugin has this many imports.
const IMPORTS_MAX: usize = 256;

/// Interfaces of WASI 0.2 that standard libraries import. The host links these interfaces, but they give a plugin no
/// access to files, sockets, environment variables or arguments.
const INERT_WASI: &[&str] = &[
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
    "wasi:sockets/instance-network",
    "wasi:sockets/ip-name-lookup",
    "wasi:sockets/network",
    "wasi:sockets/tcp",
    "wasi:sockets/tcp-create-socket",
    "wasi:sockets/udp",
    "wasi:sockets/udp-create-socket",
];

/// Outgoing HTTP of WASI 0.2. Its requests pass the same checks as requests of `monstrum:plugin/http`. Plugins may not
/// serve HTTP.
const HTTP_WASI: &[&str] = &["wasi:http/outgoing-handler", "wasi:http/types"];

/// The kind of an import.
enum Import {
    /// The import is always allowed.
    Always,
    /// The import is allowed if the manifest lists the capability.
    With(Capability),
    Unknown,
}

fn classify(name: &str) -> Import {
    match name {
        "monstrum:plugin/types@0.1.0" | "monstrum:plugin/log@0.1.0" | "monstrum:plugin/credentials@0.1.0" => {
            Import::Always
        }
        "monstrum:plugin/http@0.1.0" => Import::With(Capability::Http),
        _ if is_wasi(name, HTTP_WASI) => Import::With(Capability::Http),
        "monstrum:plugin/sandbox@0.1.0" => Import::With(Capability::Sandbox),
        "monstrum:plugin/tools@0.1.0" => Import::With(Capability::Tools),
        "monstrum:plugin/events@0.1.0" => Import::With(Capability::Events),
        _ if is_wasi(name, INERT_WASI) => Import::Always,
        _ => Import::Unknown,
    }
}

/// Returns whether `name` is one of `interfaces` in version 0.2.x.
fn is_wasi(name: &str, interfaces: &[&str]) -> bool {
    name.split_once("@0.2.").is_some_and(|(interface, patch)| {
        !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()) && interfaces.contains(&interface)
    })
}

fn capability_word(capability: Capability) -> &'static str {
    match capability {
        Capability::Http => "http",
        Capability::Sandbox => "sandbox",
        Capability::Tools => "tools",
        Capability::Events => "events",
    }
}

/// Checks that a plugin with these capabilities may import `name`.
pub(crate) fn check_import(plugin: &PluginName, name: &str, capabilities: &[Capability]) -> Result<(), LoadError> {
    let capability = match classify(name) {
        Import::Always => return Ok(()),
        Import::With(capability) => capability,
        Import::Unknown => {
            return Err(LoadError::UnknownImport { plugin: plugin.clone(), import: name.to_owned() });
        }
    };
    if capabilities.contains(&capability) {
        return Ok(());
    }
    Err(LoadError::CapabilityMissing {
        plugin: plugin.clone(),
        import: name.to_owned(),
        capability: capability_word(capability),
    })
}

/// Checks the imports and exports of a component. Returns the names of the imports in the order in which the component
/// declares them.
pub(crate) fn check(plugin: &PluginName, wasm: &[u8], capabilities: &[Capability]) -> Result<Vec<String>, LoadError> {
    if wasm.len() > COMPONENT_BYTES_MAX {
        return Err(LoadError::TooLarge { plugin: plugin.clone(), bytes: wasm.len(), bytes_max: COMPONENT_BYTES_MAX });
    }
    let outside = read(wasm).map_err(|reason| LoadError::NotAComponent { plugin: plugin.clone(), reason })?;
    for import in &outside.imports {
        check_import(plugin, import, capabilities)?;
    }
    if !outside.exports_executor {
        return Err(LoadError::WrongWorld { plugin: plugin.clone(), export: EXECUTOR.to_owned() });
    }
    Ok(outside.imports)
}

struct Outside {
    imports: Vec<String>,
    exports_executor: bool,
}

/// Reads the outermost component. Nested components and modules are skipped, because the compiler validates them.
fn read(wasm: &[u8]) -> Result<Outside, String> {
    if Parser::is_core_wasm(wasm) {
        return Err("it is a core module; build it as a component, for example for the target wasm32-wasip2".to_owned());
    }
    if !Parser::is_component(wasm) {
        return Err("the file does not have the header of a component".to_owned());
    }
    let mut outside = Outside { imports: Vec::new(), exports_executor: false };
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(|error| error.to_string())? {
            Payload::Version { encoding, .. } if depth == 0 && encoding != Encoding::Component => {
                return Err("the file does not have the header of a component".to_owned());
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    let import = import.map_err(|error| error.to_string())?;
                    if outside.imports.len() == IMPORTS_MAX {
                        return Err(format!("it has more than {IMPORTS_MAX} imports"));
                    }
                    outside.imports.push(import_name(import.name, import.ty));
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    let export = export.map_err(|error| error.to_string())?;
                    let is_instance = export.kind == ComponentExternalKind::Instance;
                    outside.exports_executor |= is_instance && export.name.full_name() == EXECUTOR;
                }
            }
            _ => {}
        }
    }
    Ok(outside)
}

/// Returns the name of an import for the check. An import that is not an interface, or that implements an interface
/// under another name, gets a name that differs from all interface names.
fn import_name(name: ComponentExternName<'_>, ty: ComponentTypeRef) -> String {
    match (name.implements, ty) {
        (None, ComponentTypeRef::Instance(_)) => name.full_name().into_owned(),
        (Some(implements), _) => format!("{} (implements {implements})", name.name),
        (None, _) => format!("{} (not an interface)", name.full_name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> PluginName {
        "probe".parse().unwrap()
    }

    fn check_wat(wat: &str, capabilities: &[Capability]) -> Result<Vec<String>, String> {
        check(&plugin(), &wat::parse_str(wat).unwrap(), capabilities).map_err(|error| error.to_string())
    }

    fn importing(import: &str) -> String {
        format!(
            r#"(component
                (import "{import}" (instance))
                (instance $e)
                (export "{EXECUTOR}" (instance $e)))"#
        )
    }

    #[test]
    fn imports_are_accepted_by_name_and_capability() {
        for http in ["monstrum:plugin/http@0.1.0", "wasi:http/outgoing-handler@0.2.0", "wasi:http/types@0.2.6"] {
            assert_eq!(check_wat(&importing(http), &[Capability::Http]).unwrap(), [http]);
        }
        for always in [
            "monstrum:plugin/types@0.1.0",
            "monstrum:plugin/log@0.1.0",
            "monstrum:plugin/credentials@0.1.0",
            "wasi:io/streams@0.2.0",
            "wasi:sockets/tcp@0.2.6",
            "wasi:filesystem/types@0.2.12",
        ] {
            assert_eq!(check_wat(&importing(always), &[]).unwrap(), [always]);
        }
    }

    #[test]
    fn calling_tools_and_using_events_need_the_capability() {
        let (tools, events) = ("monstrum:plugin/tools@0.1.0", "monstrum:plugin/events@0.1.0");
        assert_eq!(check_wat(&importing(tools), &[Capability::Tools]).unwrap(), [tools]);
        assert_eq!(check_wat(&importing(events), &[Capability::Events]).unwrap(), [events]);
    }

    #[test]
    fn an_import_without_its_capability_is_named() {
        for (import, capability) in [
            ("monstrum:plugin/http@0.1.0", "http"),
            ("wasi:http/types@0.2.0", "http"),
            ("wasi:http/outgoing-handler@0.2.6", "http"),
            ("monstrum:plugin/sandbox@0.1.0", "sandbox"),
            ("monstrum:plugin/tools@0.1.0", "tools"),
            ("monstrum:plugin/events@0.1.0", "events"),
        ] {
            assert_eq!(
                check_wat(&importing(import), &[]).unwrap_err(),
                format!(
                    "the component of plugin `probe` imports `{import}`, but its manifest does not list \
                     `{capability}` under executor.capabilities"
                )
            );
        }
    }

    #[test]
    fn any_other_import_is_unknown() {
        let all = [Capability::Http, Capability::Sandbox, Capability::Tools, Capability::Events];
        for import in [
            "wasi:http/incoming-handler@0.2.6",
            "wasi:http/outgoing-handler@0.3.0",
            "wasi:http/outgoing-handler",
            "wasi:keyvalue/store@0.2.0",
            "wasi:io/streams@0.3.0",
            "wasi:io/streams@0.2.0-rc",
            "wasi:cli/run@0.2.0",
            "monstrum:plugin/http@0.2.0",
            "monstrum:plugin/http",
            "monstrum:plugin/executor@0.1.0",
            "evil:plugin/http@0.1.0",
        ] {
            assert_eq!(
                check_wat(&importing(import), &all).unwrap_err(),
                format!("the component of plugin `probe` imports `{import}`, which this host does not provide")
            );
        }
    }

    #[test]
    fn a_bare_function_is_refused() {
        let wat = r#"(component (import "send" (func)))"#;
        assert_eq!(
            check_wat(wat, &[]).unwrap_err(),
            "the component of plugin `probe` imports `send (not an interface)`, which this host does not provide"
        );
    }

    #[test]
    fn imports_and_exports_of_inner_components_do_not_count() {
        let wat = format!(
            r#"(component
                (component (import "evil:inner/thing@0.1.0" (instance)))
                (component (instance $e) (export "{EXECUTOR}" (instance $e)))
                (core module (func (export "run"))))"#
        );
        assert_eq!(
            check_wat(&wat, &[]).unwrap_err(),
            format!(
                "the component of plugin `probe` does not export `{EXECUTOR}`: it was built for a different WIT world"
            )
        );
    }

    #[test]
    fn an_executor_must_be_an_interface() {
        let wat = r#"(component (import "wasi:io/poll@0.2.0" (instance $i (export "f" (func)))) (alias export $i "f" (func $f))
            (export "execute" (func $f)))"#;
        assert!(check_wat(wat, &[]).unwrap_err().contains("does not export"));
    }

    #[test]
    fn core_modules_and_other_files_are_refused() {
        let refuse = |wasm: &[u8]| check(&plugin(), wasm, &[]).unwrap_err().to_string();
        assert_eq!(
            refuse(&wat::parse_str("(module)").unwrap()),
            "the component of plugin `probe` is not a WebAssembly component: it is a core module; build it as a \
             component, for example for the target wasm32-wasip2"
        );
        for junk in [&b""[..], b"\0asm", b"(component)", b"\x7fELF\x02\x01\x01"] {
            assert_eq!(
                refuse(junk),
                "the component of plugin `probe` is not a WebAssembly component: the file does not have \
                 the header of a component"
            );
        }
        let whole = wat::parse_str(importing("wasi:io/poll@0.2.0")).unwrap();
        assert!(refuse(&whole[..whole.len() - 4]).contains("is not a WebAssembly component: "));
    }

    #[test]
    fn size_is_checked_first() {
        let refused = check(&plugin(), &vec![0; COMPONENT_BYTES_MAX + 1], &[]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the component of plugin `probe` has 33554433 bytes; at most 33554432 are allowed"
        );
    }
}
