//! A database that another process holds: the standard library of Python knows SQLite, and is a process of its own.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Takes the lock and keeps it until its standard input ends.
const HOLD: &str = "
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
if sys.argv[2] == 'alone':
    database.execute('pragma locking_mode = exclusive')
database.execute('begin exclusive')
print('locked', flush=True)
sys.stdin.read()
";

/// The lock. It is given up when this is dropped.
pub(crate) struct Locked(Child);

impl Locked {
    /// Lets others read, as a transaction that writes does.
    pub(crate) async fn hold(database: &Path) -> Result<Locked> {
        Locked::start(database, "beside others").await
    }

    /// Locks all others out. The database must not be open anywhere.
    pub(crate) async fn hold_alone(database: &Path) -> Result<Locked> {
        Locked::start(database, "alone").await
    }

    async fn start(database: &Path, how: &str) -> Result<Locked> {
        let mut command = Command::new("python3");
        command.args(["-c", HOLD]).arg(database).arg(how);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot run python3")?;
        let stdout = child.stdout.take().context("it has a standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await?;
        ensure!(line.trim() == "locked", "the database could not be locked: {line}");
        Ok(Locked(child))
    }

    /// Gives it up, and waits until that is done.
    pub(crate) async fn release(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait().await?;
        ensure!(status.success(), "the process that held the lock: {status}");
        Ok(())
    }
}
