//! Where things are: the repository, and the folder into which everything is built.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// This repository, checked out somewhere.
pub(crate) struct Repository {
    root: PathBuf,
    target: PathBuf,
}

impl Repository {
    /// `target` is where cargo was told to build, if it was told.
    pub(crate) fn new(target: Option<PathBuf>) -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.ancestors().nth(3).context("xtask is not in host/crates of a repository")?.to_owned();
        let target = match target {
            Some(target) => std::path::absolute(target).context("cannot find the working directory")?,
            None => root.join("target"),
        };
        Ok(Repository { root, target })
    }

    /// A file or folder of the repository.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// A file or folder that is built.
    pub(crate) fn target(&self, relative: &str) -> PathBuf {
        self.target.join(relative)
    }

    /// A program that cargo has built.
    pub(crate) fn binary(&self, profile: &str, name: &str) -> PathBuf {
        self.target.join(profile).join(name)
    }

    /// `program`, run in the repository, where rust-toolchain.toml holds.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        command
    }

    /// Cargo on the workspace of the host.
    pub(crate) fn cargo(&self) -> Command {
        self.command("cargo")
    }

    /// Cargo on the workspace of the plugins. Theirs is a target folder of its own, so that neither waits for the other's
    /// lock or mistakes the other's files for its own.
    pub(crate) fn cargo_of_plugins(&self) -> Command {
        let mut command = self.command("cargo");
        command.current_dir(self.path("plugins-wasm")).env("CARGO_TARGET_DIR", self.target("plugins-wasm"));
        command
    }
}
