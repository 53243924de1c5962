//! One run of code: parses it, runs it in a fresh context, and returns its result or the message of its error.

use std::rc::Rc;

use boa_engine::builtins::promise::PromiseState;
use boa_engine::error::{EngineError, RuntimeLimitError};
use boa_engine::job::SimpleJobExecutor;
use boa_engine::module::IdleModuleLoader;
use boa_engine::object::builtins::JsPromise;
use boa_engine::{Context, JsError, JsResult, JsValue, Script, Source, js_string};
use monstrum_sdk::{Value, json};

use crate::console::is_error;
use crate::{console, json as conversion, tools};

/// The maximum size of a result. It is more than a model reads at once, and less than the host's limit of 1 MiB.
const RESULT_BYTES_MAX: usize = 256 * 1024;
/// The maximum number of nested calls of functions. Functions that built-in functions call, such as callbacks of `map`,
/// use the stack of the instance, on which this number fits.
const RECURSION_MAX: usize = 256;
/// The maximum number of values on the stack of the engine, which the nested calls share.
const STACK_VALUES_MAX: usize = 64 * 1024;
/// The maximum number of iterations of one loop, also of loops in built-in functions. With the default limits of the host,
/// fuel ends loops of the code before.
const LOOP_ITERATIONS_MAX: u64 = 10_000_000;
/// The maximum length of the message of an error, without the lines of the console.
const ERROR_CHARS_MAX: usize = 2_000;

/// Runs `code` and returns `{result, console}`, or the message of the error that the code did not catch.
///
/// # Errors
/// Returns an error if the code has a syntax error, throws an error or has a result that is not JSON.
pub(crate) fn run(code: &str) -> Result<Value, String> {
    let mut context = context().map_err(|error| format!("the JavaScript engine did not start: {error}"))?;
    let outcome = evaluate(code, &mut context).and_then(|value| result(&value, &mut context));
    let outcome = outcome.map_err(|error| message(error, &mut context));
    let console = console::take(&context);
    match outcome {
        Ok(result) => {
            let (lines, dropped) = console.into_parts();
            let mut answer = json!({ "result": result, "console": lines });
            if dropped > 0 {
                answer["console_dropped"] = dropped.into();
            }
            Ok(answer)
        }
        Err(message) => match console.tail() {
            tail if tail.is_empty() => Err(message),
            tail => Err(format!("{message}\nThe last lines of the console:\n{tail}")),
        },
    }
}

fn context() -> JsResult<Context> {
    let mut context = Context::builder()
        .job_executor(Rc::new(SimpleJobExecutor::new()))
        .module_loader(Rc::new(IdleModuleLoader))
        // Nothing can wake code that waits, because there is one thread.
        .can_block(false)
        .build()?;
    let limits = context.runtime_limits_mut();
    limits.set_recursion_limit(RECURSION_MAX);
    limits.set_stack_size_limit(STACK_VALUES_MAX);
    limits.set_loop_iteration_limit(LOOP_ITERATIONS_MAX);
    conversion::prepare(&mut context)?;
    console::define(&mut context)?;
    tools::define(&mut context)?;
    Ok(context)
}

/// Runs `code` as a script, whose value is that of its last expression. Code that is not a script, because it has
/// `return` or `await` outside of functions, runs as the body of an async function. A promise is awaited.
fn evaluate(code: &str, context: &mut Context) -> JsResult<JsValue> {
    let script = match Script::parse(Source::from_bytes(code), None, context) {
        Ok(script) => script,
        Err(error) => {
            // The line break ends a comment at the end of the code.
            let body = format!("(async () => {{{code}\n}})()");
            Script::parse(Source::from_bytes(&body), None, context).map_err(|_| error)?
        }
    };
    let value = script.evaluate(context)?;
    context.run_jobs()?;
    let Some(promise) = value.as_object().and_then(|object| JsPromise::from_object(object).ok()) else {
        return Ok(value);
    };
    match promise.state() {
        PromiseState::Fulfilled(value) => Ok(value),
        PromiseState::Rejected(error) => Err(JsError::from_opaque(error)),
        PromiseState::Pending => Err(conversion::type_error("the promise of the code never settles")),
    }
}

fn result(value: &JsValue, context: &mut Context) -> JsResult<Value> {
    if value.is_undefined() {
        return Ok(Value::Null);
    }
    conversion::from_js(value, RESULT_BYTES_MAX, context)?
        .ok_or_else(|| conversion::type_error(format!("the result is a {}, which is not JSON", value.type_of())))
}

/// Returns what the caller reads about an error that the code did not catch.
fn message(error: JsError, context: &mut Context) -> String {
    let text = match error.as_engine() {
        Some(EngineError::RuntimeLimit(RuntimeLimitError::LoopIteration)) => {
            format!("RangeError: a loop had more than {LOOP_ITERATIONS_MAX} iterations")
        }
        Some(EngineError::RuntimeLimit(_)) => {
            format!("RangeError: more than {RECURSION_MAX} nested calls of functions")
        }
        Some(other) => other.to_string(),
        None => thrown(error, context),
    };
    text.chars().take(ERROR_CHARS_MAX).collect()
}

/// Returns an error as `Error.prototype.toString` does, with the code of a failed tool call.
fn thrown(error: JsError, context: &mut Context) -> String {
    let Ok(value) = error.into_opaque(context) else { return "the code failed".to_owned() };
    let Ok(message) = console::text(&value, context) else { return "the code threw a value without text".to_owned() };
    let code = value.as_object().filter(is_error).and_then(|error| error.get(js_string!("code"), context).ok());
    match code.as_ref().and_then(JsValue::as_string) {
        Some(code) => format!("{message} (code {})", code.to_std_string_lossy()),
        None => message,
    }
}
