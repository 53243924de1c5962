//! The sandbox options that an operator sets for the whole server, and their ranges.

use std::ops::RangeInclusive;
use std::time::Duration;

use monstrum_sandbox::Limits;

/// The range of the idle time in seconds. The minimum is a few times the resolution of the stored times of use, and the
/// maximum is a day.
pub const IDLE_S: RangeInclusive<u32> = 5..=86_400;
/// The range of the processor limit in thousandths of a processor. A sandbox with the minimum, a twentieth of a
/// processor, still answers. No machine has more processors than the maximum.
pub const CPU_MILLIS: RangeInclusive<u32> = 50..=1_024_000;
/// The range of the memory in MiB. A shell and its commands need at least the minimum.
pub const MEMORY_MIB: RangeInclusive<u32> = 32..=1_048_576;
/// The range of the disk in MiB. A usable file system needs at least the minimum.
pub const DISK_MIB: RangeInclusive<u32> = 32..=4_194_304;
/// The range of the size of /tmp in MiB. The files of /tmp are in memory.
pub const TMP_MIB: RangeInclusive<u32> = 1..=1_048_576;
/// The range of the number of processes. A shell with a pipe needs at least the minimum.
pub const PROCESSES: RangeInclusive<u32> = 16..=65_536;

/// The options of the sandboxes of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The time for which a sandbox may be unused before it is stopped. A workspace can set a different time.
    pub idle: Duration,
    /// The interval between two searches for idle sandboxes.
    pub sweep: Duration,
    /// The limits of one sandbox. A workspace can set different limits.
    pub limits: Limits,
    /// The maximum number of sandboxes that run on this host at the same time.
    pub running_max: u32,
    /// The percentage of `running_max` that one workspace may use if other workspaces may use sandboxes too.
    pub share_workspace: u32,
    /// The percentage of `running_max` that one bot may use if other bots may use sandboxes too.
    pub share_bot: u32,
    /// The maximum number of sandboxes that one workspace keeps, running or not.
    pub kept_max: u32,
    /// The maximum disk space of this host that the sandboxes of one workspace use, in GiB.
    pub kept_gib: u32,
}

impl Default for Options {
    /// Returns the default options. With the default limits, 64 running sandboxes fit into the memory of a large
    /// machine.
    fn default() -> Self {
        Options {
            idle: Duration::from_secs(300),
            sweep: Duration::from_secs(300),
            limits: Limits::default(),
            running_max: 64,
            share_workspace: 50,
            share_bot: 25,
            kept_max: 1000,
            kept_gib: 50,
        }
    }
}
