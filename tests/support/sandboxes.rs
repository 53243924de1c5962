//! A provider of sandboxes in memory, for tests of the code that uses providers. It counts its requests, and can
//! simulate failures and hangs.

mod provider;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use monstrum_sandbox::{Capabilities, Ensured, SandboxError, SandboxName, Spec};
use monstrum_types::UtcMillis;
use tokio::sync::watch;

/// The kinds of requests to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    EnsureRunning,
    Stop,
    Delete,
    SetAside,
    List,
    Exec,
}

/// The provider. Its commands are words: `echo TEXT` writes the text, `fail` exits with 7, and `wait` runs until the
/// sandbox ends or [`SandboxDouble::finish`] is called.
pub struct SandboxDouble {
    capabilities: Capabilities,
    inside: Mutex<Inside>,
    /// Changes with every event.
    ticks: watch::Sender<u64>,
}

#[derive(Default)]
struct Inside {
    sandboxes: HashMap<SandboxName, Machine>,
    aside: Vec<(SandboxName, UtcMillis, Machine)>,
    /// The number of sandboxes ever created.
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
    /// The number of times that the sandbox was stopped. A change of this number ends the commands that were running.
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
    /// Returns the number of sandboxes ever created.
    pub fn created(&self) -> usize {
        self.inside().created
    }

    /// Returns the number of requests of this kind.
    pub fn asked(&self, what: Asked) -> usize {
        self.inside().asked.get(&what).copied().unwrap_or_default()
    }

    /// Returns the state of each existing sandbox.
    pub fn states(&self) -> BTreeMap<String, &'static str> {
        let word = |machine: &Machine| if machine.is_running { "running" } else { "stopped" };
        self.inside().sandboxes.iter().map(|(name, machine)| (name.to_string(), word(machine))).collect()
    }

    /// Returns the names of the sandboxes whose files are set aside.
    pub fn aside(&self) -> Vec<String> {
        self.inside().aside.iter().map(|(name, _, _)| name.to_string()).collect()
    }

    /// Returns the specification of a sandbox's last start.
    pub fn spec(&self, name: &SandboxName) -> Option<Spec> {
        self.inside().sandboxes.get(name).map(|machine| machine.spec)
    }

    /// Makes all requests of this kind fail from now on.
    pub fn fail(&self, what: Asked, error: SandboxError) {
        self.inside().failing.insert(what, error);
    }

    /// Makes all requests for one sandbox fail from now on.
    pub fn fail_for(&self, name: &SandboxName, error: SandboxError) {
        self.inside().failing_for.insert(name.clone(), error);
    }

    /// Makes the provider unavailable, or available again.
    pub fn down(&self, error: Option<SandboxError>) {
        self.inside().down = error;
    }

    /// Makes all requests of this kind hang.
    pub fn hang(&self, what: Asked) {
        self.inside().hanging.insert(what);
    }

    /// Makes all requests for one sandbox hang.
    pub fn hang_for(&self, name: &SandboxName) {
        self.inside().hanging_for.insert(name.clone());
    }

    /// Ends all failures, and lets hanging requests continue.
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

    /// Ends all waiting commands.
    pub fn finish(&self) {
        self.inside().finished += 1;
        self.tick();
    }

    /// Stops a sandbox like a crash: the host is not notified.
    pub fn crash(&self, name: &SandboxName) {
        if let Some(machine) = self.inside().sandboxes.get_mut(name) {
            machine.is_running = false;
            machine.lives += 1;
        }
        self.tick();
    }

    /// Removes a sandbox. The host is not notified.
    pub fn lose(&self, name: &SandboxName) {
        self.inside().sandboxes.remove(name);
        self.tick();
    }

    /// Creates a sandbox for which the database has no row.
    pub fn plant(&self, name: &SandboxName) {
        self.inside().ensure(name, Spec::default());
    }

    /// Waits until there were `count` requests of this kind.
    pub async fn reached(&self, what: Asked, count: usize) {
        self.until(|inside| (inside.asked.get(&what).copied().unwrap_or_default() >= count).then_some(())).await;
    }

    /// Waits until exactly `count` commands are running.
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

    /// Counts a request, and hangs or fails if the test requires this.
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

/// Counts a command while it runs.
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
