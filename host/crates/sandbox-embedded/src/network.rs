//! The network `full` of one sandbox: public addresses, and nothing else.
//!
//! Each sandbox has a pair of interfaces of its own and four addresses of its own, and no bridge that it would share.
//! The rules lie on the host and in the sandbox's namespace, and are there before an interface is up; whatever fails
//! takes the interface with it, so that a sandbox has the whole of it or no network at all. The functions block.
//! A sandbox with the network `none` is never given to this module.

mod listing;
mod rules;

use std::collections::HashSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipnet::Ipv4Net;
use monstrum_sandbox::SandboxError;
use monstrum_types::special_purpose::is_public;
use rustix::fs::{FlockOperation, flock};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use self::listing::{Interface, Route, parse};
use super::programs::{self, ProgramError};

/// Of the range for benchmarks (RFC 2544), which no network uses in earnest: Docker, virtual machines and offices take
/// theirs from the private ranges, and VPNs from 100.64.0.0/10. Its upper half, since some proxies take the lower.
pub const RANGE_DEFAULT: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 19, 0, 0), 16);

/// Resolvers of two operators, since the private ones of the host cannot be reached.
pub const RESOLVERS_DEFAULT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)), IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9))];

/// The interface's name inside.
const INSIDE: &str = "eth0";

/// Held while addresses are given out, by every instance on this machine.
const LOCK: &str = "/run/monstrum-sandbox-network.lock";

/// How long an interface may take to come up, which is a second at most unless the machine is overwhelmed.
const UP_MAX: Duration = Duration::from_secs(5);
/// How often it is looked at.
const UP_POLL: Duration = Duration::from_millis(5);

/// What an operator may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where sandboxes have their addresses from, four each. No network of the host may overlap with it.
    pub range: Ipv4Net,
    /// Must be public.
    pub resolvers: Vec<IpAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { range: RANGE_DEFAULT, resolvers: RESOLVERS_DEFAULT.to_vec() }
    }
}

/// The way to give sandboxes the network `full`.
#[derive(Debug)]
pub struct FullNetwork {
    tag: String,
    settings: Settings,
    ip: PathBuf,
    nft: PathBuf,
    /// Whether there are rules that it has loaded.
    is_loaded: AtomicBool,
}

/// The interface of one sandbox on the host. It goes with the sandbox's namespace, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub interface: String,
    /// The sandbox's address.
    pub address: Ipv4Addr,
}

impl FullNetwork {
    /// Fails where this machine cannot give it, with the reason and the remedy. `tag`, 1 to 8 hex digits, tells what
    /// belongs to this instance from what belongs to another on the same machine. Changes nothing.
    pub fn new(tag: &str, settings: Settings) -> Result<FullNetwork, SandboxError> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if tag.is_empty() || tag.len() > 8 || !tag.bytes().all(is_hex) {
            return Err(SandboxError::Invalid("an instance's tag is 1 to 8 hex digits".to_owned()));
        }
        let range = settings.range.trunc();
        let is_special = !is_public(range.network().into()) && !is_public(range.broadcast().into());
        // An interface's name has room for 65,536 of them.
        if !is_special || range.prefix_len() > 28 || range.prefix_len() < 14 {
            let text = format!("the network range {range} of sandboxes must be a private one between /14 and /28");
            return Err(SandboxError::Invalid(text));
        }
        if settings.resolvers.is_empty() || !settings.resolvers.iter().all(|resolver| is_public(*resolver)) {
            return Err(SandboxError::Invalid("the resolvers of sandboxes must be public addresses".to_owned()));
        }
        let find = |name: &str, package: &str| {
            let missing = || format!("sandboxes cannot have a network: `{name}` is missing; install {package}");
            programs::find(name).ok_or_else(|| SandboxError::Unsupported(missing()))
        };
        let (ip, nft) = (find("ip", "iproute2")?, find("nft", "nftables")?);
        Ok(FullNetwork {
            tag: tag.to_owned(),
            settings: Settings { range, ..settings },
            ip,
            nft,
            is_loaded: AtomicBool::new(false),
        })
    }

    /// The file /etc/resolv.conf of a sandbox with this network.
    #[must_use]
    pub fn resolv_conf(&self) -> String {
        let lines = self.settings.resolvers.iter().map(|resolver| format!("nameserver {resolver}\n"));
        lines.chain(["options timeout:2 attempts:2\n".to_owned()]).collect()
    }

    /// Gives the network to the namespace `netns`, an open file of the kind /proc/PID/ns/net.
    pub fn attach(&self, netns: BorrowedFd<'_>) -> Result<Link, SandboxError> {
        self.attached(netns).map_err(|error| self.failure("set up", &error))
    }

    /// Takes a sandbox's interface away. One that is gone is no fault.
    pub fn detach(&self, link: &Link) -> Result<(), SandboxError> {
        self.remove(&link.interface).map_err(|error| self.failure("removed", &error))
    }

    /// Loads the host's rules anew, if a sandbox has had a network. A firewall of the host that is loaded meanwhile may have
    /// removed them.
    pub fn hold(&self) -> Result<(), SandboxError> {
        if !self.is_loaded.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.load_rules().map_err(|error| self.failure("guarded", &error))
    }

    /// The interfaces of this instance that are there.
    pub fn leftovers(&self) -> Result<Vec<String>, SandboxError> {
        let (prefix, found) = (self.prefix(), self.interfaces());
        let found = found.map_err(|error| self.failure("looked at", &error))?;
        Ok(found.into_iter().map(|found| found.ifname).filter(|name| name.starts_with(&prefix)).collect())
    }

    /// Removes every interface of this instance, and its rules.
    pub fn clear(&self) -> Result<(), SandboxError> {
        for interface in self.leftovers()? {
            self.remove(&interface).map_err(|error| self.failure("removed", &error))?;
        }
        let name = rules::table_name(&self.tag);
        let script = format!("table inet {name}\ndelete table inet {name}\n");
        self.run_nft(&script).map_err(|error| self.failure("removed", &error))
    }

    fn prefix(&self) -> String {
        format!("ms{}x", self.tag)
    }

    fn attached(&self, netns: BorrowedFd<'_>) -> Result<Link, NetworkError> {
        let lock = File::create(LOCK).map_err(|source| NetworkError::File { path: LOCK.to_owned(), source })?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|source| NetworkError::File { path: LOCK.to_owned(), source: source.into() })?;
        self.check_range()?;
        let (slot, net) = self.free_slot()?;
        let link = Link { interface: format!("{}{slot:x}", self.prefix()), address: host(net, 2) };
        self.load_rules()?;
        let made = self.make(&link, host(net, 1), netns);
        if made.is_err()
            && let Err(error) = self.remove(&link.interface)
        {
            tracing::error!(error = &error as &dyn std::error::Error, "a sandbox's interface was not removed");
        }
        made.map(|()| link)
    }

    /// The interface, first without an address and down; what steers it; the inside; and only then up.
    fn make(&self, link: &Link, gateway: Ipv4Addr, netns: BorrowedFd<'_>) -> Result<(), NetworkError> {
        let name = &link.interface;
        let namespace = format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd());
        self.run_ip(&format!("link add {name} type veth peer name {INSIDE} netns {namespace}\n"))?;
        write_setting("/proc/sys/net/ipv4/ip_forward", "1")?;
        if Path::new("/proc/sys/net/ipv6").exists() {
            write_setting(&format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1")?;
        }
        // Beside the rules: strict reverse paths, no answer for addresses of other interfaces, nothing said of routes.
        for (setting, value) in [
            ("rp_filter", "1"),
            ("arp_ignore", "1"),
            ("arp_announce", "2"),
            ("send_redirects", "0"),
            ("accept_redirects", "0"),
        ] {
            write_setting(&format!("/proc/sys/net/ipv4/conf/{name}/{setting}"), value)?;
        }
        inside(netns, || self.make_inside(link, gateway))?;
        self.run_ip(&format!("address add {gateway}/30 dev {name}\nlink set {name} up\n"))?;
        self.await_up(name)?;
        inside(netns, || self.await_up(INSIDE))
    }

    /// The kernel uses an interface some time after it was set up, each end by itself, and drops what is sent before.
    fn await_up(&self, name: &str) -> Result<(), NetworkError> {
        let started = Instant::now();
        loop {
            let mut show = programs::command(&self.ip);
            show.args(["-j", "link", "show", "dev", name]);
            let found: Vec<Interface> = parse(&programs::run(show, "")?)?;
            if found.iter().any(|interface| interface.operstate == "UP") {
                return Ok(());
            }
            if started.elapsed() > UP_MAX {
                return Err(NetworkError::Down { interface: name.to_owned() });
            }
            std::thread::sleep(UP_POLL);
        }
    }

    fn make_inside(&self, link: &Link, gateway: Ipv4Addr) -> Result<(), NetworkError> {
        if Path::new("/proc/sys/net/ipv6").exists() {
            for interface in ["all", "default", INSIDE] {
                write_setting(&format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1")?;
            }
        }
        self.run_nft(&rules::of_sandbox(link.address))?;
        self.run_ip(&format!(
            "link set lo up\naddress add {}/30 dev {INSIDE}\nlink set {INSIDE} up\nroute add default via {gateway}\n",
            link.address
        ))
    }

    fn load_rules(&self) -> Result<(), NetworkError> {
        self.is_loaded.store(true, Ordering::Relaxed);
        self.run_nft(&rules::of_host(&self.tag, &self.prefix(), self.settings.range))
    }

    /// A network of the host in the range would lose its packets to sandboxes, or sandboxes theirs to it.
    fn check_range(&self) -> Result<(), NetworkError> {
        let (range, mut list) = (self.settings.range, programs::command(&self.ip));
        list.args(["-j", "-4", "route", "show", "table", "all"]);
        let routes: Vec<Route> = parse(&programs::run(list, "")?)?;
        for route in routes.iter().filter(|route| !route.dev.starts_with("ms")) {
            let net = route.dst.parse::<Ipv4Net>().or_else(|_| route.dst.parse::<Ipv4Addr>().map(Ipv4Net::from));
            if let Ok(net) = net
                && net.prefix_len() > 0
                && (range.contains(&net) || net.contains(&range))
            {
                return Err(NetworkError::Overlap { range, net });
            }
        }
        Ok(())
    }

    /// The first four addresses that no interface of this machine has.
    fn free_slot(&self) -> Result<(u32, Ipv4Net), NetworkError> {
        let interfaces = self.interfaces()?;
        let taken: HashSet<Ipv4Addr> =
            interfaces.iter().flat_map(|found| &found.addr_info).map(|info| info.local).collect();
        let names: HashSet<&str> = interfaces.iter().map(|found| found.ifname.as_str()).collect();
        let range = self.settings.range;
        let nets = range.subnets(30).map_err(|_| NetworkError::Full { range })?;
        let mut slots = (0..).zip(nets);
        let is_free = |(slot, net): &(u32, Ipv4Net)| {
            !taken.contains(&host(*net, 1)) && !names.contains(format!("{}{slot:x}", self.prefix()).as_str())
        };
        slots.find(is_free).ok_or(NetworkError::Full { range })
    }

    fn interfaces(&self) -> Result<Vec<Interface>, NetworkError> {
        let mut list = programs::command(&self.ip);
        list.args(["-j", "-4", "address", "show"]);
        let mut found: Vec<Interface> = parse(&programs::run(list, "")?)?;
        let mut links = programs::command(&self.ip);
        links.args(["-j", "link", "show", "type", "veth"]);
        found.extend(parse::<Vec<Interface>>(&programs::run(links, "")?)?);
        found.retain(|interface| !interface.ifname.is_empty());
        found.sort_by(|a, b| (&a.ifname, b.addr_info.len()).cmp(&(&b.ifname, a.addr_info.len())));
        found.dedup_by(|a, b| a.ifname == b.ifname);
        Ok(found)
    }

    fn remove(&self, interface: &str) -> Result<(), NetworkError> {
        match self.run_ip(&format!("link delete {interface}\n")) {
            // It may have gone before, with its namespace.
            Err(_) if !self.is_there(interface)? => Ok(()),
            result => result,
        }
    }

    fn is_there(&self, interface: &str) -> Result<bool, NetworkError> {
        Ok(self.interfaces()?.iter().any(|found| found.ifname == interface))
    }

    fn run_ip(&self, batch: &str) -> Result<(), NetworkError> {
        let mut command: Command = programs::command(&self.ip);
        command.args(["-batch", "-"]);
        programs::run(command, batch)?;
        Ok(())
    }

    fn run_nft(&self, script: &str) -> Result<(), NetworkError> {
        let mut command = programs::command(&self.nft);
        command.args(["-f", "-"]);
        programs::run(command, script)?;
        Ok(())
    }

    /// What is said outside; the cause, which names interfaces of the host, goes to the log.
    fn failure(&self, what: &str, error: &NetworkError) -> SandboxError {
        tracing::error!(error = error as &dyn std::error::Error, "the network of a sandbox could not be {what}");
        match error {
            NetworkError::Full { .. } => SandboxError::Exhausted("there is no free address for a sandbox".to_owned()),
            NetworkError::Overlap { range, .. } => SandboxError::unavailable(format!(
                "the network range {range} of sandboxes is used by a network of the host; set another one"
            )),
            _ => SandboxError::unavailable(format!("the network of the sandbox could not be {what}")),
        }
    }
}

impl Drop for FullNetwork {
    /// A server that ends in order leaves nothing; what another one leaves still guards what it has left.
    fn drop(&mut self) {
        if self.is_loaded.load(Ordering::Relaxed)
            && let Err(error) = self.clear()
        {
            tracing::error!(%error, "the rules for networks of sandboxes were not removed");
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum NetworkError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("failed to write `{path}`")]
    File {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to enter the sandbox's network namespace")]
    Enter {
        #[source]
        source: std::io::Error,
    },
    #[error("`ip` answered with what is no list")]
    Answer {
        #[source]
        source: serde_json::Error,
    },
    #[error("the interface `{interface}` does not come up")]
    Down { interface: String },
    #[error("no free address in {range}")]
    Full { range: Ipv4Net },
    #[error("{net} of the host overlaps with {range}")]
    Overlap { range: Ipv4Net, net: Ipv4Net },
}

/// The address of a number in a network.
fn host(net: Ipv4Net, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(net.network()) + number)
}

fn write_setting(path: &str, value: &str) -> Result<(), NetworkError> {
    let is_set = std::fs::read_to_string(path).is_ok_and(|current| current.trim() == value);
    if is_set {
        return Ok(());
    }
    std::fs::write(path, value).map_err(|source| NetworkError::File { path: path.to_owned(), source })
}

/// Does work in another network namespace: on a thread of its own, since a namespace belongs to a thread.
fn inside<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> Result<T, NetworkError> + Send,
) -> Result<T, NetworkError> {
    std::thread::scope(|scope| {
        let entered = scope.spawn(|| {
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|source| NetworkError::Enter { source: source.into() })?;
            work()
        });
        entered.join().expect("the thread does not panic")
    })
}
