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
  monstrum serve                                     use ./data, listen on 127.0.0.1:8080
  monstrum serve --listen 127.0.0.1:0                listen on a free port, which is printed to standard output
  monstrum serve --data-dir /srv/monstrum --plugins-dir /srv/plugins
  MONSTRUM_LOG=debug monstrum serve --json           write log lines as JSON

Every flag can also be set as a variable MONSTRUM_… or in ./monstrum.toml. A flag takes precedence over its variable,
and the variable over the file.
The first start writes a root key to DATA/admin.key. Ctrl-C stops the server after its running calls; a second Ctrl-C
stops it immediately.";

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
const SEE_MORE: &str = "run the command again with --log debug for details";

fn telemetry_hint(error: &TelemetryError) -> &'static str {
    match error {
        TelemetryError::Filter { .. } => "set --log to a filter such as info or monstrum=debug,info",
        #[cfg(not(feature = "otel"))]
        TelemetryError::NotBuilt => "build monstrum with `--features otel`, or omit --otlp-endpoint",
        #[cfg(feature = "otel")]
        TelemetryError::Export { .. } => "set --otlp-endpoint to a URL such as http://127.0.0.1:4318",
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
                Failure::of("cannot install the signal handlers", &error, "raise the limit on open files (ulimit -n)")
            })
        };
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Stops the server on the first signal, after the running calls. The second signal ends the process immediately.
    async fn obey(mut self, stop: CancellationToken) {
        self.next().await;
        stop.cancel();
        output::note("stopping after the running calls; press Ctrl-C again to stop immediately");
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
            "stop the other server first, or use another data folder with --data-dir".to_owned()
        }
        BootError::Data(DataError::Folder { .. } | DataError::Write { .. }) => {
            format!("check that the server's user owns {data} and that its disk has free space, or use --data-dir")
        }
        BootError::Data(DataError::Store(error)) | BootError::Store(error) => database_hint(error, settings),
        BootError::Plugins(_) | BootError::CreatePlugins { .. } => {
            format!("check the plugins folder {}, or set --plugins-dir", settings.plugins_dir.display())
        }
        BootError::Listen { .. } => "set --listen to another address; port 0 selects a free port".to_owned(),
        BootError::Data(error) => folder::keys_hint(error).unwrap_or(SEE_MORE).to_owned(),
        BootError::Runtime(_) | BootError::Heads(_) | BootError::Vault(_) => SEE_MORE.to_owned(),
    };
    Failure::from_error(error, hint)
}

fn database_hint(error: &StoreError, settings: &Settings) -> String {
    let data = settings.data_dir.display();
    match error {
        StoreError::UnknownScheme { .. } | StoreError::Address { .. } => {
            format!("omit --database-url to use the database in {data}")
        }
        StoreError::Corrupt { .. } => {
            "restore the database from a backup, or use another data folder with --data-dir".to_owned()
        }
        StoreError::Newer { .. } => {
            "use the version of monstrum that wrote the database, or a later version".to_owned()
        }
        _ if settings.database_url.is_some() => super::DATABASE_HINT.to_owned(),
        _ => format!("check that no other program uses the database in {data} and that the disk has free space"),
    }
}
