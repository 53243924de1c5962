//! The takeover of rows that an earlier release has not authenticated: the schedules.
//!
//! The seal of a scope says which tables it counts, so that a scope is taken over once. Later, a row without a MAC is a row
//! that another program wrote, and an old seal that was restored has an older generation than the signed heads of the audit.

use super::change::{LOCK, SEAL, SEALS};
use super::total::Total;
use super::{Rows, Scope, SealRow, Table, encoding};
use crate::db::{FromRow as _, Session, args};
use crate::{Store, StoreError};

/// The tables that the first seals did not count.
const ADDED: [Table; 1] = [Table::Schedules];

impl Store {
    /// Authenticates the schedules of a database whose seals do not count them, one scope in a transaction. Returns the
    /// number of these rows. A scope whose other rows do not match its seal is left as it is, and stays unverified until
    /// an operator seals it.
    ///
    /// Does nothing while the row key is being rotated.
    ///
    /// The caller must have compared the generations of the seals with the signed heads of the audit.
    pub async fn take_over_rows(&self) -> Result<u64, StoreError> {
        let rows = self.rows()?;
        // The server does not start before the rotation is complete, and takes the rows over then.
        if self.is_rotating_row_key() {
            return Ok(0);
        }
        let seals = SealRow::all(&self.db.read().await?.fetch(SEALS, args![]).await?);
        let mut taken = 0;
        for seal in seals.iter().filter(|seal| first_total(rows, seal).is_some()) {
            let scope = match seal.scope.parse() {
                Ok(workspace) => Scope::Workspace(workspace),
                Err(_) if seal.scope == Scope::Instance.to_string() => Scope::Instance,
                Err(_) => continue,
            };
            taken += self.take_over(rows, scope).await?;
        }
        Ok(taken)
    }

    async fn take_over(&self, rows: &Rows, scope: Scope) -> Result<u64, StoreError> {
        let mut session = self.db.write().await?;
        let name = scope.to_string();
        let locked = session.fetch(LOCK, args![&name]).await?;
        // Another host may have taken the scope over.
        let seal = locked.first().and_then(|row| SealRow::from_row(row).ok());
        let Some((seal, sealed)) = seal.and_then(|seal| first_total(rows, &seal).map(|total| (seal, total))) else {
            return Ok(0);
        };
        let mut total = session.valid_total(rows, scope).await?;
        if total != sealed {
            return Ok(0);
        }
        let mut taken = 0;
        for table in ADDED {
            for row in session.rows_of(table, scope).await? {
                // A row that cannot be encoded stays without a MAC, and is rejected.
                let Ok(bytes) = encoding::of_row(table, &row) else { continue };
                let macs = rows.macs_of(&bytes);
                session.set_mac(table, &row, &macs).await?;
                total.add(&macs.addend);
                taken += 1;
            }
        }
        let generation = seal.generation.saturating_add(1);
        let sealed = rows.seal(scope, generation, total)?;
        session.run(SEAL, args![&name, generation, &sealed]).await?;
        session.bump_generation().await?;
        session.commit().await?;
        rows.record_generation(scope, generation);
        Ok(taken)
    }
}

/// Returns the total of a seal that counts the first set of tables.
fn first_total(rows: &Rows, seal: &SealRow) -> Option<Total> {
    Total::from_first_bytes(&rows.unseal(seal)?)
}

impl Session {
    /// Returns the total of the valid rows of a scope in the first set of tables.
    async fn valid_total(&mut self, rows: &Rows, scope: Scope) -> Result<Total, StoreError> {
        let mut total = Total::default();
        for table in Table::counted().filter(|table| !ADDED.contains(table)) {
            for row in self.rows_of(table, scope).await? {
                if let Some(addend) = rows.verify(table, &row) {
                    total.add(&addend);
                }
            }
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use monstrum_types::{ScheduleId, UtcMillis};

    use super::super::cost::{PlainKey, bot};
    use super::*;
    use crate::{
        DEFAULT_WORKSPACE, InsertedSchedule, InstanceKeyRow, ScheduleRow, ScheduleUpdate, SchedulesMax, StoreOptions,
    };

    const NOW: UtcMillis = UtcMillis(1_767_225_600_000);
    const MAX: SchedulesMax = SchedulesMax { of_bot: 9, of_workspace: 9 };

    /// A database with a schedule.
    async fn scheduled(folder: &tempfile::TempDir) -> (Store, Scope, ScheduleRow) {
        let store = Store::open(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        let store = store.with_row_key(Arc::new(PlainKey));
        let key = InstanceKeyRow { name: "rows".to_owned(), version: 1, sealed: "sealed".to_owned(), created_at: NOW };
        assert!(store.initialize(&key, NOW).await.unwrap());
        let workspace_id = store.workspace_named(DEFAULT_WORKSPACE).await.unwrap().unwrap().id;
        let bot = bot(workspace_id, "triage".to_owned());
        store.insert_bot(&bot).await.unwrap();
        let row = ScheduleRow {
            id: ScheduleId::new(),
            workspace_id,
            bot_id: bot.id,
            name: "nightly".to_owned(),
            next_at: Some(NOW),
            last_planned_at: None,
            last_fired_at: None,
            last_task_id: None,
            last_run_id: None,
            last_status: None,
            failures: 0,
            created_at: NOW,
            updated_at: NOW,
            sealed: "sealed".to_owned(),
        };
        assert_eq!(store.insert_schedule(&row, None, MAX).await.unwrap(), InsertedSchedule::Inserted);
        (store, Scope::Workspace(workspace_id), row)
    }

    /// Makes the database one of an earlier release: schedules have no MAC, and no seal counts them.
    async fn made_older(store: &Store, scope: Scope) {
        let rows = Arc::clone(store.rows().unwrap());
        let mut session = store.db.write().await.unwrap();
        session.run("update schedules set mac = null", args![]).await.unwrap();
        for scope in [Scope::Instance, scope] {
            let total = session.valid_total(&rows, scope).await.unwrap();
            let seals = SealRow::all(&session.fetch(SEALS, args![]).await.unwrap());
            let seal = seals.into_iter().find(|seal| seal.scope == scope.to_string()).unwrap();
            let sealed = rows.key.seal(&total.to_first_bytes(), &seal.scope, seal.generation).unwrap();
            session.run(SEAL, args![&seal.scope, seal.generation, &sealed]).await.unwrap();
        }
        session.bump_generation().await.unwrap();
        session.commit().await.unwrap();
    }

    async fn problems(store: &Store) -> Vec<String> {
        store.verify_rows().await.unwrap().problems()
    }

    #[tokio::test]
    async fn schedules_of_an_earlier_release_are_taken_over_once() {
        let folder = tempfile::tempdir().unwrap();
        let (store, scope, row) = scheduled(&folder).await;
        assert_eq!(store.take_over_rows().await.unwrap(), 0, "the seals count the schedule");
        made_older(&store, scope).await;
        let before = store.sealed_generations().await.unwrap();
        assert_eq!(store.schedule(row.workspace_id, row.id).await.unwrap(), None);
        assert_eq!(store.take_over_rows().await.unwrap(), 1);
        assert_eq!(store.sealed_generations().await.unwrap(), before + 2, "of the instance and of the workspace");
        assert_eq!(problems(&store).await, Vec::<String>::new());
        assert_eq!(store.schedule(row.workspace_id, row.id).await.unwrap(), Some(row.clone()));
        let changed = ScheduleRow { updated_at: NOW.plus_ms(1), ..row.clone() };
        let update = ScheduleUpdate { row: &changed, before: NOW, next_at: None, is_resumed: false };
        let key = monstrum_types::WakeKey::new(monstrum_types::WakeKind::Schedule, row.id).unwrap();
        let wake = crate::NewWake { key, workspace_id: row.workspace_id, due_at: NOW, claim: None };
        assert!(store.update_schedule(&update, &wake).await.unwrap().is_some());
        // Another program removes the MAC and writes a second row without one: the next start takes neither over.
        store.db.run("update schedules set mac = null", args![]).await.unwrap();
        assert_eq!(store.take_over_rows().await.unwrap(), 0);
        assert_eq!(problems(&store).await.len(), 2, "the row has no MAC, and the sum lacks it");
    }

    #[tokio::test]
    async fn a_workspace_whose_rows_do_not_match_its_seal_is_not_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let (store, scope, row) = scheduled(&folder).await;
        made_older(&store, scope).await;
        store.db.run("update bots set system_prompt = 'edited'", args![]).await.unwrap();
        assert_eq!(store.take_over_rows().await.unwrap(), 0);
        assert_eq!(store.schedule(row.workspace_id, row.id).await.unwrap(), None);
        let unverified = store.verify_rows().await.unwrap().unverified;
        assert_eq!(unverified.iter().map(|found| found.scope).collect::<Vec<_>>(), [scope]);
    }
}
