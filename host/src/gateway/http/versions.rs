//! The versions of objects: the header `ETag` of answers, and the header `If-Match` of changes.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponseParts, ResponseParts};
use http::request::Parts;
use http::{HeaderValue, header};
use monstrum_api::bindings::Binding;
use monstrum_api::bots::Bot;
use monstrum_api::oauth_providers::OauthProvider;
use monstrum_api::resources::Resource;
use monstrum_api::roles::Role;
use monstrum_api::schedules::Schedule;
use monstrum_api::webhooks::Webhook;
use monstrum_api::workflows::Workflow;
use monstrum_core::operations::{Expected, Replacing};
use monstrum_types::UtcMillis;

use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::HttpState;

/// The version of the object in an answer, as the header `ETag`.
pub(crate) struct Version(UtcMillis);

/// An answer with an object and its version.
pub(crate) type Versioned<T> = Result<(Version, Json<T>), Problem>;

/// An object with a version: the time of its last change. No two changes of an object have the same time.
pub(crate) trait HasVersion {
    fn version(&self) -> UtcMillis;
}

macro_rules! has_version {
    ($($object:ty),+) => {$(
        impl HasVersion for $object {
            fn version(&self) -> UtcMillis {
                self.updated_at
            }
        }
    )+};
}

has_version!(Binding, Bot, OauthProvider, Resource, Role, Schedule, Webhook, Workflow);

/// Returns the answer with an object and its version.
pub(crate) fn versioned<T: HasVersion>(object: T) -> (Version, Json<T>) {
    (Version(object.version()), Json(object))
}

impl IntoResponseParts for Version {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut response: ResponseParts) -> Result<ResponseParts, Self::Error> {
        let tag = HeaderValue::from_str(&format!("\"{}\"", self.0)).expect("a time has only printable characters");
        response.headers_mut().insert(header::ETAG, tag);
        Ok(response)
    }
}

/// The precondition of a change: the header `If-Match` (RFC 9110). Without the header, every version may be changed.
pub(crate) struct IfMatch(pub Expected);

impl FromRequestParts<HttpState> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &HttpState) -> Result<Self, Problem> {
        let values: Vec<&HeaderValue> = parts.headers.get_all(header::IF_MATCH).iter().collect();
        if values.is_empty() {
            return Ok(IfMatch(Expected::Any));
        }
        let mut versions = Vec::new();
        for value in values {
            let text = value.to_str().map_err(|_| malformed())?.trim();
            if text == "*" {
                return Ok(IfMatch(Expected::Any));
            }
            for tag in text.split(',') {
                versions.extend(version(tag.trim())?);
            }
        }
        Ok(IfMatch(Expected::OneOf(versions)))
    }
}

/// The precondition of a request that creates an object or replaces it: the header `If-None-Match: *`, which requires that
/// there is none, or the header `If-Match`.
pub(crate) struct IfReplaced(pub Replacing);

impl FromRequestParts<HttpState> for IfReplaced {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let IfMatch(expected) = IfMatch::from_request_parts(parts, state).await?;
        let mut absent = parts.headers.get_all(header::IF_NONE_MATCH).iter();
        match (absent.next(), absent.next(), expected) {
            (None, _, expected) => Ok(IfReplaced(Replacing::Version(expected))),
            (Some(value), None, Expected::Any) if value == "*" => Ok(IfReplaced(Replacing::Nothing)),
            _ => Err(Problem::invalid_at("If-None-Match", "expected `*`, without the header If-Match")),
        }
    }
}

/// Returns the version of an entity tag. A weak tag, and a tag that is not one of ours, match no version.
fn version(tag: &str) -> Result<Option<UtcMillis>, Problem> {
    if tag.starts_with("W/") {
        return Ok(None);
    }
    let text = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).ok_or_else(malformed)?;
    Ok(text.parse().ok())
}

fn malformed() -> Problem {
    Problem::invalid_at("If-Match", "expected the ETag of an earlier answer, with its quotation marks, or `*`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_strong_tags_name_versions() {
        let time = "2026-11-21T22:21:49.123Z";
        assert_eq!(version(&format!("\"{time}\"")).unwrap(), Some(time.parse().unwrap()));
        for none in [format!("W/\"{time}\""), "\"other\"".to_owned(), "\"\"".to_owned()] {
            assert_eq!(version(&none).unwrap(), None, "{none}");
        }
        for wrong in [time, "", "\"", "\"a"] {
            assert!(version(wrong).is_err(), "{wrong}");
        }
    }
}
