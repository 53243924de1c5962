//! Compares the tools that a server or an agent declares with the stored rows. This module is pure: it reads no database
//! and no clock.

use std::collections::{BTreeSet, HashMap, HashSet};

use monstrum_manifest::Effect;
use monstrum_store::{FirstDiscoveryRow, ResourceToolRow, ToolWrites};
use monstrum_types::{Digest, PinStatus, ResourceId, ResourceToolId, UtcMillis, WorkspaceId};

use super::Definitions;
use super::declared::Declared;
use crate::plugins::remote;

/// Maximum number of rows of a resource: the tools of the largest server, four times. If a server declares other tools
/// again and again, the rows of the tools that are gone for the longest time are deleted. Rejected tools do not count,
/// because only admins reject tools.
const ROWS_MAX: usize = 2_048;

/// What the stored rows are compared with.
pub(super) struct Discovery<'d> {
    pub workspace: WorkspaceId,
    pub resource: ResourceId,
    /// The name of the resource.
    pub name: &'d str,
    /// The URL of the server; empty for an agent.
    pub url: &'d str,
    pub declared: &'d [Declared],
    pub how: Definitions,
    pub now: UtcMillis,
}

/// The stored state of a resource.
#[derive(Clone, Default)]
pub(super) struct Stored {
    pub rows: Vec<ResourceToolRow>,
    pub first: Option<FirstDiscoveryRow>,
}

impl Discovery<'_> {
    /// Returns the changes that this discovery makes.
    pub(super) fn plan(&self, stored: &Stored) -> ToolWrites {
        let is_first = stored.first.as_ref().is_none_or(|first| first.url != self.url);
        let known: HashMap<&str, &ResourceToolRow> =
            stored.rows.iter().map(|row| (row.original_name.as_str(), row)).collect();
        let mut taken: HashSet<String> = stored.rows.iter().map(|row| row.slug.clone()).collect();
        let mut writes =
            ToolWrites { before: stored.rows.clone(), first_before: stored.first.clone(), ..ToolWrites::default() };
        let mut names = BTreeSet::new();
        for declared in self.declared {
            names.insert(declared.stored_name.as_str());
            let known = known.get(declared.stored_name.as_str()).copied();
            let row = match known {
                Some(row) => row.clone(),
                None => {
                    let slug = remote::slug(self.name, &declared.original_name, &taken);
                    taken.insert(slug.clone());
                    self.fresh(declared, slug)
                }
            };
            let next = self.declared_again(row, declared, is_first);
            if known != Some(&next) {
                writes.written.push(ResourceToolRow { updated_at: self.later_than(known), ..next });
            }
        }
        for row in stored.rows.iter().filter(|row| !names.contains(row.original_name.as_str())) {
            // A row without a decision says nothing about a tool that is not declared.
            if row.approved_digest.is_none() && row.rejected_digest.is_none() {
                writes.deleted.push(row.id);
            } else if row.status != PinStatus::Gone {
                let (status, updated_at) = (PinStatus::Gone, self.later_than(Some(row)));
                writes.written.push(ResourceToolRow { status, reason: None, updated_at, ..row.clone() });
            }
        }
        drop_oldest(&mut writes);
        if is_first {
            writes.first = Some(FirstDiscoveryRow {
                resource_id: self.resource,
                workspace_id: self.workspace,
                url: self.url.to_owned(),
                discovered_at: self.now,
            });
        }
        writes
    }

    fn later_than(&self, row: Option<&ResourceToolRow>) -> UtcMillis {
        row.map_or(self.now, |row| self.now.max(row.updated_at.plus_ms(1)))
    }

    fn fresh(&self, declared: &Declared, slug: String) -> ResourceToolRow {
        ResourceToolRow {
            id: ResourceToolId::new(),
            workspace_id: self.workspace,
            resource_id: self.resource,
            original_name: declared.stored_name.clone(),
            slug,
            status: PinStatus::Pending,
            reason: None,
            digest: declared.digest.clone(),
            definition: declared.text.clone(),
            hint: None,
            effect: Effect::Write.as_str().to_owned(),
            approved_digest: None,
            rejected_digest: None,
            approved_definition: None,
            approved_by: None,
            approved_at: None,
            created_at: self.now,
            updated_at: self.now,
        }
    }

    /// Returns the row of a tool that is declared with this definition.
    fn declared_again(&self, mut row: ResourceToolRow, declared: &Declared, is_first: bool) -> ResourceToolRow {
        if row.digest != declared.digest {
            if row.approved_digest.as_ref() == Some(&row.digest) && row.approved_definition.is_none() {
                row.approved_definition = Some(std::mem::take(&mut row.definition));
            }
            row.digest = declared.digest.clone();
            row.definition.clone_from(&declared.text);
        }
        row.hint = declared.hint.map(|hint| hint.as_str().to_owned());
        row.reason.clone_from(&declared.reason);
        row.status = self.status(&row, declared, is_first);
        if row.status == PinStatus::Approved {
            if row.approved_digest.as_ref() != Some(&row.digest) {
                row.effect = Effect::Write.as_str().to_owned();
                row.approved_digest = Some(row.digest.clone());
                (row.approved_by, row.approved_at) = (None, Some(self.now));
            }
            row.approved_definition = None;
        }
        row
    }

    fn status(&self, row: &ResourceToolRow, declared: &Declared, is_first: bool) -> PinStatus {
        let is = |digest: &Option<Digest>| digest.as_ref() == Some(&declared.digest);
        if declared.reason.is_some() {
            return PinStatus::Invalid;
        }
        // An agent that is trusted must not lift a rejection by changing its definition.
        if is(&row.rejected_digest) || (self.how == Definitions::Trusted && row.rejected_digest.is_some()) {
            return PinStatus::Rejected;
        }
        if is(&row.approved_digest) {
            return PinStatus::Approved;
        }
        let is_approved = match self.how {
            Definitions::Review => false,
            Definitions::First => is_first && row.rejected_digest.is_none() && !declared.hides,
            Definitions::Trusted => true,
        };
        match (is_approved, &row.approved_digest) {
            (true, _) => PinStatus::Approved,
            (false, Some(_)) => PinStatus::Changed,
            (false, None) => PinStatus::Pending,
        }
    }
}

/// Deletes the rows of the tools that are gone for the longest time if the resource would have too many rows. The tools
/// that no admin has approved come first. A rejection is never deleted: a trusted agent could otherwise lift it by
/// declaring many other tools.
fn drop_oldest(writes: &mut ToolWrites) {
    let written: HashMap<ResourceToolId, &ResourceToolRow> = writes.written.iter().map(|row| (row.id, row)).collect();
    let deleted: HashSet<ResourceToolId> = writes.deleted.iter().copied().collect();
    let known: HashSet<ResourceToolId> = writes.before.iter().map(|row| row.id).collect();
    let old = writes.before.iter().filter(|row| !deleted.contains(&row.id));
    let old = old.map(|row| written.get(&row.id).copied().unwrap_or(row));
    let new = writes.written.iter().filter(|row| !known.contains(&row.id));
    let (mut total, mut gone) = (0_usize, Vec::new());
    for row in old.chain(new).filter(|row| row.rejected_digest.is_none()) {
        total += 1;
        if row.status == PinStatus::Gone {
            gone.push((row.approved_by.is_some(), row.updated_at, row.id));
        }
    }
    gone.sort_unstable();
    let dropped: HashSet<ResourceToolId> =
        gone.into_iter().take(total.saturating_sub(ROWS_MAX)).map(|(_, _, id)| id).collect();
    writes.written.retain(|row| !dropped.contains(&row.id));
    writes.deleted.extend(dropped);
}

#[cfg(test)]
mod tests;
