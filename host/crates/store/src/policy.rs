//! The generation of the policy, and all rows from which it is compiled.

use std::collections::HashMap;

use crate::db::{Arg, Session, args};
use crate::rows::{Floors, Reading};
use crate::{
    BindingRow, BotRow, CredentialRow, KeyRow, OauthProviderRow, OwnerRow, ResourceRow, RoleRow, RowName, Scope, Store,
    StoreError, UnverifiedScope, WorkspaceRow,
};

/// Everything that decides about calls, as it stood at one moment.
#[derive(Clone, Debug)]
pub struct PolicyRows {
    /// The number of the state; every change gives a higher one.
    pub generation: i64,
    /// All workspaces.
    pub workspaces: Vec<WorkspaceRow>,
    /// All API keys, by their hashes.
    pub keys: Vec<KeyRow>,
    /// All resources.
    pub resources: Vec<ResourceRow>,
    /// All credentials, sealed.
    pub credentials: Vec<CredentialRow>,
    /// All OAuth providers.
    pub oauth_providers: Vec<OauthProviderRow>,
    /// All roles.
    pub roles: Vec<RoleRow>,
    /// All bots.
    pub bots: Vec<BotRow>,
    /// All bindings.
    pub bindings: Vec<BindingRow>,
    /// Which plugin each resource type and tool's name belongs to.
    pub owners: Vec<OwnerRow>,
    /// The generation of each scope that is verified.
    pub scope_generations: HashMap<Scope, i64>,
    /// The sum of the generations for which a head of the audit is signed; zero while the instance is unverified.
    pub generations_total: i64,
    /// Rows whose MAC is missing or wrong. They are in none of the lists.
    pub refused: Vec<RowName>,
    /// Scopes whose rows are not those that were sealed. Of such a workspace, and of all where it is the instance, there
    /// are only the workspaces and the keys.
    pub unverified: Vec<UnverifiedScope>,
}

const GENERATION: &str = "select generation as value from settings where id = 1";
const BUMP: &str = "update settings set generation = generation + 1 where id = 1";

impl Store {
    /// The number of the policy's present state.
    pub async fn generation(&self) -> Result<i64, StoreError> {
        let mut session = self.db.read().await?;
        generation(&mut session).await
    }

    /// All rows that the policy is compiled from, read in one transaction.
    pub async fn snapshot(&self) -> Result<PolicyRows, StoreError> {
        let floors = Floors::of(self)?;
        let mut session = self.db.read_consistently().await?;
        let generation = generation(&mut session).await?;
        let reading = Reading::of_all(self, &mut session, floors).await?;
        session.commit().await?;
        let rows = reading.judge(move |mut judged| PolicyRows {
            generation,
            workspaces: judged.take_known(),
            keys: judged.take_known(),
            resources: judged.take(),
            credentials: judged.take(),
            oauth_providers: judged.take(),
            roles: judged.take(),
            bots: judged.take(),
            bindings: judged.take(),
            owners: judged.take(),
            scope_generations: judged.generations,
            generations_total: judged.generations_total,
            refused: judged.refused,
            unverified: judged.unverified,
        });
        Ok(rows.await)
    }

    /// Runs one statement on columns that are not under a MAC, and bumps the generation with it, for hosts hold the rows;
    /// how many rows it changed.
    pub(crate) async fn run_and_ring(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        self.db.run_then(sql, args, Some(BUMP)).await
    }
}

impl Session {
    /// Says that the policy changed, in the transaction that changes it.
    pub(crate) async fn bump_generation(&mut self) -> Result<(), StoreError> {
        self.run(BUMP, args![]).await?;
        Ok(())
    }
}

async fn generation(session: &mut Session) -> Result<i64, StoreError> {
    let generation = session.one(GENERATION, args![]).await?;
    generation.ok_or_else(|| StoreError::Corrupt { what: "settings: no row".to_owned() })
}
