//! OAuth for single users: the button with which a user begins, and the links of users with access tokens. The pages need
//! no API key: the URLs contain tickets, and the browser is recognized by its cookie.

use axum::extract::{FromRequestParts, Path};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, Method};
use monstrum_core::operations::{Caller, oauth, user_credentials};
use monstrum_types::{ResourceId, Secret};

use super::{CallbackQuery, KnownHost, cookie, cookie_name, page};
use crate::gateway::http::extract::{Id, Params};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{Host, HttpState};

/// A caller that may manage the credentials of users for the resource in the path. This is checked before the body is
/// read.
pub(in crate::gateway) struct ForUsers {
    pub(in crate::gateway) caller: Caller,
    pub(in crate::gateway) id: ResourceId,
}

impl FromRequestParts<HttpState> for ForUsers {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let Id(id) = Id::from_request_parts(parts, state).await?;
        user_credentials::may_act(&state.app, &caller, id)?;
        Ok(ForUsers { caller, id })
    }
}

/// Redirects the browser of a user to the OAuth provider
///
/// This is the button of the page. Only the browser that has opened the page can press it.
#[utoipa::path(post, path = "/oauth/begin/{ticket}", tag = "oauth", params(("ticket" = String, Path)), security(()),
    operation_id = "oauth_press",
    responses((status = 303, description = "Redirect to the provider, with a cookie"),
        (status = "4XX", description = "An error page", content_type = "text/html", body = String)))]
pub(in crate::gateway) async fn press(
    app: Host,
    _: KnownHost,
    Path(ticket): Path<String>,
    headers: HeaderMap,
) -> Response {
    let begun = async {
        let flow = app.oauth.of_ticket(&ticket).await?;
        let name = cookie_name(&app, flow.id);
        let begun = app.oauth.begin(&flow, cookie(&headers, &name)).await?;
        Ok(page::onward(&begun, &name, app.oauth.is_secure()))
    };
    begun.await.unwrap_or_else(|error| page::failure(&error, None))
}

/// Redirects the browser of a user with an access token to the issuer
///
/// The user signs in at the issuer of access tokens. If the person who signs in is the user for whom the link was made,
/// the authorization begins. Only the browser that first opens the link can continue.
#[utoipa::path(get, path = "/oauth/connect/{ticket}", tag = "oauth", params(("ticket" = String, Path)), security(()),
    operation_id = "oauth_connect",
    responses((status = 303, description = "Redirect to the issuer, with a cookie"),
        (status = "4XX", description = "An error page", content_type = "text/html", body = String)))]
pub(in crate::gateway) async fn connect(
    app: Host,
    _: KnownHost,
    Path(ticket): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    // A HEAD request only checks whether the page exists, so it does not use up the link.
    if method == Method::HEAD {
        return page::waiting();
    }
    let connected = async {
        let name = cookie_name(&app, app.oauth.flow_of_link(&ticket)?);
        let (url, sign_in) = oauth::connect(&app, &ticket, cookie(&headers, &name)).await?;
        let set_cookie = page::set_cookie(&name, &sign_in.browser, app.oauth.is_secure());
        Ok(page::redirect(url.as_str(), Some(&set_cookie)))
    };
    connected.await.unwrap_or_else(|error| page::failure(&error, None))
}

/// Continues when the issuer redirects the browser of a user back
#[utoipa::path(get, path = "/oauth/connect/callback", tag = "oauth", params(CallbackQuery), security(()),
    operation_id = "oauth_signed_in",
    responses((status = 303, description = "Redirect to the page that begins the authorization"),
        (status = "4XX", description = "An error page", content_type = "text/html", body = String)))]
pub(in crate::gateway) async fn signed_in(
    app: Host,
    Params(query): Params<CallbackQuery>,
    headers: HeaderMap,
) -> Response {
    let signed_in = async {
        let flow = app.oauth.of_state(query.state.as_deref().unwrap_or_default()).await?;
        let code = match (query.error, query.code) {
            (None, Some(code)) => Ok(Secret::new(code)),
            (error, _) => Err(error.unwrap_or_else(|| "no_code".to_owned())),
        };
        let browser = cookie(&headers, &cookie_name(&app, flow.id));
        let begin = oauth::signed_in(&app, &flow, browser, code, query.iss.as_deref()).await?;
        Ok(page::redirect(&begin, None))
    };
    signed_in.await.unwrap_or_else(|error| page::failure(&error, None))
}
