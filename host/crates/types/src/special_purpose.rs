//! Public and special-purpose IP addresses.
//!
//! The table is IANA's registry of special-purpose addresses, including the ranges that embed an IPv4 address. The
//! table is code rather than configuration, so that a deployment cannot weaken it. Plugin egress and sandbox networks
//! share the table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// The IPv6 unicast range assigned for global use (RFC 4291, section 2.4, as allocated by IANA).
pub const GLOBAL_UNICAST: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// An IPv4 range of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialV4 {
    /// The range.
    pub net: Ipv4Net,
    /// Whether the range is a public exception inside a larger range.
    pub globally_reachable: bool,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> SpecialV4 {
    SpecialV4 { net: Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length), globally_reachable: false }
}

const fn reachable_v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> SpecialV4 {
    SpecialV4 { net: Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length), globally_reachable: true }
}

const fn v6(a: u16, b: u16, c: u16, d: u16, f: u16, length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, f, 0, 0), length)
}

/// The special-purpose IPv4 ranges. The most specific range that contains an address determines whether the address is
/// public.
pub const SPECIAL_V4: &[SpecialV4] = &[
    v4(0, 0, 0, 0, 8),                 // this network, RFC 791
    v4(10, 0, 0, 0, 8),                // private use, RFC 1918
    v4(100, 64, 0, 0, 10),             // shared address space, RFC 6598
    v4(127, 0, 0, 0, 8),               // loopback, RFC 1122
    v4(169, 254, 0, 0, 16),            // link local, RFC 3927
    v4(172, 16, 0, 0, 12),             // private use, RFC 1918
    v4(192, 0, 0, 0, 24),              // IETF protocol assignments, RFC 6890
    reachable_v4(192, 0, 0, 9, 32),    // port control protocol anycast, RFC 7723
    reachable_v4(192, 0, 0, 10, 32),   // TURN anycast, RFC 8155
    v4(192, 0, 2, 0, 24),              // documentation TEST-NET-1, RFC 5737
    reachable_v4(192, 31, 196, 0, 24), // AS112-v4, RFC 7535
    reachable_v4(192, 52, 193, 0, 24), // AMT, RFC 7450
    v4(192, 88, 99, 0, 24),            // deprecated 6to4 relay anycast, RFC 7526
    v4(192, 168, 0, 0, 16),            // private use, RFC 1918
    reachable_v4(192, 175, 48, 0, 24), // direct delegation AS112, RFC 7534
    v4(198, 18, 0, 0, 15),             // benchmarking, RFC 2544
    v4(198, 51, 100, 0, 24),           // documentation TEST-NET-2, RFC 5737
    v4(203, 0, 113, 0, 24),            // documentation TEST-NET-3, RFC 5737
    v4(224, 0, 0, 0, 4),               // multicast, RFC 5771
    v4(240, 0, 0, 0, 4),               // reserved, RFC 1112
    v4(255, 255, 255, 255, 32),        // limited broadcast, RFC 919
];

/// The special-purpose IPv6 ranges. No address in these ranges is public.
pub const SPECIAL_V6: &[Ipv6Net] = &[
    v6(0, 0, 0, 0, 0, 128),                        // unspecified, RFC 4291
    Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), // loopback, RFC 4291
    v6(0, 0, 0, 0, 0, 96),                         // IPv4-compatible (deprecated), RFC 4291
    v6(0, 0, 0, 0, 0xffff, 96),                    // IPv4-mapped, RFC 4291
    v6(0x64, 0xff9b, 0, 0, 0, 96),                 // IPv4-IPv6 translation (embeds IPv4), RFC 6052
    v6(0x64, 0xff9b, 1, 0, 0, 48),                 // IPv4-IPv6 translation, RFC 8215
    v6(0x100, 0, 0, 0, 0, 64),                     // discard only, RFC 6666
    v6(0x100, 0, 0, 1, 0, 64),                     // dummy prefix, RFC 9780
    v6(0x2001, 0, 0, 0, 0, 23),                    // IETF protocol assignments, RFC 2928
    v6(0x2001, 0, 0, 0, 0, 32),                    // Teredo (embeds IPv4), RFC 4380
    v6(0x2001, 2, 0, 0, 0, 48),                    // benchmarking, RFC 5180
    v6(0x2001, 0x10, 0, 0, 0, 28),                 // deprecated ORCHID, RFC 4843
    v6(0x2001, 0x20, 0, 0, 0, 28),                 // ORCHIDv2, RFC 7343
    v6(0x2001, 0xdb8, 0, 0, 0, 32),                // documentation, RFC 3849
    v6(0x2002, 0, 0, 0, 0, 16),                    // 6to4 (embeds IPv4), RFC 3056
    v6(0x3fff, 0, 0, 0, 0, 20),                    // documentation, RFC 9637
    v6(0x5f00, 0, 0, 0, 0, 16),                    // SRv6 SIDs, RFC 9602
    v6(0xfc00, 0, 0, 0, 0, 7),                     // unique local, RFC 4193
    v6(0xfe80, 0, 0, 0, 0, 10),                    // link local, RFC 4291
    v6(0xfec0, 0, 0, 0, 0, 10),                    // deprecated site local, RFC 3879
    v6(0xff00, 0, 0, 0, 0, 8),                     // multicast, RFC 4291
];

/// Returns whether an address belongs to the public internet.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => SPECIAL_V4
            .iter()
            .filter(|special| special.net.contains(&address))
            .max_by_key(|special| special.net.prefix_len())
            .is_none_or(|special| special.globally_reachable),
        IpAddr::V6(address) => {
            GLOBAL_UNICAST.contains(&address) && !SPECIAL_V6.iter().any(|net| net.contains(&address))
        }
    }
}
