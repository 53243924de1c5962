//! The nftables rules for packets of sandboxes, on the host and in each sandbox's namespace.

use std::fmt::Write;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use monstrum_types::special_purpose::SPECIAL_V4;

/// The connection limit of one sandbox. A browser uses a few dozen connections, a parallel download a few hundred. The
/// host's table, which all sandboxes share, has space for at least 65,536 connections.
const CONNECTIONS_MAX: u32 = 1024;

/// Public addresses that reach a service for the machine itself, such as Azure's `WireServer`.
const HOSTS_OF_CLOUDS: [&str; 1] = ["168.63.129.16"];

/// Returns the address sets of the rules: special-purpose networks, and the exceptions in them that are public.
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

/// Returns a script that replaces a table atomically, so that no packet passes while neither table is in force.
fn table(name: &str, content: &str) -> String {
    format!("table inet {name}\ndelete table inet {name}\ntable inet {name} {{\n{content}}}\n")
}

/// Returns the name of the table on the host.
pub(super) fn table_name(tag: &str) -> String {
    format!("monstrum_{tag}")
}

/// Returns the rules on the host for packets from interfaces whose name starts with `prefix`.
///
/// The rules check the destination before any translation and again before the packet is forwarded, because other rules
/// may change it in between.
pub(super) fn host_rules(tag: &str, prefix: &str, range: Ipv4Net) -> String {
    let from = format!("iifname \"{prefix}*\"");
    let to = format!("oifname \"{prefix}*\"");
    let mut content = sets();
    let flows = "  set flows { type ipv4_addr; size 65536; flags dynamic; }\n";
    content.push_str(flows);
    let chains = [
        // A source address that does not belong to the interface is spoofed.
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

/// Returns the rules in the namespace of one sandbox, which its processes cannot change. These rules still apply while
/// another firewall reloads the host's rules.
pub(super) fn sandbox_rules(address: Ipv4Addr) -> String {
    let content = format!(
        "{}  chain output {{\n    type filter hook output priority filter; policy drop;\n    oifname \"lo\" accept\n    \
         meta nfproto != ipv4 drop\n    ip saddr != {address} drop\n    ip daddr @reachable accept\n    \
         ip daddr @special drop\n    accept\n  }}\n",
        sets()
    );
    table("monstrum", &content)
}
