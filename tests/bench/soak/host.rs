//! The server of a soak test with retention. It serves like `monstrum serve`, and archives rows of the audit after
//! seconds, because the shortest period of `--audit-keep` is a day.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use monstrum_core::app::App;
use monstrum_host::boot::{self, archive_online};
use monstrum_host::config::{ServeFlags, Settings};
use monstrum_host::telemetry;
use tokio::signal::unix::{SignalKind, signal};

/// The name of the subcommand.
pub const COMMAND: &str = "archiving-host";
/// The number of runs of the archive in the period that rows are kept.
const RUNS_A_PERIOD: u32 = 4;

/// Serves, and archives old rows of the audit every few seconds.
#[derive(Args)]
pub struct ArchivingHost {
    #[command(flatten)]
    flags: ServeFlags,
    /// How long rows of the audit stay in the database, in seconds
    #[arg(long)]
    keep_s: u32,
}

impl ArchivingHost {
    /// Serves until SIGTERM, or until rows cannot be archived.
    pub async fn serve(self) -> Result<()> {
        let folder = std::env::current_dir().context("cannot find the working directory")?;
        let settings = Settings::resolve(self.flags, &folder)?;
        let telemetry = telemetry::install(&settings)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let running = boot::start(settings).await?;
        println!("listening on http://{}", running.address);
        let keep = Duration::from_secs(self.keep_s.into());
        let stop = running.stop_handle();
        let archived = tokio::select! {
            _ = terminate.recv() => Ok(()),
            failed = archive_repeatedly(&running.app, keep) => failed,
        };
        stop.cancel();
        running.stopped().await;
        telemetry.flush().await;
        archived
    }
}

/// Archives rows that are older than `keep` until this fails.
async fn archive_repeatedly(app: &App, keep: Duration) -> Result<()> {
    let mut tick = tokio::time::interval(keep / RUNS_A_PERIOD);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    loop {
        tick.tick().await;
        let before = app.clock.now().plus_ms(-keep_ms);
        archive_online(app, before).await.context("cannot archive the audit")?;
    }
}
