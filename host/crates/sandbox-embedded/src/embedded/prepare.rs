//! The checks and preparations before the first sandbox starts.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use monstrum_sandbox::{Degraded, SandboxError};

use super::{EmbeddedOptions, TEMPLATES};
use crate::cgroups::{self, Cgroups, NoController};
use crate::images::{self, Images, TemplateKind};
use crate::network::FullNetwork;
use crate::template::{self, Template};
use crate::totals::{self, HostCounts, Totals};
use crate::{doctor, launcher};

/// The file with the tag that distinguishes the control groups and interfaces of this server from those of other
/// servers.
const TAG_FILE: &str = "tag";

/// The results of the preparations, which all sandboxes share.
pub(super) struct Prepared {
    pub(super) built: Option<Template>,
    pub(super) cgroups: Cgroups,
    pub(super) images: Images,
    pub(super) full: Result<Arc<FullNetwork>, SandboxError>,
    pub(super) tag: String,
    pub(super) degraded: Vec<Degraded>,
}

/// The reason why this machine cannot run sandboxes.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error("the server does not run as root; run `monstrum sandbox doctor` to list all missing requirements")]
    NotRoot,
    #[error("this program does not call `run_if_launcher` at startup")]
    NoLauncher,
    #[error("{what} failed")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "the data folder is in /usr, which sandboxes can read; move it, or build a template and set --sandbox-template to `built`"
    )]
    FolderInUsr,
    #[error("mkfs.ext4 is not installed; install it with `apt-get install e2fsprogs`")]
    NoMkfs,
    #[error(transparent)]
    Cgroups(#[from] NoController),
    #[error("no template has been built; build it with `monstrum sandbox template build`")]
    NoTemplate,
}

impl PrepareError {
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> PrepareError {
        let what = what.into();
        move |source| PrepareError::System { what, source }
    }
}

impl From<PrepareError> for SandboxError {
    /// Puts the reason into the message, because a server without sandboxes returns the message to its callers. The
    /// source is the error of the operating system.
    fn from(error: PrepareError) -> SandboxError {
        let message = format!("sandboxes cannot run here: {error}");
        match error {
            PrepareError::System { source, .. } => SandboxError::unavailable_because(message, source),
            _ => SandboxError::unavailable(message),
        }
    }
}

pub(super) fn prepare(options: &EmbeddedOptions) -> Result<Prepared, SandboxError> {
    if !rustix::process::geteuid().is_root() {
        return Err(PrepareError::NotRoot.into());
    }
    if options.program.is_none() && !launcher::can_launch() {
        return Err(PrepareError::NoLauncher.into());
    }
    prepare_folder(options)?;
    if images::mkfs().is_none() {
        return Err(PrepareError::NoMkfs.into());
    }
    let unusable = || PrepareError::system(format!("reading or writing {}", options.folder.display()));
    let tag = tag(&options.folder).map_err(unusable())?;
    let host = HostCounts::read();
    let totals = Totals::of(&host, options.totals);
    let cgroups = Cgroups::find(Path::new(cgroups::ROOT), &tag).map_err(PrepareError::from)?.with_totals(totals);
    cgroups.remove_all().map_err(PrepareError::system("removing control groups"))?;
    let images = Images::open(&options.folder).map_err(unusable())?;
    let built = template::built_template(&options.folder.join(TEMPLATES));
    if options.template == TemplateKind::Built && built.is_none() {
        return Err(PrepareError::NoTemplate.into());
    }
    let full = FullNetwork::new(&tag, options.network.clone()).and_then(|network| {
        network.clear()?;
        Ok(Arc::new(network))
    });
    let degraded = degraded(&cgroups, totals::raise_open_files(&host, &totals));
    Ok(Prepared { built, cgroups, images, full, tag, degraded })
}

fn prepare_folder(options: &EmbeddedOptions) -> Result<(), PrepareError> {
    raise_limit_of_files().map_err(PrepareError::system("raising the limit of open files"))?;
    let failed = || PrepareError::system(format!("creating {}", options.folder.display()));
    fs::create_dir_all(options.folder.join("stage")).map_err(failed())?;
    fs::set_permissions(&options.folder, fs::Permissions::from_mode(0o700)).map_err(failed())?;
    let folder = options.folder.canonicalize().map_err(failed())?;
    if options.template == TemplateKind::Host && folder.starts_with("/usr") {
        return Err(PrepareError::FolderInUsr);
    }
    Ok(())
}

/// Raises the limit of open files to its maximum: each sandbox needs some open files of the server, and each command
/// needs a few more.
fn raise_limit_of_files() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    match getrlimit(Resource::Nofile) {
        Rlimit { current: Some(current), maximum: Some(maximum) } if current < maximum => {
            Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(maximum), maximum: Some(maximum) })?)
        }
        _ => Ok(()),
    }
}

fn tag(folder: &Path) -> io::Result<String> {
    let file = folder.join(TAG_FILE);
    match fs::read_to_string(&file) {
        Ok(tag) if tag.len() == 8 && tag.bytes().all(|byte| byte.is_ascii_hexdigit()) => return Ok(tag),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let tag = hex::encode(random);
    fs::write(&file, &tag)?;
    Ok(tag)
}

fn degraded(cgroups: &Cgroups, has_open_files: bool) -> Vec<Degraded> {
    let mut degraded = Vec::new();
    let mut add = |limit: &str, reason: &str, remedy: &str| {
        degraded.push(Degraded { limit: limit.to_owned(), reason: reason.to_owned(), remedy: remedy.to_owned() });
    };
    if !cgroups.has_cpu() {
        add(
            "cpu",
            "the control groups of this machine cannot limit processor time",
            "enable the controller `cpu`, and use a kernel with CONFIG_CFS_BANDWIDTH",
        );
    }
    if !cgroups.limits_sockets(&doctor::kernel_arguments()) {
        add("sockets", doctor::NO_SOCKET_LIMIT, doctor::SOCKET_LIMIT_REMEDY);
    }
    if !has_open_files {
        add("open_files", doctor::NO_OPEN_FILE_LIMIT, doctor::OPEN_FILE_LIMIT_REMEDY);
    }
    degraded
}
