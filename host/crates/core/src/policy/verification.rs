//! The verification of a snapshot's rows against their seals, and the log messages about rows and scopes that do not
//! match.

use std::collections::{BTreeSet, HashMap};

use monstrum_store::{PolicyChanges, PolicyRows, RowName, Scope, Store, UnverifiedScope};
use monstrum_types::WorkspaceId;
use parking_lot::Mutex;

/// The result of verifying the rows of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// The rows whose MAC is missing or wrong. Such a row grants nothing.
    pub refused: Vec<RowName>,
    /// The scopes whose rows do not match their seal.
    pub unverified: Vec<UnverifiedScope>,
    /// The generation of each verified scope.
    generations: imbl::HashMap<Scope, i64>,
    generations_total: i64,
}

impl Verification {
    /// Returns the result of verifying these rows.
    pub fn of(rows: &PolicyRows) -> Self {
        Verification {
            refused: rows.refused.clone(),
            unverified: rows.unverified.clone(),
            generations: rows.scope_generations.iter().map(|(scope, generation)| (*scope, *generation)).collect(),
            generations_total: rows.generations_total,
        }
    }

    /// Returns the result after these changes. The store has verified that the changed rows match their seals.
    pub(super) fn after(&self, changes: &PolicyChanges) -> Self {
        let mut generations = self.generations.clone();
        generations.extend(changes.scope_generations.iter().map(|(scope, generation)| (*scope, *generation)));
        let generations_total = changes.generations_total;
        Verification { refused: Vec::new(), unverified: Vec::new(), generations, generations_total }
    }

    /// Returns whether every row was verified and every scope matches its seal.
    pub(super) fn is_whole(&self) -> bool {
        self.refused.is_empty() && self.unverified.is_empty()
    }

    /// Returns the sum of all generations, which the heads of the audit contain.
    pub fn generations_total(&self) -> i64 {
        self.generations_total
    }

    /// Returns the generation at which the rows of a workspace were verified, or `None` if they are not verified.
    pub fn generation_of(&self, workspace: WorkspaceId) -> Option<i64> {
        self.generations.get(&Scope::Workspace(workspace)).copied()
    }

    /// Returns whether the instance scope (root keys, plugins, trusted keys and workspaces) matches its seal.
    pub fn is_instance_verified(&self) -> bool {
        self.find(Scope::Instance).is_none()
    }

    /// Returns the unverified scope that makes the host refuse calls and changes of a workspace. This scope is the
    /// instance or the workspace.
    pub fn unverified_for(&self, workspace: WorkspaceId) -> Option<&UnverifiedScope> {
        self.find(Scope::Instance).or_else(|| self.find(Scope::Workspace(workspace)))
    }

    fn find(&self, scope: Scope) -> Option<&UnverifiedScope> {
        self.unverified.iter().find(|found| found.scope == scope)
    }

    /// Returns whether every scope of this result is verified and at least as new as its seal in `seals`, which the
    /// caller has read from the database between `before` and this result. Returns `false` if the seal of a scope is
    /// older than in `before` or has disappeared, because another program must have changed the database.
    pub fn has_reached(&self, seals: &[(String, i64)], before: &Verification) -> bool {
        let seals = by_scope(seals);
        let has_reached = |(scope, generation): (&Scope, &i64)| {
            let seal = seals.get(scope.to_string().as_str());
            let earlier = before.generations.get(scope);
            match seal {
                Some(seal) => seal <= generation && earlier.is_none_or(|earlier| earlier <= seal),
                // If `before` does not contain the scope either, the scope was created after `seals` was read.
                None => earlier.is_none(),
            }
        };
        self.unverified.is_empty() && self.generations.iter().all(has_reached)
    }

    /// Returns whether every scope of this result is verified and has the same generation as in `seals`, which the
    /// caller has read from the database.
    pub fn is_of(&self, seals: &[(String, i64)]) -> bool {
        let seals = by_scope(seals);
        let is_same = |(scope, generation): (&Scope, &i64)| seals.get(scope.to_string().as_str()) == Some(generation);
        self.unverified.is_empty() && self.generations.iter().all(is_same)
    }
}

fn by_scope(seals: &[(String, i64)]) -> HashMap<&str, i64> {
    seals.iter().map(|(scope, generation)| (scope.as_str(), *generation)).collect()
}

/// The rows and scopes that were already logged. Each row is logged only once. A scope is logged once each time it
/// becomes unverified.
#[derive(Default)]
pub struct Reported(Mutex<(BTreeSet<RowName>, BTreeSet<String>)>);

impl Reported {
    /// Logs rejected rows and unverified scopes.
    pub fn report(&self, store: &Store, verification: &Verification) {
        let mut reported = self.0.lock();
        let (rows, scopes) = &mut *reported;
        for row in store.refused_rows() {
            if rows.insert(row.clone()) {
                tracing::error!("{}", row.refusal());
            }
        }
        let found: BTreeSet<String> = verification.unverified.iter().map(ToString::to_string).collect();
        for what in found.difference(scopes) {
            tracing::error!("{what}; the host refuses calls and changes in this scope");
        }
        for what in scopes.difference(&found) {
            tracing::info!("resolved: {what}");
        }
        *scopes = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified(generations: &[(Scope, i64)]) -> Verification {
        Verification { generations: generations.iter().copied().collect(), ..Verification::default() }
    }

    #[test]
    fn seals_are_reached_by_the_changes_that_they_stand_for() {
        let workspace = Scope::Workspace(WorkspaceId::new());
        let seals = |instance: i64, own: i64| vec![("instance".to_owned(), instance), (workspace.to_string(), own)];
        let before = verified(&[(Scope::Instance, 3), (workspace, 7)]);
        let after = verified(&[(Scope::Instance, 3), (workspace, 9)]);
        assert!(before.is_of(&seals(3, 7)) && !before.is_of(&seals(3, 8)));
        for reached in [seals(3, 7), seals(3, 8), seals(3, 9)] {
            assert!(after.has_reached(&reached, &before));
        }
        assert!(!after.has_reached(&seals(3, 10), &before), "a change that was not read");
        assert!(!after.has_reached(&seals(3, 6), &before), "an older seal was restored");
        assert!(!after.has_reached(&seals(3, 9)[..1], &before), "a seal was removed");
        let new = verified(&[(Scope::Instance, 3), (workspace, 1)]);
        assert!(
            new.has_reached(&seals(3, 1)[..1], &verified(&[(Scope::Instance, 3)])),
            "the workspace was created after the seals were read"
        );
    }
}
