//! The texts of an answer without secrets: piece by piece for the listener, and whole for the exchange.

use std::sync::Arc;

use monstrum_egress::{PieceRedactor, Redactor, SearchBudget, SearchError, Watch};
use monstrum_llm::{Arguments, AssistantMessage, Delta, Origin, Round, ToolCall, Usage};
use monstrum_types::JsonText;
use serde_json::{Map, Value};

use crate::call::ledger::Used;
use crate::call_types::call_secrets::{CallSecrets, Withheld, redact_text};
use crate::call_types::round::{RoundAnswer, RoundChannel, RoundExchange};

/// Passes the text and the reasoning of one try to the listener of a round.
pub(super) struct Listener<'a> {
    exchange: &'a RoundExchange,
    text: PieceRedactor,
    reasoning: PieceRedactor,
    /// Whether pieces of the text and of the reasoning have come.
    has_text: bool,
    has_reasoning: bool,
}

impl<'a> Listener<'a> {
    /// Creates the listener of a try, from whose texts the secrets of `redactors` are removed.
    pub(super) fn new(exchange: &'a RoundExchange, redactors: &[Arc<Redactor>]) -> Listener<'a> {
        let pieces = || PieceRedactor::new(redactors.iter().cloned());
        Listener { exchange, text: pieces(), reasoning: pieces(), has_text: false, has_reasoning: false }
    }

    /// Passes on what can be passed on now.
    pub(super) async fn push(&mut self, deltas: &[Delta]) {
        if !self.exchange.has_listener() {
            return;
        }
        for delta in deltas {
            match delta {
                Delta::Text(piece) => {
                    self.has_text = true;
                    self.exchange.send(RoundChannel::Text, self.text.push(piece)).await;
                }
                Delta::Reasoning(piece) => {
                    self.has_reasoning = true;
                    self.exchange.send(RoundChannel::Reasoning, self.reasoning.push(piece)).await;
                }
                Delta::CallName { .. } | Delta::CallArguments { .. } => {}
            }
        }
    }

    /// Passes on the rest of a complete answer, or all of an answer that did not come in pieces.
    pub(super) async fn finish(mut self, round: &Round) {
        if !self.exchange.has_listener() {
            return;
        }
        if !self.has_reasoning {
            self.push(&[Delta::Reasoning(round.reasoning.clone())]).await;
        }
        if !self.has_text {
            self.push(&[Delta::Text(round.message.text.clone())]).await;
        }
        self.exchange.send(RoundChannel::Reasoning, self.reasoning.finish()).await;
        self.exchange.send(RoundChannel::Text, self.text.finish()).await;
    }
}

/// Returns the number of bytes that a model has written in these deltas.
pub(super) fn bytes(deltas: &[Delta]) -> usize {
    let length = |delta: &Delta| match delta {
        Delta::Text(text) | Delta::Reasoning(text) | Delta::CallArguments { text, .. } => text.len(),
        Delta::CallName { name, .. } => name.len(),
    };
    deltas.iter().map(length).sum()
}

/// Returns the number of bytes that a model has written in an answer.
pub(super) fn bytes_of(round: &Round) -> usize {
    let calls = round.message.calls.iter().map(|call| call.name.len() + call.arguments.as_str().len());
    round.message.text.len() + round.reasoning.len() + calls.sum::<usize>()
}

/// Redacts an answer as a whole.
pub(super) async fn redacted(
    secrets: &CallSecrets,
    origin: Origin,
    round: Round,
    used: Used,
) -> Result<RoundAnswer, Withheld> {
    let budget = Arc::new(SearchBudget::default());
    let usage = round.usage.unwrap_or(Usage {
        input: used.input_tokens,
        cached_input: used.cached_input_tokens,
        output: used.output_tokens,
        reasoning: 0,
    });
    let usage_is_estimated = round.usage.is_none();
    let search = secrets.search(bytes_of(&round), &budget, move |redactors, watch| {
        let message = message(round.message, redactors, watch)?;
        Ok((message, redact_text(round.reasoning, redactors, watch)?, round.finish))
    });
    let (message, reasoning, finish) = search.await?;
    Ok(RoundAnswer { message, reasoning, finish, usage, usage_is_estimated, origin })
}

fn message(
    message: AssistantMessage,
    redactors: &[Arc<Redactor>],
    watch: &Watch,
) -> Result<AssistantMessage, SearchError> {
    let call = |call: ToolCall| {
        Ok(ToolCall {
            id: redact_text(call.id, redactors, watch)?,
            name: redact_text(call.name, redactors, watch)?,
            arguments: Arguments::new(redact_text(call.arguments.as_str().to_owned(), redactors, watch)?),
            extra: fields(call.extra, redactors, watch)?,
            function_extra: fields(call.function_extra, redactors, watch)?,
        })
    };
    Ok(AssistantMessage {
        origin: message.origin,
        text: redact_text(message.text, redactors, watch)?,
        calls: message.calls.into_iter().map(call).collect::<Result<_, SearchError>>()?,
        extra: fields(message.extra, redactors, watch)?,
    })
}

/// Redacts the fields of a server.
fn fields(
    fields: Map<String, Value>,
    redactors: &[Arc<Redactor>],
    watch: &Watch,
) -> Result<Map<String, Value>, SearchError> {
    if fields.is_empty() {
        return Ok(fields);
    }
    let text = JsonText::from(&fields);
    let redacted = redactors.iter().try_fold(text, |text, redactor| redactor.redact_json_watched(text, watch))?;
    Ok(if let Value::Object(fields) = redacted.value() { fields } else { Map::new() })
}
