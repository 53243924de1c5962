//! `monstrum serve`: starts the server, prints its address, and stops it on a signal.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Args;
use monstrum_store::StoreError;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::{Options, folder, output, resolve};
use crate::boot::{self, ADMIN_KEY_FILE, BootError, DataError};
use crate::config::{LogFormat, ServeFlags, Settings};
use crate::telemetry::{self, TelemetryError};

/// The exit code of an interrupted process, by the convention of shells: 128 plus the number of SIGINT.
const INTERRUPTED: i32 = 130;

const EXAMPLES: &str = "\
Examples:
  monstrum serve                                     from ./data, on 127.0.0.1:8080
  monstrum serve --listen 127.0.0.1:0                on a free port; the line on standard output names it
  monstrum serve --data-dir /srv/monstrum --plugins-dir /srv/plugins
  MONSTRUM_LOG=debug monstrum serve --json           log lines as JSON

Every flag can also be given as MONSTRUM_… or in ./monstrum.toml, in that order of precedence.
The first start writes a root key to DATA/admin.key. Ctrl-C ends the server when its calls have ended; a second one at once.";

/// Run the server
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) flags: ServeFlags,
}

impl Serve {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let mut flags = self.flags;
        if options.json {
            flags.log_format = flags.log_format.or(Some(LogFormat::Json));
        }
        let settings = resolve(flags)?;
        let telemetry =
            telemetry::install(&settings).map_err(|error| Failure::from_error(&error, telemetry_hint(&error)))?;
        let signals = Signals::new()?;
        let running = boot::start(settings.clone()).await.map_err(|error| failure(&error, &settings))?;
        if let Some(key) = &running.admin_key {
            let path = settings.data_dir.join(ADMIN_KEY_FILE);
            if std::io::stderr().is_terminal() {
                output::note(&format!("root key: {}", key.expose()));
            }
            output::note(&format!("the root key is in {}", output::plain(&path.display().to_string())));
        }
        output::line(format!("listening on http://{}", running.address))?;
        let obey = tokio::spawn(signals.obey(running.stop_handle()));
        running.stopped().await;
        telemetry.flush().await;
        obey.abort();
        Ok(ExitCode::SUCCESS)
    }
}

/// The hint for an error that the settings did not cause.
const SEE_MORE: &str = "run it again with --log debug to see more";

fn telemetry_hint(error: &TelemetryError) -> &'static str {
    match error {
        TelemetryError::Filter { .. } => "give --log like info or monstrum=debug,info",
        #[cfg(not(feature = "otel"))]
        TelemetryError::NotBuilt => "build it with `--features otel`, or leave --otlp-endpoint out",
        #[cfg(feature = "otel")]
        TelemetryError::Export { .. } => "give --otlp-endpoint like http://127.0.0.1:4318",
    }
}

/// The signals that stop a server.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::of("cannot wait for signals", &error, "raise the limit on open files (ulimit -n)")
            })
        };
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Stops the server on the first signal, after the calls in flight. The second signal ends the process immediately.
    async fn obey(mut self, stop: CancellationToken) {
        self.next().await;
        stop.cancel();
        output::note("stopping when the calls in flight have ended; once more to stop at once");
        self.next().await;
        std::process::exit(INTERRUPTED);
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn failure(error: &BootError, settings: &Settings) -> Failure {
    let data = settings.data_dir.display();
    let hint = match error {
        BootError::Data(DataError::InUse { .. }) => {
            "stop the other server first, or give this one a folder of its own with --data-dir".to_owned()
        }
        BootError::Data(DataError::Folder { .. } | DataError::Write { .. }) => {
            format!(
                "the user who runs the server must own {data}, with room on its disk; --data-dir names another folder"
            )
        }
        BootError::Data(DataError::Store(error)) | BootError::Store(error) => database_hint(error, settings),
        BootError::Plugins(_) | BootError::CreatePlugins { .. } => {
            format!("--plugins-dir names the folder of the plugins; it is now {}", settings.plugins_dir.display())
        }
        BootError::Listen { .. } => "--listen names another address; port 0 takes a free one".to_owned(),
        BootError::Data(error) => folder::keys_hint(error).unwrap_or(SEE_MORE).to_owned(),
        BootError::Runtime(_) | BootError::Heads(_) => SEE_MORE.to_owned(),
    };
    Failure::from_error(error, hint)
}

fn database_hint(error: &StoreError, settings: &Settings) -> String {
    let data = settings.data_dir.display();
    match error {
        StoreError::UnknownScheme { .. } | StoreError::Address { .. } => {
            format!("leave --database-url out for the database in {data}")
        }
        StoreError::Corrupt { .. } => {
            "put back the database of your backup, or give another folder with --data-dir".to_owned()
        }
        StoreError::Newer { .. } => "run the version that has written it, or a later one".to_owned(),
        _ if settings.database_url.is_some() => super::DATABASE_HINT.to_owned(),
        _ => format!("does another program use the database in {data}? is the disk full?"),
    }
}
