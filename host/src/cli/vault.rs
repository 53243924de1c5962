//! `monstrum vault`: rotates the master key and the row key, and seals the rows of the database.

mod row_key;
mod seal;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::failure::Failure;
use super::{FolderFlags, Options, folder, output};
use crate::boot::connections_of_servers;
use crate::boot::rotation::{self, Report, RotationError, Step};
use crate::config::MasterKeyPlace;

const ROTATE_EXAMPLES: &str = "\
Examples:
  monstrum vault rotate                                 for ./data; the server must be stopped
  monstrum vault rotate --data-dir /srv/monstrum --json
  monstrum vault rotate --prune                         later: remove keys that are no longer needed
  monstrum vault rotate --add-only                      for hosts that share a database: then copy the file to all
  monstrum vault rotate --row-key                       after a suspected leak: authenticate every row again

The command adds a new key to the master key file and encrypts every record of the database again with the new key. You
can interrupt the command at any moment; run it again to continue. The older keys stay in the file, because an
interrupted run and older backups need them. --prune adds no key: it encrypts the remaining records, checks that every
record can be decrypted with the newest key, and then removes the older keys. Backups from before the rotation then
require a copy of the older keys.

--row-key does not change the master key. It creates a new row key, which authenticates the rows that grant
permissions, verifies each workspace and writes its rows again. You can interrupt the command at any moment, but no
server starts until another run has finished the rotation. The command rejects a workspace whose rows cannot be
verified. After a leak of the master key, run `monstrum vault rotate` first, then --row-key, then --prune.";

/// Manage the master key and the seals of the database
#[derive(Subcommand)]
pub(super) enum Vault {
    /// Encrypt every secret again with a new master key; the server must be stopped
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate(Rotate),
    /// Review and seal the rows that grant permissions; the server must be stopped
    #[command(after_help = seal::EXAMPLES)]
    Seal(seal::Seal),
}

#[derive(Args)]
pub(super) struct Rotate {
    /// Only add the key to the file; do not encrypt records with it yet
    #[arg(long, conflicts_with = "prune")]
    add_only: bool,
    /// Add no key; remove the older keys after every record was decrypted with the newest key
    #[arg(long)]
    prune: bool,
    /// Rotate the row key instead: verify every row with a MAC and write it again
    #[arg(long, conflicts_with_all = ["prune", "add_only"])]
    row_key: bool,
    #[command(flatten)]
    folder: FolderFlags,
}

impl Vault {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        match self {
            Vault::Rotate(rotate) => rotate.run(options).await,
            Vault::Seal(seal) => seal.run(options).await,
        }
    }
}

impl Rotate {
    async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        if self.row_key {
            return row_key::run(options, self.folder).await;
        }
        let step = match (self.add_only, self.prune) {
            (true, _) => Step::AddOnly,
            (_, true) => Step::Prune,
            _ => Step::Rotate,
        };
        let settings = options.settings(self.folder)?;
        // The connections are counted before the database is opened. Otherwise, the count would include this process.
        let servers = connections_of_servers(&settings).await;
        let data =
            folder::open(&settings, "stop the server first; a running server would continue to use the old keys")
                .await?;
        let has_others = servers.map_err(|error| Failure::from_error(&error, super::DATABASE_HINT))? > 0;
        let bar = output::progress(Some(0), "{wide_bar} {pos}/{len} records");
        let progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let rotated = rotation::run(&data, &settings.master_key, step, has_others, &progress).await;
        bar.finish_and_clear();
        data.store.close().await;
        let report = rotated.map_err(|error| failure(&error))?;
        if options.json {
            output::json(&json!(report))?;
        } else {
            tell(&report, step, &settings.master_key)?;
        }
        for record in &report.unreadable {
            let key = record.key.join(" ");
            output::warning(&format!("a record of {} ({key}) cannot be decrypted: {}", record.table, record.why));
        }
        if report.unreadable.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let hint = "save those credentials again, wait a day until stored responses have expired, \
                    and run this command with --prune";
        output::hint(hint);
        Ok(ExitCode::FAILURE)
    }
}

fn tell(report: &Report, step: Step, place: &MasterKeyPlace) -> Result<(), Failure> {
    let Report { key_version, records, resealed, .. } = report;
    if report.added {
        output::line(format!("added key version {key_version} to {place}"))?;
    } else if step == Step::Rotate {
        output::line(format!(
            "finished an earlier rotation, so no key was added; the newest key of {place} has version {key_version}"
        ))?;
    }
    if step == Step::AddOnly {
        output::note(
            "copy the file to every host that uses this database, start the hosts, and run `monstrum vault rotate`",
        );
        return Ok(());
    }
    output::line(format!("re-encrypted {resealed} of {records} records with key version {key_version}"))?;
    let list = |versions: &[u32]| versions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (step, place) {
        (Step::Prune, _) if report.removed.is_empty() => output::line("no older keys to remove")?,
        (Step::Prune, MasterKeyPlace::File(_)) => {
            output::line(format!("removed from {place}: version {}", list(&report.removed)))?;
        }
        (Step::Prune, MasterKeyPlace::Variable(_)) => {
            output::line(format!("these key versions of {place} are no longer needed: {}", list(&report.removed)))?;
        }
        (_, MasterKeyPlace::File(_)) => {
            output::note(&format!(
                "back up {place} now; later, run this command with --prune to remove the older keys"
            ));
        }
        (_, MasterKeyPlace::Variable(_)) => {
            output::note("run this command with --prune to list the keys of the variable that are no longer needed");
        }
    }
    Ok(())
}

fn failure(error: &RotationError) -> Failure {
    let hint = match error {
        RotationError::Variable { next_version, .. } => format!(
            "add a line to the variable, separated by a comma: `{next_version} $(openssl rand -hex 32)`; then run this \
             command again, and start the server with the same value"
        ),
        RotationError::OtherServers => {
            "stop the servers and run this command again; or run `monstrum vault rotate --add-only`, copy the file to \
             every server, restart the servers, and run this command again"
                .to_owned()
        }
        RotationError::Unfinished { .. } => "run `monstrum vault rotate` to finish the interrupted rotation".to_owned(),
        RotationError::Unreadable { first, .. } => format!(
            "the first record is in {} ({}): {}; save that credential again or delete it, and run this command again",
            first.table,
            output::plain(&first.key.join(" ")),
            first.why
        ),
        RotationError::Vault(_) => {
            "check the free disk space, and that this user may write to the key file and its folder".to_owned()
        }
        RotationError::Store(_) => "nothing is lost; run the command again when the database is available".to_owned(),
    };
    Failure::from_error(error, hint)
}
