//! The notebook plugin: lists, reads and writes the pages of notebooks. The demo of the console uses it.
//!
//! The host enforces the permissions that `monstrum.yaml` declares. The plugin builds the requests, and ensures that a
//! name cannot lead to another notebook.

#![forbid(unsafe_code)]

mod name;
#[cfg(test)]
mod tests;

use monstrum_sdk::log::{self, Level};
use monstrum_sdk::{Error, Executor, Http, Operations, Outcome, Request, Value, json, operations, path};

use name::Name;

/// The tool that lists the pages. It has the same operation as the tool that reads one page.
const LIST: &str = "notebook_list";
/// The maximum number of characters of a response in an error message: enough for the server's message, and short
/// enough for a model's context.
const ERROR_BODY_CHARS_MAX: usize = 200;

struct Notebook;

impl Executor for Notebook {
    const OPERATIONS: Operations = operations! {
        "page.read" => read,
        "page.write" => write,
    };

    fn handle_error(&self, _: &Request, error: Error) -> Outcome {
        match error {
            Error::Http { status, body } => {
                log::write(Level::Error, "notebook server error", &[("status", status.into())]);
                let body: String = body.chars().take(ERROR_BODY_CHARS_MAX).collect();
                Outcome::Error(format!("Notebook server error: {status} - {body}"))
            }
            Error::Host(failure) => {
                log::write(Level::Error, "notebook request error", &[("code", failure.code.as_str().into())]);
                Outcome::Error(format!("Notebook request error: {failure}"))
            }
            other => other.into(),
        }
    }
}

monstrum_sdk::export!(Notebook);

fn read(request: &Request) -> Result<Value, Error> {
    let notebook = Name::of(request, "notebook")?;
    if request.tool_name == LIST {
        return http(request).get(path!("/notebooks/{}/pages", notebook)).json();
    }
    let page = Name::of(request, "page")?;
    http(request).get(path!("/notebooks/{}/pages/{}", notebook, page)).json()
}

fn write(request: &Request) -> Result<Value, Error> {
    let (notebook, page) = (Name::of(request, "notebook")?, Name::of(request, "page")?);
    let text = request.param::<String>("text")?;
    http(request).put(path!("/notebooks/{}/pages/{}", notebook, page)).body_json(&json!({ "text": text })).json()
}

fn http(request: &Request) -> Http {
    Http::new(request).header("Accept", "application/json")
}
