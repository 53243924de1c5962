//! The rows that the policy is compiled from, and their generation.

use std::collections::HashMap;

use crate::db::{Session, args};
use crate::rows::{SeenGenerations, StoredRows, VerifiedPolicy};
use crate::{
    BindingRow, BotRow, BudgetRow, CredentialRow, GrantRow, KeyRow, OauthProviderRow, OwnerRow, ResourceRow,
    ResourceToolRow, RoleRow, RowName, Scope, Store, StoreError, SubscriptionRow, UnverifiedScope, WebhookRow,
    WorkflowRow, WorkflowTriggerRow, WorkspaceRow,
};

/// A consistent snapshot of all rows that affect decisions about calls.
#[derive(Clone, Debug)]
pub struct PolicyRows {
    /// The generation of the policy, which increases with every change.
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
    /// The approvals that permit a call.
    pub grants: Vec<GrantRow>,
    /// The tools that come from outside.
    pub resource_tools: Vec<ResourceToolRow>,
    /// All budgets, except the monthly tokens of bots, which are in the rows of the bots.
    pub budgets: Vec<BudgetRow>,
    /// All webhooks, with their secrets still sealed.
    pub webhooks: Vec<WebhookRow>,
    /// All subscriptions.
    pub subscriptions: Vec<SubscriptionRow>,
    /// All workflows, and their triggers.
    pub workflows: Vec<WorkflowRow>,
    pub workflow_triggers: Vec<WorkflowTriggerRow>,
    /// The owner of each resource type and tool name.
    pub owners: Vec<OwnerRow>,
    /// The generation of each verified scope.
    pub scope_generations: HashMap<Scope, i64>,
    /// The sum of the generations, for a signed head of the audit log; zero while the instance is unverified.
    pub generations_total: i64,
    /// The rows with a missing or wrong MAC, which the lists omit.
    pub refused: Vec<RowName>,
    /// The scopes whose rows do not match their seals. For such a scope, the lists contain only workspaces and keys. If
    /// the instance is unverified, this applies to all workspaces.
    pub unverified: Vec<UnverifiedScope>,
    /// The verified state of these rows, for verifying later changes.
    pub verified: VerifiedPolicy,
}

const GENERATION: &str = "select generation as value from settings where id = 1";
const BUMP: &str = "update settings set generation = generation + 1 where id = 1 returning generation as value";

impl Store {
    /// Returns the current generation of the policy.
    pub async fn generation(&self) -> Result<i64, StoreError> {
        let mut session = self.db.read().await?;
        generation(&mut session).await
    }

    /// Reads all rows that the policy is compiled from, in one transaction.
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
            grants: trusted.take(),
            resource_tools: trusted.take(),
            budgets: trusted.take(),
            webhooks: trusted.take(),
            subscriptions: trusted.take(),
            workflows: trusted.take(),
            workflow_triggers: trusted.take(),
            owners: trusted.take(),
            scope_generations: trusted.generations,
            generations_total: trusted.generations_total,
            refused: trusted.refused,
            unverified: trusted.unverified,
            verified: VerifiedPolicy::new(generation, trusted.generations_total, trusted.verified),
        });
        Ok(rows.await)
    }
}

impl Session {
    /// Raises the generation of the policy. The row of the generation stays locked until the end of the transaction,
    /// so that generations are in the order of the commits.
    pub(crate) async fn next_generation(&mut self) -> Result<i64, StoreError> {
        self.one(BUMP, args![]).await?.ok_or_else(no_settings)
    }
}

fn no_settings() -> StoreError {
    StoreError::Corrupt { what: "`settings` has no row".to_owned() }
}

pub(crate) async fn generation(session: &mut Session) -> Result<i64, StoreError> {
    let generation = session.one(GENERATION, args![]).await?;
    generation.ok_or_else(no_settings)
}
