//! Namespaces that represent a host, the internet and sandboxes. Each namespace ends with its process.

use std::collections::HashSet;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The port of all listeners.
const PORT: u16 = 80;

/// The first source port of datagrams, and the number of datagrams that are sent at once: the number that a socket can
/// buffer.
const FIRST_PORT: u16 = 20_000;
const AT_A_TIME: u16 = 50;

/// The time-out for reachable addresses. The kernel retransmits a lost packet after a second at the earliest.
const REACHED_WITHIN: Duration = Duration::from_secs(5);
/// The time-out for unreachable addresses. It is short because many tests wait for it.
const MISSED_WITHIN: Duration = Duration::from_millis(700);

/// A network namespace, kept open by an idle process.
pub(crate) struct Namespace {
    child: Child,
    file: File,
}

impl Namespace {
    pub(crate) fn new() -> Namespace {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "600"]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("the tests of networks are run as root, with util-linux");
        let path = format!("/proc/{}/ns/net", child.id());
        let own = std::fs::read_link("/proc/thread-self/ns/net").expect("a namespace");
        while std::fs::read_link(&path).expect("the tests of networks are run as root") == own {
            std::thread::yield_now();
        }
        let namespace = Namespace { file: File::open(path).expect("it can be opened"), child };
        namespace.run(&["ip", "link", "set", "lo", "up"]);
        namespace
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Runs `work` in the namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let entered = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).expect("it is entered");
                work()
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a program that must succeed in the namespace.
    pub(crate) fn run(&self, command: &[&str]) {
        let output = self.inside(|| Command::new(command[0]).args(&command[1..]).output().expect("it is run"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Listens on every address of the namespace.
    pub(crate) fn listen(&self) -> TcpListener {
        self.inside(|| TcpListener::bind(("0.0.0.0", PORT)).expect("the port is free"))
    }

    /// Whether a connection to the address succeeds. The kernel completes it without an accept.
    pub(crate) fn reaches(&self, address: &str) -> bool {
        self.connects(address, REACHED_WITHIN)
    }

    /// Whether a connection to the address fails.
    pub(crate) fn misses(&self, address: &str) -> bool {
        !self.connects(address, MISSED_WITHIN)
    }

    /// Like [`Namespace::reaches`], from another source address.
    pub(crate) fn reaches_from(&self, source: &str, address: &str) -> bool {
        self.connects_from(source, address, REACHED_WITHIN)
    }

    /// Like [`Namespace::misses`], from another source address.
    pub(crate) fn misses_from(&self, source: &str, address: &str) -> bool {
        !self.connects_from(source, address, MISSED_WITHIN)
    }

    fn connects(&self, address: &str, wait: Duration) -> bool {
        let address = SocketAddr::new(address.parse().expect("an address"), PORT);
        self.inside(|| TcpStream::connect_timeout(&address, wait).is_ok())
    }

    fn connects_from(&self, source: &str, address: &str, wait: Duration) -> bool {
        let (source, address): (IpAddr, IpAddr) =
            (source.parse().expect("an address"), address.parse().expect("an address"));
        self.inside(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
                socket.bind(SocketAddr::new(source, 0)).expect("the address is its own");
                let connect = socket.connect(SocketAddr::new(address, PORT));
                tokio::time::timeout(wait, connect).await.is_ok_and(|result| result.is_ok())
            })
        })
    }

    /// Sends a datagram from each port.
    pub(crate) fn send(&self, address: &str, ports: Range<u16>) {
        self.inside(|| {
            for port in ports {
                let socket = UdpSocket::bind(("0.0.0.0", port)).expect("the port is free");
                socket.send_to(b"datagram", (address, PORT)).expect("it is sent");
            }
        });
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it is ended");
    }
}

/// A host that is connected to a simulated internet, which has all the addresses of the tests.
pub(crate) struct World {
    pub host: Namespace,
    internet: Namespace,
    _listeners: [TcpListener; 2],
}

impl World {
    /// The host's address on the internet.
    pub(crate) const HOST: &str = "9.9.9.1";
    /// Public addresses. The address 192.0.0.9 is public although its range is special-purpose.
    pub(crate) const PUBLIC: [&str; 5] = ["9.9.9.9", "1.1.1.1", "93.184.215.14", "192.0.0.9", "192.88.98.7"];
    /// Addresses that exist and must be unreachable.
    pub(crate) const SPECIAL: [&str; 12] = [
        "168.63.129.16",
        "169.254.169.254",
        "10.1.2.3",
        "172.16.5.5",
        "172.31.255.254",
        "192.168.7.7",
        "100.64.0.9",
        "100.100.100.200",
        "192.0.0.8",
        "198.18.0.9",
        "203.0.113.5",
        "240.1.1.1",
    ];

    pub(crate) fn new() -> World {
        let (host, internet) = (Namespace::new(), Namespace::new());
        let pid = internet.child.id().to_string();
        host.run(&["ip", "link", "add", "up0", "type", "veth", "peer", "name", "world0", "netns", &pid]);
        host.run(&["ip", "address", "add", "9.9.9.1/24", "dev", "up0"]);
        host.run(&["ip", "link", "set", "up0", "up"]);
        internet.run(&["ip", "address", "add", "9.9.9.9/24", "dev", "world0"]);
        internet.run(&["ip", "link", "set", "world0", "up"]);
        for address in World::PUBLIC.iter().skip(1).chain(&World::SPECIAL) {
            internet.run(&["ip", "address", "add", address, "dev", "lo"]);
        }
        host.run(&["ip", "route", "add", "default", "via", "9.9.9.9"]);
        // The internet replies to every address, so that a connection would succeed even if its address were not
        // translated.
        internet.run(&["ip", "route", "add", "default", "via", "9.9.9.1"]);
        let listeners = [host.listen(), internet.listen()];
        World { host, internet, _listeners: listeners }
    }

    /// Sends `count` datagrams from different ports and returns the number of datagrams that arrive on the internet.
    pub(crate) fn arrivals(&self, sandbox: &Namespace, count: u16) -> usize {
        let inbox = self.internet.inside(|| UdpSocket::bind(("0.0.0.0", PORT)).expect("the port is free"));
        inbox.set_read_timeout(Some(Duration::from_millis(500))).expect("it is set");
        let mut senders = HashSet::new();
        // The test chooses the ports itself, because the kernel may assign the same port twice.
        for batch in 0..count / AT_A_TIME {
            let first = FIRST_PORT + batch * AT_A_TIME;
            sandbox.send(World::PUBLIC[1], first..first + AT_A_TIME);
            let received = std::iter::from_fn(|| inbox.recv_from(&mut [0; 16]).ok());
            senders.extend(received.take(AT_A_TIME.into()).map(|(_, sender)| sender));
        }
        senders.len()
    }

    /// Returns the interfaces, addresses, routes and firewall rules of the current namespace.
    pub(crate) fn looks() -> String {
        let files = ["dev", "route", "if_inet6", "fib_trie"];
        let of_file = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        let rules = Command::new("nft").args(["list", "ruleset"]).output().expect("nft is run");
        files.map(of_file).concat() + &String::from_utf8_lossy(&rules.stdout)
    }
}
