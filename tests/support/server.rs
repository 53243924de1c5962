//! The real server, run as a process that has its own folders.

mod build;
mod compiled;
mod files;

pub use build::Build;

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

use self::compiled::FirstStart;
use crate::Api;

/// The maximum start time. A start compiles components, in a debug build, on a machine that may be busy.
const START_MAX: Duration = Duration::from_secs(120);
/// The maximum time of a stop, longer than the grace period for running calls.
const STOP_MAX: Duration = Duration::from_secs(60);
/// The interval of readiness checks during a start.
const READY_POLL: Duration = Duration::from_millis(20);
const LISTENING: &str = "listening on ";

/// A server and its folders. Dropping the value kills the process and removes the folders, unless they are kept.
pub struct Server {
    build: Build,
    home: PathBuf,
    /// The folder to remove, which is the home; `None` if the folders are kept.
    _temporary: Option<TempDir>,
    /// The program and its first argument that run instead of `monstrum serve`.
    program: Option<(PathBuf, String)>,
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

/// Returns the path of the program, for tests that do not run it as a server.
pub fn program() -> Result<PathBuf> {
    Build::current()?.program("monstrum")
}

/// Installs the TLS library of the process, which the HTTP clients need. Repeated calls have no effect.
pub fn install_tls() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // The call fails only if a library is already installed, which is sufficient.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    });
}

impl Server {
    /// Starts a server with these plugins of `target/plugins` or, for names that start with `test-`,
    /// `target/test-plugins`, and waits until it is ready.
    pub async fn start(plugins: &[&str]) -> Result<Server> {
        let mut server = Server::prepare(plugins)?;
        server.launch().await?;
        Ok(server)
    }

    /// Prepares a server, but does not start it. Tests can change its folders or arguments before [`Server::launch`].
    pub fn prepare(plugins: &[&str]) -> Result<Server> {
        Server::prepare_from(Build::current()?, plugins)
    }

    /// Like [`Server::prepare`], with the program and the plugins of `build`.
    pub fn prepare_from(build: Build, plugins: &[&str]) -> Result<Server> {
        let home =
            tempfile::Builder::new().prefix("monstrum-").tempdir().context("cannot create a temporary folder")?;
        let mut server = Server::at(build, home.path().to_owned())?;
        server._temporary = Some(home);
        for plugin in plugins {
            server.install(plugin)?;
        }
        Ok(server)
    }

    /// Prepares a server whose folders are in `home` and are kept. Existing folders there are used.
    pub fn prepare_in(home: &Path) -> Result<Server> {
        Server::at(Build::current()?, home.to_owned())
    }

    fn at(build: Build, home: PathBuf) -> Result<Server> {
        install_tls();
        let server = Server {
            build,
            home,
            _temporary: None,
            program: None,
            arguments: ["--listen", "127.0.0.1:0"].map(str::to_owned).to_vec(),
            variables: Vec::new(),
            printed: Arc::default(),
            process: None,
        };
        files::make_dir(&server.plugins_dir())?;
        Ok(server)
    }

    /// Prepares a server with a copy of the data folder and the plugins of an earlier revision, from
    /// `tests/fixtures/{revision}`.
    pub fn prepare_on_fixture(revision: &str) -> Result<Server> {
        let server = Server::prepare(&[])?;
        let data = files::fixture(revision).join("data");
        files::copy_dir(&data.join("plugins"), &server.plugins_dir())?;
        files::copy_private(&data, &server.data_dir())?;
        Ok(server)
    }

    /// Runs `program`, with `command` as its first argument, instead of `monstrum serve`. It must behave like
    /// `monstrum serve`.
    #[must_use]
    pub fn served_by(mut self, program: PathBuf, command: &str) -> Self {
        self.program = Some((program, command.to_owned()));
        self
    }

    /// Adds an argument of `monstrum serve`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Sets the address to listen on, instead of the loopback address.
    #[must_use]
    pub fn listening_on(mut self, address: &str) -> Self {
        address.clone_into(&mut self.arguments[1]);
        self
    }

    /// Adds an environment variable. The environment is otherwise empty.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets an environment variable for the next start and for commands. `None` removes it.
    pub fn set_variable(&mut self, name: &str, value: Option<&str>) {
        self.variables.retain(|(own, _)| own != name);
        self.variables.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// Installs a plugin in the plugins folder, replacing any existing copy.
    pub fn install(&self, plugin: &str) -> Result<()> {
        self.install_as(plugin, plugin)
    }

    /// Installs a plugin in the folder `name`. The caller must change the name in the manifest.
    pub fn install_as(&self, plugin: &str, name: &str) -> Result<()> {
        files::copy_dir(&self.build.plugin(plugin)?, &self.plugins_dir().join(name))
    }

    /// Returns the folder of a plugin of the current build.
    pub fn plugin_source(plugin: &str) -> Result<PathBuf> {
        Build::current()?.plugin(plugin)
    }

    /// Starts the process and waits until it is ready.
    pub async fn launch(&mut self) -> Result<()> {
        let first = self.first_start()?;
        self.launch_as_it_is().await?;
        first.map_or(Ok(()), |first| first.keep())
    }

    /// Prepares the first start of `monstrum serve` with plugins and a master key of its own.
    fn first_start(&self) -> Result<Option<FirstStart>> {
        let has_plugins = std::fs::read_dir(self.plugins_dir()).is_ok_and(|mut plugins| plugins.next().is_some());
        let given = self.variables.iter().map(|(name, _)| name).chain(&self.arguments);
        // A database may have been created with other keys.
        let is_given = |what: &str, text: &str| text.to_lowercase().replace('-', "_").contains(what);
        let has_own_key = !given.into_iter().any(|text| is_given("master_key", text) || is_given("database_url", text));
        if self.program.is_some() || self.data_dir().exists() || !has_plugins || !has_own_key {
            return Ok(None);
        }
        FirstStart::prepare(self.build.program("monstrum")?, &self.plugins_dir(), &self.data_dir()).map(Some)
    }

    /// Like [`Server::launch`], but leaves the folders as they are: the server creates its data folder and compiles its
    /// plugins.
    pub async fn launch_as_it_is(&mut self) -> Result<()> {
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
            Err(_) => bail!("the server was not ready after {START_MAX:?}\n{}", self.output()),
        }
    }

    /// Starts the process, waits until it listens, and returns its URL.
    pub async fn launch_unready(&mut self) -> Result<String> {
        let (mut command, first) = match &self.program {
            Some((program, first)) => (self.prepared(program), first.as_str()),
            None => (self.monstrum()?, "serve"),
        };
        command.arg(first).args(&self.arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run monstrum")?;
        let (listening, mut listens) = watch::channel(None);
        let printed = || Arc::clone(&self.printed);
        let stdout = child.stdout.take().context("the server has no standard output")?;
        let stderr = child.stderr.take().context("the server has no standard error")?;
        let readers = vec![
            tokio::spawn(collect(stdout, printed(), Some(listening))),
            tokio::spawn(collect(stderr, printed(), None)),
        ];
        // Storing the process here ensures that it always ends with this process.
        self.process = Some(Process { child, url: String::new(), readers });
        let url = match tokio::time::timeout(START_MAX, listens.wait_for(Option::is_some)).await {
            Ok(Ok(url)) => url.clone().unwrap_or_default(),
            Ok(Err(_)) => {
                let status = self.ended().await?;
                bail!("the server did not start: {status}\n{}", self.output());
            }
            Err(_) => bail!("the server was not listening after {START_MAX:?}\n{}", self.output()),
        };
        self.running()?.url.clone_from(&url);
        Ok(url)
    }

    /// Stops the server with a termination signal, and waits until it has ended.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended().await
    }

    /// Kills the server, as a power cut would.
    pub async fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.ended().await
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.process.as_ref().and_then(|process| process.child.id()).context("the server is not running")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("the id of the process is 0")?;
        kill_process(pid, signal).context("cannot send a signal to the server")
    }

    /// Waits until the process has ended and all its output is read.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let Process { mut child, readers, .. } = self.process.take().context("the server is not running")?;
        let Ok(status) = tokio::time::timeout(STOP_MAX, child.wait()).await else {
            child.kill().await?;
            bail!("the server did not end within {STOP_MAX:?}\n{}", self.output());
        };
        for reader in readers {
            reader.await?;
        }
        Ok(status?)
    }

    /// Restarts the server with the same folders, and waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        if self.process.is_some() {
            self.stop().await?;
        }
        self.launch().await
    }

    /// Runs another command of the same program, like an operator on the server's machine.
    pub async fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Result<Output> {
        self.prepared_command(arguments)?.output().await.context("cannot run monstrum")
    }

    /// Like [`Server::command`], but does not run the command, so that the caller can set its input and environment.
    pub fn prepared_command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Result<Command> {
        let mut command = self.monstrum()?;
        if let Some(process) = &self.process {
            command.env("MONSTRUM_URL", &process.url);
        }
        command.args(arguments);
        Ok(command)
    }

    /// Like [`Server::command`], but does not wait for the command. The caller waits for it or kills it.
    pub fn begin_command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Result<Child> {
        let mut command = self.monstrum()?;
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().context("cannot run monstrum")
    }

    /// Returns the API with the root key.
    pub fn api(&self) -> Result<Api> {
        let key = std::fs::read_to_string(self.key_file()).context("the server created no root key")?;
        let url = self.url().context("the server is not running")?;
        Api::new(url, key.trim())
    }

    /// Returns the server's URL while it runs.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.process.as_ref().map(|process| process.url.as_str())
    }

    /// Returns the id of the process while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref()?.child.id()
    }

    /// Returns the server's data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Returns the server's plugins folder.
    #[must_use]
    pub fn plugins_dir(&self) -> PathBuf {
        self.home.join("plugins")
    }

    /// Returns the file of the root key.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.data_dir().join("admin.key")
    }

    /// Returns the complete output of the process on both streams, over all its starts.
    #[must_use]
    pub fn output(&self) -> String {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Prepares `monstrum` with the folders and the environment of this server.
    fn monstrum(&self) -> Result<Command> {
        Ok(self.prepared(&self.build.program("monstrum")?))
    }

    /// Prepares a program with the folders and the environment of this server.
    fn prepared(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.home)
            .env_clear()
            .env("MONSTRUM_DATA_DIR", self.data_dir())
            .env("MONSTRUM_PLUGINS_DIR", self.plugins_dir())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            // Ctrl-C on the terminal must reach only this process, which then stops the server.
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    fn running(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("the server is not running")
    }

    /// Returns the folder that contains all folders of the server.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }
}

/// Records the output, and announces the URL when a line contains it.
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
