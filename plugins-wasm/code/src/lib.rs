//! The code plugin: runs JavaScript that calls the bot's tools, so that a model can combine many calls in one.
//!
//! The host authorizes each call of a tool, as for every child call. The plugin gives the code nothing else: no network,
//! no files and no timers. Each run has a fresh context in a fresh instance, so nothing outlives a run.

#![forbid(unsafe_code)]

mod console;
mod json;
mod run;
mod tools;

use monstrum_sdk::{Error, Executor, Operations, Request, Value, operations};

struct Code;

impl Executor for Code {
    const OPERATIONS: Operations = operations! { "code.run" => run };
}

monstrum_sdk::export!(Code);

fn run(request: &Request) -> Result<Value, Error> {
    let code: String = request.param("code")?;
    run::run(&code).map_err(Error::message)
}
