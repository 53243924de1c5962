//! npm `@modelcontextprotocol/conformance`, the official conformance suite of the Model Context Protocol, which `cargo
//! xtask test` installs in `target/mcp-conformance`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use monstrum_search::files_beneath;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::Build;
use crate::mcp::node;

/// The time limit of a scenario. The scenarios of clients run at the same time, each with a process of its own.
const SCENARIO_MAX_MS: &str = "120000";
/// The file with the results of a scenario, in a folder of the scenario.
const RESULTS: &str = "checks.json";
/// The length of the time, and the hyphen before it, at the end of the name of a scenario's folder.
const TIME_CHARS: usize = "-2026-07-28T00-00-00-000Z".len();

/// The side of the protocol that the suite tests. The suite acts as the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    Server,
    Client,
}

/// The results of the scenarios that a revision requires of one side.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConformanceRun {
    pub side: Side,
    pub revision: String,
    /// The checks of each scenario.
    pub scenarios: BTreeMap<String, Vec<ConformanceCheck>>,
}

/// A check of a scenario. Checks of one scenario may have the same id.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConformanceCheck {
    pub id: String,
    pub status: CheckStatus,
    #[serde(default, rename = "errorMessage")]
    pub error: String,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CheckStatus {
    Success,
    Failure,
    Warning,
    Skipped,
    Info,
}

/// The installed suite.
pub struct ConformanceSuite {
    folder: PathBuf,
    node: PathBuf,
}

impl Side {
    /// Returns the command of the suite that tests this side.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Side::Server => "server",
            Side::Client => "client",
        }
    }
}

impl ConformanceSuite {
    /// Finds the suite.
    pub fn installed() -> Result<ConformanceSuite> {
        let folder = Build::current()?.target()?.join("mcp-conformance");
        let installed = folder.join("installed");
        ensure!(installed.is_file(), "{} is missing; `cargo xtask test` installs the suite", installed.display());
        Ok(ConformanceSuite { folder, node: node()? })
    }

    /// Runs the scenarios that `revision` requires of `side`, with the options that `complete` adds, and writes the
    /// results to files in `results`. The suite listens on all addresses, so it must run in a network namespace of its
    /// own.
    pub async fn run(
        &self,
        side: Side,
        revision: &str,
        results: &Path,
        complete: impl FnOnce(&mut Command),
    ) -> Result<ConformanceRun> {
        let mut command = Command::new(&self.node);
        if side == Side::Client {
            command.arg("--import").arg(self.folder.join("loopback.mjs"));
        }
        command.arg(self.folder.join("node_modules/@modelcontextprotocol/conformance/dist/index.js"));
        command.args([side.name(), "--requirements", revision, "--timeout", SCENARIO_MAX_MS, "--output-dir"]);
        command.arg(results).env_remove("NODE_OPTIONS").stdin(Stdio::null()).kill_on_drop(true);
        complete(&mut command);
        // The exit code says whether a required scenario has failed, which the results say too.
        let output = command.output().await.context("the conformance suite cannot be run")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let names = listed(&printed);
        let scenarios = read_results(side, results)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(!names.is_empty(), "the conformance suite has run no scenario:\n{printed}\n{stderr}");
        for name in names {
            ensure!(scenarios.contains_key(name), "the suite could not run the scenario {name}:\n{stderr}");
        }
        Ok(ConformanceRun { side, revision: revision.to_owned(), scenarios })
    }
}

/// Returns the names of the scenarios in the summary that the suite prints.
fn listed(printed: &str) -> Vec<&str> {
    let results = printed.lines().filter_map(|line| line.strip_prefix("✓ ").or(line.strip_prefix("✗ ")));
    results.filter_map(|result| result.split_once(": ")).map(|(name, _)| name).collect()
}

/// Reads the results of all scenarios. The folder of a scenario has its name with the time at the end.
fn read_results(side: Side, results: &Path) -> Result<BTreeMap<String, Vec<ConformanceCheck>>> {
    let mut scenarios = BTreeMap::new();
    for file in files_beneath(results)?.into_iter().filter(|file| file.ends_with(RESULTS)) {
        let folder = file.parent().context("a file is in a folder")?.strip_prefix(results)?;
        let folder = folder.to_str().context("the name of a scenario is ASCII")?;
        let folder = if side == Side::Server { folder.strip_prefix("server-").unwrap_or(folder) } else { folder };
        let name = folder.get(..folder.len().saturating_sub(TIME_CHARS)).context("the folder has a time")?;
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut checks: Vec<ConformanceCheck> =
            serde_json::from_str(&text).with_context(|| format!("unexpected results of {name}"))?;
        // The output of a client says why it did not do what a check waited for.
        let output = std::fs::read_to_string(file.with_file_name("stdout.txt")).unwrap_or_default();
        for check in checks.iter_mut().filter(|check| check.error.is_empty() && check.status != CheckStatus::Success) {
            check.error.clone_from(&output);
        }
        scenarios.insert(name.to_owned(), checks);
    }
    Ok(scenarios)
}
