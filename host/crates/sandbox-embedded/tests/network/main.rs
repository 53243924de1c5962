//! Tests of the network `full` in namespaces that represent a host, the internet and sandboxes. Needs root, `ip` and
//! `nft`.
#![cfg(target_os = "linux")]

mod world;

use std::os::fd::AsFd;

use monstrum_sandbox::contract::Subject;
use monstrum_sandbox::{ExecRequest, Network, SandboxError, SandboxName, SandboxProvider, Spec};
use monstrum_sandbox_embedded::network::{FullNetwork, Settings};
use monstrum_sandbox_embedded::{Embedded, EmbeddedOptions};
use world::{Namespace, World};

const TAG: &str = "1a2b3c4d";

fn network() -> FullNetwork {
    FullNetwork::new(TAG, Settings::default()).expect("this machine has ip and nft")
}

#[test]
fn public_addresses_are_reached_and_no_others() {
    let world = World::new();
    let network = network();
    let (sandbox, other) = (Namespace::new(), Namespace::new());
    let link = world.host.inside(|| network.attach(sandbox.file().as_fd())).expect("it is set up");
    let neighbour = world.host.inside(|| network.attach(other.file().as_fd())).expect("it is set up");
    assert_ne!(link.address, neighbour.address);
    let _listener = other.listen();

    for address in World::PUBLIC {
        assert!(sandbox.reaches(address), "the sandbox cannot reach the public address {address}");
    }
    for address in World::SPECIAL {
        assert!(world.host.reaches(address), "the host cannot reach {address}");
        assert!(sandbox.misses(address), "the sandbox can reach {address}, which is not public");
    }
    let gateway = "198.19.0.1".to_owned();
    for (what, address) in [
        ("the host by its address in the internet", World::HOST.to_owned()),
        ("the host by its side of the link", gateway),
        ("the host by the other link", "198.19.0.5".to_owned()),
        ("another sandbox", neighbour.address.to_string()),
    ] {
        assert!(sandbox.misses(&address), "{what}");
    }
}

#[test]
fn spoofed_source_is_dropped() {
    let world = World::new();
    let network = network();
    let (sandbox, other) = (Namespace::new(), Namespace::new());
    let link = world.host.inside(|| network.attach(sandbox.file().as_fd())).expect("it is set up");
    let neighbour = world.host.inside(|| network.attach(other.file().as_fd())).expect("it is set up");
    assert!(sandbox.reaches_from(&link.address.to_string(), World::PUBLIC[0]));
    // The rules in the sandbox would already reject these packets, but the rules of the host must reject them as well.
    sandbox.run(&["nft", "flush", "ruleset"]);
    for source in [neighbour.address.to_string(), World::HOST.to_owned(), "10.9.9.9".to_owned(), "8.8.8.8".to_owned()] {
        sandbox.run(&["ip", "address", "add", &source, "dev", "eth0"]);
        assert!(sandbox.misses_from(&source, World::PUBLIC[0]), "as {source}");
    }
    for address in World::SPECIAL.iter().chain([&World::HOST]) {
        assert!(sandbox.misses(address), "the rules of the host alone do not block {address}");
    }
}

#[test]
fn rules_inside_hold_while_the_hosts_are_gone() {
    let world = World::new();
    let sandbox = Namespace::new();
    let network = network();
    world.host.inside(|| network.attach(sandbox.file().as_fd())).expect("it is set up");
    world.host.run(&["nft", "flush", "ruleset"]);
    for address in World::SPECIAL {
        assert!(sandbox.misses(address), "the rules in the sandbox alone do not block {address}");
    }
    world.host.inside(|| network.reload_rules()).expect("the rules are loaded anew");
    assert!(sandbox.reaches(World::PUBLIC[0]) && sandbox.misses(World::HOST));
}

#[test]
fn other_nat_rules_open_nothing() {
    let world = World::new();
    let network = network();
    let sandbox = Namespace::new();
    world.host.inside(|| network.attach(sandbox.file().as_fd())).expect("it is set up");
    assert!(sandbox.reaches(World::PUBLIC[1]));
    let rule = format!(
        "table ip other {{ chain c {{ type nat hook prerouting priority dstnat; ip daddr {} dnat to 10.1.2.3; ip daddr {} redirect; }}; }}",
        World::PUBLIC[0],
        World::PUBLIC[2]
    );
    world.host.run(&["nft", &rule]);
    assert!(sandbox.misses(World::PUBLIC[0]), "the sandbox reached a private address by address translation");
    assert!(sandbox.misses(World::PUBLIC[2]), "the sandbox reached the host by address translation");
    assert!(sandbox.reaches(World::PUBLIC[1]), "the rules of another table block a public address");
}

#[test]
fn connections_of_one_sandbox_are_limited() {
    let world = World::new();
    let network = network();
    let (sandbox, other) = (Namespace::new(), Namespace::new());
    for namespace in [&sandbox, &other] {
        world.host.inside(|| network.attach(namespace.file().as_fd())).expect("it is set up");
    }
    // Each datagram uses a different port, so that the host tracks it as a separate connection.
    assert_eq!(world.arrivals(&sandbox, 1500), 1024);
    assert_eq!(world.arrivals(&other, 100), 100, "the connections of another sandbox count towards the same limit");
}

#[test]
fn ipv6_is_disabled() {
    let world = World::new();
    let network = network();
    let sandbox = Namespace::new();
    let link = world.host.inside(|| network.attach(sandbox.file().as_fd())).expect("it is set up");
    assert_eq!(sandbox.inside(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default()), "");
    let of_host = world.host.inside(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default());
    assert!(!of_host.contains(&link.interface), "the host's interface has an address that the sandbox can guess");
}

#[test]
fn the_network_none_stays_untouched() {
    let world = World::new();
    let network = network();
    let (sandbox, none) = (Namespace::new(), Namespace::new());
    let before = none.inside(World::looks);
    world.host.inside(|| network.attach(sandbox.file().as_fd())).expect("it is set up");
    assert_eq!(none.inside(World::looks), before);
    assert!(none.misses(World::PUBLIC[0]));
}

/// Returns the addresses that a sandbox reaches within `wait_s` seconds.
async fn reached(provider: &Embedded, name: &SandboxName, addresses: &[&str], wait_s: u32) -> String {
    let tries = addresses.iter().map(|address| {
        format!("(timeout {wait_s} bash -c ': </dev/tcp/{address}/80' 2>/dev/null && echo -n '{address} ') & ")
    });
    let command = tries.collect::<String>() + "wait";
    let output = provider.exec(name, ExecRequest::new(command), None).await.expect("it is run");
    let mut reached: Vec<&str> = output.stdout.text.split_whitespace().collect();
    reached.sort_unstable();
    reached.join(" ")
}

#[test]
fn a_sandbox_has_the_network_that_was_asked_for() {
    let (world, folder) = (World::new(), tempfile::tempdir().expect("a temporary folder can be made"));
    let mut options = EmbeddedOptions::new(folder.path());
    options.program = Some(env!("CARGO_BIN_EXE_sandbox-init").into());
    let work = async {
        let provider = Embedded::start(options).await.expect("this machine can run sandboxes");
        let names = ["1", "2"].map(|id| SandboxName::new("00000000-0000-7000-8000-000000000000", id));
        let [full, none] = &names;
        // The test machine may have too little disk space for a sandbox of the default size.
        let limits = Subject::small();
        for (name, network) in [(full, Network::Full), (none, Network::None)] {
            provider.ensure_running(name, Spec { limits, network }).await.expect("it runs");
        }
        let addresses = [&World::PUBLIC[..], &World::SPECIAL, &[World::HOST, "198.19.0.1", "127.0.0.1"]].concat();
        let mut public = World::PUBLIC;
        public.sort_unstable();
        assert_eq!(reached(&provider, full, &addresses, 5).await, public.join(" "));
        assert_eq!(reached(&provider, none, &addresses, 1).await, "");
        // Root in the sandbox has no capabilities over its network.
        for command in [
            "nft flush ruleset",
            "ip link set eth0 down",
            "ip address add 10.9.9.9 dev eth0",
            "ip route add 10.1.2.3 via 198.19.0.1",
            "echo x >/etc/resolv.conf",
            "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)'",
        ] {
            let output = provider.exec(full, ExecRequest::new(command), None).await.expect("it is run");
            assert_ne!(output.exit_code, 0, "{command}");
        }
        for (network, resolvers) in [(Network::Full, "2\n"), (Network::None, "0\n")] {
            provider.stop(full).await.expect("it is stopped");
            provider.ensure_running(full, Spec { limits, network }).await.expect("it runs again");
            let count = ExecRequest::new("grep -c ^nameserver /etc/resolv.conf");
            assert_eq!(provider.exec(full, count, None).await.expect("it is run").stdout.text, resolvers);
        }
        assert_eq!(reached(&provider, full, &addresses, 1).await, "");
        for name in &names {
            provider.delete(name).await.expect("it is deleted");
        }
    };
    world.host.inside(|| {
        // The runtime's threads are created in this namespace, and so are the processes that they start.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(work);
    });
}

#[test]
fn leftovers_are_found_and_removed() {
    let world = World::new();
    let (first, second, third) = (Namespace::new(), Namespace::new(), Namespace::new());
    let network = network();
    let foreign = FullNetwork::new("1a2b3c4", Settings::default()).expect("another instance");
    world.host.inside(|| {
        let link = network.attach(first.file().as_fd()).expect("it is set up");
        network.attach(second.file().as_fd()).expect("it is set up");
        let kept = foreign.attach(third.file().as_fd()).expect("it is set up");
        assert_eq!(network.leftovers().expect("they are listed").len(), 2);
        network.detach(&link).expect("it is removed");
        network.detach(&link).expect("a second removal is not an error");
        assert_eq!(network.leftovers().expect("they are listed").len(), 1);
        network.clear().expect("all is removed");
        network.clear().expect("a second removal is not an error");
        assert_eq!(network.leftovers(), Ok(vec![]));
        assert_eq!(foreign.leftovers(), Ok(vec![kept.interface.clone()]));
        let again = network.attach(first.file().as_fd()).expect("it is set up anew");
        assert_ne!(again.address, kept.address, "the address of the other instance was assigned again");
    });
    assert!(first.reaches(World::PUBLIC[0]) && third.reaches(World::PUBLIC[0]) && second.misses(World::PUBLIC[0]));
    world.host.inside(|| drop(network));
    assert!(
        first.misses(World::PUBLIC[0]) && third.reaches(World::PUBLIC[0]),
        "an instance removed the interfaces of another instance"
    );
}

#[test]
fn the_interface_goes_with_its_namespace() {
    let world = World::new();
    let sandbox = Namespace::new();
    let network = network();
    let link = world.host.inside(|| network.attach(sandbox.file().as_fd())).expect("it is set up");
    drop(sandbox);
    let gone = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        world.host.inside(|| network.leftovers()) == Ok(vec![])
    });
    assert!(gone, "the interface {} outlived its sandbox", link.interface);
}

#[test]
fn a_failure_leaves_no_interface() {
    let world = World::new();
    let sandbox = Namespace::new();
    // An interface of the sandbox already has the name that the network needs.
    sandbox.run(&["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other"]);
    let network = network();
    let error = world.host.inside(|| network.attach(sandbox.file().as_fd())).expect_err("the name is taken");
    assert!(matches!(error, SandboxError::Unavailable(_)), "{error:?}");
    assert_eq!(world.host.inside(|| network.leftovers()), Ok(vec![]));
}

#[test]
fn a_range_that_the_host_uses_is_refused() {
    let world = World::new();
    let network = network();
    let sandbox = Namespace::new();
    world.host.run(&["ip", "route", "add", "198.19.7.0/24", "dev", "up0"]);
    let error = world.host.inside(|| network.attach(sandbox.file().as_fd())).expect_err("it overlaps");
    assert_eq!(
        error.to_string(),
        "the network range 198.19.0.0/16 of sandboxes overlaps with a network of the host; set --sandbox-network to another range"
    );
}

#[test]
fn full_range_is_an_error() {
    let world = World::new();
    let settings = Settings { range: "198.19.3.0/28".parse().expect("a network"), ..Settings::default() };
    let network = FullNetwork::new(TAG, settings).expect("this machine has ip and nft");
    let sandboxes: Vec<Namespace> = (0..5).map(|_| Namespace::new()).collect();
    let attached: Vec<bool> =
        sandboxes.iter().map(|sandbox| world.host.inside(|| network.attach(sandbox.file().as_fd())).is_ok()).collect();
    assert_eq!(attached, [true, true, true, true, false]);
}

#[test]
fn unsafe_settings_are_refused() {
    for range in ["8.8.0.0/16", "0.0.0.0/0", "10.0.0.0/8", "192.168.0.0/30", "192.0.0.0/14"] {
        let settings = Settings { range: range.parse().expect("a network"), ..Settings::default() };
        assert!(matches!(FullNetwork::new(TAG, settings), Err(SandboxError::Invalid(_))), "{range}");
    }
    for resolver in ["127.0.0.53", "10.0.0.2", "169.254.169.253", "::1"] {
        let settings = Settings { resolvers: vec![resolver.parse().expect("an address")], ..Settings::default() };
        assert!(matches!(FullNetwork::new(TAG, settings), Err(SandboxError::Invalid(_))), "{resolver}");
    }
    for tag in ["", "123456789", "g", "A", "a b", "a\""] {
        assert!(matches!(FullNetwork::new(tag, Settings::default()), Err(SandboxError::Invalid(_))), "{tag}");
    }
    assert_eq!(network().resolv_conf(), "nameserver 1.1.1.1\nnameserver 9.9.9.9\noptions timeout:2 attempts:2\n");
}
