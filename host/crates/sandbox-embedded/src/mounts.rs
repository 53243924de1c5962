//! The file system of a sandbox, built in a private mount namespace.
//!
//! All mounts below the new root are attached by descriptors that follow no links, because the sandbox may have
//! replaced its folders with links before it was stopped. The only folder of the host that the sandbox sees is /usr,
//! which is mounted read-only and without private files. Each sandbox has separate device files, because locks, watches
//! and times of a file are visible to all processes that share the file.

mod spare;
pub(crate) mod view;

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, makedev, mknodat, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, mount_change, mount_remount,
    move_mount, open_tree, unmount,
};

use crate::hidden;
use crate::launcher::during;
use crate::sys::{self, MOUNT_NODEV, MOUNT_NOEXEC, MOUNT_NOSUID, MOUNT_RDONLY};
use crate::wire::Launch;

/// The device files of a sandbox with their major and minor numbers. All of these devices are harmless.
const DEVICES: [(&str, u32, u32); 6] =
    [("full", 1, 7), ("null", 1, 3), ("random", 1, 8), ("tty", 5, 0), ("urandom", 1, 9), ("zero", 1, 5)];
/// The folder in which the devices are made before they are attached.
const OWN_DEVICES: &str = "d";
/// Links in /dev that programs expect.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("pts/ptmx", "ptmx"),
    ("/proc/self/fd/2", "stderr"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
];
/// Files in /proc that reveal the host or control its kernel.
const MASKED_FILES: [&str; 29] = [
    "buddyinfo",
    "cmdline",
    "config.gz",
    "diskstats",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "modules",
    "pagetypeinfo",
    "partitions",
    "sched_debug",
    "schedstat",
    "slabinfo",
    "softirqs",
    "swaps",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
    "vmstat",
    "zoneinfo",
];
/// Folders in /proc that reveal the host or control its kernel.
const MASKED_FOLDERS: [&str; 10] =
    ["acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "pressure", "scsi", "tty"];
/// The inode limit of /tmp. It is needed because empty files use memory as well.
const TMP_INODES: u32 = 131_072;
/// The terminal limit of a sandbox. The kernel has 4,096 terminals and reserves 1,024 for the host, so that 64
/// sandboxes can use their limit.
pub(crate) const TERMINALS_MAX: u32 = 32;
/// The size of /dev/shm, the same as in other container runtimes.
const SHM_MIB: u32 = 64;

/// Builds the file system and makes it the root of this mount namespace.
pub(crate) fn build(launch: &Launch, device: &str, ids: BorrowedFd<'_>) -> io::Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(on("making the mounts private"))?;
    mount("sandbox", &launch.stage, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, c"mode=700,size=1m")
        .map_err(on("mounting the stage"))?;
    // From here on, paths are relative, because a sandbox can read them in its list of mounts.
    rustix::process::chdir(&launch.stage)?;
    for folder in ["image", "i", "l", "u", "r"] {
        DirBuilder::new().mode(0o700).create(folder)?;
    }
    mount(
        device,
        "image",
        "ext4",
        MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME,
        c"discard,noinit_itable",
    )
    .map_err(on("mounting the image"))?;
    spare::free().map_err(during("preparing the image"))?;
    for folder in ["system", "system/upper", "system/work", "usr", "usr/upper", "usr/work", "workspace"] {
        folder_of_image(folder).map_err(during("preparing the image"))?;
    }
    let whole =
        tree(CWD, Path::new("image"), MOUNT_NODEV | MOUNT_NOSUID, Some(ids)).map_err(during("mapping the image"))?;
    attach(&whole, CWD, "i")?;
    let shared = MOUNT_RDONLY | MOUNT_NODEV | MOUNT_NOSUID;
    attach(&tree(CWD, &launch.template, shared, Some(ids)).map_err(during("mapping the template"))?, CWD, "l")?;
    overlay(launch, "r", "l", "i/system").map_err(during("mounting the layers of the system"))?;
    let root = openat(CWD, "r", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    if let Some(usr) = &launch.usr {
        attach(&tree(CWD, &usr.folder, shared, Some(ids)).map_err(during("mapping /usr"))?, CWD, "u")?;
        for folder in ["h", "v"] {
            DirBuilder::new().mode(0o700).create(folder)?;
        }
        cover(&usr.hidden).map_err(during("hiding private files in /usr"))?;
        overlay(launch, "v", "h:u", "i/usr").map_err(during("mounting the layers of /usr"))?;
        attach_below(&tree(CWD, Path::new("v"), 0, None)?, root.as_fd(), "usr")?;
    }
    let workspace = tree(CWD, Path::new("i/workspace"), MOUNT_NODEV | MOUNT_NOSUID, None)?;
    attach_below(&workspace, root.as_fd(), "workspace")?;
    spare::reserve().map_err(during("reserving inodes of the image"))?;
    if let Some(content) = &launch.resolv_conf {
        resolvers(launch, content, root.as_fd()).map_err(during("/etc/resolv.conf"))?;
    }
    let tmp = tmpfs(launch.id_base, launch.limits.tmp_mib, TMP_INODES, "1777", MountAttrFlags::empty())?;
    attach_below(&tmp, root.as_fd(), "tmp")?;
    make_devices(launch).map_err(during("creating devices"))?;
    devices(launch, root.as_fd()).map_err(during("/dev"))?;
    processes(launch, root.as_fd()).map_err(during("/proc"))?;
    enter().map_err(during("entering the new root"))
}

/// Mounts a layer of whiteouts over the mapped /usr.
fn cover(list: &Path) -> io::Result<()> {
    let list = std::fs::read(list)?;
    mount("hidden", "h", "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, c"mode=755")?;
    hidden::cover(&list, Path::new("u"), Path::new("h"))?;
    Ok(mount_remount("h", MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID, c"")?)
}

fn on(what: &'static str) -> impl Fn(Errno) -> io::Error {
    move |error| during(what)(error.into())
}

/// Creates a folder in the image unless it exists. After the mapping, the folder belongs to the root of the sandbox.
fn folder_of_image(folder: &str) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(Path::new("image").join(folder)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Clones the mount of `path`. The clone is not attached yet.
fn tree(folder: BorrowedFd<'_>, path: &Path, attributes: u64, ids: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(folder, path, flags)?;
    if attributes != 0 || ids.is_some() {
        sys::mount_setattr(mount.as_fd(), attributes, ids)?;
    }
    Ok(mount)
}

fn attach(mount: &OwnedFd, folder: BorrowedFd<'_>, at: &str) -> io::Result<()> {
    Ok(move_mount(mount, "", folder, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Attaches a mount at a path below `folder`, following no links.
fn attach_below(mount: &OwnedFd, folder: BorrowedFd<'_>, at: &str) -> io::Result<()> {
    let target = below(folder, at)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", &target, "", flags)?)
}

fn below(folder: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(folder, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Mounts an overlay as the root user of the sandbox. The id mapping of the image contains the id of this user, but not
/// the id of the host's root user.
fn overlay(launch: &Launch, at: &str, lower: &str, layer: &str) -> io::Result<()> {
    let options = format!("lowerdir={lower},upperdir={layer}/upper,workdir={layer}/work");
    let options = std::ffi::CString::new(options)?;
    sys::make_files_as(launch.id_base)?;
    let mounted = mount("overlay", at, "overlay", MountFlags::NODEV | MountFlags::NOSUID, options.as_c_str());
    sys::make_files_as(0)?;
    mounted?;
    // The kernel silently mounts an overlay read-only if it cannot write to the upper layer.
    if rustix::fs::statvfs(at)?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(io::Error::other("this kernel cannot write to an id-mapped layer"));
    }
    Ok(())
}

/// Creates a file system. It is not attached yet.
fn made(kind: &str, options: &[(&str, String)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, value.as_str())?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes | MountAttrFlags::MOUNT_ATTR_NOSUID)?)
}

fn tmpfs(owner: u32, mib: u32, inodes: u32, mode: &str, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let options = [
        ("size", format!("{mib}m")),
        ("nr_inodes", inodes.to_string()),
        ("mode", mode.to_owned()),
        ("uid", owner.to_string()),
        ("gid", owner.to_string()),
    ];
    made("tmpfs", &options, attributes | MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// Creates the device files in a file system of their own, while this process still has the right to create them.
fn make_devices(launch: &Launch) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(OWN_DEVICES)?;
    mount("devices", OWN_DEVICES, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=755,size=64k")?;
    for (name, major, minor) in DEVICES {
        let device = Path::new(OWN_DEVICES).join(name);
        mknodat(CWD, &device, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor))?;
        std::fs::set_permissions(&device, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
        std::os::unix::fs::chown(&device, Some(launch.id_base), Some(launch.id_base))?;
    }
    Ok(())
}

fn devices(launch: &Launch, root: BorrowedFd<'_>) -> io::Result<()> {
    let none = MountAttrFlags::empty();
    attach_below(&tmpfs(launch.id_base, 1, 512, "755", MountAttrFlags::MOUNT_ATTR_NOEXEC)?, root, "dev")?;
    let dev = below(root, "dev")?;
    for (device, ..) in DEVICES {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        openat(&dev, device, flags, Mode::from_raw_mode(0o666))?;
        let mount = tree(CWD, &Path::new(OWN_DEVICES).join(device), MOUNT_NOSUID | MOUNT_NOEXEC, None)?;
        attach_below(&mount, dev.as_fd(), device)?;
    }
    for (target, link) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, &dev, link)?;
    }
    for folder in ["pts", "shm"] {
        rustix::fs::mkdirat(&dev, folder, Mode::from_raw_mode(0o755))?;
    }
    // The id 5 is Debian's group tty.
    let group = (launch.id_base + 5).to_string();
    let options = [
        ("ptmxmode", "666".to_owned()),
        ("mode", "620".to_owned()),
        ("gid", group),
        ("max", TERMINALS_MAX.to_string()),
    ];
    attach_below(&made("devpts", &options, MountAttrFlags::MOUNT_ATTR_NOEXEC)?, dev.as_fd(), "pts")?;
    attach_below(&tmpfs(launch.id_base, SHM_MIB, 4096, "1777", none)?, dev.as_fd(), "shm")
}

fn processes(launch: &Launch, root: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    attach_below(&made("proc", &[], attributes)?, root, "proc")?;
    let proc = below(root, "proc")?;
    let knobs = tree(proc.as_fd(), Path::new("sys"), MOUNT_RDONLY | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC, None)?;
    attach_below(&knobs, proc.as_fd(), "sys")?;
    for file in MASKED_FILES {
        let null = Path::new(OWN_DEVICES).join("null");
        let mount = tree(CWD, &null, MOUNT_NOSUID | MOUNT_NOEXEC | MOUNT_RDONLY, None)?;
        if_there(attach_below(&mount, proc.as_fd(), file))?;
    }
    for folder in MASKED_FOLDERS {
        let empty = tmpfs(launch.id_base, 1, 2, "555", MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        if_there(attach_below(&empty, proc.as_fd(), folder))?;
    }
    view::attach(launch, root, proc.as_fd())
}

/// Mounts a resolv.conf over the default file, so that neither the template nor the image changes. Does nothing if the
/// sandbox has replaced the file with another kind of entry.
fn resolvers(launch: &Launch, content: &str, root: BorrowedFd<'_>) -> io::Result<()> {
    std::fs::write("resolv.conf", content)?;
    std::os::unix::fs::chown("resolv.conf", Some(launch.id_base), Some(launch.id_base))?;
    std::fs::set_permissions("resolv.conf", std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    let Ok(target) = below(root, "etc/resolv.conf") else { return Ok(()) };
    if !FileType::from_raw_mode(fstat(&target)?.st_mode).is_file() {
        return Ok(());
    }
    let mount = tree(CWD, Path::new("resolv.conf"), MOUNT_RDONLY | MOUNT_NODEV | MOUNT_NOSUID | MOUNT_NOEXEC, None)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(&mount, "", &target, "", flags)?)
}

/// Ignores the error for a path that does not exist on this kernel.
fn if_there(attached: io::Result<()>) -> io::Result<()> {
    match attached {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        attached => attached,
    }
}

/// Makes the new tree the root and detaches all other mounts.
fn enter() -> io::Result<()> {
    rustix::process::chdir("r")?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}
