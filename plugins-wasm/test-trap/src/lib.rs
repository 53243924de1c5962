//! Crashes in all ways in which a component can crash. With mode `none`, the guest succeeds, so that a test can check
//! that a crash does not affect the next call.

#![cfg(target_arch = "wasm32")]
#![forbid(unsafe_code)]

use monstrum_sdk::{Error, Executor, Operations, Request, Value, json, operations};

struct Crash;

impl Executor for Crash {
    const OPERATIONS: Operations = operations! { "trap.run" => run };
}

monstrum_sdk::export!(Crash);

fn run(request: &Request) -> Result<Value, Error> {
    match request.param::<String>("mode")?.as_str() {
        "panic" => panic!("a panic on purpose"),
        "abort" => core::arch::wasm32::unreachable(),
        "exit" => std::process::exit(3),
        _ => Ok(json!({ "crashed": false })),
    }
}
