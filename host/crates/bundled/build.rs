//! Builds the components of the plugins that are part of the program, for WebAssembly.
//!
//! The build runs cargo on packages of the workspace `plugins-wasm`, in a target folder of its own: cargo holds the lock
//! of the outer target folder and would wait for itself. `MONSTRUM_BUNDLED_DIR` names a folder with ready-made
//! components, for packagers.

#![expect(clippy::disallowed_methods, reason = "cargo passes the settings of a build script in the environment")]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARGET: &str = "wasm32-wasip2";
/// The folder with ready-made components.
const READY_MADE: &str = "MONSTRUM_BUNDLED_DIR";
/// The workspace of the plugins, relative to this package.
const PLUGINS: &str = "../../../plugins-wasm";
/// The features of this package, with the plugin that each embeds.
const BUNDLED: [(&str, &str); 1] = [("CARGO_FEATURE_DEMO", "notebook")];

fn main() {
    println!("cargo::rerun-if-env-changed={READY_MADE}");
    println!("cargo::rerun-if-changed=build.rs");
    let names: Vec<&str> =
        BUNDLED.iter().filter(|(feature, _)| env::var_os(feature).is_some()).map(|(_, name)| *name).collect();
    if names.is_empty() {
        return;
    }
    if let Err(message) = bundle(&names) {
        for line in message.lines() {
            println!("cargo::error={line}");
        }
    }
}

fn bundle(names: &[&str]) -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo has not set OUT_DIR")?);
    let folder = match env::var_os(READY_MADE) {
        Some(folder) => PathBuf::from(folder),
        None => build(names, &out)?,
    };
    for name in names {
        let (from, to) = (folder.join(format!("{name}.wasm")), out.join(format!("{name}.wasm")));
        fs::copy(&from, &to).map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))?;
    }
    Ok(())
}

/// Builds the components and returns the folder that contains them.
fn build(names: &[&str], out: &Path) -> Result<PathBuf, String> {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join(PLUGINS);
    for file in names.iter().copied().chain(["Cargo.lock", "Cargo.toml", "../sdk-guest", "../wit"]) {
        println!("cargo::rerun-if-changed={}", plugins.join(file).display());
    }
    let target = target_folder(out).join("bundled");
    let offline = is_complete(&plugins);
    let mut cargo = cargo(&plugins);
    cargo.args(["build", "--locked", "--release", "--target", TARGET, "--target-dir"]).arg(&target);
    if offline {
        cargo.arg("--offline");
    }
    for name in names {
        cargo.args(["--package", name]);
    }
    let Output { status, stderr, .. } = cargo.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() {
        return Ok(target.join(TARGET).join("release"));
    }
    let said = String::from_utf8_lossy(&stderr);
    // The compiler says E0463 if the standard library of the target is not installed.
    if said.contains("E0463") && said.contains(TARGET) {
        return Err(format!(
            "the plugins that are part of the program need the target {TARGET}; run `rustup target add {TARGET}`"
        ));
    }
    Err(format!("cannot build the plugins that are part of the program:\n{said}"))
}

/// Returns whether all crates of the plugins are on this machine, so that the build does not need the network. Cargo
/// does not tell build scripts whether it runs with `--offline`.
fn is_complete(plugins: &Path) -> bool {
    let mut cargo = cargo(plugins);
    cargo.args(["fetch", "--locked", "--offline", "--target", TARGET]);
    cargo.output().is_ok_and(|output| output.status.success())
}

/// Returns a cargo command without the settings of the outer build: a build for clippy or for coverage must not change
/// the components. Settings of cargo's home and of the network stay.
fn cargo(plugins: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os().filter(|(name, _)| is_of_the_build(name)) {
        command.env_remove(name);
    }
    // Cargo searches configuration files upward from the working directory.
    command.current_dir(plugins);
    command
}

fn is_of_the_build(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_kept = name == "CARGO_HOME" || name.starts_with("CARGO_NET_") || name.starts_with("CARGO_HTTP_");
    !is_kept && ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the outer target folder, which cargo marks with a file. `out` lies in it.
fn target_folder(out: &Path) -> &Path {
    out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()).unwrap_or(out)
}
