//! Builds the plugins of `plugins-wasm` and creates a folder for each plugin, in the layout that a server loads.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::repository::Repository;
use crate::setup::WASIP2;
use crate::steps::run;

/// The plugin that contains a JavaScript engine. A native build of it takes minutes, so it has no native tests.
pub(crate) const ENGINE_PLUGIN: &str = "code";

/// The build profiles of plugins. The second one is that of [`ENGINE_PLUGIN`]; `plugins-wasm/Cargo.toml` has the reason.
const PROFILES: [&str; 2] = ["release", "engine"];

/// The purpose of a plugin.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A plugin for users.
    Reference,
    /// A plugin that misbehaves, for tests and the demo.
    Guest,
}

impl Kind {
    /// Returns the kind of a folder in `plugins-wasm` by its name.
    fn of(name: &str) -> Kind {
        if name.starts_with("test-") { Kind::Guest } else { Kind::Reference }
    }

    fn folder(self) -> &'static str {
        match self {
            Kind::Reference => "plugins",
            Kind::Guest => "test-plugins",
        }
    }
}

/// Builds all plugins of `kinds` and returns their folders.
pub(crate) fn build(repository: &Repository, kinds: &[Kind]) -> Result<Vec<PathBuf>> {
    let names: Vec<String> = names(repository)?.into_iter().filter(|name| kinds.contains(&Kind::of(name))).collect();
    for profile in PROFILES {
        let of_profile: Vec<&String> = names.iter().filter(|name| profile_of(name) == profile).collect();
        if of_profile.is_empty() {
            continue;
        }
        let mut cargo = repository.cargo_of_plugins();
        cargo.args(["build", "--locked", "--profile", profile, "--target", WASIP2]);
        for name in of_profile {
            cargo.args(["--package", name]);
        }
        run(&mut cargo)?;
    }
    let lay_out_one = |name: &String| {
        let built = repository.target("plugins-wasm").join(WASIP2).join(profile_of(name));
        let folder = repository.target(Kind::of(name).folder()).join(name);
        lay_out(repository, name, &built.join(file_name(name)), &folder)?;
        Ok(folder)
    };
    names.iter().map(lay_out_one).collect()
}

/// Returns the build profile of a plugin, which is also the name of the folder of its component.
fn profile_of(name: &str) -> &'static str {
    let [usual, of_engine] = PROFILES;
    if name == ENGINE_PLUGIN { of_engine } else { usual }
}

/// Creates `folder` with the files of plugin `name` and the built component `component`. Replaces an existing folder.
pub(crate) fn lay_out(repository: &Repository, name: &str, component: &Path, folder: &Path) -> Result<()> {
    let source = repository.path("plugins-wasm").join(name);
    let parent = folder.parent().context("a plugin's folder has no parent folder")?;
    let staging = parent.join(format!(".{name}.new"));
    make_dir(parent)?;
    remove(&staging)?;
    make_dir(&staging)?;
    copy(&source.join("monstrum.yaml"), &staging.join("monstrum.yaml"))?;
    copy(component, &staging.join("plugin.wasm"))?;
    let locales = source.join("locales");
    if locales.is_dir() {
        make_dir(&staging.join("locales"))?;
        for entry in entries(&locales)? {
            copy(
                &entry,
                &staging.join("locales").join(entry.file_name().context("an entry of a folder has no name")?),
            )?;
        }
    }
    remove(folder)?;
    fs::rename(&staging, folder).with_context(|| format!("cannot move {} into place", folder.display()))
}

/// Returns the file name of the component that cargo builds from package `name`.
pub(crate) fn file_name(name: &str) -> String {
    format!("{}.wasm", name.replace('-', "_"))
}

/// Returns the names of the repository's plugins, sorted.
fn names(repository: &Repository) -> Result<Vec<String>> {
    let root = repository.path("plugins-wasm");
    let mut names: Vec<String> = entries(&root)?
        .into_iter()
        .filter(|path| path.join("Cargo.toml").is_file())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    if names.is_empty() {
        bail!("no plugins found in {}", root.display());
    }
    Ok(names)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect();
    let entries: std::io::Result<Vec<PathBuf>> = read();
    entries.with_context(|| format!("cannot read {}", folder.display()))
}

/// Creates a folder that only its owner can write, independent of the umask. A server rejects a plugin that other users
/// can write.
fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot create the folder {}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .and_then(|_| fs::set_permissions(to, Permissions::from_mode(0o644)))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_told_from_plugins_by_their_names() {
        let kinds = ["github", "test-loop", "testing"].map(|name| Kind::of(name) == Kind::Guest);
        assert_eq!(kinds, [false, true, false]);
        assert_eq!(file_name("test-wrong-world"), "test_wrong_world.wasm");
        assert_eq!(["github", "code"].map(profile_of), ["release", "engine"]);
    }
}
