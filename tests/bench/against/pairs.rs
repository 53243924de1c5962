//! The figures of two builds in the same rounds, and the verdict on them.

use std::collections::BTreeMap;

use comfy_table::Table;
use serde::Serialize;

use super::ROUNDS_MIN;
use crate::report::{self, Figures, Measure, align_right};

/// The difference of two builds that is never a verdict, as a share.
const TOLERANCE: f64 = 0.05;
/// A difference is a verdict only if it exceeds the spread of the rounds this many times.
const SPREADS: f64 = 3.0;

/// The result of one row in one round with one build.
#[derive(Clone, Debug)]
pub struct Figure {
    pub row: String,
    pub measure: Measure,
    pub figures: Figures,
}

/// The figures of both builds, in the order of the rows.
#[derive(Default)]
pub struct Pairs {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    measure: Measure,
    /// The figures of each round: of this build and of the other build.
    rounds: Vec<[Option<Figures>; 2]>,
}

/// What a comparison compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    P50,
    P99,
    PerSecond,
    Memory,
    Kilobytes,
    Percent,
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Slower,
    Faster,
    Same,
    /// There are too few rounds to know their spread.
    TooFewRounds,
}

/// The comparison of one quantity of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub row: String,
    pub quantity: Quantity,
    /// The median over the rounds with this build.
    pub own: f64,
    /// The median over the rounds with the other build.
    pub other: f64,
    /// The median over the rounds of this build's value divided by the other build's value.
    pub ratio: f64,
    /// The median distance of the rounds' ratios from `ratio`.
    pub spread: f64,
    pub verdict: Verdict,
}

impl Pairs {
    /// Adds a round: the figures of this build and of the other build.
    pub fn add(&mut self, [own, other]: [Vec<Figure>; 2]) {
        let mut seen: BTreeMap<String, [Option<Figures>; 2]> = BTreeMap::new();
        let figures = own.into_iter().map(|figure| (0, figure)).chain(other.into_iter().map(|figure| (1, figure)));
        for (side, Figure { row, measure, figures }) in figures {
            seen.entry(row.clone()).or_default()[side] = Some(figures);
            if self.rows.iter().all(|known| known.name != row) {
                self.rows.push(Row { name: row, measure, rounds: Vec::new() });
            }
        }
        for row in &mut self.rows {
            row.rounds.extend(seen.remove(&row.name));
        }
    }

    /// Adds the rows of `other`.
    pub fn extend(&mut self, other: Pairs) {
        self.rows.extend(other.rows);
    }

    /// Compares each row that both builds have.
    pub fn comparisons(&self) -> impl Iterator<Item = Comparison> {
        self.rows.iter().flat_map(|row| {
            row.quantities().iter().filter_map(|quantity| {
                let rounds: Vec<[f64; 2]> = row.rounds.iter().filter_map(|round| quantity.of_both(round)).collect();
                (!rounds.is_empty()).then(|| Comparison::new(&row.name, *quantity, &rounds))
            })
        })
    }

    /// Returns the rows that only this build has.
    pub fn only_own(&self) -> impl Iterator<Item = &str> {
        self.without(1)
    }

    /// Returns the rows that only the other build has.
    pub fn only_other(&self) -> impl Iterator<Item = &str> {
        self.without(0)
    }

    fn without(&self, side: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().filter(move |row| row.rounds.iter().all(|round| round[side].is_none())).map(|row| &*row.name)
    }
}

impl Row {
    fn quantities(&self) -> &'static [Quantity] {
        match self.measure {
            Measure::Time => &[Quantity::P50, Quantity::P99],
            Measure::Tail => &[Quantity::P99],
            Measure::Rate => &[Quantity::PerSecond, Quantity::P50, Quantity::P99],
            Measure::Megabytes => &[Quantity::PerSecond],
            Measure::Memory => &[Quantity::Memory],
            Measure::Kilobytes => &[Quantity::Kilobytes],
            Measure::Percent => &[Quantity::Percent],
            Measure::Count => &[Quantity::Count],
        }
    }
}

impl Quantity {
    fn of(self, figures: &Figures) -> Option<f64> {
        match (self, figures) {
            (Quantity::P50, Figures::Times(sample)) => Some(sample.median_us),
            (Quantity::P99, Figures::Times(sample)) => Some(sample.p99_us),
            (Quantity::PerSecond, Figures::Times(sample)) => Some(sample.per_second),
            (Quantity::Memory, Figures::Memory { kibibytes }) => Some(*kibibytes),
            (Quantity::Kilobytes | Quantity::Percent | Quantity::Count, Figures::Number { value }) => Some(*value),
            _ => None,
        }
    }

    fn of_both(self, [own, other]: &[Option<Figures>; 2]) -> Option<[f64; 2]> {
        Some([self.of(own.as_ref()?)?, self.of(other.as_ref()?)?])
    }

    fn name(self) -> &'static str {
        match self {
            Quantity::P50 => "p50",
            Quantity::P99 => "p99",
            Quantity::PerSecond => "per second",
            Quantity::Memory => "memory",
            Quantity::Kilobytes => "size",
            Quantity::Percent => "share",
            Quantity::Count => "count",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Quantity::P50 | Quantity::P99 => report::time(value),
            Quantity::PerSecond => format!("{value:.0}"),
            Quantity::Memory => format!("{:.1} MiB", value / 1024.0),
            Quantity::Kilobytes => report::number(value, Measure::Kilobytes),
            Quantity::Percent => report::number(value, Measure::Percent),
            Quantity::Count => report::number(value, Measure::Count),
        }
    }
}

impl Comparison {
    fn new(row: &str, quantity: Quantity, rounds: &[[f64; 2]]) -> Comparison {
        let ratios: Vec<f64> = rounds.iter().map(|[own, other]| own / other).collect();
        let ratio = median(ratios.iter().copied());
        let spread = median(ratios.iter().map(|of_round| (of_round - ratio).abs()));
        // Of rates, less is slower.
        let slower = if quantity == Quantity::PerSecond { 1.0 - ratio } else { ratio - 1.0 };
        let is_beyond = |difference: f64| difference > TOLERANCE && difference > SPREADS * spread;
        let verdict = match rounds.len() {
            ..ROUNDS_MIN => Verdict::TooFewRounds,
            _ if is_beyond(slower) => Verdict::Slower,
            _ if is_beyond(-slower) => Verdict::Faster,
            _ => Verdict::Same,
        };
        let side = |side: usize| median(rounds.iter().map(|round| round[side]));
        Comparison { row: row.to_owned(), quantity, own: side(0), other: side(1), ratio, spread, verdict }
    }

    /// Returns whether this build is slower, or needs more memory.
    pub fn is_slower(&self) -> bool {
        self.verdict == Verdict::Slower
    }

    /// Returns whether the comparison is one of rates.
    pub fn is_rate(&self) -> bool {
        self.quantity == Quantity::PerSecond
    }

    fn words(&self) -> &'static str {
        match (self.verdict, self.quantity) {
            (Verdict::Slower, Quantity::P50 | Quantity::P99 | Quantity::PerSecond) => "slower",
            (Verdict::Faster, Quantity::P50 | Quantity::P99 | Quantity::PerSecond) => "faster",
            (Verdict::Slower, _) => "more",
            (Verdict::Faster, _) => "less",
            (Verdict::Same, _) => "same",
            (Verdict::TooFewRounds, _) => "too few rounds",
        }
    }
}

/// Returns the comparisons as a table.
pub fn table(comparisons: &[Comparison], other: &str) -> Table {
    let mut table = report::table(["", "", "this build", other, "ratio", "spread", "verdict"]);
    for comparison in comparisons {
        let Comparison { row, quantity, own, other, ratio, spread, .. } = comparison;
        table.add_row([
            row.clone(),
            quantity.name().to_owned(),
            quantity.show(*own),
            quantity.show(*other),
            format!("{ratio:.2}"),
            format!("{spread:.2}"),
            comparison.words().to_owned(),
        ]);
    }
    align_right(&mut table, &[2, 3, 4, 5]);
    table
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn figure(row: &str, measure: Measure, value: f64) -> Figure {
        let sample = Sample { median_us: value, p99_us: 2.0 * value, per_second: value };
        Figure { row: row.to_owned(), measure, figures: Figures::Times(sample) }
    }

    fn verdicts(measure: Measure, rounds: &[[f64; 2]]) -> Vec<Verdict> {
        let mut pairs = Pairs::default();
        for round in rounds {
            pairs.add(round.map(|value| vec![figure("call", measure, value)]));
        }
        pairs.comparisons().map(|comparison| comparison.verdict).collect()
    }

    #[test]
    fn slower_is_beyond_the_tolerance_and_beyond_the_spread_of_the_rounds() {
        let of = |rounds: &[[f64; 2]]| verdicts(Measure::Time, rounds)[0];
        assert_eq!(of(&[[107.0, 100.0], [108.0, 100.0], [109.0, 100.0]]), Verdict::Slower);
        assert_eq!(of(&[[104.0, 100.0], [104.0, 100.0], [104.0, 100.0]]), Verdict::Same);
        assert_eq!(of(&[[98.0, 100.0], [108.0, 100.0], [118.0, 100.0]]), Verdict::Same);
        assert_eq!(of(&[[80.0, 100.0], [81.0, 100.0], [82.0, 100.0]]), Verdict::Faster);
        assert_eq!(of(&[[200.0, 100.0], [200.0, 100.0]]), Verdict::TooFewRounds);
    }

    #[test]
    fn a_drift_of_the_machine_changes_both_sides_and_no_verdict() {
        assert_eq!(verdicts(Measure::Time, &[[100.0, 99.0], [200.0, 202.0], [400.0, 396.0]]), [Verdict::Same; 2]);
    }

    #[test]
    fn a_lower_rate_is_slower_and_a_longer_time_is_slower() {
        let rounds = [[80.0, 100.0]; 3];
        assert_eq!(verdicts(Measure::Rate, &rounds), [Verdict::Slower, Verdict::Faster, Verdict::Faster]);
        assert_eq!(verdicts(Measure::Megabytes, &rounds), [Verdict::Slower]);
        assert_eq!(verdicts(Measure::Time, &rounds), [Verdict::Faster; 2]);
        assert_eq!(verdicts(Measure::Tail, &rounds), [Verdict::Faster]);
    }

    #[test]
    fn rows_of_one_build_are_not_compared() {
        let mut pairs = Pairs::default();
        let row = |name| figure(name, Measure::Time, 1.0);
        pairs.add([vec![row("both"), row("new")], vec![row("old"), row("both")]]);
        assert_eq!(pairs.comparisons().map(|comparison| comparison.row).collect::<Vec<_>>(), ["both", "both"]);
        assert_eq!(pairs.only_own().collect::<Vec<_>>(), ["new"]);
        assert_eq!(pairs.only_other().collect::<Vec<_>>(), ["old"]);
    }
}
