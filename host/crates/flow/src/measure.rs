//! Measures tests.

use std::time::Duration;

/// The time that the processor has worked for this thread, which does not depend on the load of the machine.
pub(crate) fn processor_time() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(statistics.split_whitespace().next().unwrap().parse().unwrap())
}
