//! Finds sandboxes without files, and files without a sandbox. Both occur if only the database or only the files are
//! restored from a backup.

use std::collections::BTreeMap;

use monstrum_sandbox::SandboxName;
use monstrum_store::{SandboxRow, SandboxStatus, StoreError};
use monstrum_types::WorkspaceId;

use super::Findings;
use crate::boot::{Inspected, KeptImages, NODE_FILE, SANDBOX_FOLDER, kept_images};
use crate::config::Settings;
use monstrum_core::sandboxes::{ASIDE_KEPT_MS, Kept, Options};

/// The number of rows in one query.
const ROWS: u32 = 500;
/// The maximum number of sandboxes that one finding names, so that the report stays short.
const NAMED_MAX: usize = 5;
/// The name, in the database, of the provider whose files are in the data folder.
const PROVIDER: &str = "embedded";

/// Reports sandboxes whose files are missing, and files without a sandbox.
pub(super) async fn check(found: &mut Findings, settings: &Settings, data: &Inspected) -> Result<(), StoreError> {
    let folder = data.path.join(SANDBOX_FOLDER);
    // Files are listed before rows, because a deletion removes the files of a sandbox before its row.
    let kept = match kept_images(&folder) {
        Ok(kept) => kept,
        Err(error) => {
            let remedy = "run doctor as the user who runs the server";
            found.broken(folder.display().to_string(), format!("the folder cannot be read: {error}"), remedy);
            return Ok(());
        }
    };
    check_kept(found, &settings.sandboxes.options, data, &kept).await?;
    // If this file does not exist, no server has used the folder yet.
    let Ok(node) = std::fs::read_to_string(data.path.join(NODE_FILE)) else { return Ok(()) };
    let mut lost = Vec::new();
    let mut from = None;
    loop {
        let rows = data.store.sandboxes_of_node(node.trim(), from, ROWS).await?;
        let Some(last) = rows.last() else { break };
        from = Some(last.id);
        lost.extend(rows.iter().filter(|row| is_lost(row, &kept)).map(|row| row.id.to_string()));
    }
    if !lost.is_empty() {
        let what = format!(
            "the files of {} are missing in {} and cannot be recreated: {}",
            count(lost.len()),
            folder.display(),
            some(&lost)
        );
        let remedy = "restore the folder from the backup of this database and start the server, or delete each \
                      sandbox: DELETE /api/sandboxes/{id}";
        found.broken("sandboxes", what, remedy);
    }
    if let Some(oldest) = kept.aside.iter().map(|kept| kept.since).min() {
        let paths: Vec<String> = kept.aside.iter().map(|kept| kept.path.display().to_string()).collect();
        let what = format!(
            "the database does not list {}, so their files are kept aside; the oldest will be deleted on {}: {}",
            count(paths.len()),
            String::from(oldest.plus_ms(ASIDE_KEPT_MS)),
            some(&paths)
        );
        let remedy = "if the database is older than the sandboxes, restore the database that belongs to the \
                      sandboxes, and the next start restores the files; otherwise, no action is needed";
        found.weak("sandboxes", what, remedy);
    }
    Ok(())
}

/// Reports workspaces that have reached their limit of kept sandboxes.
async fn check_kept(
    found: &mut Findings,
    options: &Options,
    data: &Inspected,
    images: &KeptImages,
) -> Result<(), StoreError> {
    let mut workspaces: BTreeMap<WorkspaceId, Kept> = BTreeMap::new();
    for (workspace, sandboxes) in data.store.workspaces_with_sandboxes(1).await? {
        workspaces.insert(workspace, Kept { sandboxes, bytes: 0 });
    }
    for (name, bytes) in &images.images {
        let workspace = name.workspace().and_then(|workspace| workspace.parse().ok());
        if let Some(kept) = workspace.and_then(|workspace| workspaces.get_mut(&workspace)) {
            kept.bytes += bytes;
        }
    }
    for (workspace, kept) in workspaces {
        let Some(words) = kept.refusal(options) else { continue };
        let name = data.store.workspace(workspace).await?.map_or_else(|| workspace.to_string(), |row| row.name);
        let remedy =
            "delete sandboxes (DELETE /api/chats/{chat_id}?app_id= or DELETE /api/sandboxes/{id}), or raise the limit";
        found.weak(format!("workspace {name}"), format!("no new sandboxes can be created: {words}"), remedy);
    }
    Ok(())
}

/// Returns whether a sandbox has run but has no files: neither an image nor files kept aside, which the next start
/// would restore. Returns `false` for a sandbox of another provider and for a sandbox that is being deleted.
fn is_lost(row: &SandboxRow, kept: &KeptImages) -> bool {
    if row.provider != PROVIDER || row.limit.is_none() || row.status == SandboxStatus::Deleting {
        return false;
    }
    let name = SandboxName::new(row.workspace_id, &row.sandbox_id);
    let is_kept = kept.images.iter().any(|(kept, _)| *kept == name)
        || kept.aside.iter().any(|kept| kept.name == name.as_str() && kept.since >= row.created_at);
    !is_kept
}

fn count(sandboxes: usize) -> String {
    format!("{sandboxes} sandbox{}", if sandboxes == 1 { "" } else { "es" })
}

/// Joins the first [`NAMED_MAX`] names of a list and adds the number of further names.
fn some(all: &[String]) -> String {
    let more = all.len().saturating_sub(NAMED_MAX);
    let first = all[..all.len() - more].join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}
