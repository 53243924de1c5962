//! Templates: the lower layer of the file system of sandboxes.
//!
//! The default template is a small tree without /usr: sandboxes use the host's /usr. The built template is a complete
//! system. Each template is a folder whose name identifies its source. It is made in a temporary folder, renamed
//! atomically, and never changed afterwards. The only host files in templates are files that this module lists and that
//! every user of the host can read.

mod build;
mod content;
mod copy;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use build::{BuildOptions, build_template};
use monstrum_sandbox::SandboxError;
use sha2::{Digest, Sha256};

/// The version of the default template. Change it whenever the content changes, so that older templates are not used.
const RECIPE: &str = "default-4";

/// The name of the built template in the folder of templates.
const BUILT: &str = "built";

/// The programs that the system prompt names.
const PROGRAMS: [&str; 6] = ["bash", "python3", "node", "bun", "git", "curl"];

/// The program folders of a sandbox.
const PROGRAM_FOLDERS: [&str; 4] = ["usr/local/bin", "usr/bin", "usr/local/sbin", "usr/sbin"];

/// Links to folders in /usr, as on every current distribution.
const USR_LINKS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// The files from which the name of the default template is derived. If one of them changes, a new template is made.
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
    /// The tree, mounted read-only.
    pub root: PathBuf,
    /// The folder to mount at /usr, where the tree has an empty folder.
    pub usr: Option<PathBuf>,
    /// The name of the Linux system, such as `Debian GNU/Linux 12 (bookworm)`.
    pub system: String,
    /// The installed programs among bash, python3, node, bun, git and curl.
    pub programs: Vec<String>,
    /// Whether apt can be used in a sandbox with a network.
    pub can_install_system_packages: bool,
}

/// Returns the default template, and makes it if it does not exist or is outdated. `dir` is the folder of templates,
/// which only root may enter. Blocks for a second or two while the template is made.
pub fn default_template(dir: &Path) -> Result<Template, SandboxError> {
    default_template_of(Path::new("/"), dir).map_err(|error| error.for_users())
}

/// Returns the built template, if it exists.
pub fn built_template(dir: &Path) -> Option<Template> {
    let root = dir.join(BUILT).join("root");
    // The folder appears atomically, so it is complete if it exists.
    root.is_dir().then(|| described(&root, &root, None))
}

/// Describes the default template of a host. The template need not exist.
pub(crate) fn of_host(host: &Path) -> Template {
    described(host, host, Some(host.join("usr")))
}

/// Removes outdated templates and incomplete builds. Call this function only while no sandbox runs.
pub fn remove_stale(dir: &Path, current: &Template) -> Result<(), SandboxError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(TemplateError::at(dir)(source).for_users()),
    };
    for entry in entries {
        let entry = entry.map_err(|source| TemplateError::at(dir)(source).for_users())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_current = current.root.starts_with(entry.path());
        if !is_current && (name.starts_with("default-") || name.starts_with("partial-")) {
            fs::remove_dir_all(entry.path()).map_err(|source| TemplateError::at(&entry.path())(source).for_users())?;
        }
    }
    Ok(())
}

/// The reason why a template could not be made.
#[derive(Debug, thiserror::Error)]
enum TemplateError {
    #[error("failed to create `{}`", path.display())]
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

    /// Returns the error for users. The cause names files of the host, so it is only logged.
    fn for_users(self) -> SandboxError {
        match self {
            TemplateError::Host(text) => SandboxError::unavailable(text),
            error => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the template of sandboxes could not be created"
                );
                SandboxError::unavailable(
                    "the template of sandboxes could not be created; see the log of the server for the reason",
                )
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

/// Creates a new folder whose prefix `partial-` marks it as removable.
fn partial_folder(dir: &Path) -> Result<PathBuf, TemplateError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(TemplateError::at(dir))?;
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|_| TemplateError::Host("cannot get random bytes from the operating system".to_owned()))?;
    let path = dir.join(format!("partial-{}", hex::encode(random)));
    fs::DirBuilder::new().mode(0o700).create(&path).map_err(TemplateError::at(&path))?;
    Ok(path)
}

/// Renames a finished template. Another server may have made the same template first.
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
            // Very old distributions have a separate folder here instead of a link. Sandboxes would lack the programs
            // in this folder.
            _ if of_host.exists() => {
                let text = format!(
                    "/{link} is not a link to /usr on this machine; build a template with `monstrum sandbox template build`"
                );
                return Err(TemplateError::Host(text));
            }
            _ => {}
        }
    }
    copy::from_host(host, root)?;
    content::files(root)
}

/// Returns a hash of the sizes and times of the host files that the default template depends on.
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

/// Describes a template, but runs none of its programs. `system` is the folder that contains /usr.
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

/// Whether `path`, with all its links resolved, is a program in /usr that all users can execute.
fn is_program(system: &Path, path: &Path) -> bool {
    let mut path = path.to_owned();
    // The kernel follows at most 40 links.
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
