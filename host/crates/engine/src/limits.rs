//! The limits and intervals of the engine.

use std::time::Duration;

/// The time for which a claim lasts without a renewal.
pub const CLAIM: Duration = Duration::from_millis(monstrum_store::CLAIM_MS.unsigned_abs());
/// The interval at which a host renews its claims: two renewals can fail before a claim expires.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// The time without a successful renewal after which a host cancels its turns. It ends 10 s before other hosts can claim
/// the wakes.
pub const RENEW_MAX: Duration = Duration::from_secs(20);
/// The time in which a cancelled turn can end by itself. Then it is dropped, before other hosts can claim its wake.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// The time ahead for which wakes are held in memory.
pub const AHEAD: Duration = Duration::from_secs(60);
/// The interval at which the database is searched for wakes that are due soon. It is shorter than [`AHEAD`], so that each
/// wake is found before it is due.
pub const SEARCH_INTERVAL: Duration = Duration::from_secs(30);
/// The interval at which a database that several hosts share is searched for wakes that are due. A wake that another host
/// wrote waits up to this long.
pub const SHARED_SEARCH_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of wakes in memory, which take some MiB. Later wakes are found by the next search.
pub const SCHEDULED_MAX: usize = 20_000;
/// The maximum number of wakes that one search reads, and that one transaction claims.
pub const BATCH_MAX: u32 = 256;

/// The maximum number of turns that run at once on a host, without turns of tasks, which last for minutes and have limits
/// of their own.
pub const TURNS_MAX: usize = 256;
/// The part of [`TURNS_MAX`] for turns that are not steps, which last as long as a call: so slow calls cannot keep others
/// from deciding.
pub const TURNS_NOT_STEPS: usize = 64;
/// The maximum number of turns of one workspace while turns of another workspace wait.
pub const WORKSPACE_TURNS_MAX: usize = TURNS_MAX / 2;
/// The number of turns of tasks on a host, with those that wait for a place, from which its driver claims no further tasks.
/// Tasks that were started at the host count, but are not refused: their number is limited where they are inserted.
pub const TASK_TURNS_MAX: usize = 1024;

/// The lease of the host that drives the wakes of a database that several hosts share, and the interval of its renewal.
pub const DRIVER_LEASE: Duration = Duration::from_secs(15);
/// The interval at which the driver renews its lease, and at which other hosts try to become the driver.
pub const DRIVER_RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// The delays after the first failures of a key.
pub const FIRST_DELAYS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(120)];
/// The delay after further failures.
pub const FURTHER_DELAY: Duration = Duration::from_secs(300);
