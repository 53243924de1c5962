//! The release build of another revision, in a git worktree with a target folder of its own. Both are kept in
//! `target/against`, so that a second comparison builds only what has changed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use support::Build;

/// A revision and its build.
pub struct Checkout {
    /// The abbreviated id of the commit.
    pub revision: String,
    pub build: Build,
}

impl Checkout {
    /// Checks out `revision` below the target folder `target` of this build, and builds its programs and plugins.
    pub fn of(revision: &str, target: &Path) -> Result<Checkout> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let commit = format!("{revision}^{{commit}}");
        let commit = output(Command::new("git").current_dir(&repository).args(["rev-parse", "--verify", &commit]))?;
        let short = output(Command::new("git").current_dir(&repository).args(["rev-parse", "--short", &commit]))?;
        let folder = target.join("against").join(&short);
        let place = Place { source: folder.join("source"), target: folder.join("target") };
        place.check_out(&repository, &commit)?;
        println!("  building {short} in {} (takes a few minutes the first time) …", folder.display());
        place.build()?;
        Ok(Checkout { revision: short, build: Build::release(&place.target) })
    }
}

/// The folders of a checkout.
struct Place {
    source: PathBuf,
    target: PathBuf,
}

impl Place {
    fn check_out(&self, repository: &Path, commit: &str) -> Result<()> {
        if self.source.join(".git").exists() {
            let checkout = ["checkout", "--quiet", "--force", "--detach", commit];
            return run(Command::new("git").current_dir(&self.source).args(checkout));
        }
        std::fs::create_dir_all(&self.source).with_context(|| format!("cannot create {}", self.source.display()))?;
        // `--force` replaces the entry of a worktree whose folder was removed together with the target folder.
        let add = ["worktree", "add", "--quiet", "--force", "--detach"];
        run(Command::new("git").current_dir(repository).args(add).arg(&self.source).arg(commit))
    }

    fn build(&self) -> Result<()> {
        let packages = ["--package", "monstrum-host", "--package", "monstrum-tests"];
        run(self.cargo().args(["build", "--locked", "--release", "--bins"]).args(packages))?;
        run(self.cargo().args(["xtask", "plugins", "--test"]))?;
        let bench = self.target.join("release/bench");
        ensure!(bench.is_file(), "{} is missing; the revision has no benches", bench.display());
        Ok(())
    }

    /// Returns a cargo command for the checkout. It does not inherit the toolchain of this build, so that the
    /// rust-toolchain.toml of the checkout applies.
    fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.source).env("CARGO_TARGET_DIR", &self.target);
        cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").stdin(Stdio::null());
        cargo
    }
}

/// Runs a program. Its standard output is not shown, because only results are printed there.
fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a program and returns its standard output. The program inherits standard error.
fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        bail!("{shown} failed with {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)
        .with_context(|| format!("the output of {shown} is not valid UTF-8"))?
        .trim()
        .to_owned())
}
