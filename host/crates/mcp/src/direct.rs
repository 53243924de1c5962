//! Answers calls and lists without rmcp.
//!
//! rmcp buffers and copies a message several times until it knows its method, and starts several tasks for each request.
//! This takes longer than most calls. This module reads the requests that rmcp would accept without doubt, and answers
//! them with the same bytes. It leaves all other requests to rmcp, and with them all errors of the protocol.
//! The gateway has checked `Host` and `Origin`.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, Response};
use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, JsonRpcError, JsonRpcResponse, JsonRpcVersion2_0, PaginatedRequestParams, ProtocolVersion,
    RequestId, RequestMetaObject, ServerResult,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::handler::{Client, Handler, REVISIONS};
use crate::listed::Listed;
use crate::message::{Message, Method, REVISION};
use crate::offer::Offer;
use crate::server::{Body, REVISION_HEADER, message_response};

/// The headers with which a request repeats its method, and the name of the called tool.
const METHOD_HEADER: &str = "mcp-method";
const NAME_HEADER: &str = "mcp-name";
/// The start of header values in Base64.
const ENCODED: &str = "=?";

/// A request that needs no rmcp.
pub(crate) struct Request {
    id: RequestId,
    client: Client,
    asked: Asked,
}

enum Asked {
    Call(Box<CallToolRequestParams>),
    /// A list, with the cursor of the page.
    List(Option<String>),
}

/// A request of JSON-RPC. `Message` has checked the values of the ignored members.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<P> {
    #[serde(rename = "jsonrpc")]
    _jsonrpc: IgnoredAny,
    id: RequestId,
    #[serde(rename = "method")]
    _method: IgnoredAny,
    params: P,
}

fn wire<P: DeserializeOwned>(body: &[u8]) -> Option<(RequestId, P)> {
    let wire: Wire<P> = serde_json::from_slice(body).ok()?;
    Some((wire.id, wire.params))
}

impl Request {
    /// Reads a call or a list. Returns `None` for other requests, and if rmcp might reject the request.
    pub(crate) fn read(parts: &Parts, body: &[u8], message: &Message) -> Option<Request> {
        let headers = &parts.headers;
        if !(accepts_both(headers) && is_json(headers)) {
            return None;
        }
        match &message.method {
            Method::Call(tool) => {
                let (id, mut params) = wire::<CallToolRequestParams>(body)?;
                let client = client(headers, params.meta.take(), "tools/call", Some(tool))?;
                Some(Request { id, client, asked: Asked::Call(Box::new(params)) })
            }
            Method::List => {
                let (id, params) = wire::<Option<PaginatedRequestParams>>(body)?;
                let mut params = params.unwrap_or_default();
                let client = client(headers, params.meta.take(), "tools/list", None)?;
                Some(Request { id, client, asked: Asked::List(params.cursor) })
            }
            _ => None,
        }
    }
}

/// Answers a request.
pub(crate) async fn answer<O: Offer>(handler: Handler<O>, request: Request) -> Response<Body> {
    let Request { id, client, asked } = request;
    let is_legacy = client.is_legacy();
    match asked {
        Asked::Call(params) => match handler.call(*params, client).await {
            Ok(response) => {
                let mut result = ServerResult::from(response);
                if is_legacy {
                    result.strip_result_type_for_legacy_peer();
                    result.strip_non_object_output_for_legacy_peer();
                }
                message_response(&JsonRpcResponse { jsonrpc: JsonRpcVersion2_0, id: id.clone(), result }, &id)
            }
            Err(error) => error_response(&id, error),
        },
        Asked::List(cursor) => match handler.page(cursor).await {
            Ok(page) => {
                let result = Listed::of(&page, is_legacy);
                message_response(&JsonRpcResponse { jsonrpc: JsonRpcVersion2_0, id: id.clone(), result }, &id)
            }
            Err(error) => error_response(&id, error),
        },
    }
}

/// Returns an error of a handler. The errors of calls and lists all have the HTTP status 200.
fn error_response(id: &RequestId, error: ErrorData) -> Response<Body> {
    message_response(&JsonRpcError::new(Some(id.clone()), error), id)
}

/// Returns what the request says about its client, or `None` if its headers and its metadata might not agree.
fn client(headers: &HeaderMap, meta: Option<RequestMetaObject>, method: &str, tool: Option<&str>) -> Option<Client> {
    let meta = meta.unwrap_or_default();
    let in_header = only(headers, REVISION_HEADER).ok()?;
    let Some(revision) = meta.get(REVISION) else {
        let mut legacy = REVISIONS.into_iter().filter(|known| *known != ProtocolVersion::V_2026_07_28);
        let version = match in_header {
            Some(text) => legacy.find(|known| known.as_str() == text)?,
            None => ProtocolVersion::V_2025_03_26,
        };
        let capabilities = Some(meta.client_capabilities().unwrap_or_default());
        return Some(Client { version: Some(version), capabilities, meta });
    };
    let newest = ProtocolVersion::V_2026_07_28;
    let agrees = revision.as_str() == Some(newest.as_str())
        && in_header == Some(newest.as_str())
        && only(headers, METHOD_HEADER) == Ok(Some(method))
        && tool.is_none_or(|tool| !tool.starts_with(ENCODED) && only(headers, NAME_HEADER) == Ok(Some(tool)));
    if !agrees {
        return None;
    }
    let capabilities = Some(meta.client_capabilities()?);
    Some(Client { version: Some(newest), capabilities, meta })
}

/// A header that is repeated or is not text.
#[derive(Debug, PartialEq, Eq)]
struct Unclear;

/// Returns the value of a header, if there is one.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Unclear> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| Unclear),
        (Some(_), Some(_)) => Err(Unclear),
    }
}

/// Returns whether the client accepts JSON and streams of events, both without conditions.
fn accepts_both(headers: &HeaderMap) -> bool {
    let Ok(Some(accepted)) = only(headers, ACCEPT.as_str()) else { return false };
    let has = |kind: &str| accepted.split(',').any(|one| one.trim().eq_ignore_ascii_case(kind));
    !accepted.contains([';', '"']) && has("application/json") && has("text/event-stream")
}

fn is_json(headers: &HeaderMap) -> bool {
    let Ok(Some(kind)) = only(headers, CONTENT_TYPE.as_str()) else { return false };
    let kind = kind.split_once(';').map_or(kind, |(kind, _)| kind);
    kind.trim().eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests;
