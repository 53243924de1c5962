//! The extractors that handlers use: for the caller, a checked body, a page of a list, and ids in the path.

use std::error::Error;
use std::num::IntErrorKind;
use std::str::FromStr;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use http::{Method, header};
use http_body_util::{BodyExt, Limited};
use monstrum_store::{PAGE_ITEMS_MAX, Page};
use monstrum_types::{InputError, RequestId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use crate::gateway::http::pace::TooSlow;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::HttpState;
use monstrum_core::beside::Beside;
use monstrum_core::operations::{
    Admin, AgentCaller, Caller, KeyHolder, OperationError, Operator, Person, Reviewer, Root, json_pointer, shape_error,
};

/// The maximum size of a JSON body: twice the 1 MiB limit of parameters, so that parameters that exceed their limit get
/// a specific error.
pub(crate) const BODY_BYTES_MAX: usize = 2 << 20;

/// The header by which a root key names the workspace in which it acts.
pub(crate) const WORKSPACE: &str = "monstrum-workspace";

/// Extracts callers with a right. The right is checked before the body is read, so a caller without the right learns
/// nothing about errors in the body.
macro_rules! with_right {
    ($($right:ident),+) => {$(
        impl FromRequestParts<HttpState> for $right {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
                Ok(Caller::from_request_parts(parts, state).await?.try_into()?)
            }
        }
    )+};
}

with_right!(Root, Admin, Operator);

/// Refuses approver and agent keys, so that a route accepts them only if it extracts a caller whose right includes them,
/// such as a [`Reviewer`] or an [`AgentCaller`].
impl FromRequestParts<HttpState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = authenticated(parts, state)?;
        caller.general()?;
        Ok(caller)
    }
}

/// Extracts callers with a right that approver or agent keys can have.
macro_rules! with_right_of_every_key {
    ($($right:ident),+) => {$(
        impl FromRequestParts<HttpState> for $right {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
                Ok(authenticated(parts, state)?.try_into()?)
            }
        }
    )+};
}

with_right_of_every_key!(Reviewer, Person, KeyHolder, AgentCaller);

/// The key of a request that the console sends to the router itself, as an extension of the request. It takes the place
/// of the header `Authorization`. Nothing that a client sends becomes an extension, and only the gateway can create a
/// value of this type.
#[derive(Clone, Copy)]
pub(in crate::gateway) struct ConsoleKey {
    key_hash: [u8; 32],
}

impl ConsoleKey {
    /// Makes a request act with the key that has this hash. The key must be the key of a session.
    pub(in crate::gateway) fn new(key_hash: [u8; 32]) -> ConsoleKey {
        ConsoleKey { key_hash }
    }
}

/// Returns the hash of the key of a request.
fn key_hash_of(parts: &Parts) -> Result<[u8; 32], Problem> {
    if let Some(ConsoleKey { key_hash }) = parts.extensions.get() {
        return Ok(*key_hash);
    }
    let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Problem::unauthenticated("send exactly one header `Authorization: Bearer mk_…`"));
    };
    match value.to_str().unwrap_or_default().split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => {
            Ok(monstrum_core::policy::api_key::hash(key.trim()))
        }
        _ => Err(Problem::unauthenticated("send `Authorization: Bearer mk_…`")),
    }
}

/// Returns the caller with the key of a request.
fn authenticated(parts: &Parts, state: &HttpState) -> Result<Caller, Problem> {
    let app = &state.app;
    let key_hash = key_hash_of(parts)?;
    // If the policy is stale, the key may already have been deleted.
    if app.policy.is_stale() {
        return Err(Problem::unavailable("the API keys could not be read; try again"));
    }
    let snapshot = app.policy.load();
    let Some(entry) = snapshot.key(&key_hash) else {
        return Err(Problem::unauthenticated("unknown API key"));
    };
    entry.last_use.note(app.clock.now());
    let named = parts.headers.get(WORKSPACE).map(|value| value.to_str().unwrap_or_default());
    let workspace = match (entry.workspace, named) {
        // A workspace whose row failed verification is missing from the snapshot.
        (Some(own), _) if snapshot.workspace(&own.to_string()).is_none() => {
            return Err(OperationError::unverified(&own.to_string()).into());
        }
        (Some(own), None) => own,
        (Some(own), Some(name)) if snapshot.workspace(name) == Some(own) => own,
        (Some(_), Some(_)) => return Err(Problem::not_found("workspace")),
        (None, None) => snapshot.known_default_workspace().ok_or_else(|| OperationError::unverified("instance"))?,
        (None, Some(name)) => snapshot.workspace(name).ok_or_else(|| Problem::not_found("workspace"))?,
    };
    // In an unverified scope, a key may only read, because rows that may be forged must not permit calls or
    // changes.
    if let Some(found) = snapshot.verification.unverified_for(workspace)
        && !matches!(parts.method, Method::GET | Method::HEAD)
    {
        return Err(OperationError::unverified(&found.scope.to_string()).into());
    }
    let (key, kind, bot, resource) = (entry.id, entry.kind, entry.bot, entry.resource);
    Ok(Caller { request: request_id(parts), key, key_hash, kind, workspace, bot, resource, token_user: None })
}

/// The reader of a document. Readers need a key unless a setting makes the documents public.
pub(crate) enum Reader {
    Anybody,
    Key(Caller),
}

impl FromRequestParts<HttpState> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        if state.options.public_docs {
            return Ok(Reader::Anybody);
        }
        Caller::from_request_parts(parts, state).await.map(Reader::Key)
    }
}

/// A JSON body of type `T`. Unknown fields and wrong types are validation errors with a JSON pointer.
pub(crate) struct Input<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<HttpState> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &HttpState) -> Result<Self, Problem> {
        read_body(whole_body(request.into_body()).await?).await.map(Input)
    }
}

/// Like [`Input`], but the body may be missing or `null`.
pub(crate) struct OptionalInput<T>(pub T);

impl<T: DeserializeOwned + Default + Send + 'static> FromRequest<HttpState> for OptionalInput<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &HttpState) -> Result<Self, Problem> {
        let bytes = whole_body(request.into_body()).await?;
        if matches!(bytes.trim_ascii(), b"" | b"null") {
            Ok(OptionalInput(T::default()))
        } else {
            read_body(bytes).await.map(OptionalInput)
        }
    }
}

/// Reads a body of at most [`BODY_BYTES_MAX`].
pub(crate) async fn whole_body(body: axum::body::Body) -> Result<axum::body::Bytes, Problem> {
    whole_body_of(body, BODY_BYTES_MAX).await
}

/// Reads a body of at most `bytes_max`.
pub(crate) async fn whole_body_of(body: axum::body::Body, bytes_max: usize) -> Result<axum::body::Bytes, Problem> {
    match Limited::new(body, bytes_max).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Problem::too_large(bytes_max)),
        Err(error) => Err(unread_body(error.as_ref())),
    }
}

/// Returns the problem of a body that could not be read to its end.
pub(crate) fn unread_body(error: &(dyn Error + 'static)) -> Problem {
    match TooSlow::is_cause_of(error) {
        Some(too_slow) => Problem::timeout(too_slow.to_string()),
        None => Problem::invalid_at("", format!("the body could not be read: {error}")),
    }
}

/// The maximum size of a body that is parsed on the serving thread. Parsing such a body takes less than half a
/// millisecond.
const READ_IN_PLACE_BYTES_MAX: usize = 16 << 10;

/// Parses a body as JSON of type `T`. A large body is parsed on another thread, so that the serving thread stays free.
pub(crate) async fn read_body<T: DeserializeOwned + Send + 'static>(bytes: axum::body::Bytes) -> Result<T, Problem> {
    static BODIES: Beside = Beside::new();
    if bytes.len() <= READ_IN_PLACE_BYTES_MAX {
        return parse_body(&bytes);
    }
    let read = BODIES.run(move || parse_body(&bytes)).await;
    read.unwrap_or_else(|error| Err(Problem::internal(&error)))
}

/// Parses `bytes` as JSON of type `T`.
pub(crate) fn parse_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Every body is an object. Derived deserializers would also accept an array of the fields' values.
    if bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(Problem::invalid_at("", "expected a JSON object"));
    }
    // Tracking the path of each value doubles the time of parsing. So paths are tracked only in a second run, for a
    // body with an error.
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = json_pointer(error.path());
        let error = error.into_inner();
        let message = error.to_string();
        // If the JSON is valid but has the wrong form, the path locates the error, so the position is removed. Invalid
        // JSON has no path, so the error keeps the position.
        let is_of_shape = error.classify() == serde_json::error::Category::Data;
        let position = format!(" at line {} column {}", error.line(), error.column());
        let message = if is_of_shape { message.strip_suffix(&position).unwrap_or(&message) } else { &message };
        let InputError { path, message } = shape_error(&path, message);
        Problem::invalid_at(path, message)
    })?;
    deserializer.end().map_err(|error| Problem::invalid_at("", error.to_string()))?;
    Ok(value)
}

/// Returns the id of the request.
pub(crate) fn request_id(parts: &Parts) -> RequestId {
    parts.extensions.get().copied().unwrap_or_else(RequestId::new)
}

/// An id in the path. If the text is not a valid id, the response is 404.
pub(crate) struct Id<T>(pub T);

impl<T> FromRequestParts<HttpState> for Id<T>
where
    T: FromStr + Send,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::not_found("object with this id"))?;
        text.parse().map(Id).map_err(|_| Problem::not_found("object with this id"))
    }
}

/// Two ids in the path.
pub(crate) struct Ids<A, B>(pub A, pub B);

impl<A, B> FromRequestParts<HttpState> for Ids<A, B>
where
    A: FromStr + Send,
    B: FromStr + Send,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let absent = || Problem::not_found("object with this id");
        let Path((first, second)) =
            Path::<(String, String)>::from_request_parts(parts, state).await.map_err(|_| absent())?;
        Ok(Ids(first.parse().map_err(|_| absent())?, second.parse().map_err(|_| absent())?))
    }
}

/// The query parameters `limit` and `cursor`. The limit is 1 to 1000 rows, 50 by default; a larger value means 1000.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// The number of items on a page, 1 to 1000. A larger value means 1000.
    #[param(value_type = Option<u32>, minimum = 1, default = 50)]
    limit: Option<String>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

impl PageQuery {
    /// Validates both parameters.
    pub(crate) fn page<C: FromStr>(self) -> Result<Page<C>, Problem> {
        let limit = page_limit(self.limit.as_deref())?;
        let cursor = match self.cursor.as_deref() {
            None | Some("") => None,
            Some(text) => {
                Some(text.parse().map_err(|_| Problem::invalid_at("cursor", "expected a `next_cursor` of this list"))?)
            }
        };
        Ok(Page { limit, cursor })
    }
}

/// Validates the parameter `limit` of a list.
pub(crate) fn page_limit(text: Option<&str>) -> Result<u32, Problem> {
    const DEFAULT: u32 = 50;
    match text.map(str::parse::<u32>) {
        None => Ok(DEFAULT),
        Some(Ok(limit)) if limit >= 1 => Ok(limit.min(PAGE_ITEMS_MAX)),
        Some(Err(error)) if *error.kind() == IntErrorKind::PosOverflow => Ok(PAGE_ITEMS_MAX),
        Some(_) => Err(Problem::invalid_at("limit", "expected a whole number of at least 1")),
    }
}

/// A query string of type `T`.
pub(crate) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<HttpState> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(value)| Params(value)).map_err(|error| Problem::invalid_at("", error.body_text()))
    }
}

#[cfg(test)]
mod tests {
    use monstrum_api::patch::{not_null, nullable};

    use super::*;

    fn limit_and_cursor(limit: Option<&str>, cursor: Option<&str>) -> Result<Page<String>, Problem> {
        PageQuery { limit: limit.map(str::to_owned), cursor: cursor.map(str::to_owned) }.page()
    }

    #[test]
    fn limits_are_clamped_from_above_and_refused_below_one() {
        let limit = |text| limit_and_cursor(Some(text), None).map(|page| page.limit);
        assert_eq!(limit_and_cursor(None, None).unwrap().limit, 50);
        assert_eq!((limit("1").unwrap(), limit("1000").unwrap(), limit("1001").unwrap()), (1, 1000, 1000));
        for bad in ["0", "-1", "", "x", "1.5"] {
            assert_eq!(limit(bad).unwrap_err().status, http::StatusCode::UNPROCESSABLE_ENTITY, "{bad}");
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Change {
        #[serde(default, deserialize_with = "not_null")]
        name: Option<String>,
        #[serde(default, deserialize_with = "nullable")]
        note: Option<Option<String>>,
    }

    #[test]
    fn a_fault_of_shape_is_placed_by_its_path_and_one_of_syntax_by_its_position() {
        let told = |text: &str| parse_body::<Change>(text.as_bytes()).unwrap_err().detail().to_owned();
        assert_eq!(told(r#"{"name": 5}"#), "/name: invalid type: integer `5`, expected a string");
        assert_eq!(told(r#"{"colour": 5}"#), "/colour: unknown field `colour`, expected `name` or `note`");
        assert!(told(r#"{"name": "#).contains("at line 1 column"));
    }

    #[test]
    fn a_patch_tells_absent_from_null() {
        let parse = |text: &str| parse_body::<Change>(text.as_bytes());
        let change = parse("{}").unwrap();
        assert_eq!((change.name, change.note), (None, None));
        assert_eq!(parse(r#"{"note": null}"#).unwrap().note, Some(None));
        assert_eq!(parse(r#"{"note": "x"}"#).unwrap().note, Some(Some("x".to_owned())));
        for bad in [r#"{"name": null}"#, r#"{"more": 1}"#, r#"{"name": "a"} x"#, "[]", ""] {
            assert_eq!(parse(bad).unwrap_err().status, http::StatusCode::UNPROCESSABLE_ENTITY, "{bad}");
        }
    }
}
