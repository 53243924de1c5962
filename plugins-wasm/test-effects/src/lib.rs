//! Sends one request for each call, with the id of the call as the idempotency key. The tools differ in the effect that the
//! manifest declares.

#![forbid(unsafe_code)]

use monstrum_sdk::{Error, Executor, Http, HttpRequest, Operations, Request, Value, json, operations, path};

struct Effects;

impl Executor for Effects {
    const OPERATIONS: Operations = operations! {
        "effects.read" => read,
        "effects.put" => put,
        "effects.write" => write,
        "effects.fail" => fail,
    };
}

monstrum_sdk::export!(Effects);

fn read(request: &Request) -> Result<Value, Error> {
    let marker: String = request.param("marker")?;
    answered(request, Http::new(request).get(path!("/effects/{}", marker)))
}

fn put(request: &Request) -> Result<Value, Error> {
    let marker: String = request.param("marker")?;
    answered(request, Http::new(request).put(path!("/effects/{}", marker)).body_json(&json!({ "marker": marker })))
}

fn write(request: &Request) -> Result<Value, Error> {
    let marker: String = request.param("marker")?;
    answered(request, Http::new(request).post(path!("/effects/{}", marker)).body_json(&json!({ "marker": marker })))
}

fn fail(request: &Request) -> Result<Value, Error> {
    let marker: String = request.param("marker")?;
    Err(Error::message(format!("`{marker}` fails on purpose")))
}

fn answered(request: &Request, sent: HttpRequest) -> Result<Value, Error> {
    let answer: Value = sent.header("idempotency-key", &request.request_id).json()?;
    let any: Value = request.optional_param("any")?.unwrap_or_default();
    let text = "x".repeat(request.optional_param("bytes")?.unwrap_or_default());
    Ok(json!({
        "marker": request.param::<String>("marker")?,
        "task_id": request.task_id,
        "answer": answer,
        "any": any,
        "text": text,
    }))
}
