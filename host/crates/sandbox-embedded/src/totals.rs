//! The limits that apply to all sandboxes together. They protect resources that the kernel counts for the whole host:
//! memory, processes and socket buffers.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The minimum memory, in bytes, that is reserved for the host. The reserve is an eighth of the host's memory, but at
/// least this minimum, and at most half of the host's memory.
const RESERVE_BYTES_MIN: u64 = 1 << 30;
const RESERVE_PART: u64 = 8;
/// The minimum memory of an open file: the size of the kernel's `struct file`, which counts towards the memory of the
/// sandbox.
const OPEN_FILE_BYTES: u64 = 192;
/// An allowance for the open files of all other programs on a host, far more than a busy server has.
const OPEN_FILES_OF_HOST: u64 = 1 << 20;
/// The page size of all supported processors.
const PAGE_BYTES: u64 = 4096;

/// The settings of an operator. Missing settings are derived from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TotalSettings {
    pub memory_mib: Option<u32>,
    pub processes: Option<u32>,
}

/// The limits of all sandboxes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub memory_bytes: u64,
    pub processes: u64,
    /// Limits socket buffers, where the kernel counts them separately from memory.
    pub socket_bytes: u64,
}

/// The resources of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostCounts {
    pub memory_bytes: u64,
    /// The minimum of `kernel.pid_max` and `kernel.threads-max`.
    pub processes: u64,
    /// The minimum of the limits for TCP and UDP.
    pub socket_bytes: u64,
    pub open_files: u64,
    /// The terminals that are not reserved for the host.
    pub terminals: u64,
}

impl HostCounts {
    /// Reads the resources of this host. A missing file means no limit.
    #[must_use]
    pub(crate) fn read() -> HostCounts {
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

/// Returns a value of `/proc/meminfo` in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let kib: u64 = text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

impl Totals {
    /// Returns the limits. The defaults are half of the host's processes and socket buffers, and its memory minus the
    /// reserve.
    #[must_use]
    pub(crate) fn of(host: &HostCounts, settings: TotalSettings) -> Totals {
        let reserve = (host.memory_bytes / RESERVE_PART).max(RESERVE_BYTES_MIN).min(host.memory_bytes / 2);
        Totals {
            memory_bytes: settings.memory_mib.map_or(host.memory_bytes - reserve, |mib| u64::from(mib) << 20),
            processes: settings.processes.map_or(host.processes / 2, u64::from),
            socket_bytes: host.socket_bytes / 2,
        }
    }

    /// Returns the number of files that the host must be able to open so that sandboxes run out of memory first.
    #[must_use]
    pub(crate) fn open_files_needed(&self) -> u64 {
        (self.memory_bytes / OPEN_FILE_BYTES).saturating_add(OPEN_FILES_OF_HOST)
    }
}

/// Raises `fs.file-max` if sandboxes could use up the host's open files. Each open file counts towards the memory of
/// its sandbox, so memory then becomes the limit. Returns whether `fs.file-max` is high enough.
pub(crate) fn raise_open_files(host: &HostCounts, totals: &Totals) -> bool {
    let needed = totals.open_files_needed();
    if host.open_files >= needed {
        return true;
    }
    match fs::write("/proc/sys/fs/file-max", needed.to_string()) {
        Ok(()) => {
            tracing::info!(
                from = host.open_files,
                to = needed,
                "fs.file-max was raised, because sandboxes could have used up the open files of the host"
            );
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
    fn host_keeps_a_part_of_everything() {
        let of = |memory_bytes| Totals::of(&host(memory_bytes), TotalSettings::default());
        assert_eq!(of(24 * GIB), Totals { memory_bytes: 21 * GIB, processes: 16_384, socket_bytes: GIB });
        assert_eq!(of(4 * GIB).memory_bytes, 3 * GIB);
        assert_eq!(of(GIB).memory_bytes, GIB / 2, "the reserve of a small host is not half of its memory");
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
