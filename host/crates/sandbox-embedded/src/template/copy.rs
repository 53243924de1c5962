//! Files that a template copies from the host.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink as make_symlink};
use std::path::{Component, Path, PathBuf};

use super::TemplateError;

/// Paths that programs in /usr need to work as they do on the host: names, defaults, certificates, the state of
/// packages. None of the paths contains an account, a key, a token or an address of the host. Missing paths are
/// skipped. A final `*` matches the rest of a name.
const TAKEN: &[&str] = &[
    "etc/alternatives",
    "etc/apt/keyrings",
    "etc/apt/preferences.d",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d",
    "etc/apt/trusted.gpg.d",
    "etc/bash.bashrc",
    "etc/bash_completion.d",
    "etc/ca-certificates",
    "etc/ca-certificates.conf",
    "etc/debconf.conf",
    "etc/debian_version",
    "etc/dpkg",
    "etc/ethertypes",
    "etc/fonts",
    "etc/gai.conf",
    "etc/host.conf",
    "etc/inputrc",
    "etc/issue",
    "etc/java-*",
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/lsb-release",
    "etc/locale.alias",
    "etc/localtime",
    "etc/login.defs",
    "etc/magic",
    "etc/magic.mime",
    "etc/manpath.config",
    "etc/mime.types",
    "etc/mke2fs.conf",
    "etc/os-release",
    "etc/pam.conf",
    "etc/pam.d",
    "etc/perl",
    "etc/profile",
    "etc/protocols",
    "etc/python3",
    "etc/python3.*",
    "etc/rpc",
    "etc/security",
    "etc/services",
    "etc/shells",
    "etc/skel",
    "etc/ssl/certs",
    "etc/ssl/openssl.cnf",
    "etc/terminfo",
    "etc/timezone",
    "etc/vim",
    "etc/xdg",
    "etc/xattr.conf",
    "var/lib/dpkg/alternatives",
    "var/lib/dpkg/arch",
    "var/lib/dpkg/diversions",
    "var/lib/dpkg/info",
    "var/lib/dpkg/status",
    "var/lib/dpkg/triggers",
    "var/lib/apt/extended_states",
];

/// The maximum size of a copied file. Larger files are skipped: none of the files that programs need is larger.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Copies the listed files.
pub(super) fn from_host(host: &Path, root: &Path) -> Result<(), TemplateError> {
    for taken in TAKEN {
        for path in matching(host, taken)? {
            folders_to(root, path.parent().unwrap_or(Path::new("")))?;
            entry(host, root, &path)?;
        }
    }
    Ok(())
}

/// Returns the paths on the host that match a pattern.
fn matching(host: &Path, pattern: &str) -> Result<Vec<PathBuf>, TemplateError> {
    let path = Path::new(pattern);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let Some(prefix) = name.strip_suffix('*') else { return Ok(vec![path.to_owned()]) };
    let names = listed(&host.join(folder))?;
    Ok(names
        .into_iter()
        .filter(|name| name.to_string_lossy().starts_with(prefix))
        .map(|name| folder.join(name))
        .collect())
}

fn entry(host: &Path, root: &Path, path: &Path) -> Result<(), TemplateError> {
    let (from, to) = (host.join(path), root.join(path));
    let found = match fs::symlink_metadata(&from) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(TemplateError::at(&from)(source)),
    };
    let mode = found.permissions().mode();
    if found.is_symlink() {
        let target = fs::read_link(&from).map_err(TemplateError::at(&from))?;
        return if stays(path, &target) { symlink(&target, &to) } else { Ok(()) };
    }
    // Files and folders that some users of the host cannot read are not copied.
    if found.is_dir() && mode & 0o005 == 0o005 {
        folder(&to)?;
        for name in listed(&from)? {
            entry(host, root, &path.join(name))?;
        }
    } else if found.is_file() && mode & 0o004 != 0 && found.len() <= FILE_BYTES_MAX && !is_secret(path, &from)? {
        fs::copy(&from, &to).map_err(TemplateError::at(&to))?;
        let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).map_err(TemplateError::at(&to))?;
    }
    Ok(())
}

/// Whether a file contains a secret although all users can read it: a private key among certificates, or a password in
/// the address of a package source.
fn is_secret(path: &Path, from: &Path) -> Result<bool, TemplateError> {
    if !path.starts_with("etc/ssl") && !path.starts_with("etc/apt") {
        return Ok(false);
    }
    let content = fs::read(from).map_err(TemplateError::at(from))?;
    let text = String::from_utf8_lossy(&content);
    let has_password = |line: &str| {
        let authority = line.split_once("://").map(|(_, rest)| rest.split(['/', ' ', '\t']).next().unwrap_or(""));
        authority.is_some_and(|authority| authority.contains('@'))
    };
    Ok(text.contains("PRIVATE KEY-----") || (path.starts_with("etc/apt") && text.lines().any(has_password)))
}

/// Whether the target of a link exists in a sandbox as well.
fn stays(path: &Path, target: &Path) -> bool {
    let base = if target.is_absolute() { Path::new("") } else { path.parent().unwrap_or(Path::new("")) };
    let end = normal(&base.join(target.strip_prefix("/").unwrap_or(target)));
    end.starts_with("usr") || end.starts_with("etc")
}

/// Removes `.` and `..` from a path, under the assumption that the path contains no links.
pub(super) fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::Normal(name) => normal.push(name),
            _ => {}
        }
        normal
    })
}

fn listed(folder: &Path) -> Result<Vec<std::ffi::OsString>, TemplateError> {
    match fs::read_dir(folder) {
        Ok(entries) => {
            let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            names.collect::<Result<_, _>>().map_err(TemplateError::at(folder))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(TemplateError::at(folder)(source)),
    }
}

/// Creates a folder with the usual mode.
pub(super) fn folder(path: &Path) -> Result<(), TemplateError> {
    folder_with_mode(path, 0o755)
}

pub(super) fn folder_with_mode(path: &Path, mode: u32) -> Result<(), TemplateError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(TemplateError::at(path))?;
    // Sets the mode again, because the umask may have changed it.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(TemplateError::at(path))
}

fn folders_to(root: &Path, path: &Path) -> Result<(), TemplateError> {
    let mut at = root.to_owned();
    for component in path.components() {
        at.push(component);
        if !at.is_dir() {
            folder(&at)?;
        }
    }
    Ok(())
}

pub(super) fn symlink(target: &Path, path: &Path) -> Result<(), TemplateError> {
    make_symlink(target, path).map_err(TemplateError::at(path))
}

/// Writes a file and replaces a copied file.
pub(super) fn file(path: &Path, content: &str, mode: u32) -> Result<(), TemplateError> {
    // Writing through a copied link would change another file.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(TemplateError::at(path)(error)),
        _ => fs::write(path, content).map_err(TemplateError::at(path))?,
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(TemplateError::at(path))
}

/// Removes a folder if it exists.
pub(super) fn remove(path: &Path) -> Result<(), TemplateError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(TemplateError::at(path)(error)),
        _ => Ok(()),
    }
}
