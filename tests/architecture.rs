//! Checks the rules of ARCHITECTURE.md: the direction of imports, the modules that may use a library, the length of
//! files.

mod order;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The crates in layers, from the bottom to the top. Crates of the same layer must not use each other.
const CRATES: &[&[&str]] = &[
    &["types"],
    &["manifest"],
    &["guardian", "vault", "store", "package"],
    &["egress", "runtime", "sandbox", "api"],
    &["core", "sandbox-embedded"],
    &["host"],
];

/// Libraries, each with the only places that may use it.
const LIBRARIES: &[(&str, &[&str])] = &[
    ("metrics", &["host/crates/core/src/meters.rs", "host/src/telemetry"]),
    ("axum", &["host/src/gateway", "host/src/boot.rs", "host/src/boot/listen"]),
    ("hyper", &["host/src/boot/listen"]),
    ("hyper_util", &["host/src/boot/listen"]),
    ("sqlx", &["host/crates/store"]),
    ("utoipa", &["host/src/gateway", "host/crates/api", "host/crates/types"]),
    ("utoipa_axum", &["host/src/gateway"]),
    ("wasmtime", &["host/crates/runtime"]),
    ("wasmtime_wasi", &["host/crates/runtime"]),
    ("clap", &["host/src/cli", "host/src/config.rs", "host/src/main.rs", "host/crates/xtask"]),
    (
        "monstrum_sandbox_embedded",
        &["host/src/boot/sandboxes.rs", "host/src/cli/sandbox", "host/src/main.rs", "host/crates/sandbox-embedded"],
    ),
    ("reqwest", &["host/crates/egress", "host/src/cli", "host/src/telemetry/otel.rs"]),
];

struct Source {
    /// The path relative to the workspace.
    path: String,
    text: String,
}

impl Source {
    /// Returns the lines of the file without comments and unit tests.
    fn code(&self) -> Vec<String> {
        order::code(&self.text).lines().map(|line| line.trim_start().to_owned()).collect()
    }

    /// Returns the name of the crate that contains the file.
    fn crate_name(&self) -> &str {
        self.path.strip_prefix("host/crates/").and_then(|rest| rest.split('/').next()).unwrap_or("host")
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/") || self.path.contains("/examples/")
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_owned()
}

fn sources(folder: &str) -> Vec<Source> {
    let root = workspace();
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a folder entry can be read").path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    folders.push(path);
                }
            } else if path.ends_with("src/bindings.rs") && path.starts_with(root.join("plugins-wasm")) {
                // cargo-component generates this file, which is not part of the repository.
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file is text");
                let path =
                    path.strip_prefix(&root).expect("it was found under the root").to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found
}

fn names_crate(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + name.len()..].chars().next();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '"' || c == '.')
            && (line[at + name.len()..].starts_with("::") || (line.starts_with("use ") && after == Some(';')))
    })
}

#[test]
fn crates_use_only_what_lies_below_them() {
    let layer_of: BTreeMap<&str, usize> =
        CRATES.iter().enumerate().flat_map(|(layer, crates)| crates.iter().map(move |name| (*name, layer))).collect();
    let mut faults = Vec::new();
    let sources = sources("host");
    for source in &sources {
        let own = source.crate_name();
        let Some(&layer) = layer_of.get(own) else {
            assert_eq!(own, "xtask", "{}: the crate has no place in CRATES", source.path);
            continue;
        };
        for line in &source.code() {
            for (name, other) in &layer_of {
                let used = *name != own && names_crate(line, &format!("monstrum_{}", name.replace('-', "_")));
                if used && *other >= layer && own != "host" {
                    faults.push(format!("{}: `{own}` must not use `{name}`: {line}", source.path));
                }
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
    assert!(sources.len() >= 120, "only {} files were checked", sources.len());
}

#[test]
fn libraries_are_known_only_where_they_belong() {
    let mut faults = Vec::new();
    for source in sources("host").iter().filter(|source| !source.is_test()) {
        for line in &source.code() {
            for (library, places) in LIBRARIES {
                let allowed = places.iter().any(|place| source.path.starts_with(place));
                if !allowed && names_crate(line, library) {
                    faults.push(format!("{}: must not know `{library}`: {line}", source.path));
                }
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn the_guest_sdk_knows_nothing_of_the_host() {
    let manifest = std::fs::read_to_string(workspace().join("sdk-guest/Cargo.toml")).unwrap();
    assert!(!manifest.contains("monstrum-types") && !manifest.contains("path = \"../host"), "{manifest}");
}

#[test]
fn no_file_has_more_than_600_lines() {
    let mut long = Vec::new();
    let mut checked = 0;
    for folder in ["host", "sdk-guest", "plugins-wasm", "tests"] {
        for source in sources(folder) {
            checked += 1;
            let lines = source.text.lines().count();
            if lines > 600 {
                long.push(format!("{}: {lines}", source.path));
            }
        }
    }
    assert_eq!(long, Vec::<String>::new());
    assert!(checked >= 150, "only {checked} files were checked");
}

#[test]
fn the_rules_see_what_they_forbid() {
    assert!(names_crate("use axum::Json;", "axum"));
    assert!(names_crate("    let x = sqlx::query(\"x\");", "sqlx"));
    assert!(!names_crate("use utoipa_axum::routes;", "axum"));
}
