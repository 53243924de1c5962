//! Which ids of the host stand for those of a sandbox: 65,536 of its own for each, so that no two share an owner of files,
//! processes or counts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::launcher::IDS;

/// The first id that is used: above those that distributions give to users and to their containers.
const FIRST: u32 = 0x4000_0000;
/// Sandboxes of one server at once.
const PER_SERVER: u32 = 1024;
/// Servers on one machine that do not meet; more may, which costs them nothing but shared counts.
const SERVERS: u32 = 40;

/// The ids of one server.
#[derive(Debug, Clone)]
pub struct Ids {
    first: u32,
    used: Arc<Mutex<BTreeSet<u32>>>,
}

impl Ids {
    /// A part of all ids that follows from the tag of a server.
    pub fn of(tag: &str) -> Ids {
        let number = tag.bytes().fold(0_u32, |number, byte| number.wrapping_mul(31).wrapping_add(byte.into()));
        Ids { first: FIRST + number % SERVERS * PER_SERVER * IDS, used: Arc::default() }
    }

    /// A range that no other sandbox has; `None` where all are used.
    pub fn take(&self) -> Option<IdRange> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (0..PER_SERVER).find(|slot| !used.contains(slot))?;
        used.insert(slot);
        Some(IdRange { base: self.first + slot * IDS, slot, used: Arc::clone(&self.used) })
    }
}

/// A range, until it is dropped.
#[derive(Debug)]
pub struct IdRange {
    pub base: u32,
    /// From 0, the same for no other sandbox of this server.
    pub slot: u32,
    used: Arc<Mutex<BTreeSet<u32>>>,
}

impl Drop for IdRange {
    fn drop(&mut self) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.slot);
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
        assert!(last < u64::from(u32::MAX), "no id is the one that means nobody");
        let all: Vec<IdRange> = std::iter::from_fn(|| ids.take()).collect();
        assert_eq!(all.len(), 1023);
    }
}
