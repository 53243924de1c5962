//! The sandbox options that an operator sets for the whole server, and their ranges.

use std::ops::RangeInclusive;
use std::time::Duration;

use monstrum_sandbox::Limits;

/// Seconds without use: at least a few times the resolution of the times of use, at most a day.
pub const IDLE_S: RangeInclusive<u32> = 5..=86_400;
/// A twentieth of a processor still answers; no machine has more processors than the maximum.
pub const CPU_MILLIS: RangeInclusive<u32> = 50..=1_024_000;
/// A shell and its commands need at least the minimum.
pub const MEMORY_MIB: RangeInclusive<u32> = 32..=1_048_576;
/// A file system to work in needs at least the minimum.
pub const DISK_MIB: RangeInclusive<u32> = 32..=4_194_304;
/// /tmp is in memory.
pub const TMP_MIB: RangeInclusive<u32> = 1..=1_048_576;
/// A shell with a pipe needs at least the minimum.
pub const PROCESSES: RangeInclusive<u32> = 16..=65_536;

/// The options of the sandboxes of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a sandbox may be unused before it is stopped, unless its workspace sets another time.
    pub idle: Duration,
    /// The interval between two searches for idle sandboxes.
    pub sweep: Duration,
    /// The limits of one sandbox, unless its workspace sets others.
    pub limits: Limits,
    /// The most sandboxes that run at the same time on this host.
    pub running_max: u32,
    /// Percent of `running_max` that one workspace may use while other workspaces may use sandboxes too.
    pub share_workspace: u32,
    /// Percent of `running_max` that one bot may use while other bots may use sandboxes too.
    pub share_bot: u32,
    /// The most sandboxes that one workspace keeps, whether they run or not.
    pub kept_max: u32,
    /// The most disk of this host that the sandboxes of one workspace use.
    pub kept_gib: u32,
}

impl Default for Options {
    /// Five minutes each; as many sandboxes at the same time as fit into the memory of a large machine.
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
