//! Samples the resources of the server every few seconds during the soak test. Memory and open files must not grow, and
//! the data folder must stay below its maximum.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process::{files_open, memory_bytes};
use crate::soak::crew::Counts;
use crate::soak::{FOLDER_BYTES_MAX, MIB, folder_bytes};

const INTERVAL: Duration = Duration::from_secs(2);
/// The number of samples per line of output.
const LOOKS_A_LINE: usize = 5;
/// The divisor that yields the number of warm-up samples. In the first tenth of the samples, caches and pools fill.
const WARM_UP: usize = 10;
/// The tolerated noise in bytes and in files. From the first third to the last third of the samples, the median may
/// grow by a tenth plus the noise.
const NOISE_BYTES: f64 = 20e6;
const NOISE_FILES: f64 = 16.0;

/// All samples of a process.
pub struct Watch(Vec<Look>);

struct Look {
    bytes: f64,
    files: f64,
    /// The size of the data folder, in bytes.
    disk: u64,
}

impl Watch {
    /// Takes samples of a process and its data folder until `until`.
    pub async fn until(until: Instant, pid: u32, data: &Path, counts: Arc<Counts>) -> Result<Watch> {
        let began = Instant::now();
        let mut looks = Vec::new();
        let mut tick = tokio::time::interval(INTERVAL);
        while Instant::now() < until {
            tick.tick().await;
            let disk = folder_bytes(data)?;
            let look = Look { bytes: memory_bytes(pid)? as f64, files: files_open(pid)? as f64, disk };
            if looks.len() % LOOKS_A_LINE == 0 {
                let share = began.elapsed().as_secs_f64() / (until - began).as_secs_f64() * 100.0;
                let (calls, disk) = (counts.total(), look.disk as f64 / MIB);
                println!(
                    "  {share:3.0} %  {calls} calls, {:.0} MiB, {} files, {disk:.0} MiB on disk",
                    look.bytes / MIB,
                    look.files
                );
            }
            looks.push(look);
        }
        Ok(Watch(looks))
    }

    /// Describes the growth, if any.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let (first, last) = self.thirds(|look| look.bytes);
        if has_grown(first, last, NOISE_BYTES) {
            faults.push(format!("memory grew from {:.0} to {:.0} MiB", first / MIB, last / MIB));
        }
        let (first, last) = self.thirds(|look| look.files);
        if has_grown(first, last, NOISE_FILES) {
            faults.push(format!("open files grew from {first} to {last}"));
        }
        let disk = self.disk_max();
        if disk > FOLDER_BYTES_MAX {
            faults.push(format!("the data folder grew to {:.0} MiB", disk as f64 / MIB));
        }
        faults
    }

    fn disk_max(&self) -> u64 {
        self.0.iter().map(|look| look.disk).max().unwrap_or_default()
    }

    /// Returns two medians: the median of the first third of the samples after the warm-up, and the median of the last
    /// third.
    fn thirds(&self, of: impl Fn(&Look) -> f64) -> (f64, f64) {
        let warm = &self.0[self.0.len() / WARM_UP..];
        let third = (warm.len() / 3).max(1);
        let median = |looks: &[Look]| {
            let mut values: Vec<f64> = looks.iter().map(&of).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        (median(&warm[..third]), median(&warm[warm.len() - third..]))
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first_bytes, last_bytes) = self.thirds(|look| look.bytes);
        let (first_files, last_files) = self.thirds(|look| look.files);
        write!(
            formatter,
            "first third after the warm-up and last third: {:.0} and {:.0} MiB resident, {first_files} and {last_files} files; at most {:.0} MiB on disk",
            first_bytes / MIB,
            last_bytes / MIB,
            self.disk_max() as f64 / MIB
        )
    }
}

fn has_grown(first: f64, last: f64, noise: f64) -> bool {
    last > first * 1.1 + noise
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(bytes: impl Fn(usize) -> f64) -> Watch {
        Watch((0..90).map(|number| Look { bytes: bytes(number), files: 100.0, disk: 0 }).collect())
    }

    #[test]
    fn what_fills_at_first_is_no_growth_and_what_goes_on_filling_is() {
        assert_eq!(watch(|number| if number < 9 { 1e6 } else { 300e6 }).faults(), [""; 0]);
        assert_eq!(watch(|number| if number < 60 { 100e6 } else { 125e6 }).faults(), [""; 0]);
        assert_eq!(watch(|number| 100e6 + number as f64 * 1e6).faults(), ["memory grew from 116 to 168 MiB"]);
    }

    #[test]
    fn files_that_stay_open_are_a_fault() {
        let looks = (0..90).map(|number| Look { bytes: 1e6, files: 100.0 + number as f64, disk: 0 });
        assert_eq!(Watch(looks.collect()).faults(), ["open files grew from 122 to 176"]);
    }

    #[test]
    fn a_data_folder_over_its_maximum_is_a_fault() {
        let looks = (0..90).map(|number| Look { bytes: 1e6, files: 100.0, disk: number * 50_000_000 });
        assert_eq!(Watch(looks.collect()).faults(), ["the data folder grew to 4244 MiB"]);
    }
}
