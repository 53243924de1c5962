//! A component that does not export the interface of an executor.

#![cfg(target_arch = "wasm32")]
#![allow(unsafe_code, reason = "the macros of wit-bindgen expand to unsafe code")]

mod wit {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "the code is generated")]
    wit_bindgen::generate!({ path: "wit", world: "other" });
}

struct Other;

impl wit::Guest for Other {
    fn run() -> String {
        "hello".to_owned()
    }
}

wit::export!(Other with_types_in wit);
