//! The host ids to which the users and groups of a sandbox are mapped. Each sandbox of a server has a range of 65,536
//! ids that no other sandbox of the server uses. Two sandboxes therefore never share the owner of a file or process, or
//! a per-user limit.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::launcher::IDS;

/// The first mapped id, above the ranges that distributions assign to users and their containers.
const FIRST: u32 = 0x4000_0000;
/// The maximum number of concurrent sandboxes of one server.
const PER_SERVER: u32 = 1024;
/// The number of blocks of ranges on one machine. The tag of a server selects the block of the server. Servers that
/// select the same block share ids, and therefore also share per-user counts.
const SERVERS: u32 = 40;

/// The ids of one server.
#[derive(Debug, Clone)]
pub(crate) struct Ids {
    first: u32,
    used: Arc<Mutex<BTreeSet<u32>>>,
}

impl Ids {
    /// Returns the group of ranges that the tag of the server selects.
    pub(crate) fn of(tag: &str) -> Ids {
        let number = tag.bytes().fold(0_u32, |number, byte| number.wrapping_mul(31).wrapping_add(byte.into()));
        Ids { first: FIRST + number % SERVERS * PER_SERVER * IDS, used: Arc::default() }
    }

    /// Reserves a free range. Returns `None` if all ranges are in use.
    pub(crate) fn take(&self) -> Option<IdRange> {
        let mut used = self.used.lock();
        let slot = (0..PER_SERVER).find(|slot| !used.contains(slot))?;
        used.insert(slot);
        Some(IdRange { base: self.first + slot * IDS, slot, used: Arc::clone(&self.used) })
    }
}

/// A reserved range, released on drop.
#[derive(Debug)]
pub(crate) struct IdRange {
    pub base: u32,
    /// The number of the range, from 0.
    pub slot: u32,
    used: Arc<Mutex<BTreeSet<u32>>>,
}

impl Drop for IdRange {
    fn drop(&mut self) {
        self.used.lock().remove(&self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_come_back() {
        let ids = Ids::of("ffffffff");
        let (one, two) = (ids.take().unwrap(), ids.take().unwrap());
        assert!(one.base >= FIRST && two.base == one.base + IDS);
        drop(one);
        assert_eq!(ids.take().unwrap().slot, 0);
        let last = u64::from(FIRST) + u64::from(SERVERS) * u64::from(PER_SERVER) * u64::from(IDS);
        assert!(last < u64::from(u32::MAX), "a range contains the invalid id");
        let all: Vec<IdRange> = std::iter::from_fn(|| ids.take()).collect();
        assert_eq!(all.len(), 1023);
    }
}
