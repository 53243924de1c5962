//! A database that another process locks. The process is Python, whose standard library includes SQLite.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// The program, which takes the lock and keeps it until the standard input ends.
const HOLD: &str = "
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
if sys.argv[2] == 'alone':
    database.execute('pragma locking_mode = exclusive')
database.execute('begin exclusive')
print('locked', flush=True)
sys.stdin.read()
";

/// A held lock. Dropping the value releases it.
pub(crate) struct Locked(Child);

impl Locked {
    /// Takes the lock of a transaction that writes. Other processes can still read.
    pub(crate) async fn hold(database: &Path) -> Result<Locked> {
        Locked::start(database, "beside others").await
    }

    /// Takes an exclusive lock. The database must not be open anywhere.
    pub(crate) async fn hold_alone(database: &Path) -> Result<Locked> {
        Locked::start(database, "alone").await
    }

    async fn start(database: &Path, how: &str) -> Result<Locked> {
        let mut command = Command::new("python3");
        command.args(["-c", HOLD]).arg(database).arg(how);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot run python3")?;
        let stdout = child.stdout.take().context("the process has no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await?;
        ensure!(line.trim() == "locked", "the database could not be locked: {line}");
        Ok(Locked(child))
    }

    /// Releases the lock, and waits until it is released.
    pub(crate) async fn release(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait().await?;
        ensure!(status.success(), "the process that held the lock ended with {status}");
        Ok(())
    }
}
