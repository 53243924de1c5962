//! Rotation of the master key: adds a new key, opens every sealed record, and seals it again with the new key.
//!
//! A rotation runs while the server is stopped. The rotation can be killed at any moment and run again: the key is on
//! disk before the first record is sealed with it, and small transactions replace only unchanged records. A run that
//! finds records of an older key seals these records again and adds no key. Older keys stay in the file until
//! [`Step::Prune`] removes them, after every record has been decrypted with the newest key.

pub mod row_key;

use monstrum_store::{IdempotencyKey, SealedColumn, SealedRow, Store, StoreError};
use monstrum_vault::{AssociatedData, AuditKeys, MasterKeys, RowKey, Sealed, Vault, VaultError};
use serde::Serialize;

use crate::boot::{AUDIT_KEYS, Data};
use crate::config::MasterKeyPlace;
use monstrum_agent::journal::{self, StepRun, TaskOrigin};
use monstrum_core::approvals;
use monstrum_core::credentials::{self, GivenFor};
use monstrum_core::events;
use monstrum_core::oauth;
use monstrum_core::policy::row_seals::ROW_KEY;
use monstrum_core::sandboxes::outputs;
use monstrum_core::webhooks;
use monstrum_work::runs;

use crate::gateway;

/// The number of records in one batch. The batch is held in memory, and one record can be up to 16 MiB in size.
const BATCH_RECORDS: u32 = 16;
/// The maximum number of unreadable records that a report names.
const UNREADABLE_NAMED_MAX: usize = 100;

/// The step of a rotation to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Finish an interrupted run. Without an interrupted run, add a key and seal every record with it.
    Rotate,
    /// Only add a key. All hosts that share a database must have the new key before any record is encrypted with it.
    AddOnly,
    /// Seal the remaining records with the newest key, check that the newest key decrypts all records, and remove the
    /// older keys.
    Prune,
}

/// The result of a rotation.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of the newest key.
    pub key_version: u32,
    /// Whether this run has added the newest key.
    pub added: bool,
    /// The number of sealed records.
    pub records: u64,
    /// The number of records that were sealed again.
    pub resealed: u64,
    /// The versions of the remaining keys.
    pub key_versions: Vec<u32>,
    /// The versions of the keys that were removed.
    pub removed: Vec<u32>,
    /// The first 100 records that cannot be decrypted.
    pub unreadable: Vec<Unreadable>,
}

/// A record that cannot be decrypted.
#[derive(Clone, Debug, Serialize)]
pub struct Unreadable {
    pub table: &'static str,
    /// The values of the row's primary key.
    pub key: Vec<String>,
    pub why: String,
}

/// An error while rotating the master key.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    #[error("the master key cannot be rotated")]
    Vault(#[from] VaultError),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("cannot write to {place}: it is an environment variable")]
    Variable { place: String, next_version: u32 },
    #[error("other servers use this database and do not have the new key")]
    OtherServers,
    #[error("{records} records are still encrypted with a key older than version {key_version}")]
    Unfinished { records: u64, key_version: u32 },
    #[error("no key was removed, because some sealed records cannot be decrypted: {records}")]
    Unreadable { records: u64, first: Unreadable },
}

/// A callback that gets the number of processed records and the total.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Rotates the master key of an open folder. If other servers use the database (`has_others`), no record is sealed with
/// a key that this run adds, because the other servers could not open the record.
pub async fn run(
    data: &Data,
    place: &MasterKeyPlace,
    step: Step,
    has_others: bool,
    progress: Progress<'_>,
) -> Result<Report, RotationError> {
    let mut vault = Vault::new(data.vault.keys().clone());
    let mut added = false;
    let mut walked = walk(&data.store, &vault, step != Step::AddOnly, progress).await?;
    if step == Step::AddOnly && walked.older > 0 {
        return Err(RotationError::Unfinished { records: walked.older, key_version: vault.key_version() });
    }
    if step != Step::Prune && walked.older == 0 {
        if step == Step::Rotate && has_others {
            return Err(RotationError::OtherServers);
        }
        vault = Vault::new(add_key(place, &vault)?);
        added = true;
        if step == Step::Rotate {
            walked = walk(&data.store, &vault, true, progress).await?;
        }
    }
    let mut removed = Vec::new();
    if step == Step::Prune {
        // All records are checked again, because other hosts may have written records during the walk, and a removed
        // key cannot be restored.
        let again = walk(&data.store, &vault, false, progress).await?;
        removed = prune(place, &vault, again)?;
    }
    let mut key_versions: Vec<u32> = vault.keys().versions().collect();
    key_versions.retain(|version| !removed.contains(version));
    let Walked { records, resealed, unreadable, .. } = walked;
    Ok(Report { key_version: vault.key_version(), added, records, resealed, key_versions, removed, unreadable })
}

fn add_key(place: &MasterKeyPlace, vault: &Vault) -> Result<MasterKeys, RotationError> {
    match place {
        MasterKeyPlace::File(path) => Ok(MasterKeys::add_fresh(path)?),
        MasterKeyPlace::Variable(_) => Err(RotationError::Variable {
            place: place.to_string(),
            next_version: vault.key_version().saturating_add(1),
        }),
    }
}

fn prune(place: &MasterKeyPlace, vault: &Vault, walked: Walked) -> Result<Vec<u32>, RotationError> {
    let key_version = vault.key_version();
    if let Some(first) = walked.unreadable.into_iter().next() {
        return Err(RotationError::Unreadable { records: walked.unreadable_count, first });
    }
    if walked.older > 0 {
        return Err(RotationError::Unfinished { records: walked.older, key_version });
    }
    match place {
        MasterKeyPlace::File(path) => Ok(MasterKeys::prune(path, vault.keys())?),
        // Nothing is removed from the variable. The report lists the key versions whose lines are no longer needed.
        MasterKeyPlace::Variable(_) => Ok(vault.keys().versions().filter(|version| *version < key_version).collect()),
    }
}

/// The result of a walk through all records.
#[derive(Default)]
struct Walked {
    records: u64,
    /// Readable records that were sealed with an older key.
    older: u64,
    resealed: u64,
    unreadable_count: u64,
    unreadable: Vec<Unreadable>,
}

/// Decrypts every record. If `is_resealing` is set, encrypts records of older keys again with the newest key.
async fn walk(
    store: &Store,
    vault: &Vault,
    is_resealing: bool,
    progress: Progress<'_>,
) -> Result<Walked, RotationError> {
    let mut total = 0;
    for column in SealedColumn::ALL {
        total += store.count_sealed(column).await?;
    }
    let mut walked = Walked::default();
    progress(0, total);
    for column in SealedColumn::ALL {
        let mut behind: Option<Vec<String>> = None;
        loop {
            let page = store.sealed_records(column, behind.as_deref(), BATCH_RECORDS).await?;
            let last = page.records.last().map(|last| last.key.clone());
            for key in page.unnamed {
                walked.is_unreadable(column, key, &Unopened::Key);
            }
            let replacements = walked.look_at(column, page.records, vault);
            progress(walked.records, total);
            if last.is_none() {
                break;
            }
            behind = last;
            if is_resealing && !replacements.is_empty() {
                walked.resealed += store.replace_sealed(column, &replacements, vault.key_version()).await?;
            }
        }
        for _ in 0..store.count_sealed_out_of_reach(column).await? {
            walked.is_unreadable(column, vec![String::new()], &Unopened::Key);
        }
    }
    Ok(walked)
}

impl Walked {
    /// Counts the records of a page. Returns the records that are sealed with older keys, each with its content
    /// encrypted with the newest key.
    fn look_at(&mut self, column: SealedColumn, page: Vec<SealedRow>, vault: &Vault) -> Vec<(SealedRow, String)> {
        let mut replacements = Vec::new();
        for row in page {
            match resealed(column, &row, vault) {
                Ok(None) => self.records += 1,
                Ok(Some(text)) => {
                    self.records += 1;
                    self.older += 1;
                    replacements.push((row, text));
                }
                Err(error) => self.is_unreadable(column, row.key, &error),
            }
        }
        replacements
    }

    fn is_unreadable(&mut self, column: SealedColumn, key: Vec<String>, why: &Unopened) {
        self.records += 1;
        self.unreadable_count += 1;
        if self.unreadable.len() < UNREADABLE_NAMED_MAX {
            self.unreadable.push(Unreadable { table: column.table(), key, why: why.to_string() });
        }
    }
}

/// An error while decrypting a record.
#[derive(Debug, thiserror::Error)]
enum Unopened {
    #[error(transparent)]
    Vault(#[from] VaultError),
    #[error("the associated data of the record cannot be read")]
    Place,
    #[error("the primary key of the record is not text")]
    Key,
}

/// Decrypts a record and returns the record encrypted with the newest key. Returns `None` if the record already uses
/// this key.
fn resealed(column: SealedColumn, row: &SealedRow, vault: &Vault) -> Result<Option<String>, Unopened> {
    let place = place_of(column, row).ok_or(Unopened::Place)?;
    let sealed: Sealed = row.sealed.parse()?;
    if vault.needs_reseal(&sealed) {
        return Ok(Some(vault.reseal(&sealed, place)?.to_string()));
    }
    vault.unseal(&sealed, place)?;
    Ok(None)
}

/// Returns the associated data of a record, which the module that sealed the record defines. Returns `None` if the row
/// cannot be read.
fn place_of(column: SealedColumn, row: &SealedRow) -> Option<AssociatedData> {
    match (column, row.key.as_slice(), row.bound.as_slice()) {
        (SealedColumn::Credentials, [id], [workspace, resource, kind, subject, given_for]) => {
            let given_for: GivenFor = serde_json::from_str(given_for).ok()?;
            let (workspace, resource) = (workspace.parse().ok()?, resource.parse().ok()?);
            Some(credentials::place(workspace, resource, (id.parse().ok()?, kind, subject), &given_for))
        }
        (SealedColumn::IdempotencyAnswers, [workspace, caller, route, key], [body_hash, status]) => {
            let (workspace_id, caller) = (workspace.parse().ok()?, caller.parse().ok()?);
            let key = IdempotencyKey { workspace_id, caller, route: route.clone(), key: key.clone() };
            Some(gateway::place_of_answer(&key, body_hash, status.parse().ok()?))
        }
        (
            SealedColumn::OauthClientSecrets,
            [id],
            [workspace, resource_type, client_id, token_url, device_authorization_url],
        ) => Some(credentials::provider::place(
            workspace.parse().ok()?,
            id.parse().ok()?,
            &resource_type.parse().ok()?,
            client_id,
            token_url,
            device_authorization_url,
        )),
        (SealedColumn::OauthFlows, [id], [workspace, resource, provider, given_for, subject]) => {
            let given_for = serde_json::from_str(given_for).ok()?;
            let subject: Option<serde_json::Value> = serde_json::from_str(subject).ok()?;
            let (workspace, resource) = (workspace.parse().ok()?, resource.parse().ok()?);
            let (flow, provider) = (id.parse().ok()?, provider.parse().ok()?);
            Some(oauth::place(workspace, flow, resource, provider, (&given_for, subject.as_ref())))
        }
        (SealedColumn::ApprovalParams, [id], [workspace, digest]) => {
            Some(approvals::place(workspace.parse().ok()?, id.parse().ok()?, &digest.parse().ok()?))
        }
        (SealedColumn::SandboxOutputs, [request], [workspace, sandbox]) => {
            Some(outputs::place(workspace.parse().ok()?, sandbox.parse().ok()?, request.parse().ok()?))
        }
        (
            SealedColumn::Events,
            [id],
            [workspace, event_type, source_type, source_id, bot, root_event, depth, links],
        ) => {
            let ids = (workspace.parse().ok()?, id.parse().ok()?);
            let cause = (root_event.parse().ok()?, depth.as_str());
            Some(events::place(ids, event_type, (source_type, source_id), bot, cause, links))
        }
        (SealedColumn::Tasks, [id], [workspace, bot, session, parent, key]) => {
            let (workspace, id, bot) = (workspace.parse().ok()?, id.parse().ok()?, bot.parse().ok()?);
            Some(journal::place_of_task(workspace, id, bot, TaskOrigin { session, parent, key }))
        }
        (SealedColumn::Schedules, [id], [workspace, bot, name, created_at, updated_at]) => {
            let (workspace, id, bot) = (workspace.parse().ok()?, id.parse().ok()?, bot.parse().ok()?);
            Some(monstrum_agent::schedules::place(workspace, id, bot, (name, created_at, updated_at)))
        }
        (SealedColumn::Runs, [id], [workspace, bot, workflow, version, kind, starter, event, delivery, parent]) => {
            let (run, started) = ([id, workspace, bot], [kind.as_str(), starter]);
            Some(runs::place_of_run(run.map(String::as_str), [workflow, version], started, [event, delivery, parent]))
        }
        (
            SealedColumn::RunSteps,
            [_],
            [workspace, run, phase, step, item, run_attempt, attempt, kind, request, effect],
        ) => Some(runs::place_of_step(
            [run, workspace],
            [phase, step, item, run_attempt, attempt],
            [kind, request, effect],
        )),
        (SealedColumn::TaskSteps, [task, sequence], [workspace, kind, request, tool, effect]) => {
            let (workspace, task, sequence) = (workspace.parse().ok()?, task.parse().ok()?, sequence.parse().ok()?);
            Some(journal::place_of_step(workspace, task, sequence, StepRun { kind, request, tool, effect }))
        }
        (SealedColumn::WebhookSecrets, [id], [workspace, created_at]) => {
            Some(webhooks::place(workspace.parse().ok()?, id.parse().ok()?, created_at))
        }
        (SealedColumn::InstanceKeys, [name, version], []) if name == ROW_KEY => {
            Some(RowKey::place(version.parse().ok()?))
        }
        (SealedColumn::InstanceKeys, [name, version], []) if name == AUDIT_KEYS => {
            Some(AuditKeys::place(version.parse().ok()?))
        }
        _ => None,
    }
}
