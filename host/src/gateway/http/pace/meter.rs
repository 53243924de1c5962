//! A meter that compares the bytes of a transfer with the time spent waiting for them.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Pace;

/// The number of steps in a span.
const STEPS: u32 = 6;

/// Measures whether one direction of a transfer has the minimum speed. Time counts only between `start` and `pause`.
///
/// A step ends only when [`Meter::is_too_slow`] is called, so a busy host that checks late does not blame the client.
pub struct Meter {
    pace: Pace,
    /// The bytes of each of the last ended steps, which together are shorter than one span.
    steps: VecDeque<u64>,
    /// The bytes of the current step.
    bytes: u64,
    /// The time left in the current step at `running_since`.
    left: Duration,
    running_since: Option<Instant>,
}

impl Meter {
    /// Creates a meter that is paused.
    pub fn new(pace: Pace) -> Meter {
        Meter { pace, steps: VecDeque::new(), bytes: 0, left: pace.span / STEPS, running_since: None }
    }

    /// Starts counting time, unless the meter is already running.
    pub fn start(&mut self) {
        self.running_since.get_or_insert_with(Instant::now);
    }

    /// Stops counting time. Returns whether the meter was running.
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

    /// Returns the end of the current step, if the meter is running. The caller must check the meter at that time.
    pub fn step_ends(&self) -> Option<Instant> {
        self.running_since.map(|since| since + self.left)
    }

    /// Checks the meter. If the current step is over, ends it and returns whether the last span had too few bytes.
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
