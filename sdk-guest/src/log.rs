//! The plugin's own log, which operators read. The host caps it and takes out secrets.

use serde_json::{Map, Value};

use crate::host;
pub use crate::wit::monstrum::plugin::log::Level;

/// Writes a line, with fields that a reader may filter by.
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

/// Writes a line for whoever looks for a fault.
pub fn debug(message: &str) {
    write(Level::Debug, message, &[]);
}

/// Writes a line about the ordinary course.
pub fn info(message: &str) {
    write(Level::Info, message, &[]);
}

/// Writes a line about something odd that did not stop the call.
pub fn warn(message: &str) {
    write(Level::Warn, message, &[]);
}

/// Writes a line about a failure.
pub fn error(message: &str) {
    write(Level::Error, message, &[]);
}
