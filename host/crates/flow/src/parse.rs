//! Makes a definition of a document. Reports all faults that can be seen without looking at other steps.

mod fields;
mod kinds;
pub(crate) mod schema;
mod steps;

use std::collections::BTreeSet;

use crate::fault::{At, Fault};
use crate::model::{Concurrency, Definition, Step, WhenFull};
use crate::node::{self, Node};
use fields::{Fields, Parsing};

const DAY_MS: i64 = 86_400_000;
/// Maximum number of runs of a workflow at once, as of a whole workspace.
const CONCURRENCY_MAX: u32 = 100;
const NAME_FORM: &str = "a name has at most 63 lower case letters, digits and `-`, and starts with a letter";

/// What the parser could read, and the faults. A definition with faults may lack steps.
pub(crate) struct Parsed {
    pub(crate) definition: Option<Definition>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) more_faults: usize,
    pub(crate) broken: BTreeSet<String>,
    pub(crate) root: Option<Node>,
}

pub(crate) fn parse(text: &str) -> Parsed {
    let node = match node::read(text) {
        Ok(node) => node,
        Err(fault) => {
            return Parsed {
                definition: None,
                faults: vec![fault],
                more_faults: 0,
                broken: BTreeSet::new(),
                root: None,
            };
        }
    };
    let mut parsing = Parsing::default();
    let definition = document(&mut parsing, &node);
    let Parsing { faults, more_faults, broken, .. } = parsing;
    Parsed { definition, faults, more_faults, broken, root: Some(node) }
}

fn document(parsing: &mut Parsing, node: &Node) -> Option<Definition> {
    let at = At::Root;
    let mut fields = Fields::of(parsing, node, at, "a map with `workflow`, `bot` and `steps`")?;
    let workflow = fields.required("workflow", parsing);
    let workflow = workflow.and_then(|node| parsing.name(node, At::Key(&at, "workflow"), is_workflow_name, NAME_FORM));
    let bot = fields.required("bot", parsing).and_then(|node| parsing.text(node, At::Key(&at, "bot")));
    let input = fields.optional("input").and_then(|node| schema::read(parsing, node, At::Key(&at, "input")));
    let timeout = fields.optional("timeout");
    let timeout = timeout.and_then(|node| parsing.duration(node, At::Key(&at, "timeout"), steps::DAYS_MAX));
    let concurrency =
        fields.optional("concurrency").and_then(|node| concurrency(parsing, node, At::Key(&at, "concurrency")));
    let listed = fields.required("steps", parsing);
    let listed = listed.map(|node| steps::list(parsing, node, At::Key(&at, "steps"), 0)).unwrap_or_default();
    let finally = fields.optional("finally");
    let finally: Vec<Step> =
        finally.map(|node| steps::list(parsing, node, At::Key(&at, "finally"), 0)).unwrap_or_default();
    let output = fields.optional("output").and_then(|node| parsing.template(node, At::Key(&at, "output")));
    fields.end(parsing, "a workflow");
    Some(Definition {
        workflow: workflow.unwrap_or_default(),
        bot: bot.unwrap_or_default(),
        input,
        timeout_ms: timeout.unwrap_or(DAY_MS),
        concurrency,
        steps: listed,
        finally,
        output,
    })
}

fn is_workflow_name(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn concurrency(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<Concurrency> {
    let mut fields = Fields::of(parsing, node, at, "a map with `max`")?;
    let max = fields.required("max", parsing);
    let max = max.and_then(|node| parsing.integer(node, At::Key(&at, "max"), CONCURRENCY_MAX));
    let key = fields.optional("key").and_then(|node| parsing.template_text(node, At::Key(&at, "key")));
    let full = fields.optional("full");
    let words = [("queue", WhenFull::Queue), ("skip", WhenFull::Skip)];
    let full = full.and_then(|node| parsing.word(node, At::Key(&at, "full"), &words));
    fields.end(parsing, "`concurrency`");
    Some(Concurrency { max: max?, key, full: full.unwrap_or(WhenFull::Queue) })
}
