//! A provider of sandboxes in memory, for tests of what is built on one: it counts what it is asked for, and can be told to
//! fail or to hang.

mod provider;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use monstrum_sandbox::{Capabilities, Ensured, SandboxError, SandboxName, Spec};
use monstrum_types::UtcMillis;
use tokio::sync::watch;

/// What a provider is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    EnsureRunning,
    Stop,
    Delete,
    SetAside,
    List,
    Exec,
}

/// The provider. Its commands are words: `echo TEXT` writes the text, `fail` exits with 7, `wait` goes on until the sandbox
/// ends or [`SandboxDouble::finish`] is called.
pub struct SandboxDouble {
    capabilities: Capabilities,
    inside: Mutex<Inside>,
    /// Ticks with everything that happens.
    ticks: watch::Sender<u64>,
}

#[derive(Default)]
struct Inside {
    sandboxes: HashMap<SandboxName, Machine>,
    aside: Vec<(SandboxName, UtcMillis, Machine)>,
    /// Of how many sandboxes there ever were.
    created: usize,
    asked: HashMap<Asked, usize>,
    failing: HashMap<Asked, SandboxError>,
    failing_for: HashMap<SandboxName, SandboxError>,
    hanging: HashSet<Asked>,
    hanging_for: HashSet<SandboxName>,
    finished: usize,
    down: Option<SandboxError>,
}

struct Machine {
    is_running: bool,
    /// How often it was stopped: a command of an earlier life has ended.
    lives: usize,
    spec: Spec,
    execs: usize,
    files: BTreeMap<String, Bytes>,
}

impl Default for SandboxDouble {
    fn default() -> Self {
        let capabilities = Capabilities {
            system: "Double 1".to_owned(),
            programs: vec!["bash".to_owned()],
            networks: vec![monstrum_sandbox::Network::None, monstrum_sandbox::Network::Full],
            can_install_system_packages: false,
            degraded: Vec::new(),
        };
        SandboxDouble { capabilities, inside: Mutex::default(), ticks: watch::Sender::new(0) }
    }
}

impl SandboxDouble {
    /// How many sandboxes were ever created.
    pub fn created(&self) -> usize {
        self.inside().created
    }

    /// How often it was asked.
    pub fn asked(&self, what: Asked) -> usize {
        self.inside().asked.get(&what).copied().unwrap_or_default()
    }

    /// The state of each sandbox that there is.
    pub fn states(&self) -> BTreeMap<String, &'static str> {
        let word = |machine: &Machine| if machine.is_running { "running" } else { "stopped" };
        self.inside().sandboxes.iter().map(|(name, machine)| (name.to_string(), word(machine))).collect()
    }

    /// The names of what is kept aside.
    pub fn aside(&self) -> Vec<String> {
        self.inside().aside.iter().map(|(name, _, _)| name.to_string()).collect()
    }

    /// What a sandbox was last started with.
    pub fn spec(&self, name: &SandboxName) -> Option<Spec> {
        self.inside().sandboxes.get(name).map(|machine| machine.spec)
    }

    /// What it is asked for fails from now on.
    pub fn fail(&self, what: Asked, error: SandboxError) {
        self.inside().failing.insert(what, error);
    }

    /// What is asked of one sandbox fails from now on.
    pub fn fail_for(&self, name: &SandboxName, error: SandboxError) {
        self.inside().failing_for.insert(name.clone(), error);
    }

    /// It cannot be used, or can again.
    pub fn down(&self, error: Option<SandboxError>) {
        self.inside().down = error;
    }

    /// What it is asked for is not answered.
    pub fn hang(&self, what: Asked) {
        self.inside().hanging.insert(what);
    }

    /// What is asked of one sandbox is not answered.
    pub fn hang_for(&self, name: &SandboxName) {
        self.inside().hanging_for.insert(name.clone());
    }

    /// All is well again, and what hangs goes on.
    pub fn mend(&self) {
        {
            let mut inside = self.inside();
            inside.failing.clear();
            inside.failing_for.clear();
            inside.hanging.clear();
            inside.hanging_for.clear();
            inside.down = None;
        }
        self.tick();
    }

    /// Commands that wait are over.
    pub fn finish(&self) {
        self.inside().finished += 1;
        self.tick();
    }

    /// A sandbox is stopped behind everybody's back, as by a crash.
    pub fn crash(&self, name: &SandboxName) {
        if let Some(machine) = self.inside().sandboxes.get_mut(name) {
            machine.is_running = false;
            machine.lives += 1;
        }
        self.tick();
    }

    /// A sandbox is removed behind everybody's back.
    pub fn lose(&self, name: &SandboxName) {
        self.inside().sandboxes.remove(name);
        self.tick();
    }

    /// A sandbox that has no row.
    pub fn plant(&self, name: &SandboxName) {
        self.inside().ensure(name, Spec::default());
    }

    /// Waits until it was asked `count` times.
    pub async fn reached(&self, what: Asked, count: usize) {
        self.until(|inside| (inside.asked.get(&what).copied().unwrap_or_default() >= count).then_some(())).await;
    }

    /// Waits until so many commands run.
    pub async fn running_execs(&self, count: usize) {
        let execs = |inside: &Inside| inside.sandboxes.values().map(|machine| machine.execs).sum::<usize>();
        self.until(|inside| (execs(inside) == count).then_some(())).await;
    }

    async fn until<T>(&self, mut found: impl FnMut(&mut Inside) -> Option<T>) -> T {
        let mut ticks = self.ticks.subscribe();
        loop {
            if let Some(found) = found(&mut self.inside()) {
                return found;
            }
            ticks.changed().await.expect("the double ticks as long as it is used");
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) {
        self.ticks.send_modify(|tick| *tick += 1);
    }

    /// Counts, hangs and fails as told.
    async fn asked_for(&self, what: Asked, name: Option<&SandboxName>) -> Result<(), SandboxError> {
        *self.inside().asked.entry(what).or_default() += 1;
        self.tick();
        let hangs = |inside: &Inside| {
            inside.hanging.contains(&what) || name.is_some_and(|name| inside.hanging_for.contains(name))
        };
        self.until(|inside| (!hangs(inside)).then_some(())).await;
        let inside = self.inside();
        let of_name = name.and_then(|name| inside.failing_for.get(name));
        match inside.down.as_ref().or_else(|| inside.failing.get(&what)).or(of_name) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn file<T>(
        &self,
        name: &SandboxName,
        work: impl FnOnce(&mut BTreeMap<String, Bytes>) -> Result<T, SandboxError>,
    ) -> Result<T, SandboxError> {
        match self.inside().sandboxes.get_mut(name) {
            Some(machine) if machine.is_running => work(&mut machine.files),
            Some(_) => Err(SandboxError::Conflict("it does not run".to_owned())),
            None => Err(absent()),
        }
    }
}

impl Inside {
    fn ensure(&mut self, name: &SandboxName, spec: Spec) -> Ensured {
        match self.sandboxes.get_mut(name) {
            Some(machine) if machine.is_running => Ensured::AlreadyRunning,
            Some(machine) => {
                machine.is_running = true;
                machine.spec = spec;
                Ensured::Resumed
            }
            None => {
                self.created += 1;
                let machine = Machine { is_running: true, lives: 0, spec, execs: 0, files: BTreeMap::new() };
                self.sandboxes.insert(name.clone(), machine);
                Ensured::Created
            }
        }
    }
}

/// Counts a command as long as it runs.
struct Running<'a>(&'a SandboxDouble, SandboxName);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(machine) = self.0.inside().sandboxes.get_mut(&self.1) {
            machine.execs = machine.execs.saturating_sub(1);
        }
        self.0.tick();
    }
}

fn absent() -> SandboxError {
    SandboxError::NotFound("there is no such file".to_owned())
}
