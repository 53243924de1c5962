//! Reads the lines of an import while they arrive. A line that cannot be read is recorded as a fault, and reading
//! continues with the next line.

use monstrum_api::export::{BindingLine, BotLine, Line, ResourceLine, RoleLine, WorkspaceLine};
use monstrum_types::InputError;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::{Map, Value};

use super::faults::Faults;
use crate::operations::{Caller, OperationError, json_pointer, shape_error};

/// The maximum size of a body.
pub const BODY_BYTES_MAX: usize = 64 << 20;
/// The maximum number of lines. It exceeds the number of objects that a host has in practice.
const LINES_MAX: usize = 200_000;
/// The maximum size of a line, which is also the maximum size of a request that creates a single object.
const LINE_BYTES_MAX: usize = 2 << 20;
/// The maximum number of commas in all lines. A parsed value uses up to 20 times the memory of its text, so the number
/// of values is limited in addition to the bytes.
const COMMAS_MAX: usize = 8_000_000;

/// A line and its number in the file, counted from 1.
pub(super) struct Numbered<T> {
    pub(super) number: usize,
    pub(super) line: T,
}

/// The lines of one kind.
type Of<T> = Vec<Numbered<T>>;

/// The lines of an import that could be read, by kind.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) workspaces: Of<WorkspaceLine>,
    pub(super) roles: Of<RoleLine>,
    pub(super) bots: Of<BotLine>,
    pub(super) resources: Of<ResourceLine>,
    pub(super) bindings: Of<BindingLine>,
}

impl Lines {
    pub(super) fn is_empty(&self) -> bool {
        let Lines { workspaces, roles, bots, resources, bindings } = self;
        workspaces.is_empty() && roles.is_empty() && bots.is_empty() && resources.is_empty() && bindings.is_empty()
    }
}

/// The reader of an import. It keeps the beginning of a line that has not been received completely.
pub(super) struct Reader {
    caller: Caller,
    rest: Vec<u8>,
    /// Whether the current line exceeds the size limit. The remaining bytes of the line are then skipped.
    skips: bool,
    number: usize,
    commas: usize,
    lines: Lines,
    faults: Faults,
}

impl Reader {
    pub(super) fn new(caller: Caller) -> Reader {
        let (lines, faults) = (Lines::default(), Faults::default());
        Reader { caller, rest: Vec::new(), skips: false, number: 0, commas: 0, lines, faults }
    }

    /// Reads a part of the body.
    pub(super) fn read(&mut self, mut part: &[u8]) -> Result<(), OperationError> {
        while let Some(end) = part.iter().position(|byte| *byte == b'\n') {
            self.extend(&part[..end]);
            self.end_line()?;
            part = &part[end + 1..];
        }
        self.extend(part);
        Ok(())
    }

    /// Ends the last line, and returns all lines and faults.
    pub(super) fn end(mut self) -> Result<(Lines, Faults), OperationError> {
        if self.skips || !self.rest.is_empty() {
            self.end_line()?;
        }
        Ok((self.lines, self.faults))
    }

    fn extend(&mut self, part: &[u8]) {
        self.skips = self.skips || self.rest.len().saturating_add(part.len()) > LINE_BYTES_MAX;
        if self.skips {
            self.rest.clear();
        } else {
            self.rest.extend_from_slice(part);
        }
    }

    fn end_line(&mut self) -> Result<(), OperationError> {
        self.number += 1;
        if self.number > LINES_MAX {
            return Err(OperationError::OverLimit(format!("an import can have at most {LINES_MAX} lines")));
        }
        if std::mem::take(&mut self.skips) {
            self.faults.add(self.number, "", format!("the line exceeds the limit of {LINE_BYTES_MAX} bytes"));
            return Ok(());
        }
        let text = std::mem::take(&mut self.rest);
        if text.trim_ascii().is_empty() {
            return Ok(());
        }
        self.commas += text.iter().filter(|byte| **byte == b',').count();
        if self.commas > COMMAS_MAX {
            return Err(OperationError::OverLimit(format!("an import can have at most {COMMAS_MAX} values")));
        }
        match parsed(&text) {
            Ok(line) => self.take(line),
            Err(InputError { path, message }) => {
                self.faults.add(self.number, &path, message);
                Ok(())
            }
        }
    }

    /// Adds a line. Only a root key may send lines that name a workspace. With any other key, the first such line ends
    /// the import with an error.
    fn take(&mut self, line: Line) -> Result<(), OperationError> {
        let names_workspace = match &line {
            Line::Workspace(_) => true,
            Line::Role(line) => line.workspace.is_some(),
            Line::Bot(line) => line.workspace.is_some(),
            Line::Resource(line) => line.workspace.is_some(),
            Line::Binding(line) => line.workspace.is_some(),
        };
        if names_workspace {
            self.caller.root().map_err(|_| {
                OperationError::forbidden(format!(
                    "line {}: a root key is required for lines that name a workspace",
                    self.number
                ))
            })?;
        }
        let number = self.number;
        match line {
            Line::Workspace(line) => self.lines.workspaces.push(Numbered { number, line }),
            Line::Role(line) => self.lines.roles.push(Numbered { number, line }),
            Line::Bot(line) => self.lines.bots.push(Numbered { number, line }),
            Line::Resource(line) => self.lines.resources.push(Numbered { number, line }),
            Line::Binding(line) => self.lines.bindings.push(Numbered { number, line }),
        }
        Ok(())
    }
}

/// Parses a line.
fn parsed(text: &[u8]) -> Result<Line, InputError> {
    let error = match serde_json::from_slice(text) {
        Ok(line) => return Ok(line),
        Err(error) => error,
    };
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => {
            if let Some(fault) = misshapen(object) {
                return Err(fault);
            }
        }
        Ok(_) => return Err(shape_error("", "expected a JSON object")),
        Err(_) => {}
    }
    let (message, column) = (error.to_string(), error.column());
    // The error names a line of this text, which has only one line.
    let what = message.strip_suffix(&format!(" at line {} column {column}", error.line())).unwrap_or(&message);
    Err(match error.classify() {
        Category::Data => shape_error("", what),
        _ => InputError { path: String::new(), message: format!("{what} at column {column}") },
    })
}

/// Returns the first error in an object that is not a valid line. Tracking the path of each value is slow, so only a
/// line with an error is parsed this way.
fn misshapen(mut object: Map<String, Value>) -> Option<InputError> {
    let kind = object.remove("kind");
    match kind.as_ref().and_then(Value::as_str) {
        Some("workspace") => error_as::<WorkspaceLine>(object),
        Some("role") => error_as::<RoleLine>(object),
        Some("bot") => error_as::<BotLine>(object),
        Some("resource") => error_as::<ResourceLine>(object),
        Some("binding") => error_as::<BindingLine>(object),
        _ => {
            let message = "expected `workspace`, `role`, `bot`, `resource` or `binding`";
            Some(InputError { path: "/kind".to_owned(), message: message.to_owned() })
        }
    }
}

fn error_as<T: DeserializeOwned>(object: Map<String, Value>) -> Option<InputError> {
    let error = serde_path_to_error::deserialize::<_, T>(Value::Object(object)).err()?;
    let path = json_pointer(error.path());
    Some(shape_error(&path, &error.into_inner().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> (String, String) {
        let Err(InputError { path, message }) = parsed(text.as_bytes()) else { panic!("{text} is a line") };
        (path, message)
    }

    #[test]
    fn a_fault_is_placed_by_its_field() {
        let of = |path: &str, message: &str| (path.to_owned(), message.to_owned());
        let kinds = "expected `workspace`, `role`, `bot`, `resource` or `binding`";
        assert_eq!(fault("{}"), of("/kind", kinds));
        assert_eq!(fault(r#"{"kind":"key"}"#), of("/kind", kinds));
        assert_eq!(fault(r#"{"kind":"workspace","name":"a"}"#), of("/sandbox", "required field is missing"));
        let role = r#"{"kind":"role","name":"a","allowed_operations":["a",5],"allowed_tools":null,"scope_constraints":{},"gates":[]}"#;
        assert_eq!(fault(role), of("/allowed_operations/1", "invalid type: integer `5`, expected a string"));
        assert_eq!(fault("[1]"), of("", "expected a JSON object"));
        assert!(fault(r#"{"kind": "#).1.contains("EOF while parsing a value at column"));
        let twice = r#"{"kind":"workspace","name":"a","name":"b","sandbox":null}"#;
        assert_eq!(fault(twice), of("/name", "duplicate field"));
    }

    #[test]
    fn credentials_ids_and_keys_are_unknown_fields() {
        for field in ["credential", "id", "key", "fields", "client_secret"] {
            let text = format!(
                r#"{{"kind":"resource","resource_type":"t","name":"a","config":{{}},
                    "network":{{"allow_addresses":[],"allow_http":false}},"{field}":"x"}}"#
            );
            let (path, message) = fault(&text);
            assert_eq!(path, format!("/{field}"));
            assert!(message.starts_with(&format!("unknown field `{field}`")), "{message}");
        }
    }
}
