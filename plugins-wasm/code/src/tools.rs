//! The global `tools`: `tools.NAME(params)` calls the bot's tool `NAME` and returns its data.
//!
//! The host decides about each call. A refused or failed call throws an error with the properties `status`, `code` and
//! `tool`, which code can catch.

use boa_engine::object::FunctionObjectBuilder;
use boa_engine::object::builtins::JsProxyBuilder;
use boa_engine::property::Attribute;
use boa_engine::{Context, JsError, JsNativeError, JsObject, JsResult, JsString, JsValue, NativeFunction, js_string};
use monstrum_sdk::tools::call_tool;
use monstrum_sdk::{ToolError, Value};

use crate::json::{self, type_error};

/// The maximum size of the parameters of a call, which is the host's limit.
const PARAMS_BYTES_MAX: usize = 1 << 20;
/// The maximum length of a tool's name.
const NAME_CHARS_MAX: usize = 64;

/// Defines the global `tools`. Code can neither replace nor change it.
pub(crate) fn define(context: &mut Context) -> JsResult<()> {
    let proxy = JsProxyBuilder::new(JsObject::with_null_proto())
        .get(tool)
        .set(refuse_change)
        .define_property(refuse_change)
        .delete_property(refuse_change)
        .set_prototype_of(refuse_change)
        .build(context)?;
    let tools: JsValue = JsObject::from(proxy).into();
    context.register_global_property(js_string!("tools"), tools, Attribute::empty())
}

/// Returns the function that calls the tool with the name of the property. Other properties, such as symbols, do not
/// exist. `then` does not exist either: an object with this function would be taken for a promise.
fn tool(_: &JsValue, args: &[JsValue], context: &mut Context) -> JsResult<JsValue> {
    let Some(name) = args.get(1).and_then(JsValue::as_string).filter(is_tool_name) else {
        return Ok(JsValue::undefined());
    };
    let call = NativeFunction::from_copy_closure_with_captures(
        |_, args, name: &JsString, context| call(&name.to_std_string_lossy(), args.first(), context),
        name.clone(),
    );
    Ok(FunctionObjectBuilder::new(context.realm(), call).name(name).length(1).build().into())
}

fn refuse_change(_: &JsValue, _: &[JsValue], _: &mut Context) -> JsResult<JsValue> {
    Err(type_error("tools cannot be changed"))
}

/// Reports whether a tool can have this name; see the schema of manifests.
fn is_tool_name(name: &JsString) -> bool {
    let name = name.to_std_string_lossy();
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.len() <= NAME_CHARS_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(is_word)
        && name != "then"
}

fn call(name: &str, params: Option<&JsValue>, context: &mut Context) -> JsResult<JsValue> {
    let params = match params.filter(|params| !params.is_undefined()) {
        Some(params) => json::from_js(params, PARAMS_BYTES_MAX, context)?,
        None => Some(Value::Object(monstrum_sdk::Map::new())),
    };
    let Some(params @ Value::Object(_)) = params else {
        return Err(type_error(format!("the parameters of tools.{name} must be an object")));
    };
    match call_tool(name, params) {
        Ok(data) => JsValue::from_json(&data, context),
        Err(error) => Err(thrown(name, &error, context)),
    }
}

/// Returns the error that a failed call throws.
fn thrown(tool: &str, error: &ToolError, context: &mut Context) -> JsError {
    let object = JsNativeError::error().with_message(error.to_string()).into_opaque(context);
    let properties =
        [("name", "ToolError"), ("status", error.status.as_str()), ("code", error.code.as_str()), ("tool", tool)];
    for (name, value) in properties {
        if let Err(error) = object.create_data_property(js_string!(name), js_string!(value), context) {
            return error;
        }
    }
    JsError::from_opaque(object.into())
}
