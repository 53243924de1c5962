//! Numbers of calls in a workspace, by their properties and in time. Operators may read them, like the audit.

use monstrum_api::audit::{CallStat, CallStats};
use monstrum_store::{CallCount, CallFilter, CallProperty, StatsQuery};
use monstrum_types::UtcMillis;
use tokio::sync::Semaphore;

use super::{InputErrors, OperationError, Operator};
use crate::app::App;

/// The maximum length of time. A longer time has more buckets than a chart shows.
const DAYS_MAX: i64 = 31;
const DAY_MS: i64 = 24 * 60 * 60 * 1000;
/// The maximum number of buckets: an hour each, for 31 days.
const BUCKETS_MAX: i64 = 750;
/// The number of counts that run at once on this host. Each may read 200 000 rows, and calls need the database too.
static COUNTING: Semaphore = Semaphore::const_new(2);

/// What to count.
#[derive(Debug, Default)]
pub struct StatsInput {
    /// One or two names of properties, separated by a comma.
    pub by: String,
    /// Which calls. `until` defaults to the present, and `since` to 24 hours before it.
    pub filter: CallFilter,
    /// The width of a bucket in seconds.
    pub bucket_s: Option<i64>,
}

/// A valid input.
#[derive(Debug)]
struct Checked {
    by: (CallProperty, Option<CallProperty>),
    since: UtcMillis,
    until: UtcMillis,
    bucket_ms: Option<i64>,
}

impl StatsInput {
    fn check(&self, now: UtcMillis) -> Result<Checked, OperationError> {
        let mut errors = InputErrors::default();
        let by = properties(&self.by);
        if by.is_none() {
            let known: Vec<&str> = CallProperty::ALL.iter().map(|property| property.as_str()).collect();
            errors.add("by", format!("expected one of {}, or two separated by a comma", known.join(", ")));
        }
        // The present is excluded by `until`, so the next millisecond is the end.
        let until = self.filter.until.unwrap_or(now.plus_ms(1));
        let since = self.filter.since.unwrap_or(until.plus_ms(-DAY_MS));
        let span_ms = until.since_ms(since);
        if span_ms <= 0 {
            errors.add("since", "expected a time before `until`");
        } else if span_ms > DAYS_MAX * DAY_MS {
            errors.add("since", format!("expected at most {DAYS_MAX} days before `until`"));
        }
        let bucket_ms = self.bucket_s.map(|seconds| seconds.saturating_mul(1000));
        match bucket_ms {
            Some(width) if width <= 0 => errors.add("bucket", "expected a number of seconds of at least 1"),
            Some(width) if span_ms / width > BUCKETS_MAX => {
                errors.add("bucket", format!("expected a width with at most {BUCKETS_MAX} buckets"));
            }
            _ => {}
        }
        errors.check()?;
        let by = by.ok_or_else(|| OperationError::invalid_at("by", "expected a property"))?;
        Ok(Checked { by, since, until, bucket_ms })
    }
}

/// Parses one or two different properties.
fn properties(text: &str) -> Option<(CallProperty, Option<CallProperty>)> {
    let Some((first, second)) = text.split_once(',') else { return Some((CallProperty::from_word(text)?, None)) };
    let (first, second) = (CallProperty::from_word(first)?, CallProperty::from_word(second)?);
    (first != second).then_some((first, Some(second)))
}

/// Counts calls.
pub async fn stats(app: &App, caller: &Operator, input: &StatsInput) -> Result<CallStats, OperationError> {
    let Checked { by, since, until, bucket_ms } = input.check(app.clock.now())?;
    let query = StatsQuery { filter: &input.filter, by, since, until, bucket_ms };
    let _turn = COUNTING.acquire().await.map_err(OperationError::internal)?;
    let counts = app.store.call_counts(caller.workspace, &query).await?;
    Ok(CallStats {
        items: counts.groups.into_iter().map(|count| stat(by, count)).collect(),
        truncated_before: counts.truncated_before,
        has_more: counts.has_more_groups,
    })
}

fn stat((first, second): (CallProperty, Option<CallProperty>), count: CallCount) -> CallStat {
    let values = [(Some(first), count.first), (second, count.second)];
    let key = values.into_iter().filter_map(|(property, value)| Some((property?.as_str().to_owned(), value)));
    CallStat {
        key: key.collect(),
        at: count.bucket_at,
        calls: u64::try_from(count.calls).unwrap_or_default(),
        last_at: count.last_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UtcMillis = UtcMillis(1_700_000_000_000);

    fn faults(input: &StatsInput) -> String {
        input.check(NOW).err().map(|error| format!("{error:?}")).unwrap_or_default()
    }

    fn over(days: i64, bucket_s: Option<i64>) -> StatsInput {
        let filter = CallFilter { since: Some(NOW.plus_ms(-days * DAY_MS)), until: Some(NOW), ..CallFilter::default() };
        StatsInput { by: "tool".to_owned(), filter, bucket_s }
    }

    #[test]
    fn inputs_have_limits() {
        for by in ["bot_id", "tool", "resource_id", "status", "rule", "message", "rule,message"] {
            assert_eq!(faults(&StatsInput { by: by.to_owned(), ..StatsInput::default() }), "");
        }
        for by in ["", "plugin", "tool,tool", "tool,status,rule", "tool,", "tool, status"] {
            assert!(faults(&StatsInput { by: by.to_owned(), ..StatsInput::default() }).contains("\"by\""), "{by}");
        }
        assert_eq!(faults(&over(31, Some(3600))), "");
        assert!(faults(&over(32, None)).contains("31 days"));
        assert!(faults(&over(0, None)).contains("before `until`"));
        assert!(faults(&over(31, Some(3000))).contains("750 buckets"));
        assert!(faults(&over(1, Some(0))).contains("at least 1"));
    }
}
