//! Incremental reads of the policy. Each transaction that changes authenticated rows records the names of these rows in
//! `policy_changes`. A host that has verified an earlier state then reads only the rows that have changed since.
//!
//! The recorded names are not trusted. For each scope, the host keeps the number and sum of its rows. The host updates
//! both with the changed rows and compares the result with the seal. If anything is missing or does not match, the host
//! reads all rows again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use monstrum_types::{
    ApprovalId, BindingId, BotId, BudgetId, CredentialId, KeyId, ResourceId, ResourceToolId, RoleId, SubscriptionId,
    WebhookId, WorkflowId, WorkflowTriggerId,
};

use super::total::Total;
use super::verify::{SeenGenerations, scope_of};
use super::{Addends, Authentic, RowName, Rows, Scope, SealRow, Table, name_of};
use crate::credentials::OF_RESOURCE_ID;
use crate::db::{FromRow, Row, Session, args, from_row};
use crate::policy::generation;
use crate::{
    BindingRow, BotRow, BudgetRow, CredentialRow, GrantRow, KeyRow, ResourceRow, ResourceToolRow, RoleRow, Store,
    StoreError, SubscriptionRow, WebhookRow, WorkflowRow, WorkflowTriggerRow,
};

/// The maximum number of changed rows that a host reads one by one. If more rows have changed, reading all rows is
/// faster.
const ROWS_MAX: usize = 2_000;
/// The kind of a recorded change that makes hosts read everything.
const ALL: &str = "all";

const INSERT: &str = "insert into policy_changes (number, ordinal, scope, generation, kind, id) \
                      values ($1, $2, $3, $4, $5, $6)";
const SINCE: &str = "select number, scope, kind, id from policy_changes where number > $1 and number <= $2 \
                     order by number, ordinal limit $3";
const SEAL_OF: &str = "select scope, generation, sealed from policy_seals where scope = $1";
const FORGET: &str = "delete from policy_changes where number <= $1";

/// A row that a transaction has changed, and its scope.
pub(crate) struct ChangedRow {
    pub(crate) name: RowName,
    pub(crate) scope: Scope,
}

struct FeedRow {
    number: i64,
    scope: String,
    kind: String,
    id: String,
}

from_row! { FeedRow { number, scope, kind, id } }

/// The state of the policy that a host has verified. Later changes are verified against this state.
#[derive(Clone, Default)]
pub struct VerifiedPolicy {
    /// The generation of the policy, from `settings`.
    number: i64,
    generations_total: i64,
    scopes: imbl::HashMap<Scope, VerifiedScope>,
}

/// The verified state of a scope: its generation, and the total and addends of its rows, which matched the seal.
#[derive(Clone)]
pub(crate) struct VerifiedScope {
    pub(super) generation: i64,
    pub(super) total: Total,
    pub(super) addends: Addends,
}

impl std::fmt::Debug for VerifiedPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifiedPolicy").field("number", &self.number).finish_non_exhaustive()
    }
}

impl VerifiedPolicy {
    pub(crate) fn new(
        number: i64,
        generations_total: i64,
        scopes: impl IntoIterator<Item = (Scope, VerifiedScope)>,
    ) -> Self {
        VerifiedPolicy { number, generations_total, scopes: scopes.into_iter().collect() }
    }
}

/// The changed rows of one kind, by id. The value is `None` for a deleted row.
pub type Changed<Id, R> = BTreeMap<Id, Option<R>>;

/// The current content of the rows that have changed since a verified state of the policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyChanges {
    pub generation: i64,
    pub keys: Changed<KeyId, KeyRow>,
    pub roles: Changed<RoleId, RoleRow>,
    pub bots: Changed<BotId, BotRow>,
    pub resources: Changed<ResourceId, ResourceRow>,
    /// The changed credentials, and all credentials of changed resources.
    pub credentials: Changed<CredentialId, CredentialRow>,
    pub bindings: Changed<BindingId, BindingRow>,
    pub grants: Changed<ApprovalId, GrantRow>,
    pub resource_tools: Changed<ResourceToolId, ResourceToolRow>,
    pub budgets: Changed<BudgetId, BudgetRow>,
    pub webhooks: Changed<WebhookId, WebhookRow>,
    pub subscriptions: Changed<SubscriptionId, SubscriptionRow>,
    pub workflows: Changed<WorkflowId, WorkflowRow>,
    pub workflow_triggers: Changed<WorkflowTriggerId, WorkflowTriggerRow>,
    /// The new generation of each changed scope.
    pub scope_generations: HashMap<Scope, i64>,
    /// The sum of generations, as in [`PolicyRows::generations_total`](crate::PolicyRows::generations_total).
    pub generations_total: i64,
}

/// The name of a changed row and its current content, before verification.
struct Read {
    table: Table,
    id: String,
    scope: String,
    row: Option<Row>,
}

/// All data about the changes, read in one transaction.
struct ReadChanges {
    number: i64,
    changed: Vec<Read>,
    /// The credentials of changed resources.
    credentials: Vec<Row>,
    seals: Vec<SealRow>,
}

impl Session {
    /// Raises the generation of the policy in the transaction that changes it, and makes hosts read everything.
    pub(crate) async fn bump_generation(&mut self) -> Result<(), StoreError> {
        let number = self.next_generation().await?;
        self.run(INSERT, args![number, 0, &Scope::Instance.to_string(), 0, ALL, ""]).await?;
        Ok(())
    }

    /// Raises the generation of the policy in the transaction that changes it, and records the names of the changed
    /// rows. `generations` contains the new generations of the changed scopes.
    pub(crate) async fn record_changes(
        &mut self,
        changed: &[ChangedRow],
        generations: &[(Scope, i64)],
    ) -> Result<(), StoreError> {
        let is_named = |row: &ChangedRow| is_followed(row.name.table);
        if changed.is_empty() || changed.len() > ROWS_MAX || !changed.iter().all(is_named) {
            return self.bump_generation().await;
        }
        let number = self.next_generation().await?;
        for (ordinal, ChangedRow { name, scope }) in (0_i64..).zip(changed) {
            let generation = generations.iter().find(|(own, _)| own == scope).map_or(0, |(_, generation)| *generation);
            let scope = scope.to_string();
            self.run(INSERT, args![number, ordinal, &scope, generation, name.table.name(), &name.key]).await?;
        }
        Ok(())
    }

    async fn read_changes(&mut self, after: i64) -> Result<Option<ReadChanges>, StoreError> {
        let number = generation(self).await?;
        if number < after {
            return Ok(None);
        }
        let limit = i64::try_from(ROWS_MAX).unwrap_or(i64::MAX).saturating_add(1);
        let feed: Vec<FeedRow> = self.all(SINCE, args![after, number, limit]).await?;
        let numbers: BTreeSet<i64> = feed.iter().map(|row| row.number).collect();
        let is_complete = i64::try_from(numbers.len()).is_ok_and(|count| count == number - after);
        if feed.len() > ROWS_MAX || !is_complete {
            return Ok(None);
        }
        let mut names = BTreeMap::new();
        for FeedRow { scope, kind, id, .. } in feed {
            let Some(table) = Table::ALL.into_iter().find(|table| table.name() == kind && is_followed(*table)) else {
                return Ok(None);
            };
            names.insert((table, id), scope);
        }
        let scopes: BTreeSet<&String> = names.values().collect();
        let mut seals = Vec::new();
        for scope in scopes {
            seals.extend(SealRow::all(&self.fetch(SEAL_OF, args![scope]).await?));
        }
        let (mut changed, mut credentials) = (Vec::new(), Vec::new());
        for ((table, id), scope) in names {
            let row = self.fetch(&table.statements().by_key, args![&id]).await?.into_iter().next();
            if table == Table::Resources && row.is_some() {
                credentials.extend(self.fetch(OF_RESOURCE_ID, args![&id]).await?);
            }
            changed.push(Read { table, id, scope, row });
        }
        Ok(Some(ReadChanges { number, changed, credentials, seals }))
    }
}

fn scope_called(text: &str) -> Option<Scope> {
    if text == Scope::Instance.to_string() { Some(Scope::Instance) } else { text.parse().ok().map(Scope::Workspace) }
}

/// Returns whether changes of a table are read row by row. Other tables have few rows, which rarely change.
fn is_followed(table: Table) -> bool {
    matches!(
        table,
        Table::ApiKeys
            | Table::Roles
            | Table::Bots
            | Table::Resources
            | Table::Credentials
            | Table::BotResources
            | Table::ApprovalGrants
            | Table::ResourceTools
            | Table::FirstDiscoveries
            | Table::Budgets
            | Table::Schedules
            | Table::Webhooks
            | Table::Workflows
            | Table::WorkflowVersions
            | Table::WorkflowTriggers
            | Table::Subscriptions
    )
}

impl Store {
    /// Returns the rows of the policy that have changed since `verified`, and the new verified state. Returns `None`
    /// if the changes are unknown, too numerous, or do not match the seals. The caller must then read everything with
    /// [`Store::snapshot`].
    pub async fn changes_since(
        &self,
        verified: &VerifiedPolicy,
    ) -> Result<Option<(PolicyChanges, VerifiedPolicy)>, StoreError> {
        let rows = self.rows()?;
        let seen = SeenGenerations::of(self)?;
        if rows.known.lock().scopes.values().any(|known| known.is_unverified) {
            return Ok(None);
        }
        let mut session = self.db.read_consistently().await?;
        let read = session.read_changes(verified.number).await?;
        session.commit().await?;
        let Some(read) = read else { return Ok(None) };
        let (rows, verified) = (rows.clone(), verified.clone());
        let checked = tokio::task::spawn_blocking(move || verified.with(&rows, &read, &seen)).await;
        Ok(checked.expect("checking MACs does not panic"))
    }

    /// Deletes the recorded changes up to this generation. A host that has not read them yet must read everything.
    pub async fn forget_changes(&self, number: i64) -> Result<u64, StoreError> {
        self.db.run(FORGET, args![number]).await
    }
}

impl VerifiedPolicy {
    /// Verifies and applies the changes. Returns `None` if a row or a sum does not match.
    fn with(
        mut self,
        rows: &Rows,
        read: &ReadChanges,
        seen: &SeenGenerations,
    ) -> Option<(PolicyChanges, VerifiedPolicy)> {
        let mut changes = PolicyChanges { generation: read.number, ..PolicyChanges::default() };
        let mut touched = BTreeSet::new();
        for changed in &read.changed {
            let scope = scope_called(&changed.scope)?;
            touched.insert(scope);
            self.replace(rows, scope, changed)?;
            changes.add(changed)?;
        }
        for row in &read.credentials {
            let (scope, name) = (scope_of(Table::Credentials, row).ok()?, name_of(Table::Credentials, row));
            let addend = rows.verify(Table::Credentials, row)?;
            // If another program restores a deleted credential, its MAC is still valid. The known addends reveal such
            // a row.
            if self.scopes.get(&scope)?.addends.get(&name) != Some(&addend) {
                return None;
            }
            let credential = CredentialRow::from_row(row).ok()?;
            changes.credentials.insert(credential.id, Some(credential));
        }
        for scope in touched {
            let verified = self.scopes.get_mut(&scope)?;
            let seal = read.seals.iter().find(|seal| seal.scope == scope.to_string())?;
            let sealed = rows.open_seal(scope, seal, seen.of_scope(scope).max(verified.generation)).ok()?;
            if sealed != verified.total {
                return None;
            }
            self.generations_total = self.generations_total.saturating_add(seal.generation - verified.generation);
            verified.generation = seal.generation;
            changes.scope_generations.insert(scope, seal.generation);
            rows.record_verified(scope, seal.generation, &verified.addends);
        }
        // Another program may have replaced the recorded names of a change that this process has seen, such as a change
        // by this process.
        let is_behind = |(scope, seen)| self.scopes.get(&scope).is_some_and(|verified| verified.generation < seen);
        if seen.iter().any(is_behind) {
            return None;
        }
        self.number = read.number;
        changes.generations_total = self.generations_total;
        Some((changes, self))
    }

    /// Updates the number and the sum of a scope's rows for one changed row. Returns `None` if the scope is unknown or
    /// the row is invalid.
    fn replace(&mut self, rows: &Rows, scope: Scope, changed: &Read) -> Option<()> {
        let verified = self.scopes.get_mut(&scope)?;
        let name = RowName { table: changed.table, key: changed.id.clone() };
        if let Some(before) = verified.addends.remove(&name) {
            verified.total.subtract(&before);
        }
        let Some(row) = &changed.row else { return Some(()) };
        if scope_of(changed.table, row).ok()? != scope || name_of(changed.table, row) != name {
            return None;
        }
        let addend = rows.verify(changed.table, row)?;
        verified.total.add(&addend);
        verified.addends.insert(name, addend);
        Some(())
    }
}

impl PolicyChanges {
    fn add(&mut self, changed: &Read) -> Option<()> {
        match changed.table {
            Table::ApiKeys => add(&mut self.keys, changed),
            Table::Roles => add(&mut self.roles, changed),
            Table::Bots => add(&mut self.bots, changed),
            Table::Resources => add(&mut self.resources, changed),
            Table::Credentials => add(&mut self.credentials, changed),
            Table::BotResources => add(&mut self.bindings, changed),
            Table::ApprovalGrants => add(&mut self.grants, changed),
            Table::ResourceTools => add(&mut self.resource_tools, changed),
            Table::Budgets => add(&mut self.budgets, changed),
            Table::Webhooks => add(&mut self.webhooks, changed),
            Table::Subscriptions => add(&mut self.subscriptions, changed),
            Table::Workflows => add(&mut self.workflows, changed),
            Table::WorkflowTriggers => add(&mut self.workflow_triggers, changed),
            // The policy does not contain these rows, but the seals count them.
            Table::FirstDiscoveries | Table::Schedules | Table::WorkflowVersions => Some(()),
            _ => None,
        }
    }
}

fn add<Id: Ord + std::str::FromStr, R: Authentic>(rows: &mut Changed<Id, R>, changed: &Read) -> Option<()> {
    let row = changed.row.as_ref().map(R::from_row).transpose().ok()?;
    rows.insert(changed.id.parse().ok()?, row);
    Some(())
}

impl Rows {
    /// Records that a scope was verified at a generation, unless a later verified generation is already known.
    fn record_verified(&self, scope: Scope, generation: i64, addends: &Addends) {
        let mut known = self.known.lock();
        let known = known.scopes.entry(scope).or_default();
        known.generation = known.generation.max(generation);
        if known.verified.as_ref().is_none_or(|(verified, _)| *verified < generation) {
            known.verified = Some((generation, addends.clone()));
        }
    }
}
