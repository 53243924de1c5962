//! Inspects the machine on which the sandboxes run.

use std::ffi::OsString;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::random_hex;

/// This machine, for providers whose sandboxes run on it.
pub struct LocalHost {
    data_dir: PathBuf,
}

/// Files with a unique name and content, removed on drop.
pub struct Markers {
    pub name: String,
    pub text: String,
    pub paths: Vec<PathBuf>,
}

/// A process with a unique argument, killed on drop.
pub struct MarkedProcess {
    pub marker: String,
    child: Child,
}

impl LocalHost {
    /// Describes this machine. `data_dir` is the folder of the provider.
    #[must_use]
    pub fn new(data_dir: &Path) -> LocalHost {
        LocalHost { data_dir: data_dir.to_owned() }
    }

    /// Returns the folder of the provider.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Returns the resident memory of this process.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("the status of this process can be read");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the status names VmRSS");
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("VmRSS is a number");
        kibibytes * 1024
    }

    /// Counts the processes on this machine that have `marker` in their arguments.
    #[must_use]
    pub fn processes(&self, marker: &str) -> usize {
        let entries = std::fs::read_dir("/proc").expect("/proc can be listed");
        let arguments = entries.flatten().filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        arguments.filter(|arguments| memory_contains(arguments, marker.as_bytes())).count()
    }

    /// Returns the user ids, on this machine, of the processes that have `marker` in their arguments.
    #[must_use]
    pub fn owners(&self, marker: &str) -> Vec<u32> {
        let entries = std::fs::read_dir("/proc").expect("/proc can be listed").flatten();
        let is_marked = |path: &PathBuf| {
            std::fs::read(path.join("cmdline")).is_ok_and(|arguments| memory_contains(&arguments, marker.as_bytes()))
        };
        let marked = entries.map(|entry| entry.path()).filter(is_marked);
        marked
            .filter_map(|path| std::fs::read_to_string(path.join("status")).ok())
            .flat_map(|status| ids(&status))
            .collect()
    }

    /// Listens on every IPv4 address of this machine.
    #[must_use]
    pub fn listener(&self) -> TcpListener {
        TcpListener::bind("0.0.0.0:0").expect("a port is free")
    }

    /// Returns the address from which this machine would connect to other machines, if it has such an address.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        // Connecting a datagram socket only looks up the route and sends no packet.
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        socket.connect("192.0.2.1:9").ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    }

    /// Creates a socket in the abstract namespace, which no file permission protects, and returns it with its name.
    #[must_use]
    pub fn abstract_socket(&self) -> (UnixListener, String) {
        let name = format!("marker-{}", random_hex(8));
        let address = SocketAddr::from_abstract_name(name.as_bytes()).expect("the name is short");
        (UnixListener::bind_addr(&address).expect("the name is free"), name)
    }

    /// Writes marker files to places where a sandbox might look: the provider's folder, temporary folders, home
    /// folders.
    #[must_use]
    pub fn plant(&self) -> Markers {
        let name = format!("marker-{}", random_hex(8));
        let text = format!("secret-{}", random_hex(8));
        let folders = [self.data_dir.clone(), std::env::temp_dir(), "/var/tmp".into(), "/root".into(), "/home".into()];
        let paths = folders.into_iter().map(|folder| folder.join(&name));
        let paths: Vec<PathBuf> = paths.filter(|path| std::fs::write(path, &text).is_ok()).collect();
        assert!(paths.len() >= 2, "the data folder and the temporary folder can be written");
        Markers { name, text, paths }
    }

    /// Starts a process on this machine that no sandbox may see.
    #[must_use]
    pub fn marked_process(&self) -> MarkedProcess {
        let marker = format!("8640{}", u32::from_str_radix(&random_hex(3), 16).expect("hex digits"));
        let mut command = Command::new("sleep");
        command.arg(&marker).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        MarkedProcess { child: command.spawn().expect("sleep can be started"), marker }
    }

    /// Returns the environment variables of this process whose values are long enough to be unique.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        std::env::vars_os().filter(|(_, value)| value.as_bytes().len() >= 12).collect()
    }
}

impl Drop for Markers {
    fn drop(&mut self) {
        for path in &self.paths {
            if let Err(error) = std::fs::remove_file(path) {
                assert!(std::thread::panicking(), "{} was not removed: {error}", path.display());
            }
        }
    }
}

impl Drop for MarkedProcess {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        assert!(ended.is_ok() || std::thread::panicking(), "the marked process could not be ended: {ended:?}");
    }
}

/// Returns the real, effective, saved and file system user of a process.
fn ids(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Whether `bytes` contains `wanted`.
pub(super) fn memory_contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}
