//! The limits of one call, and the limiter of a component's memory.

use std::time::Duration;

use wasmtime::ResourceLimiter;

/// The upper bound of all memory limits, which is the size of a pool slot. 1 GiB is sixteen times the default memory
/// limit of a plugin and enough for the largest interpreters that are compiled to components.
pub const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// The maximum number of core instances of one component. `CPython` with its shared libraries has about 30.
pub(crate) const CORE_INSTANCES_MAX: u32 = 128;

/// The maximum number of memories of one component. A QuickJS guest has three.
pub(crate) const MEMORIES_MAX: u32 = 4;

/// The maximum number of tables of one component: one table for each of its larger modules, and a few small tables for
/// the adapters between modules.
pub(crate) const TABLES_MAX: u32 = 16;

/// The maximum number of live resource handles of one call, in the host and in the guest: streams, pollables and errors
/// of WASI. A plugin, which has no files or sockets, needs about twelve handles.
pub(crate) const HANDLES_MAX: usize = 1024;

/// The maximum number of random bytes in one request of the guest, more than any key or nonce needs.
pub(crate) const RANDOM_BYTES_MAX: u64 = 64 << 10;

/// The number of bytes that a guest may pass in one host call, regardless of its memory limit. This number exceeds the
/// limit on request bodies, so that the guest receives a failure, and does not trap, if a body exceeds that limit.
const HOSTCALL_BYTES_MIN: usize = 32 << 20;

/// The size in bytes of a table element, which is a pointer.
const TABLE_ELEMENT_BYTES: usize = size_of::<usize>();

/// The limits of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// The fuel of the call. One WebAssembly instruction uses about one unit.
    pub fuel: u64,
    /// The total size in bytes of all memories and tables of the component, at most [`MEMORY_BYTES_MAX`].
    pub memory_bytes: u64,
    /// The wall-clock time from the start of the instance to its result, including host calls.
    pub timeout: Duration,
}

impl CallLimits {
    /// Returns the number of bytes that a guest may pass in one host call or as its result. Distinct data in the
    /// guest's memory always fits. A list that refers to the same bytes many times may exceed the limit.
    pub(crate) fn hostcall_bytes(&self) -> usize {
        self.memory_bytes_usize().max(HOSTCALL_BYTES_MIN)
    }

    fn memory_bytes_usize(&self) -> usize {
        usize::try_from(self.memory_bytes.min(MEMORY_BYTES_MAX)).unwrap_or(usize::MAX)
    }
}

impl Default for CallLimits {
    fn default() -> Self {
        CallLimits { fuel: 1_000_000_000, memory_bytes: 64 << 20, timeout: Duration::from_secs(30) }
    }
}

/// Limits the total size of all memories and tables of a component, including their initial sizes. wasmtime's own
/// limiter limits each memory and table separately.
///
/// The total includes allowed growth even if the growth then fails. wasmtime also reports failures of growth that it
/// never requested from the limiter, so a guest could lower the total by failed requests if the limiter subtracted
/// them.
pub(crate) struct MemoryLimiter {
    bytes_max: usize,
    bytes: usize,
    refused: bool,
}

impl MemoryLimiter {
    pub(crate) fn new(limits: &CallLimits) -> Self {
        MemoryLimiter { bytes_max: limits.memory_bytes_usize(), bytes: 0, refused: false }
    }

    /// Returns whether the limiter has denied a memory request of the component. A guest that runs out of memory
    /// usually traps without reporting this reason.
    pub(crate) fn refused(&self) -> bool {
        self.refused
    }

    fn grow(&mut self, more: usize, within_maximum: bool) -> bool {
        match self.bytes.checked_add(more) {
            Some(bytes) if bytes <= self.bytes_max && within_maximum => {
                self.bytes = bytes;
                true
            }
            _ => {
                self.refused = true;
                false
            }
        }
    }
}

impl ResourceLimiter for MemoryLimiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current), maximum.is_none_or(|maximum| desired <= maximum)))
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.refused = true;
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current).saturating_mul(TABLE_ELEMENT_BYTES);
        Ok(self.grow(more, maximum.is_none_or(|maximum| desired <= maximum)))
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.refused = true;
        Ok(())
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(memory_bytes: u64) -> MemoryLimiter {
        MemoryLimiter::new(&CallLimits { memory_bytes, ..CallLimits::default() })
    }

    #[test]
    fn memories_and_tables_share_one_limit() {
        let mut limiter = limiter(1000);
        assert!(limiter.memory_growing(0, 400, None).unwrap());
        assert!(limiter.memory_growing(0, 400, None).unwrap());
        assert!(limiter.table_growing(0, 25, None).unwrap());
        assert!(!limiter.refused());
        assert!(!limiter.table_growing(25, 26, None).unwrap());
        assert!(!limiter.memory_growing(400, 401, None).unwrap());
        assert!(limiter.refused());
    }

    #[test]
    fn failed_growth_stays_counted() {
        let mut limiter = limiter(1000);
        assert!(limiter.memory_growing(0, 900, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("beyond the type's limits")).unwrap();
        assert!(!limiter.memory_growing(900, 1001, None).unwrap());
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut limiter = limiter(u64::MAX);
        assert!(!limiter.memory_growing(0, usize::MAX, None).unwrap());
        assert!(!limiter.table_growing(0, usize::MAX, None).unwrap());
        assert!(limiter.memory_growing(0, 1 << 30, None).unwrap());
        assert!(!limiter.memory_growing(0, 1, None).unwrap());
    }

    #[test]
    fn a_memory_does_not_exceed_its_own_maximum() {
        let mut limiter = limiter(1000);
        assert!(!limiter.memory_growing(0, 200, Some(100)).unwrap());
        assert!(limiter.refused());
    }
}
