use monstrum_types::special_purpose::{SPECIAL_V4, SPECIAL_V6};

use super::*;

/// A row of the registry: the range, whether its first and last addresses are allowed, and the neighbouring address on
/// each side, with a flag that says whether it is allowed.
type Row = (&'static str, bool, Option<(&'static str, bool)>, Option<(&'static str, bool)>);

#[rustfmt::skip]
const REGISTRY: &[Row] = &[
    ("0.0.0.0/8", false, None, Some(("1.0.0.0", true))),
    ("10.0.0.0/8", false, Some(("9.255.255.255", true)), Some(("11.0.0.0", true))),
    ("100.64.0.0/10", false, Some(("100.63.255.255", true)), Some(("100.128.0.0", true))),
    ("127.0.0.0/8", false, Some(("126.255.255.255", true)), Some(("128.0.0.0", true))),
    ("169.254.0.0/16", false, Some(("169.253.255.255", true)), Some(("169.255.0.0", true))),
    ("172.16.0.0/12", false, Some(("172.15.255.255", true)), Some(("172.32.0.0", true))),
    ("192.0.0.0/24", false, Some(("191.255.255.255", true)), Some(("192.0.1.0", true))),
    ("192.0.0.9/32", true, Some(("192.0.0.8", false)), Some(("192.0.0.10", true))),
    ("192.0.0.10/32", true, Some(("192.0.0.9", true)), Some(("192.0.0.11", false))),
    ("192.0.2.0/24", false, Some(("192.0.1.255", true)), Some(("192.0.3.0", true))),
    ("192.31.196.0/24", true, Some(("192.31.195.255", true)), Some(("192.31.197.0", true))),
    ("192.52.193.0/24", true, Some(("192.52.192.255", true)), Some(("192.52.194.0", true))),
    ("192.88.99.0/24", false, Some(("192.88.98.255", true)), Some(("192.88.100.0", true))),
    ("192.168.0.0/16", false, Some(("192.167.255.255", true)), Some(("192.169.0.0", true))),
    ("192.175.48.0/24", true, Some(("192.175.47.255", true)), Some(("192.175.49.0", true))),
    ("198.18.0.0/15", false, Some(("198.17.255.255", true)), Some(("198.20.0.0", true))),
    ("198.51.100.0/24", false, Some(("198.51.99.255", true)), Some(("198.51.101.0", true))),
    ("203.0.113.0/24", false, Some(("203.0.112.255", true)), Some(("203.0.114.0", true))),
    ("224.0.0.0/4", false, Some(("223.255.255.255", true)), Some(("240.0.0.0", false))),
    ("240.0.0.0/4", false, Some(("239.255.255.255", false)), None),
    ("255.255.255.255/32", false, Some(("255.255.255.254", false)), None),
    ("::/128", false, None, Some(("::1", false))),
    ("::1/128", false, Some(("::", false)), Some(("::2", false))),
    ("::/96", false, None, Some(("::1:0:0", false))),
    ("::ffff:0:0/96", false, Some(("::fffe:ffff:ffff", false)), Some(("::1:0:0:0", false))),
    ("64:ff9b::/96", false, Some(("64:ff9a:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("64:ff9b::1:0:0", false))),
    ("64:ff9b:1::/48", false, Some(("64:ff9b:0:ffff:ffff:ffff:ffff:ffff", false)), Some(("64:ff9b:2::", false))),
    ("100::/64", false, Some(("ff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("100:0:0:1::", false))),
    ("100:0:0:1::/64", false, Some(("100::ffff:ffff:ffff:ffff", false)), Some(("100:0:0:2::", false))),
    ("2001::/23", false, Some(("2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true)), Some(("2001:200::", true))),
    ("2001::/32", false, Some(("2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true)), Some(("2001:1::", false))),
    ("2001:2::/48", false, Some(("2001:1:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("2001:2:1::", false))),
    ("2001:10::/28", false, Some(("2001:f:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("2001:20::", false))),
    ("2001:20::/28", false, Some(("2001:1f:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("2001:30::", false))),
    ("2001:db8::/32", false, Some(("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", true)), Some(("2001:db9::", true))),
    ("2002::/16", false, Some(("2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true)), Some(("2003::", true))),
    ("3fff::/20", false, Some(("3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true)), Some(("3fff:1000::", true))),
    ("5f00::/16", false, Some(("5eff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("5f01::", false))),
    ("fc00::/7", false, Some(("fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("fe00::", false))),
    ("fe80::/10", false, Some(("fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("fec0::", false))),
    ("fec0::/10", false, Some(("febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false)), Some(("ff00::", false))),
    ("ff00::/8", false, Some(("feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false)), None),
];

fn public(text: &str) -> bool {
    is_allowed(text.parse().unwrap(), &[])
}

#[test]
fn the_table_has_all_entries_of_the_registry() {
    assert_eq!(REGISTRY.len(), SPECIAL_V4.len() + SPECIAL_V6.len());
    for (prefix, reachable, _, _) in REGISTRY {
        match prefix.parse::<IpNet>().unwrap() {
            IpNet::V4(net) => {
                let row = SPECIAL_V4.iter().find(|special| special.net == net);
                assert_eq!(row.map(|row| row.globally_reachable), Some(*reachable), "{prefix}");
            }
            IpNet::V6(net) => assert!(SPECIAL_V6.contains(&net), "{prefix}"),
        }
    }
}

#[test]
fn the_edges_of_ranges_and_their_neighbours() {
    for (prefix, reachable, before, after) in REGISTRY {
        let net: IpNet = prefix.parse().unwrap();
        let last = match net {
            IpNet::V4(net) => IpAddr::V4(net.broadcast()),
            IpNet::V6(net) => IpAddr::V6(net.broadcast()),
        };
        assert_eq!(is_allowed(net.addr(), &[]), *reachable, "first of {prefix}");
        assert_eq!(is_allowed(last, &[]), *reachable, "last of {prefix}");
        for (address, reachable) in [before, after].into_iter().flatten() {
            assert_eq!(public(address), *reachable, "{address} beside {prefix}");
        }
    }
}

#[test]
fn public_addresses_are_allowed() {
    for address in ["1.1.1.1", "8.8.8.8", "140.82.121.3", "2606:4700::1111", "2a00:1450:4001::1", "2620:4f:8000::1"] {
        assert!(public(address), "{address}");
    }
}

#[test]
fn addresses_that_embed_ipv4_are_never_allowed() {
    for address in [
        "::ffff:8.8.8.8",
        "::8.8.8.8",
        "64:ff9b::8.8.8.8",
        "64:ff9b:1::8.8.8.8",
        "2002:808:808::1",
        "2001::808:808",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::127.0.0.1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
    ] {
        assert!(!public(address), "{address}");
        assert!(!is_allowed(address.parse().unwrap(), &["0.0.0.0/0".parse().unwrap()]), "{address}");
    }
}

#[test]
fn the_operator_can_allow_ranges() {
    let opened = ["127.0.0.0/8".parse().unwrap(), "fd00:1::/32".parse().unwrap()];
    for (address, allowed) in [
        ("127.0.0.1", true),
        ("127.255.255.255", true),
        ("126.255.255.255", true),
        ("10.0.0.1", false),
        ("::ffff:127.0.0.1", false),
        ("::1", false),
        ("fd00:1::5", true),
        ("fd00:2::5", false),
    ] {
        assert_eq!(is_allowed(address.parse().unwrap(), &opened), allowed, "{address}");
    }
}

struct Fixed(Result<Vec<IpAddr>, LookupError>);

impl Resolve for Fixed {
    fn lookup<'a>(&'a self, _: &'a str) -> futures::future::BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        Box::pin(async { self.0.clone() })
    }
}

/// Resolves the host of `url` with an empty cache.
async fn resolved(url: &Url, network: &Network, resolver: impl Resolve + 'static) -> Result<Arc<[IpAddr]>, Failure> {
    let resolver: Arc<dyn Resolve> = Arc::new(resolver);
    resolve(url, network, &Names::default(), &resolver).await
}

struct NeverAsked;

impl Resolve for NeverAsked {
    fn lookup<'a>(&'a self, host: &'a str) -> futures::future::BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        panic!("{host} was looked up")
    }
}

async fn code_of(url: &str, answer: &[&str]) -> Result<usize, FailureCode> {
    let answer = answer.iter().map(|address| address.parse().unwrap()).collect();
    let addresses = resolved(&Url::parse(url).unwrap(), &Network::default(), Fixed(Ok(answer))).await;
    addresses.map(|all| all.len()).map_err(|failure| failure.code)
}

#[tokio::test]
async fn one_forbidden_address_refuses_the_answer() {
    assert_eq!(code_of("https://a.example/", &["1.1.1.1", "1.0.0.1", "1.1.1.1"]).await, Ok(2));
    assert_eq!(code_of("https://a.example/", &["1.1.1.1", "169.254.169.254"]).await, Err(FailureCode::Denied));
    assert_eq!(code_of("https://a.example/", &["::ffff:1.1.1.1"]).await, Err(FailureCode::Denied));
    assert_eq!(code_of("https://a.example/", &[]).await, Err(FailureCode::Dns));
    let many: Vec<String> = (0..=ADDRESSES_MAX).map(|last| format!("1.1.1.{last}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(code_of("https://a.example/", &many).await, Err(FailureCode::Dns));
}

#[tokio::test]
async fn literals_are_checked_without_a_look_up() {
    for url in ["http://127.0.0.1/", "http://[::1]/", "http://[::ffff:7f00:1]/", "http://10.0.0.1:8080/"] {
        let failure = resolved(&Url::parse(url).unwrap(), &Network::default(), NeverAsked).await.unwrap_err();
        assert_eq!(failure.code, FailureCode::Denied, "{url}");
    }
    assert!(resolved(&Url::parse("https://1.1.1.1/").unwrap(), &Network::default(), NeverAsked).await.is_ok());
}

#[tokio::test]
async fn local_names_are_refused_before_a_look_up() {
    let opened = Network { allow_addresses: vec!["127.0.0.0/8".parse().unwrap()], allow_http: true };
    for host in ["localhost", "localhost.", "LOCALHOST", "a.localhost", "a.b.localhost.", "localhost.."] {
        let Ok(url) = Url::parse(&format!("http://{host}/")) else { continue };
        let failure = resolved(&url, &opened, NeverAsked).await.unwrap_err();
        assert_eq!(failure.code, FailureCode::Denied, "{host}");
    }
}

/// A resolver that answers with one address after another.
struct Moving(parking_lot::Mutex<Vec<&'static str>>);

impl Resolve for Moving {
    fn lookup<'a>(&'a self, _: &'a str) -> futures::future::BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        let answer = self.0.lock().remove(0).parse().map_err(|_| LookupError::Failed);
        Box::pin(async move { answer.map(|address| vec![address]) })
    }
}

/// Checks that a forbidden answer is never served from the cache, neither as allowed nor as forbidden, and that an
/// address that one resource may use is checked again for another resource.
#[tokio::test(start_paused = true)]
async fn only_allowed_answers_are_cached_and_only_for_their_rules() {
    let closed = Network::default();
    let opened = Network { allow_addresses: vec!["10.0.0.0/8".parse().unwrap()], ..Network::default() };
    let answers = vec!["10.0.0.1", "10.0.0.1", "10.0.0.1", "1.1.1.1", "10.0.0.1", "not an address", "1.0.0.1"];
    let (names, url) = (Names::default(), Url::parse("https://a.example/").unwrap());
    let resolver: Arc<dyn Resolve> = Arc::new(Moving(parking_lot::Mutex::new(answers)));
    let address = async |network: &Network| {
        let resolved = resolve(&url, network, &names, &resolver).await;
        resolved.map(|all| all[0].to_string()).map_err(|failure| failure.code)
    };
    let (allowed, denied) = (|address: &str| Ok(address.to_owned()), Err(FailureCode::Denied));
    assert_eq!(address(&opened).await, allowed("10.0.0.1"));
    assert_eq!(address(&closed).await, denied);
    assert_eq!(address(&closed).await, denied);
    assert_eq!(address(&opened).await, allowed("10.0.0.1"));
    assert_eq!(address(&closed).await, allowed("1.1.1.1"));
    assert_eq!(address(&opened).await, allowed("10.0.0.1"));
    tokio::time::advance(crate::names::KEPT_MAX).await;
    assert_eq!(address(&closed).await, denied);
    assert_eq!(address(&closed).await, Err(FailureCode::Dns));
    assert_eq!(address(&closed).await, allowed("1.0.0.1"));
}
