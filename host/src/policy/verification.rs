//! Whether the rows that a snapshot was compiled from are those that were sealed, and what is said about those that are
//! not.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use monstrum_store::{PolicyRows, RowName, Scope, Store, UnverifiedScope};
use monstrum_types::WorkspaceId;

/// What was found of the rows of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// Rows whose MAC is missing or wrong. They permit nothing.
    pub refused: Vec<RowName>,
    /// Scopes whose rows are not those that were sealed.
    pub unverified: Vec<UnverifiedScope>,
    /// The generation of each scope that is verified.
    generations: HashMap<Scope, i64>,
    generations_total: i64,
}

impl Verification {
    /// Of the rows that were read.
    pub fn of(rows: &PolicyRows) -> Self {
        Verification {
            refused: rows.refused.clone(),
            unverified: rows.unverified.clone(),
            generations: rows.scope_generations.clone(),
            generations_total: rows.generations_total,
        }
    }

    /// The sum of the generations for which the heads of the audit are signed.
    pub fn generations_total(&self) -> i64 {
        self.generations_total
    }

    /// Whether root keys, plugins, trust and workspaces are those that were sealed.
    pub fn is_instance_verified(&self) -> bool {
        self.find(Scope::Instance).is_none()
    }

    /// The scope that keeps calls and changes of a workspace from being served: the workspace, or the instance.
    pub fn unverified_for(&self, workspace: WorkspaceId) -> Option<&UnverifiedScope> {
        self.find(Scope::Instance).or_else(|| self.find(Scope::Workspace(workspace)))
    }

    fn find(&self, scope: Scope) -> Option<&UnverifiedScope> {
        self.unverified.iter().find(|found| found.scope == scope)
    }

    /// Whether the seals that the database has now are those that this was judged by.
    pub fn is_of(&self, seals: &[(String, i64)]) -> bool {
        let seals: HashMap<&str, i64> = seals.iter().map(|(scope, generation)| (scope.as_str(), *generation)).collect();
        let is_same = |(scope, generation): (&Scope, &i64)| seals.get(scope.to_string().as_str()) == Some(generation);
        self.unverified.is_empty() && self.generations.iter().all(is_same)
    }
}

/// What the log has been told, so that it is told once.
#[derive(Default)]
pub struct Told(Mutex<(BTreeSet<RowName>, BTreeSet<String>)>);

impl Told {
    /// Names rows that are refused and scopes that are not verified.
    pub fn tell(&self, store: &Store, verification: &Verification) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (rows, scopes) = &mut *told;
        for row in store.refused_rows() {
            if rows.insert(row.clone()) {
                tracing::error!("{}", row.refusal());
            }
        }
        let found: BTreeSet<String> = verification.unverified.iter().map(ToString::to_string).collect();
        for what in found.difference(scopes) {
            tracing::error!("{what}; calls and changes in it are refused");
        }
        for what in scopes.difference(&found) {
            tracing::info!("no longer so: {what}");
        }
        *scopes = found;
    }
}
