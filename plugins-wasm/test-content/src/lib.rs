//! Returns its parameter `result` unchanged. The guest does not use the SDK, so that the text of the
//! result is the text of the parameter.

#![cfg(target_arch = "wasm32")]
#![allow(unsafe_code, reason = "the macros of wit-bindgen expand to unsafe code")]

mod wit {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "the code is generated")]
    wit_bindgen::generate!({ path: "../../wit/0.1.0", world: "plugin" });
}

use wit::exports::monstrum::plugin::executor::{ExecuteRequest, ExecuteResult, Guest};

struct Content;

impl Guest for Content {
    fn execute(request: ExecuteRequest) -> ExecuteResult {
        // The schema has only this parameter, so its text is everything between the name and the closing brace.
        let result = request.params.strip_prefix("{\"result\":").and_then(|rest| rest.strip_suffix('}'));
        ExecuteResult::Success(result.unwrap_or_default().to_owned())
    }
}

wit::export!(Content with_types_in wit);
