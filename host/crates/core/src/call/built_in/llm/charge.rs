//! What a round has used so far, and its reservation.
//!
//! The reservation is settled on every way out: with the usage that the server reported or, where it reported none, with
//! an estimate. Tries that were answered with an error status, or that reached no server, cost nothing.
//!
//! A report above what the model can have read and written is not believed, because it could use up the budget of a
//! whole month: it counts as the most that is possible, and as an estimate.

use futures::FutureExt as _;
use monstrum_llm::estimate::RequestSize;
use monstrum_llm::{Factor, Usage};

use crate::call::ledger::{Reservation, Used};

/// The account of one round. If it is dropped, the reservation is settled with what was used until then.
pub(super) struct Charge {
    reservation: Option<Reservation>,
    input_estimate: u64,
    most: Most,
    /// The usage of the tries that have ended since the reservation.
    ended: Used,
    running: Option<Running>,
}

/// The most tokens that a try can have used.
#[derive(Clone, Copy)]
struct Most {
    input: u64,
    output: u64,
}

/// The try that is running.
struct Running {
    factor: Factor,
    output_bytes: u64,
    reported: Option<Usage>,
    is_complete: bool,
}

/// Whether the reservation covers another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTry {
    IsCovered,
    NeedsRoom,
}

impl Charge {
    /// Creates the account of a round with a model whose context has `context_tokens`.
    pub(super) fn new(reservation: Reservation, input_estimate: u64, context_tokens: u64) -> Charge {
        // What was reserved is possible, even if the configuration of the model is wrong.
        let output = context_tokens.max(reservation.output_tokens());
        let most = Most { input: context_tokens.max(input_estimate), output };
        Charge { reservation: Some(reservation), input_estimate, most, ended: Used::default(), running: None }
    }

    /// Returns whether a try of the model can have used what the server reports.
    pub(super) fn is_possible(&self, reported: Usage) -> bool {
        self.most.allows(reported)
    }

    /// Begins a try. From now on, the server may count its input.
    pub(super) fn begin(&mut self, factor: Factor) {
        self.end();
        if let Some(reservation) = &mut self.reservation {
            reservation.begin();
        }
        self.running = Some(Running { factor, output_bytes: 0, reported: None, is_complete: false });
    }

    /// Records what a try has received so far.
    pub(super) fn received(&mut self, output_bytes: usize, reported: Option<Usage>) {
        if let Some(running) = &mut self.running {
            running.output_bytes = running.output_bytes.saturating_add(u64::try_from(output_bytes).unwrap_or(u64::MAX));
            running.reported = reported;
        }
    }

    /// Records that the answer is complete, with the usage that the server reported.
    pub(super) fn complete(&mut self, reported: Option<Usage>) {
        if let Some(running) = &mut self.running {
            running.reported = reported;
            running.is_complete = true;
        }
        self.end();
    }

    /// Ends a try that costs nothing.
    pub(super) fn cancel(&mut self) {
        self.running = None;
    }

    /// Settles the tries so far if they cost something. Another try then needs a reservation of its own.
    pub(super) async fn settle_tries(&mut self) -> NextTry {
        self.end();
        if self.ended == Used::default() {
            return NextTry::IsCovered;
        }
        let ended = std::mem::take(&mut self.ended);
        if let Some(reservation) = self.reservation.take() {
            reservation.settle(ended).await;
        }
        NextTry::NeedsRoom
    }

    /// Sets the reservation of the next try.
    pub(super) fn renew(&mut self, reservation: Reservation) {
        self.reservation = Some(reservation);
    }

    /// Returns what the tries under the current reservation have used.
    pub(super) fn used(&self) -> Used {
        match &self.running {
            Some(running) => sum(self.ended, running.used(self.input_estimate, self.most)),
            None => self.ended,
        }
    }

    /// Settles the reservation.
    pub(super) async fn settle(mut self) {
        self.end();
        if let Some(reservation) = self.reservation.take() {
            reservation.settle(self.ended).await;
        }
    }

    fn end(&mut self) {
        self.ended = self.used();
        self.running = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let used = self.used();
        if let Some(reservation) = self.reservation.take() {
            // Once the settlement has begun, it continues without this future.
            let _began = reservation.settle(used).now_or_never();
        }
    }
}

impl Most {
    fn allows(self, usage: Usage) -> bool {
        usage.input <= self.input && usage.output <= self.output
    }

    /// Returns the nearest usage that is possible.
    fn limited(self, usage: Usage) -> Usage {
        let (input, output) = (usage.input.min(self.input), usage.output.min(self.output));
        Usage { input, cached_input: usage.cached_input.min(input), output, reasoning: usage.reasoning.min(output) }
    }
}

impl Running {
    fn used(&self, input_estimate: u64, most: Most) -> Used {
        let output_estimate = self.factor.estimate(RequestSize { text_bytes: self.output_bytes, images: 0 });
        let is_possible = self.reported.is_none_or(|usage| most.allows(usage));
        match self.reported.map(|usage| most.limited(usage)) {
            Some(usage) if self.is_complete => Used {
                input_tokens: usage.input,
                cached_input_tokens: usage.cached_input,
                output_tokens: usage.output,
                is_estimated: !is_possible,
            },
            // Servers that report in each chunk may not have counted the last one.
            Some(usage) => Used {
                input_tokens: usage.input.max(input_estimate),
                cached_input_tokens: usage.cached_input,
                output_tokens: usage.output.max(output_estimate),
                is_estimated: true,
            },
            None => Used {
                input_tokens: input_estimate,
                cached_input_tokens: 0,
                output_tokens: output_estimate,
                is_estimated: true,
            },
        }
    }
}

fn sum(one: Used, other: Used) -> Used {
    Used {
        input_tokens: one.input_tokens.saturating_add(other.input_tokens),
        cached_input_tokens: one.cached_input_tokens.saturating_add(other.cached_input_tokens),
        output_tokens: one.output_tokens.saturating_add(other.output_tokens),
        is_estimated: one.is_estimated || other.is_estimated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge() -> Charge {
        let most = Most { input: 1000, output: 500 };
        Charge { reservation: None, input_estimate: 100, most, ended: Used::default(), running: None }
    }

    fn used(input_tokens: u64, cached_input_tokens: u64, output_tokens: u64, is_estimated: bool) -> Used {
        Used { input_tokens, cached_input_tokens, output_tokens, is_estimated }
    }

    #[test]
    fn reported_usage_counts_and_missing_usage_is_estimated() {
        let usage = Usage { input: 90, cached_input: 10, output: 7, reasoning: 2 };
        let mut reported = charge();
        assert_eq!(reported.used(), used(0, 0, 0, false));
        reported.begin(Factor::default());
        reported.received(30, None);
        assert_eq!(reported.used(), used(100, 0, 10, true), "the usage so far");
        reported.complete(Some(usage));
        assert_eq!(reported.used(), used(90, 10, 7, false));
        let mut missing = charge();
        missing.begin(Factor::default());
        missing.received(10, None);
        missing.received(20, None);
        missing.complete(None);
        assert_eq!(missing.used(), used(100, 0, 10, true));
    }

    #[tokio::test]
    async fn another_try_needs_room_if_the_tries_before_it_cost_something() {
        let mut charge = charge();
        charge.begin(Factor::default());
        charge.cancel();
        assert_eq!(charge.settle_tries().await, NextTry::IsCovered);
        charge.begin(Factor::default());
        assert_eq!(charge.settle_tries().await, NextTry::NeedsRoom, "the server may have counted the input");
        assert_eq!(charge.used(), Used::default(), "nothing is charged twice");
    }

    #[test]
    fn all_tries_count_except_those_that_cost_nothing() {
        let mut charge = charge();
        charge.begin(Factor::default());
        charge.cancel();
        charge.begin(Factor::default());
        charge.received(30, Some(Usage { input: 90, cached_input: 0, output: 12, reasoning: 0 }));
        charge.begin(Factor::default());
        assert_eq!(charge.used(), used(200, 0, 12, true), "a broken try, and the input of the next");
        charge.complete(Some(Usage { input: 80, cached_input: 80, output: 5, reasoning: 0 }));
        assert_eq!(charge.used(), used(180, 80, 17, true));
    }

    #[test]
    fn a_report_above_what_is_possible_is_limited_and_marked() {
        let false_report = Usage { input: 1 << 40, cached_input: 1 << 39, output: 1 << 40, reasoning: 1 << 40 };
        let mut charge = charge();
        assert!(!charge.is_possible(false_report));
        charge.begin(Factor::default());
        charge.received(30, Some(false_report));
        assert_eq!(charge.used(), used(1000, 1000, 500, true), "the usage so far");
        charge.complete(Some(false_report));
        assert_eq!(charge.used(), used(1000, 1000, 500, true));
        for (input, output, is_possible) in [(1000, 500, true), (1001, 500, false), (1000, 501, false)] {
            let usage = Usage { input, cached_input: 0, output, reasoning: 0 };
            let mut charge = self::charge();
            assert_eq!(charge.is_possible(usage), is_possible, "{usage:?}");
            charge.begin(Factor::default());
            charge.complete(Some(usage));
            assert_eq!(charge.used(), used(1000, 0, 500, !is_possible), "{usage:?}");
        }
    }
}
