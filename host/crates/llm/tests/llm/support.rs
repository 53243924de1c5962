//! Readers with known ids, and answers as one line of text.

use std::str::FromStr;

use monstrum_llm::{Delta, Origin, ReadError, Reader, Round};
use monstrum_types::ResourceId;
use serde_json::{Value, json};

pub(crate) fn origin(model: &str) -> Origin {
    let resource = ResourceId::from_str("0198c0de-0000-7000-8000-000000000001").unwrap();
    Origin { resource, model: model.to_owned() }
}

pub(crate) fn reader() -> Reader<impl FnMut() -> String> {
    let mut made = 0;
    Reader::new(origin("m"), move || {
        made += 1;
        format!("made-{made}")
    })
}

/// Reads an answer whose bytes arrive in these pieces.
pub(crate) fn read_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Delta>, Result<Round, ReadError>) {
    let mut reader = reader();
    let deltas = pieces.into_iter().flat_map(|piece| reader.push(piece)).collect();
    (deltas, reader.finish())
}

pub(crate) fn read(answer: impl AsRef<[u8]>) -> Result<Round, ReadError> {
    read_pieces([answer.as_ref()]).1
}

/// Writes chunks as a stream that ends with `[DONE]`.
pub(crate) fn stream(chunks: &[Value]) -> String {
    let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    events + "data: [DONE]\n\n"
}

/// Returns a chunk with this delta.
pub(crate) fn delta(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

/// Returns the chunk that ends an answer.
pub(crate) fn finish(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// Reads an answer of these deltas that ends with `stop`.
pub(crate) fn read_deltas(deltas: &[Value]) -> Round {
    let mut chunks: Vec<Value> = deltas.iter().map(delta).collect();
    chunks.push(finish("stop"));
    read(stream(&chunks)).unwrap()
}

/// Returns the calls of a round: `id name arguments`.
pub(crate) fn calls(round: &Round) -> Vec<String> {
    round.message.calls.iter().map(|call| format!("{} {} {}", call.id, call.name, call.arguments.as_str())).collect()
}

/// Returns an error with its causes.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
