//! Information from the operating system about a running process.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Returns the memory of a process in bytes. Shared pages count in proportion (Pss).
pub fn memory_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix(" kB")).context("smaps_rollup of the process has no Pss")?;
    Ok(kibibytes.trim().parse::<u64>()? * 1024)
}

/// Returns the CPU time of all threads of a process, including ended threads.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The program's name, in parentheses, may contain spaces.
    let (_, fields) = stat.rsplit_once(')').context("the stat file of the process has no name")?;
    let ticks = |field: usize| -> Result<u64> {
        Ok(fields.split_whitespace().nth(field).context("the stat file of the process is incomplete")?.parse()?)
    };
    // Fields 14 and 15 of the line: user time and system time, in hundredths of a second.
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

/// Returns the number of files, sockets and pipes that a process has open.
pub fn files_open(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_memory_and_files() {
        let pid = std::process::id();
        let before = files_open(pid).unwrap();
        let held: Vec<fs::File> = (0..100).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        assert!(files_open(pid).unwrap() >= before.saturating_sub(50) + held.len());
        assert!(memory_bytes(pid).unwrap() > 1 << 20);
    }

    #[test]
    fn computing_takes_time() {
        let before = cpu_time(std::process::id()).unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(60) {
            std::hint::black_box(began);
        }
        assert!(cpu_time(std::process::id()).unwrap() >= before + Duration::from_millis(20));
    }
}
