//! The times of a schedule.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use monstrum_types::UtcMillis;
use serde::{Deserialize, Serialize};

/// The shortest interval in seconds: a pattern of five fields has no shorter one.
pub(super) const EVERY_S_MIN: u32 = 60;
/// The longest interval in seconds, which is a leap year.
pub(super) const EVERY_S_MAX: u32 = 31_622_400;
/// The maximum length of a pattern. A list of all minutes has 169 characters.
const PATTERN_BYTES_MAX: usize = 256;
/// The difference of two times from which the search for the last due time goes from time to time.
const NEAR_MS: i64 = 3_600_000;

/// When a schedule fires, as a person saved it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum When {
    Cron(String),
    EveryS(u32),
    At(UtcMillis),
}

/// When a schedule fires, checked.
#[derive(Clone, Debug)]
pub(super) enum Timing {
    Cron(Box<Cron>, Tz),
    EveryMs(i64),
    At(UtcMillis),
}

/// An error in the times of a schedule: the field and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub(super) struct TimingError {
    pub(super) field: &'static str,
    pub(super) message: String,
}

impl TimingError {
    fn new(field: &'static str, message: impl Into<String>) -> TimingError {
        TimingError { field, message: message.into() }
    }
}

/// Parses the name of a time zone.
pub(super) fn zone(name: &str) -> Result<Tz, TimingError> {
    let message = "expected a name of the IANA time zone database, such as Europe/Berlin";
    name.parse().map_err(|_| TimingError::new("/timezone", message))
}

impl Timing {
    /// Checks the times of a schedule.
    pub(super) fn new(when: &When, timezone: &str) -> Result<Timing, TimingError> {
        let zone = zone(timezone)?;
        match when {
            When::Cron(pattern) => Ok(Timing::Cron(Box::new(parsed(pattern)?), zone)),
            When::EveryS(seconds) if (EVERY_S_MIN..=EVERY_S_MAX).contains(seconds) => {
                Ok(Timing::EveryMs(i64::from(*seconds) * 1000))
            }
            When::EveryS(_) => {
                let message = format!("must be from {EVERY_S_MIN} to {EVERY_S_MAX} seconds");
                Err(TimingError::new("/every_s", message))
            }
            When::At(time) => Ok(Timing::At(*time)),
        }
    }

    /// Returns the first time of a schedule that is saved now. A time in the past is not one.
    pub(super) fn first(&self, now: UtcMillis) -> Option<UtcMillis> {
        match self {
            Timing::At(time) => (*time > now).then_some(*time),
            Timing::Cron(..) | Timing::EveryMs(_) => self.after(now),
        }
    }

    /// Returns the time that follows a planned time.
    pub(super) fn after(&self, planned: UtcMillis) -> Option<UtcMillis> {
        match self {
            Timing::Cron(cron, zone) => {
                let from: DateTime<Utc> = DateTime::from_timestamp_millis(planned.0)?;
                let next = cron.find_next_occurrence(&from.with_timezone(zone), false).ok()?;
                Some(UtcMillis(next.timestamp_millis())).filter(|next| *next > planned)
            }
            Timing::EveryMs(every) => Some(planned.plus_ms(*every)),
            Timing::At(_) => None,
        }
    }

    /// Returns the shortest time between two of the next times, in milliseconds. A single time has none.
    pub(super) fn gap_ms(&self) -> Option<i64> {
        const TIMES: usize = 100;
        match self {
            Timing::At(_) => None,
            Timing::EveryMs(every) => Some(*every),
            Timing::Cron(..) => {
                let times = std::iter::successors(self.after(UtcMillis(0)), |time| self.after(*time)).take(TIMES);
                let times: Vec<UtcMillis> = times.collect();
                times.windows(2).map(|pair| pair[1].since_ms(pair[0])).min()
            }
        }
    }

    /// Returns the last time that is not later than `now`. `planned` is such a time.
    pub(super) fn latest(&self, planned: UtcMillis, now: UtcMillis) -> UtcMillis {
        let (mut latest, mut end) = (planned, now);
        match self {
            Timing::At(_) => return planned,
            Timing::EveryMs(every) => {
                let whole = now.since_ms(planned).max(0) / every;
                return planned.plus_ms(whole.saturating_mul(*every));
            }
            Timing::Cron(..) => {}
        }
        // Each step halves the range that can have a later time, or finds one in its second half.
        while end.since_ms(latest) > NEAR_MS {
            let middle = latest.plus_ms(end.since_ms(latest) / 2);
            match self.after(middle).filter(|next| *next <= now) {
                Some(next) => latest = next,
                None => end = middle,
            }
        }
        while let Some(next) = self.after(latest).filter(|next| *next <= now) {
            latest = next;
        }
        latest
    }
}

fn parsed(pattern: &str) -> Result<Cron, TimingError> {
    let fields = pattern.split_whitespace().count();
    if fields != 5 || pattern.contains('@') || !pattern.is_ascii() || pattern.len() > PATTERN_BYTES_MAX {
        let message = "expected a pattern of five fields: minute, hour, day of the month, month and day of the week. \
                       The shortest interval is one minute";
        return Err(TimingError::new("/cron", message));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(pattern).map_err(|error| TimingError::new("/cron", format!("the pattern is invalid: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> UtcMillis {
        text.parse().unwrap()
    }

    fn cron(pattern: &str, zone: &str) -> Timing {
        Timing::new(&When::Cron(pattern.to_owned()), zone).unwrap()
    }

    /// Returns the next times after a time, as the zone's clock shows them.
    fn next(pattern: &str, zone_name: &str, after: &str, count: usize) -> Vec<String> {
        let (timing, zone) = (cron(pattern, zone_name), zone(zone_name).unwrap());
        let times = std::iter::successors(timing.after(time(after)), |last| timing.after(*last)).take(count);
        let shown = |time: UtcMillis| DateTime::from_timestamp_millis(time.0).unwrap().with_timezone(&zone);
        times.map(|time| shown(time).format("%Y-%m-%d %H:%M %z").to_string()).collect()
    }

    #[test]
    fn a_time_that_the_clock_skips_fires_once_after_the_gap() {
        assert_eq!(
            next("30 2 * * *", "Europe/Berlin", "2026-03-27T23:00:00Z", 3),
            ["2026-03-28 02:30 +0100", "2026-03-29 03:00 +0200", "2026-03-30 02:30 +0200"]
        );
        assert_eq!(
            next("30 2 * * *", "America/New_York", "2026-03-07T05:00:00Z", 3),
            ["2026-03-07 02:30 -0500", "2026-03-08 03:00 -0400", "2026-03-09 02:30 -0400"]
        );
        assert_eq!(
            next("0 4 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z", 2),
            ["2026-03-29 04:00 +0200", "2026-03-30 04:00 +0200"]
        );
    }

    #[test]
    fn a_time_that_comes_twice_fires_once() {
        assert_eq!(
            next("30 2 * * *", "Europe/Berlin", "2026-10-23T23:00:00Z", 3),
            ["2026-10-24 02:30 +0200", "2026-10-25 02:30 +0200", "2026-10-26 02:30 +0100"]
        );
        assert_eq!(
            next("30 1 * * *", "America/New_York", "2026-10-31T06:00:00Z", 2),
            ["2026-11-01 01:30 -0400", "2026-11-02 01:30 -0500"]
        );
    }

    #[test]
    fn patterns_with_several_times_follow_the_clock() {
        assert_eq!(
            next("0 */1 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 2),
            ["2026-03-29 03:00 +0200", "2026-03-29 04:00 +0200"]
        );
        assert_eq!(
            next("0 * * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", 3),
            ["2026-10-25 02:00 +0200", "2026-10-25 02:00 +0100", "2026-10-25 03:00 +0100"]
        );
    }

    #[test]
    fn the_29th_of_february_comes_in_leap_years() {
        assert_eq!(
            next("0 12 29 2 *", "UTC", "2026-01-01T00:00:00Z", 2),
            ["2028-02-29 12:00 +0000", "2032-02-29 12:00 +0000"]
        );
        assert_eq!(next("0 0 31 2 *", "UTC", "2026-01-01T00:00:00Z", 1), Vec::<String>::new());
    }

    #[test]
    fn invalid_times_name_their_field() {
        for (pattern, zone, field) in [
            ("* * * *", "UTC", "/cron"),
            ("* * * * * *", "UTC", "/cron"),
            ("* * * * * * *", "UTC", "/cron"),
            ("@daily", "UTC", "/cron"),
            ("60 * * * *", "UTC", "/cron"),
            ("* * * * é", "UTC", "/cron"),
            ("", "UTC", "/cron"),
            ("* * * * *", "Mars/Olympus", "/timezone"),
            ("* * * * *", "", "/timezone"),
        ] {
            let error = Timing::new(&When::Cron(pattern.to_owned()), zone).unwrap_err();
            assert_eq!(error.field, field, "{pattern:?} {zone:?}");
        }
        for seconds in [0, 59, EVERY_S_MAX + 1] {
            assert_eq!(Timing::new(&When::EveryS(seconds), "UTC").unwrap_err().field, "/every_s");
        }
        assert!(Timing::new(&When::EveryS(EVERY_S_MIN), "UTC").is_ok());
    }

    #[test]
    fn the_last_due_time_is_found_after_a_long_pause() {
        let planned = time("2026-01-01T00:00:00Z");
        for (pattern, now, expected) in [
            ("* * * * *", "2027-06-01T10:20:30.5Z", "2027-06-01T10:20:00Z"),
            ("0 0 1 1 *", "2031-06-01T10:20:30Z", "2031-01-01T00:00:00Z"),
            ("* * * 1 *", "2026-12-31T00:00:00Z", "2026-01-31T23:59:00Z"),
            ("0 0 1 1 *", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(cron(pattern, "UTC").latest(planned, time(now)), time(expected), "{pattern} {now}");
        }
        let every = Timing::new(&When::EveryS(3600), "UTC").unwrap();
        assert_eq!(every.latest(planned, planned.plus_ms(7_200_001)), planned.plus_ms(7_200_000));
        assert_eq!(every.after(planned), Some(planned.plus_ms(3_600_000)));
    }

    #[test]
    fn a_single_time_fires_once_and_not_in_the_past() {
        let at = Timing::new(&When::At(UtcMillis(1000)), "UTC").unwrap();
        assert_eq!((at.first(UtcMillis(999)), at.first(UtcMillis(1000))), (Some(UtcMillis(1000)), None));
        assert_eq!((at.after(UtcMillis(1000)), at.latest(UtcMillis(1000), UtcMillis(9000))), (None, UtcMillis(1000)));
    }
}
