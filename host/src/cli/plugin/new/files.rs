//! The files of a new plugin, which are embedded in this program. Authors therefore need only cargo and its registry,
//! and build against the SDK and the WIT files of this version of the host.

use include_dir::{Dir, include_dir};

/// A file of the new folder: its path, and its text with placeholders `{{…}}`.
type File = (&'static str, &'static str);

macro_rules! scaffold {
    ($($path:literal from $source:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/scaffold/", $source)))),*]
    };
}

macro_rules! repository {
    ($($path:literal from $source:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../", $source)))),*]
    };
}

/// The files of the plugin itself.
pub(super) const PLUGIN: &[File] = scaffold![
    "Cargo.toml" from "Cargo.toml.in",
    ".gitignore" from "gitignore",
    "README.md" from "README.md",
    "monstrum.yaml" from "monstrum.yaml",
    "locales/en.json" from "locales/en.json",
    "src/lib.rs" from "src/lib.rs",
    "tests/get_item.yaml" from "tests/get_item.yaml",
    "tests/scope.yaml" from "tests/scope.yaml",
];

/// The Cargo.toml of the SDK's copy, which is not a member of a workspace.
pub(super) const SDK_PACKAGE: &[File] = scaffold!["sdk/Cargo.toml" from "sdk/Cargo.toml.in"];

/// Files of the repository, without placeholders.
pub(super) const CONTRACT: &[File] = repository![
    "wit/0.1.0/world.wit" from "wit/0.1.0/world.wit",
    "sdk/LICENSE-MIT" from "LICENSE-MIT",
    "sdk/LICENSE-APACHE" from "LICENSE-APACHE",
];

/// The source folder of the SDK. `build.rs` makes cargo detect new files in this folder.
static SDK_SOURCES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/../sdk-guest/src");

/// Returns the source files of the SDK, which have no placeholders.
pub(super) fn sdk_sources() -> Vec<(String, &'static str)> {
    rust_files(&SDK_SOURCES)
}

fn rust_files(folder: &'static Dir<'static>) -> Vec<(String, &'static str)> {
    let files = folder.files().filter(|file| file.path().extension().is_some_and(|extension| extension == "rs"));
    let own = files.map(|file| {
        let text = file.contents_utf8().expect("Rust files are UTF-8");
        (format!("sdk/src/{}", file.path().display()), text)
    });
    own.chain(folder.dirs().flat_map(rust_files)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn repository() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn the_sdk_and_all_worlds_are_embedded() {
        let paths: Vec<String> = sdk_sources().into_iter().map(|(path, _)| path).collect();
        for path in ["sdk/src/lib.rs", "sdk/src/http/pages.rs", "sdk/src/testing/tests.rs"] {
            assert!(paths.iter().any(|embedded| embedded == path), "{path} is not in {paths:?}");
        }
        let worlds: Vec<_> = std::fs::read_dir(repository().join("wit/0.1.0")).unwrap().collect();
        assert_eq!(worlds.len(), 1, "CONTRACT lists the files of wit/0.1.0");
    }

    #[test]
    fn the_manifest_of_the_sdk_agrees_with_its_own() {
        let read =
            |path: &str| -> toml::Table { std::fs::read_to_string(repository().join(path)).unwrap().parse().unwrap() };
        let (root, own) = (read("Cargo.toml"), read("sdk-guest/Cargo.toml"));
        let text = SDK_PACKAGE[0].1.replace("{{version}}", root["workspace"]["package"]["version"].as_str().unwrap());
        let alone: toml::Table = text.parse().unwrap();
        for (section, shared) in [("package", "package"), ("dependencies", "dependencies")] {
            let resolved: toml::Table = own[section]
                .as_table()
                .unwrap()
                .iter()
                .map(|(key, value)| match value.get("workspace") {
                    Some(_) => (key.clone(), root["workspace"][shared][key].clone()),
                    None => (key.clone(), value.clone()),
                })
                .collect();
            assert_eq!(*alone[section].as_table().unwrap(), resolved, "scaffold/sdk/Cargo.toml.in: {section}");
        }
    }
}
