//! A clock that tests can set.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};
use serde::{Deserialize, Serialize};

/// A point in time, in milliseconds since 1970-01-01 UTC. The text format is RFC 3339 with milliseconds and `Z`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, format = DateTime)]
pub struct UtcMillis(pub i64);

impl UtcMillis {
    /// Returns the time `ms` milliseconds later.
    #[must_use]
    pub fn plus_ms(self, ms: i64) -> Self {
        UtcMillis(self.0.saturating_add(ms))
    }

    /// Returns the number of milliseconds from `earlier` to this time. The number is negative if `earlier` is later.
    #[must_use]
    pub fn since_ms(self, earlier: UtcMillis) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for UtcMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::from_timestamp_millis(self.0) {
            Some(time) => f.write_str(&time.to_rfc3339_opts(SecondsFormat::Millis, true)),
            None => write!(f, "{} ms since 1970-01-01T00:00:00Z", self.0),
        }
    }
}

impl std::str::FromStr for UtcMillis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        DateTime::parse_from_rfc3339(text)
            .map(|time| UtcMillis(time.timestamp_millis()))
            .map_err(|_| format!("`{text}` is not an RFC 3339 time such as 2026-11-21T22:21:49.123Z"))
    }
}

impl TryFrom<String> for UtcMillis {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<UtcMillis> for String {
    fn from(time: UtcMillis) -> String {
        time.to_string()
    }
}

/// The source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> UtcMillis;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
    fn now(&self) -> UtcMillis {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UtcMillis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock for tests, which advances only when a test advances it.
#[derive(Debug, Default)]
pub struct FixedClock(AtomicI64);

impl FixedClock {
    /// Creates a clock set to `now`.
    #[must_use]
    pub fn new(now: UtcMillis) -> Self {
        FixedClock(AtomicI64::new(now.0))
    }

    /// Moves the clock forward by `ms` milliseconds.
    pub fn advance_ms(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for FixedClock {
    fn now(&self) -> UtcMillis {
        UtcMillis(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        let time: UtcMillis = "2026-11-21T23:21:49.123+01:00".parse().unwrap();
        assert_eq!(time.to_string(), "2026-11-21T22:21:49.123Z");
        assert!("yesterday".parse::<UtcMillis>().is_err());
    }
}
