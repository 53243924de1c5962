//! Computes and returns data in the amounts that the parameters request, within or beyond the limits of a call.

#![forbid(unsafe_code)]

use monstrum_sdk::{Error, Executor, Operations, Request, Value, json, operations};

mod work;

struct Busy;

impl Executor for Busy {
    const OPERATIONS: Operations = operations! {
        "cpu.sha256" => sha256,
        "cpu.json" => reprint,
        "cpu.fill" => fill,
    };
}

monstrum_sdk::export!(Busy);

fn sha256(request: &Request) -> Result<Value, Error> {
    Ok(json!({ "sum": work::hash(rounds(request)?) }))
}

fn reprint(request: &Request) -> Result<Value, Error> {
    Ok(json!({ "sum": work::reprint(rounds(request)?) }))
}

fn fill(request: &Request) -> Result<Value, Error> {
    Ok(json!({ "text": "x".repeat(request.optional_param("bytes")?.unwrap_or(1024)) }))
}

fn rounds(request: &Request) -> Result<u32, Error> {
    Ok(request.optional_param("rounds")?.unwrap_or(1))
}
