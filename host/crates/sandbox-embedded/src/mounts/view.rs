//! Files from which programs read the size of their machine. The files contain the limits of the sandbox instead of the
//! host's size.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use monstrum_sandbox::Limits;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::{attach_below, if_there, tmpfs, tree};
use crate::sys::{MOUNT_NODEV, MOUNT_NOEXEC, MOUNT_NOSUID, MOUNT_RDONLY};
use crate::wire::Launch;

/// The folder in which the files are made before they are attached.
const FOLDER: &str = "s";
/// The size limit of the folder. The list of processors needs about 1 KiB for each processor.
const FOLDER_MIB: u32 = 4;
/// The folder in /sys with the number of processors.
const PROCESSORS: &str = "devices/system/cpu";

/// Returns the number of processors that a sandbox can use at once.
pub(crate) fn processors(limits: &Limits) -> u32 {
    limits.cpu_millis.div_ceil(1000).max(1)
}

/// Attaches the files over the corresponding files in /proc, and attaches a /sys that contains only the processors.
pub(super) fn attach(launch: &Launch, root: BorrowedFd<'_>, proc: BorrowedFd<'_>) -> io::Result<()> {
    std::fs::create_dir(FOLDER)?;
    let folder = tmpfs(launch.id_base, FOLDER_MIB, 64, "755", MountAttrFlags::empty())?;
    super::attach(&folder, CWD, FOLDER)?;
    let count = processors(&launch.limits);
    let attributes = MOUNT_RDONLY | MOUNT_NODEV | MOUNT_NOSUID | MOUNT_NOEXEC;
    for (name, at, content) in [
        ("boot_id", "sys/kernel/random/boot_id", boot_id()?),
        ("cpuinfo", "cpuinfo", cpuinfo(&std::fs::read_to_string("/proc/cpuinfo")?, count)),
        ("file-nr", "sys/fs/file-nr", "0\t0\t0\n".to_owned()),
        ("loadavg", "loadavg", "0.00 0.00 0.00 1/1 1\n".to_owned()),
        ("meminfo", "meminfo", meminfo(launch.limits.memory_mib)),
        ("stat", "stat", stat(&std::fs::read_to_string("/proc/stat")?, count)),
    ] {
        let file = Path::new(FOLDER).join(name);
        std::fs::write(&file, content)?;
        own(launch, &file)?;
        if_there(attach_below(&tree(CWD, &file, attributes, None)?, proc, at))?;
    }
    let sys = Path::new(FOLDER).join("sys");
    let processors = sys.join(PROCESSORS);
    std::fs::create_dir_all(&processors)?;
    for folder in processors.ancestors().take_while(|folder| folder.starts_with(&sys)) {
        own(launch, folder)?;
    }
    let range = if count == 1 { "0\n".to_owned() } else { format!("0-{}\n", count - 1) };
    for name in ["online", "possible", "present"] {
        let file = processors.join(name);
        std::fs::write(&file, &range)?;
        own(launch, &file)?;
    }
    match attach_below(&tree(CWD, &sys, attributes, None)?, root, "sys") {
        // The sandbox may have replaced the folder with a link.
        Err(error)
            if [Errno::NOENT, Errno::NOTDIR, Errno::LOOP]
                .iter()
                .any(|gone| error.raw_os_error() == Some(gone.raw_os_error())) =>
        {
            Ok(())
        }
        attached => attached,
    }
}

/// Makes the root of the sandbox the owner of a file or folder.
fn own(launch: &Launch, path: &Path) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(launch.id_base), Some(launch.id_base))?;
    let mode = if path.is_dir() { 0o755 } else { 0o444 };
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}

/// Returns a random boot id, because the host's boot id would reveal which sandboxes share a host.
fn boot_id() -> io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    // Sets the version and variant bits of a UUID of version 4.
    (random[6], random[8]) = (random[6] & 0x0f | 0x40, random[8] & 0x3f | 0x80);
    let digits = hex::encode(random);
    let (time, rest) = digits.split_at(8);
    Ok(format!("{time}-{}-{}-{}-{}\n", &rest[..4], &rest[4..8], &rest[8..12], &rest[12..]))
}

/// Returns the content of /proc/stat with only the processors of the sandbox and with no counters of the host. Keeps
/// the boot time, because programs calculate the start times of processes from it. The kernel also reveals the boot
/// time in other ways.
fn stat(of_host: &str, count: u32) -> String {
    let none = |name: String| format!("{name} 0 0 0 0 0 0 0 0 0 0\n");
    let all = none("cpu ".to_owned());
    let each: String = (0..count).map(|number| none(format!("cpu{number}"))).collect();
    let start = of_host.lines().find(|line| line.starts_with("btime ")).unwrap_or("btime 0");
    format!("{all}{each}intr 0\nctxt 0\n{start}\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n")
}

/// Returns the entries of the first `count` processors of the host.
fn cpuinfo(of_host: &str, count: u32) -> String {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let processors = of_host.split_inclusive("\n\n").filter(|part| part.starts_with("processor"));
    processors.take(count).collect()
}

/// Returns the content of /proc/meminfo with the fields that programs read. The values do not change with usage.
fn meminfo(memory_mib: u32) -> String {
    let all = u64::from(memory_mib) * 1024;
    let lines = [
        ("MemTotal", all),
        ("MemFree", all),
        ("MemAvailable", all),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Mapped", 0),
        ("Shmem", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
    ];
    lines.iter().map(|(name, kib)| format!("{:<16}{kib:>8} kB\n", format!("{name}:"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_format_of_the_kernel() {
        assert!(meminfo(1024).starts_with("MemTotal:        1048576 kB\nMemFree:  "));
        let host = "processor\t: 0\nflags\t: a\n\nprocessor\t: 1\nflags\t: a\n\nprocessor\t: 2\nflags\t: a\n\n";
        assert_eq!(cpuinfo(host, 1), "processor\t: 0\nflags\t: a\n\n");
        assert_eq!(cpuinfo(host, 9), host);
        assert_eq!(
            stat("cpu  1 2 3\ncpu0 1 2 3\nintr 7 7\nbtime 12\n", 2),
            "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 0\nctxt 0\nbtime 12\n\
             processes 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n"
        );
        let of = |cpu_millis| processors(&Limits { cpu_millis, ..Limits::default() });
        assert_eq!([of(50), of(1000), of(1001), of(4000)], [1, 1, 2, 4]);
    }
}
