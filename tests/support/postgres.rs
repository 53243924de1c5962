//! A PostgreSQL server for the tests: a real server in a temporary folder, accessed through a socket in that folder.
//!
//! The server ends with the process that started it, even after a crash: a shell runs the server and waits on a pipe
//! that closes with this process. (A signal on the parent's death would arrive at the end of a thread, and each test is
//! a thread.)

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The maximum start time, including recovery after a crash, on a machine that may be busy.
const START_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// The port number in the name of the socket. Two servers can have the same number, because each has its own folder for
/// the socket.
const SOCKET_PORT: u16 = 5432;
const USER: &str = "postgres";
/// The user's password for TCP connections. It contains every character with a meaning in a URL.
const PASSWORD: &str = "pass/wo:rd@?#%";

/// Runs the server until the other end of the input closes. Then removes the given folder, if any.
const KEEPER: &str = r#"
program="$1" folder="$2" remove="$3"
shift 3
"$program" -D "$folder" "$@" >>"$folder.log" 2>&1 </dev/null &
cat >/dev/null
kill -QUIT $! 2>/dev/null
wait $!
if [ -n "$remove" ]; then rm -rf "$remove"; fi
"#;

/// A server. Dropping the value stops it and removes its folder.
pub struct Postgres {
    keeper: Option<Child>,
    folder: PathBuf,
    programs: PathBuf,
    settings: Vec<String>,
    port: u16,
    removed_by_keeper: bool,
    /// The temporary folder. It is the last field, so that the folder is removed after the server has ended.
    _home: Option<TempDir>,
}

impl Postgres {
    /// Starts a new server with these settings, such as `fsync=off`.
    pub fn start(settings: &[&str]) -> Result<Postgres> {
        let home = home()?;
        let mut server = Postgres::create(home.path(), settings)?;
        server._home = Some(home);
        server.launch()?;
        Ok(server)
    }

    /// Starts a new server that also accepts TCP connections, with a password.
    pub fn on_tcp(settings: &[&str]) -> Result<Postgres> {
        let home = home()?;
        let mut server = Postgres::create(home.path(), settings)?;
        server._home = Some(home);
        server.port = free_port()?;
        server.settings.push("listen_addresses=127.0.0.1".to_owned());
        server.launch()?;
        Ok(server)
    }

    /// Starts a new server for a `static`, which is never dropped. Its folder is removed when the process ends.
    pub fn for_all(settings: &[&str]) -> Result<Postgres> {
        let home = home()?.keep();
        let mut server = Postgres::create(&home, settings)?;
        server.removed_by_keeper = true;
        server.launch()?;
        Ok(server)
    }

    fn create(home: &Path, settings: &[&str]) -> Result<Postgres> {
        let server = Postgres {
            keeper: None,
            folder: home.join("data"),
            programs: programs()?,
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
            port: SOCKET_PORT,
            removed_by_keeper: false,
            _home: None,
        };
        let password = home.join("password");
        fs::write(&password, PASSWORD)?;
        hand_over(&password)?;
        let mut initdb = server.program("initdb")?;
        initdb.arg("--pgdata").arg(&server.folder).arg("--pwfile").arg(&password).args([
            "--username",
            USER,
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]);
        let output = initdb.output().context("cannot run initdb")?;
        ensure!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        Ok(server)
    }

    /// Starts the server again, and waits until it accepts connections. Over TCP, it uses another port if its port is
    /// no longer free.
    pub fn launch(&mut self) -> Result<()> {
        let until = Instant::now() + START_MAX;
        let mut seen = self.log().len();
        self.spawn()?;
        while !self.psql("postgres", "select 1")?.status.success() {
            ensure!(Instant::now() < until, "PostgreSQL did not start within {START_MAX:?}: {}", self.log());
            std::thread::sleep(POLL);
            let log = self.log();
            let new = log.get(seen..).unwrap_or_default();
            let is_taken = self.port != SOCKET_PORT && new.contains("could not bind");
            if is_taken {
                self.port = free_port()?;
            }
            // After a server was killed, some of its processes may still be ending, which prevents the next start.
            if is_taken || new.contains("pre-existing shared memory block") {
                seen = log.len();
                self.spawn()?;
            }
        }
        Ok(())
    }

    fn spawn(&mut self) -> Result<()> {
        self.release();
        let mut keeper = self.program_as_owner("sh")?;
        keeper.args(["-c", KEEPER, "keeper"]).arg(self.programs.join("postgres")).arg(&self.folder);
        keeper.arg(if self.removed_by_keeper { self.home() } else { Path::new("") });
        let socket = format!("unix_socket_directories={}", self.home().display());
        let port = format!("port={}", self.port);
        for setting in ["listen_addresses=", &socket, &port].into_iter().chain(self.settings.iter().map(String::as_str))
        {
            keeper.args(["-c", setting]);
        }
        // Ctrl-C on the terminal must reach only this process. The keeper stops the server when this process ends.
        keeper.stdin(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        self.keeper = Some(keeper.spawn().context("cannot run sh")?);
        Ok(())
    }

    /// Stops the server. Does not wait for its clients to disconnect.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::INT)?;
        let until = Instant::now() + START_MAX;
        while self.pid().is_some() {
            ensure!(Instant::now() < until, "PostgreSQL did not stop: {}", self.log());
            std::thread::sleep(POLL);
        }
        self.release();
        Ok(())
    }

    /// Kills the server's main process. The server's other processes detect this and end, and write nothing more.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    /// Sends a signal to the server's main process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().context("PostgreSQL is not running")?;
        kill_process(Pid::from_raw(pid).context("the id of the process is 0")?, signal)?;
        Ok(())
    }

    fn pid(&self) -> Option<i32> {
        let file = fs::read_to_string(self.folder.join("postmaster.pid")).ok()?;
        file.lines().next()?.parse().ok()
    }

    /// Closes the keeper's input, so that the keeper stops the server, and waits until both have ended.
    fn release(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            drop(keeper.wait());
        }
    }

    /// Creates an empty database with a natural sort order for texts. Returns its address through the socket.
    pub fn database(&self) -> Result<String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("monstrum_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let sql = format!("create database {name} template template0 locale_provider icu icu_locale 'en-US'");
        self.sql("postgres", &sql)?;
        Ok(self.url(&name))
    }

    /// Returns the address of a database through the socket.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&port={}&user={USER}", self.home().display(), self.port)
    }

    /// Returns the address of a database over TCP, including the password.
    #[must_use]
    pub fn tcp_url(&self, database: &str) -> String {
        let password = PASSWORD.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        format!("postgres://{USER}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.home().join(format!(".s.PGSQL.{}", self.port))
    }

    /// Returns the port of the server on 127.0.0.1, if the server accepts TCP connections.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the password, which must not leak anywhere.
    #[must_use]
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// Returns the folder of PostgreSQL's programs, such as `pg_dump`.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Runs SQL like another program, and returns the result with one line per row.
    pub fn sql(&self, database: &str, sql: &str) -> Result<String> {
        let output = self.psql(database, sql)?;
        ensure!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }

    fn psql(&self, database: &str, sql: &str) -> Result<std::process::Output> {
        let mut psql = self.program("psql")?;
        psql.arg("--host").arg(self.home()).arg("--port").arg(self.port.to_string());
        psql.args(["--username", USER, "--dbname", database]);
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", "--command", sql]);
        psql.output().context("cannot run psql")
    }

    /// Returns the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.with_extension("log")).unwrap_or_default()
    }

    /// Returns the folder that contains the socket, and that the server may write to.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.folder.parent().expect("the data lie in a folder")
    }

    fn program(&self, name: &str) -> Result<Command> {
        self.program_as_owner(self.programs().join(name))
    }

    /// Prepares a program that runs as the owner of the folder, because PostgreSQL refuses to run as root.
    fn program_as_owner(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let mut command = Command::new(program);
        command.current_dir(self.home()).stdin(Stdio::null());
        if let Some((user, group)) = owner()? {
            command.uid(user).gid(group);
        }
        Ok(command)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.release();
    }
}

/// Returns a port of 127.0.0.1 that is currently free.
fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn home() -> Result<TempDir> {
    let home = tempfile::Builder::new().prefix("postgres-").tempdir().context("cannot create a temporary folder")?;
    hand_over(home.path())?;
    Ok(home)
}

/// Changes the owner of a file to the user that runs the server.
pub(crate) fn hand_over(path: &Path) -> Result<()> {
    if let Some((user, group)) = owner()? {
        std::os::unix::fs::chown(path, Some(user), Some(group))?;
    }
    Ok(())
}

/// Returns the user and the group that run the server, if they differ from the user and the group of this process.
fn owner() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let id = |what| -> Result<u32> {
        let output = Command::new("id").args([what, USER]).output().context("cannot run id")?;
        let text = String::from_utf8(output.stdout)?;
        text.trim().parse().context(
            "the user `postgres` does not exist; install the PostgreSQL package, which creates it: cargo xtask test",
        )
    };
    Ok(Some((id("-u")?, id("-g")?)))
}

/// Returns the folder of the newest installed version's programs.
fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    match newest.max() {
        Some((_, programs)) => Ok(programs),
        None => bail!("PostgreSQL is not installed; run: cargo xtask test"),
    }
}
