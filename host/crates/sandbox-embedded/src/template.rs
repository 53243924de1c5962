//! What the file system of a new sandbox is made of.
//!
//! The default template is a small tree that stands for everything but /usr, which is the host's own; the built one is a
//! whole system. Each lies in a folder whose name says what it was made from, is made beside it and put in place in one
//! step, and is never written again: sandboxes use it as their lower layer. Nothing of the host gets into it but what
//! everybody on the host may read and what this module names.

mod build;
mod content;
mod copy;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use build::{BuildOptions, build_template};
use monstrum_sandbox::SandboxError;
use sha2::{Digest, Sha256};

/// Changes whenever the default template is made in another way, so that an older one is not used.
const RECIPE: &str = "default-4";

/// The folder of the built template, within the folder of templates.
const BUILT: &str = "built";

/// Programs that a model is told of.
const PROGRAMS: [&str; 6] = ["bash", "python3", "node", "bun", "git", "curl"];

/// Where a sandbox finds programs.
const PROGRAM_FOLDERS: [&str; 4] = ["usr/local/bin", "usr/bin", "usr/local/sbin", "usr/sbin"];

/// Links to folders of /usr, on every system of today.
const USR_LINKS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// What the host's part of a template is made from: when one of these changes, the template is made anew.
const SOURCES: [&str; 8] = [
    "var/lib/dpkg/status",
    "etc/alternatives",
    "etc/apt/sources.list.d",
    "etc/ld.so.cache",
    "etc/os-release",
    "etc/ssl/certs",
    "etc/ssl/certs/ca-certificates.crt",
    "usr",
];

/// The lower layer of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The tree. Whoever makes sandboxes of it mounts it read-only.
    pub root: PathBuf,
    /// What is to be mounted at /usr, where the tree has an empty folder.
    pub usr: Option<PathBuf>,
    /// What the system calls itself.
    pub system: String,
    /// Of bash, python3, node, bun, git and curl, those that are there.
    pub programs: Vec<String>,
    /// Whether apt can be used, given a network.
    pub can_install_system_packages: bool,
}

/// The default template, made where it is not there as it has to be. `dir` is the folder of templates, which nobody but
/// root may enter. Blocks, for a second or two where it is made.
pub fn default_template(dir: &Path) -> Result<Template, SandboxError> {
    default_template_of(Path::new("/"), dir).map_err(|error| error.told())
}

/// The built template, where there is one.
pub fn built_template(dir: &Path) -> Option<Template> {
    let root = dir.join(BUILT).join("root");
    // The folder is put in place whole: what is there is all of it.
    root.is_dir().then(|| described(&root, &root, None))
}

/// What the default template of a host would have, without making it.
pub(crate) fn of_host(host: &Path) -> Template {
    described(host, host, Some(host.join("usr")))
}

/// Removes templates that an earlier version or an earlier state of the host has left, and what an interrupted build has.
/// Only to be called while no sandbox runs.
pub fn remove_stale(dir: &Path, current: &Template) -> Result<(), SandboxError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(TemplateError::at(dir)(source).told()),
    };
    for entry in entries {
        let entry = entry.map_err(|source| TemplateError::at(dir)(source).told())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_current = current.root.starts_with(entry.path());
        if !is_current && (name.starts_with("default-") || name.starts_with("partial-")) {
            fs::remove_dir_all(entry.path()).map_err(|source| TemplateError::at(&entry.path())(source).told())?;
        }
    }
    Ok(())
}

/// Why a template could not be made.
#[derive(Debug, thiserror::Error)]
enum TemplateError {
    #[error("failed to make `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{0}")]
    Host(String),
    #[error(transparent)]
    Program(#[from] super::programs::ProgramError),
}

impl TemplateError {
    fn at(path: &Path) -> impl FnOnce(std::io::Error) -> TemplateError {
        let path = path.to_owned();
        move |source| TemplateError::File { path, source }
    }

    /// What is said outside; the cause goes to the log.
    fn told(self) -> SandboxError {
        match self {
            TemplateError::Host(text) => SandboxError::unavailable(text),
            error => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the template of sandboxes could not be made"
                );
                SandboxError::unavailable("the template of sandboxes could not be made; the log says why")
            }
        }
    }
}

fn default_template_of(host: &Path, dir: &Path) -> Result<Template, TemplateError> {
    let name = format!("default-{}", fingerprint(host)?);
    let root = dir.join(&name).join("root");
    if !root.is_dir() {
        let partial = partial_folder(dir)?;
        let made = make_default(host, &partial.join("root")).and_then(|()| put_in_place(&partial, &dir.join(&name)));
        if made.is_err() {
            copy::remove(&partial)?;
        }
        made?;
    }
    Ok(described(&root, host, Some(host.join("usr"))))
}

/// A new folder beside the templates, which a name in `partial-` marks as what may be removed.
fn partial_folder(dir: &Path) -> Result<PathBuf, TemplateError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(TemplateError::at(dir))?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| TemplateError::Host("the system gives no random bytes".to_owned()))?;
    let path = dir.join(format!("partial-{}", hex::encode(random)));
    fs::DirBuilder::new().mode(0o700).create(&path).map_err(TemplateError::at(&path))?;
    Ok(path)
}

/// Another instance may have been first, with the same.
fn put_in_place(partial: &Path, place: &Path) -> Result<(), TemplateError> {
    match fs::rename(partial, place) {
        Err(_) if place.join("root").is_dir() => copy::remove(partial),
        result => result.map_err(TemplateError::at(place)),
    }
}

fn make_default(host: &Path, root: &Path) -> Result<(), TemplateError> {
    content::folders(root)?;
    for link in USR_LINKS {
        let of_host = host.join(link);
        match fs::read_link(&of_host) {
            Ok(target) if target.starts_with("usr") || target.starts_with("/usr") => {
                copy::symlink(&target, &root.join(link))?;
            }
            // It is a folder of its own, as on systems of long ago: half of the programs would be missing.
            _ if of_host.exists() => {
                let text = format!("/{link} of this machine is not a part of /usr; build a template instead");
                return Err(TemplateError::Host(text));
            }
            _ => {}
        }
    }
    copy::from_host(host, root)?;
    content::files(root)
}

/// What tells this state of the host from another.
fn fingerprint(host: &Path) -> Result<String, TemplateError> {
    let mut digest = Sha256::new();
    digest.update(RECIPE);
    for source in SOURCES {
        let path = host.join(source);
        let state = match fs::metadata(&path) {
            Ok(found) => format!("{source} {} {} {}\n", found.len(), found.mtime(), found.mtime_nsec()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("{source} none\n"),
            Err(source) => return Err(TemplateError::at(&path)(source)),
        };
        digest.update(state);
    }
    Ok(hex::encode(&digest.finalize()[..8]))
}

/// What is in a template, as it can be seen without running anything of it. `system` is where /usr is.
fn described(root: &Path, system: &Path, usr: Option<PathBuf>) -> Template {
    let is_there = |name: &str| PROGRAM_FOLDERS.iter().any(|folder| is_program(system, &Path::new(folder).join(name)));
    let release = fs::read_to_string(system.join("usr/lib/os-release"))
        .or_else(|_| fs::read_to_string(root.join("etc/os-release")))
        .unwrap_or_else(|_| String::new());
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    Template {
        root: root.to_owned(),
        usr,
        system: name.map_or_else(|| "Linux".to_owned(), |name| name.trim_matches('"').to_owned()),
        programs: PROGRAMS.iter().filter(|name| is_there(name)).map(|name| (*name).to_owned()).collect(),
        can_install_system_packages: is_program(system, Path::new("usr/bin/apt-get"))
            && root.join("var/lib/dpkg/status").is_file(),
    }
}

/// Whether `path` is a program that everybody may run, and lies in /usr, also at the end of its links.
fn is_program(system: &Path, path: &Path) -> bool {
    let mut path = path.to_owned();
    // As many links as the kernel follows.
    for _ in 0..40 {
        let Ok(found) = fs::symlink_metadata(system.join(&path)) else { return false };
        if !found.is_symlink() {
            return found.is_file() && found.permissions().mode() & 0o001 != 0 && path.starts_with("usr");
        }
        let Ok(target) = fs::read_link(system.join(&path)) else { return false };
        let base = if target.is_absolute() { Path::new("") } else { path.parent().unwrap_or(Path::new("")) };
        path = copy::normal(&base.join(target.strip_prefix("/").unwrap_or(&target)));
    }
    false
}

#[cfg(test)]
mod tests;
