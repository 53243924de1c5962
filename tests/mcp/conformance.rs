//! The official conformance suite of the protocol, npm `@modelcontextprotocol/conformance`, against the MCP server of a
//! bot and against the client of resources of type `mcp`. `cargo xtask test` installs the suite in
//! `target/mcp-conformance`.
//!
//! What fails is listed with its reason in `tests/mcp-conformance/`. A failure that is not listed, and a listed failure
//! that passes, fail the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use support::{Build, CheckStatus, ConformanceCheck, ConformanceRun, Side};
use tokio::process::Command;

/// The time limit of all runs, on a machine that runs other tests.
const SUITE_MAX: Duration = Duration::from_secs(600);
const SERVER_FAILURES: &str = include_str!("../mcp-conformance/server-failures.yaml");
const CLIENT_FAILURES: &str = include_str!("../mcp-conformance/client-failures.yaml");

#[tokio::test]
async fn the_suite_finds_no_failure_without_a_known_reason() -> Result<()> {
    let program = Build::current()?.program("conformance")?;
    let mut command = isolated(&program).await?;
    command.arg("run").stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    let ended = tokio::time::timeout(SUITE_MAX, command.output()).await.context("the conformance suite hangs")?;
    let output = ended.context("the conformance suite cannot be run")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the conformance suite could not be run: {printed}");
    let runs: Vec<ConformanceRun> = serde_json::from_str(&printed).context("the results are not JSON")?;
    let mut verdict = Verdict::default();
    for (side, text) in [(Side::Server, SERVER_FAILURES), (Side::Client, CLIENT_FAILURES)] {
        let runs: Vec<&ConformanceRun> = runs.iter().filter(|run| run.side == side).collect();
        verdict.judge(&runs, &Expected::read(text)?);
    }
    ensure!(verdict.faults.is_empty(), "{}{}", verdict.summary, verdict.faults.join("\n"));
    println!("{}", verdict.summary);
    assert_snapshot!(verdict.summary, @"
    server 2026-07-28: 13 scenarios pass, 2 in part, 34 fail as expected; no check in tasks-status-notifications
    server 2025-11-25: 13 scenarios pass, 0 in part, 19 fail as expected; no check in server-sse-polling
    client 2026-07-28: 28 scenarios pass, 1 in part, 10 fail as expected
    client 2025-11-25: 15 scenarios pass, 0 in part, 10 fail as expected
    ");
    Ok(())
}

/// Returns a command that runs `program` where the only network is the loopback interface. When the command is killed,
/// the processes that the program has started end too.
async fn isolated(program: &Path) -> Result<Command> {
    let unshare = || {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--net", "--pid", "--fork", "--kill-child"]);
        command
    };
    let probe =
        unshare().arg("true").output().await.context("`unshare` of the Debian package util-linux is missing")?;
    ensure!(
        probe.status.success(),
        "the conformance suite listens on all addresses, so it runs only in a network namespace of its own, which this \
         machine does not permit; run the tests as root, or permit user namespaces: {}",
        String::from_utf8_lossy(&probe.stderr)
    );
    let mut command = unshare();
    command.args(["sh", "-c", "PATH=$PATH:/sbin:/usr/sbin; ip link set lo up && exec \"$@\"", "sh"]).arg(program);
    Ok(command)
}

/// The failures that are known, each with its reason. The files have the form of the suite's own lists; a comment above
/// the entries says why they fail.
#[derive(Debug, Default)]
struct Expected {
    /// Scenarios that may fail as a whole.
    scenarios: BTreeSet<String>,
    /// The checks that may fail, by scenario.
    checks: BTreeMap<String, BTreeSet<String>>,
}

impl Expected {
    fn read(text: &str) -> Result<Expected> {
        let mut expected = Expected::default();
        let mut has_reason = false;
        for line in text.lines().map(str::trim) {
            if line.is_empty() {
                has_reason = false;
            } else if line.starts_with('#') {
                has_reason = true;
            } else if let Some(entry) = line.strip_prefix("- ") {
                ensure!(has_reason, "{entry} has no reason");
                let is_new = match entry.split_once(':') {
                    Some((scenario, check)) => {
                        expected.checks.entry(scenario.to_owned()).or_default().insert(check.to_owned())
                    }
                    None => expected.scenarios.insert(entry.to_owned()),
                };
                ensure!(is_new, "{entry} is listed twice");
            }
        }
        for scenario in expected.checks.keys() {
            ensure!(!expected.scenarios.contains(scenario), "{scenario} is listed as a whole and with single checks");
        }
        Ok(expected)
    }
}

/// What the results of the suite mean.
#[derive(Debug, Default)]
struct Verdict {
    /// A line for each run.
    summary: String,
    faults: Vec<String>,
}

impl Verdict {
    /// Compares the runs of one side with the expected failures.
    fn judge(&mut self, runs: &[&ConformanceRun], expected: &Expected) {
        let mut unused: BTreeSet<String> = expected.scenarios.clone();
        for (scenario, checks) in &expected.checks {
            unused.extend(checks.iter().map(|check| format!("{scenario}:{check}")));
        }
        for run in runs {
            self.judge_run(run, expected, &mut unused);
        }
        self.faults.extend(unused.into_iter().map(|entry| format!("{entry} is listed, and no run has this failure")));
    }

    fn judge_run(&mut self, run: &ConformanceRun, expected: &Expected, unused: &mut BTreeSet<String>) {
        let title = format!("{} {}", run.side.name(), run.revision);
        let (mut passed, mut partly, mut failed, mut skipped) = (0, 0, 0, Vec::new());
        for (scenario, checks) in &run.scenarios {
            let checks = worst(checks);
            let fails: Vec<&ConformanceCheck> =
                checks.values().copied().filter(|check| is_failure(check.status)).collect();
            let is_listed = expected.scenarios.contains(scenario);
            if !fails.is_empty() {
                *if is_listed { &mut failed } else { &mut partly } += 1;
            } else if checks.values().any(|check| check.status == CheckStatus::Success) {
                passed += 1;
            } else {
                skipped.push(scenario.as_str());
            }
            if is_listed {
                unused.remove(scenario);
                if fails.is_empty() {
                    self.faults.push(format!("{title}: {scenario} passes; it must not be listed"));
                }
                continue;
            }
            self.judge_checks(&format!("{title}: {scenario}"), (scenario, &checks, &fails), expected, unused);
        }
        let skipped = if skipped.is_empty() { String::new() } else { format!("; no check in {}", skipped.join(", ")) };
        let counts = format!("{passed} scenarios pass, {partly} in part, {failed} fail as expected{skipped}");
        let _ = writeln!(self.summary, "{title}: {counts}");
    }

    /// Compares the checks of a scenario that must not fail as a whole.
    fn judge_checks(
        &mut self,
        title: &str,
        (scenario, checks, fails): (&str, &BTreeMap<&String, &ConformanceCheck>, &[&ConformanceCheck]),
        expected: &Expected,
        unused: &mut BTreeSet<String>,
    ) {
        let none = BTreeSet::new();
        let listed = expected.checks.get(scenario).unwrap_or(&none);
        for check in fails {
            if listed.contains(&check.id) {
                unused.remove(&format!("{scenario}:{}", check.id));
            } else {
                self.faults.push(format!("{title}:{} fails: {}", check.id, check.error));
            }
        }
        let passes = |id: &&String| checks.get(*id).is_some_and(|check| check.status == CheckStatus::Success);
        let stale = listed.iter().filter(passes);
        self.faults.extend(stale.map(|id| format!("{title}:{id} passes; it must not be listed")));
    }
}

fn is_failure(status: CheckStatus) -> bool {
    matches!(status, CheckStatus::Failure | CheckStatus::Warning)
}

/// Returns the worst result of each check, by its id.
fn worst(checks: &[ConformanceCheck]) -> BTreeMap<&String, &ConformanceCheck> {
    let rank = |check: &ConformanceCheck| match check.status {
        CheckStatus::Failure => 4,
        CheckStatus::Warning => 3,
        CheckStatus::Success => 2,
        CheckStatus::Info => 1,
        CheckStatus::Skipped => 0,
    };
    let mut found: BTreeMap<&String, &ConformanceCheck> = BTreeMap::new();
    for check in checks {
        let held = found.entry(&check.id).or_insert(check);
        if rank(check) > rank(held) {
            *held = check;
        }
    }
    found
}

#[test]
fn failures_that_are_not_listed_and_entries_that_pass_are_faults() -> Result<()> {
    let check = |id: &str, status| ConformanceCheck { id: id.to_owned(), status, error: "why".to_owned() };
    let (good, bad, doubtful) = (CheckStatus::Success, CheckStatus::Failure, CheckStatus::Warning);
    let scenarios = [
        ("fails", vec![check("a", good), check("a", bad)]),
        ("passes", vec![check("a", good), check("b", CheckStatus::Skipped)]),
        ("partly", vec![check("a", doubtful), check("b", bad), check("c", good)]),
        ("listed", vec![check("a", bad)]),
        ("empty", vec![check("a", CheckStatus::Info), check("b", CheckStatus::Skipped)]),
    ];
    let scenarios = scenarios.map(|(name, checks)| (name.to_owned(), checks)).into();
    let run = ConformanceRun { side: Side::Client, revision: "2026-07-28".to_owned(), scenarios };
    let expected = "# Reason\n- listed\n- passes\n- absent\n\n# Another\n- partly:b\n- partly:c\n- partly:d\n";
    let mut verdict = Verdict::default();
    verdict.judge(&[&run], &Expected::read(expected)?);
    verdict.faults.insert(0, verdict.summary);
    assert_snapshot!(verdict.faults.join("\n"), @"
    client 2026-07-28: 1 scenarios pass, 2 in part, 1 fail as expected; no check in empty

    client 2026-07-28: fails:a fails: why
    client 2026-07-28: partly:a fails: why
    client 2026-07-28: partly:c passes; it must not be listed
    client 2026-07-28: passes passes; it must not be listed
    absent is listed, and no run has this failure
    partly:c is listed, and no run has this failure
    partly:d is listed, and no run has this failure
    ");
    for wrong in ["- a", "# Reason\n- a\n\n- b", "# Reason\n- a\n- a", "# Reason\n- a:b\n- a"] {
        assert!(Expected::read(wrong).is_err(), "{wrong}");
    }
    Ok(())
}
