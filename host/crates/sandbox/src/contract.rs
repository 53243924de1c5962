//! The contract of sandbox providers, as tests that use only [`SandboxProvider`].
//!
//! [`contract_suite!`](crate::contract_suite) creates one test for each case, so that each case fails under its own
//! name. A case creates the sandboxes that it needs and deletes them, even when it fails. [`LocalHost`] looks at the
//! machine on which the sandboxes run; a provider with remote sandboxes has no `LocalHost` and skips those assertions.
//! The machine must be able to limit processes and processors, or the cases for these limits fail. Limits that depend
//! on the kernel are not asserted if the provider lists them as degraded.

pub mod archive;
pub mod attacks;
pub mod exec;
pub mod files;
pub mod isolation;
pub mod lifecycle;
pub mod limits;
pub mod output;
pub mod programs;

mod local_host;
mod suite;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use local_host::LocalHost;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{ExecOutput, ExecRequest, Limits, Network, SandboxError, SandboxName, SandboxProvider, Spec, Termination};

/// The lock for measurements. A case that measures time or memory takes the lock exclusively. All other cases share the
/// lock and run in parallel.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// Waits until no case holds the lock exclusively.
pub async fn in_parallel() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// Waits until the case holds the lock exclusively.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// The provider under test.
pub struct Subject {
    pub provider: Arc<dyn SandboxProvider>,
    /// `None` if the sandboxes run on another machine.
    pub host: Option<LocalHost>,
    /// Values that must live as long as the provider, such as its data folder.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl Subject {
    /// Returns the limits that most cases use. The limits are small, so that many sandboxes can run in parallel.
    #[must_use]
    pub fn small() -> Limits {
        Limits { memory_mib: 384, disk_mib: 192, tmp_mib: 32, ..Limits::default() }
    }

    /// Creates a running sandbox with the limits of [`Subject::small`].
    pub async fn sandbox(&self) -> Sandbox {
        self.sandbox_under(Subject::small()).await
    }

    /// Creates a running sandbox with these limits.
    pub async fn sandbox_under(&self, limits: Limits) -> Sandbox {
        let sandbox = self.absent();
        sandbox.ensure(limits).await;
        sandbox
    }

    /// Returns a sandbox that does not exist yet.
    #[must_use]
    pub fn absent(&self) -> Sandbox {
        Sandbox { provider: Arc::clone(&self.provider), name: fresh_name() }
    }

    /// Whether the provider reports that it cannot enforce a limit on this machine.
    #[must_use]
    pub fn is_degraded(&self, limit: &str) -> bool {
        let capabilities = self.provider.capabilities().expect("the provider is ready");
        capabilities.degraded.iter().any(|degraded| degraded.limit == limit)
    }

    /// Fails if the provider reports that it cannot enforce a limit on this machine.
    ///
    /// # Panics
    /// The limit is degraded, or the provider is not ready.
    pub fn must_enforce(&self, limit: &str) {
        let capabilities = self.provider.capabilities().expect("the provider is ready");
        if let Some(degraded) = capabilities.degraded.iter().find(|degraded| degraded.limit == limit) {
            panic!("`{limit}` cannot be tested on this machine: {}; {}", degraded.reason, degraded.remedy);
        }
    }
}

/// A sandbox of one case, deleted when the value is dropped.
pub struct Sandbox {
    pub provider: Arc<dyn SandboxProvider>,
    pub name: SandboxName,
}

impl Sandbox {
    /// Starts the sandbox. The sandbox has no network.
    pub async fn ensure(&self, limits: Limits) -> crate::Ensured {
        let spec = Spec { limits, network: Network::None };
        self.provider.ensure_running(&self.name, spec).await.expect("the sandbox runs")
    }

    /// Runs a command.
    pub async fn run(&self, command: impl Into<String>) -> ExecOutput {
        self.exec(ExecRequest::new(command)).await
    }

    /// Runs a command with options.
    pub async fn exec(&self, request: ExecRequest) -> ExecOutput {
        let command = request.command.clone();
        match self.provider.exec(&self.name, request, None).await {
            Ok(output) => output,
            Err(error) => panic!("`{}` could not be started: {error}", head(&command)),
        }
    }

    /// Returns the error of a command that must not start.
    pub async fn refusal(&self, request: ExecRequest) -> SandboxError {
        match self.provider.exec(&self.name, request, None).await {
            Ok(output) => panic!("the command was started although it must be rejected: {output:?}"),
            Err(error) => error,
        }
    }

    /// Returns the output of a command that must succeed, without the final newline.
    pub async fn text(&self, command: impl Into<String>) -> String {
        let command = command.into();
        let output = self.run(command.clone()).await;
        let is_fine = output.exit_code == 0 && output.termination == Termination::Exited;
        assert!(is_fine, "`{}` failed: {output:?}", head(&command));
        output.stdout.text.trim_end().to_owned()
    }

    /// Returns the output of a Python program that must succeed.
    pub async fn python(&self, program: &str) -> String {
        self.text(python(program)).await
    }

    /// Starts a program in the background.
    pub async fn start(&self, command: &str) {
        self.text(format!("({command}\n) >/dev/null 2>&1 & echo started")).await;
    }

    /// Counts the processes in the sandbox that have `marker` in their arguments.
    pub async fn processes(&self, marker: &str) -> usize {
        // The command joins the two parts of the marker, so that the search does not find itself.
        let (first, rest) = marker.split_at(1);
        let search = format!(
            "m={first}; m=${{m}}{rest}; n=0; for p in /proc/[0-9]*; do [ \"${{p#/proc/}}\" = $$ ] && continue; \
             tr '\\0' ' ' 2>/dev/null <$p/cmdline | grep -qF -- \"$m\" && n=$((n+1)); done; echo $n"
        );
        self.text(search).await.parse().expect("a number")
    }

    /// Reads a file with the file functions.
    pub async fn read(&self, path: &str) -> Result<String, SandboxError> {
        let (_, content) = self.provider.read(&self.name, path).await?;
        let bytes = archive::collect(content).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes a file with the file functions.
    pub async fn write(&self, path: &str, content: &str) -> Result<(), SandboxError> {
        self.provider.write(&self.name, path, bytes::Bytes::copy_from_slice(content.as_bytes())).await
    }

    /// Lists the names in a folder with the file functions.
    pub async fn names(&self, path: &str) -> Result<Vec<String>, SandboxError> {
        let entries = self.provider.list_dir(&self.name, path).await?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let deleted = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(self.provider.delete(&self.name))
        });
        if !std::thread::panicking() {
            deleted.expect("the sandbox of a case is deleted");
        }
    }
}

/// Returns a name that no other case uses.
#[must_use]
pub fn fresh_name() -> SandboxName {
    let (workspace, id) = (random_hex(16), random_hex(8));
    let workspace = format!(
        "{}-{}-{}-{}-{}",
        &workspace[..8],
        &workspace[8..12],
        &workspace[12..16],
        &workspace[16..20],
        &workspace[20..]
    );
    SandboxName::new(workspace, &id)
}

/// Returns random hex digits, so that a search for them finds only the marker of this case.
#[must_use]
pub fn random_hex(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).expect("the system gives random bytes");
    hex::encode(random)
}

/// Returns a shell command that runs a Python program.
#[must_use]
pub fn python(program: &str) -> String {
    format!("python3 - <<'PYTHON'\n{program}\nPYTHON")
}

/// Waits until a condition holds, and fails after `within`. Use this function only for effects that no call waits for.
pub async fn eventually(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < within, "timed out after {within:?} waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn head(command: &str) -> String {
    command.chars().take(200).collect()
}
