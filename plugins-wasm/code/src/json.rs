//! Conversion of JavaScript values to JSON, with the rules of `JSON.stringify` and with limits. `JSON.stringify` itself
//! has no limits, and code can replace it.

use boa_engine::property::PropertyKey;
use boa_engine::{Context, JsError, JsNativeError, JsObject, JsResult, JsValue, JsVariant, js_string};
use monstrum_sdk::{Map, Value};

/// The maximum depth of a value, which is the host's limit for results. A value that contains itself exceeds it.
const DEPTH_MAX: usize = 64;
/// The largest integer that a JavaScript number represents exactly together with all smaller ones: 2^53 - 1.
const SAFE_INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

/// `Object.keys` as it was before the code ran.
struct ObjectKeys(JsObject);

/// Prepares a context for conversions, before code runs in it.
pub(crate) fn prepare(context: &mut Context) -> JsResult<()> {
    let object = context.intrinsics().constructors().object().constructor();
    let keys = object.get(js_string!("keys"), context)?;
    if let Some(keys) = keys.as_object() {
        context.insert_data(ObjectKeys(keys));
    }
    Ok(())
}

/// Converts a value whose JSON has at most about `bytes_max` bytes. Returns `None` for a value that JSON omits:
/// `undefined`, a function or a symbol.
pub(crate) fn from_js(value: &JsValue, bytes_max: usize, context: &mut Context) -> JsResult<Option<Value>> {
    Conversion { bytes_max, bytes: 0 }.value(value, DEPTH_MAX, context)
}

/// A conversion in progress, with the size of its result so far.
struct Conversion {
    bytes_max: usize,
    bytes: usize,
}

impl Conversion {
    /// Converts `value`, which may have `depth` levels.
    fn value(&mut self, value: &JsValue, depth: usize, context: &mut Context) -> JsResult<Option<Value>> {
        // The shortest JSON of a value and its separator.
        self.add(2)?;
        Ok(match value.variant() {
            JsVariant::Undefined | JsVariant::Symbol(_) => None,
            JsVariant::Null => Some(Value::Null),
            JsVariant::Boolean(value) => Some(value.into()),
            JsVariant::Integer32(value) => Some(value.into()),
            JsVariant::Float64(value) => Some(number(value)),
            JsVariant::BigInt(_) => return Err(type_error("JSON has no bigint; convert it with Number() or String()")),
            JsVariant::String(text) => {
                self.add(text.len())?;
                Some(text.to_std_string_lossy().into())
            }
            JsVariant::Object(object) => self.object(&object, depth, context)?,
        })
    }

    fn object(&mut self, object: &JsObject, depth: usize, context: &mut Context) -> JsResult<Option<Value>> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(type_error(format!("a value is deeper than {DEPTH_MAX} levels or contains itself")));
        };
        if let Some(to_json) = object.get(js_string!("toJSON"), context)?.as_callable() {
            let replacement = to_json.call(&object.clone().into(), &[], context)?;
            return self.value(&replacement, depth, context);
        }
        if object.is_callable() {
            return Ok(None);
        }
        if object.is_array() {
            self.array(object, depth, context).map(Some)
        } else {
            self.map(object, depth, context).map(Some)
        }
    }

    fn array(&mut self, array: &JsObject, depth: usize, context: &mut Context) -> JsResult<Value> {
        let length = array.get(js_string!("length"), context)?.to_length(context)?;
        let mut items = Vec::new();
        for index in 0..length {
            let item = array.get(PropertyKey::from(index), context)?;
            items.push(self.value(&item, depth, context)?.unwrap_or(Value::Null));
        }
        Ok(Value::Array(items))
    }

    fn map(&mut self, object: &JsObject, depth: usize, context: &mut Context) -> JsResult<Value> {
        let mut map = Map::new();
        for key in keys(object, context)? {
            let text = key.to_string(context)?;
            self.add(text.len())?;
            let value = object.get(PropertyKey::from(text.clone()), context)?;
            if let Some(value) = self.value(&value, depth, context)? {
                map.insert(text.to_std_string_lossy(), value);
            }
        }
        Ok(Value::Object(map))
    }

    fn add(&mut self, bytes: usize) -> JsResult<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes <= self.bytes_max {
            return Ok(());
        }
        Err(range_error(format!("a value has more than {} bytes as JSON", self.bytes_max)))
    }
}

/// Returns the names of the object's own enumerable properties.
fn keys(object: &JsObject, context: &mut Context) -> JsResult<Vec<JsValue>> {
    let Some(function) = context.get_data::<ObjectKeys>().map(|keys| keys.0.clone()) else {
        return Err(type_error("the context is not prepared"));
    };
    let names = function.call(&JsValue::undefined(), &[object.clone().into()], context)?;
    let Some(names) = names.as_object() else { return Ok(Vec::new()) };
    let length = names.get(js_string!("length"), context)?.to_length(context)?;
    (0..length).map(|index| names.get(PropertyKey::from(index), context)).collect()
}

/// Returns a number, which JSON shows as `null` if it is not finite, as `JSON.stringify` does.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() <= SAFE_INTEGER_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "the value is an integer of at most 53 bits")]
        return Value::from(value as i64);
    }
    Value::from(value)
}

/// Creates a `TypeError`.
pub(crate) fn type_error(message: impl Into<std::borrow::Cow<'static, str>>) -> JsError {
    JsNativeError::typ().with_message(message.into()).into()
}

fn range_error(message: String) -> JsError {
    JsNativeError::range().with_message(message).into()
}
