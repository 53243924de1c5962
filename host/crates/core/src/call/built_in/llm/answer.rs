//! The texts of an answer without secrets: piece by piece for the listener, and whole for the exchange.

use std::io;
use std::sync::Arc;

use monstrum_egress::{INLINE_SEARCH_BYTES_MAX, PieceRedactor, Redactor, SearchBudget, SearchError, Watch};
use monstrum_llm::{Arguments, AssistantMessage, Delta, FinishReason, Origin, Round, ToolCall, Usage};
use monstrum_types::JsonText;
use serde_json::{Map, Value};

use crate::beside;
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
                    self.exchange.send(RoundChannel::Text, pushed(&mut self.text, piece)).await;
                }
                Delta::Reasoning(piece) => {
                    self.has_reasoning = true;
                    self.exchange.send(RoundChannel::Reasoning, pushed(&mut self.reasoning, piece)).await;
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
        self.exchange.send(RoundChannel::Reasoning, finished(self.reasoning)).await;
        self.exchange.send(RoundChannel::Text, finished(self.text)).await;
    }
}

/// Searches the next piece of a text. A server can send the whole answer in one piece, whose search takes long.
fn pushed(text: &mut PieceRedactor, piece: &str) -> String {
    beside::in_place(is_large(text.held() + piece.len()), || text.push(piece))
}

/// Searches the rest of a text.
fn finished(text: PieceRedactor) -> String {
    beside::in_place(is_large(text.held()), || text.finish())
}

fn is_large(bytes: usize) -> bool {
    bytes > INLINE_SEARCH_BYTES_MAX
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

/// Returns the number of bytes that the search of an answer reads: what the model has written, and what the server adds.
fn searched_bytes(round: &Round) -> usize {
    let of_call = |call: &ToolCall| call.id.len() + json_bytes(&call.extra) + json_bytes(&call.function_extra);
    let of_calls: usize = round.message.calls.iter().map(of_call).sum();
    bytes_of(round) + of_calls + json_bytes(&round.message.extra)
}

/// Returns the length of the fields of a server as JSON.
fn json_bytes(fields: &Map<String, Value>) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    if !fields.is_empty() {
        serde_json::to_writer(&mut counter, fields).expect("a map is JSON, and the counter takes all of it");
    }
    counter.0
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
    let search = secrets.search(searched_bytes(&round), &budget, move |redactors, watch| {
        let message = message(round.message, redactors, watch)?;
        Ok((message, redact_text(round.reasoning, redactors, watch)?, finish(round.finish, redactors, watch)?))
    });
    let (message, reasoning, finish) = search.await?;
    Ok(RoundAnswer { message, reasoning, finish, usage, usage_is_estimated, origin })
}

/// Redacts a reason that only this server has.
fn finish(finish: FinishReason, redactors: &[Arc<Redactor>], watch: &Watch) -> Result<FinishReason, SearchError> {
    Ok(match finish {
        FinishReason::Other(word) => FinishReason::Other(redact_text(word, redactors, watch)?),
        finish => finish,
    })
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

#[cfg(test)]
mod tests {
    use monstrum_types::{ResourceId, Secret};
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;
    use crate::call_types::round::RoundRequest;

    const KEY: &str = "sk-canary-7f3a9c1e5b";

    fn redactor() -> Arc<Redactor> {
        Arc::new(Redactor::new([Secret::new(KEY.to_owned())]))
    }

    fn origin() -> Origin {
        Origin { resource: ResourceId::new(), model: "small".to_owned() }
    }

    fn round(extra: &Value, finish: FinishReason) -> Round {
        let extra = extra.as_object().unwrap().clone();
        let message = AssistantMessage { text: "a".to_owned(), extra, ..AssistantMessage::default() };
        Round { id: None, model: None, message, reasoning: String::new(), finish, usage: None }
    }

    #[test]
    fn all_fields_that_are_searched_are_counted() {
        let mut round = round(&json!({"vendor": ["\u{1}"]}), FinishReason::Stop);
        assert_eq!(searched_bytes(&round), 1 + r#"{"vendor":["\u0001"]}"#.len());
        let fields = |value: Value| value.as_object().unwrap().clone();
        round.message.calls = vec![ToolCall {
            id: "id".to_owned(),
            name: "name".to_owned(),
            arguments: Arguments::new("{}".to_owned()),
            extra: fields(json!({"a": 1})),
            function_extra: fields(json!({"b": [2, 3]})),
        }];
        let of_call = 2 + 4 + 2 + r#"{"a":1}"#.len() + r#"{"b":[2,3]}"#.len();
        assert_eq!(searched_bytes(&round), 1 + r#"{"vendor":["\u0001"]}"#.len() + of_call);
    }

    /// Checks that the search of large fields does not block the only thread of the runtime.
    #[tokio::test]
    async fn large_fields_of_a_server_are_searched_on_another_thread() {
        let secrets = CallSecrets::default();
        secrets.redact_with(redactor());
        // The search of this text is slow.
        let slow = json!({"vendor": "\\".repeat(1 << 16), "key": KEY});
        let mut answer =
            std::pin::pin!(redacted(&secrets, origin(), round(&slow, FinishReason::Stop), Used::default()));
        assert!(futures::poll!(answer.as_mut()).is_pending(), "the search runs on another thread");
        assert_eq!(answer.await.unwrap().message.extra["key"], "[redacted]");
    }

    #[tokio::test]
    async fn a_reason_of_the_server_is_searched() {
        let secrets = CallSecrets::default();
        secrets.redact_with(redactor());
        let round = round(&json!({}), FinishReason::Other(format!("ended by {KEY}")));
        let answer = redacted(&secrets, origin(), round, Used::default()).await.unwrap();
        assert_eq!(answer.finish, FinishReason::Other("ended by [redacted]".to_owned()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_large_piece_is_heard_without_its_secrets() {
        let (sender, mut deltas) = mpsc::channel(10);
        let exchange = RoundExchange::new(RoundRequest::default(), ("small", 1000), Some(sender));
        let mut listener = Listener::new(&exchange, &[redactor()]);
        let padding = "- ".repeat(INLINE_SEARCH_BYTES_MAX);
        let said = format!("{padding}{KEY} {padding}");
        listener.push(&[Delta::Text(said.clone())]).await;
        let mut round = round(&json!({}), FinishReason::Stop);
        round.message.text.clone_from(&said);
        listener.finish(&round).await;
        let mut heard = String::new();
        while let Ok(delta) = deltas.try_recv() {
            heard += &delta.text;
        }
        assert_eq!(heard, said.replace(KEY, "[redacted]"));
    }
}
