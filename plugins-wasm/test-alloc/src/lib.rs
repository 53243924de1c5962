//! Allocates and writes memory until the limit is reached; does nothing if the chunk size is 0.

#![forbid(unsafe_code)]

use std::hint::black_box;

use monstrum_sdk::{Error, Executor, Operations, Request, Value, operations};

const CHUNK_KIB: usize = 1024;

struct Greedy;

impl Executor for Greedy {
    const OPERATIONS: Operations = operations! { "alloc.run" => run };
}

monstrum_sdk::export!(Greedy);

fn run(request: &Request) -> Result<Value, Error> {
    let chunk_bytes = request.optional_param::<usize>("chunk_kib")?.unwrap_or(CHUNK_KIB) * 1024;
    if chunk_bytes == 0 {
        return Ok(Value::Null);
    }
    let mut chunks = Vec::new();
    loop {
        chunks.push(black_box(vec![1_u8; chunk_bytes]));
    }
}
