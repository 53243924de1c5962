//! The output of the code: the lines of `console.log`, within limits.

use std::cell::RefCell;

use boa_engine::builtins::error::Error;
use boa_engine::object::ObjectInitializer;
use boa_engine::property::Attribute;
use boa_engine::{Context, JsObject, JsResult, JsValue, NativeFunction, js_string};
use monstrum_sdk::Value;

use crate::json;

/// The maximum number of lines that a run returns: more would crowd the result out of a model's context.
const LINES_MAX: usize = 200;
/// The maximum size of all lines together, for the same reason.
const BYTES_MAX: usize = 16 * 1024;
/// The maximum size of the lines in the message of an error, which a model reads whole.
const ERROR_BYTES_MAX: usize = 2 * 1024;

/// The lines of one run.
#[derive(Default)]
pub(crate) struct Console {
    lines: Vec<String>,
    bytes: usize,
    dropped: u64,
}

impl Console {
    fn add(&mut self, line: String) {
        if self.lines.len() >= LINES_MAX || self.bytes + line.len() > BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.bytes += line.len();
        self.lines.push(line);
    }

    /// Returns the lines that were kept, and the number of those that were dropped.
    pub(crate) fn into_parts(self) -> (Vec<Value>, u64) {
        (self.lines.into_iter().map(Value::from).collect(), self.dropped)
    }

    /// Returns the last lines, for the message of an error.
    pub(crate) fn tail(&self) -> String {
        let mut left = ERROR_BYTES_MAX;
        let fits = |line: &&String| {
            let fits = line.len() < left;
            left = left.saturating_sub(line.len() + 1);
            fits
        };
        let mut last: Vec<&str> = self.lines.iter().rev().take_while(fits).map(String::as_str).collect();
        last.reverse();
        last.join("\n")
    }
}

/// Defines the global `console`, whose functions all write lines.
pub(crate) fn define(context: &mut Context) -> JsResult<()> {
    context.insert_data(RefCell::new(Console::default()));
    let mut console = ObjectInitializer::new(context);
    for name in ["debug", "error", "info", "log", "warn"] {
        console.function(NativeFunction::from_fn_ptr(print), js_string!(name), 0);
    }
    let console = console.build();
    context.register_global_property(js_string!("console"), console, Attribute::all())
}

/// Takes the lines out of the context.
pub(crate) fn take(context: &Context) -> Console {
    context.get_data::<RefCell<Console>>().map(RefCell::take).unwrap_or_default()
}

fn print(_: &JsValue, args: &[JsValue], context: &mut Context) -> JsResult<JsValue> {
    let mut line = String::new();
    for (n, arg) in args.iter().enumerate() {
        if n > 0 {
            line.push(' ');
        }
        line.push_str(&text(arg, context)?);
    }
    if let Some(console) = context.get_data::<RefCell<Console>>() {
        console.borrow_mut().add(line);
    }
    Ok(JsValue::undefined())
}

/// Returns a value as text: objects as JSON, where JSON can express them.
pub(crate) fn text(value: &JsValue, context: &mut Context) -> JsResult<String> {
    let is_data = value.as_object().is_some_and(|object| !object.is_callable() && !is_error(&object));
    if is_data && let Ok(Some(json)) = json::from_js(value, BYTES_MAX, context) {
        return Ok(json.to_string());
    }
    if let Some(symbol) = value.as_symbol() {
        return Ok(symbol.descriptive_string().to_std_string_lossy());
    }
    Ok(value.to_string(context)?.to_std_string_lossy())
}

/// Returns whether an object is an error, which has a text of its own.
pub(crate) fn is_error(object: &JsObject) -> bool {
    object.is::<Error>()
}
