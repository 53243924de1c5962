//! The network `full` of sandboxes, which reaches public addresses only.
//!
//! Each sandbox has its own pair of interfaces and its own four addresses, and no bridge to other sandboxes. The rules
//! are installed on the host and in the sandbox's namespace before an interface is up. Any failure removes the
//! interface, so that a sandbox has the complete network or none. The functions block. This module never touches
//! sandboxes with the network `none`.

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

/// The default address range: the upper half of the benchmark range (RFC 2544), which no real network uses. Docker,
/// virtual machines and offices use the private ranges, VPNs use 100.64.0.0/10, and some proxies use the lower half.
pub const RANGE_DEFAULT: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 19, 0, 0), 16);

/// The default resolvers: public resolvers of two operators, because sandboxes cannot reach private resolvers of the
/// host.
pub const RESOLVERS_DEFAULT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)), IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9))];

/// The name of the interface in the sandbox.
const INSIDE: &str = "eth0";

/// The lock for choosing addresses, shared by all servers on this machine.
const LOCK: &str = "/run/monstrum-sandbox-network.lock";

/// The maximum time until an interface is up. The kernel needs a second at most, unless the machine is overloaded.
const UP_MAX: Duration = Duration::from_secs(5);
/// The interval at which the state of the interface is polled.
const UP_POLL: Duration = Duration::from_millis(5);
/// The message of a failed removal.
const NOT_REMOVED: &str = "the network interface of the sandbox could not be removed";

/// The network settings, which an operator can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The range of sandbox addresses, four for each sandbox. It must not overlap with a network of the host.
    pub range: Ipv4Net,
    /// The resolvers, which must be public addresses.
    pub resolvers: Vec<IpAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { range: RANGE_DEFAULT, resolvers: RESOLVERS_DEFAULT.to_vec() }
    }
}

/// Connects sandboxes to the network `full`.
#[derive(Debug)]
pub struct FullNetwork {
    tag: String,
    settings: Settings,
    ip: PathBuf,
    nft: PathBuf,
    /// Whether the rules of the host have been loaded.
    is_loaded: AtomicBool,
}

/// The host's interface of one sandbox. It disappears with the sandbox's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub interface: String,
    /// The address of the sandbox.
    pub address: Ipv4Addr,
}

impl FullNetwork {
    /// Checks that this machine can provide the network, and changes nothing. If the machine cannot provide it, the
    /// error contains the reason and the remedy. `tag` consists of 1 to 8 hex digits and distinguishes the interfaces
    /// of this server from the interfaces of other servers on the machine.
    pub fn new(tag: &str, settings: Settings) -> Result<FullNetwork, SandboxError> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if tag.is_empty() || tag.len() > 8 || !tag.bytes().all(is_hex) {
            return Err(SandboxError::Invalid("the tag of an instance must be 1 to 8 hex digits".to_owned()));
        }
        let range = settings.range.trunc();
        let is_special = !is_public(range.network().into()) && !is_public(range.broadcast().into());
        // The name of an interface has space for a number below 65,536.
        if !is_special || range.prefix_len() > 28 || range.prefix_len() < 14 {
            let text = format!(
                "the network range {range} of sandboxes must be a private range with a prefix length from 14 to 28"
            );
            return Err(SandboxError::Invalid(text));
        }
        if settings.resolvers.is_empty() || !settings.resolvers.iter().all(|resolver| is_public(*resolver)) {
            return Err(SandboxError::Invalid(
                "sandboxes need at least one resolver, and all resolvers must be public addresses".to_owned(),
            ));
        }
        let find = |name: &str, package: &str| {
            let missing = || format!("sandboxes cannot have a network, because `{name}` is missing; install {package}");
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

    /// Returns the content of /etc/resolv.conf for a sandbox with this network.
    #[must_use]
    pub fn resolv_conf(&self) -> String {
        let lines = self.settings.resolvers.iter().map(|resolver| format!("nameserver {resolver}\n"));
        lines.chain(["options timeout:2 attempts:2\n".to_owned()]).collect()
    }

    /// Connects the network namespace `netns`, an open /proc/PID/ns/net.
    pub fn attach(&self, netns: BorrowedFd<'_>) -> Result<Link, SandboxError> {
        self.attached(netns).map_err(|error| self.failure("the network of the sandbox could not be set up", &error))
    }

    /// Removes the interface of a sandbox, which may already be gone.
    pub fn detach(&self, link: &Link) -> Result<(), SandboxError> {
        self.remove(&link.interface).map_err(|error| self.failure(NOT_REMOVED, &error))
    }

    /// Loads the host's rules again if they have been loaded before, because a reload of another firewall may have
    /// removed them.
    pub fn reload_rules(&self) -> Result<(), SandboxError> {
        if !self.is_loaded.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.load_rules().map_err(|error| self.failure("the firewall rules for sandboxes could not be loaded", &error))
    }

    /// Returns the existing interfaces of this server.
    pub fn leftovers(&self) -> Result<Vec<String>, SandboxError> {
        let (prefix, found) = (self.prefix(), self.interfaces());
        let found =
            found.map_err(|error| self.failure("the network interfaces of sandboxes could not be listed", &error))?;
        Ok(found.into_iter().map(|found| found.ifname).filter(|name| name.starts_with(&prefix)).collect())
    }

    /// Removes all interfaces of this server and its rules.
    pub fn clear(&self) -> Result<(), SandboxError> {
        for interface in self.leftovers()? {
            self.remove(&interface).map_err(|error| self.failure(NOT_REMOVED, &error))?;
        }
        let name = rules::table_name(&self.tag);
        let script = format!("table inet {name}\ndelete table inet {name}\n");
        self.run_nft(&script)
            .map_err(|error| self.failure("the firewall rules for sandboxes could not be removed", &error))
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
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the network interface of a sandbox could not be removed"
            );
        }
        made.map(|()| link)
    }

    /// Creates the interface with no address, applies all settings, configures the sandbox's end, and then brings the
    /// interface up.
    fn make(&self, link: &Link, gateway: Ipv4Addr, netns: BorrowedFd<'_>) -> Result<(), NetworkError> {
        let name = &link.interface;
        let namespace = format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd());
        self.run_ip(&format!("link add {name} type veth peer name {INSIDE} netns {namespace}\n"))?;
        write_setting("/proc/sys/net/ipv4/ip_forward", "1")?;
        if Path::new("/proc/sys/net/ipv6").exists() {
            write_setting(&format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1")?;
        }
        // These settings supplement the rules: the kernel filters reverse paths strictly, answers no ARP requests for
        // other interfaces, and neither sends nor accepts redirects.
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

    /// Waits until an interface is up. The kernel begins to use each end of a pair some time after the set-up, and
    /// drops earlier packets.
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
        self.run_nft(&rules::sandbox_rules(link.address))?;
        self.run_ip(&format!(
            "link set lo up\naddress add {}/30 dev {INSIDE}\nlink set {INSIDE} up\nroute add default via {gateway}\n",
            link.address
        ))
    }

    fn load_rules(&self) -> Result<(), NetworkError> {
        self.is_loaded.store(true, Ordering::Relaxed);
        self.run_nft(&rules::host_rules(&self.tag, &self.prefix(), self.settings.range))
    }

    /// Rejects a range that overlaps with a network of the host, because the host or the sandboxes would lose packets.
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

    /// Returns the number and the network of the first four addresses that no interface of this machine uses.
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
            // The interface may have disappeared with its namespace.
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

    /// Returns the error for users. The cause names interfaces of the host, so it is only logged.
    fn failure(&self, what: &str, error: &NetworkError) -> SandboxError {
        tracing::error!(error = error as &dyn std::error::Error, "{what}");
        match error {
            NetworkError::Full { .. } => SandboxError::Exhausted(
                "all addresses in the network range of sandboxes are in use; try again when a sandbox has stopped"
                    .to_owned(),
            ),
            NetworkError::Overlap { range, .. } => SandboxError::unavailable(format!(
                "the network range {range} of sandboxes overlaps with a network of the host; set --sandbox-network to another range"
            )),
            _ => SandboxError::unavailable(what),
        }
    }
}

impl Drop for FullNetwork {
    /// Removes all interfaces and rules at a clean shutdown. After a crash, the rules still guard the interfaces that
    /// remain.
    fn drop(&mut self) {
        if self.is_loaded.load(Ordering::Relaxed)
            && let Err(error) = self.clear()
        {
            tracing::error!(%error, "the firewall rules for sandboxes could not be removed");
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
    #[error("the output of `ip` is not valid")]
    Answer {
        #[source]
        source: serde_json::Error,
    },
    #[error("the interface `{interface}` did not come up in time")]
    Down { interface: String },
    #[error("all addresses in {range} are in use")]
    Full { range: Ipv4Net },
    #[error("the network {net} of the host overlaps with {range}")]
    Overlap { range: Ipv4Net, net: Ipv4Net },
}

/// Returns the address with this number in the network, counted from the network's own address.
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

/// Runs `work` in another network namespace. Uses another thread, because each thread has its own network namespace.
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
