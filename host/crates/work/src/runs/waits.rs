//! The events for which steps of runs wait.
//!
//! The dispatch of an event requests turns of the runs that wait for one of its type. Such a turn searches the dispatched
//! events, so that no event is missed while a host restarts: the rows are the truth, and what this module remembers only
//! spares it to open an event twice.

use std::collections::HashMap;
use std::sync::Arc;

use monstrum_agent::delivered::UNTRUSTED;
use monstrum_core::app::App;
use monstrum_core::events;
use monstrum_core::operations::events::of_data;
use monstrum_engine::TurnError;
use monstrum_flow::StepError;
use monstrum_store::{RunRow, RunStepRow, SequencedEvent};
use monstrum_types::{BotId, Labels, WorkspaceId, with_causes};
use parking_lot::Mutex;
use serde_json::Value;

use super::record::{StepContent, WaitContent};

/// The maximum number of attempts of a workspace that wait for events of one type: each event requests the turns of all their
/// runs.
const WAITS_MAX: i64 = 10_000;
/// The number of events that are read at once.
const READ: u32 = 100;
/// The maximum number of attempts whose positions are remembered.
const SEEN_MAX: usize = 20_000;

/// Finds the events for which steps of the runs of a host wait.
pub struct Waits {
    app: Arc<App>,
    /// The position of the last event that was compared, by attempt.
    seen: Mutex<HashMap<String, i64>>,
}

impl Waits {
    /// Creates the searches of a host.
    #[must_use]
    pub fn new(app: Arc<App>) -> Waits {
        Waits { app, seen: Mutex::new(HashMap::new()) }
    }

    /// Returns the error of a step that would begin to wait for events of a type, if too many wait for them.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn refusal(&self, workspace: WorkspaceId, event_type: &str) -> Result<Option<StepError>, TurnError> {
        let waits = self.app.store.count_event_waits(workspace, event_type).await?;
        Ok((waits >= WAITS_MAX)
            .then(|| StepError::new("limit", format!("{WAITS_MAX} steps of the workspace wait for `{event_type}`"))))
    }

    /// Returns the first event that ends the wait of an attempt, as JSON; `None` while there is none, and for an attempt that
    /// waits for no event. Events of the bot of the run and of the platform count.
    ///
    /// A turn that begins a wait cannot see an event that is dispatched at the same time, so the run needs another turn right
    /// after it.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn found(
        &self,
        run: &RunRow,
        step: &RunStepRow,
        content: &StepContent,
    ) -> Result<Option<Value>, TurnError> {
        let Some(WaitContent::Event { event_type, matches, since, seen }) = &content.wait else { return Ok(None) };
        let position = step.key().position();
        let mut after = self.seen.lock().get(&position).copied().unwrap_or(0).max(*seen);
        loop {
            let (workspace, from) = (run.workspace_id, (after, *since));
            let events = self.app.store.events_of_type(workspace, event_type, from, READ).await?;
            for event in &events {
                if let Some(found) = self.matching(event, run.bot_id, matches) {
                    self.seen.lock().remove(&position);
                    return Ok(Some(found));
                }
                after = event.sequence.unwrap_or(after);
            }
            if events.len() < READ as usize {
                break;
            }
        }
        self.remember(position, after);
        Ok(None)
    }

    /// Returns the labels of an event: its author may be a stranger.
    #[must_use]
    pub fn labels() -> Labels {
        [UNTRUSTED.to_owned()].into_iter().collect()
    }

    /// Returns an event as JSON, if it is one of the bot or of the platform, and its data matches.
    fn matching(&self, event: &SequencedEvent, bot: BotId, matches: &[(String, Value)]) -> Option<Value> {
        if event.row.bot_id.is_some_and(|of| of != bot) {
            return None;
        }
        let shown = events::open(&self.app.vault, &event.row).and_then(|data| {
            let fits = fits(&data, matches);
            Ok(if fits { Some(serde_json::to_value(of_data(event, data)?)?) } else { None })
        });
        shown.unwrap_or_else(|error| {
            let error = with_causes(&error);
            tracing::error!(event.id = %event.row.id, %error, "an event cannot be opened, so it ends no wait");
            None
        })
    }

    fn remember(&self, position: String, after: i64) {
        let mut seen = self.seen.lock();
        if seen.len() >= SEEN_MAX && !seen.contains_key(&position) {
            // The events are read again, from the beginning of each wait.
            seen.clear();
        }
        seen.insert(position, after);
    }
}

/// Returns whether the data of an event has these fields with these values.
fn fits(data: &Value, matches: &[(String, Value)]) -> bool {
    matches.iter().all(|(name, value)| data.get(name).is_some_and(|found| is_equal(found, value)))
}

/// Returns whether two values are equal. An expression can make a number with a fraction of a whole one.
fn is_equal(found: &Value, value: &Value) -> bool {
    match (found, value) {
        (Value::Number(found), Value::Number(value)) if found.is_f64() != value.is_f64() => {
            found.as_f64() == value.as_f64()
        }
        _ => found == value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_fits_by_the_top_level_fields_of_its_data() {
        let data = json!({ "repo": "acme/web", "number": 7, "labels": ["bug"], "nested": { "a": 1 } });
        let fits = |matches: Value| {
            let matches = matches.as_object().unwrap().clone().into_iter().collect::<Vec<_>>();
            fits(&data, &matches)
        };
        assert!(fits(json!({})));
        assert!(fits(json!({ "repo": "acme/web", "number": 7.0 })));
        assert!(fits(json!({ "labels": ["bug"], "nested": { "a": 1 } })));
        for other in [
            json!({ "repo": "acme/other" }),
            json!({ "repo": "acme/web", "number": 8 }),
            json!({ "number": "7" }),
            json!({ "missing": null }),
            json!({ "labels": "bug" }),
            json!({ "a": 1 }),
        ] {
            assert!(!fits(other.clone()), "{other}");
        }
        assert!(!super::fits(&json!("text"), &[("repo".to_owned(), json!("acme/web"))]));
    }
}
