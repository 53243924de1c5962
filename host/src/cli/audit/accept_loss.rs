//! `monstrum audit accept-loss`: accepts a database that is older than its signed heads.

use std::process::ExitCode;
use std::sync::Arc;

use monstrum_types::{Clock, SystemClock};
use serde_json::json;

use super::super::failure::Failure;
use super::super::{FolderFlags, Options, folder, output};
use crate::boot::{Data, OfflineChange, OfflineError, recorded_with};
use monstrum_core::audit::{AcceptedLoss, HeadsError, Rollback, RollbackError, find_rollback};

/// The maximum length of a reason, enough for one or two sentences.
const REASON_CHARS_MAX: usize = 500;

/// An error while accepting the loss.
#[derive(Debug, thiserror::Error)]
enum AcceptError {
    #[error("the loss cannot be recorded")]
    Record(#[from] OfflineError),
    #[error("the heads cannot be replaced")]
    Replace(#[from] RollbackError),
    #[error("the new heads cannot be used")]
    Heads(#[from] HeadsError),
}

pub(super) async fn run(options: &Options, flags: FolderFlags, reason: String) -> Result<ExitCode, Failure> {
    let reason = reason.trim();
    if reason.is_empty() || reason.chars().count() > REASON_CHARS_MAX {
        let message = format!("--reason: expected 1 to {REASON_CHARS_MAX} characters");
        return Err(Failure::new(message, "explain in one or two sentences why you want to use the older database"));
    }
    let settings = options.settings(flags)?;
    let data = folder::open_of_any_age(&settings, "a server is using the data folder: stop the server first").await?;
    let done = accept(&data, reason).await;
    data.store.close().await;
    let (lost, kept) = done?;
    let lost: Vec<_> = lost.iter().map(ToString::to_string).collect();
    let kept = kept.display().to_string();
    if options.json {
        output::json(&json!({ "accepted": lost, "reason": reason, "superseded_heads": kept }))?;
    } else {
        for way in &lost {
            output::line(format!("accepted: {way}"))?;
        }
        output::note(&format!("the previous heads are kept in {}", output::plain(&kept)));
        output::hint(
            "API keys, credentials and permissions that were revoked after the backup are valid again: \
             revoke them again",
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn accept(data: &Data, reason: &str) -> Result<(Vec<Rollback>, std::path::PathBuf), Failure> {
    let disk = "check that the disk has free space and that this user may write to the data folder";
    let lost = find_rollback(&data.store, &data.audit_keys, &data.path).await;
    let lost = lost.map_err(|error| Failure::from_error(&error, disk))?;
    if lost.is_empty() {
        let message = "the database is not older than its signed heads, so there is no loss to accept";
        return Err(Failure::new(message, "start the server as usual"));
    }
    let kept = replace(data, &lost, reason).await;
    kept.map(|kept| (lost, kept)).map_err(|error| Failure::from_error(&error, disk))
}

/// Records the loss under new heads, then replaces the old heads with them.
async fn replace(data: &Data, lost: &[Rollback], reason: &str) -> Result<std::path::PathBuf, AcceptError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let accepted = AcceptedLoss::prepare(&data.store, &data.audit_keys, &data.path, clock.now()).await?;
    let lost: Vec<_> = lost.iter().map(ToString::to_string).collect();
    let change = OfflineChange {
        what: "audit.accept_loss",
        object: data.node.clone(),
        before: json!(null),
        after: json!({ "lost": lost, "reason": reason }),
    };
    // Raises the generations above the generations of the lost state. Otherwise, the server would accept the lost state
    // as newer if someone restored it later.
    let above = accepted.generation_above_loss();
    let raise = async { data.store.raise_generations(above).await.map_err(|error| AcceptError::Record(error.into())) };
    let is_raised = recorded_with(data, accepted.heads(&data.audit_keys)?, clock, change, raise).await?;
    if !is_raised {
        output::warning(
            "the instance is unverified, so a server would not reject the lost state if someone restored it; \
             destroy all copies of the lost state",
        );
    }
    Ok(accepted.put_in_place()?)
}
