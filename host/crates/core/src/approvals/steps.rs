//! Approvals of steps of workflows: a question of a run, and the calls of later steps that the answer approves.
//!
//! The digest of such an approval covers the workspace, the bot, the run, the step, the item and the text, and for each call the tool,
//! the resource, the operation, the parameters and the definition. The decision is final: the approval stays in force for
//! exactly these calls of its run, and becomes void when one of them has changed.

use monstrum_guardian::Approver;
use monstrum_store::{ApprovalKind, ApprovalRow, ApprovalStatus, AskedApproval, EventRow, NewApproval, StoreError};
use monstrum_types::{
    ApprovalId, BotId, Digest, KeyId, Labels, ResourceId, RunId, UtcMillis, WorkflowId, WorkspaceId, canonical,
};
use monstrum_vault::{Vault, VaultError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{ApprovalError, Approvals, PENDING_MAX, Undone, change, content_digest, place_of, shown};
use crate::events::{EventCause, EventLinks, EventType, NewEvent, seal};

/// The maximum size of the text of a question in bytes. A person reads it with each request.
pub const STEP_TEXT_BYTES_MAX: usize = 8 << 10;
/// The maximum size of the parameters of all calls that one question names, as JSON text. One call has the same limit.
pub const STEP_PARAMS_BYTES_MAX: usize = 1 << 20;
/// The maximum size of the text in the event, in bytes.
const EVENT_TEXT_BYTES_MAX: usize = 4 << 10;

/// The attempt of a step that asks.
#[derive(Clone, Copy, Debug)]
pub struct StepPosition<'a> {
    pub workspace: WorkspaceId,
    pub bot: BotId,
    pub run: RunId,
    pub step: &'a str,
    /// The items of the blocks around the step, such as `3.0`; empty outside of `each`.
    pub item: &'a str,
    pub run_attempt: i64,
    /// The attempt of the step; 0 for a question that is asked again because a call has changed.
    pub attempt: i64,
}

/// A call of a later step, as it was approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTarget {
    pub step: String,
    pub tool: String,
    pub resource_id: ResourceId,
    pub operation: String,
    pub effect: String,
    /// The digest of what the call runs. See [`definition()`](super::definition()).
    pub definition: Digest,
    /// The digest of the call in its run.
    pub digest: Digest,
}

/// What a call of a later step runs.
#[derive(Clone, Debug)]
pub struct StepTargetParts {
    pub step: String,
    pub tool: String,
    pub resource: ResourceId,
    pub operation: String,
    pub effect: String,
    pub definition: Digest,
}

/// What an approver reads of a question, without secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepQuestion {
    pub text: String,
    /// The parameters of the calls, in the order of the targets.
    pub params: Vec<Value>,
}

/// A step that asks for an approval.
#[derive(Clone, Debug)]
pub struct AskingStep<'a> {
    pub position: StepPosition<'a>,
    pub workflow: WorkflowId,
    /// The kinds of keys that may decide, in addition to root keys.
    pub approvers: Vec<Approver>,
    /// Whether the keys in `starters` may decide.
    pub allow_starter: bool,
    /// The keys that started the run, or made what started it.
    pub starters: Vec<KeyId>,
    /// The labels of what the run has read.
    pub labels: &'a Labels,
    pub cause: Option<EventCause>,
    pub expires_at: UtcMillis,
    pub targets: Vec<StepTarget>,
    pub question: StepQuestion,
}

/// How the approval of a step stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepDecision {
    /// No person has decided yet.
    Pending,
    Approved {
        by: KeyId,
        note: Option<String>,
        at: UtcMillis,
    },
    Denied {
        note: Option<String>,
    },
    /// The time limit has passed.
    Expired,
    /// A call has changed, so the question must be asked again.
    Void,
}

impl StepDecision {
    /// Returns the data of a step that was approved.
    #[must_use]
    pub fn data(&self) -> Option<Value> {
        match self {
            StepDecision::Approved { by, note, at } => Some(json!({ "by": by, "note": note, "at": at })),
            _ => None,
        }
    }

    /// Returns why a step fails, as a code and a message.
    #[must_use]
    pub fn failure(&self) -> Option<(&'static str, String)> {
        match self {
            StepDecision::Denied { note } => {
                let because = note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
                Some(("denied", format!("a person has denied this step{because}")))
            }
            StepDecision::Expired => Some(("timeout", "no person has decided in time".to_owned())),
            StepDecision::Pending | StepDecision::Approved { .. } | StepDecision::Void => None,
        }
    }
}

/// Returns how the approval of a step stands at `now`. The row must have been authenticated.
#[must_use]
pub fn step_decision(row: &ApprovalRow, now: UtcMillis) -> StepDecision {
    match (row.status, row.decided_by, row.decided_at) {
        (ApprovalStatus::Approved, Some(by), Some(at)) => StepDecision::Approved { by, note: row.note.clone(), at },
        (ApprovalStatus::Denied, ..) => StepDecision::Denied { note: row.note.clone() },
        (ApprovalStatus::Pending, ..) if row.expires_at > now => StepDecision::Pending,
        (ApprovalStatus::Pending | ApprovalStatus::Expired, ..) => StepDecision::Expired,
        // A step uses its approval only here, and a decision without a key does not count.
        (ApprovalStatus::Approved | ApprovalStatus::Used | ApprovalStatus::Void, ..) => StepDecision::Void,
    }
}

/// Returns the calls that an approval names; `None` for the approval of a call, or if they cannot be read.
#[must_use]
pub fn targets_of(row: &ApprovalRow) -> Option<Vec<StepTarget>> {
    row.targets.as_ref().and_then(|targets| Vec::deserialize(targets).ok())
}

impl StepTarget {
    /// Creates the target of a question for a call with these parameters, which include the defaults.
    #[must_use]
    pub fn new(position: &StepPosition<'_>, parts: StepTargetParts, params: &Map<String, Value>) -> StepTarget {
        let StepTargetParts { step, tool, resource, operation, effect, definition } = parts;
        let StepPosition { workspace, bot, run, item, .. } = position;
        let properties = json!({
            "v": 1,
            "workspace": workspace,
            "bot": bot,
            "run": run,
            "step": step,
            "item": item,
            "tool": tool,
            "resource": resource,
            "operation": operation,
            "effect": effect,
            "definition": definition,
        });
        let mut text = String::new();
        canonical::write(&properties, &mut text);
        canonical::write_object(params, &mut text);
        let digest = content_digest(text.as_bytes());
        StepTarget { step, tool, resource_id: resource, operation, effect, definition, digest }
    }
}

impl AskingStep<'_> {
    /// Returns the digest of the question.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let StepPosition { workspace, bot, run, step, item, run_attempt, attempt } = self.position;
        let targets: Vec<Value> = self.targets.iter().map(|target| json!([target.step, target.digest])).collect();
        digest_of(&json!({
            "v": 1,
            "kind": ApprovalKind::Step.as_str(),
            "workspace": workspace,
            "bot": bot,
            "run": run,
            "step": step,
            "item": item,
            "attempt": [run_attempt, attempt],
            "text": self.question.text,
            "for": targets,
        }))
    }

    /// Returns the row of a new approval.
    #[must_use]
    pub fn row(&self, now: UtcMillis) -> ApprovalRow {
        let StepPosition { workspace, bot, run, step, item, .. } = self.position;
        let definitions: Vec<Value> = self.targets.iter().map(|it| json!([it.step, it.definition])).collect();
        ApprovalRow {
            id: ApprovalId::new(),
            workspace_id: workspace,
            kind: ApprovalKind::Step,
            digest: self.digest(),
            definition: digest_of(&Value::from(definitions)),
            status: ApprovalStatus::Pending,
            bot_id: bot,
            app_id: None,
            user_id: None,
            tool: None,
            resource_id: None,
            operation: None,
            effect: None,
            links: json!([]),
            labels: json!(self.labels.names()),
            gates: json!([]),
            approvers: json!(self.approvers),
            allow_starter: self.allow_starter,
            asked_key: None,
            asked_task: None,
            request_id: None,
            created_at: now,
            expires_at: self.expires_at,
            decided_by: None,
            decided_at: None,
            note: None,
            ended_at: None,
            changed_at: now,
            run_id: Some(run),
            run_step: Some(step.to_owned()),
            item: Some(item.to_owned()).filter(|item| !item.is_empty()),
            targets: Some(json!(self.targets)),
            starters: Some(json!(self.starters)),
        }
    }
}

impl StepQuestion {
    /// Seals the question for its row.
    pub fn sealed(&self, vault: &Vault, row: &ApprovalRow) -> Result<String, VaultError> {
        Ok(vault.seal(json!(self).to_string().as_bytes(), place_of(row))?.to_string())
    }
}

fn digest_of(properties: &Value) -> Digest {
    let mut text = String::new();
    canonical::write(properties, &mut text);
    content_digest(text.as_bytes())
}

impl Approvals {
    /// Makes the approval for which a step asks. The turn of the run inserts it, with [`Approvals::in_turn`].
    pub fn of_step(&self, asking: &AskingStep<'_>) -> Result<NewApproval, ApprovalError> {
        let row = asking.row(self.clock.now());
        let sealed = asking.question.sealed(&self.vault, &row)?;
        let requested = self.step_requested(&row, asking)?;
        Ok(NewApproval { row, sealed, requested, max: PENDING_MAX })
    }

    /// Returns the event that reports the approval of a step.
    fn step_requested(&self, row: &ApprovalRow, asking: &AskingStep<'_>) -> Result<EventRow, ApprovalError> {
        let text = &asking.question.text;
        let event = NewEvent {
            workspace_id: row.workspace_id,
            event_type: EventType::ApprovalRequested.into(),
            source_type: "workflow",
            source_id: asking.workflow.to_string(),
            bot_id: Some(row.bot_id),
            links: EventLinks { run_id: row.run_id, ..EventLinks::default() },
            cause: asking.cause,
            data: json!({
                "approval_id": row.id,
                "kind": row.kind.as_str(),
                "text": &text[..text.floor_char_boundary(EVENT_TEXT_BYTES_MAX)],
                "expires_at": row.expires_at,
            }),
        };
        Ok(seal(&self.vault, event, row.created_at)?)
    }

    /// Returns how many further approvals of a bot may be pending.
    pub(crate) async fn room(&self, workspace: WorkspaceId, bot: BotId) -> Result<i64, StoreError> {
        self.store.room_for_approvals(workspace, bot, PENDING_MAX, self.clock.now()).await
    }

    /// Records a turn of a run that asks for the approvals `new` and makes those in `void` void, and makes both by running
    /// `work`. `is_done` says whether `work` has written them. Without approvals, only `work` runs. If the records cannot be
    /// written, `work` does not run.
    pub async fn in_turn<T>(
        &self,
        new: &[NewApproval],
        void: &[ApprovalRow],
        work: impl Future<Output = Result<T, StoreError>>,
        is_done: impl Fn(&T) -> bool,
    ) -> Result<T, ApprovalError> {
        if new.is_empty() && void.is_empty() {
            return Ok(work.await?);
        }
        let asked = new.iter().map(|new| change("approval.ask", &new.row, None, Value::Null, shown(&new.row)));
        let changes = asked.chain(void.iter().map(voided)).collect();
        let work = async {
            match work.await {
                Ok(result) if is_done(&result) => Ok(result),
                Ok(result) => Err(Undone::Moved(result)),
                Err(error) => Err(Undone::Failed(error)),
            }
        };
        let (done, closed) = self.auditor.record_all(changes, work, Undone::code).await?;
        let done = match done {
            Ok(result) => result,
            Err(Undone::Moved(result)) => return Ok(result),
            Err(Undone::Failed(error)) => return Err(error.into()),
        };
        for new in new {
            self.notify(new.row.id);
            self.emitter.signal(&new.requested);
        }
        void.iter().for_each(|row| self.notify(row.id));
        if closed.is_err() {
            // The turn has taken place. The writer of the audit writes the rows as soon as it can.
            tracing::error!("the outcome of the approvals of a run has not been written to the audit yet");
        }
        Ok(done)
    }

    /// Asks a question again, because a call has changed since it was approved. Returns the approval that the question has
    /// now.
    pub(crate) async fn ask_step_again(&self, new: &NewApproval) -> Result<ApprovalRow, ApprovalError> {
        let change = change("approval.ask", &new.row, None, Value::Null, shown(&new.row));
        let asked = self.store.ask_approval(&new.row, &new.sealed, Some(&new.requested), new.max);
        let is_done = |asked: &AskedApproval| matches!(asked, AskedApproval::New(_));
        match self.recorded(change, asked, is_done).await? {
            AskedApproval::New(row) => {
                self.notify(row.id);
                self.emitter.signal(&new.requested);
                Ok(row)
            }
            AskedApproval::Known(row) | AskedApproval::Due(row) => Ok(row),
            AskedApproval::Full => Err(ApprovalError::Full),
        }
    }

    /// Makes an approval void whose call has changed. Another host may have done so.
    pub(crate) async fn void_step(&self, row: &ApprovalRow) -> Result<(), ApprovalError> {
        let voiding = self.store.void_step_approval(row, self.clock.now());
        if self.recorded(voided(row), voiding, |is_void| *is_void).await? {
            self.notify(row.id);
        }
        Ok(())
    }
}

fn voided(row: &ApprovalRow) -> crate::audit::Change {
    let after = json!({ "id": row.id, "status": ApprovalStatus::Void.as_str() });
    change("approval.void", row, None, shown(row), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(character: char) -> Digest {
        format!("sha256:{}", character.to_string().repeat(64)).parse().unwrap()
    }

    fn parts() -> StepTargetParts {
        StepTargetParts {
            step: "announce".to_owned(),
            tool: "github_create_issue".to_owned(),
            resource: "01998a3c-0000-7000-8000-000000000001".parse().unwrap(),
            operation: "issue.write".to_owned(),
            effect: "write".to_owned(),
            definition: digest('d'),
        }
    }

    fn position() -> StepPosition<'static> {
        StepPosition {
            workspace: "01998a3c-0000-7000-8000-000000000002".parse().unwrap(),
            bot: "01998a3c-0000-7000-8000-000000000003".parse().unwrap(),
            run: "01998a3c-0000-7000-8000-000000000004".parse().unwrap(),
            step: "ok",
            item: "3",
            run_attempt: 1,
            attempt: 1,
        }
    }

    fn params(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(params) => params,
            other => panic!("{other} is not an object"),
        }
    }

    /// Each property of a call makes it another call, and numbers that a double cannot tell apart do too.
    #[test]
    fn a_call_is_approved_with_everything_that_it_is() {
        let of = |position: &StepPosition<'_>, parts: StepTargetParts, value: Value| {
            StepTarget::new(position, parts, &params(value)).digest
        };
        let call = json!({ "n": 9_007_199_254_740_992_u64 });
        let approved = of(&position(), parts(), call.clone());
        assert_eq!(approved, of(&position(), parts(), call.clone()));
        let moved: [fn(&mut StepPosition<'static>); 4] = [
            |it| it.workspace = WorkspaceId::new(),
            |it| it.bot = BotId::new(),
            |it| it.run = RunId::new(),
            |it| it.item = "4",
        ];
        for edit in moved {
            let mut edited = position();
            edit(&mut edited);
            assert_ne!(of(&edited, parts(), call.clone()), approved, "{edited:?}");
        }
        let changed: [fn(&mut StepTargetParts); 6] = [
            |it| it.step = "other".to_owned(),
            |it| it.tool = "github_close_issue".to_owned(),
            |it| it.resource = ResourceId::new(),
            |it| it.operation = "issue.delete".to_owned(),
            |it| it.effect = "read".to_owned(),
            |it| it.definition = digest('e'),
        ];
        for edit in changed {
            let mut edited = parts();
            edit(&mut edited);
            assert_ne!(of(&position(), edited.clone(), call.clone()), approved, "{edited:?}");
        }
        assert_ne!(of(&position(), parts(), json!({ "n": 9_007_199_254_740_993_u64 })), approved);
    }

    #[test]
    fn a_question_is_approved_with_its_text_its_place_and_its_calls() {
        let labels = Labels::none();
        let asking = |position: StepPosition<'static>, text: &str, targets: Vec<StepTarget>| AskingStep {
            position,
            workflow: WorkflowId::new(),
            approvers: vec![Approver::Admin],
            allow_starter: true,
            starters: Vec::new(),
            labels: &labels,
            cause: None,
            expires_at: UtcMillis(2),
            targets,
            question: StepQuestion { text: text.to_owned(), params: Vec::new() },
        };
        let target = StepTarget::new(&position(), parts(), &Map::new());
        let approved = asking(position(), "Go?", vec![target.clone()]).digest();
        assert_eq!(asking(position(), "Go?", vec![target.clone()]).digest(), approved);
        let others = [
            asking(position(), "Go!", vec![target.clone()]),
            asking(position(), "Go?", Vec::new()),
            asking(position(), "Go?", vec![target.clone(), target.clone()]),
            asking(position(), "Go?", vec![StepTarget::new(&position(), parts(), &params(json!({ "a": 1 })))]),
            asking(StepPosition { step: "ok_2", ..position() }, "Go?", vec![target.clone()]),
            asking(StepPosition { item: "", ..position() }, "Go?", vec![target.clone()]),
            asking(StepPosition { run: RunId::new(), ..position() }, "Go?", vec![target.clone()]),
            asking(StepPosition { workspace: WorkspaceId::new(), ..position() }, "Go?", vec![target.clone()]),
            asking(StepPosition { run_attempt: 2, ..position() }, "Go?", vec![target.clone()]),
            asking(StepPosition { attempt: 2, ..position() }, "Go?", vec![target.clone()]),
        ];
        for other in others {
            assert_ne!(other.digest(), approved, "{other:?}");
        }
        let row = asking(position(), "Go?", vec![target.clone()]).row(UtcMillis(1));
        assert_eq!((row.kind, row.tool.as_ref(), row.item.as_deref()), (ApprovalKind::Step, None, Some("3")));
        assert_eq!(targets_of(&row), Some(vec![target]));
    }

    #[test]
    fn only_an_approval_that_a_key_has_given_lets_a_step_succeed() {
        let labels = Labels::none();
        let asking = AskingStep {
            position: position(),
            workflow: WorkflowId::new(),
            approvers: Vec::new(),
            allow_starter: false,
            starters: Vec::new(),
            labels: &labels,
            cause: None,
            expires_at: UtcMillis(100),
            targets: Vec::new(),
            question: StepQuestion { text: "Go?".to_owned(), params: Vec::new() },
        };
        let (key, at) = (KeyId::new(), UtcMillis(50));
        let row = |status| ApprovalRow { status, ..asking.row(UtcMillis(1)) };
        let decided = |status| ApprovalRow {
            decided_by: Some(key),
            decided_at: Some(at),
            note: Some("on Monday".to_owned()),
            ..row(status)
        };
        let approved = step_decision(&decided(ApprovalStatus::Approved), UtcMillis(1_000));
        assert_eq!(approved.data(), Some(json!({ "by": key, "note": "on Monday", "at": at })));
        for (row, now, failure) in [
            (decided(ApprovalStatus::Denied), 99, Some("denied")),
            (row(ApprovalStatus::Pending), 99, None),
            (row(ApprovalStatus::Pending), 100, Some("timeout")),
            (row(ApprovalStatus::Expired), 99, Some("timeout")),
            (row(ApprovalStatus::Void), 99, None),
            (row(ApprovalStatus::Approved), 99, None),
            (decided(ApprovalStatus::Used), 99, None),
        ] {
            let decision = step_decision(&row, UtcMillis(now));
            assert_eq!(decision.failure().map(|(code, _)| code), failure, "{row:?}");
            assert_eq!(decision.data(), None, "{row:?}");
        }
    }
}
