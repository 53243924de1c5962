//! Installs prerequisites that a fresh machine lacks: WebAssembly targets, subcommands of cargo, and the Debian
//! packages and the peers of the tests.

mod peers;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repository::Repository;
use crate::steps::{ask, run, say};

pub(crate) use peers::{console_browser, litellm_proxy, mcp_clients, mcp_conformance, oauth_server, openai_clients};

/// The target for which `cargo build`, without cargo-component, compiles a plugin.
pub(crate) const WASIP2: &str = "wasm32-wasip2";
/// The target to which cargo-component compiles before it creates a component.
pub(crate) const WASIP1: &str = "wasm32-wasip1";

/// The version of cargo-component that the tests use.
const CARGO_COMPONENT: &str = "0.21.1";

/// The version of cargo-deny that reads `deny.toml`.
const CARGO_DENY: &str = "0.20.2";

/// Installs the standard library of `targets` for the toolchain of this repository.
pub(crate) fn wasm_targets(repository: &Repository, targets: &[&str]) -> Result<()> {
    for target in targets {
        let folder = ask(repository.command("rustc").args(["--print", "target-libdir", "--target", target]));
        if folder.is_some_and(|folder| Path::new(&folder).is_dir()) {
            continue;
        }
        run(repository.command("rustup").args(["target", "add", target])).with_context(|| {
            format!("cannot install the required Rust target {target}; install rustup and try again")
        })?;
    }
    Ok(())
}

/// Installs the Debian package `package` if its program `program` is missing.
pub(crate) fn debian(program: &str, package: &str) -> Result<()> {
    if ask(Command::new(program).arg("--version")).is_some() {
        return Ok(());
    }
    install(program, package)
}

/// Installs PostgreSQL if no version of it is found in `/usr/lib/postgresql`, where Debian installs its programs.
pub(crate) fn postgresql() -> Result<()> {
    let mut versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    if versions.any(|version| version.path().join("bin/initdb").is_file()) {
        return Ok(());
    }
    install("PostgreSQL", "postgresql")
}

/// The programs that sandboxes need, each with its Debian package. The paths are absolute, because some users have a
/// PATH without these folders.
const OF_SANDBOXES: [(&str, &str); 9] = [
    ("/sbin/mkfs.ext4", "e2fsprogs"),
    ("/sbin/nft", "nftables"),
    ("/sbin/ip", "iproute2"),
    ("/usr/sbin/debootstrap", "debootstrap"),
    ("/usr/bin/python3", "python3"),
    ("/usr/bin/git", "git"),
    ("/usr/bin/curl", "curl"),
    ("/usr/bin/node", "nodejs"),
    ("/usr/bin/pkill", "procps"),
];

/// Installs each missing program of [`OF_SANDBOXES`]: the host uses some of these programs to create sandboxes, and
/// sandboxes contain the remaining ones.
pub(crate) fn sandboxes() -> Result<()> {
    OF_SANDBOXES
        .iter()
        .filter(|(program, _)| !Path::new(program).exists())
        .try_for_each(|(p, package)| install(p, package))
}

fn install(what: &str, package: &str) -> Result<()> {
    let is_root = ask(Command::new("id").arg("-u")).is_some_and(|id| id == "0");
    let has_apt = ask(Command::new("apt-get").arg("--version")).is_some();
    if !(is_root && has_apt) {
        bail!("`{what}` is missing; install it (on Debian: sudo apt-get install {package})");
    }
    say(&format!("installing {package}"));
    // A mirror may fail temporarily, and a machine that has just started may be installing updates.
    let patience = ["-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"];
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq").args(patience);
        command
    };
    run(apt().arg("update"))?;
    run(apt().args(["install", "--yes", "--no-install-recommends", package]))
}

/// Installs cargo-component if it is missing or has another version.
pub(crate) fn cargo_component(repository: &Repository) -> Result<()> {
    cargo_tool(repository, "component", CARGO_COMPONENT)
}

/// Installs cargo-deny if it is missing or has another version.
pub(crate) fn cargo_deny(repository: &Repository) -> Result<()> {
    cargo_tool(repository, "deny", CARGO_DENY)
}

/// Installs a subcommand of cargo in cargo's own folder, so that all checkouts share it. The subcommand is built
/// without optimisation, because it runs only for seconds and a release build takes three times as long. If the
/// installation is interrupted, the next run continues it.
fn cargo_tool(repository: &Repository, subcommand: &str, version: &str) -> Result<()> {
    let installed = ask(repository.command("cargo").args([subcommand, "--version"])).unwrap_or_default();
    if installed.split_whitespace().any(|word| word == version) {
        return Ok(());
    }
    say(&format!("installing cargo-{subcommand} {version} (takes several minutes, once)"));
    let built = repository.target(&format!("cargo-{subcommand}-{version}"));
    let mut cargo = repository.command("cargo");
    // The program needs no debug information.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "none").args(["install", "--locked", "--debug", "--target-dir"]).arg(&built);
    run(cargo.arg(format!("cargo-{subcommand}@{version}")))?;
    std::fs::remove_dir_all(&built).with_context(|| format!("cannot remove {}", built.display()))
}
