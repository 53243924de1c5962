//! Prepares runs: the row and the wake that whoever starts a run inserts.
//!
//! A run may do what its bot may do, so nothing here decides about rights. What a run is started with is sealed: the input,
//! what narrows it, who started it, and its place in the chain of causes.

use monstrum_api::tasks::Narrow;
use monstrum_core::app::App;
use monstrum_core::events::EventCause;
use monstrum_flow::{Definition, WhenFull};
use monstrum_store::{RunRow, RunStarter, RunStatus, RunsMax, WorkflowRow};
use monstrum_types::{DeliveryId, EventId, InputError, KeyId, Labels, RunId, UtcMillis};
use monstrum_vault::Vault;
use serde_json::Value;

pub use monstrum_store::NewRun;

use super::keys;
use super::record::{RecordError, RunContent, seal_run};

/// The maximum size of the input of a run in bytes of JSON: as large as the result of a step, which can be the input of
/// another run.
pub const INPUT_BYTES_MAX: usize = 1 << 20;

/// The maximum numbers of runs of a workspace: 1000 that wait for room, and in all 100 000 more that wait for something else,
/// with 100 that run.
pub(super) const RUNS_MAX: RunsMax = RunsMax { of_workspace: 101_100, queued: 1_000, of_key: None };

/// The maximum number of runs whose steps have started each other, with the first one.
pub const RUN_DEPTH_MAX: u32 = 8;

/// What starts a run.
#[derive(Debug)]
pub struct StartOf<'a> {
    pub workflow: &'a WorkflowRow,
    /// The version of the definition.
    pub version: i64,
    pub input: Value,
    /// The kind and the id of what starts the run.
    pub starter: (RunStarter, String),
    /// The keys that start the run, or made what starts it.
    pub starters: Vec<KeyId>,
    /// The hash of the bot key that starts the run, in hex digits. The run ends with the key.
    pub bot_key_hash: Option<String>,
    /// The event and the rendered instruction, or the schedule, for expressions.
    pub trigger: Option<Value>,
    pub schedule: Option<Value>,
    /// What the run may do less than its bot.
    pub narrow: Option<Narrow>,
    /// The labels with which the run begins.
    pub labels: Labels,
    /// The event that causes the run.
    pub cause: Option<EventCause>,
    /// The run whose step starts this one, and the number of runs above this one.
    pub parent: Option<RunId>,
    pub depth: u32,
    /// The event and the delivery that start the run.
    pub event: Option<EventId>,
    pub delivery: Option<DeliveryId>,
    pub now: UtcMillis,
}

/// A run that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    #[error("the input does not fit the workflow")]
    Input(Vec<InputError>),
    #[error("the run cannot be sealed")]
    Failed(#[from] RecordError),
}

impl<'a> StartOf<'a> {
    /// Returns what starts a run of the newest version of a workflow, without a cause and without labels.
    #[must_use]
    pub fn new(workflow: &'a WorkflowRow, input: Value, starter: (RunStarter, String), now: UtcMillis) -> StartOf<'a> {
        StartOf {
            workflow,
            version: workflow.version,
            input,
            starter,
            starters: Vec::new(),
            bot_key_hash: None,
            trigger: None,
            schedule: None,
            narrow: None,
            labels: Labels::none(),
            cause: None,
            parent: None,
            depth: 0,
            event: None,
            delivery: None,
            now,
        }
    }
}

/// Prepares a run. `definition` is the version that the run keeps to its end.
///
/// # Errors
///
/// The input does not fit the schema of the definition or is too large, or the run cannot be sealed.
pub fn prepare(app: &App, definition: &Definition, start: StartOf<'_>) -> Result<NewRun, NotStarted> {
    prepared(&app.vault, definition, start)
}

fn prepared(vault: &Vault, definition: &Definition, start: StartOf<'_>) -> Result<NewRun, NotStarted> {
    check_input(definition, &start.input)?;
    let concurrency_key = concurrency_key(definition, &start)?;
    let StartOf { workflow, version, input, starter, starters, now, parent, .. } = start;
    let (started_by_kind, started_by_id) = starter;
    let content = RunContent {
        input,
        attempt: 1,
        trigger: start.trigger,
        schedule: start.schedule,
        cause: start.cause,
        depth: start.depth,
        narrow: start.narrow,
        bot_key_hash: start.bot_key_hash,
        starters,
        asked: None,
        ending: None,
        has_ended: false,
        uncertain: Vec::new(),
        undo_failed: Vec::new(),
        attempts: 0,
        labels: start.labels.clone(),
        started_at: None,
    };
    let mut row = RunRow {
        id: RunId::new(),
        workspace_id: workflow.workspace_id,
        workflow_id: workflow.id,
        workflow: workflow.name.clone(),
        version,
        bot_id: workflow.bot_id,
        status: RunStatus::Queued,
        attempt: 1,
        started_by_kind,
        started_by_id,
        event_id: start.event,
        delivery_id: start.delivery.map(|id| id.to_string()),
        parent_run_id: parent,
        concurrency_key,
        asked: None,
        code: None,
        labels: start.labels,
        created_at: now,
        started_at: None,
        deadline_at: None,
        ended_at: None,
        sealed: String::new(),
    };
    row.sealed = seal_run(vault, &row, &content)?;
    let wake = keys::wake(keys::run_key(row.id), row.workspace_id, now);
    let skips = definition.concurrency.as_ref().filter(|concurrency| concurrency.full == WhenFull::Skip);
    let max = RunsMax { of_key: skips.map(|concurrency| i64::from(concurrency.max)), ..RUNS_MAX };
    Ok(NewRun { row, wake, max })
}

fn check_input(definition: &Definition, input: &Value) -> Result<(), NotStarted> {
    let bytes = input.to_string().len();
    if bytes > INPUT_BYTES_MAX {
        let message = format!("must have at most {INPUT_BYTES_MAX} bytes of JSON, but has {bytes}");
        return Err(NotStarted::Input(vec![InputError { path: String::new(), message }]));
    }
    definition.check_input(input).map_err(|errors| {
        NotStarted::Input(errors.into_iter().map(|(path, message)| InputError { path, message }).collect())
    })
}

/// Returns the column for the limit of concurrency; `None` for a workflow that has none. The expression of the key may fail
/// for an input that fits the schema.
fn concurrency_key(definition: &Definition, start: &StartOf<'_>) -> Result<Option<String>, NotStarted> {
    if definition.concurrency.is_none() {
        return Ok(None);
    }
    let key = definition.concurrency_key(&start.input, start.trigger.as_ref(), start.schedule.as_ref());
    let key = key.map_err(|error| {
        let message = format!("the expression `concurrency.key` of the workflow fails for this input: {error}");
        NotStarted::Input(vec![InputError { path: String::new(), message }])
    })?;
    Ok(Some(RunRow::concurrency_column(key.as_deref())))
}

#[cfg(test)]
mod tests {
    use monstrum_flow::check;
    use monstrum_types::{BotId, WorkflowId, WorkspaceId};
    use monstrum_vault::MasterKeys;
    use serde_json::json;

    use super::super::record::open_run;
    use super::*;

    const DEFINITION: &str = "\
workflow: release
bot: tester
input: { type: object, required: [repo], properties: { repo: { type: string } } }
concurrency: { max: 1, key: \"${{ input.repo }}\" }
steps:
  - { id: announce, tool: send, params: { text: hi } }
";

    fn vault() -> Vault {
        Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap())
    }

    fn workflow() -> WorkflowRow {
        WorkflowRow {
            id: WorkflowId::new(),
            workspace_id: WorkspaceId::new(),
            bot_id: BotId::new(),
            name: "release".to_owned(),
            version: 3,
            enabled: true,
            created_at: UtcMillis(1),
            updated_at: UtcMillis(1),
        }
    }

    fn start<'a>(workflow: &'a WorkflowRow, input: Value) -> StartOf<'a> {
        StartOf::new(workflow, input, (RunStarter::Trigger, "t".to_owned()), UtcMillis(5))
    }

    #[test]
    fn a_run_is_sealed_with_what_starts_it() {
        let (vault, workflow) = (vault(), workflow());
        let definition = check(DEFINITION, None).unwrap().definition;
        let (event, delivery, key) = (EventId::new(), DeliveryId::new(), KeyId::new());
        let labels = Labels::from_text("untrusted");
        let new = StartOf {
            starters: vec![key],
            labels: labels.clone(),
            cause: Some(EventCause { root_event_id: event, depth: 2 }),
            event: Some(event),
            delivery: Some(delivery),
            ..start(&workflow, json!({ "repo": "acme/web" }))
        };
        let NewRun { row, wake, max } = prepared(&vault, &definition, new).unwrap();
        assert_eq!(wake.key.as_str(), format!("run/{}", row.id));
        assert_eq!((row.status, row.version, row.bot_id), (RunStatus::Queued, 3, workflow.bot_id));
        assert_eq!((row.event_id, row.delivery_id.as_deref()), (Some(event), Some(delivery.to_string().as_str())));
        let content = open_run(&vault, &row).unwrap();
        assert_eq!((content.starters, content.labels), (vec![key], labels));
        assert_eq!(content.cause, Some(EventCause { root_event_id: event, depth: 2 }));
        assert_eq!(max, RUNS_MAX, "runs beyond the limit are queued");
        // The column has no part of the input.
        assert!(row.concurrency_key.is_some_and(|key| key.starts_with("sha256:") && !key.contains("acme")));
    }

    #[test]
    fn runs_share_a_limit_by_the_key_of_their_input() {
        let (vault, workflow) = (vault(), workflow());
        let definition = check(DEFINITION, None).unwrap().definition;
        let key = |repo: &str| {
            prepared(&vault, &definition, start(&workflow, json!({ "repo": repo }))).unwrap().row.concurrency_key
        };
        assert_eq!(key("a"), key("a"));
        assert_ne!(key("a"), key("b"));
        let all = DEFINITION.replace(", key: \"${{ input.repo }}\"", "");
        let none = DEFINITION.lines().filter(|line| !line.starts_with("concurrency")).collect::<Vec<_>>().join("\n");
        let skip = all.replace("max: 1", "max: 2, full: skip");
        let shared = || Some("all".to_owned());
        for (text, expected) in [(all, (shared(), None)), (none, (None, None)), (skip, (shared(), Some(2)))] {
            let definition = check(&text, None).unwrap().definition;
            let NewRun { row, max, .. } =
                prepared(&vault, &definition, start(&workflow, json!({ "repo": "a" }))).unwrap();
            assert_eq!((row.concurrency_key, max.of_key), expected, "{text}");
        }
    }

    #[test]
    fn an_input_that_does_not_fit_starts_nothing() {
        let (vault, workflow) = (vault(), workflow());
        let paths = |text: &str, input: Value| {
            let definition = check(text, None).unwrap().definition;
            match prepared(&vault, &definition, start(&workflow, input)) {
                Err(NotStarted::Input(errors)) => errors.into_iter().map(|error| error.path).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(paths(DEFINITION, json!({ "repo": 1 })), ["/repo"]);
        assert_eq!(paths(DEFINITION, json!({})), [""]);
        assert_eq!(paths(DEFINITION, json!({ "repo": "x".repeat(INPUT_BYTES_MAX) })), [""]);
        // The schema permits what the expression of the key cannot read.
        let other = DEFINITION.replace("input.repo", "input.version");
        let other = other.replace("repo: { type: string }", "repo: { type: string }, version: { type: string }");
        assert_eq!(paths(&other, json!({ "repo": "a" })), [""]);
    }
}
