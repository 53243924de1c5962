//! The rows of a host in process: each build measures them with its own bench program.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use support::Build;
use tokio::process::Command;

use super::{Builds, Figure, Pairs};
use crate::Part;
use crate::report::{Figures, Measure};

/// The exit code of clap for an unknown argument.
const UNKNOWN_ARGUMENT: i32 = 2;

/// The rows whose names contain a number that differs between runs, by the start of their names.
const VARYING: [&str; 2] = ["wait for the durable row", "audit verify"];
/// The names of rows in earlier revisions, each with its present name.
const RENAMED: [(&str, &str); 1] =
    [("redaction of 1 MB, 20 secrets", "redaction of 1 MB, 20 secrets, no secret in the text")];

/// The part of a program's report that is compared.
#[derive(Deserialize)]
struct Report {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    measure: Measure,
    subject: Figures,
}

/// Measures `part` alternately with the bench programs of both builds.
pub async fn measure(part: Part, builds: &Builds, rounds: usize, seconds: u64) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    for round in 0..rounds {
        let mut figures = [Vec::new(), Vec::new()];
        for place in 0..builds.len() {
            let side = (round + place) % builds.len();
            figures[side] = of_program(part, &builds[side], seconds).await?;
        }
        pairs.add(figures);
    }
    Ok(pairs)
}

/// Runs the bench program of `build` for one round. A program that does not know the part has no figures.
async fn of_program(part: Part, build: &Build, seconds: u64) -> Result<Vec<Figure>> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let report = folder.path().join("bench.json");
    let mut command = Command::new(build.program("bench")?);
    command.args(["--rounds", "1", "--only", &part.name(), "--seconds", &seconds.to_string(), "--json"]);
    command.arg(&report).stdin(Stdio::null()).kill_on_drop(true);
    // The packages of the browser are installed for this build only.
    if part == Part::Console {
        command.arg("--without-browser");
    }
    let output = command.output().await.context("cannot run the bench program")?;
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    match output.status.code() {
        Some(0) => read(&report),
        Some(UNKNOWN_ARGUMENT) if printed.contains("invalid value") => Ok(Vec::new()),
        _ => bail!("{} failed with {}: {printed}", build.program("bench")?.display(), output.status),
    }
}

fn read(path: &Path) -> Result<Vec<Figure>> {
    let text = std::fs::read_to_string(path).context("the bench program wrote no report")?;
    let report: Report = serde_json::from_str(&text).context("the report of the bench program is not readable")?;
    ensure!(!report.rows.is_empty(), "the report of the bench program has no rows");
    let figure =
        |row: Row| Figure { row: present_name(&row.name).to_owned(), measure: row.measure, figures: row.subject };
    Ok(report.rows.into_iter().map(figure).collect())
}

/// Returns the name under which a row is compared.
fn present_name(name: &str) -> &str {
    let varying = VARYING.into_iter().find(|start| name.starts_with(start));
    let renamed = || RENAMED.into_iter().find(|(earlier, _)| *earlier == name).map(|(_, present)| present);
    varying.or_else(renamed).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_earlier_revisions_and_names_with_varying_numbers_match() {
        assert_eq!(present_name("audit verify, 9600 rows"), present_name("audit verify, 10080 rows"));
        assert_eq!(
            present_name("redaction of 1 MB, 20 secrets"),
            present_name("redaction of 1 MB, 20 secrets, no secret in the text")
        );
        assert_ne!(
            present_name("decision of the Guardian, 100 literals"),
            present_name("decision of the Guardian, 10000 literals")
        );
    }

    #[test]
    fn a_report_of_any_revision_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bench.json");
        let report = r#"{"rows":[
            {"name":"a","measure":"time","subject":{"median_us":1.5,"p99_us":2.5,"per_second":3.5},"goal":null},
            {"name":"b","measure":"memory","subject":{"kibibytes":7.0},"is_met":true}],"stages":[]}"#;
        std::fs::write(&path, report).unwrap();
        let figures = read(&path).unwrap();
        assert!(matches!(figures[0].figures, Figures::Times(sample) if sample.p99_us == 2.5));
        assert!(matches!(figures[1].figures, Figures::Memory { kibibytes: 7.0 }));
        std::fs::write(&path, r#"{"rows":[]}"#).unwrap();
        assert!(read(&path).is_err());
    }
}
