//! The generation of the policy, and all rows from which it is compiled.

use crate::db::{Arg, Session, args};
use crate::{
    BindingRow, BotRow, CredentialRow, KeyRow, OauthProviderRow, OwnerRow, ResourceRow, RoleRow, Store, StoreError,
    WorkspaceRow, bindings, bots, credentials, keys, oauth_providers, owners, resources, roles, workspaces,
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
        let mut session = self.db.read_consistently().await?;
        let rows = PolicyRows {
            generation: generation(&mut session).await?,
            workspaces: session.all(workspaces::ALL, args![]).await?,
            keys: session.all(keys::ALL, args![]).await?,
            resources: session.all(resources::ALL, args![]).await?,
            credentials: session.all(credentials::ALL, args![]).await?,
            oauth_providers: session.all(oauth_providers::ALL, args![]).await?,
            roles: session.all(roles::ALL, args![]).await?,
            bots: session.all(bots::ALL, args![]).await?,
            bindings: session.all(bindings::ALL, args![]).await?,
            owners: session.all(owners::ALL, args![]).await?,
        };
        session.commit().await?;
        Ok(rows)
    }

    /// Runs one statement that changes the policy, and bumps the generation with it; how many rows it changed.
    pub(crate) async fn change(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        self.db.run_then(sql, args, Some(BUMP)).await
    }

    /// Deletes by one statement; whether there was a row. What is still referred to is in use.
    pub(crate) async fn delete(&self, sql: &'static str, args: &[Arg<'_>]) -> Result<bool, StoreError> {
        Ok(self.change(sql, args).await.map_err(StoreError::of_deletion)? > 0)
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
