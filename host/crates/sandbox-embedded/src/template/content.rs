//! The files of a template that are not copied from the host.

use std::path::Path;

use super::{TemplateError, copy};

/// The folders that every system has and that no package creates.
const FOLDERS: &[(&str, u32)] = &[
    ("", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/apt", 0o755),
    ("etc/apt/apt.conf.d", 0o755),
    ("etc/profile.d", 0o755),
    ("etc/ssl", 0o755),
    ("etc/ssl/private", 0o700),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/backups", 0o755),
    ("var/cache", 0o755),
    ("var/cache/apt", 0o755),
    ("var/cache/apt/archives", 0o755),
    ("var/cache/apt/archives/partial", 0o700),
    ("var/cache/debconf", 0o755),
    ("var/cache/ldconfig", 0o700),
    ("var/cache/man", 0o755),
    ("var/lib", 0o755),
    ("var/lib/apt", 0o755),
    ("var/lib/apt/lists", 0o755),
    ("var/lib/apt/lists/partial", 0o700),
    ("var/lib/dpkg", 0o755),
    ("var/lib/dpkg/info", 0o755),
    ("var/lib/dpkg/parts", 0o755),
    ("var/lib/dpkg/triggers", 0o755),
    ("var/lib/dpkg/updates", 0o755),
    ("var/lib/misc", 0o755),
    ("var/lib/pam", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/log/apt", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
];

/// The name, id, group, home and shell of each account: Debian's initial accounts and the account of apt.
const ACCOUNTS: &[(&str, u32, u32, &str, &str)] = &[
    ("root", 0, 0, "/root", "/bin/bash"),
    ("daemon", 1, 1, "/usr/sbin", "/usr/sbin/nologin"),
    ("bin", 2, 2, "/bin", "/usr/sbin/nologin"),
    ("sys", 3, 3, "/dev", "/usr/sbin/nologin"),
    ("sync", 4, 65534, "/bin", "/bin/sync"),
    ("games", 5, 60, "/usr/games", "/usr/sbin/nologin"),
    ("man", 6, 12, "/var/cache/man", "/usr/sbin/nologin"),
    ("lp", 7, 7, "/var/spool/lpd", "/usr/sbin/nologin"),
    ("mail", 8, 8, "/var/mail", "/usr/sbin/nologin"),
    ("news", 9, 9, "/var/spool/news", "/usr/sbin/nologin"),
    ("uucp", 10, 10, "/var/spool/uucp", "/usr/sbin/nologin"),
    ("proxy", 13, 13, "/bin", "/usr/sbin/nologin"),
    ("www-data", 33, 33, "/var/www", "/usr/sbin/nologin"),
    ("backup", 34, 34, "/var/backups", "/usr/sbin/nologin"),
    ("list", 38, 38, "/var/list", "/usr/sbin/nologin"),
    ("irc", 39, 39, "/run/ircd", "/usr/sbin/nologin"),
    ("_apt", 42, 65534, "/nonexistent", "/usr/sbin/nologin"),
    ("nobody", 65534, 65534, "/nonexistent", "/usr/sbin/nologin"),
];

/// The groups of these accounts.
const GROUPS: &[(&str, u32)] = &[
    ("root", 0),
    ("daemon", 1),
    ("bin", 2),
    ("sys", 3),
    ("adm", 4),
    ("tty", 5),
    ("disk", 6),
    ("lp", 7),
    ("mail", 8),
    ("news", 9),
    ("uucp", 10),
    ("man", 12),
    ("proxy", 13),
    ("kmem", 15),
    ("dialout", 20),
    ("fax", 21),
    ("voice", 22),
    ("cdrom", 24),
    ("floppy", 25),
    ("tape", 26),
    ("sudo", 27),
    ("audio", 29),
    ("dip", 30),
    ("www-data", 33),
    ("backup", 34),
    ("operator", 37),
    ("list", 38),
    ("irc", 39),
    ("src", 40),
    ("shadow", 42),
    ("utmp", 43),
    ("video", 44),
    ("sasl", 45),
    ("plugdev", 46),
    ("staff", 50),
    ("games", 60),
    ("users", 100),
    ("nogroup", 65534),
];

/// Creates the folders and the links between them.
pub(super) fn folders(root: &Path) -> Result<(), TemplateError> {
    for (path, mode) in FOLDERS {
        copy::folder_with_mode(&root.join(path), *mode)?;
    }
    copy::symlink(Path::new("/run"), &root.join("var/run"))?;
    copy::symlink(Path::new("/run/lock"), &root.join("var/lock"))
}

/// Writes the files of the default template.
pub(super) fn files(root: &Path) -> Result<(), TemplateError> {
    accounts(root)?;
    for (path, content) in [
        ("etc/nsswitch.conf", NSSWITCH),
        ("etc/fstab", ""),
        ("etc/machine-id", ""),
        ("etc/environment", ""),
        ("root/.bashrc", BASHRC),
        ("root/.profile", "[ -f ~/.bashrc ] && . ~/.bashrc\n"),
    ] {
        copy::file(&root.join(path), content, 0o644)?;
    }
    copy::symlink(Path::new("/proc/self/mounts"), &root.join("etc/mtab"))?;
    if !root.join("etc/os-release").exists() && root.join("etc/os-release").symlink_metadata().is_err() {
        copy::symlink(Path::new("../usr/lib/os-release"), &root.join("etc/os-release"))?;
    }
    shared_files(root)
}

/// Writes the files of both templates. The files replace the host's name, and configure package managers to ask no
/// questions.
pub(super) fn shared_files(root: &Path) -> Result<(), TemplateError> {
    for (path, content) in [
        ("etc/hostname", "sandbox\n"),
        ("etc/hosts", HOSTS),
        ("etc/resolv.conf", "# This sandbox has no network.\n"),
        ("etc/apt/apt.conf.d/90sandbox", APT),
        ("etc/pip.conf", PIP),
    ] {
        copy::file(&root.join(path), content, 0o644)?;
    }
    Ok(())
}

fn accounts(root: &Path) -> Result<(), TemplateError> {
    let (mut passwd, mut group) = (String::new(), String::new());
    for (name, id, own_group, home, shell) in ACCOUNTS {
        // The accounts have no valid password, and the template has no shadow file.
        passwd += &format!("{name}:*:{id}:{own_group}:{name}:{home}:{shell}\n");
    }
    for (name, id) in GROUPS {
        group += &format!("{name}:*:{id}:\n");
    }
    copy::file(&root.join("etc/passwd"), &passwd, 0o644)?;
    copy::file(&root.join("etc/group"), &group, 0o644)
}

const HOSTS: &str = "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n";

const NSSWITCH: &str = "passwd: files
group: files
shadow: files
gshadow: files
hosts: files dns
networks: files
protocols: files
services: files
ethers: files
rpc: files
";

/// Disables questions, recommended packages and the use of a terminal. Also disables retries, which take seconds if the
/// sandbox has no network. apt runs as root and not as another user, because the sandbox already limits apt.
const APT: &str = "APT::Get::Assume-Yes \"true\";
APT::Install-Recommends \"false\";
APT::Sandbox::User \"root\";
Acquire::Languages \"none\";
Acquire::Retries \"0\";
DPkg::Use-Pty \"0\";
";

/// Allows pip to install packages into the system, because the whole system is discarded with the sandbox.
const PIP: &str = "[global]
break-system-packages = true
disable-pip-version-check = true
root-user-action = ignore
";

const BASHRC: &str = "PS1='sandbox:\\w# '\n";
