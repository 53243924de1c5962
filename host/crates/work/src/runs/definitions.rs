//! The definitions of the versions of workflows, read and compiled once.
//!
//! A version never changes, so a definition that was read from an authenticated row stays as it is.

use std::collections::HashMap;
use std::sync::Arc;

use monstrum_core::beside::Beside;
use monstrum_flow::Definition;
use monstrum_store::{Store, StoreError};
use monstrum_types::{WorkflowId, WorkspaceId};
use parking_lot::Mutex;

/// The maximum number of definitions in memory, and the maximum size of their documents in bytes. A compiled definition takes
/// several times as much, so all of them take less than a hundred MiB.
const DEFINITIONS_MAX: usize = 512;
const DOCUMENT_BYTES_MAX: usize = 8 << 20;

/// Definitions are read on threads of low priority: their expressions take milliseconds to compile.
static READING: Beside = Beside::new();

/// The definition of a version cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionError {
    #[error("the version of the workflow is missing or was edited by another program")]
    Missing,
    /// An earlier version of the host has accepted the definition.
    #[error("this version of monstrum does not accept the definition: {0}")]
    Faulty(String),
    #[error("the definition cannot be read")]
    Read(#[from] tokio::task::JoinError),
    #[error("the database failed")]
    Store(#[from] StoreError),
}

type Key = (WorkspaceId, WorkflowId, i64);

/// The definitions that a host has read.
pub struct Definitions {
    store: Store,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    entries: HashMap<Key, Entry>,
    /// The size of all documents in bytes.
    bytes: usize,
    /// The number of uses so far, by which the entries are ordered.
    uses: u64,
}

struct Entry {
    definition: Arc<Definition>,
    bytes: usize,
    used: u64,
}

impl Definitions {
    /// Creates the definitions of a host, none of which is read yet.
    #[must_use]
    pub fn new(store: Store) -> Definitions {
        Definitions { store, kept: Mutex::new(Kept::default()) }
    }

    /// Returns the definition of a version of a workflow.
    ///
    /// # Errors
    ///
    /// The version is missing or not authentic, this version of the host does not accept it, or the database failed.
    pub async fn of(
        &self,
        workspace: WorkspaceId,
        workflow: WorkflowId,
        version: i64,
    ) -> Result<Arc<Definition>, DefinitionError> {
        let key = (workspace, workflow, version);
        if let Some(definition) = self.kept.lock().find(&key) {
            return Ok(definition);
        }
        let found = self.store.workflow_version(workspace, workflow, version).await?;
        let (_, text) = found.ok_or(DefinitionError::Missing)?;
        let bytes = text.len();
        let checked = READING.run(move || monstrum_flow::check(&text, None)).await?;
        let checked = checked.map_err(|faults| {
            let first = faults.into_iter().next();
            DefinitionError::Faulty(first.map_or_else(String::new, |fault| fault.path))
        })?;
        let definition = Arc::new(checked.definition);
        self.kept.lock().keep(key, Arc::clone(&definition), bytes);
        Ok(definition)
    }
}

impl Kept {
    fn find(&mut self, key: &Key) -> Option<Arc<Definition>> {
        self.uses += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.uses;
        Some(Arc::clone(&entry.definition))
    }

    /// Keeps a definition, and forgets those that were used least recently to make room for it.
    fn keep(&mut self, key: Key, definition: Arc<Definition>, bytes: usize) {
        self.uses += 1;
        let used = self.uses;
        self.bytes += bytes;
        if let Some(replaced) = self.entries.insert(key, Entry { definition, bytes, used }) {
            self.bytes = self.bytes.saturating_sub(replaced.bytes);
        }
        while self.entries.len() > DEFINITIONS_MAX || self.bytes > DOCUMENT_BYTES_MAX {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            let Some(removed) = oldest.and_then(|oldest| self.entries.remove(&oldest)) else { return };
            self.bytes = self.bytes.saturating_sub(removed.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Arc<Definition> {
        let text = "workflow: a\nbot: tester\nsteps:\n  - { id: first, tool: send }\n";
        Arc::new(monstrum_flow::check(text, None).unwrap().definition)
    }

    #[test]
    fn definitions_that_were_used_least_recently_are_forgotten() {
        let (mut kept, definition) = (Kept::default(), definition());
        let keys: Vec<Key> = (0..4).map(|version| (WorkspaceId::new(), WorkflowId::new(), version)).collect();
        let third = DOCUMENT_BYTES_MAX / 3;
        for key in &keys[..3] {
            kept.keep(*key, Arc::clone(&definition), third);
        }
        assert!(kept.find(&keys[0]).is_some());
        kept.keep(keys[3], Arc::clone(&definition), third);
        let found: Vec<bool> = keys.iter().map(|key| kept.entries.contains_key(key)).collect();
        assert_eq!((found, kept.bytes), (vec![true, false, true, true], 3 * third));
        // The same definition counts once.
        kept.keep(keys[3], Arc::clone(&definition), third);
        assert_eq!((kept.entries.len(), kept.bytes), (3, 3 * third));
        for version in 0..=i64::try_from(DEFINITIONS_MAX).unwrap() {
            kept.keep((keys[0].0, keys[0].1, version + 10), Arc::clone(&definition), 1);
        }
        assert_eq!(kept.entries.len(), DEFINITIONS_MAX);
    }
}
