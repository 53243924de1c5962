//! Paths of the repository and of the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The checkout of this repository, and its build folder.
pub(crate) struct Repository {
    root: PathBuf,
    target: PathBuf,
}

impl Repository {
    /// Finds the repository. `target` is cargo's build folder; `None` means the folder `target` of the repository.
    pub(crate) fn new(target: Option<PathBuf>) -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root =
            manifest.ancestors().nth(3).context("xtask is not in the folder host/crates of a repository")?.to_owned();
        let target = match target {
            Some(target) => std::path::absolute(target).context("cannot find the working directory")?,
            None => root.join("target"),
        };
        Ok(Repository { root, target })
    }

    /// Returns the path of a file or folder of the repository.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Returns the path of a file or folder in the build folder.
    pub(crate) fn target(&self, relative: &str) -> PathBuf {
        self.target.join(relative)
    }

    /// Returns the path of a program that cargo has built.
    pub(crate) fn binary(&self, profile: &str, name: &str) -> PathBuf {
        self.target.join(profile).join(name)
    }

    /// Returns a command that runs `program` in the repository, so that rust-toolchain.toml applies.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        command
    }

    /// Returns a cargo command for the workspace of the host.
    pub(crate) fn cargo(&self) -> Command {
        self.command("cargo")
    }

    /// Returns a cargo command for the workspace of the plugins. The command uses a different target folder than the
    /// workspace of the host, so that the two workspaces neither wait for each other's lock nor overwrite each other's
    /// files.
    pub(crate) fn cargo_of_plugins(&self) -> Command {
        let mut command = self.command("cargo");
        command.current_dir(self.path("plugins-wasm")).env("CARGO_TARGET_DIR", self.target("plugins-wasm"));
        command
    }
}
