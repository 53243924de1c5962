//! Figures: the results of one round, and the summary of many rounds.
//!
//! Subject and floor alternate in short rounds, so that changes in the machine's speed or load affect both. Every round
//! yields one ratio, and the result is the median over the rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The figures of one side, in one round or over all rounds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Sample {
    pub median_us: f64,
    pub p99_us: f64,
    pub per_second: f64,
}

impl Sample {
    /// Computes the figures of these times. The list must not be empty.
    pub fn new(mut times: Vec<Duration>, elapsed: Duration) -> Sample {
        times.sort_unstable();
        let at = |share: f64| {
            let index = ((times.len() as f64 * share) as usize).min(times.len() - 1);
            times[index].as_secs_f64() * 1e6
        };
        Sample { median_us: at(0.5), p99_us: at(0.99), per_second: times.len() as f64 / elapsed.as_secs_f64() }
    }

    /// Creates the figures of a single time.
    pub fn of_time_us(us: f64) -> Sample {
        Sample { median_us: us, p99_us: us, per_second: 1e6 / us }
    }

    /// Measures `count` batches of `batch` runs of `work`. Use batches if a run takes less time than reading the clock.
    pub fn of<T>(count: usize, batch: u32, work: &mut impl FnMut() -> T) -> Sample {
        let began = Instant::now();
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let started = Instant::now();
            for _ in 0..batch {
                black_box(work());
            }
            times.push(started.elapsed() / batch);
        }
        Sample::new(times, began.elapsed() / batch)
    }
}

/// Rounds in which subject and floor alternate.
#[derive(Default)]
pub struct Rounds(Vec<(Sample, Sample)>);

impl Rounds {
    /// Adds a round.
    pub fn add(&mut self, subject: Sample, floor: Sample) {
        self.0.push((subject, floor));
    }

    /// Measures `rounds` rounds of two functions, each like [`Sample::of`].
    pub fn of<S, F>(
        rounds: usize,
        (count, batch): (usize, u32),
        mut subject: impl FnMut() -> S,
        mut floor: impl FnMut() -> F,
    ) -> Rounds {
        let mut all = Rounds::default();
        // The first round warms up the caches and is not counted.
        for round in 0..=rounds {
            let (subject, floor) = if round % 2 == 0 {
                let floor = Sample::of(count, batch, &mut floor);
                (Sample::of(count, batch, &mut subject), floor)
            } else {
                (Sample::of(count, batch, &mut subject), Sample::of(count, batch, &mut floor))
            };
            if round > 0 {
                all.add(subject, floor);
            }
        }
        all
    }

    /// Returns the ratio of the subject's median time to the floor's median time.
    pub fn ratio_of_times(&self) -> f64 {
        self.median(|(subject, floor)| subject.median_us / floor.median_us)
    }

    /// Returns the ratio of the subject's 99th percentile to the floor's 99th percentile.
    pub fn ratio_of_tails(&self) -> f64 {
        self.median(|(subject, floor)| subject.p99_us / floor.p99_us)
    }

    /// Returns the difference between the subject's and the floor's 99th percentiles.
    pub fn added_to_tail_us(&self) -> f64 {
        self.median(|(subject, floor)| subject.p99_us - floor.p99_us)
    }

    /// Returns the ratio of the subject's throughput to the floor's throughput.
    pub fn ratio_of_rates(&self) -> f64 {
        self.median(|(subject, floor)| subject.per_second / floor.per_second)
    }

    /// Returns the difference between the subject's and the floor's medians.
    pub fn added_us(&self) -> f64 {
        self.median(|(subject, floor)| subject.median_us - floor.median_us)
    }

    pub fn subject(&self) -> Sample {
        self.side(|(subject, _)| subject)
    }

    pub fn floor(&self) -> Sample {
        self.side(|(_, floor)| floor)
    }

    fn side(&self, side: impl Fn(&(Sample, Sample)) -> &Sample) -> Sample {
        Sample {
            median_us: self.median(|round| side(round).median_us),
            p99_us: self.median(|round| side(round).p99_us),
            per_second: self.median(|round| side(round).per_second),
        }
    }

    fn median(&self, of: impl Fn(&(Sample, Sample)) -> f64) -> f64 {
        let mut values: Vec<f64> = self.0.iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(median_us: u64) -> Sample {
        Sample::new(vec![Duration::from_micros(median_us); 3], Duration::from_secs(1))
    }

    #[test]
    fn the_median_of_the_rounds_outlasts_one_bad_round() {
        let mut rounds = Rounds::default();
        for (subject, floor) in [(30, 20), (3000, 20), (60, 40)] {
            rounds.add(sample(subject), sample(floor));
        }
        assert_eq!(rounds.ratio_of_times(), 1.5);
        assert_eq!(rounds.added_us(), 20.0);
        assert_eq!(rounds.floor().median_us, 20.0);
    }

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times = (1..=100).rev().map(Duration::from_micros).collect();
        let Sample { median_us, p99_us, per_second } = Sample::new(times, Duration::from_secs(2));
        assert_eq!((median_us, p99_us, per_second), (51.0, 100.0, 50.0));
    }
}
