//! The parameters of a call as an argument, and the body of the request.

use std::str::FromStr;

use monstrum_types::ResourceId;
use serde_json::{Map, Value, json};

/// The parameters of a call.
#[derive(Clone)]
pub(super) struct Params(Map<String, Value>);

impl FromStr for Params {
    type Err = String;

    fn from_str(text: &str) -> Result<Params, String> {
        serde_json::from_str(text).map(Params).map_err(|error| format!("expected a JSON object: {error}"))
    }
}

impl Params {
    /// Returns the body of a request with these parameters.
    pub(super) fn body(self, resource: Option<ResourceId>) -> Value {
        let mut body = json!({ "params": self.0 });
        if let Some(resource) = resource {
            body["resource_id"] = json!(resource);
        }
        body
    }
}
