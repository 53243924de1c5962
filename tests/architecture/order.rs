//! Checks the order of modules in core and in the host: a module may import only from lower modules.
//!
//! A unit is a top-level module of one of the two crates, or a file or folder of `call/`. Every path in a file, not
//! only in `use` declarations, must lead to a lower unit. Files of the same unit may import each other.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, sources, workspace};

/// The units from the bottom to the top. Units in the same line must not import each other.
const ORDER: &[&[&str]] = &[
    &["beside", "events", "fair_queue", "language", "meters"],
    &["call_types"],
    &["checks"],
    &["plugins"],
    &["audit"],
    &["credentials", "sandboxes"],
    &["policy"],
    &["access_tokens", "console_sessions", "models", "oauth", "webhooks"],
    &["pins"],
    &["mcp", "remote_agents"],
    &["emitter"],
    &["approvals"],
    &["call/session"],
    &["call/resolve"],
    &["call/check"],
    &["call/authorize"],
    &["call/permitted"],
    &["call/admission"],
    &["call/ledger"],
    &["call/revocation"],
    &["call/consent"],
    &["call/child_calls"],
    &["call/built_in"],
    &["call/host_functions"],
    &["call/execute"],
    &["call/platform"],
    &["call"],
    &["call/own_steps"],
    &["app"],
    &["operations"],
    &["config"],
    &["telemetry"],
    &["gateway"],
    &["boot"],
    &["cli"],
    &["lib"],
    &["main"],
];

/// Permitted imports from a higher unit, or from a unit in the same line. Do not add entries.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// The folders of the two crates. The second crate imports the first.
const ROOTS: [&str; 2] = ["host/crates/core/src/", "host/src/"];

/// The imports of all files, by unit.
struct Imports {
    units: BTreeSet<String>,
    /// The imports from one unit to another unit, each with the source files that contain them.
    arrows: BTreeMap<(String, String), Vec<String>>,
    files: usize,
}

fn read() -> Imports {
    let sources: Vec<Source> = ROOTS.iter().flat_map(|root| sources(root)).filter(|source| !source.is_test()).collect();
    let modules: Vec<Vec<&str>> = sources.iter().map(module_of).collect();
    let units: BTreeSet<String> = modules.iter().map(|module| unit_of(module, &modules)).collect();
    let mut arrows: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (source, module) in sources.iter().zip(&modules) {
        let own = unit_of(module, &modules);
        for path in paths(&code(&source.text), module) {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let other = unit_of(&path, &modules);
            // A path without a unit names an item in lib.rs.
            let other = if units.contains(&other) { other } else { "lib".to_owned() };
            if other != own {
                arrows.entry((own.clone(), other)).or_default().push(format!("{}: {}", source.path, path.join("::")));
            }
        }
    }
    Imports { units, arrows, files: sources.len() }
}

/// Returns the module path of a file: `call`, `x` for `host/crates/core/src/call/x.rs`. The crate is not part of the
/// path, because no module name occurs in both crates.
fn module_of(source: &Source) -> Vec<&str> {
    let path = ROOTS.iter().find_map(|root| source.path.strip_prefix(root)).expect("it was found there");
    path.strip_suffix(".rs").expect("a file of Rust").split('/').collect()
}

/// Returns the unit of a path. `modules` are the module paths of all files.
fn unit_of(path: &[&str], modules: &[Vec<&str>]) -> String {
    match path {
        ["call", part, ..] if modules.iter().any(|module| module.starts_with(&["call", part])) => {
            format!("call/{part}")
        }
        [first, ..] => (*first).to_owned(),
        [] => "lib".to_owned(),
    }
}

/// Returns the text of a file, except comments and unit tests.
pub(super) fn code(text: &str) -> String {
    let inline_tests = text.match_indices("\n#[cfg(test)]\nmod ").find(|(at, start)| {
        let line = text[at + start.len()..].lines().next().unwrap_or_default();
        line.ends_with('{')
    });
    let end = inline_tests.map_or(text.len(), |(at, _)| at);
    let lines = text[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns every path that begins with `crate::`, `monstrum_core::` or `super::`, relative to the root of its crate.
fn paths(code: &str, module: &[&str]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for root in ["crate::", "monstrum_core::"] {
        for (at, _) in code.match_indices(root) {
            if is_start_of_path(code, at) {
                expand(&code[at + root.len()..], &[], &mut paths);
            }
        }
    }
    for (at, _) in code.match_indices("super::") {
        if is_start_of_path(code, at) {
            let (mut rest, mut parent) = (&code[at..], module);
            while let Some(after) = rest.strip_prefix("super::") {
                (rest, parent) = (after, &parent[..parent.len().saturating_sub(1)]);
            }
            let parent: Vec<String> = parent.iter().map(|name| (*name).to_owned()).collect();
            expand(rest, &parent, &mut paths);
        }
    }
    paths
}

fn is_start_of_path(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|before: char| before.is_alphanumeric() || "_$:".contains(before))
}

/// Reads the tree of imports at the start of `text`, such as `a::{b, c::d}`, and adds the paths of the tree to `paths`.
/// Returns the text after the tree.
fn expand<'a>(text: &'a str, prefix: &[String], paths: &mut Vec<Vec<String>>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            rest = expand(rest, prefix, paths);
            // The alias of an import (`as`) is skipped.
            rest = &rest[rest.find([',', '}']).expect("a tree of imports is closed")..];
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() || name == "self" {
        paths.push(prefix.to_vec());
        return rest;
    }
    let path = [prefix, &[name.to_owned()]].concat();
    match rest.strip_prefix("::") {
        Some(after) if after.starts_with(|c: char| c.is_alphabetic() || "_{*".contains(c)) => {
            expand(after, &path, paths)
        }
        _ => {
            paths.push(path);
            rest
        }
    }
}

#[test]
fn modules_import_only_what_lies_below_them() {
    let imports = read();
    let line_of: BTreeMap<&str, usize> =
        ORDER.iter().enumerate().flat_map(|(line, units)| units.iter().map(move |unit| (*unit, line))).collect();
    let placed: BTreeSet<String> = line_of.keys().map(|unit| (*unit).to_owned()).collect();
    assert_eq!(imports.units, placed, "the units of the crate differ from the units in ORDER");
    let upward: BTreeMap<_, _> = imports
        .arrows
        .iter()
        .filter(|((from, to), _)| line_of[to.as_str()] >= line_of[from.as_str()])
        .map(|((from, to), places)| ((from.as_str(), to.as_str()), places))
        .collect();
    let exceptions: BTreeSet<_> = EXCEPTIONS.iter().copied().collect();
    let new: Vec<_> = upward.iter().filter(|(arrow, _)| !exceptions.contains(*arrow)).collect();
    assert!(new.is_empty(), "imports from higher units: {new:#?}");
    let gone: Vec<_> = exceptions.iter().filter(|arrow| !upward.contains_key(*arrow)).collect();
    assert!(gone.is_empty(), "exceptions that are no longer needed: {gone:?}");
    let (units, arrows) = (imports.units.len(), imports.arrows.len());
    println!("{units} units, {arrows} arrows, {} of them upward; {} files read", upward.len(), imports.files);
    assert!(imports.files >= 190, "only {} files were read", imports.files);
}

#[test]
fn the_architecture_page_has_the_same_order() {
    let page = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let lines = ORDER.iter().rev().map(|units| format!("    {}\n", units.join(", ")));
    let order: String = lines.collect();
    assert!(page.contains(&order), "ARCHITECTURE.md should contain this list:\n{order}");
}

#[test]
fn every_path_of_a_file_is_read() {
    let text = "\
#[cfg(test)]
mod tests;

use crate::boot::{self, listen::Address as Place, data};
use super::super::policy;
use monstrum_core::audit;
// use crate::comment;
fn f() { crate::cli::run::<u8>(); $crate::not::one(); }

#[cfg(test)]
mod others {
    use crate::only_for_tests;
}
";
    let found: Vec<String> = paths(&code(text), &["call", "x"]).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["boot", "boot::listen::Address", "boot::data", "cli::run", "audit", "policy"]);
    let modules = [vec!["call"], vec!["call", "x"], vec!["policy"]];
    assert_eq!(unit_of(&["call", "x", "y"], &modules), "call/x");
    assert_eq!(unit_of(&["call", "Calls"], &modules), "call");
}

#[test]
fn core_knows_no_interface() {
    let manifest = std::fs::read_to_string(workspace().join("host/crates/core/Cargo.toml")).unwrap();
    for library in ["axum", "utoipa", "clap", "hyper", "tower"] {
        assert!(!manifest.contains(library), "core must not depend on {library}");
    }
}
