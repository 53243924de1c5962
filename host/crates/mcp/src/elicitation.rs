//! Asks the user of a client to open a URL: the page at which a person decides about an approval, or the page at which the
//! user authorizes a resource.
//!
//! What the client answers decides nothing: clients answer requests on their own, and the user of a client need not be
//! an approver. The client repeats its call, and the host reads the approval or the credential.

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResponse, ClientCapabilities, ElicitRequest, ElicitRequestParams, ErrorCode, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, ProtocolVersion,
};
use serde_json::{Value, json};

use crate::answer;
use crate::offer::{Outcome, Retry};

/// The names of the requests in an `input_required` result.
const APPROVAL: &str = "approval";
const AUTHORIZATION: &str = "authorization";
/// The error of revision 2025-11-25 for a call that a user must continue at a URL.
const URL_ELICITATION_REQUIRED: ErrorCode = ErrorCode(-32042);

/// How a client asks its user to open a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// By a result `input_required` (revision 2026-07-28).
    ByResult,
    /// By an error (revision 2025-11-25).
    ByError,
    /// The client cannot ask. The model reads the URL.
    No,
}

impl Ask {
    /// Returns how a client asks. `capabilities` are those of the request. Clients that begin with `initialize` declare
    /// there whether they open URLs.
    pub(crate) fn of(
        version: Option<&ProtocolVersion>,
        capabilities: Option<&ClientCapabilities>,
        opens_urls: bool,
    ) -> Ask {
        let elicitation = capabilities.and_then(|capabilities| capabilities.elicitation.as_ref());
        let is_declared = elicitation.is_some_and(|elicitation| elicitation.url.is_some());
        match version {
            Some(version) if *version == ProtocolVersion::V_2026_07_28 && is_declared => Ask::ByResult,
            Some(version) if *version == ProtocolVersion::V_2025_11_25 && opens_urls => Ask::ByError,
            _ => Ask::No,
        }
    }
}

/// Reads from the parameters of a call whether and how the client repeats it. The responses to all requests except the
/// one for the URL are ignored.
pub(crate) fn retry(request_state: Option<String>, responses: Option<&InputResponses>) -> Option<Retry> {
    let action = |name: &str| responses.and_then(|responses| responses.get(name)?.get("action")?.as_str());
    let is_declined = [APPROVAL, AUTHORIZATION].iter().any(|name| matches!(action(name), Some("decline" | "cancel")));
    request_state.map(|request_state| Retry { request_state, is_declined })
}

/// A page that the user is asked to open.
struct Page {
    /// The name of the request.
    name: &'static str,
    id: String,
    url: String,
    message: String,
}

impl Page {
    /// Returns the page without which the call cannot continue, if there is a URL.
    fn of(tool: &str, outcome: &Outcome) -> Option<Page> {
        if let Some(approval) = outcome.approval.as_deref() {
            let message =
                format!("A person must approve the call of the tool `{tool}`. Open the page to read and decide.");
            return Some(Page { name: APPROVAL, id: approval.id.to_string(), url: approval.url.clone()?, message });
        }
        let url = outcome.connect_url.clone()?;
        let message = format!("The tool `{tool}` needs access to your account. Open the page to authorize it.");
        Some(Page { name: AUTHORIZATION, id: outcome.request_id.to_string(), url, message })
    }
}

/// Returns the answer that asks the user to open the page without which the call cannot continue, if there is a URL and the
/// client can ask.
pub(crate) fn asked(tool: &str, outcome: &Outcome, ask: Ask) -> Option<Result<CallToolResponse, ErrorData>> {
    let Page { name, id, url, message } = Page::of(tool, outcome)?;
    match ask {
        Ask::ByResult => {
            let request_state = outcome.request_state.clone()?;
            // The revision no longer has this id. The library sends the member, so it contains a meaningful value.
            let params = ElicitRequestParams::UrlElicitationParams { meta: None, message, url, elicitation_id: id };
            let request = InputRequest::Elicitation(ElicitRequest::new(params));
            let requests = InputRequests::from([(name.to_owned(), request)]);
            let required = InputRequiredResult::new(Some(requests), Some(request_state));
            Some(Ok(required.with_meta(answer::meta(outcome)).into()))
        }
        Ask::ByError => {
            let asked = json!({"mode": "url", "elicitationId": id, "url": url, "message": message});
            let data: Value = json!({"elicitations": [asked]});
            Some(Err(ErrorData::new(URL_ELICITATION_REQUIRED, message, Some(data))))
        }
        Ask::No => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_declares_it_is_asked_to_open_a_url() {
        let capabilities = |value: Value| serde_json::from_value::<ClientCapabilities>(value).unwrap();
        let (urls, forms) =
            (capabilities(json!({"elicitation": {"url": {}}})), capabilities(json!({"elicitation": {"form": {}}})));
        let (newest, legacy) = (ProtocolVersion::V_2026_07_28, ProtocolVersion::V_2025_11_25);
        for (version, capabilities, opens_urls, expected) in [
            (Some(&newest), Some(&urls), false, Ask::ByResult),
            (Some(&newest), Some(&forms), false, Ask::No),
            (Some(&newest), None, true, Ask::No),
            (Some(&legacy), None, true, Ask::ByError),
            (Some(&legacy), Some(&urls), false, Ask::No),
            (Some(&ProtocolVersion::V_2025_06_18), None, true, Ask::No),
            (None, Some(&urls), true, Ask::No),
        ] {
            assert_eq!(Ask::of(version, capabilities, opens_urls), expected, "{version:?} {opens_urls}");
        }
    }

    #[test]
    fn a_retry_has_a_request_state() {
        let responses =
            |name: &str, action: &str| InputResponses::from([(name.to_owned(), json!({ "action": action }))]);
        let declined = |name: &str, action: &str| {
            retry(Some("s".to_owned()), Some(&responses(name, action))).map(|it| it.is_declined)
        };
        for (name, is_declined) in [(APPROVAL, true), (AUTHORIZATION, true), ("other", false)] {
            assert_eq!(
                [declined(name, "accept"), declined(name, "decline"), declined(name, "cancel")],
                [Some(false), Some(is_declined), Some(is_declined)]
            );
        }
        assert!(retry(None, Some(&responses(APPROVAL, "accept"))).is_none());
        assert!(retry(Some("s".to_owned()), None).is_some_and(|retry| !retry.is_declined));
    }
}
