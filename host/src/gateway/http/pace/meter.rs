//! Counts bytes against the time in which they are waited for.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Pace;

/// Into how many steps a span is divided.
const STEPS: u32 = 6;

/// Whether one direction of a transfer keeps its pace. Time counts only between `start` and `pause`.
///
/// A step ends when the meter is looked at, not by itself: a host that had no time to look does not blame the client.
pub struct Meter {
    pace: Pace,
    /// Bytes of the steps that have ended, of less than one span.
    steps: VecDeque<u64>,
    /// Bytes of the present step.
    bytes: u64,
    /// What is left of the present step, without the time since `running_since`.
    left: Duration,
    running_since: Option<Instant>,
}

impl Meter {
    /// A meter that does not run yet.
    pub fn new(pace: Pace) -> Meter {
        Meter { pace, steps: VecDeque::new(), bytes: 0, left: pace.span / STEPS, running_since: None }
    }

    /// Time counts from now on.
    pub fn start(&mut self) {
        self.running_since.get_or_insert_with(Instant::now);
    }

    /// Time no longer counts. Tells whether it did.
    pub fn pause(&mut self) -> bool {
        let Some(since) = self.running_since.take() else { return false };
        self.left = self.left.saturating_sub(since.elapsed());
        true
    }

    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    pub fn is_running(&self) -> bool {
        self.running_since.is_some()
    }

    /// When to look again.
    pub fn step_ends(&self) -> Option<Instant> {
        self.running_since.map(|since| since + self.left)
    }

    /// Looks at the meter: if the present step is over, it ends, and the answer tells whether the span that ends with
    /// it had too few bytes.
    pub fn is_too_slow(&mut self) -> bool {
        let now = Instant::now();
        if self.step_ends().is_none_or(|end| now < end) {
            return false;
        }
        self.running_since = Some(now);
        self.left = self.pace.span / STEPS;
        self.steps.push_back(std::mem::take(&mut self.bytes));
        if self.steps.len() < STEPS as usize {
            return false;
        }
        let bytes: u64 = self.steps.iter().sum();
        self.steps.pop_front();
        bytes < self.pace.bytes_min
    }
}
