//! Decisions of admins about declared definitions. A decision names the digest of the definition that the admin has read.

use std::collections::HashSet;

use monstrum_manifest::Effect;
use monstrum_store::{FirstDiscoveryRow, ResourceToolRow, ToolWrites};
use monstrum_types::{Digest, KeyId, PinStatus, UtcMillis};

use crate::plugins::remote;

/// The decision of an admin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Approve,
    Reject,
}

/// A decision about one tool.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The name of the tool as the API shows it.
    pub original_name: String,
    /// The digest of the declared definition.
    pub digest: Digest,
    pub effect: Effect,
}

/// The reason why no decision was made. The number is the position of the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The resource has no such tool.
    Unknown(usize),
    /// The tool is declared with another definition.
    OtherDigest(usize, Digest),
    /// The tool is no longer declared.
    Gone(usize),
    /// The definition breaks a rule.
    Invalid(usize, String),
    /// An earlier choice names the same tool.
    Twice(usize),
}

impl Verdict {
    /// Returns the changes that the choices make, all or none. `before` and `first_before` are the stored rows.
    ///
    /// # Errors
    /// Fails if a choice names no tool, another digest than the declared one, or a tool that cannot be approved.
    pub fn writes(
        self,
        choices: &[Choice],
        before: Vec<ResourceToolRow>,
        first_before: Option<FirstDiscoveryRow>,
        (by, now): (KeyId, UtcMillis),
    ) -> Result<ToolWrites, Refusal> {
        let mut written = Vec::with_capacity(choices.len());
        let mut seen = HashSet::new();
        for (index, choice) in choices.iter().enumerate() {
            let is_named = |row: &&ResourceToolRow| remote::written_out(&row.original_name) == choice.original_name;
            // Two names can be equal once their hidden characters are written out, but their definitions differ.
            let mut named = before.iter().filter(is_named).peekable();
            let other = named.peek().map(|row| row.digest.clone()).ok_or(Refusal::Unknown(index))?;
            let row = named.find(|row| row.digest == choice.digest).ok_or(Refusal::OtherDigest(index, other))?;
            if !seen.insert(row.id) {
                return Err(Refusal::Twice(index));
            }
            let row = match self {
                Verdict::Approve => approved(row, choice, index, (by, now))?,
                Verdict::Reject => rejected(row),
            };
            let updated_at = now.max(row.updated_at.plus_ms(1));
            written.push(ResourceToolRow { updated_at, ..row });
        }
        Ok(ToolWrites { before, written, first_before, ..ToolWrites::default() })
    }
}

fn approved(
    row: &ResourceToolRow,
    choice: &Choice,
    index: usize,
    (by, now): (KeyId, UtcMillis),
) -> Result<ResourceToolRow, Refusal> {
    match row.status {
        PinStatus::Gone => return Err(Refusal::Gone(index)),
        PinStatus::Invalid => return Err(Refusal::Invalid(index, row.reason.clone().unwrap_or_default())),
        PinStatus::Approved | PinStatus::Pending | PinStatus::Changed | PinStatus::Rejected => {}
    }
    Ok(ResourceToolRow {
        status: PinStatus::Approved,
        effect: choice.effect.as_str().to_owned(),
        approved_digest: Some(row.digest.clone()),
        rejected_digest: None,
        approved_definition: None,
        approved_by: Some(by),
        approved_at: Some(now),
        ..row.clone()
    })
}

/// Returns the row of a rejected definition. A rejection also takes back an earlier approval.
fn rejected(row: &ResourceToolRow) -> ResourceToolRow {
    let status = match row.status {
        PinStatus::Gone | PinStatus::Invalid => row.status,
        PinStatus::Approved | PinStatus::Pending | PinStatus::Changed | PinStatus::Rejected => PinStatus::Rejected,
    };
    ResourceToolRow {
        status,
        effect: Effect::Write.as_str().to_owned(),
        approved_digest: None,
        rejected_digest: Some(row.digest.clone()),
        approved_definition: None,
        approved_by: None,
        approved_at: None,
        ..row.clone()
    }
}
