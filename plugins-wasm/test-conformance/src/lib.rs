//! The tools that the MCP conformance suite calls. Their results are those of the suite's own server.

#![forbid(unsafe_code)]

use monstrum_sdk::log::{self, Level};
use monstrum_sdk::{Error, Executor, Http, Operations, Request, Value, json, operations};

/// A PNG of one red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A WAV file without samples.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

struct Fixture;

impl Executor for Fixture {
    const OPERATIONS: Operations = operations! {
        "fixture.text" => simple_text,
        "fixture.image" => image,
        "fixture.audio" => audio,
        "fixture.resource" => embedded_resource,
        "fixture.mixed" => mixed,
        "fixture.error" => failure,
        "fixture.log" => logged,
        "fixture.change" => change,
    };
}

monstrum_sdk::export!(Fixture);

fn content(blocks: &[Value]) -> Result<Value, Error> {
    Ok(json!({ "content": blocks }))
}

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn image_block() -> Value {
    json!({ "type": "image", "data": PNG, "mimeType": "image/png" })
}

fn simple_text(_: &Request) -> Result<Value, Error> {
    content(&[text_block("This is a simple text response for testing.")])
}

fn image(_: &Request) -> Result<Value, Error> {
    content(&[image_block()])
}

fn audio(_: &Request) -> Result<Value, Error> {
    content(&[json!({ "type": "audio", "data": WAV, "mimeType": "audio/wav" })])
}

fn embedded_resource(_: &Request) -> Result<Value, Error> {
    content(&[json!({ "type": "resource", "resource": {
        "uri": "test://embedded-resource",
        "mimeType": "text/plain",
        "text": "This is an embedded resource content.",
    } })])
}

fn mixed(_: &Request) -> Result<Value, Error> {
    let resource = json!({ "type": "resource", "resource": {
        "uri": "test://mixed-content-resource",
        "mimeType": "application/json",
        "text": r#"{"test":"data","value":123}"#,
    } });
    content(&[text_block("Multiple content types test:"), image_block(), resource])
}

fn failure(_: &Request) -> Result<Value, Error> {
    Err(Error::message("This tool intentionally returns an error for testing"))
}

fn logged(_: &Request) -> Result<Value, Error> {
    for line in ["Tool execution started", "Tool execution completed"] {
        log::write(Level::Info, line, &[]);
    }
    content(&[text_block("The lines are in the log of the host.")])
}

/// The upstream changes the permissions of the bot, so the change is complete when it answers.
fn change(request: &Request) -> Result<Value, Error> {
    Http::new(request).post("/changes").send()?.error_for_status()?;
    content(&[text_block("The list of tools has changed.")])
}
