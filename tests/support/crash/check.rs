//! Checks a server that was restarted after a kill, a stop or a power cut.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use super::load::{Asked, CHARGED_TOOL, COST, Kind, Loaded, Scene};
use crate::Server;

/// A promise of the server that does not hold after a restart.
#[derive(Debug)]
pub struct Fault(String);

impl std::fmt::Display for Fault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// Returns a [`Fault`] unless a condition holds.
macro_rules! promise {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(Fault(format!($($message)*)).into());
        }
    };
}

/// What a data folder is known to contain. Later states of the folder contain it as well.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The kinds of the rows of each call and change.
    calls: HashMap<String, Vec<String>>,
    bots: BTreeSet<String>,
    /// The markers of all calls with a cost that were sent, and of those that were charged.
    sent: BTreeSet<String>,
    charged: BTreeSet<String>,
}

impl Known {
    /// Returns the number of calls and changes that did not end.
    pub(super) fn interrupted(&self) -> usize {
        self.calls.values().filter(|kinds| kinds.iter().any(|kind| kind == "interrupted")).count()
    }

    pub(super) fn rows(&self) -> usize {
        self.calls.values().map(Vec::len).sum()
    }
}

/// What a state of the data folder must contain.
pub(super) struct Promised<'a> {
    pub(super) before: &'a Known,
    pub(super) loaded: &'a Loaded,
    /// The length of the journal at the kill or the power cut. Only what was answered before is promised.
    pub(super) journal_bytes: u64,
}

/// Starts the server and checks its data folder. `marker` identifies a call of the restarted server.
pub(super) async fn check(server: &mut Server, scene: &Scene, marker: &str, promised: &Promised<'_>) -> Result<Known> {
    server.launch().await.map_err(|error| Fault(format!("the server does not start: {error:#}")))?;
    let api = server.api()?;
    let call = scene.call(&api, marker).await.map_err(|error| Fault(format!("{error:#}")))?;
    let report = api.verify_audit().await?;
    promise!(report["valid"] == true, "the verification of the audit failed: {report}");
    let found = Found::read(&server.data_dir().join("monstrum.db"))?;
    server.kill().await?;
    let mut sent = promised.before.sent.clone();
    let asked = || promised.loaded.asked.iter().chain([&call]);
    sent.extend(asked().filter(|asked| asked.kind == Kind::Charged).map(|asked| asked.marker.clone()));

    found.check_kinds()?;
    found.check_before(promised.before)?;
    for asked in asked() {
        found.check_answer(asked, promised.journal_bytes)?;
    }
    for (marker, seen) in &promised.loaded.arrivals {
        promise!(
            *seen > promised.journal_bytes || found.started.contains(marker),
            "the request of `{marker}` arrived at the upstream, but the audit does not contain its start"
        );
    }
    found.check_charges(&sent)?;
    let charged = found.charges.keys().cloned().collect();
    Ok(Known { calls: found.calls, bots: found.bots, sent, charged })
}

/// The content of a database.
struct Found {
    calls: HashMap<String, Vec<String>>,
    /// The status of each finished call.
    statuses: HashMap<String, String>,
    /// The tasks of the calls with a cost that ran to their end, and of the calls with a row `started`.
    finished: Vec<String>,
    started: BTreeSet<String>,
    bots: BTreeSet<String>,
    /// Tokens, credits and calls of each task.
    charges: BTreeMap<String, (i64, i64, i64)>,
    /// Tokens, credits and calls of all bots.
    total: (i64, i64, i64),
}

impl Found {
    fn read(path: &Path) -> Result<Found> {
        let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let check: String = database.query_row("pragma integrity_check", [], |row| row.get(0))?;
        promise!(check == "ok", "the database is corrupt: {check}");
        let charges = "select task_id, tokens, credits_millionths, calls from usage_rows";
        let charges = database
            .prepare(charges)?
            .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?))))?
            .collect::<rusqlite::Result<_>>()?;
        let total = "select coalesce(sum(tokens), 0), coalesce(sum(credits_millionths), 0), coalesce(sum(calls), 0) \
                     from usage_totals where subject = 'workspace'";
        let total = database.query_row(total, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let bots =
            database.prepare("select name from bots")?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let mut found = Found {
            calls: HashMap::new(),
            statuses: HashMap::new(),
            finished: Vec::new(),
            started: BTreeSet::new(),
            bots,
            charges,
            total,
        };
        let mut rows = database.prepare("select kind, body from audit_rows order by writer, sequence")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let (kind, body): (String, String) = (row.get(0)?, row.get(1)?);
            found.add(kind, &serde_json::from_str(&body).context("a row of the audit is not JSON")?);
        }
        Ok(found)
    }

    fn add(&mut self, kind: String, body: &Value) {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        match kind.as_str() {
            "started" => drop(self.started.insert(text("task_id"))),
            "finished" => {
                if body["tool"] == CHARGED_TOOL && body["status"] == "success" {
                    self.finished.push(text("task_id"));
                }
                self.statuses.insert(text("request_id"), text("status"));
            }
            _ => {}
        }
        self.calls.entry(text("request_id")).or_default().push(kind);
    }

    /// No call is half recorded.
    fn check_kinds(&self) -> Result<()> {
        for (request, kinds) in &self.calls {
            let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
            promise!(
                matches!(kinds[..], ["finished"] | ["started", "finished" | "interrupted"]),
                "the call {request} has the rows {kinds:?}"
            );
        }
        Ok(())
    }

    /// Earlier states are still there, unchanged.
    fn check_before(&self, before: &Known) -> Result<()> {
        for (request, kinds) in &before.calls {
            promise!(
                self.calls.get(request) == Some(kinds),
                "the call {request} had the rows {kinds:?} before this start, and has {:?} now",
                self.calls.get(request)
            );
        }
        let lost: Vec<_> = before.bots.difference(&self.bots).collect();
        promise!(lost.is_empty(), "bots of an earlier start are missing: {lost:?}");
        let lost: Vec<_> = before.charged.iter().filter(|task| !self.charges.contains_key(*task)).collect();
        promise!(lost.is_empty(), "charges of an earlier start are missing: {lost:?}");
        Ok(())
    }

    fn check_answer(&self, asked: &Asked, journal_bytes: u64) -> Result<()> {
        let Some(answer) = asked.answer.as_ref().filter(|answer| answer.seen <= journal_bytes) else { return Ok(()) };
        let marker = &asked.marker;
        if asked.kind == Kind::Change {
            promise!(self.bots.contains(marker), "the change `{marker}` was answered, but is missing");
            return Ok(());
        }
        let status = self.statuses.get(&answer.request_id);
        promise!(
            status == Some(&answer.status),
            "the call `{marker}` was answered with `{}`, but the audit has {status:?}",
            answer.status
        );
        Ok(())
    }

    /// Each finished call with a cost was charged once. A charge without a row `finished` belongs to a call that was
    /// sent, because a call is charged before it runs.
    fn check_charges(&self, sent: &BTreeSet<String>) -> Result<()> {
        let (mut tokens, mut credits) = (0, 0);
        for (task, charge) in &self.charges {
            promise!(sent.contains(task), "the task `{task}` was charged, but no such call was sent");
            promise!(*charge == (COST.0, COST.1, 1), "the task `{task}` was charged with {charge:?}");
            (tokens, credits) = (tokens + charge.0, credits + charge.1);
        }
        let all = (tokens, credits, i64::try_from(self.charges.len())?);
        promise!(self.total == all, "the bots were charged with {:?}, but their tasks with {all:?}", self.total);
        let mut finished = BTreeSet::new();
        for task in &self.finished {
            promise!(self.charges.contains_key(task), "the call of the task `{task}` has ended, but was not charged");
            promise!(finished.insert(task), "the task `{task}` has two finished calls");
        }
        Ok(())
    }
}
