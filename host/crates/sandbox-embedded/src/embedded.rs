//! The provider: its state and the life cycle of each sandbox.

mod launching;
mod prepare;
mod provider;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monstrum_sandbox::{Capabilities, Ensured, Inspection, Limits, Network, SandboxError, SandboxName, Spec, State};
use monstrum_types::{UtcMillis, with_causes};
use parking_lot::Mutex;

use self::launching::Launching;
use self::prepare::{Prepared, prepare};
use crate::cgroups::Cgroups;
use crate::hidden::Hidden;
use crate::ids::Ids;
use crate::images::{Images, TemplateKind};
use crate::network::{self, FullNetwork};
use crate::running::{Running, Sockets};
use crate::template::{self, Template};
use crate::totals::TotalSettings;
use crate::wire::{Launch, Usr};

/// The name of this provider in database rows.
const NAME: &str = "embedded";
/// The free space, in bytes, that a start must leave on the host's disk.
const RESERVE_BYTES: u64 = 512 << 20;
/// The folder of templates.
const TEMPLATES: &str = "template";
/// The list of files in the host's /usr that sandboxes must not see.
const HIDDEN_FILE: &str = "hidden";

/// The options of the provider.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// The folder of the provider. No other program uses this folder.
    pub folder: PathBuf,
    /// The program that runs the launcher. Its `main` must begin with a call of [`crate::run_if_launcher`]. The default
    /// is the running program.
    pub program: Option<PathBuf>,
    /// The settings of the network `full`.
    pub network: network::Settings,
    /// The base of new sandboxes. Existing sandboxes keep their base.
    pub template: TemplateKind,
    /// The settings of the limits that apply to all sandboxes together.
    pub totals: TotalSettings,
}

impl EmbeddedOptions {
    /// Returns the default options for `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> EmbeddedOptions {
        EmbeddedOptions {
            folder: folder.into(),
            program: None,
            network: network::Settings::default(),
            template: TemplateKind::default(),
            totals: TotalSettings::default(),
        }
    }
}

/// The embedded provider.
pub struct Embedded(Arc<Inner>);

struct Inner {
    options: EmbeddedOptions,
    /// The default template. It is made when a sandbox first needs it.
    default: tokio::sync::OnceCell<Template>,
    built: Option<Template>,
    hidden: Hidden,
    capabilities: Capabilities,
    cgroups: Cgroups,
    images: Images,
    ids: Ids,
    /// The network `full`, or the reason why it is not available.
    full: Result<Arc<FullNetwork>, SandboxError>,
    launching: Launching,
    boxes: Mutex<HashMap<SandboxName, Arc<Slot>>>,
}

/// The entry of one sandbox. The first call for the sandbox creates the entry.
#[derive(Default)]
struct Slot {
    /// The lock for creating, resuming, stopping and deleting the sandbox.
    changing: tokio::sync::Mutex<()>,
    running: Mutex<Option<Arc<Running>>>,
}

impl Slot {
    fn running(&self) -> Option<Arc<Running>> {
        let running = self.running.lock();
        running.as_ref().filter(|running| !running.control.is_gone()).cloned()
    }

    fn take(&self) -> Option<Arc<Running>> {
        self.running.lock().take()
    }

    /// Stops the sandbox, or cleans up after it if it has already ended.
    async fn end(&self) -> Result<(), SandboxError> {
        let Some(running) = self.take() else { return Ok(()) };
        let ended = running.end().await;
        if ended.is_err() {
            *self.running.lock() = Some(running);
        }
        ended
    }
}

impl Embedded {
    /// Starts the provider in its folder. Fails if this machine cannot run sandboxes. Kills all processes, and removes
    /// all control groups and interfaces, that a previous process left behind.
    pub async fn start(options: EmbeddedOptions) -> Result<Embedded, SandboxError> {
        let own = options.clone();
        let prepared = tokio::task::spawn_blocking(move || prepare(&own)).await;
        let Prepared { built, cgroups, images, full, tag, degraded } = prepared.expect("preparing does not panic")?;
        let described = match options.template {
            TemplateKind::Host => None,
            TemplateKind::Built => built.clone(),
        };
        let described = described.unwrap_or_else(|| template::of_host(Path::new("/")));
        let capabilities = Capabilities {
            system: described.system,
            programs: described.programs,
            networks: if full.is_ok() { vec![Network::None, Network::Full] } else { vec![Network::None] },
            can_install_system_packages: described.can_install_system_packages,
            degraded,
        };
        let inner = Inner {
            hidden: Hidden::new(options.folder.join(HIDDEN_FILE)),
            launching: Launching::new(options.program.clone()),
            options,
            default: tokio::sync::OnceCell::new(),
            built,
            capabilities,
            cgroups,
            images,
            ids: Ids::of(&tag),
            full,
            boxes: Mutex::default(),
        };
        Ok(Embedded(Arc::new(inner)))
    }

    /// Prepares the template and the list of hidden files, so that the first sandbox does not wait for them.
    pub async fn warm_up(&self) -> Result<(), SandboxError> {
        let template = self.0.template(self.0.options.template).await?;
        self.0.usr(&template).await.map(drop)
    }

    /// Runs `work` in another task, so that `work` completes even if the caller is cancelled.
    async fn uncancelled<T, F>(&self, work: impl FnOnce(Arc<Inner>) -> F) -> Result<T, SandboxError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SandboxError>> + Send + 'static,
    {
        let ended = tokio::spawn(work(Arc::clone(&self.0))).await;
        ended.unwrap_or_else(|error| Err(SandboxError::unavailable_because("the server is shutting down", error)))
    }
}

impl Inner {
    fn slot(&self, name: &SandboxName) -> Arc<Slot> {
        let mut boxes = self.boxes.lock();
        Arc::clone(boxes.entry(name.clone()).or_default())
    }

    /// Removes the entry of a sandbox. Does nothing if another call uses the entry.
    fn forget(&self, name: &SandboxName, slot: Arc<Slot>) {
        let mut boxes = self.boxes.lock();
        drop(slot);
        if boxes.get(name).is_some_and(|slot| Arc::strong_count(slot) == 1) {
            boxes.remove(name);
        }
    }

    fn running(&self, name: &SandboxName) -> Result<Arc<Running>, SandboxError> {
        let slot = self.slot(name);
        let running = slot.running();
        if running.is_none() && self.images.find(name.as_str()).is_none() {
            self.forget(name, slot);
            return Err(SandboxError::NotFound("the sandbox does not exist".to_owned()));
        }
        running.ok_or_else(|| SandboxError::Conflict("the sandbox is not running".to_owned()))
    }

    async fn template(&self, base: TemplateKind) -> Result<Template, SandboxError> {
        let gone = || SandboxError::unavailable("the template of this sandbox no longer exists");
        if base == TemplateKind::Built {
            return self.built.clone().ok_or_else(gone);
        }
        let templates = self.options.folder.join(TEMPLATES);
        let make = || async {
            let made = tokio::task::spawn_blocking(move || {
                let template = template::default_template(&templates)?;
                template::remove_stale(&templates, &template)?;
                Ok(template)
            });
            made.await.expect("making a template does not panic")
        };
        self.default.get_or_try_init(make).await.cloned()
    }

    /// Returns the part of the host's /usr that a sandbox of this template sees, or `None` if the template contains
    /// /usr.
    async fn usr(&self, template: &Template) -> Result<Option<Usr>, SandboxError> {
        let Some(folder) = template.usr.clone() else { return Ok(None) };
        Ok(Some(Usr { folder, hidden: self.hidden.list().await? }))
    }

    async fn begin(&self, name: &SandboxName, spec: Spec, is_new: bool) -> Result<Arc<Running>, SandboxError> {
        let gone = || SandboxError::NotFound("the disk image of the sandbox is missing".to_owned());
        let (image, base) = self.images.find(name.as_str()).ok_or_else(gone)?;
        self.check_room(&image)?;
        let template = self.template(base).await?;
        let usr = self.usr(&template).await?;
        let network = match spec.network {
            Network::None => None,
            Network::Full => Some(self.full.clone()?),
        };
        let exhausted = || {
            SandboxError::Exhausted(
                "too many sandboxes are running on this host; try again when a sandbox has stopped".to_owned(),
            )
        };
        let ids = self.ids.take().ok_or_else(exhausted)?;
        let failed = |error: io::Error| SandboxError::unavailable_because("the sandbox did not start", error);
        let group = self.cgroups.group(name.as_str(), &spec.limits);
        let launch = Launch {
            image,
            template: template.root,
            usr,
            resolv_conf: network.as_ref().map(|network| network.resolv_conf()),
            stage: self.options.folder.join("stage"),
            id_base: ids.base,
            cgroups: self.cgroups.clone(),
            name: name.to_string(),
            limits: spec.limits,
        };
        let sockets = Sockets::new().map_err(failed)?;
        self.launching.launch(&launch, &sockets).await.map_err(failed)?;
        let running = Running::begin(sockets, group, ids).await?;
        let works = async {
            if let Some(network) = network {
                running.connect(network).await?;
            }
            running.probe(is_new).await
        };
        if let Err(error) = works.await {
            // The keeper must end before the next start, which creates control groups with the same names.
            if let Err(error) = running.end().await {
                tracing::error!(sandbox = %name, error = %with_causes(&error), "a sandbox that failed to start could not be stopped");
            }
            return Err(error);
        }
        tracing::debug!(sandbox = %name, pid = running.pid, "a sandbox is running");
        Ok(running)
    }

    /// Rejects a start that could fill the host's disk. If the disk is full, the host cannot write the audit and
    /// rejects every call.
    fn check_room(&self, image: &Path) -> Result<(), SandboxError> {
        use std::os::unix::fs::MetadataExt as _;
        let image = fs::metadata(image).map_err(|error| {
            SandboxError::unavailable_because("the size of the sandbox's disk image cannot be read", error)
        })?;
        let may_grow = image.len().saturating_sub(image.blocks() * 512);
        let disk = rustix::fs::statvfs(&self.options.folder).map_err(|error| {
            let error = io::Error::from(error);
            SandboxError::unavailable_because("the free disk space of the host cannot be read", error)
        })?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free < may_grow.saturating_add(RESERVE_BYTES) {
            let words = "the host does not have enough free disk space for this sandbox";
            return Err(SandboxError::Exhausted(words.to_owned()));
        }
        Ok(())
    }

    async fn ensure(&self, name: &SandboxName, spec: Spec) -> Result<Ensured, SandboxError> {
        check(&spec.limits)?;
        let slot = self.slot(name);
        let _one_at_a_time = slot.changing.lock().await;
        if slot.running().is_some() {
            return Ok(Ensured::AlreadyRunning);
        }
        // A sandbox that has ended but was not stopped may still hold its image.
        slot.end().await?;
        let is_there = self.images.find(name.as_str()).is_some();
        if !is_there {
            let (images, own, mib) = (self.images.clone(), name.to_string(), spec.limits.disk_mib);
            let base = self.options.template;
            let made = tokio::task::spawn_blocking(move || images.create(&own, base, mib)).await;
            let made = made.expect("making an image does not panic");
            made.map_err(|error| {
                SandboxError::unavailable_because("the disk image of the sandbox could not be created", error)
            })?;
        }
        let begun = self.begin(name, spec, !is_there).await;
        if begun.is_err() && !is_there {
            // A new sandbox that does not start has no files to keep.
            self.remove(name).await?;
        }
        *slot.running.lock() = Some(begun?);
        Ok(if is_there { Ensured::Resumed } else { Ensured::Created })
    }

    async fn stop(&self, name: &SandboxName) -> Result<(), SandboxError> {
        let slot = self.slot(name);
        {
            let _one_at_a_time = slot.changing.lock().await;
            slot.end().await?;
        }
        self.forget(name, slot);
        Ok(())
    }

    async fn delete(&self, name: &SandboxName) -> Result<(), SandboxError> {
        let slot = self.slot(name);
        {
            let _one_at_a_time = slot.changing.lock().await;
            slot.end().await?;
            self.remove(name).await?;
        }
        self.forget(name, slot);
        Ok(())
    }

    async fn set_aside(&self, name: &SandboxName, now: UtcMillis) -> Result<(), SandboxError> {
        let slot = self.slot(name);
        {
            let _one_at_a_time = slot.changing.lock().await;
            slot.end().await?;
            let (images, own) = (self.images.clone(), name.to_string());
            on_disk("the disk image of the sandbox", move || images.set_aside(&own, now)).await?;
        }
        self.forget(name, slot);
        Ok(())
    }

    async fn restore(&self, name: &SandboxName, since: UtcMillis) -> Result<bool, SandboxError> {
        let slot = self.slot(name);
        let taken = {
            let _one_at_a_time = slot.changing.lock().await;
            let (images, own) = (self.images.clone(), name.to_string());
            on_disk("the disk image of the sandbox", move || images.restore(&own, since)).await?
        };
        self.forget(name, slot);
        Ok(taken)
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), SandboxError> {
        let (images, own) = (self.images.clone(), name.to_string());
        let removed = tokio::task::spawn_blocking(move || images.delete(&own)).await;
        let removed = removed.expect("removing an image does not panic");
        removed.map_err(|error| {
            SandboxError::unavailable_because("the disk image of the sandbox could not be deleted", error)
        })
    }

    fn look(&self, name: &SandboxName) -> Option<Inspection> {
        self.images.find(name.as_str())?;
        let slot = self.slot(name);
        let running = slot.running();
        let execs = running.as_ref().map_or(0, |running| running.execs());
        let state = match running {
            _ if slot.changing.try_lock().is_err() => State::Changing,
            Some(_) => State::Running,
            None => State::Stopped,
        };
        Some(Inspection { name: name.clone(), state, execs })
    }
}

/// Ends all sandboxes when the server ends.
impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.cgroups.remove_all() {
            tracing::error!(%error, "the control groups of sandboxes could not be removed");
        }
    }
}

/// Rejects limits that are too small to run a command, or too large to be plausible.
fn check(limits: &Limits) -> Result<(), SandboxError> {
    for (name, value, least, most) in [
        ("cpu_millis", limits.cpu_millis, 10, 1_024_000),
        ("memory_mib", limits.memory_mib, 32, 1 << 20),
        ("disk_mib", limits.disk_mib, 16, 1 << 20),
        ("tmp_mib", limits.tmp_mib, 1, 1 << 20),
        ("processes", limits.processes, 8, 1 << 20),
        ("processes_per_exec", limits.processes_per_exec, 4, 1 << 20),
    ] {
        if !(least..=most).contains(&value) {
            return Err(SandboxError::Invalid(format!(
                "the limit `{name}` must be between {least} and {most}, but is {value}"
            )));
        }
    }
    Ok(())
}

/// Runs blocking work on files. `what` describes the files in the error message.
async fn on_disk<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, SandboxError> {
    let done = tokio::task::spawn_blocking(work).await.expect("work on files does not panic");
    done.map_err(|error| SandboxError::unavailable_because(format!("{what} cannot be read or changed"), error))
}
