//! What a person saved of a schedule: a sealed record, which opens only in the row for which it was sealed.

use monstrum_api::schedules::{MadeBy, Missed, Overlap};
use monstrum_api::tasks::Narrow;
use monstrum_store::ScheduleRow;
use monstrum_types::{BotId, KeyId, ScheduleId, WorkflowId, WorkspaceId};
use monstrum_vault::{AssociatedData, Vault, VaultError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::timing::{Timing, TimingError, When};

/// The maximum number of keys that are kept of those that have changed a schedule.
const STARTERS_MAX: usize = 100;

/// The sealed record of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(flatten)]
    pub(super) work: Work,
    pub(super) when: When,
    pub(super) timezone: String,
    pub(super) overlap: Overlap,
    pub(super) missed: Missed,
    pub(super) jitter_s: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) narrow: Option<Narrow>,
    pub(super) enabled: bool,
    pub(super) made_by: MadeBy,
    /// The keys that made or changed the schedule, the last one last. They cannot decide about its calls.
    #[serde(default)]
    pub(super) starters: Vec<KeyId>,
}

/// What a schedule starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Work {
    /// A run of a workflow.
    Run { workflow_id: WorkflowId, input: Value },
    /// A task of the bot.
    Task { instruction: String },
}

/// An error while a record is sealed or opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("the record of the schedule cannot be sealed or opened")]
    Vault(#[from] VaultError),
    #[error("the record of the schedule is not in the expected form")]
    Form(#[from] serde_json::Error),
}

impl Record {
    /// Seals the record for a row.
    pub(super) fn seal(&self, vault: &Vault, row: &ScheduleRow) -> Result<String, RecordError> {
        Ok(vault.seal(&serde_json::to_vec(self)?, place_of(row))?.to_string())
    }

    /// Opens the record of a row. Fails if another program has edited the row.
    pub(super) fn open(vault: &Vault, row: &ScheduleRow) -> Result<Record, RecordError> {
        let text = vault.unseal(&row.sealed.parse()?, place_of(row))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Records that a key has made or changed the schedule.
    pub(super) fn started_by(&mut self, key: KeyId) {
        self.starters.retain(|starter| *starter != key);
        self.starters.push(key);
        let surplus = self.starters.len().saturating_sub(STARTERS_MAX);
        self.starters.drain(..surplus);
    }

    /// Returns the times of the schedule.
    pub(super) fn timing(&self) -> Result<Timing, TimingError> {
        Timing::new(&self.when, &self.timezone)
    }
}

fn place_of(row: &ScheduleRow) -> AssociatedData {
    let (created, updated) = (row.created_at.0.to_string(), row.updated_at.0.to_string());
    place(row.workspace_id, row.id, row.bot_id, (&row.name, &created, &updated))
}

/// Returns the associated data of the sealed record of a schedule. The times are in milliseconds since 1970.
#[must_use]
pub fn place(
    workspace: WorkspaceId,
    schedule: ScheduleId,
    bot: BotId,
    (name, created_at, updated_at): (&str, &str, &str),
) -> AssociatedData {
    AssociatedData::new("schedule")
        .with("workspace", &workspace)
        .with("schedule", &schedule)
        .with("bot", &bot)
        .with("name", name)
        .with("created at", created_at)
        .with("updated at", updated_at)
}

#[cfg(test)]
mod tests {
    use monstrum_types::UtcMillis;
    use monstrum_vault::MasterKeys;

    use super::*;

    #[test]
    fn a_record_opens_only_in_its_row() {
        let vault = Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap());
        let record = Record {
            work: Work::Task { instruction: "Look.".to_owned() },
            when: When::Cron("0 0 * * *".to_owned()),
            timezone: "UTC".to_owned(),
            overlap: Overlap::Skip,
            missed: Missed::Once,
            jitter_s: 0,
            narrow: None,
            enabled: true,
            made_by: MadeBy { kind: "key".to_owned(), id: "k".to_owned() },
            starters: Vec::new(),
        };
        let mut row = ScheduleRow {
            id: ScheduleId::new(),
            workspace_id: WorkspaceId::new(),
            bot_id: BotId::new(),
            name: "nightly".to_owned(),
            next_at: None,
            last_planned_at: None,
            last_fired_at: None,
            last_task_id: None,
            last_run_id: None,
            last_status: None,
            failures: 0,
            created_at: UtcMillis(1),
            updated_at: UtcMillis(2),
            sealed: String::new(),
        };
        row.sealed = record.seal(&vault, &row).unwrap();
        // The times, the counter and the last firing are not part of what a person saved.
        let turned = ScheduleRow { next_at: Some(UtcMillis(9)), failures: 3, ..row.clone() };
        assert_eq!(Record::open(&vault, &turned).unwrap(), record);
        let work = Work::Run { workflow_id: WorkflowId::new(), input: serde_json::json!({ "repo": "acme/web" }) };
        let of_workflow = Record { work, ..record };
        let sealed = of_workflow.seal(&vault, &row).unwrap();
        assert_eq!(Record::open(&vault, &ScheduleRow { sealed, ..row.clone() }).unwrap(), of_workflow);
        let edits: [fn(&mut ScheduleRow); 6] = [
            |row| row.id = ScheduleId::new(),
            |row| row.workspace_id = WorkspaceId::new(),
            |row| row.bot_id = BotId::new(),
            |row| row.name.push('x'),
            |row| row.created_at = UtcMillis(0),
            |row| row.updated_at = UtcMillis(3),
        ];
        for edit in edits {
            let mut edited = row.clone();
            edit(&mut edited);
            assert!(matches!(Record::open(&vault, &edited), Err(RecordError::Vault(_))), "{edited:?}");
        }
    }
}
