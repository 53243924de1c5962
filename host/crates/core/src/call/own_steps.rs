//! Calls that the runner of tasks answers itself, because they only concern its own journal.
//!
//! Such a call passes no stage: it reaches no plugin, no resource and no network. It is recorded like any other call.

use std::sync::Arc;

use monstrum_types::CallOutcome;

use crate::audit::AuditUnavailable;
use crate::call::revocation::{caller_revoked, is_authentic};
use crate::call::{CallAnswer, Calls, UncommittedAnswer, rows_of_step};
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::IncomingCall;

impl Calls {
    /// Records a call of a task that has this outcome already.
    ///
    /// # Errors
    ///
    /// The audit cannot be written. The call then has no end.
    pub async fn answer_step(&self, call: IncomingCall, outcome: CallOutcome) -> Result<CallAnswer, AuditUnavailable> {
        let secrets = Arc::new(CallSecrets::new(call.shared_redactors()));
        let entry = Arc::new(self.auditor.open(&call, Arc::clone(&secrets))?);
        entry.may_change(false);
        let outcome = match is_authentic(&call, &self.policy.load(), self.clock.now()) {
            true => outcome,
            false => *caller_revoked(&call),
        };
        let outcome = secrets.redacted_outcome(outcome).await;
        let row = entry.close(&outcome, rows_of_step(&call, &outcome, &entry)).await?;
        UncommittedAnswer { request_id: call.request_id(), outcome, row }.committed().await
    }
}
