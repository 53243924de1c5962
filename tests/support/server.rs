//! The real server, as a process with folders of its own.

mod files;

pub(crate) use files::target_dir;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Api;

/// A start compiles components, in a debug build, on a machine that may be busy.
const START_MAX: Duration = Duration::from_secs(120);
/// Longer than the grace that a server gives its calls.
const STOP_MAX: Duration = Duration::from_secs(60);
/// How often a server that starts is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(20);
const LISTENING: &str = "listening on ";

/// A server and its folders. The process is killed, and the folders are removed, when this is dropped.
pub struct Server {
    home: TempDir,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    printed: Arc<Mutex<String>>,
    process: Option<Process>,
}

struct Process {
    child: Child,
    url: String,
    readers: Vec<JoinHandle<()>>,
}

/// The program, for what is run in another way than as a server.
pub fn program() -> Result<PathBuf> {
    files::binary("monstrum")
}

/// Installs the TLS library of the process, which the HTTP clients need; once is enough.
pub fn install_tls() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // It fails only where a library is installed already, which is as good.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    });
}

impl Server {
    /// A server with these plugins of `target/plugins` or, for names that start with `test-`, `target/test-plugins`,
    /// ready to serve.
    pub async fn start(plugins: &[&str]) -> Result<Server> {
        let mut server = Server::prepare(plugins)?;
        server.launch().await?;
        Ok(server)
    }

    /// The same, but not started: first change its folders or its arguments, then [`Server::launch`] it.
    pub fn prepare(plugins: &[&str]) -> Result<Server> {
        install_tls();
        let home = tempfile::Builder::new().prefix("monstrum-").tempdir().context("no temporary folder")?;
        let server = Server {
            home,
            arguments: ["--listen", "127.0.0.1:0"].map(str::to_owned).to_vec(),
            variables: Vec::new(),
            printed: Arc::default(),
            process: None,
        };
        files::make_dir(&server.plugins_dir())?;
        for plugin in plugins {
            server.install(plugin)?;
        }
        Ok(server)
    }

    /// A server on a copy of the data folder that `tests/fixtures/{revision}` has of an earlier revision, with its plugins.
    pub fn prepare_on_fixture(revision: &str) -> Result<Server> {
        let server = Server::prepare(&[])?;
        let data = files::fixture(revision).join("data");
        files::copy_dir(&data.join("plugins"), &server.plugins_dir())?;
        files::copy_private(&data, &server.data_dir())?;
        Ok(server)
    }

    /// One more argument of `monstrum serve`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Another address than loopback's.
    #[must_use]
    pub fn listening_on(mut self, address: &str) -> Self {
        address.clone_into(&mut self.arguments[1]);
        self
    }

    /// One more variable of its environment, which else is empty.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a variable of its environment for the next start and for commands; none takes it away.
    pub fn set_variable(&mut self, name: &str, value: Option<&str>) {
        self.variables.retain(|(own, _)| own != name);
        self.variables.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// Puts a plugin into the plugins folder, over the one that may be there.
    pub fn install(&self, plugin: &str) -> Result<()> {
        self.install_as(plugin, plugin)
    }

    /// The same, into the folder `name`. The caller changes what the manifest is called.
    pub fn install_as(&self, plugin: &str, name: &str) -> Result<()> {
        files::copy_dir(&Server::plugin_source(plugin)?, &self.plugins_dir().join(name))
    }

    /// The folder of a plugin as it was built.
    pub fn plugin_source(plugin: &str) -> Result<PathBuf> {
        let folder = if plugin.starts_with("test-") { "test-plugins" } else { "plugins" };
        let source = files::target_dir()?.join(folder).join(plugin);
        if !source.is_dir() {
            bail!("{} is missing; run: cargo xtask plugins --test", source.display());
        }
        Ok(source)
    }

    /// Starts the process and waits until it is ready.
    pub async fn launch(&mut self) -> Result<()> {
        let url = self.launch_unready().await?;
        let ready = async {
            let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
            loop {
                let answer = client.get(format!("{url}/readyz")).send().await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    return Ok(());
                }
                if let Some(status) = self.running()?.child.try_wait()? {
                    bail!("the server ended with {status}\n{}", self.output());
                }
                tokio::time::sleep(READY_POLL).await;
            }
        };
        match tokio::time::timeout(START_MAX, ready).await {
            Ok(result) => result,
            Err(_) => bail!("the server is not ready after {START_MAX:?}\n{}", self.output()),
        }
    }

    /// Starts the process and waits until it listens; its URL.
    pub async fn launch_unready(&mut self) -> Result<String> {
        let mut command = self.monstrum()?;
        command.arg("serve").args(&self.arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run monstrum")?;
        let (listening, mut listens) = watch::channel(None);
        let printed = || Arc::clone(&self.printed);
        let stdout = child.stdout.take().context("the server has no standard output")?;
        let stderr = child.stderr.take().context("the server has no standard error")?;
        let readers = vec![
            tokio::spawn(collect(stdout, printed(), Some(listening))),
            tokio::spawn(collect(stderr, printed(), None)),
        ];
        // Held from here, so that it always ends with this process.
        self.process = Some(Process { child, url: String::new(), readers });
        let url = match tokio::time::timeout(START_MAX, listens.wait_for(Option::is_some)).await {
            Ok(Ok(url)) => url.clone().unwrap_or_default(),
            Ok(Err(_)) => {
                let status = self.ended().await?;
                bail!("the server did not start: {status}\n{}", self.output());
            }
            Err(_) => bail!("the server does not listen after {START_MAX:?}\n{}", self.output()),
        };
        self.running()?.url.clone_from(&url);
        Ok(url)
    }

    /// Ends the server as an operator does, and waits.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended().await
    }

    /// Ends the server as a power cut does.
    pub async fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.ended().await
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.process.as_ref().and_then(|process| process.child.id()).context("the server does not run")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("no process has the number 0")?;
        kill_process(pid, signal).context("cannot send a signal to the server")
    }

    /// Waits until the process has ended and all that it printed is read.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let Process { mut child, readers, .. } = self.process.take().context("the server does not run")?;
        let Ok(status) = tokio::time::timeout(STOP_MAX, child.wait()).await else {
            child.kill().await?;
            bail!("the server did not end within {STOP_MAX:?}\n{}", self.output());
        };
        for reader in readers {
            reader.await?;
        }
        Ok(status?)
    }

    /// Starts the server again on the same folders, and waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        if self.process.is_some() {
            self.stop().await?;
        }
        self.launch().await
    }

    /// Another command of the same program, as an operator on the server's machine would run it.
    pub async fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Result<Output> {
        let mut command = self.monstrum()?;
        if let Some(process) = &self.process {
            command.env("MONSTRUM_URL", &process.url);
        }
        command.args(arguments).output().await.context("cannot run monstrum")
    }

    /// The same, but it is the caller's to wait for or to kill.
    pub fn begin_command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Result<Child> {
        let mut command = self.monstrum()?;
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().context("cannot run monstrum")
    }

    /// The API with the root key.
    pub fn api(&self) -> Result<Api> {
        let key = std::fs::read_to_string(self.key_file()).context("the server has left no root key")?;
        let url = self.url().context("the server does not run")?;
        Api::new(url, key.trim())
    }

    /// The server's URL while it runs.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.process.as_ref().map(|process| process.url.as_str())
    }

    /// The process while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref()?.child.id()
    }

    /// Where the server keeps its data.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Where the server finds its plugins.
    #[must_use]
    pub fn plugins_dir(&self) -> PathBuf {
        self.home.path().join("plugins")
    }

    /// The file of the root key.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.data_dir().join("admin.key")
    }

    /// Everything that the process has printed so far, on both outputs, over all its starts.
    #[must_use]
    pub fn output(&self) -> String {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The program with the folders and the environment of this server.
    fn monstrum(&self) -> Result<Command> {
        let binary = files::binary("monstrum")?;
        let mut command = Command::new(binary);
        command
            .current_dir(self.home.path())
            .env_clear()
            .env("MONSTRUM_DATA_DIR", self.data_dir())
            .env("MONSTRUM_PLUGINS_DIR", self.plugins_dir())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            // Ctrl-C on the terminal is for us; we tell the server.
            .process_group(0)
            .kill_on_drop(true);
        Ok(command)
    }

    fn running(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("the server does not run")
    }

    /// The folder of all its folders.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }
}

/// Keeps what is printed, and announces the URL when the line comes that names it.
async fn collect(
    source: impl AsyncRead + Unpin,
    printed: Arc<Mutex<String>>,
    listening: Option<watch::Sender<Option<String>>>,
) {
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    while source.read_until(b'\n', &mut line).await.is_ok_and(|bytes| bytes > 0) {
        let text = String::from_utf8_lossy(&line);
        printed.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
        if let (Some(listening), Some(url)) = (&listening, text.trim_end().strip_prefix(LISTENING)) {
            listening.send_replace(Some(url.to_owned()));
        }
        line.clear();
    }
}
