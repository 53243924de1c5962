//! `monstrum vault`: rotates the master key and the row key, and seals the rows of the database.

mod row_key;
mod seal;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::failure::Failure;
use super::{FolderFlags, Options, folder, output};
use crate::boot::connections_of_servers;
use crate::boot::rotation::{self, Report, RotationError, Step};
use crate::config::MasterKeyPlace;

const ROTATE_EXAMPLES: &str = "\
Examples:
  monstrum vault rotate                                 of ./data, whose server is stopped
  monstrum vault rotate --data-dir /srv/monstrum --json
  monstrum vault rotate --prune                         later: remove the keys that nothing needs any more
  monstrum vault rotate --add-only                      hosts that share a database: copy the file to all, then rotate
  monstrum vault rotate --row-key                       after a suspected leak: authenticate every row anew

It adds a fresh key to the file of the master keys and seals every record of the database anew with it. It can be interrupted
at any moment: run it again, and it goes on. The older keys stay in the file, for an interrupted run and for backups of before need
them. --prune adds no key: it seals what is left, sees that every record opens with the newest key, and only then removes the
others. Backups from before the rotation open with a copy of the older keys only.

--row-key leaves the master key as it is. It makes a fresh row key, which authenticates the rows that permit something, verifies
each workspace and writes its rows anew. It can be interrupted at any moment: no server starts until it has been run
again and is finished. A workspace whose rows are not verified is refused. After a leak of the master key run
`monstrum vault rotate` first, then --row-key, then --prune.";

/// Look after the master key and the seals of the database
#[derive(Subcommand)]
pub(super) enum Vault {
    /// Seal every secret anew with a fresh master key; the server must be stopped
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate(Rotate),
    /// Seal the rows that permit something, after a look at them; the server must be stopped
    #[command(after_help = seal::EXAMPLES)]
    Seal(seal::Seal),
}

#[derive(Args)]
pub(super) struct Rotate {
    /// Only add the key to the file; seal nothing with it yet
    #[arg(long, conflicts_with = "prune")]
    add_only: bool,
    /// Add no key; remove the older ones, once every record has opened with the newest
    #[arg(long)]
    prune: bool,
    /// Replace the row key instead: verify every row that carries a MAC, and write it anew
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
        // This comes before the database is opened, because this process's own connections would count afterwards.
        let servers = connections_of_servers(&settings).await;
        let data =
            folder::open(&settings, "stop the server first: it would go on with the keys that it has read").await?;
        let has_others = servers.map_err(|error| Failure::from_error(&error, super::DATABASE_HINT))? > 0;
        let bar = bar("records");
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
            output::warning(&format!("a record of {} ({key}) does not open: {}", record.table, record.why));
        }
        if report.unreadable.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let hint = "save those credentials anew, and answers are forgotten after a day; --prune waits for that";
        output::hint(hint);
        Ok(ExitCode::FAILURE)
    }
}

/// Creates a progress bar, which is shown only on a terminal.
fn bar(of: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = format!("{{wide_bar}} {{pos}}/{{len}} {of}");
    bar.set_style(ProgressStyle::with_template(&template).expect("the template is well formed"));
    bar
}

fn tell(report: &Report, step: Step, place: &MasterKeyPlace) -> Result<(), Failure> {
    let Report { key_version, records, resealed, .. } = report;
    if report.added {
        output::line(format!("{place} has a fresh key, version {key_version}"))?;
    } else if step == Step::Rotate {
        output::line(format!(
            "records of an older key were left, so no key was added; the newest of {place} has version {key_version}"
        ))?;
    }
    if step == Step::AddOnly {
        output::note("copy the file to every host of this database and start them; then run `monstrum vault rotate`");
        return Ok(());
    }
    output::line(format!("{resealed} of {records} sealed records are sealed anew with version {key_version}"))?;
    let list = |versions: &[u32]| versions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (step, place) {
        (Step::Prune, _) if report.removed.is_empty() => output::line("there were no older keys to remove")?,
        (Step::Prune, MasterKeyPlace::File(_)) => {
            output::line(format!("removed from {place}: version {}", list(&report.removed)))?;
        }
        (Step::Prune, MasterKeyPlace::Variable(_)) => {
            output::line(format!("{place} needs these versions no more: {}", list(&report.removed)))?;
        }
        (_, MasterKeyPlace::File(_)) => {
            output::note(&format!("make a backup of {place} now; `--prune` removes its older keys"));
        }
        (_, MasterKeyPlace::Variable(_)) => {
            output::note("`--prune` tells which keys of the variable are needed no more");
        }
    }
    Ok(())
}

fn failure(error: &RotationError) -> Failure {
    let hint = match error {
        RotationError::Variable { next_version, .. } => format!(
            "add a line to it, divided by a comma: `{next_version} $(openssl rand -hex 32)`; then run this again, and start \
             the server with the same text"
        ),
        RotationError::OtherServers => {
            "stop them, or give them the key first: `monstrum vault rotate --add-only`, copy the file \
             to all of them, start them anew, and run this again"
                .to_owned()
        }
        RotationError::Unfinished { .. } => {
            "an earlier rotation was interrupted: `monstrum vault rotate` finishes it".to_owned()
        }
        RotationError::Unreadable { first, .. } => format!(
            "the first is in {} ({}): {}; save that credential anew or delete it, and run this again",
            first.table,
            output::plain(&first.key.join(" ")),
            first.why
        ),
        RotationError::Vault(_) => "is there room on the disk? may this user write the file and its folder?".to_owned(),
        RotationError::Store(_) => "nothing is lost: run it again when the database can be used".to_owned(),
    };
    Failure::from_error(error, hint)
}
