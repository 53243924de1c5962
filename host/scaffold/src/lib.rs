//! The plugin {{name}}: items of an HTTP API.
//!
//! `monstrum.yaml` declares what a bot may do. The host enforces it and adds the credential, so this code only has to
//! send the right request.

use monstrum_sdk::{Error, Executor, Http, Operations, Request, Value, operations, path};

/// The URL of the API, unless the resource sets `api_base`.
const API: &str = "https://api.example.com";

struct Plugin;

impl Executor for Plugin {
    const OPERATIONS: Operations = operations! { "item.read" => read };
}

monstrum_sdk::export!(Plugin);

fn read(request: &Request) -> Result<Value, Error> {
    let id: String = request.param("id")?;
    Http::new(request).base(API).get(path!("/items/{}", id)).json()
}

#[cfg(test)]
mod tests {
    use monstrum_sdk::json;
    use monstrum_sdk::testing::{Answer, Call};

    use super::Plugin;

    fn call() -> Call {
        Call::new("{{snake}}_get_item", "item.read").param("id", "a/7")
    }

    #[test]
    fn an_item_is_read() {
        let item = json!({ "id": "a/7", "name": "Seventh" });
        let answer = Answer::get("https://api.example.com/items/a%2F7").json(item.clone());
        assert_eq!(call().answer(answer).run(&Plugin).success(), item);
    }

    #[test]
    fn a_missing_item_is_an_error() {
        let answer = Answer::get("https://api.example.com/items/a%2F7").status(404).body("no such item");
        assert_eq!(call().answer(answer).run(&Plugin).error(), "the upstream answered 404: no such item");
    }
}
