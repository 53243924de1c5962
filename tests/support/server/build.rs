//! The programs and the plugins that cargo has built from one revision.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The folder of a profile in a target folder of cargo.
#[derive(Clone, Debug)]
pub struct Build {
    profile: PathBuf,
}

impl Build {
    /// Returns the build to which the current program belongs. Programs are in the folder of the profile, and tests are
    /// in its folder `deps`.
    pub fn current() -> Result<Build> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let folder = program.parent().context("this program is in no folder")?;
        let is_test = folder.file_name().is_some_and(|name| name == "deps");
        let profile = if is_test { folder.parent().context("the folder `deps` has no parent folder")? } else { folder };
        Ok(Build { profile: profile.to_owned() })
    }

    /// Returns the release build in the target folder `target`.
    #[must_use]
    pub fn release(target: &Path) -> Build {
        Build { profile: target.join("release") }
    }

    /// Returns the path of the program `name`.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let program = self.profile.join(name);
        if !program.is_file() {
            bail!("{} is missing; run: cargo xtask test", program.display());
        }
        Ok(program)
    }

    /// Returns the folder of the plugin `name`, which is in `plugins` or, for names that start with `test-`, in
    /// `test-plugins` of the target folder.
    pub fn plugin(&self, name: &str) -> Result<PathBuf> {
        let folder = if name.starts_with("test-") { "test-plugins" } else { "plugins" };
        let plugin = self.target()?.join(folder).join(name);
        if !plugin.is_dir() {
            bail!("{} is missing; run: cargo xtask plugins --test", plugin.display());
        }
        Ok(plugin)
    }

    /// Returns cargo's target folder.
    pub fn target(&self) -> Result<&Path> {
        self.profile.parent().context("the folder of the profile is not in the target folder")
    }
}
