//! Compares this build with the build of another revision on this machine. The two builds alternate in rounds, so that
//! changes in the machine's speed or load affect both.
//!
//! A row that needs a server drives a server of each build with this program's load generator. A row of a host in
//! process runs the bench program of each build. Floors are not compared.

mod checkout;
mod pairs;
mod programs;
mod servers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use support::Build;

use crate::Part;
use checkout::Checkout;
use pairs::{Comparison, Figure, Pairs};

/// The fewest rounds from which a verdict follows.
const ROUNDS_MIN: usize = 3;

/// The settings of a comparison.
pub struct Against {
    /// The other revision, in any notation of git.
    pub revision: String,
    /// The name of the revision of this build.
    pub own_revision: String,
    pub parts: Vec<Part>,
    pub rounds: usize,
    pub seconds: u64,
    /// The file for the results [default: target/against.json].
    pub json: Option<PathBuf>,
}

/// The two builds: this build, and the build of the other revision.
type Builds = [Build; 2];

/// The results of a comparison.
#[derive(Serialize)]
struct Outcome {
    revision: String,
    against: String,
    comparisons: Vec<Comparison>,
    /// The rows and parts that are not compared, each with the reason.
    left_out: Vec<String>,
}

impl Against {
    /// Builds the other revision, compares the parts, and prints and writes the results.
    pub async fn run(self) -> Result<()> {
        let own = Build::current()?;
        let other = Checkout::of(&self.revision, own.target()?)?;
        println!("  this build ({}) against {}", self.own_revision, other.revision);
        if self.rounds < ROUNDS_MIN {
            println!("  {} rounds are too few for a verdict, which takes {ROUNDS_MIN}", self.rounds);
        }
        let json = self.json.clone().unwrap_or(own.target()?.join("against.json"));
        let builds = [own, other.build];
        let mut outcome = Outcome {
            revision: self.own_revision.clone(),
            against: other.revision,
            comparisons: Vec::new(),
            left_out: Vec::new(),
        };
        for part in &self.parts {
            println!("  {} …", part.name());
            match self.part(*part, &builds).await {
                Ok(pairs) => outcome.add(&pairs),
                Err(error) => {
                    // The error of a server that did not start contains its whole output.
                    let reason = format!("{error:#}");
                    let reason = reason.lines().next().unwrap_or_default();
                    outcome.left_out.push(format!("{}: {reason}", part.name()));
                }
            }
        }
        outcome.show();
        outcome.write(&json)
    }

    /// Measures one part with both builds.
    async fn part(&self, part: Part, builds: &Builds) -> Result<Pairs> {
        let (rounds, duration) = (self.rounds, Duration::from_secs(self.seconds));
        match part {
            Part::Http => servers::http(builds, rounds, duration).await,
            Part::Charged => servers::charged(builds, rounds, duration).await,
            Part::Many => servers::many(builds, rounds, duration).await,
            Part::Start => servers::start(builds, rounds).await,
            Part::Reload => servers::reload(builds, rounds, duration).await,
            Part::Suspended => servers::suspended(builds, rounds).await,
            Part::Neighbours => servers::neighbours(builds, rounds, duration).await,
            Part::StartAll => bail!("the two revisions may not be able to open the same data folder"),
            Part::Postgres => servers::postgres(builds, rounds, duration).await,
            Part::Call
            | Part::Mcp
            | Part::Agents
            | Part::Guardian
            | Part::Redaction
            | Part::Cpu
            | Part::Audit
            | Part::Sandbox
            | Part::Changes
            | Part::Console
            | Part::Models => programs::measure(part, builds, rounds, self.seconds).await,
        }
    }
}

impl Outcome {
    fn add(&mut self, pairs: &Pairs) {
        self.comparisons.extend(pairs.comparisons());
        let only = |row: &str, which: &str| format!("{row}: only {which} has this row");
        self.left_out.extend(pairs.only_own().map(|row| only(row, "this build")));
        self.left_out.extend(pairs.only_other().map(|row| only(row, &self.against)));
    }

    fn show(&self) {
        println!("\n{}", pairs::table(&self.comparisons, &self.against));
        for reason in &self.left_out {
            println!("not compared: {reason}");
        }
        let slower = self.comparisons.iter().filter(|comparison| comparison.is_slower()).count();
        println!("slower than {}: {slower} of {} figures", self.against, self.comparisons.len());
    }

    fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("cannot serialize the comparison")?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        println!("written to {}", path.display());
        Ok(())
    }
}
