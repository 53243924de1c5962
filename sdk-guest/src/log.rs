//! The plugin's log, which operators read. The host limits the size of the log and redacts secrets.

use serde_json::{Map, Value};

use crate::host;
pub use crate::wit::monstrum::plugin::log::Level;

/// Writes a line with structured fields.
///
/// ```
/// use monstrum_sdk::log::{self, Level};
/// # use monstrum_sdk::{Error, Executor, Operations, Request, Value, json, operations, testing::Call};
/// # struct Plugin;
/// # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "log" => write }; }
///
/// fn write(_: &Request) -> Result<Value, Error> {
///     log::write(Level::Warn, "the label is still there", &[("label", "bug".into()), ("status", 500.into())]);
///     Ok(Value::Null)
/// }
/// # let run = Call::new("t", "log").run(&Plugin);
/// # assert_eq!(run.log[0].message, "the label is still there");
/// # assert_eq!(run.log[0].fields, json!({ "label": "bug", "status": 500 }));
/// ```
pub fn write(level: Level, message: &str, fields: &[(&str, Value)]) {
    let fields: Map<String, Value> = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let text = if fields.is_empty() { String::new() } else { Value::Object(fields).to_string() };
    host::write_log(level, message, &text);
}

/// Writes a line with details for debugging.
pub fn debug(message: &str) {
    write(Level::Debug, message, &[]);
}

/// Writes an informational line.
pub fn info(message: &str) {
    write(Level::Info, message, &[]);
}

/// Writes a warning.
pub fn warn(message: &str) {
    write(Level::Warn, message, &[]);
}

/// Writes an error.
pub fn error(message: &str) {
    write(Level::Error, message, &[]);
}
