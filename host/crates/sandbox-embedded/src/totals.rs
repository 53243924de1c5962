//! What all sandboxes of a host may use together, so that they never take from the host what the kernel counts once for
//! everybody: memory, processes and the buffers of sockets.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Kept back for the host itself: an eighth of its memory, and at least this much, but never more than half.
const RESERVE_BYTES_MIN: u64 = 1 << 30;
const RESERVE_PART: u64 = 8;
/// What an open file costs the memory of its sandbox at least: the kernel's `struct file`.
const OPEN_FILE_BYTES: u64 = 192;
/// Open files of everything else on a host, far more than a busy server has.
const OPEN_FILES_OF_HOST: u64 = 1 << 20;
/// A page of every processor that sandboxes run on.
const PAGE_BYTES: u64 = 4096;

/// What an operator sets; what is absent follows from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TotalSettings {
    pub memory_mib: Option<u32>,
    pub processes: Option<u32>,
}

/// What all sandboxes may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub memory_bytes: u64,
    pub processes: u64,
    /// Of buffers of sockets, where the kernel counts them apart from memory.
    pub socket_bytes: u64,
}

/// What the host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostCounts {
    pub memory_bytes: u64,
    /// The lower one of `kernel.pid_max` and `kernel.threads-max`.
    pub processes: u64,
    /// The lower one of what TCP and UDP may use.
    pub socket_bytes: u64,
    pub open_files: u64,
    /// Terminals that are not kept back for the host's own.
    pub terminals: u64,
}

impl HostCounts {
    /// Of this host. A file that is not there limits nothing.
    #[must_use]
    pub fn read() -> HostCounts {
        let knob = |path: &str, field: usize| -> Option<u64> {
            fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.split_whitespace().nth(field)?.parse().ok()
        };
        let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo(&text, "MemTotal:"));
        let least = |first: &str, second: &str, field| {
            let both = [knob(first, field), knob(second, field)];
            both.into_iter().flatten().min()
        };
        let pages = least("net/ipv4/tcp_mem", "net/ipv4/udp_mem", 2);
        let terminals = knob("kernel/pty/max", 0);
        HostCounts {
            memory_bytes: memory.unwrap_or(u64::MAX),
            processes: least("kernel/pid_max", "kernel/threads-max", 0).unwrap_or(u64::MAX),
            socket_bytes: pages.map_or(u64::MAX, |pages| pages.saturating_mul(PAGE_BYTES)),
            open_files: knob("fs/file-max", 0).unwrap_or(u64::MAX),
            terminals: terminals
                .map_or(u64::MAX, |most| most.saturating_sub(knob("kernel/pty/reserve", 0).unwrap_or(0))),
        }
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let kib: u64 = text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

impl Totals {
    /// Half of the processes and of the buffers of sockets that the host may have, and its memory but for a reserve.
    #[must_use]
    pub fn of(host: &HostCounts, settings: TotalSettings) -> Totals {
        let reserve = (host.memory_bytes / RESERVE_PART).max(RESERVE_BYTES_MIN).min(host.memory_bytes / 2);
        Totals {
            memory_bytes: settings.memory_mib.map_or(host.memory_bytes - reserve, |mib| u64::from(mib) << 20),
            processes: settings.processes.map_or(host.processes / 2, u64::from),
            socket_bytes: host.socket_bytes / 2,
        }
    }

    /// How many files the host must be able to open, so that sandboxes run out of memory before it runs out of files.
    #[must_use]
    pub fn open_files_needed(&self) -> u64 {
        (self.memory_bytes / OPEN_FILE_BYTES).saturating_add(OPEN_FILES_OF_HOST)
    }
}

/// Raises the number of files that the host can open, where sandboxes could use it up. Each open file counts as memory of
/// its sandbox, so that memory is the limit that remains. Says whether the number is high enough.
pub fn raise_open_files(host: &HostCounts, totals: &Totals) -> bool {
    let needed = totals.open_files_needed();
    if host.open_files >= needed {
        return true;
    }
    match fs::write("/proc/sys/fs/file-max", needed.to_string()) {
        Ok(()) => {
            tracing::info!(from = host.open_files, to = needed, "fs.file-max is raised: sandboxes could use it up");
            true
        }
        Err(error) => {
            tracing::warn!(%error, needed, "fs.file-max is too low and cannot be raised");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn host(memory_bytes: u64) -> HostCounts {
        HostCounts { memory_bytes, processes: 32_768, socket_bytes: 2 * GIB, open_files: 1 << 20, terminals: 3072 }
    }

    #[test]
    fn the_host_keeps_a_part_of_everything() {
        let of = |memory_bytes| Totals::of(&host(memory_bytes), TotalSettings::default());
        assert_eq!(of(24 * GIB), Totals { memory_bytes: 21 * GIB, processes: 16_384, socket_bytes: GIB });
        assert_eq!(of(4 * GIB).memory_bytes, 3 * GIB);
        assert_eq!(of(GIB).memory_bytes, GIB / 2, "a small host keeps half");
        let set = TotalSettings { memory_mib: Some(2048), processes: Some(5000) };
        let set = Totals::of(&host(24 * GIB), set);
        assert_eq!((set.memory_bytes, set.processes), (2 * GIB, 5000));
    }

    #[test]
    fn memory_is_used_up_before_open_files() {
        let totals = Totals::of(&host(24 * GIB), TotalSettings::default());
        assert!(totals.open_files_needed() * OPEN_FILE_BYTES > totals.memory_bytes);
        assert_eq!(meminfo("MemFree: 1 kB\nMemTotal:       24659704 kB\n", "MemTotal:"), Some(24_659_704 << 10));
        let this = HostCounts::read();
        assert!(this.memory_bytes > 1 << 26 && this.processes > 100 && this.open_files > 1000, "{this:?}");
    }
}
