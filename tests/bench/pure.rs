//! Measures the parts that run no guest: the Guardian's decision, redaction, and the verification of the audit.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr;
use monstrum_core::audit::verify;
use monstrum_egress::Redactor;
use monstrum_guardian::{
    BindingRules, Decision, DimensionModes, Gate, GateAction, Gates, Grant, GrantSource, NO_GATES, Question,
    ScopeConstraints, SetSource, Subject, ToolRules, decide,
};
use monstrum_manifest::{MatchMode, ScopeDimension};
use monstrum_store::ScanFrom;
use monstrum_types::{Labels, Secret};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::governed::Host;
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::{OPERATION, TOOL};

/// The maximum time of a decision with 100 patterns on the reference machine.
const DECISION_MAX_US: f64 = 5.0;
/// The maximum time that three gates add to a decision on the reference machine.
const GATES_MAX_US: f64 = 1.0;

/// Measures the Guardian with increasing numbers of patterns, compared with one pattern.
pub fn guardian(machine: &Machine) -> Result<Vec<Row>> {
    let one = Judge::new(1, Shape::Literals)?;
    let row = |count: usize, shape: Shape| -> Result<Row> {
        let many = Judge::new(count, shape)?;
        let rounds = Rounds::of(21, (50, 100), || many.decide(), || one.decide());
        let name = format!("decision of the Guardian, {count} {}", shape.name());
        Ok(Row::reported((&name, "one pattern"), Measure::Time, &rounds))
    };
    let goal = machine.time_us(DECISION_MAX_US);
    let with_goal = |row: Row| {
        let is_met = row.median_us().is_some_and(|us| us <= goal);
        row.with_goal(&format!("<= {goal:.1} us"), is_met)
    };
    let gates = gates(machine)?;
    let rows =
        [with_goal(row(100, Shape::Globs)?), with_goal(row(100, Shape::Literals)?), row(10_000, Shape::Literals)?];
    Ok(rows.into_iter().chain([gates]).collect())
}

/// Measures a decision with three gates, of which one asks, compared with a decision without gates.
fn gates(machine: &Machine) -> Result<Row> {
    let set = |pattern: &str| Some(ScopeConstraints::from([("repos".to_owned(), vec![pattern.to_owned()])]));
    let ask = || Gate::of(GateAction::Ask);
    let gates = [
        Gate { tools: Some(vec!["jira_*".to_owned()]), ..ask() },
        Gate { operations: Some(vec![OPERATION.to_owned()]), unless: set("team-0/*"), ..ask() },
        Gate { when: set("team-*"), ..ask() },
    ];
    let without = Judge::new(1, Shape::Literals)?;
    let with = Judge { gates: Gates::new(&gates), ..Judge::new(1, Shape::Literals)? };
    ensure!(matches!(with.decide(), Decision::Ask(_)), "a gate asks");
    let rounds = Rounds::of(21, (50, 100), || with.decide(), || without.decide());
    let (goal, added) = (machine.time_us(GATES_MAX_US), rounds.subject().median_us - rounds.floor().median_us);
    let row = Row::reported(("decision of the Guardian, 3 gates", "no gate"), Measure::Time, &rounds);
    Ok(row.with_goal(&format!("<= {goal:.1} us added"), added <= goal))
}

#[derive(Clone, Copy)]
enum Shape {
    Literals,
    Globs,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::Literals => "literals",
            Shape::Globs => "globs",
        }
    }
}

/// A tool and a binding with a number of patterns. Only the last pattern matches.
struct Judge {
    tool: ToolRules,
    binding: BindingRules,
    params: Map<String, Value>,
    gates: Gates,
}

impl Judge {
    fn new(patterns: usize, shape: Shape) -> Result<Judge> {
        let dimensions = [repos()];
        let pattern = |number: usize| match shape {
            Shape::Literals => format!("team-{number}/repository-{number}"),
            Shape::Globs => format!("team-{number}/*-{number}"),
        };
        let tool =
            ToolRules::new(TOOL.parse().context("invalid tool name")?, OPERATION.to_owned(), &dimensions, |_| true);
        let grant = Grant { allowed_operations: Some(vec!["echo.*".to_owned()]), allowed_tools: None };
        let set = ScopeConstraints::from([("repos".to_owned(), (0..patterns).map(pattern).collect())]);
        let binding = BindingRules::new(
            &[(GrantSource::Role, grant)],
            &[(SetSource::Binding, set)],
            &DimensionModes::of(&dimensions),
        );
        let last = patterns - 1;
        let params = Map::from_iter([("repo".to_owned(), json!(format!("team-{last}/repository-{last}")))]);
        let judge = Judge { tool, binding, params, gates: NO_GATES.clone() };
        ensure!(judge.decide() == Decision::Allow, "the last pattern matches");
        Ok(judge)
    }

    fn decide(&self) -> Decision {
        let (tool, binding, bot_gates, labels) = (&self.tool, &self.binding, &self.gates, &Labels::ALL);
        let subject = Subject { tool, binding, delegation: &[], bot_gates, labels };
        decide(&subject, Question::Call(&self.params))
    }
}

fn repos() -> ScopeDimension {
    ScopeDimension {
        key: "repos".to_owned(),
        param_paths: vec!["repo".to_owned()],
        match_mode: MatchMode::Pattern,
        operation_filter: None,
        error_template: "Repository {value} is not authorized".to_owned(),
    }
}

/// Measures the redaction of 1 MB of text with 20 secrets.
pub fn redaction(machine: &Machine) -> Vec<Row> {
    const BYTES: usize = 1_000_000;
    let secret = |number: usize| format!("ghp_{number:02}xUq7Zk39Qd9xVt8LpW2mR4sT6yB1nC");
    let redactor = Redactor::new((0..20).map(|number| Secret::new(secret(number))));
    // Each run processes 1 MB, so one run per second is 1 MB/s.
    let rounds =
        |text: &str| Rounds::of(11, (10, 1), || redactor.redact_text(text.to_owned()), || memchr(0, text.as_bytes()));
    let text = answer_of_an_upstream(BYTES);
    let mut hits = text.clone();
    for number in 0..20 {
        let at = hits.floor_char_boundary(number * BYTES / 20);
        hits.replace_range(at..at + secret(number).len(), &secret(number));
    }
    let file = STANDARD.encode(&text.as_bytes()[..BYTES / 4 * 3]);
    let escaped: String = text.bytes().flat_map(|byte| format!("\\u{byte:04x}").into_bytes()).map(char::from).collect();
    let row = |name: &str, text: &str, goal: f64| {
        let goal = machine.megabytes(goal);
        let words = format!(">= {goal:.0} MB/s");
        Row::new((name, "memchr"), Measure::Megabytes, &rounds(text), &words, |_, side| side.per_second >= goal)
    };
    vec![
        row("redaction of 1 MB, 20 secrets, no secret in the text", &text, 200.0),
        row("the same, every secret in the text", &hits, 200.0),
        row("the same, text in base64", &file, 100.0),
        Row::reported(
            ("the same, every character a JSON escape", "memchr"),
            Measure::Megabytes,
            &rounds(&escaped[..BYTES]),
        ),
    ]
}

/// Creates JSON that resembles API responses: many URLs, some with percent signs, and texts with quotes and line
/// breaks.
fn answer_of_an_upstream(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 512);
    let mut number = 0;
    while text.len() < bytes {
        let api = format!("https://api.example.com/repos/acme/site/issues/{number}");
        let item = json!({
            "url": api, "comments_url": format!("{api}/comments"), "html_url": format!("https://example.com/acme/site/issues/{number}"),
            "id": 1_000_000 + number, "node_id": format!("MDU6SXNzdWU{number:07}=="), "number": number,
            "search_url": format!("https://api.example.com/search?q=repo%3Aacme%2Fsite+is%3Aopen&page={number}"),
            "title": format!("The build of \"site\" fails on branch {number}"),
            "user": { "login": format!("someone-{}", number % 50), "id": number % 50, "gravatar_id": "", "site_admin": false },
            "labels": [{ "name": "bug", "color": "f29513", "default": true }], "assignee": null, "state": "open",
            "created_at": "2026-04-22T13:33:48Z", "sha": format!("{:040x}", number * 7_919),
            "body": "Steps:\n1. check out\n2. build\n\nIt ends with an error that says nothing about the cause, and the log \
                     that is written to the folder is empty.",
        });
        text.push_str(&item.to_string());
        number += 1;
    }
    text.truncate(bytes);
    text
}

/// Measures the verification of the audit, compared with hashing the bytes of its rows.
pub async fn audit(host: &Host) -> Result<Row> {
    let app = host.app();
    let rows = canonical_rows(host).await?;
    let count = u32::try_from(rows.len()).context("the number of rows exceeds u32")?;
    let a_row = |began: Instant| {
        let each = began.elapsed() / count;
        Sample::new(vec![each], each)
    };
    let mut rounds = Rounds::default();
    for _ in 0..5 {
        let began = Instant::now();
        let hash = |rows: &[Vec<u8>]| rows.iter().fold(0, |sum, row| sum ^ Sha256::digest(row)[0]);
        let (one, other) = rows.split_at(rows.len() / 2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| black_box(hash(other)));
            black_box(hash(one));
            other.join().ok().context("hashing failed")
        })?;
        let floor = a_row(began);
        let began = Instant::now();
        let report = verify(&app.store, &app.audit_keys, &app.data_dir, None).await?;
        rounds.add(a_row(began), floor);
        ensure!(report.valid, "the verification of the audit failed: {:?}", report.problems);
    }
    let name = format!("audit verify, {count} rows");
    Ok(Row::new((&name, "sha256 of the same rows, two threads"), Measure::Rate, &rounds, ">= 0.5", |ratio, _| {
        ratio >= 0.5
    }))
}

async fn canonical_rows(host: &Host) -> Result<Vec<Vec<u8>>> {
    let store = &host.app().store;
    let mut rows = Vec::new();
    for writer in store.writers().await? {
        let mut from = Some(ScanFrom::START);
        while let Some(first) = from {
            let page = store.scan(&writer, first, 1000).await?;
            for row in page.rows {
                rows.push(row.map_err(|row| anyhow::anyhow!("an unreadable row: {}", row.what))?.canonical);
            }
            from = page.next;
        }
    }
    Ok(rows)
}
