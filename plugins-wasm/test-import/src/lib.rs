//! Imports an unknown interface. The guest uses the interface, so that the compiler does not remove the import.

#![cfg(target_arch = "wasm32")]
#![allow(unsafe_code, reason = "the macros of wit-bindgen expand to unsafe code")]

mod wit {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "the code is generated")]
    wit_bindgen::generate!({ path: ["../../wit/0.1.0", "wit"], world: "test:unknown/guest", generate_all });
}

use wit::exports::monstrum::plugin::executor::{ExecuteRequest, ExecuteResult, Guest};

struct Door;

impl Guest for Door {
    fn execute(_: ExecuteRequest) -> ExecuteResult {
        ExecuteResult::Error(wit::test::unknown::door::open())
    }
}

wit::export!(Door with_types_in wit);
