//! How many events a bot and a workspace may emit.
//!
//! Each host counts for itself, in memory. A bot has a bucket with room for the events of one minute, which fills again
//! evenly, and so has its workspace.

use std::collections::HashMap;
use std::time::Duration;

use monstrum_types::{BotId, UtcMillis, WorkspaceId};
use parking_lot::Mutex;

/// The maximum number of events that a bot emits in a minute.
pub const OF_BOT: i64 = 600;
/// The maximum number of events of a workspace in a minute.
pub const OF_WORKSPACE: i64 = 6_000;
/// The maximum number of events that a call and the calls below it emit.
pub const OF_CALL: u32 = 100;
/// The number of buckets from which full ones are removed.
const BUCKETS_MAX: usize = 10_000;
/// The units that an event takes from a bucket, which gets as many in each millisecond as it permits events in a minute.
const UNITS: i64 = 60_000;

/// Whose events a bucket counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Bot(BotId),
    Workspace(WorkspaceId),
}

impl Owner {
    fn per_minute(self) -> i64 {
        match self {
            Owner::Bot(_) => OF_BOT,
            Owner::Workspace(_) => OF_WORKSPACE,
        }
    }
}

/// The room of an owner.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    units: i64,
    at: UtcMillis,
}

impl Bucket {
    /// Fills the bucket up to now. A clock that goes back fills nothing.
    fn fill(&mut self, per_minute: i64, now: UtcMillis) {
        let passed = now.since_ms(self.at).clamp(0, UNITS);
        self.units = (self.units + passed * per_minute).min(UNITS * per_minute);
        self.at = self.at.max(now);
    }
}

/// There are too many events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {of} may emit at most {per_minute} events in a minute")]
pub struct EventsLimited {
    of: &'static str,
    per_minute: i64,
    /// The time after which there is room for one event.
    pub retry_after: Duration,
}

/// The rates of the events of all bots and workspaces on this host.
#[derive(Default)]
pub struct EventRates {
    buckets: Mutex<HashMap<Owner, Bucket>>,
}

impl EventRates {
    /// Counts an event of a workspace and, if it belongs to a bot, of that bot. A refused event is not counted.
    ///
    /// # Errors
    ///
    /// The bot or the workspace has emitted too many events.
    pub fn admit(&self, workspace: WorkspaceId, bot: Option<BotId>, now: UtcMillis) -> Result<(), EventsLimited> {
        let mut buckets = self.buckets.lock();
        if buckets.len() >= BUCKETS_MAX {
            buckets.retain(|owner, bucket| {
                bucket.fill(owner.per_minute(), now);
                bucket.units < UNITS * owner.per_minute()
            });
        }
        let owners = [bot.map(Owner::Bot), Some(Owner::Workspace(workspace))];
        for owner in owners.into_iter().flatten() {
            let per_minute = owner.per_minute();
            let bucket = buckets.entry(owner).or_insert(Bucket { units: UNITS * per_minute, at: now });
            bucket.fill(per_minute, now);
            if bucket.units < UNITS {
                let of = match owner {
                    Owner::Bot(_) => "bot",
                    Owner::Workspace(_) => "workspace",
                };
                let missing = (UNITS - bucket.units).unsigned_abs().div_ceil(per_minute.unsigned_abs());
                return Err(EventsLimited { of, per_minute, retry_after: Duration::from_millis(missing.max(1)) });
            }
        }
        for owner in owners.into_iter().flatten() {
            if let Some(bucket) = buckets.get_mut(&owner) {
                bucket.units -= UNITS;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bot_and_its_workspace_have_limits() {
        let (rates, workspace, bot) = (EventRates::default(), WorkspaceId::new(), BotId::new());
        let now = UtcMillis(1_000_000);
        let admit = |bot, now| rates.admit(workspace, bot, now);
        for _ in 0..OF_BOT {
            admit(Some(bot), now).unwrap();
        }
        let refused = admit(Some(bot), now).unwrap_err();
        assert_eq!(refused.to_string(), "the bot may emit at most 600 events in a minute");
        assert_eq!(refused.retry_after, Duration::from_millis(100));
        assert!(admit(Some(bot), now.plus_ms(99)).is_err());
        assert!(admit(Some(bot), now.plus_ms(100)).is_ok());
        assert!(admit(Some(bot), now.plus_ms(50)).is_err(), "a clock that goes back gives no room");
        for _ in 0..OF_WORKSPACE {
            if admit(None, now.plus_ms(100)).is_err() {
                break;
            }
        }
        let refused = admit(None, now.plus_ms(100)).unwrap_err();
        assert_eq!(refused.to_string(), "the workspace may emit at most 6000 events in a minute");
        assert!(rates.admit(WorkspaceId::new(), None, now).is_ok(), "another workspace has its own room");
        assert!(admit(Some(BotId::new()), now.plus_ms(100)).is_err(), "the workspace is full for every bot");
        for _ in 0..OF_BOT {
            admit(Some(bot), now.plus_ms(120_000)).unwrap();
        }
        assert!(admit(Some(bot), now.plus_ms(120_000)).is_err(), "the room does not grow beyond a minute");
    }

    #[test]
    fn buckets_that_are_full_again_are_removed() {
        let (rates, workspace) = (EventRates::default(), WorkspaceId::new());
        for number in 0..BUCKETS_MAX {
            let at = UtcMillis(i64::try_from(number).unwrap() * 60_000);
            rates.admit(workspace, Some(BotId::new()), at).unwrap();
        }
        assert!(rates.buckets.lock().len() < BUCKETS_MAX);
    }
}
