//! What a new plugin consists of. The files are in this program, so that an author needs no checkout and no network but
//! cargo's registry, and has the SDK and the contract of the very host that will load the plugin.

/// A file of the new folder: its path and its text, in which `{{…}}` is filled in.
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

macro_rules! sdk_sources {
    ($($path:literal),* $(,)?) => {
        &[$((
            concat!("sdk/src/", $path),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk-guest/src/", $path)),
        )),*]
    };
}

/// The plugin itself.
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

/// The package of the SDK, which stands alone here.
pub(super) const SDK_PACKAGE: &[File] = scaffold!["sdk/Cargo.toml" from "sdk/Cargo.toml.in"];

/// What is the same wherever it lies. Nothing is filled in.
pub(super) const CONTRACT: &[File] = repository![
    "wit/0.1.0/world.wit" from "wit/0.1.0/world.wit",
    "sdk/LICENSE-MIT" from "LICENSE-MIT",
    "sdk/LICENSE-APACHE" from "LICENSE-APACHE",
];

/// The SDK's code. Nothing is filled in.
pub(super) const SDK_SOURCES: &[File] = sdk_sources![
    "credentials.rs",
    "error.rs",
    "executor.rs",
    "functions.rs",
    "glob.rs",
    "host.rs",
    "http.rs",
    "http/pages.rs",
    "http/path.rs",
    "http/response.rs",
    "lib.rs",
    "log.rs",
    "outcome.rs",
    "request.rs",
    "sandbox.rs",
    "testing.rs",
    "testing/answer.rs",
    "testing/host.rs",
    "testing/sandbox.rs",
    "testing/tests.rs",
    "tools.rs",
    "wit.rs",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn repository() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    fn rust_files(folder: &Path, below: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{below}/{}", path.file_name().unwrap().to_str().unwrap());
            if path.is_dir() { rust_files(&path, &name, found) } else { found.extend([name]) }
        }
    }

    #[test]
    fn the_whole_sdk_comes_along() {
        let mut present = BTreeSet::new();
        rust_files(&repository().join("sdk-guest/src"), "sdk/src", &mut present);
        let embedded: BTreeSet<String> = SDK_SOURCES.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(embedded, present, "SDK_SOURCES lists the files of sdk-guest/src");
        let worlds: Vec<_> = std::fs::read_dir(repository().join("wit/0.1.0")).unwrap().collect();
        assert_eq!(worlds.len(), 1, "CONTRACT lists the files of wit/0.1.0");
    }

    #[test]
    fn the_package_of_the_sdk_says_what_its_own_says() {
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
