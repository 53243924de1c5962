//! What the system knows of a process that runs.

use std::fs;

use anyhow::{Context, Result};

/// The memory that a process holds, in bytes: what is resident, shared pages included.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS in a process's status")?;
    Ok(kibibytes.trim().parse::<u64>()? * 1024)
}

/// Files, sockets and pipes that a process holds open.
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
        assert!(resident_bytes(pid).unwrap() > 1 << 20);
    }
}
