//! Never returns: the guest computes or sleeps endlessly. With mode `none`, the guest returns.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Duration;

use monstrum_sdk::{Error, Executor, Operations, Request, Value, operations};

struct Endless;

impl Executor for Endless {
    const OPERATIONS: Operations = operations! { "loop.run" => run };
}

monstrum_sdk::export!(Endless);

fn run(request: &Request) -> Result<Value, Error> {
    let mode = request.optional_param::<String>("mode")?;
    if mode.as_deref() == Some("none") {
        return Ok(Value::Null);
    }
    let is_asleep = mode.as_deref() == Some("sleep");
    let mut turns = 0_u64;
    loop {
        if is_asleep {
            std::thread::sleep(Duration::from_secs(3_600));
        }
        turns = black_box(turns).wrapping_add(1);
    }
}
