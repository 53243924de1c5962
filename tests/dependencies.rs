//! No package depends on a crate that its sources do not use, and the workspaces list no crate that no package uses.
//!
//! The tests search text like cargo-machete. They take about a second and need no additional tool. A crate that is only
//! mentioned in a comment by its path (`name::`) counts as used.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use monstrum_search::files_beneath;
use regex::Regex;

/// Dependencies that no source names, by package and crate.
const NOT_NAMED: [(&str, &str); 1] = [
    // The default features of this crate determine the decompressor of zip.
    ("host/crates/package", "flate2"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the folders of all packages of both workspaces.
fn packages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["host", "host/crates", "plugins-wasm", "sdk-guest", "tests"] {
        let folder = root().join(folder);
        let inner = fs::read_dir(&folder).expect("it can be listed").map(|entry| entry.expect("an entry").path());
        found.extend([folder.clone()].into_iter().chain(inner).filter(|path| has_package(path)));
    }
    found.sort();
    found.dedup();
    found
}

fn has_package(folder: &Path) -> bool {
    let manifest = folder.join("Cargo.toml");
    manifest.is_file() && read(&manifest).contains("[package]")
}

/// Returns the crates in the sections of a manifest whose names end with `section`, by the names that sources use.
fn listed(manifest: &str, section: &str) -> Vec<String> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            is_inside = name.trim_end_matches(']').ends_with(section);
        } else if is_inside && !line.starts_with('#') {
            let end = line.find(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').unwrap_or(line.len());
            found.extend(Some(&line[..end]).filter(|name| !name.is_empty()).map(|name| (*name).to_owned()));
        }
    }
    found
}

/// Returns all sources of a package, including sources elsewhere that it includes by path.
fn sources(package: &Path, packages: &[PathBuf]) -> String {
    let taken_in = Regex::new(r#"#\[path = "([^"]+)"\]"#).expect("it is a pattern");
    let is_own =
        |path: &Path| packages.iter().filter(|other| path.starts_with(other)).max() == Some(&package.to_owned());
    let mut text = String::new();
    for path in files_beneath(package).expect("a package can be walked") {
        if path.extension().is_none_or(|extension| extension != "rs")
            || path.starts_with(root().join("target"))
            || !is_own(&path)
        {
            continue;
        }
        let source = read(&path);
        for (_, [relative]) in taken_in.captures_iter(&source).map(|found| found.extract()) {
            text.push_str(&read(&path.parent().expect("a file lies in a folder").join(relative)));
        }
        text.push_str(&source);
    }
    text
}

/// Returns whether `source` uses the crate in code: at the start of a path, as a macro, or as a whole `use`.
fn names(source: &str, name: &str) -> bool {
    let name = name.replace('-', "_");
    Regex::new(&format!(r"\b{name}(::|!)|\buse {name}\b")).expect("it is a pattern").is_match(source)
}

#[test]
fn every_dependency_is_named_by_a_source() {
    let packages = packages();
    assert!(packages.len() > 25, "only {} packages were found", packages.len());
    let mut unused = BTreeSet::new();
    for package in &packages {
        let folder = package.strip_prefix(root()).expect("it was found there").display().to_string();
        let source = sources(package, &packages);
        for name in listed(&read(&package.join("Cargo.toml")), "dependencies") {
            if !names(&source, &name) {
                unused.insert((folder.clone(), name));
            }
        }
    }
    let expected: BTreeSet<_> = NOT_NAMED.map(|(folder, name)| (folder.to_owned(), name.to_owned())).into();
    assert_eq!(unused, expected, "take them out of the manifest, or say here what they are for");
}

#[test]
fn every_dependency_of_a_workspace_is_taken_by_a_package() {
    let packages = packages();
    for workspace in [root().to_owned(), root().join("plugins-wasm")] {
        let taken: BTreeSet<String> = packages
            .iter()
            .filter(|package| package.starts_with(root().join("plugins-wasm")) == workspace.ends_with("plugins-wasm"))
            .flat_map(|package| listed(&read(&package.join("Cargo.toml")), "dependencies"))
            .collect();
        let unused: Vec<_> = listed(&read(&workspace.join("Cargo.toml")), "workspace.dependencies")
            .into_iter()
            .filter(|name| !taken.contains(name))
            .collect();
        assert_eq!(unused, [""; 0], "no package of {} takes them", workspace.display());
    }
}

#[test]
fn names_in_code_are_told_from_others() {
    for source in ["bytes::Bytes", "use bytes;", "use bytes as b;", "bytes!(1)", "let x: bytes::Bytes"] {
        assert!(names(source, "bytes"), "{source}");
    }
    for source in ["// takes 4 bytes", "let bytes = 1;", "some_bytes::x", "use bytesize::x"] {
        assert!(!names(source, "bytes"), "{source}");
    }
    let manifest = "[package]\nname = \"x\"\n[dependencies]\n# why\na-b.workspace = true\nc = \"1\"\n[lib]\nd = 1\n";
    assert_eq!(listed(manifest, "dependencies"), ["a-b", "c"]);
}

/// The checks must cover optional crates, which releases contain, and the plugins of a release, which have another lock
/// file.
#[test]
fn ci_checks_licences_and_advisories_of_all_that_ships() {
    let has_line = |path: &str, line: &str| read(&root().join(path)).lines().any(|found| found.trim() == line);
    assert!(has_line(".ci/run", "cargo xtask deny"));
    assert!(has_line("deny.toml", "all-features = true"));
    let task = read(&root().join("host/crates/xtask/src/main.rs"));
    for workspace in ["Cargo.toml", "plugins-wasm/Cargo.toml"] {
        assert!(task.contains(&format!("\"{workspace}\"")), "xtask does not look at {workspace}");
    }
}
