//! The limits of open connections: for all connections, and for the connections from one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::config::Connections;
use monstrum_core::meters::{self, RefusedBy};
use parking_lot::Mutex;

/// The highest default limit of all connections. If every connection buffers a head of 64 KiB, the heads use 1 GiB.
const IN_ALL_DEFAULT_MAX: u32 = 16_384;

/// The limits and counts of connections. Each connection uses one file descriptor. At most half of the descriptors are
/// used for connections; the remaining descriptors are reserved for the database, requests of plugins, sandboxes and
/// files.
pub(super) struct Room {
    in_all: u32,
    /// The limit for one address. `None` means that one address may use all connections.
    per_address: Option<u32>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    in_all: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl Room {
    /// Applies the limits of `settings` to a process that may have `descriptors` files open.
    pub(super) fn new(settings: Connections, descriptors: u64) -> Arc<Room> {
        let half = u32::try_from(descriptors / 2).unwrap_or(u32::MAX).max(1);
        let in_all = settings.in_all.map_or(half.min(IN_ALL_DEFAULT_MAX), |asked| {
            if asked.get() > half {
                tracing::warn!(
                    asked,
                    half,
                    "--max-connections exceeds half of the limit of open files (ulimit -n); using half of that limit"
                );
            }
            asked.get().min(half)
        });
        let per_address = match settings.per_address {
            None => Some((in_all / 2).max(1)),
            Some(0) => None,
            Some(most) => Some(most),
        };
        Arc::new(Room { in_all, per_address, open: Mutex::default() })
    }

    pub(super) fn in_all(&self) -> u32 {
        self.in_all
    }

    /// Returns a permit for a connection from `address`, or the limit that rejects it.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Seat, RefusedBy> {
        let address = counted(address);
        let mut open = self.open.lock();
        if open.in_all >= self.in_all {
            return Err(RefusedBy::Host);
        }
        if let Some(most) = self.per_address {
            let of_address = open.by_address.entry(address).or_default();
            if *of_address >= most {
                return Err(RefusedBy::Address);
            }
            *of_address += 1;
        }
        open.in_all += 1;
        meters::connections(open.in_all);
        drop(open);
        Ok(Seat { room: Arc::clone(self), address })
    }

    fn leave(&self, address: &IpAddr) {
        let mut open = self.open.lock();
        open.in_all -= 1;
        meters::connections(open.in_all);
        if let Some(of_address) = open.by_address.get_mut(address) {
            *of_address -= 1;
            if *of_address == 0 {
                open.by_address.remove(address);
            }
        }
    }
}

/// Returns the address under which a connection is counted. For IPv6, this is the /64 network, because one subscriber
/// usually has a complete /64 network.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// The permit of one connection. Dropping it releases the permit.
pub(super) struct Seat {
    room: Arc<Room>,
    address: IpAddr,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.room.leave(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn room(in_all: Option<u32>, per_address: Option<u32>, descriptors: u64) -> Arc<Room> {
        Room::new(Connections { in_all: in_all.and_then(NonZeroU32::new), per_address }, descriptors)
    }

    #[test]
    fn half_of_the_descriptors_are_kept_back_and_half_of_the_rest_is_for_one_address() {
        let of = |in_all, per_address, descriptors| {
            let room = room(in_all, per_address, descriptors);
            (room.in_all, room.per_address)
        };
        assert_eq!(of(None, None, 1024), (512, Some(256)));
        assert_eq!(of(None, None, 1), (1, Some(1)));
        assert_eq!(of(None, None, u64::MAX), (IN_ALL_DEFAULT_MAX, Some(IN_ALL_DEFAULT_MAX / 2)));
        assert_eq!(of(Some(100_000), None, 1 << 20), (100_000, Some(50_000)));
        assert_eq!(of(Some(1000), Some(7), 1024), (512, Some(7)), "the limit is at most half of the descriptors");
        assert_eq!(of(Some(10), Some(0), 1024), (10, None), "0 disables the limit");
    }

    #[test]
    fn an_address_with_its_share_is_refused_and_another_one_gets_in() {
        let room = room(Some(4), Some(2), 1024);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = [room.enter(address("192.0.2.1")), room.enter(address("::ffff:192.0.2.1"))];
        assert!(first.iter().all(Result::is_ok));
        assert_eq!(room.enter(address("192.0.2.1")).err(), Some(RefusedBy::Address));
        let second = [room.enter(address("2001:db8::1")), room.enter(address("2001:db8::ffff:2"))];
        assert!(second.iter().all(Result::is_ok));
        assert_eq!(room.enter(address("192.0.2.9")).err(), Some(RefusedBy::Host));
        drop(second);
        assert_eq!(room.open.lock().by_address.len(), 1, "an address without connections is forgotten");
        let again = room.enter(address("2001:db8:0:0:9::1"));
        assert!(again.is_ok());
    }
}
