//! One try of a model: one request, and the reader of its answer.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use monstrum_egress::{Redactor, RedactorCell, StreamedResponse, UnredactedBody};
use monstrum_llm::{Origin, OutputField, ProviderError, Reader, Round, Usage};
use monstrum_types::HttpRequest;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument as _;

use super::answer::{self, Listener};
use super::charge::Charge;
use super::failure::Failed;
use super::{PreparedRound, Rounds};
use crate::call::permitted::{Execution, record_start};
use crate::meters;

/// The maximum size of the body of an error.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// The path below `api_base`.
const PATH: &str = "/chat/completions";

impl Rounds {
    /// Sends the request once and reads the answer. Dropping the future closes the connection.
    pub(super) async fn try_once(
        &self,
        execution: &Execution<'_>,
        round: &mut PreparedRound,
        field: OutputField,
        until: Instant,
    ) -> Result<Round, Failed> {
        let body = round.body(field)?;
        let source = round.resource.credential_source();
        let redactor = Arc::new(RedactorCell::new(source.redactor()));
        // A call that is dropped must be redacted too, so the secrets are known before the request is sent.
        execution.secrets.redact_with(redactor.current());
        let request = HttpRequest {
            method: "POST".to_owned(),
            url: PATH.to_owned(),
            query: Vec::new(),
            headers: [("content-type", "application/json"), ("accept", "text/event-stream")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            body: Some(body),
            timeout_ms: None,
            authenticate: round.resource.credential.is_some(),
        };
        let began = Instant::now();
        let first_byte = round.first_byte();
        round.charge.begin(self.learned.factor(&round.origin));
        // The call was recorded as started before it came here, but its task may have lost its lease since then: while
        // the round waited for another try, or while the host was stopped.
        let before_sending = || record_start(execution.entry).boxed();
        let opening = self.egress.open(&round.resource.scope, &**source, &redactor, request, until, &before_sending);
        let opened = timeout(first_byte, opening.instrument(tracing::debug_span!("egress"))).await;
        let opened = opened.map_err(|_| Failed::silent(first_byte))?;
        let outcome = opened.as_ref().map(|response| response.status).map_err(|failure| failure.code);
        meters::egress(meters::outcome_of_request(outcome), began.elapsed());
        // A refreshed credential adds secrets.
        execution.secrets.redact_with(redactor.current());
        let response = match opened {
            Ok(response) => response,
            Err(failure) => {
                if !failure.sent {
                    round.charge.cancel();
                }
                return Err(Failed::of_request(failure));
            }
        };
        let redactors = execution.secrets.redactors();
        if !(200..300).contains(&response.status) {
            round.charge.cancel();
            return Err(rejection(response, began + first_byte, &redactors).await);
        }
        let listener = Listener::new(&round.exchange, &redactors);
        let reading = Reading { began, first_byte, idle: round.idle(), redactors: &redactors };
        let body = response.body.unredacted();
        let mut answer = reading.read(body, round.origin.clone(), &mut round.charge, listener).await?;
        answer.usage = answer.usage.filter(|usage| round.is_possible(*usage));
        Ok(answer)
    }
}

impl PreparedRound {
    /// Returns whether the model can have used what its server reports, and warns if not.
    fn is_possible(&self, reported: Usage) -> bool {
        let is_possible = self.charge.is_possible(reported);
        if !is_possible {
            tracing::warn!(
                resource.id = %self.resource.row.id,
                model = %self.model.id,
                input_tokens = reported.input,
                output_tokens = reported.output,
                "a model's server reports more tokens than the model can have read and written",
            );
        }
        is_possible
    }
}

/// Reads the body of an error.
async fn rejection(response: StreamedResponse, until: Instant, redactors: &[Arc<Redactor>]) -> Failed {
    let StreamedResponse { status, retry_after_ms, body, .. } = response;
    let read = timeout_at(until, body.at_most(ERROR_BYTES_MAX).read()).await;
    // The status alone says what to do next.
    let body = read.ok().and_then(Result::ok).unwrap_or_default();
    Failed::of_status(status, &ProviderError::from_body(&body), retry_after_ms, redactors)
}

/// The time limits of an answer, and the secrets that its errors must not show.
struct Reading<'a> {
    began: Instant,
    first_byte: Duration,
    idle: Duration,
    redactors: &'a [Arc<Redactor>],
}

impl Reading<'_> {
    async fn read(
        &self,
        mut body: UnredactedBody,
        origin: Origin,
        charge: &mut Charge,
        mut listener: Listener<'_>,
    ) -> Result<Round, Failed> {
        let mut reader = Reader::new(origin, || format!("call_{}", uuid::Uuid::now_v7().simple()));
        let (mut is_first, mut written) = (true, 0);
        let mut broken = None;
        while !reader.is_over() {
            let silence = if is_first { self.first_byte } else { self.idle };
            let until = if is_first { self.began + silence } else { Instant::now() + silence };
            match timeout_at(until, body.next()).await {
                Ok(Ok(Some(bytes))) => {
                    is_first = false;
                    let deltas = reader.push(&bytes);
                    let bytes = answer::bytes(&deltas);
                    if written == 0 && bytes > 0 {
                        meters::first_token(self.began.elapsed());
                    }
                    written += bytes;
                    charge.received(bytes, reader.usage());
                    listener.push(&deltas).await;
                }
                Ok(Ok(None)) => break,
                Ok(Err(failure)) => {
                    broken = Some(Failed::of_request(failure));
                    break;
                }
                Err(_) => return Err(Failed::silent(silence)),
            }
        }
        drop(body);
        let round = match (reader.finish(), broken) {
            // Some servers do not end the connection properly after a complete answer.
            (Ok(round), _) => round,
            (Err(_), Some(broken)) => return Err(broken),
            (Err(error), None) => return Err(Failed::of_answer(&error, self.redactors)),
        };
        // A document has no deltas.
        charge.received(answer::bytes_of(&round).saturating_sub(written), round.usage);
        charge.complete(round.usage);
        listener.finish(&round).await;
        Ok(round)
    }
}
