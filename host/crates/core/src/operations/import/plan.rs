//! The plan of the changes that an import makes in one workspace.

use monstrum_api::import::{ImportedCounts, ImportedState};
use monstrum_store::{BindingRow, BotRow, ConfigurationRow, ResourceRow, RoleRow, RowWrite, StoreError};
use monstrum_types::UtcMillis;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::permissions::{Differences, Listing};
use super::targets::Target;
use crate::operations::change::later_than;
use crate::policy::pattern_limits::{compiled_bytes, lists_of_binding, lists_of_bot, lists_of_role};

/// The rows that an import writes in a workspace, in the order of their dependencies, and the counts and grants for the
/// response.
pub(super) struct Plan {
    pub(super) writes: Vec<Planned>,
    pub(super) created: ImportedCounts,
    pub(super) changed: ImportedCounts,
    pub(super) unchanged: ImportedCounts,
    pub(super) permissions: Differences,
    /// The maximum memory of the compiled patterns of the rows that are replaced, in bytes. `bytes` is the same for the
    /// rows that are written.
    pub(super) replaced_bytes: u64,
    pub(super) bytes: u64,
}

/// A row to write, with the digests that the audit records.
pub(super) struct Planned {
    pub(super) write: RowWrite,
    /// The number of the line.
    line: usize,
    before: Option<[u8; 32]>,
    after: [u8; 32],
}

impl Planned {
    /// Returns the object as the audit records it.
    pub(super) fn recorded(&self) -> Value {
        let (kind, id, updated_at, bot) = match &self.write.row {
            ConfigurationRow::Role(row) => ("role", row.id.to_string(), row.updated_at, None),
            ConfigurationRow::Bot(row) => ("bot", row.id.to_string(), row.updated_at, None),
            ConfigurationRow::Resource(row) => ("resource", row.id.to_string(), row.updated_at, None),
            ConfigurationRow::Binding(row) => ("binding", row.id.to_string(), row.updated_at, Some(row.bot_id)),
        };
        let mut object = json!({
            "kind": kind, "id": id, "before": self.before.map(hex::encode), "after": hex::encode(self.after),
            "updated_at": updated_at,
        });
        if let Some(bot) = bot {
            object["bot_id"] = json!(bot);
        }
        object
    }
}

/// A row of a kind that an import writes.
pub(super) trait Row: Clone + PartialEq + Into<ConfigurationRow> {
    /// Gives the row the identity and the times of the row that it replaces.
    fn continue_from(&mut self, before: &Self);
    fn updated_at(&mut self) -> &mut UtcMillis;
    /// The maximum memory of the row's compiled patterns, in bytes.
    fn pattern_bytes(&self) -> u64;
    fn count(counts: &mut ImportedCounts) -> &mut usize;
}

macro_rules! rows {
    ($($row:ident, $counted:ident, |$own:ident| $bytes:expr;)+) => {$(
        impl Row for $row {
            fn continue_from(&mut self, before: &Self) {
                (self.id, self.created_at, self.updated_at) = (before.id, before.created_at, before.updated_at);
            }

            fn updated_at(&mut self) -> &mut UtcMillis {
                &mut self.updated_at
            }

            fn pattern_bytes(&self) -> u64 {
                let $own = self;
                $bytes
            }

            fn count(counts: &mut ImportedCounts) -> &mut usize {
                &mut counts.$counted
            }
        }
    )+};
}

rows! {
    RoleRow, roles, |row| compiled_bytes(lists_of_role(row));
    BotRow, bots, |row| compiled_bytes(lists_of_bot(row));
    ResourceRow, resources, |_row| 0;
    BindingRow, bindings, |row| compiled_bytes(lists_of_binding(row));
}

/// Compares the row of a line with the row that it replaces. The row receives the identity and the times of the
/// replaced row.
pub(super) fn compared<R: Row>(row: &mut R, before: Option<&R>, now: UtcMillis) -> ImportedState {
    let Some(before) = before else { return ImportedState::Created };
    row.continue_from(before);
    if row == before {
        return ImportedState::Unchanged;
    }
    let updated_at = row.updated_at();
    *updated_at = later_than(*updated_at, now);
    ImportedState::Changed
}

impl Plan {
    pub(super) fn new(listing: Listing) -> Plan {
        Plan {
            writes: Vec::new(),
            created: ImportedCounts::default(),
            changed: ImportedCounts::default(),
            unchanged: ImportedCounts::default(),
            permissions: Differences::new(listing),
            replaced_bytes: 0,
            bytes: 0,
        }
    }

    /// Adds a row that is unchanged.
    pub(super) fn keep<R: Row>(&mut self) {
        *R::count(&mut self.unchanged) += 1;
    }

    /// Adds the row of a line to write. Fails if one of its texts cannot be stored.
    pub(super) fn write<R: Row>(&mut self, line: usize, row: &R, before: Option<&R>) -> Result<(), StoreError> {
        let digest = |row: &R| -> Result<_, StoreError> {
            let row: ConfigurationRow = row.clone().into();
            Ok((row.digest()?, row))
        };
        let (after, new) = digest(row)?;
        let replaced = before.map(|before| Ok::<_, StoreError>((digest(before)?.0, *before.clone().updated_at())));
        let replaced = replaced.transpose()?;
        let counts = if replaced.is_some() { &mut self.changed } else { &mut self.created };
        *R::count(counts) += 1;
        self.bytes = self.bytes.saturating_add(row.pattern_bytes());
        self.replaced_bytes = self.replaced_bytes.saturating_add(before.map_or(0, R::pattern_bytes));
        let write = RowWrite { row: new, before: replaced.map(|(_, updated_at)| updated_at) };
        self.writes.push(Planned { write, line, before: replaced.map(|(digest, _)| digest), after });
        Ok(())
    }
}

/// Returns the digest of plans: of the lines, whose hash is `hash`, and of the objects that they change, as they are before
/// the import. It does not contain new rows, because their ids and times differ each time.
pub(super) fn digest(mut hash: Sha256, plans: &[(Target, Plan)]) -> String {
    for (target, plan) in plans {
        let (state, name) = (target.state(), &target.row.name);
        hash.update(format!("\nworkspace {name:?} {state:?}\n"));
        for Planned { line, before, .. } in &plan.writes {
            let before = before.map_or_else(|| "new".to_owned(), hex::encode);
            hash.update(format!("{line} {before}\n"));
        }
    }
    hex::encode(hash.finalize())
}
