//! Deliveries to triggers: the data of the event is the input of a run.
//!
//! What such a run reads first is a stranger's text, so the run begins with the label `untrusted`, and what the trigger
//! narrows applies to all its steps.

use monstrum_agent::delivered::UNTRUSTED;
use monstrum_core::beside;
use monstrum_core::events::{EventCause, Nonce};
use monstrum_core::operations::events::of_data;
use monstrum_core::policy::{Snapshot, Trigger};
use monstrum_engine::TurnError;
use monstrum_flow::Definition;
use monstrum_store::{DeliveryEnd, DeliveryReason, DeliveryRow, RunStarter, WorkflowRow};
use monstrum_types::{InputError, KeyId, UtcMillis, WorkflowTriggerId, with_causes};
use serde_json::json;

use super::{DeliveryTurns, Opened, Plan, dead, failed, rendered};
use crate::runs::DefinitionError;
use crate::runs::start::{NotStarted, StartOf, prepare};

/// The maximum number and the maximum length of the pointers that a delivery keeps. The names of fields in them come from the
/// event.
const PATHS_MAX: usize = 20;
const PATH_CHARS_MAX: usize = 256;

/// The kind of the source of events that are emitted with a key, whose id is then that of the source.
const PLATFORM: &str = "platform";

impl DeliveryTurns {
    /// Decides what becomes of a delivery to a trigger.
    pub(super) async fn to_trigger(
        &self,
        snapshot: &Snapshot,
        delivery: &DeliveryRow,
        opened: Opened,
        now: UtcMillis,
    ) -> Result<Plan, TurnError> {
        let Ok(id) = delivery.target_id.parse::<WorkflowTriggerId>() else {
            return Ok(dead(DeliveryReason::Unreadable));
        };
        let Some((trigger, workflow)) = snapshot.triggers().get(delivery.workspace_id, id) else {
            return Ok(dead(DeliveryReason::Deleted));
        };
        if workflow.bot_id != delivery.bot_id {
            return Ok(dead(DeliveryReason::Unreadable));
        }
        if !trigger.matches(workflow, &opened.event.row) {
            return Ok(dead(DeliveryReason::Disabled));
        }
        if self.is_spent(snapshot, delivery).await? {
            return Ok(dead(DeliveryReason::Budget));
        }
        match self.definitions.of(workflow.workspace_id, workflow.id, workflow.version).await {
            Ok(definition) => self.run(delivery, opened, (trigger, workflow, &definition), now),
            Err(error @ (DefinitionError::Missing | DefinitionError::Faulty(_))) => {
                let error = with_causes(&error);
                tracing::error!(workflow.id = %workflow.id, %error, "a workflow cannot be read, so an event starts no run");
                Ok(dead(DeliveryReason::Unreadable))
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// Prepares the run of a delivery.
    fn run(
        &self,
        delivery: &DeliveryRow,
        opened: Opened,
        (trigger, workflow, definition): (&Trigger, &WorkflowRow, &Definition),
        now: UtcMillis,
    ) -> Result<Plan, TurnError> {
        let instruction = rendered(&trigger.template, &opened, &Nonce::random())?;
        let Opened { event, data } = opened;
        let shown = of_data(&event, data.clone()).map_err(|error| failed(&error))?;
        let start = StartOf {
            starters: starters(&trigger.starters, (&event.row.source_type, &event.row.source_id)),
            trigger: Some(json!({ "event": shown, "instruction": instruction })),
            narrow: trigger.narrow.clone(),
            labels: [UNTRUSTED.to_owned()].into_iter().collect(),
            cause: Some(EventCause::of(&event.row)),
            event: Some(event.row.id),
            delivery: Some(delivery.id),
            ..StartOf::new(workflow, data, (RunStarter::Trigger, trigger.row.id.to_string()), now)
        };
        // The check of the input and the expression of the key can take a tenth of a second.
        match beside::in_place(true, || prepare(&self.app, definition, start)) {
            Ok(run) => Ok(Plan::Run(Box::new(run))),
            Err(NotStarted::Input(errors)) => Ok(Plan::End(misfit(errors))),
            Err(error @ NotStarted::Failed(_)) => Err(failed(&error)),
        }
    }
}

/// Returns the keys that count as the starters of a run: those that made the trigger, and the one that emitted the event.
fn starters(of_trigger: &[KeyId], (source_type, source_id): (&str, &str)) -> Vec<KeyId> {
    let mut starters = of_trigger.to_vec();
    if source_type == PLATFORM
        && let Ok(key) = source_id.parse::<KeyId>()
        && !starters.contains(&key)
    {
        starters.push(key);
    }
    starters
}

/// Returns the end of a delivery whose data does not fit. It keeps where the errors are, but not their messages, which can
/// repeat the data.
fn misfit(errors: Vec<InputError>) -> DeliveryEnd {
    let mut invalid_paths: Vec<String> = Vec::new();
    for InputError { path, .. } in errors {
        let path: String = path.chars().take(PATH_CHARS_MAX).collect();
        if invalid_paths.len() < PATHS_MAX && !invalid_paths.contains(&path) {
            invalid_paths.push(path);
        }
    }
    DeliveryEnd::Misfit { invalid_paths }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_emitted_the_event_counts_as_a_starter() {
        let (maker, emitter) = (KeyId::new(), KeyId::new());
        let of = |source_type: &str, key: KeyId| starters(&[maker], (source_type, &key.to_string()));
        assert_eq!(of("platform", emitter), [maker, emitter]);
        assert_eq!(of("platform", maker), [maker]);
        assert_eq!(of("webhook", emitter), [maker], "the source of other events is no key");
        assert_eq!(starters(&[maker], ("platform", "elsewhere")), [maker]);
    }

    #[test]
    fn a_delivery_keeps_where_its_data_does_not_fit() {
        let error = |path: &str| InputError { path: path.to_owned(), message: "\"s3cret\" is not a number".to_owned() };
        let end = misfit(vec![error("/a"), error(""), error("/a")]);
        assert_eq!(end, DeliveryEnd::Misfit { invalid_paths: vec!["/a".to_owned(), String::new()] });
        let long = "/é".repeat(PATH_CHARS_MAX);
        let many = (0..99).map(|number| error(&format!("/{number}{long}"))).collect();
        let DeliveryEnd::Misfit { invalid_paths } = misfit(many) else { panic!("it is one") };
        assert_eq!(invalid_paths.len(), PATHS_MAX);
        assert!(invalid_paths.iter().all(|path| path.chars().count() == PATH_CHARS_MAX));
    }
}
