//! The launcher process of this server.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use crate::running::Sockets;
use crate::wire::Launch;
use crate::{control, launcher, sys, wire};

/// Starts the launcher for the first sandbox, and starts another launcher if the launcher has ended.
pub(super) struct Launching {
    program: PathBuf,
    current: Mutex<Option<Launcher>>,
}

impl Launching {
    /// Stores the program of the launcher without starting it. `None` selects the running program.
    pub(super) fn new(program: Option<PathBuf>) -> Launching {
        Launching { program: program.unwrap_or_else(|| "/proc/self/exe".into()), current: Mutex::default() }
    }

    /// Asks the launcher to start a sandbox.
    pub(super) async fn launch(&self, launch: &Launch, sockets: &Sockets) -> io::Result<()> {
        let mut current = self.current.lock().await;
        let descriptors: Vec<_> = sockets.launched.iter().map(AsFd::as_fd).collect();
        if let Some(launcher) = current.as_ref()
            && control::send(&launcher.socket, launch, &[], &descriptors).await.is_ok()
        {
            return Ok(());
        }
        let launcher = Launcher::start(&self.program)?;
        let sent = control::send(&launcher.socket, launch, &[], &descriptors).await;
        *current = Some(launcher);
        Ok(sent?)
    }
}

struct Launcher {
    socket: AsyncFd<OwnedFd>,
    /// The launcher process, which ends when the socket closes.
    _process: Child,
}

impl Launcher {
    fn start(program: &Path) -> io::Result<Launcher> {
        let (ours, theirs) = wire::pair()?;
        let process = Command::new(program)
            .arg0(launcher::ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Launcher { socket: sys::watched(ours)?, _process: process })
    }
}
