//! `Idempotency-Key`: a client can repeat a request that creates an object, for example after a broken connection,
//! without creating a second one.
//!
//! For 24 hours, a repeated request with the same key and body gets the stored answer, and a request with the same key
//! and a different body gets 409. Answers may contain any data, so they are stored encrypted. Answers with a status of
//! 500 or above are not stored, so that the request can be repeated.

use std::ops::Deref;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use monstrum_store::{Claim, IdempotencyKey, StoreError, StoredAnswer};
use monstrum_types::RequestId;
use monstrum_vault::{AssociatedData, Sealed, VaultError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::openapi::path::{ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, RefOr, Required, Schema, Type};
use utoipa_axum::router::OpenApiRouter;

use crate::gateway::http::extract::whole_body;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::HttpState;
use monstrum_core::app::App;
use monstrum_core::beside::in_place;
use monstrum_core::operations::Caller;

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// The header that marks a stored answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// The maximum length of a key, longer than any UUID or hash that clients use.
const KEY_CHARS_MAX: usize = 255;
/// The maximum size of a stored answer. The answer to a creation contains the request's data and a few more fields.
/// JSON escapes can make the answer longer than the request.
const ANSWER_BYTES_MAX: usize = 12 << 20;
/// The maximum size of a body that is hashed in place. Hashing such a body takes less than a quarter of a millisecond.
const HASHED_IN_PLACE_BYTES_MAX: usize = 64 << 10;
/// The retention time of answers.
const ANSWERS_KEPT_MS: i64 = 24 * 3600 * 1000;
/// The maximum age of a claim without an answer. No creation takes minutes, so an older claim belongs to a server that
/// has crashed.
const CLAIM_MS_MAX: i64 = 10 * 60 * 1000;

/// Adds the header `Idempotency-Key` to the API description of the routes in `creating`.
pub(crate) fn describe(mut creating: OpenApiRouter<HttpState>) -> OpenApiRouter<HttpState> {
    let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(KEY_CHARS_MAX));
    let parameter = ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "A key that the client chooses. For 24 hours, a repeated request with the same key and body gets the same \
             answer. A different body gets 409.",
        ))
        .schema(Some(RefOr::T(Schema::Object(text.build()))))
        .build();
    for item in creating.get_openapi_mut().paths.paths.values_mut() {
        if let Some(operation) = &mut item.post {
            operation.parameters.get_or_insert_default().push(parameter.clone().into());
        }
    }
    creating
}

/// Adds the middleware to the routes in `creating`, which require the right `R`. The middleware checks the right too,
/// because it reads the body before the handler runs.
pub(crate) fn layer<R>(creating: OpenApiRouter<HttpState>, state: &HttpState) -> OpenApiRouter<HttpState>
where
    R: FromRequestParts<HttpState, Rejection = Problem> + Deref<Target = Caller> + Send + 'static,
{
    creating.route_layer(from_fn_with_state(state.clone(), remember::<R>))
}

/// Deletes expired answers and claims, and returns their number.
pub async fn forget_expired(app: &App) -> Result<u64, StoreError> {
    let now = app.clock.now();
    app.store.purge_requests(now.plus_ms(-ANSWERS_KEPT_MS), now.plus_ms(-CLAIM_MS_MAX)).await
}

/// The sealed content of an answer.
#[derive(Serialize, Deserialize)]
struct Answer {
    content_type: String,
    body: String,
}

async fn remember<R>(State(state): State<HttpState>, request: Request, next: Next) -> Response
where
    R: FromRequestParts<HttpState, Rejection = Problem> + Deref<Target = Caller>,
{
    match header_key(request.headers()) {
        Ok(None) => next.run(request).await,
        Ok(Some(key)) => answer_once::<R>(&state, key, request, next).await.unwrap_or_else(IntoResponse::into_response),
        Err(problem) => problem.into_response(),
    }
}

fn header_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(HEADER).iter();
    let (first, second) = (values.next(), values.next());
    let Some(value) = first else { return Ok(None) };
    let text = value
        .to_str()
        .ok()
        .filter(|text| (1..=KEY_CHARS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()));
    match (text, second) {
        (Some(text), None) => Ok(Some(text.to_owned())),
        _ => {
            let message = format!("send exactly one value of 1 to {KEY_CHARS_MAX} visible ASCII characters");
            Err(Problem::invalid_at("Idempotency-Key", message))
        }
    }
}

async fn answer_once<R>(state: &HttpState, key: String, request: Request, next: Next) -> Result<Response, Problem>
where
    R: FromRequestParts<HttpState, Rejection = Problem> + Deref<Target = Caller>,
{
    let app = &*state.app;
    let (mut parts, body) = request.into_parts();
    let caller = R::from_request_parts(&mut parts, state).await?;
    let route = format!("{} {}", parts.method, parts.uri.path());
    let body = whole_body(body).await?;
    let body_hash = in_place(body.len() > HASHED_IN_PLACE_BYTES_MAX, || hex::encode(Sha256::digest(&body)));
    let key = IdempotencyKey { workspace_id: caller.workspace, caller: caller.key, route, key };
    if let Claim::Earlier { body_hash: earlier, answer } = claim(app, &key, &body_hash).await? {
        return repeat(app, &key, &body_hash, &earlier, answer);
    }
    let request_id = parts.extensions.get().copied().unwrap_or_else(RequestId::new);
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    finish(app, &key, &body_hash, response, request_id).await
}

/// Claims the key. If the key is already claimed, the function deletes expired claims and, if it has deleted any,
/// claims the key again, because the existing claim may have been expired.
async fn claim(app: &App, key: &IdempotencyKey, body_hash: &str) -> Result<Claim, StoreError> {
    let now = app.clock.now();
    let claim = app.store.claim_request(key, body_hash, now).await?;
    if claim == Claim::First || forget_expired(app).await? == 0 {
        return Ok(claim);
    }
    app.store.claim_request(key, body_hash, now).await
}

fn repeat(
    app: &App,
    key: &IdempotencyKey,
    body_hash: &str,
    earlier: &str,
    answer: Option<StoredAnswer>,
) -> Result<Response, Problem> {
    if earlier != body_hash {
        return Err(Problem::conflict("this Idempotency-Key was already used with a different body; use a new key"));
    }
    let Some(stored) = answer else {
        let running = Problem::conflict("a request with this Idempotency-Key is still running; try again later");
        return Err(running.with_retry_after(Duration::from_secs(1)));
    };
    let opened = open(app, key, body_hash, &stored).map_err(|error| Problem::internal(&error))?;
    let mut response = Response::new(Body::from(opened.body));
    let status = u16::try_from(stored.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    *response.status_mut() = status.ok_or_else(|| Problem::internal(&"a stored answer has no status"))?;
    let headers = response.headers_mut();
    let kind = HeaderValue::from_str(&opened.content_type).map_err(|error| Problem::internal(&error))?;
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

/// Stores the answer. If the answer is a server error, releases the claim instead of storing the answer.
async fn finish(
    app: &App,
    key: &IdempotencyKey,
    body_hash: &str,
    mut response: Response,
    request_id: RequestId,
) -> Result<Response, Problem> {
    if response.status().is_server_error() {
        app.store.release_request(key).await?;
        return Ok(response);
    }
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = problem.render(&request_id.to_string());
    }
    let (parts, body) = response.into_parts();
    let body: Bytes = to_bytes(body, ANSWER_BYTES_MAX).await.map_err(|error| Problem::internal(&error))?;
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let answer = Answer {
        content_type: content_type.unwrap_or("application/json").to_owned(),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let sealed = app.vault.seal(
        &serde_json::to_vec(&answer).expect("two texts are JSON"),
        place_of_answer(key, body_hash, parts.status.as_u16().into()),
    );
    let sealed = sealed.map_err(|error| Problem::internal(&error))?.to_string();
    let stored = StoredAnswer { status: parts.status.as_u16().into(), sealed };
    // The object has been created, so the answer is sent even if it could not be stored.
    if let Err(error) = app.store.answer_request(key, &stored).await {
        tracing::error!(%error, "the answer for an Idempotency-Key could not be stored");
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// An error while reading a stored answer.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("the stored answer of an Idempotency-Key cannot be decrypted: {0}")]
    Sealed(#[from] VaultError),
    #[error("the stored answer of an Idempotency-Key has an unexpected format")]
    Form(#[from] serde_json::Error),
}

fn open(app: &App, key: &IdempotencyKey, body_hash: &str, stored: &StoredAnswer) -> Result<Answer, Unreadable> {
    let sealed: Sealed = stored.sealed.parse()?;
    let plaintext = app.vault.unseal(&sealed, place_of_answer(key, body_hash, stored.status))?;
    Ok(serde_json::from_slice(&plaintext)?)
}

/// Returns the associated data of a stored answer. The associated data binds the answer to its request, so that a
/// change in the database cannot move the answer to another request.
pub fn place_of_answer(key: &IdempotencyKey, body_hash: &str, status: i64) -> AssociatedData {
    AssociatedData::new("idempotent answer")
        .with("workspace", &key.workspace_id)
        .with("caller", &key.caller)
        .with("route", &key.route)
        .with("key", &key.key)
        .with("body", body_hash)
        .with("status", &status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&[u8]]) -> Result<Option<String>, StatusCode> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value).unwrap());
        }
        header_key(&headers).map_err(|problem| problem.status)
    }

    #[test]
    fn the_key_is_one_short_visible_text() {
        let longest = [b'k'; KEY_CHARS_MAX];
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"a-1"]), Ok(Some("a-1".to_owned())));
        assert!(read(&[&longest]).is_ok());
        let refused = Err(StatusCode::UNPROCESSABLE_ENTITY);
        for bad in [&b""[..], b"a b", b"a\tb", "é".as_bytes(), &[b'k'; KEY_CHARS_MAX + 1]] {
            assert_eq!(read(&[bad]), refused, "{bad:?}");
        }
        assert_eq!(read(&[b"a", b"a"]), refused);
    }
}
