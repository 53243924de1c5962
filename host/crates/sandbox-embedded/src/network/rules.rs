//! The rules of nftables: what a sandbox may send, on the host and in its own namespace.

use std::fmt::Write;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use monstrum_types::special_purpose::SPECIAL_V4;

/// Connections that one sandbox may have at a time. A browser has a few dozen, a parallel download a few hundred; the
/// table of the host, which all share, has room for 65,536 and more.
const CONNECTIONS_MAX: u32 = 1024;

/// Public by number, but a service for the machine itself, which takes whoever asks for it: Azure's WireServer.
const HOSTS_OF_CLOUDS: [&str; 1] = ["168.63.129.16"];

/// The sets of addresses that the rules know: the special ones, and what is public in them all the same.
fn sets() -> String {
    let elements = |is_reachable: bool| {
        let nets = SPECIAL_V4.iter().filter(|special| special.globally_reachable == is_reachable);
        let more = HOSTS_OF_CLOUDS.iter().filter(|_| !is_reachable).map(|address| (*address).to_owned());
        nets.map(|special| special.net.to_string()).chain(more).collect::<Vec<_>>().join(", ")
    };
    format!(
        "  set special {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {} }}; }}\n  \
         set reachable {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {} }}; }}\n",
        elements(false),
        elements(true)
    )
}

/// A table that replaces what has its name, in one step: no packet passes between the old and the new.
fn table(name: &str, content: &str) -> String {
    format!("table inet {name}\ndelete table inet {name}\ntable inet {name} {{\n{content}}}\n")
}

/// The name of the host's table.
pub(super) fn table_name(tag: &str) -> String {
    format!("monstrum_{tag}")
}

/// On the host: everything that comes out of an interface whose name begins with `prefix`.
///
/// Twice, since a rule of somebody else may change the destination in between: before any translation, where the
/// packet is as the sandbox sent it, and where it is about to be forwarded.
pub(super) fn of_host(tag: &str, prefix: &str, range: Ipv4Net) -> String {
    let from = format!("iifname \"{prefix}*\"");
    let to = format!("oifname \"{prefix}*\"");
    let mut content = sets();
    let flows = "  set flows { type ipv4_addr; size 65536; flags dynamic; }\n";
    content.push_str(flows);
    let chains = [
        // A source that is not the one that this interface leads to is made up.
        ("prerouting", "type filter hook prerouting priority raw; policy accept;", format!("{from} jump sent")),
        ("input", "type filter hook input priority filter; policy accept;", format!("{from} drop")),
        (
            "forward",
            "type filter hook forward priority filter; policy accept;",
            format!(
                "{from} {to} drop\n    {from} jump public\n    \
                 {from} ct state new add @flows {{ ip saddr ct count over {CONNECTIONS_MAX} }} drop\n    \
                 {to} ct state established,related accept\n    {to} drop"
            ),
        ),
        (
            "postrouting",
            "type nat hook postrouting priority srcnat; policy accept;",
            format!("ip saddr {range} masquerade"),
        ),
    ];
    content.push_str(
        "  chain public {\n    meta nfproto != ipv4 drop\n    ip daddr @reachable return\n    ip daddr @special drop\n  }\n",
    );
    write!(
        content,
        "  chain sent {{\n    meta nfproto != ipv4 drop\n    ip saddr != {range} drop\n    \
         fib saddr . iif oif missing drop\n    fib daddr type != unicast drop\n    jump public\n  }}\n"
    )
    .expect("a string takes everything");
    for (name, hook, rules) in chains {
        write!(content, "  chain {name} {{\n    {hook}\n    {rules}\n  }}\n").expect("a string takes everything");
    }
    table(&table_name(tag), &content)
}

/// In the namespace of one sandbox, whose processes have no power over it: they hold also while a firewall of the
/// host is loaded anew without the host's table.
pub(super) fn of_sandbox(address: Ipv4Addr) -> String {
    let content = format!(
        "{}  chain output {{\n    type filter hook output priority filter; policy drop;\n    oifname \"lo\" accept\n    \
         meta nfproto != ipv4 drop\n    ip saddr != {address} drop\n    ip daddr @reachable accept\n    \
         ip daddr @special drop\n    accept\n  }}\n",
        sets()
    );
    table("monstrum", &content)
}
