//! The rows from which the policy is compiled, and their generation.

use std::collections::HashMap;

use crate::db::{Arg, Session, args};
use crate::rows::{SeenGenerations, StoredRows};
use crate::{
    BindingRow, BotRow, CredentialRow, KeyRow, OauthProviderRow, OwnerRow, ResourceRow, RoleRow, RowName, Scope, Store,
    StoreError, UnverifiedScope, WorkspaceRow,
};

/// A consistent snapshot of all rows that decide about calls.
#[derive(Clone, Debug)]
pub struct PolicyRows {
    /// Grows with every change.
    pub generation: i64,
    /// All workspaces.
    pub workspaces: Vec<WorkspaceRow>,
    /// All API keys.
    pub keys: Vec<KeyRow>,
    /// All resources.
    pub resources: Vec<ResourceRow>,
    /// All credentials, still sealed.
    pub credentials: Vec<CredentialRow>,
    /// All OAuth providers.
    pub oauth_providers: Vec<OauthProviderRow>,
    /// All roles.
    pub roles: Vec<RoleRow>,
    /// All bots.
    pub bots: Vec<BotRow>,
    /// All bindings.
    pub bindings: Vec<BindingRow>,
    /// The plugin of each resource type and tool name.
    pub owners: Vec<OwnerRow>,
    /// The generation of each verified scope.
    pub scope_generations: HashMap<Scope, i64>,
    /// The sum of the generations for a signed head of the audit; zero while the instance is unverified.
    pub generations_total: i64,
    /// Rows with a missing or wrong MAC, which the lists leave out.
    pub refused: Vec<RowName>,
    /// Scopes whose rows differ from those that were sealed. The lists contain only the workspaces and keys of such a
    /// scope; if it is the instance, this applies to all workspaces.
    pub unverified: Vec<UnverifiedScope>,
}

const GENERATION: &str = "select generation as value from settings where id = 1";
const BUMP: &str = "update settings set generation = generation + 1 where id = 1";

impl Store {
    /// The current generation of the policy.
    pub async fn generation(&self) -> Result<i64, StoreError> {
        let mut session = self.db.read().await?;
        generation(&mut session).await
    }

    /// Reads all rows from which the policy is compiled, in one transaction.
    pub async fn snapshot(&self) -> Result<PolicyRows, StoreError> {
        let seen = SeenGenerations::of(self)?;
        let mut session = self.db.read_consistently().await?;
        let generation = generation(&mut session).await?;
        let stored = StoredRows::of_all(self, &mut session, seen).await?;
        session.commit().await?;
        let rows = stored.verify(move |mut trusted| PolicyRows {
            generation,
            workspaces: trusted.take_known(),
            keys: trusted.take_known(),
            resources: trusted.take(),
            credentials: trusted.take(),
            oauth_providers: trusted.take(),
            roles: trusted.take(),
            bots: trusted.take(),
            bindings: trusted.take(),
            owners: trusted.take(),
            scope_generations: trusted.generations,
            generations_total: trusted.generations_total,
            refused: trusted.refused,
            unverified: trusted.unverified,
        });
        Ok(rows.await)
    }

    /// Runs one statement on columns that are not under a MAC, and makes hosts reload the policy if it changed any row.
    /// Returns how many rows it changed.
    pub(crate) async fn run_and_notify(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        self.db.run_then(sql, args, Some(BUMP)).await
    }
}

impl Session {
    /// Raises the generation of the policy, in the transaction that changes it. Hosts reload the policy then.
    pub(crate) async fn bump_generation(&mut self) -> Result<(), StoreError> {
        self.run(BUMP, args![]).await?;
        Ok(())
    }
}

async fn generation(session: &mut Session) -> Result<i64, StoreError> {
    let generation = session.one(GENERATION, args![]).await?;
    generation.ok_or_else(|| StoreError::Corrupt { what: "`settings` has no row".to_owned() })
}
