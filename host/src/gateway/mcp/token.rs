//! Access tokens in place of API keys, and the metadata by which clients find the authorization server.

use axum::Json;
use axum::extract::FromRequestParts as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use monstrum_core::access_tokens::{AccessTokens, SCOPE, TokenError};
use monstrum_core::operations::Caller;
use monstrum_core::operations::tokens::{self, TokenRefusal};
use monstrum_types::BotId;
use serde::Serialize;
use utoipa::ToSchema;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, request_id};
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};

/// The start of every API key.
const KEY_PREFIX: &str = "mk_";

/// The metadata of a bot as a protected resource (RFC 9728).
#[derive(Serialize, ToSchema)]
pub(in crate::gateway) struct ResourceMetadata {
    /// The URL at which the bot is used, which tokens have as audience.
    resource: String,
    authorization_servers: Vec<String>,
    scopes_supported: Vec<&'static str>,
    bearer_methods_supported: Vec<&'static str>,
}

/// Describes the authorization of a bot
///
/// The answer is the same for every id, whether or not there is a bot with this id.
#[utoipa::path(get, path = "/.well-known/oauth-protected-resource/mcp/{id}", tag = "mcp",
    params(("id" = BotId, Path)), security(()),
    responses((status = 200, body = ResourceMetadata),
        (status = "4XX", body = ProblemBody, description = "The server has no issuer, or the id is not well formed")))]
pub(in crate::gateway) async fn metadata(app: Host, Id(id): Id<BotId>) -> Answer<ResourceMetadata> {
    let tokens = app.access_tokens.as_ref().ok_or_else(|| Problem::not_found("authorization server"))?;
    Ok(Json(ResourceMetadata {
        resource: tokens.resource(id),
        authorization_servers: vec![tokens.issuer().to_owned()],
        scopes_supported: vec![SCOPE],
        bearer_methods_supported: vec!["header"],
    }))
}

/// Returns the caller of a request for the bot, by its API key or its access token.
pub(super) async fn caller(parts: &mut Parts, state: &HttpState, bot: &str) -> Result<Caller, Problem> {
    let Some(access_tokens) = &state.app.access_tokens else { return Caller::from_request_parts(parts, state).await };
    // A name belongs to the workspace of a key, and a token has no workspace.
    let id: Option<BotId> = bot.parse().ok();
    let token = access_token(&parts.headers).map(str::to_owned);
    let has_token = token.is_some();
    let found = match (token, id) {
        (Some(token), Some(id)) => by_token(parts, state, access_tokens, &token, id).await,
        (Some(_), None) => Err(Problem::unauthenticated("an access token requires the id of the bot in the URL")),
        (None, _) => Caller::from_request_parts(parts, state).await,
    };
    found.map_err(|problem| match (problem.status, id) {
        (StatusCode::UNAUTHORIZED, Some(id)) => {
            let error = has_token.then_some("invalid_token");
            problem.with_challenge(challenge(access_tokens, id, error))
        }
        _ => problem,
    })
}

/// Returns the access token of a request, or `None` if the request has another credential or more than one.
fn access_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.starts_with(KEY_PREFIX)).then_some(token)
}

async fn by_token(
    parts: &Parts,
    state: &HttpState,
    access_tokens: &AccessTokens,
    token: &str,
    bot: BotId,
) -> Result<Caller, Problem> {
    let found = tokens::caller(&state.app, access_tokens, request_id(parts), token, bot).await;
    found.map_err(|refusal| match refusal {
        TokenRefusal::Operation(error) => error.into(),
        TokenRefusal::Token(error @ TokenError::Invalid(_)) => Problem::unauthenticated(error.to_string()),
        TokenRefusal::Token(error @ TokenError::Unavailable) => Problem::unavailable(error.to_string()),
        TokenRefusal::Token(error @ TokenError::Scope) => {
            let problem = Problem::not_allowed(error.to_string());
            problem.with_challenge(challenge(access_tokens, bot, Some("insufficient_scope")))
        }
    })
}

/// Returns the value of `WWW-Authenticate` (RFC 6750 and RFC 9728).
fn challenge(access_tokens: &AccessTokens, bot: BotId, error: Option<&str>) -> HeaderValue {
    let error = error.map(|error| format!("error=\"{error}\", ")).unwrap_or_default();
    let metadata = access_tokens.metadata_url(bot);
    let text = format!("Bearer {error}scope=\"{SCOPE}\", resource_metadata=\"{metadata}\"");
    // A URL contains only visible ASCII characters.
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("Bearer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_that_is_no_api_key_is_an_access_token() {
        let token = |values: &[&'static str]| {
            let values = values.iter().map(|value| (header::AUTHORIZATION, HeaderValue::from_static(value)));
            let mut headers = HeaderMap::new();
            values.for_each(|(name, value)| {
                headers.append(name, value);
            });
            access_token(&headers).map(str::to_owned)
        };
        assert_eq!(token(&["Bearer a.b.c"]).as_deref(), Some("a.b.c"));
        assert_eq!(token(&["bearer  a.b.c"]).as_deref(), Some("a.b.c"));
        for none in [&["Bearer mk_a"][..], &["Basic a.b.c"], &["Bearer "], &["a.b.c"], &[], &["Bearer a", "Bearer b"]] {
            assert_eq!(token(none), None, "{none:?}");
        }
    }
}
