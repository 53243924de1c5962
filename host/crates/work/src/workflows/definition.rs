//! The documents of workflows: how they are saved, and how they are checked.

use std::collections::{BTreeSet, VecDeque};

use monstrum_core::beside::Beside;
use monstrum_core::language::Language;
use monstrum_core::operations::{OperationError, Operator, tools};
use monstrum_flow::{DEFINITION_BYTES_MAX, Definition, Fault, KnownTool, StepKind};
use monstrum_store::{DocumentFormat, WorkflowRow, WorkflowVersionRow};
use monstrum_types::{BotId, Digest, DocumentError};
use serde_json::Value;

use super::Workflows;

/// The maximum number of workflows that a workflow runs, directly or through others. Each is read to find a circle of
/// workflows that run each other.
const CALLED_MAX: usize = 32;

/// Definitions are read on threads of low priority.
static DEFINITIONS: Beside = Beside::new();

/// A document of a workflow, as it is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Document {
    format: DocumentFormat,
    text: String,
}

/// A document without errors.
pub(super) struct Checked {
    pub(super) name: String,
    pub(super) bot_id: BotId,
    pub(super) warnings: Vec<DocumentError>,
}

impl Document {
    /// Reads the definition in an input: a text, or an object.
    pub(super) async fn new(definition: Value) -> Result<Document, OperationError> {
        match definition {
            Value::String(text) if text.len() > DEFINITION_BYTES_MAX => Err(too_large()),
            Value::String(text) => Ok(Document { format: DocumentFormat::Text, text }),
            // The lines of this text are those in the errors.
            object @ Value::Object(_) => {
                let text = DEFINITIONS.run(move || pretty(&object)).await.map_err(OperationError::internal)?;
                Ok(Document { format: DocumentFormat::Json, text: text.ok_or_else(too_large)? })
            }
            _ => Err(OperationError::invalid_at("/definition", "expected a text in YAML or JSON, or an object")),
        }
    }

    /// Returns a document that was saved.
    pub(super) fn stored(format: DocumentFormat, text: String) -> Document {
        Document { format, text }
    }

    pub(super) fn format(&self) -> DocumentFormat {
        self.format
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn digest(&self) -> Digest {
        WorkflowVersionRow::digest_of(&self.text)
    }

    /// Returns whether this document is that of a version.
    pub(super) fn is(&self, version: &WorkflowVersionRow) -> bool {
        self.format == version.format && self.digest() == version.digest
    }

    fn place(&self, path: &str, message: String) -> DocumentError {
        error(monstrum_flow::fault_at(&self.text, path, message))
    }

    fn error_at(&self, path: &str, message: String) -> OperationError {
        OperationError::InvalidDocument(vec![self.place(path, message)])
    }

    /// Returns the definition as it was given.
    pub(super) fn value(&self) -> Value {
        match self.format {
            DocumentFormat::Text => Value::String(self.text.clone()),
            DocumentFormat::Json => {
                serde_json::from_str(&self.text).unwrap_or_else(|_| Value::String(self.text.clone()))
            }
        }
    }
}

fn too_large() -> OperationError {
    let message = format!("the definition has more than {} KiB", DEFINITION_BYTES_MAX / 1024);
    OperationError::InvalidDocument(vec![DocumentError {
        path: String::new(),
        line: 1,
        column: 1,
        message,
        hint: None,
    }])
}

/// Writes an object with a line for each value, unless that is larger than the largest definition.
fn pretty(object: &Value) -> Option<String> {
    // Lines and indents can be many times as long as the object, so it is measured without them first.
    serde_json::to_writer(&mut Bounded::default(), object).ok()?;
    let mut written = Bounded::default();
    serde_json::to_writer_pretty(&mut written, object).ok()?;
    String::from_utf8(written.0).ok()
}

/// A writer that fails as soon as there is more than the largest definition.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > DEFINITION_BYTES_MAX {
            return Err(std::io::Error::other("the definition is too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Workflows {
    /// Checks a definition against what its bot has now.
    pub(super) async fn check(&self, caller: &Operator, document: &Document) -> Result<Checked, OperationError> {
        let definition = checked(document.text.clone(), None).await?.definition;
        let bot = self.app.policy.load().bot_called(caller.workspace, &definition.bot).map(|bot| bot.row.id);
        let Some(bot_id) = bot else {
            let message = format!("the workspace has no bot `{}`", definition.bot);
            return Err(document.error_at("/bot", message));
        };
        let tools = self.tools(caller, bot_id, &definition).await?;
        let mut warnings: Vec<_> =
            checked(document.text.clone(), Some(tools)).await?.warnings.into_iter().map(error).collect();
        warnings.extend(self.called(caller, document, &definition, bot_id).await?);
        Ok(Checked { name: definition.workflow, bot_id, warnings })
    }

    /// Checks the new definition of a workflow, whose name and bot do not change. Returns the warnings.
    pub(super) async fn check_again(
        &self,
        caller: &Operator,
        workflow: &WorkflowRow,
        document: &Document,
    ) -> Result<Vec<DocumentError>, OperationError> {
        let Checked { name, bot_id, warnings } = self.check(caller, document).await?;
        if name != workflow.name {
            let message = format!("the name of a workflow cannot be changed; this workflow is `{}`", workflow.name);
            return Err(document.error_at("/workflow", message));
        }
        if bot_id != workflow.bot_id {
            let message = "the bot of a workflow cannot be changed, because its triggers were granted for its bot";
            return Err(document.error_at("/bot", message.to_owned()));
        }
        Ok(warnings)
    }

    /// Returns the warnings about a definition that is saved. Its bot and the tools may have changed since, so its errors
    /// are warnings as well.
    pub(super) async fn warnings(
        &self,
        caller: &Operator,
        document: &Document,
    ) -> Result<Vec<DocumentError>, OperationError> {
        match self.check(caller, document).await {
            Ok(checked) => Ok(checked.warnings),
            Err(OperationError::InvalidDocument(errors)) => Ok(errors),
            Err(other) => Err(other),
        }
    }

    /// Returns the tools that the bot has now, with the schemas of those that the definition uses.
    async fn tools(
        &self,
        caller: &Operator,
        bot: BotId,
        definition: &Definition,
    ) -> Result<Vec<KnownTool>, OperationError> {
        let mut used = BTreeSet::new();
        definition.walk(&mut |step| {
            if let StepKind::Tool(tool) = &step.kind {
                used.insert(tool.tool.as_str());
            }
            used.extend(step.undo.iter().map(|undo| undo.tool.as_str()));
        });
        let listed = tools::list(&self.app, caller, bot, Language::default()).await?;
        let known = listed.into_iter().map(|tool| KnownTool {
            input_schema: used.contains(tool.name.as_str()).then(|| tool.input_schema.value()),
            name: tool.name.to_string(),
        });
        Ok(known.collect())
    }

    /// Checks the workflows that a definition runs. One that does not exist is a warning, because it may be created
    /// later; workflows that run each other in a circle are an error.
    async fn called(
        &self,
        caller: &Operator,
        document: &Document,
        definition: &Definition,
        bot: BotId,
    ) -> Result<Vec<DocumentError>, OperationError> {
        let mut warnings = Vec::new();
        let named: BTreeSet<String> = definition.called_workflows().into_iter().map(str::to_owned).collect();
        let mut waiting: VecDeque<String> = named.iter().cloned().collect();
        let mut seen = named.clone();
        while let Some(name) = waiting.pop_front() {
            // Nothing is read for workflows above the limit.
            if seen.len() > CALLED_MAX {
                let message = format!("the workflow would run more than {CALLED_MAX} other workflows");
                return Err(document.error_at("/steps", message));
            }
            if name == definition.workflow {
                let message = format!("the workflow `{name}` would run itself, directly or through other workflows");
                return Err(document.error_at("/steps", message));
            }
            let found = self.app.store.workflow_named(caller.workspace, &name).await?;
            let Some(row) = found.filter(|row| row.bot_id == bot) else {
                if named.contains(&name) {
                    let message = format!("the bot has no workflow `{name}` now");
                    warnings.push(document.place("/steps", message));
                }
                continue;
            };
            let Ok((_, inner)) = self.version_of(&row, row.version).await else { continue };
            // It was checked when it was saved, so its expressions are not compiled again.
            let called = DEFINITIONS.run(move || monstrum_flow::called_by(&inner.text)).await;
            for name in called.map_err(OperationError::internal)? {
                if seen.insert(name.clone()) {
                    waiting.push_back(name);
                }
            }
        }
        Ok(warnings)
    }
}

/// Reads and checks a definition on a thread of low priority: expressions take milliseconds to compile.
async fn checked(text: String, tools: Option<Vec<KnownTool>>) -> Result<monstrum_flow::Checked, OperationError> {
    let checked = DEFINITIONS.run(move || monstrum_flow::check(&text, tools.as_deref())).await;
    let faults = checked.map_err(OperationError::internal)?;
    faults.map_err(|faults| OperationError::InvalidDocument(faults.into_iter().map(error).collect()))
}

fn error(fault: Fault) -> DocumentError {
    let Fault { path, line, column, message, hint } = fault;
    let number = |number| u64::try_from(number).unwrap_or(u64::MAX);
    DocumentError { path, line: number(line), column: number(column), message, hint }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_written_only_up_to_the_limit() {
        let value = json!({"a": [1, "ä"], "b": {}});
        assert_eq!(pretty(&value), Some(format!("{value:#}")));
        // Two bytes a value, and a long line for each when it is written.
        let mut deep = json!(vec![1; 60_000]);
        for _ in 0..50 {
            deep = json!([deep]);
        }
        assert!(deep.to_string().len() < DEFINITION_BYTES_MAX);
        for large in [json!({"a": "x".repeat(2 * 1024 * 1024)}), json!({"a": deep})] {
            assert_eq!(pretty(&large), None);
        }
    }

    #[test]
    fn the_writer_keeps_no_more_than_the_limit() {
        let mut written = Bounded::default();
        serde_json::to_writer_pretty(&mut written, &json!(vec![1; 200_000])).unwrap_err();
        assert!(written.0.len() <= DEFINITION_BYTES_MAX, "{}", written.0.len());
    }
}
