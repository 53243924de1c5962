//! The way of messages to the server of a resource: through egress.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::{Egress, EventReader, RedactorCell, StreamedBody, StreamedResponse};
use monstrum_mcp::client::{Content, Events, Head, Message, MessageBody, Wire};
use monstrum_types::{Failure, HttpRequest};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::{Access, url};
use crate::meters;
use crate::oauth::challenge::BearerChallenge;

/// The way to the server of one resource, with the credential of an access. It must be used only when the call for
/// which it sends is recorded.
pub(super) struct ResourceWire {
    pub(super) egress: Egress,
    pub(super) access: Access,
    pub(super) redactor: Arc<RedactorCell>,
    pub(super) until: Instant,
}

impl ResourceWire {
    /// Creates a wire whose searches for secrets have the default budget.
    pub(super) fn new(egress: &Egress, access: Access, until: Instant) -> ResourceWire {
        let redactor = RedactorCell::new(access.credential.redactor());
        ResourceWire { egress: egress.clone(), access, redactor: Arc::new(redactor), until }
    }

    /// Returns the same wire with another deadline.
    pub(super) fn until(&self, until: Instant) -> ResourceWire {
        let ResourceWire { egress, access, redactor, .. } = self;
        ResourceWire { egress: egress.clone(), access: access.clone(), redactor: Arc::clone(redactor), until }
    }
}

impl Wire for ResourceWire {
    fn send(&self, message: Message) -> BoxFuture<'_, Result<Head, Failure>> {
        let Message { headers, content } = message;
        let (method, body) = match content {
            Content::Rpc(body) => ("POST", Some(body)),
            Content::Open => ("GET", None),
            Content::End => ("DELETE", None),
        };
        let request = HttpRequest {
            method: method.to_owned(),
            url: url(&self.access.resource).to_owned(),
            query: Vec::new(),
            headers,
            body,
            timeout_ms: None,
            authenticate: self.access.has_credential(),
        };
        async move {
            let began = Instant::now();
            // The caller has recorded the call. A discovery and the end of a session have no record, because they are
            // not calls.
            let before_sending = || async { Ok(()) }.boxed();
            let (scope, credential) = (&self.access.resource.scope, self.access.credential.as_ref());
            let opened = self
                .egress
                .open(scope, credential, &self.redactor, request, self.until, &before_sending)
                .instrument(tracing::debug_span!("egress"))
                .await;
            let outcome = opened.as_ref().map(|response| response.status);
            meters::egress(meters::outcome_of_request(outcome.map_err(|failure| failure.code)), began.elapsed());
            let head = head(opened?);
            if let (Some(scopes), Some(held)) = (&head.missing_scopes, self.access.held()) {
                held.lacks(scopes).await;
            }
            Ok(head)
        }
        .boxed()
    }
}

fn head(response: StreamedResponse) -> Head {
    let StreamedResponse { status, headers, body, .. } = response;
    let header = |name: &str| headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
    let challenge = if status == 403 { BearerChallenge::of(&headers) } else { None };
    let lacking = challenge.filter(BearerChallenge::is_insufficient_scope);
    Head {
        status,
        content_type: header("content-type"),
        session: header("mcp-session-id"),
        missing_scopes: lacking.map(|challenge| challenge.scopes),
        body: Box::new(Body(body)),
    }
}

struct Body(StreamedBody);

impl MessageBody for Body {
    fn read(self: Box<Self>) -> BoxFuture<'static, Result<Vec<u8>, Failure>> {
        self.0.read().boxed()
    }

    fn events(self: Box<Self>) -> Box<dyn Events> {
        Box::new(EventsOf(self.0.events()))
    }
}

struct EventsOf(EventReader);

impl Events for EventsOf {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<String>, Failure>> {
        async move { Ok(self.0.next().await?.map(|event| event.data)) }.boxed()
    }

    fn last_event_id(&self) -> &str {
        self.0.last_event_id()
    }

    fn retry_ms(&self) -> Option<u64> {
        self.0.retry_ms()
    }
}
