//! The machine of a run, and the conversion of times from the reference machine to this machine.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use crate::bare::{Bare, ExecuteRequest};
use crate::sample::Sample;

/// The median time of a bare call on the reference machine. Goals in units of time refer to that machine.
const REFERENCE_US: f64 = 38.0;
const GROUPS: usize = 10;
const CALLS: usize = 1_000;

/// The machine of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub kernel: String,
    /// The median time of a bare call in this run.
    pub bare_us: f64,
}

impl Machine {
    /// Measures this machine with calls of the component in the file `wasm`.
    pub async fn measure(wasm: &Path, request: &ExecuteRequest) -> Result<Machine> {
        let bare = Bare::load(wasm)?;
        // The best of several groups counts, because other load on the machine can only make calls slower.
        let mut bare_us = f64::MAX;
        for _ in 0..GROUPS {
            let mut times = Vec::with_capacity(CALLS);
            let began = Instant::now();
            for _ in 0..CALLS {
                let started = Instant::now();
                bare.call(request).await?;
                times.push(started.elapsed());
            }
            bare_us = bare_us.min(Sample::new(times, began.elapsed()).median_us);
        }
        Ok(Machine {
            processor: processor().unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism()?.get(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            bare_us,
        })
    }

    /// Converts a time on the reference machine to the time on this machine.
    pub fn time_us(&self, reference_us: f64) -> f64 {
        reference_us * self.bare_us / REFERENCE_US
    }

    /// Converts megabytes per second on the reference machine to the rate on this machine.
    pub fn megabytes(&self, reference: f64) -> f64 {
        reference * REFERENCE_US / self.bare_us
    }
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
