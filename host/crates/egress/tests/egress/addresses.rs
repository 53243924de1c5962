//! Tests of all entries of the address registry, and of all spellings of an address as the host of a URL.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;

use ipnet::IpNet;
use monstrum_egress::{Network, is_allowed};
use monstrum_types::FailureCode;
use proptest::prelude::*;
use url::Url;

use crate::support::{Call, Names, Server, ok};

/// The special-purpose registry.
const REGISTRY: &str = include_str!("../corpus/special-purpose.csv");

fn registry() -> Vec<(IpNet, bool)> {
    let rows = REGISTRY.lines().skip(1).map(|line| {
        let columns: Vec<&str> = line.split(',').collect();
        (columns[0].parse().unwrap(), columns[3].parse().unwrap())
    });
    rows.collect()
}

/// Returns whether the registry allows an address. The most specific entry decides for IPv4. An IPv6 address is allowed
/// if the address is in `2000::/3` and in no entry of the registry.
fn by_registry(address: IpAddr, registry: &[(IpNet, bool)]) -> bool {
    let entries = registry.iter().filter(|(net, _)| net.contains(&address));
    match address {
        IpAddr::V4(_) => entries.max_by_key(|(net, _)| net.prefix_len()).is_none_or(|(_, reachable)| *reachable),
        IpAddr::V6(address) => address.segments()[0] >> 13 == 1 && entries.count() == 0,
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the address of the same family as `like` whose bits are `bits`. Returns `None` if the bits do not fit into
/// an address of this family.
fn address(bits: u128, like: IpAddr) -> Option<IpAddr> {
    match like {
        IpAddr::V4(_) => u32::try_from(bits).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(_) => Some(Ipv6Addr::from_bits(bits).into()),
    }
}

#[test]
fn every_entry_of_the_registry_is_honoured() {
    let registry = registry();
    assert_eq!(registry.len(), 42);
    for (net, reachable) in &registry {
        let (first, last) = (bits(net.network()), bits(net.broadcast()));
        let inside = first + (last - first) / 3;
        for bits in [first, last, inside] {
            let address = address(bits, net.network()).unwrap();
            assert_eq!(is_allowed(address, &[]), by_registry(address, &registry), "{address} in {net}");
        }
        // For the first and last addresses of an entry, no other entry is more specific.
        if net.prefix_len() >= 20 || !*reachable {
            assert_eq!(is_allowed(net.network(), &[]), *reachable, "first of {net}");
        }
        let outside = [first.checked_sub(1), last.checked_add(1)].into_iter().flatten();
        for neighbour in outside.filter_map(|bits| address(bits, net.network())) {
            assert_eq!(is_allowed(neighbour, &[]), by_registry(neighbour, &registry), "{neighbour} beside {net}");
        }
    }
    let reachable: Vec<String> =
        registry.iter().filter(|(_, reachable)| *reachable).map(|(net, _)| net.to_string()).collect();
    let expected = ["192.0.0.9/32", "192.0.0.10/32", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24"];
    assert_eq!(reachable, expected);
}

proptest! {
    #[test]
    fn random_addresses_agree_with_the_registry(
        bits in any::<u128>(), entry in any::<prop::sample::Index>(), is_v4 in any::<bool>(), distance in -2_i128..3
    ) {
        let registry = registry();
        let anywhere: IpAddr =
            if is_v4 { Ipv4Addr::from_bits(bits as u32).into() } else { Ipv6Addr::from_bits(bits).into() };
        let (net, _) = registry[entry.index(registry.len())];
        let edge = self::bits(if is_v4 { net.network() } else { net.broadcast() });
        let near = edge.checked_add_signed(distance).and_then(|bits| address(bits, net.network()));
        for address in [Some(anywhere), near].into_iter().flatten() {
            prop_assert_eq!(is_allowed(address, &[]), by_registry(address, &registry), "{}", address);
        }
    }
}

#[test]
fn an_embedded_ipv4_address_is_refused_even_if_its_range_is_allowed() {
    let opened: Vec<IpNet> = vec!["0.0.0.0/0".parse().unwrap()];
    for v4 in ["8.8.8.8", "127.0.0.1", "169.254.169.254"] {
        let v4: Ipv4Addr = v4.parse().unwrap();
        let [a, b, c, d] = v4.octets().map(u16::from);
        let (high, low) = (a << 8 | b, c << 8 | d);
        for embedded in [
            Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, high, low),
            Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
            Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            Ipv6Addr::new(0x2001, 0, high, low, 0, 0, !high, !low),
        ] {
            assert!(!is_allowed(embedded.into(), &opened), "{embedded}");
        }
        assert!(is_allowed(v4.into(), &opened));
    }
}

#[tokio::test]
async fn addresses_of_the_registry_are_refused_as_literals_and_by_name() {
    for (net, reachable) in registry().into_iter().filter(|(_, reachable)| !reachable) {
        for address in [net.network(), net.broadcast()] {
            // Some entries contain more specific public entries, but never at their first or last address.
            assert!(!reachable);
            let host = match address {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("[{address}]"),
            };
            let mut literal = Call::new(&format!("https://{host}"), "/x");
            literal.scope.network = Network::default();
            literal.assert_refused(FailureCode::Denied).await;

            let text = address.to_string();
            for answer in [&[text.as_str()][..], &["1.1.1.1", &text], &[&text, "2606:4700::1111"]] {
                let mut named = Call::new("https://api.example", "/x");
                named.scope.network = Network::default();
                named.names = Names::new(&[("api.example", &[answer])]);
                named.assert_refused(FailureCode::Denied).await;
            }
        }
    }
}

/// Hosts that a parser, a resolver or a library may interpret as this machine, and the failure code for each in a
/// plugin's URL. Only the canonical spelling passes the URL check.
const SPELLINGS: &[(&str, FailureCode)] = &[
    // Canonical spelling: the address is checked.
    ("127.0.0.1", FailureCode::Denied),
    ("0.0.0.0", FailureCode::Denied),
    ("[::1]", FailureCode::Denied),
    ("[::]", FailureCode::Denied),
    ("[0:0:0:0:0:0:0:1]", FailureCode::Denied),
    ("[::ffff:127.0.0.1]", FailureCode::Denied),
    ("[::FFFF:127.0.0.1]", FailureCode::Denied),
    ("[::ffff:7f00:1]", FailureCode::Denied),
    ("[0:0:0:0:0:FfFf:7f00:0001]", FailureCode::Denied),
    ("[::127.0.0.1]", FailureCode::Denied),
    ("[64:ff9b::127.0.0.1]", FailureCode::Denied),
    ("[2002:7f00:1::]", FailureCode::Denied),
    ("[2001:0:7f00:1::]", FailureCode::Denied),
    ("[fe80::1]", FailureCode::Denied),
    // Decimal, octal, hexadecimal, short and mixed spellings.
    ("2130706433", FailureCode::Invalid),
    ("017700000001", FailureCode::Invalid),
    ("0177.0.0.1", FailureCode::Invalid),
    ("0177.0.0.01", FailureCode::Invalid),
    ("127.0.0.01", FailureCode::Invalid),
    ("127.000.000.001", FailureCode::Invalid),
    ("0x7f000001", FailureCode::Invalid),
    ("0x7F000001", FailureCode::Invalid),
    ("0x7f.0.0.1", FailureCode::Invalid),
    ("0X7f.0x0.0x0.0x1", FailureCode::Invalid),
    ("127.1", FailureCode::Invalid),
    ("127.0.1", FailureCode::Invalid),
    ("127.0x1", FailureCode::Invalid),
    ("0x7f.1", FailureCode::Invalid),
    ("0x7f.0.1", FailureCode::Invalid),
    ("0", FailureCode::Invalid),
    ("0x", FailureCode::Invalid),
    ("4294967297", FailureCode::Invalid),
    ("127.0.0.257", FailureCode::Invalid),
    ("1.127.0.0.1", FailureCode::Invalid),
    // A trailing dot.
    ("127.0.0.1.", FailureCode::Invalid),
    ("2130706433.", FailureCode::Invalid),
    ("127.1.", FailureCode::Invalid),
    // Digits and dots from other scripts, escapes and control characters.
    ("１２７.０.０.１", FailureCode::Invalid),
    ("127。0。0。1", FailureCode::Invalid),
    ("127．0．0．1", FailureCode::Invalid),
    ("①②⑦.⓪.⓪.①", FailureCode::Invalid),
    ("١٢٧.٠.٠.١", FailureCode::Invalid),
    ("%31%32%37.0.0.1", FailureCode::Invalid),
    ("127%2E0.0.1", FailureCode::Invalid),
    ("127.0.0.1%00", FailureCode::Invalid),
    ("127.0.0.1\t", FailureCode::Invalid),
    // IPv6 addresses with a zone, IPv4 addresses in brackets, and malformed IPv6 addresses.
    ("[::1%25lo]", FailureCode::Invalid),
    ("[::1%lo]", FailureCode::Invalid),
    ("[fe80::1%25eth0]", FailureCode::Invalid),
    ("[::ffff:127.0.1]", FailureCode::Invalid),
    ("[::ffff:0x7f.0.0.1]", FailureCode::Invalid),
    ("[127.0.0.1]", FailureCode::Invalid),
    ("[::1", FailureCode::Invalid),
    ("::1", FailureCode::Invalid),
    ("[[::1]]", FailureCode::Invalid),
    ("[v1.127.0.0.1]", FailureCode::Invalid),
    ("[]", FailureCode::Invalid),
    // Names of this machine, which are rejected without a look-up.
    ("localhost", FailureCode::Denied),
    ("LocalHost", FailureCode::Denied),
    ("localhost.", FailureCode::Denied),
    ("a.localhost", FailureCode::Denied),
    ("a.b.LOCALHOST.", FailureCode::Denied),
    ("ｌｏｃａｌｈｏｓｔ", FailureCode::Invalid),
    ("local\u{ad}host", FailureCode::Invalid),
    ("loc%61lhost", FailureCode::Invalid),
    // Addresses after a user name or before a fragment.
    ("user@127.0.0.1", FailureCode::Invalid),
    ("192.0.2.1@127.0.0.1", FailureCode::Invalid),
    ("192.0.2.1\\@127.0.0.1", FailureCode::Invalid),
    ("127.0.0.1#@192.0.2.1", FailureCode::Invalid),
];

/// Creates a call whose resource may connect to all origins that `host` could mean.
fn call_to(host: &str, port: u16) -> Call {
    let mut call = Call::new("https://api.example", &format!("http://{host}:{port}/x"));
    call.names = Names::new(&[("localhost", &[&["127.0.0.1"]]), ("localhost.", &[&["127.0.0.1"]])]);
    let url = Url::parse(&call.request.url).ok();
    let origin = url.map(|url| url.origin().ascii_serialization()).and_then(|origin| origin.parse().ok());
    call.scope.egress.extend(origin);
    for known in ["127.0.0.1", "[::1]", "localhost", "0.0.0.0"] {
        call.scope.egress.push(format!("http://{known}:{port}").parse().unwrap());
    }
    call.scope.network = Network { allow_http: true, ..Network::default() };
    call.request.authenticate = false;
    call
}

#[tokio::test]
async fn all_spellings_of_this_machine_are_refused_without_a_connection() {
    let server = Server::start(|_| ok("reached")).await;
    for (host, code) in SPELLINGS {
        let mut call = call_to(host, server.address.port());
        let failure = call.send().await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (*code, false), "{host}: {failure:?}");
        assert_eq!(call.names.asked.load(Ordering::SeqCst), 0, "{host} was looked up");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn if_this_machine_is_allowed_only_the_canonical_spelling_reaches_it() {
    let server = Server::start(|_| ok("reached")).await;
    for (host, _) in SPELLINGS {
        let mut call = call_to(host, server.address.port());
        call.scope.network.allow_addresses = vec!["127.0.0.1/32".parse().unwrap()];
        assert_eq!(call.send().await.is_ok(), *host == "127.0.0.1", "{host}");
    }
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_configured_base_is_checked_by_its_address() {
    let server = Server::start(|_| ok("reached")).await;
    let mut judged = 0;
    for (host, _) in SPELLINGS {
        // The configuration stores a parsed URL, which is canonical.
        let Ok(base) = Url::parse(&format!("http://{host}:{}", server.address.port())) else { continue };
        let mut call = call_to("127.0.0.1", server.address.port());
        call.scope.api_base = Some(base);
        call.request.url = "/x".to_owned();
        let failure = call.send().await.unwrap_err();
        assert!(matches!(failure.code, FailureCode::Denied | FailureCode::Invalid), "{host}: {failure:?}");
        assert!(!failure.sent);
        judged += 1;
    }
    assert!(judged > 30, "{judged}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_host_is_never_converted_to_another() {
    // These hosts are names, not addresses. They are looked up unchanged, and they do not exist.
    for host in ["127.0.0.1.example", "0x7f.example", "1.1.1.1.in-addr.arpa", "localhost.example", "notlocalhost"] {
        let mut call = Call::new("https://api.example", &format!("https://{host}/x"));
        call.scope.egress = vec![format!("https://{host}").parse().unwrap()];
        call.request.authenticate = false;
        call.assert_refused(FailureCode::Dns).await;
        assert_eq!(call.names.asked.load(Ordering::SeqCst), 1, "{host}");
    }
}
