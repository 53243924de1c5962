//! A chart of the calls of a day: a bar for each hour, with a part for each way in which calls end. The bars are
//! attributes of an SVG, because the Content-Security-Policy allows no styles in a page.

use monstrum_types::UtcMillis;

use crate::gateway::console::page::class_of;

/// The number of hours of the chart.
const HOURS: i64 = 24;
const HOUR_MS: i64 = 60 * 60 * 1000;
/// The height of the chart in its own unit, which the highest bar has.
const HEIGHT: u64 = 1000;
/// The height of a part with few calls, so that it can be seen.
const PART_MIN: u64 = 20;
/// The distance between two bars in the unit of the width.
const STEP: u64 = 40;

/// The classes of the style sheet for how calls end, from the bottom of a bar to its top.
const CLASSES: [&str; 4] = ["success", "waiting", "denied", "error"];

/// The calls of one hour, by the class of their status.
pub(super) struct Hour {
    pub at: UtcMillis,
    calls: [u64; CLASSES.len()],
}

/// A part of a bar.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub class: &'static str,
    pub x: u64,
    pub y: u64,
    pub height: u64,
}

/// The hours of a day, oldest first.
pub(super) struct Chart {
    pub hours: Vec<Hour>,
}

impl Hour {
    pub(super) fn total(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// Returns each class with its number of calls.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CLASSES.into_iter().zip(self.calls)
    }
}

impl Chart {
    /// Returns the first millisecond of the chart.
    pub(super) fn start(now: UtcMillis) -> UtcMillis {
        UtcMillis((now.0.div_euclid(HOUR_MS) - (HOURS - 1)) * HOUR_MS)
    }

    /// Makes a chart of numbers of calls: the hour in which the calls began, their status, and their number. Calls of
    /// other times are left out.
    pub(super) fn new<'a>(now: UtcMillis, counts: impl Iterator<Item = (UtcMillis, &'a str, u64)>) -> Chart {
        let start = Chart::start(now);
        let hour = |number: i64| Hour { at: start.plus_ms(number * HOUR_MS), calls: [0; CLASSES.len()] };
        let mut hours: Vec<Hour> = (0..HOURS).map(hour).collect();
        for (at, status, calls) in counts {
            let number = usize::try_from(at.since_ms(start).div_euclid(HOUR_MS)).ok();
            let class = CLASSES.iter().position(|class| *class == class_of(status));
            if let (Some(hour), Some(class)) = (number.and_then(|number| hours.get_mut(number)), class) {
                hour.calls[class] += calls;
            }
        }
        Chart { hours }
    }

    pub(super) fn classes(&self) -> [&'static str; CLASSES.len()] {
        CLASSES
    }

    /// Returns each class with its number of calls in the whole time.
    pub(super) fn totals(&self) -> Vec<(&'static str, u64)> {
        let sum = |at: usize| self.hours.iter().map(|hour| hour.calls[at]).sum::<u64>();
        CLASSES.into_iter().enumerate().map(|(at, class)| (class, sum(at))).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hours.iter().all(|hour| hour.total() == 0)
    }

    /// Returns the width of the chart in its own unit.
    pub(super) fn width(&self) -> u64 {
        STEP * u64::try_from(self.hours.len()).unwrap_or_default()
    }

    /// Returns the parts of all bars.
    pub(super) fn bars(&self) -> Vec<Part> {
        let highest = self.hours.iter().map(Hour::total).max().unwrap_or_default().max(1);
        let mut bars = Vec::new();
        for (x, hour) in (0..).map(|number| number * STEP).zip(&self.hours) {
            let mut y = HEIGHT;
            for (class, calls) in hour.parts().filter(|(_, calls)| *calls > 0) {
                let height = (calls.saturating_mul(HEIGHT) / highest).max(PART_MIN).min(y);
                y -= height;
                bars.push(Part { class, x, y, height });
            }
        }
        bars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10:30 of a day.
    const NOW: UtcMillis = UtcMillis(1_700_000_000_000 / HOUR_MS * HOUR_MS + HOUR_MS / 2);

    fn hours_ago(hours: i64) -> UtcMillis {
        UtcMillis(NOW.0 / HOUR_MS * HOUR_MS - hours * HOUR_MS)
    }

    #[test]
    fn the_parts_of_a_bar_stand_on_each_other() {
        let counts = [
            (hours_ago(0), "success", 6),
            (hours_ago(0), "scope_violation", 1),
            (hours_ago(0), "permission_denied", 1),
            (hours_ago(23), "interrupted", 2),
            (hours_ago(24), "success", 100),
            (hours_ago(-1), "success", 100),
        ];
        let chart = Chart::new(NOW, counts.into_iter());
        let part = |class, x, y, height| Part { class, x, y, height };
        let expected = [part("error", 0, 750, 250), part("success", 920, 250, 750), part("denied", 920, 0, 250)];
        assert_eq!(chart.bars(), expected);
        assert_eq!(chart.totals(), [("success", 6), ("waiting", 0), ("denied", 2), ("error", 2)]);
        assert_eq!((chart.width(), chart.hours.len(), chart.hours[0].at), (960, 24, hours_ago(23)));
    }

    #[test]
    fn few_calls_are_seen_beside_many_and_bars_stay_in_the_chart() {
        let counts = [(hours_ago(1), "success", 1_000_000), (hours_ago(1), "error", 1), (hours_ago(2), "error", 1)];
        let bars = Chart::new(NOW, counts.into_iter()).bars();
        assert!(bars.iter().all(|part| part.y + part.height <= HEIGHT), "{bars:?}");
        assert_eq!((bars[0].class, bars[0].height), ("error", PART_MIN));
        assert!(Chart::new(NOW, std::iter::empty()).is_empty());
    }
}
