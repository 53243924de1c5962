//! What a turn of a schedule does. All here is a function of the schedule, of its firings and of the time.

use monstrum_api::schedules::{Missed, Overlap};
use monstrum_types::{ScheduleId, UtcMillis};
use sha2::{Digest as _, Sha256};

use super::record::Record;
use super::timing::Timing;

/// The lateness from which a planned time counts as missed, in milliseconds. A turn begins within a second of its time
/// while a server runs, and another server takes over within half a minute.
const MISSED_MS: i64 = 60_000;
/// The maximum number of firings that wait.
pub(super) const QUEUED_MAX: u32 = 10;

/// What becomes of a planned time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Start,
    Queue,
    Skip,
    Miss,
}

/// What a turn does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The planned time that fires, and what becomes of it.
    pub(super) firing: Option<(UtcMillis, Outcome)>,
    /// The planned time of the next firing.
    pub(super) next_at: Option<UtcMillis>,
}

/// The firings of a schedule that have not ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unended {
    pub(super) runs: bool,
    pub(super) queued: usize,
}

/// Returns the delay of a planned time in milliseconds. Every host computes the same one.
pub(super) fn delay_ms(id: ScheduleId, planned: UtcMillis, jitter_s: u32) -> i64 {
    let hash = Sha256::new().chain_update(id.as_bytes()).chain_update(planned.0.to_be_bytes()).finalize();
    let number = hash.iter().take(6).fold(0, |number, byte| (number << 8) | i64::from(*byte));
    number % (i64::from(jitter_s) * 1000 + 1)
}

/// Decides what a turn of a schedule does whose next planned time is `next_at`.
pub(super) fn plan(
    id: ScheduleId,
    (record, timing): (&Record, &Timing),
    next_at: Option<UtcMillis>,
    now: UtcMillis,
    unended: Unended,
) -> Plan {
    let due_at = |planned: UtcMillis| planned.plus_ms(delay_ms(id, planned, record.jitter_s));
    let Some(first) = next_at.filter(|first| now >= due_at(*first)) else {
        return Plan { firing: None, next_at };
    };
    let latest = timing.latest(first, now);
    if now < due_at(latest) {
        // The earlier times have been missed, and one firing is enough for all.
        return Plan { firing: None, next_at: Some(latest) };
    }
    let is_missed = now.since_ms(due_at(latest)) > MISSED_MS;
    let outcome = match (record.missed, record.overlap) {
        (Missed::Skip, _) if is_missed => Outcome::Miss,
        (_, Overlap::Allow) => Outcome::Start,
        (_, Overlap::Skip) if unended.runs => Outcome::Skip,
        (_, Overlap::Queue) if unended.queued >= QUEUED_MAX as usize => Outcome::Skip,
        (_, Overlap::Queue) if unended.runs || unended.queued > 0 => Outcome::Queue,
        (_, Overlap::Skip | Overlap::Queue) => Outcome::Start,
    };
    Plan { firing: Some((latest, outcome)), next_at: timing.after(latest) }
}

#[cfg(test)]
mod tests {
    use monstrum_api::schedules::MadeBy;

    use super::super::record::Work;
    use super::super::timing::When;
    use super::*;

    const FIRST: UtcMillis = UtcMillis(1_767_225_600_000);
    const HOUR_MS: i64 = 3_600_000;

    fn record(overlap: Overlap, missed: Missed, jitter_s: u32) -> Record {
        Record {
            work: Work::Task { instruction: "x".to_owned() },
            when: When::EveryS(3600),
            timezone: "UTC".to_owned(),
            overlap,
            missed,
            jitter_s,
            narrow: None,
            enabled: true,
            made_by: MadeBy { kind: "key".to_owned(), id: "k".to_owned() },
            starters: Vec::new(),
        }
    }

    fn planned(record: &Record, late_ms: i64, unended: Unended) -> Plan {
        let timing = Timing::new(&record.when, &record.timezone).unwrap();
        plan(ScheduleId::new(), (record, &timing), Some(FIRST), FIRST.plus_ms(late_ms), unended)
    }

    #[test]
    fn a_schedule_fires_at_its_time_and_not_before() {
        let record = record(Overlap::Skip, Missed::Once, 0);
        let early = planned(&record, -1, Unended::default());
        assert_eq!(early, Plan { firing: None, next_at: Some(FIRST) });
        let due = planned(&record, 0, Unended::default());
        assert_eq!(due.firing, Some((FIRST, Outcome::Start)));
        assert_eq!(due.next_at, Some(FIRST.plus_ms(HOUR_MS)));
        let late = planned(&record, 1234, Unended::default());
        assert_eq!(late.next_at, Some(FIRST.plus_ms(HOUR_MS)), "the next time follows the planned time");
    }

    #[test]
    fn missed_times_fire_once_or_not_at_all() {
        let hour_down = 5 * HOUR_MS + 120_000;
        let once = planned(&record(Overlap::Skip, Missed::Once, 0), hour_down, Unended::default());
        assert_eq!(once.firing, Some((FIRST.plus_ms(5 * HOUR_MS), Outcome::Start)));
        assert_eq!(once.next_at, Some(FIRST.plus_ms(6 * HOUR_MS)));
        let skip = planned(&record(Overlap::Skip, Missed::Skip, 0), hour_down, Unended::default());
        assert_eq!(skip.firing, Some((FIRST.plus_ms(5 * HOUR_MS), Outcome::Miss)));
        assert_eq!(skip.next_at, Some(FIRST.plus_ms(6 * HOUR_MS)));
        let prompt = planned(&record(Overlap::Skip, Missed::Skip, 0), 5 * HOUR_MS + 1000, Unended::default());
        assert_eq!(prompt.firing, Some((FIRST.plus_ms(5 * HOUR_MS), Outcome::Start)), "the last time is not missed");
        let at_limit = planned(&record(Overlap::Skip, Missed::Skip, 0), MISSED_MS, Unended::default());
        assert_eq!(at_limit.firing, Some((FIRST, Outcome::Start)));
    }

    #[test]
    fn an_earlier_task_holds_back_skips_or_does_not_matter() {
        let outcome = |overlap, runs, queued| {
            planned(&record(overlap, Missed::Once, 0), 0, Unended { runs, queued }).firing.map(|(_, outcome)| outcome)
        };
        assert_eq!(outcome(Overlap::Skip, true, 0), Some(Outcome::Skip));
        assert_eq!(outcome(Overlap::Allow, true, 0), Some(Outcome::Start));
        assert_eq!(outcome(Overlap::Queue, true, 0), Some(Outcome::Queue));
        assert_eq!(outcome(Overlap::Queue, true, 9), Some(Outcome::Queue));
        assert_eq!(outcome(Overlap::Queue, true, 10), Some(Outcome::Skip));
        assert_eq!(outcome(Overlap::Queue, false, 1), Some(Outcome::Queue), "the earlier ones come first");
        assert_eq!(outcome(Overlap::Queue, false, 0), Some(Outcome::Start));
    }

    #[test]
    fn a_delay_is_the_same_on_every_host_and_within_its_limit() {
        let id = ScheduleId::new();
        let delays: Vec<i64> = (0..100).map(|hour| delay_ms(id, FIRST.plus_ms(hour * HOUR_MS), 60)).collect();
        assert!(delays.iter().all(|delay| (0..=60_000).contains(delay)));
        assert!(delays.iter().any(|delay| *delay != delays[0]));
        assert_eq!(delay_ms(id, FIRST, 60), delays[0]);
        assert_eq!(delay_ms(id, FIRST, 0), 0);
    }
}
