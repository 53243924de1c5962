//! What is printed and written: one row for each thing that was measured, beside its floor.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::sample::{Rounds, Side};

/// Where nobody says how wide the table may be.
const WIDTH_OFF_TERMINAL: u16 = 160;

/// In what a row is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The time of one run: less is better.
    Time,
    /// Runs a second: more is better.
    Rate,
    /// Runs a second over 1 MB each: more is better.
    Megabytes,
}

/// One thing that was measured.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub measure: Measure,
    pub subject: Side,
    pub floor_name: String,
    pub floor: Side,
    /// Subject over floor.
    pub ratio: f64,
    pub goal: String,
    pub is_met: bool,
}

impl Row {
    /// A row whose goal is judged by `judge`, which is given the ratio and the subject.
    pub fn new(
        (name, floor_name): (&str, &str),
        measure: Measure,
        rounds: &Rounds,
        goal: &str,
        judge: impl FnOnce(f64, &Side) -> bool,
    ) -> Row {
        let ratio = match measure {
            Measure::Time => rounds.ratio_of_times(),
            Measure::Rate | Measure::Megabytes => rounds.ratio_of_rates(),
        };
        let subject = rounds.subject();
        Row {
            name: name.to_owned(),
            measure,
            floor_name: floor_name.to_owned(),
            floor: rounds.floor(),
            ratio,
            goal: goal.to_owned(),
            is_met: judge(ratio, &subject),
            subject,
        }
    }

    fn median(&self, side: &Side) -> String {
        match self.measure {
            Measure::Time => time(side.median_us),
            Measure::Rate => format!("{:.0} /s", side.per_second),
            Measure::Megabytes => format!("{:.0} MB/s", side.per_second),
        }
    }
}

/// A step of a governed call and its share.
#[derive(Debug, Serialize)]
pub struct Stage {
    pub name: &'static str,
    pub median_us: f64,
}

/// Everything that one run has measured.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub rows: Vec<Row>,
    /// Where the time of a governed call goes.
    pub stages: Vec<Stage>,
}

impl Report {
    /// The rows as a table.
    pub fn table(&self) -> Table {
        let mut table = table(["", "median", "p99", "its floor", "median", "p99", "ratio", "goal", "met"]);
        for row in &self.rows {
            table.add_row([
                row.name.clone(),
                row.median(&row.subject),
                time(row.subject.p99_us),
                row.floor_name.clone(),
                row.median(&row.floor),
                time(row.floor.p99_us),
                format!("{:.2}", row.ratio),
                row.goal.clone(),
                if row.is_met { "yes" } else { "no" }.to_owned(),
            ]);
        }
        align_right(&mut table, &[1, 2, 4, 5, 6]);
        table
    }

    /// The stages as a table.
    pub fn stages_table(&self) -> Table {
        let mut table = table(["a governed call, step by step", "median"]);
        for Stage { name, median_us } in &self.stages {
            table.add_row([(*name).to_owned(), time(*median_us)]);
        }
        align_right(&mut table, &[1]);
        table
    }

    /// Writes everything as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("a report is plain text and numbers")?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(WIDTH_OFF_TERMINAL);
    }
    table.set_header(header);
    table
}

fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn time(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0} ns", us * 1e3),
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}
