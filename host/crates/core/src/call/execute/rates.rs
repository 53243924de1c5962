//! The rate limits of bindings. The limiters remember only the calls of the last minutes, so that deleted bindings and
//! unused rates use no memory.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};
use monstrum_types::BindingId;
use parking_lot::Mutex;

/// The number of checks between two sweeps of the limiters. A sweep costs as much as a few checks.
const CHECKS_PER_SWEEP: usize = 4096;

type Limiter<C> = RateLimiter<BindingId, DefaultKeyedStateStore<BindingId>, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// The rate limiters of this host.
pub(super) struct Rates<C: Clock + Clone = DefaultClock> {
    clock: C,
    limiters: Mutex<Limiters<C>>,
}

struct Limiters<C: Clock> {
    /// One limiter for each distinct rate, in calls per minute.
    by_rate: HashMap<NonZeroU32, Arc<Limiter<C>>>,
    checks_before_sweep: usize,
}

impl<C: Clock + Clone> Rates<C> {
    pub(super) fn new(clock: C) -> Rates<C> {
        let limiters = Limiters { by_rate: HashMap::new(), checks_before_sweep: CHECKS_PER_SWEEP };
        Rates { clock, limiters: Mutex::new(limiters) }
    }

    /// Counts a call of `binding`, which allows `per_minute` calls per minute. If the call exceeds the rate, returns
    /// the time after which another call is allowed.
    pub(super) fn check(&self, binding: BindingId, per_minute: NonZeroU32) -> Result<(), Duration> {
        let limiter = self.limiters.lock().of_rate(per_minute, &self.clock);
        limiter.check_key(&binding).map_err(|refused| refused.wait_time_from(self.clock.now()))
    }
}

impl<C: Clock + Clone> Limiters<C> {
    fn of_rate(&mut self, per_minute: NonZeroU32, clock: &C) -> Arc<Limiter<C>> {
        self.checks_before_sweep -= 1;
        let found = self.by_rate.get(&per_minute).cloned();
        if found.is_none() || self.checks_before_sweep == 0 {
            self.sweep();
        }
        found.unwrap_or_else(|| {
            let limiter = Arc::new(RateLimiter::dashmap_with_clock(Quota::per_minute(per_minute), clock.clone()));
            self.by_rate.insert(per_minute, Arc::clone(&limiter));
            limiter
        })
    }

    /// Removes the bindings whose calls no longer count, and the limiters that have no bindings left.
    fn sweep(&mut self) {
        let mut bindings = 0;
        self.by_rate.retain(|_, limiter| {
            limiter.retain_recent();
            bindings += limiter.len();
            // A limiter that is in use may be about to count a call.
            !limiter.is_empty() || Arc::strong_count(limiter) > 1
        });
        // The cost of a sweep grows with the number of bindings, so the number of checks between two sweeps grows too.
        self.checks_before_sweep = CHECKS_PER_SWEEP.max(bindings);
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn rates() -> (Rates<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        (Rates::new(clock.clone()), clock)
    }

    fn per_minute(calls: u32) -> NonZeroU32 {
        NonZeroU32::new(calls).unwrap()
    }

    fn counted<C: Clock + Clone>(rates: &Rates<C>) -> (usize, usize) {
        let by_rate = &rates.limiters.lock().by_rate;
        (by_rate.len(), by_rate.values().map(|limiter| limiter.len()).sum())
    }

    #[test]
    fn bindings_without_recent_calls_are_forgotten() {
        let (rates, clock) = rates();
        for _ in 0..10 {
            for _ in 0..CHECKS_PER_SWEEP {
                assert_eq!(rates.check(BindingId::new(), per_minute(60)), Ok(()));
            }
            clock.advance(Duration::from_secs(180));
        }
        let (limiters, bindings) = counted(&rates);
        assert!(limiters == 1 && bindings <= 2 * CHECKS_PER_SWEEP, "{bindings} bindings");
    }

    #[test]
    fn rates_that_no_binding_has_are_forgotten() {
        let (rates, clock) = rates();
        for rate in 1..1000 {
            assert_eq!(rates.check(BindingId::new(), per_minute(rate)), Ok(()));
            clock.advance(Duration::from_secs(180));
        }
        let (limiters, bindings) = counted(&rates);
        assert!(limiters <= 2 && bindings <= 2, "{limiters} limiters, {bindings} bindings");
    }

    #[test]
    fn a_sweep_forgets_no_call_that_counts() {
        let (rates, clock) = rates();
        let (binding, rate) = (BindingId::new(), per_minute(2));
        assert_eq!(rates.check(binding, rate), Ok(()));
        assert_eq!(rates.check(binding, rate), Ok(()));
        rates.limiters.lock().sweep();
        assert_eq!(rates.check(binding, rate), Err(Duration::from_secs(30)));
        clock.advance(Duration::from_secs(29));
        for other in 3..50 {
            assert_eq!(
                rates.check(BindingId::new(), per_minute(other)),
                Ok(()),
                "a check with a new rate runs the sweep"
            );
        }
        assert_eq!(rates.check(binding, rate), Err(Duration::from_secs(1)));
        clock.advance(Duration::from_secs(1));
        assert_eq!(rates.check(binding, rate), Ok(()));
    }
}
