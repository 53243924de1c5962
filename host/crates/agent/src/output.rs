//! The form of the last answer of a task: JSON that fits the schema that its caller has set.
//!
//! An answer in another form is never repaired. The model reads what is wrong and answers again.

use std::sync::Arc;

use monstrum_core::app::App;
use monstrum_core::checks::Unchecked;
use monstrum_core::operations::OperationError;
use monstrum_manifest::{OutputSchema, SchemaLimits};
use monstrum_types::{BotId, InputError, Overrun, WorkspaceId};
use serde_json::{Map, Value};

use crate::runner::{Interrupted, TaskTurn};

/// The maximum size of a schema, in bytes of JSON. The model reads the schema in each round.
const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// The number of answers in another form after which a task fails: the first one, and two tries to mend it.
pub(crate) const MISFITS_MAX: u32 = 3;
/// The cost, in steps, of compiling a schema. It exceeds the limit for work on a serving thread.
const COMPILE_STEPS: u64 = 1 << 17;
/// The maximum number of errors that the model reads, and the maximum size of them all. More do not help a model.
const ERRORS_READ_MAX: usize = 10;
const ERRORS_BYTES_MAX: usize = 4 << 10;

/// Checks the schema of a new task.
///
/// # Errors
///
/// The schema is not a valid JSON Schema, is too large, or takes too much work to compile.
pub(crate) async fn checked(
    app: &App,
    workspace: WorkspaceId,
    bot: BotId,
    schema: Option<Value>,
) -> Result<Option<Map<String, Value>>, OperationError> {
    let invalid = |message: String| OperationError::invalid_at("/output_schema", message);
    let schema = match schema {
        None => return Ok(None),
        Some(Value::Object(schema)) => schema,
        Some(_) => return Err(invalid("expected an object".to_owned())),
    };
    let bytes = Value::Object(schema.clone()).to_string().len();
    if bytes > SCHEMA_BYTES_MAX {
        return Err(invalid(format!("must have at most {SCHEMA_BYTES_MAX} bytes of JSON, but has {bytes}")));
    }
    let compiled = schema.clone();
    let checked = app.calls.ask(workspace, bot, move |effort| {
        effort.spend(COMPILE_STEPS)?;
        Ok(OutputSchema::compile(&compiled, SchemaLimits::Current).map(drop))
    });
    match checked.await {
        Ok(Ok(())) => Ok(Some(schema)),
        Ok(Err(why)) => Err(invalid(why)),
        Err(Unchecked::Busy) => Err(OperationError::Busy("the server is busy with other checks; try again".to_owned())),
        Err(Unchecked::Overrun(_)) => Err(invalid("the check of the schema takes too much work".to_owned())),
    }
}

/// Returns the paragraph of the system prompt that explains the form of the answer.
pub(crate) fn rule(schema: &Map<String, Value>) -> String {
    let schema = Value::Object(schema.clone());
    format!(
        "Your last answer must be one JSON value that fits the JSON Schema below. Write nothing before and nothing after \
         it, and no Markdown.\n{schema}"
    )
}

impl TaskTurn<'_> {
    /// Returns what the model reads after an answer that does not have the form that the task asks for.
    pub(crate) async fn misfit(&self, answer: &str) -> Result<Option<String>, Interrupted> {
        let Some(schema) = &self.content.output_schema else { return Ok(None) };
        let value: Value = match serde_json::from_str(answer) {
            Ok(value) => value,
            Err(error) => return Ok(Some(told(&format!("it is not JSON ({error})")))),
        };
        let (schema, value) = (Arc::new(OutputSchema::known(schema)), Arc::new(value));
        let (app, workspace, bot) = (&self.runner.app, self.row.workspace_id, self.row.bot_id);
        let checked = app.calls.ask(workspace, bot, move |effort| schema.errors(&value, effort));
        match checked.await {
            Ok(errors) if errors.is_empty() => Ok(None),
            Ok(errors) => Ok(Some(told(&listed(&errors)))),
            Err(Unchecked::Overrun(Overrun::Steps)) => Ok(Some(told("its check takes too much work; make it shorter"))),
            Err(unchecked) => Err(Interrupted::Failed(format!("the answer could not be checked: {unchecked:?}"))),
        }
    }
}

fn told(what: &str) -> String {
    format!("Your answer does not have the required form: {what}. Answer again, with JSON that fits the schema alone.")
}

fn listed(errors: &[InputError]) -> String {
    let line = |error: &InputError| match error.path.as_str() {
        "" => error.message.clone(),
        path => format!("at `{path}`: {}", error.message),
    };
    let mut text = errors.iter().take(ERRORS_READ_MAX).map(line).collect::<Vec<_>>().join("; ");
    text.truncate(text.floor_char_boundary(ERRORS_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_model_reads_where_its_answer_is_wrong() {
        let schema = json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } });
        let schema = OutputSchema::compile(schema.as_object().unwrap(), SchemaLimits::Current).unwrap();
        let told = |value: Value| told(&listed(&schema.errors(&value, &monstrum_types::Effort::of(1 << 28)).unwrap()));
        assert!(told(json!({ "n": "x" })).contains("at `/n`: "), "{}", told(json!({ "n": "x" })));
        assert!(told(json!({})).contains("at `/n`: "));
        let many: Vec<InputError> =
            (0..99).map(|_| InputError { path: String::new(), message: "é".repeat(900) }).collect();
        assert!(listed(&many).len() <= ERRORS_BYTES_MAX);
    }
}
