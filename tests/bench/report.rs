//! The printed and written results, with one row for each measurement and its floor.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::sample::{Rounds, Sample};

/// The width of the table, in characters, if the output is not a terminal.
const WIDTH_OFF_TERMINAL: u16 = 160;

/// The quantity that a row compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The time of one run. Less is better.
    Time,
    /// Runs per second. More is better.
    Rate,
    /// Runs per second over 1 MB each. More is better.
    Megabytes,
    /// The 99th percentile of the time. Less is better.
    Tail,
    /// The memory in use. Less is better.
    Memory,
    /// A size on the network in units of 1000 bytes. Less is better.
    Kilobytes,
    /// A share of a time. Less is better.
    Percent,
    /// A number of events. Less is better.
    Count,
}

/// The results of one side of a row.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Figures {
    Times(Sample),
    Memory { kibibytes: f64 },
    Number { value: f64 },
}

/// The result of one measurement.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub measure: Measure,
    pub subject: Figures,
    pub floor_name: String,
    pub floor: Figures,
    /// The subject's value divided by the floor's value.
    pub ratio: f64,
    /// `None` if the row is only reported and has no goal.
    pub goal: Option<String>,
    pub is_met: Option<bool>,
}

impl Row {
    /// Creates a row with a goal. `judge` receives the ratio and the subject and returns whether the goal is met.
    pub fn new(
        names: (&str, &str),
        measure: Measure,
        rounds: &Rounds,
        goal: &str,
        judge: impl FnOnce(f64, &Sample) -> bool,
    ) -> Row {
        let row = Row::reported(names, measure, rounds);
        let is_met = judge(row.ratio, &rounds.subject());
        row.with_goal(goal, is_met)
    }

    /// Creates a row that has no goal.
    pub fn reported((name, floor_name): (&str, &str), measure: Measure, rounds: &Rounds) -> Row {
        let ratio = match measure {
            Measure::Time => rounds.ratio_of_times(),
            Measure::Tail => rounds.ratio_of_tails(),
            Measure::Rate
            | Measure::Megabytes
            | Measure::Memory
            | Measure::Kilobytes
            | Measure::Percent
            | Measure::Count => rounds.ratio_of_rates(),
        };
        Row {
            name: name.to_owned(),
            measure,
            subject: Figures::Times(rounds.subject()),
            floor_name: floor_name.to_owned(),
            floor: Figures::Times(rounds.floor()),
            ratio,
            goal: None,
            is_met: None,
        }
    }

    /// Creates a row that compares memory and has no goal.
    pub fn of_memory((name, floor_name): (&str, &str), subject_bytes: u64, floor_bytes: u64) -> Row {
        let figures = |bytes: u64| Figures::Memory { kibibytes: bytes as f64 / 1024.0 };
        Row {
            name: name.to_owned(),
            measure: Measure::Memory,
            subject: figures(subject_bytes),
            floor_name: floor_name.to_owned(),
            floor: figures(floor_bytes),
            ratio: subject_bytes as f64 / floor_bytes as f64,
            goal: None,
            is_met: None,
        }
    }

    /// Creates a row that compares two numbers and has no goal.
    pub fn of_numbers((name, floor_name): (&str, &str), measure: Measure, subject: f64, floor: f64) -> Row {
        Row {
            name: name.to_owned(),
            measure,
            subject: Figures::Number { value: subject },
            floor_name: floor_name.to_owned(),
            floor: Figures::Number { value: floor },
            ratio: subject / floor,
            goal: None,
            is_met: None,
        }
    }

    /// Adds a goal, and whether it is met.
    #[must_use]
    pub fn with_goal(self, goal: &str, is_met: bool) -> Row {
        Row { goal: Some(goal.to_owned()), is_met: Some(is_met), ..self }
    }

    /// Returns the subject's median if the row compares times.
    pub fn median_us(&self) -> Option<f64> {
        match self.subject {
            Figures::Times(sample) => Some(sample.median_us),
            Figures::Memory { .. } | Figures::Number { .. } => None,
        }
    }

    fn median(&self, side: &Figures) -> String {
        match (side, self.measure) {
            (Figures::Memory { kibibytes }, _) => format!("{:.1} MiB", kibibytes / 1024.0),
            (Figures::Number { value }, measure) => number(*value, measure),
            (Figures::Times(side), Measure::Rate) => format!("{:.0} /s", side.per_second),
            (Figures::Times(side), Measure::Megabytes) => format!("{:.0} MB/s", side.per_second),
            (Figures::Times(side), _) => time(side.median_us),
        }
    }
}

/// Formats a number with its unit.
pub fn number(value: f64, measure: Measure) -> String {
    match measure {
        Measure::Kilobytes => format!("{value:.1} KB"),
        Measure::Percent => format!("{value:.1} %"),
        _ => format!("{value:.0}"),
    }
}

fn tail(side: &Figures) -> String {
    match side {
        Figures::Times(side) => time(side.p99_us),
        Figures::Memory { .. } | Figures::Number { .. } => String::new(),
    }
}

/// A step of a governed call, with its time.
#[derive(Debug, Serialize)]
pub struct Stage {
    pub name: &'static str,
    pub median_us: f64,
}

/// All results of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The measured commit.
    pub revision: String,
    pub machine: Machine,
    pub rows: Vec<Row>,
    /// The steps of a governed call.
    pub stages: Vec<Stage>,
}

impl Report {
    /// Creates a report that contains no rows.
    pub fn new(revision: String, machine: Machine) -> Report {
        Report { revision, machine, rows: Vec::new(), stages: Vec::new() }
    }

    /// Returns the rows as a table.
    pub fn table(&self) -> Table {
        let mut table = table(["", "median", "p99", "its floor", "median", "p99", "ratio", "goal", "met"]);
        for row in &self.rows {
            table.add_row([
                row.name.clone(),
                row.median(&row.subject),
                tail(&row.subject),
                row.floor_name.clone(),
                row.median(&row.floor),
                tail(&row.floor),
                format!("{:.2}", row.ratio),
                row.goal.clone().unwrap_or_else(|| "reported".to_owned()),
                row.is_met.map_or("", |is_met| if is_met { "yes" } else { "no" }).to_owned(),
            ]);
        }
        align_right(&mut table, &[1, 2, 4, 5, 6]);
        table
    }

    /// Writes the rows as a table into the page at `path`, replacing the existing table.
    pub fn write_page(&self, path: &Path) -> Result<()> {
        const BEGIN: &str = "<!-- written by `cargo xtask bench --write` -->\n";
        const END: &str = "<!-- end -->";
        let page = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let around = page.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
        let (head, tail) = around.with_context(|| format!("{} has no markers for the table", path.display()))?;
        let page = format!("{head}{BEGIN}{}{END}{tail}", self.markdown());
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
    }

    fn markdown(&self) -> String {
        let Machine { processor, cores, kernel, bare_us } = &self.machine;
        let mut text = format!(
            "Commit {}, {processor}, {cores} processors, Linux {kernel}; a bare call takes {}.\n\n\
             | row | p50 | p99 | floor | p50 | p99 | ratio | goal | met |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            self.revision,
            time(*bare_us)
        );
        for row in &self.rows {
            let cells = [
                row.name.clone(),
                row.median(&row.subject),
                tail(&row.subject),
                row.floor_name.clone(),
                row.median(&row.floor),
                tail(&row.floor),
                format!("{:.2}", row.ratio),
                row.goal.clone().unwrap_or_default(),
                row.is_met.map_or("", |is_met| if is_met { "yes" } else { "no" }).to_owned(),
            ];
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        text
    }

    /// Returns the stages as a table.
    pub fn stages_table(&self) -> Table {
        let mut table = table(["a governed call, step by step", "median"]);
        for Stage { name, median_us } in &self.stages {
            table.add_row([(*name).to_owned(), time(*median_us)]);
        }
        align_right(&mut table, &[1]);
        table
    }

    /// Writes the complete report as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("cannot serialize the report")?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Creates a table with this header.
pub fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(WIDTH_OFF_TERMINAL);
    }
    table.set_header(header);
    table
}

/// Aligns columns of figures to the right.
pub fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Formats a time with a suitable unit.
pub fn time(us: f64) -> String {
    // A difference of two times may be negative.
    match us.abs() {
        size if size < 1.0 => format!("{:.0} ns", us * 1e3),
        size if size < 1e3 => format!("{us:.1} us"),
        size if size < 1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}
