//! A definition as the parser leaves it.

use std::collections::HashSet;

use serde_json::Value;

use crate::expr::{Expression, Piece, Template};
use crate::fault::Spot;

/// Maximum number of steps of a definition, with those in blocks and in `finally`.
pub const STEPS_IN_DEFINITION_MAX: usize = 200;
/// Maximum nesting depth of blocks.
pub const BLOCK_DEPTH_MAX: usize = 8;
/// Maximum length of all expressions of a definition in bytes.
pub const EXPRESSIONS_BYTES_MAX: usize = 32 * 1024;
/// Maximum number of items of `each`.
pub const EACH_ITEMS_MAX: usize = 1_000;
/// Maximum number of attempts of a step.
pub const RETRY_ATTEMPTS_MAX: u32 = 10;

/// A checked definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// The name of the workflow.
    pub workflow: String,
    /// The name or id of the bot that runs it.
    pub bot: String,
    /// The JSON Schema of a run's input.
    pub input: Option<Value>,
    /// How long a run may take.
    pub timeout_ms: i64,
    /// How many runs may run at once, if there is a limit.
    pub concurrency: Option<Concurrency>,
    /// The steps.
    pub steps: Vec<Step>,
    /// The steps that run at the end in any case.
    pub finally: Vec<Step>,
    /// The output of a completed run.
    pub output: Option<Template>,
}

/// The limit of runs at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// How many.
    pub max: u32,
    /// Runs with another value of this template have a limit of their own.
    pub key: Option<Template>,
    /// What becomes of a run beyond the limit.
    pub full: WhenFull,
}

/// What becomes of a run for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits.
    Queue,
    /// It is not started.
    Skip,
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The id, unique in the definition.
    pub id: String,
    /// What it does.
    pub kind: StepKind,
    /// The step is skipped if this does not hold.
    pub when: Option<Expression>,
    /// The steps of the same list that must have ended before: the one before it, unless `needs` says otherwise.
    pub needs: Vec<String>,
    /// How long one attempt may take.
    pub timeout_ms: Option<i64>,
    /// When it is repeated.
    pub retry: Retry,
    /// What its failure means.
    pub on_error: OnError,
    /// What happens if its effect is not known.
    pub on_uncertain: OnUncertain,
    /// The call that undoes it.
    pub undo: Option<ToolUse>,
    pub(crate) spot: Spot,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum StepKind {
    /// Calls a tool.
    Tool(ToolUse),
    /// Gives the bot a task.
    Agent(AgentUse),
    /// Runs the steps of the first branch whose condition holds.
    Choose(Vec<Branch>),
    /// Runs named lists of steps at once.
    Parallel(Vec<(String, Vec<Step>)>),
    /// Runs steps for each item of a list.
    Each(Each),
    /// Waits.
    Wait(Wait),
    /// Asks a person.
    Approve(Approve),
    /// Runs another workflow of the same bot.
    Workflow {
        /// Its name.
        workflow: String,
        /// Its input.
        input: Template,
    },
    /// Emits an event.
    Emit {
        /// The name, without `custom.`.
        name: String,
        /// The data.
        data: Template,
    },
    /// Ends the run.
    Stop {
        /// Whether the run then is completed; otherwise it failed.
        completed: bool,
        /// Why.
        message: Option<Template>,
        /// The output of the run.
        output: Option<Template>,
    },
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// The name of the tool.
    pub tool: String,
    /// The parameters.
    pub params: Template,
    /// The name of the resource, if the bot has several for the tool.
    pub resource: Option<Template>,
    pub(crate) spot: Spot,
}

/// A task of the bot.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentUse {
    /// The instruction. Values of expressions are data for the model, not instructions.
    pub instruction: Vec<Piece>,
    /// Data for the task.
    pub params: Template,
    /// The schema of the result.
    pub output_schema: Option<Value>,
    /// Limits of the task.
    pub limits: Option<Value>,
    /// Restrictions of the tools and scopes.
    pub narrow: Option<Value>,
}

/// A branch of `choose`.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// The condition. Only the last branch may have none.
    pub when: Option<Expression>,
    /// The steps.
    pub steps: Vec<Step>,
}

/// Steps for each item of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Each {
    /// The list.
    pub list: Template,
    /// The steps of an item.
    pub steps: Vec<Step>,
    /// How many items run at once.
    pub concurrency: u32,
    /// What the failure of an item means.
    pub on_item_error: OnError,
    /// The data of an item; otherwise that of its last step.
    pub collect: Option<Expression>,
}

/// What is awaited.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// A duration.
    For(i64),
    /// A time.
    Until(Template),
    /// An event.
    Event {
        /// The exact type.
        event_type: String,
        /// Fields of its data with their values.
        matches: Vec<(String, Template)>,
        /// Whether events since the start of the run count, instead of the start of the step.
        since_run: bool,
    },
}

/// A question to a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Approve {
    /// The question.
    pub text: Template,
    /// The ids of the tool steps that are approved.
    pub targets: Vec<String>,
    /// Which roles may decide.
    pub by: Vec<String>,
    /// How long the question stays open.
    pub expires_ms: i64,
    /// Whether the person who started the run may decide.
    pub allow_starter: bool,
}

/// When a step is repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How many attempts there are in all.
    pub attempts: u32,
    /// The pause before the second attempt; it doubles before each further one.
    pub backoff_ms: i64,
    /// The longest pause.
    pub backoff_max_ms: i64,
    /// The codes that are repeated; all if there is none.
    pub on: Vec<String>,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { attempts: 1, backoff_ms: 1_000, backoff_max_ms: 300_000, on: Vec::new() }
    }
}

/// What a failure means for the steps after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The list of steps fails.
    #[default]
    Fail,
    /// The steps after it go on.
    Continue,
}

/// What happens if it is unknown whether a call had its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUncertain {
    /// The step fails.
    #[default]
    Fail,
    /// The call is repeated: the author says that two calls are harmless.
    Retry,
    /// A person decides.
    Ask,
}

impl StepKind {
    /// The key that names the kind.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            StepKind::Tool(_) => "tool",
            StepKind::Agent(_) => "agent",
            StepKind::Choose(_) => "choose",
            StepKind::Parallel(_) => "parallel",
            StepKind::Each(_) => "each",
            StepKind::Wait(_) => "wait",
            StepKind::Approve(_) => "approve",
            StepKind::Workflow { .. } => "workflow",
            StepKind::Emit { .. } => "emit",
            StepKind::Stop { .. } => "stop",
        }
    }
}

impl Step {
    /// The lists of steps inside this one.
    #[must_use]
    pub fn inner(&self) -> Vec<&[Step]> {
        match &self.kind {
            StepKind::Choose(branches) => branches.iter().map(|branch| branch.steps.as_slice()).collect(),
            StepKind::Parallel(branches) => branches.iter().map(|(_, steps)| steps.as_slice()).collect(),
            StepKind::Each(each) => vec![each.steps.as_slice()],
            _ => Vec::new(),
        }
    }

    /// Calls `visit` for this step and all steps inside it.
    pub fn walk<'s>(&'s self, visit: &mut dyn FnMut(&'s Step)) {
        visit(self);
        for list in self.inner() {
            list.iter().for_each(|step| step.walk(visit));
        }
    }
}

impl Definition {
    /// Calls `visit` for each step, also of `finally`.
    pub fn walk<'d>(&'d self, visit: &mut dyn FnMut(&'d Step)) {
        self.steps.iter().chain(&self.finally).for_each(|step| step.walk(visit));
    }

    /// The ids of the steps of `finally`, with those in blocks.
    pub(crate) fn finally_ids(&self) -> HashSet<&str> {
        let mut ids = HashSet::new();
        for step in &self.finally {
            step.walk(&mut |step| {
                ids.insert(step.id.as_str());
            });
        }
        ids
    }

    /// The names of the workflows that steps run. The caller checks that they exist and call each other in no circle.
    #[must_use]
    pub fn called_workflows(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.walk(&mut |step| {
            if let StepKind::Workflow { workflow, .. } = &step.kind {
                names.push(workflow.as_str());
            }
        });
        names
    }
}
