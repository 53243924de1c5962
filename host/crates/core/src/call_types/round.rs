//! A round: one exchange with a model, as the call of the hidden tool `llm_complete` carries it.
//!
//! The parameters of the call contain only the facts that the policy judges and the audit records: the model, sizes, and
//! the digest of the request. The request and the answer travel in [`Attachments::round`], and never into the audit.
//! A call of `llm_complete` without a round is a call of an unknown tool.
//!
//! [`Attachments::round`]: super::incoming::Attachments::round

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use monstrum_llm::{AssistantMessage, FinishReason, Message, NotRun, Origin, ToolCall, ToolChoice, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

/// The name of the hidden tool that runs a round.
pub const LLM_COMPLETE: &str = "llm_complete";

/// What a model is asked. It does not depend on the model, except for `output_tokens` and the fields that a message
/// keeps for its origin.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RoundRequest {
    /// The conversation. Each call in it has its result.
    pub messages: Vec<Message>,
    /// The tools that the model may ask for. They are not sent to a model whose configuration has `tools: false`.
    pub tools: Vec<RoundTool>,
    /// The maximum number of tokens of the answer; `None` for the maximum of the model. The ledger can lower it.
    pub output_tokens: Option<u64>,
    pub options: RoundOptions,
}

/// A tool that a model may ask for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundTool {
    pub name: String,
    pub description: String,
    /// The schema of the parameters. It is reduced for a model whose configuration has `tool_schema: plain`.
    pub parameters: Value,
}

/// The options of a request that the host passes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundOptions {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    pub seed: Option<i64>,
    /// The form of the answer, such as `{"type": "json_object"}`.
    pub response_format: Option<Value>,
    /// How much the model thinks, such as `low`.
    pub reasoning_effort: Option<String>,
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may ask for several calls at once. Only `false` is passed on.
    pub parallel_tool_calls: Option<bool>,
}

/// A piece of an answer, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundDelta {
    pub channel: RoundChannel,
    pub text: String,
}

/// The text that a piece continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundChannel {
    Text,
    Reasoning,
}

/// The answer of a model, without secrets.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundAnswer {
    pub message: AssistantMessage,
    /// What the model thought, as far as its server shows it.
    pub reasoning: String,
    pub finish: FinishReason,
    /// What the round used, as the server reported it or as the host estimates it.
    pub usage: Usage,
    /// Whether `usage` is an estimate.
    pub usage_is_estimated: bool,
    pub origin: Origin,
}

impl RoundAnswer {
    /// Returns the arguments with which a call of this answer may run.
    ///
    /// # Errors
    ///
    /// The answer was cut or filtered, or the arguments are not a JSON object.
    pub fn runnable(&self, call: &ToolCall) -> Result<Map<String, Value>, NotRun> {
        self.finish.runnable(call)
    }
}

/// Why a round that began has no answer. A call that was refused before the round began has no such cause, and neither has a
/// round whose next try has no room in the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundFailure {
    /// No connection could be established, or the server answered with a status 408, 429 or 5xx, or reported such a
    /// failure in its answer.
    Unavailable,
    /// The server did not begin, continue or complete its answer in time.
    Timeout,
    /// The answer ended too early, or could not be read.
    Broken,
    /// The conversation is longer than the context of the model.
    ContextLength,
    /// The server filtered the request.
    ContentFilter,
    /// The server rejected the credential, or no usable credential is stored.
    Unauthenticated,
    /// The server rejected the request for another reason.
    Rejected,
}

impl RoundFailure {
    /// Returns whether another model may be tried. Whether a delta has been sent is a separate question: see
    /// [`RoundExchange::has_sent_delta`].
    pub fn may_try_next_model(self) -> bool {
        use RoundFailure as Failure;
        match self {
            Failure::Unavailable | Failure::Timeout | Failure::Broken | Failure::ContextLength => true,
            Failure::ContentFilter | Failure::Unauthenticated | Failure::Rejected => false,
        }
    }
}

/// The request of a round, and the cells that receive its answer. An exchange belongs to one call; a try of another
/// model is another call with another exchange.
pub struct RoundExchange {
    request: RoundRequest,
    params: Map<String, Value>,
    /// The listener. The round waits while the channel is full. A closed channel does not end the round.
    deltas: Option<mpsc::Sender<RoundDelta>>,
    has_sent_delta: AtomicBool,
    answer: OnceLock<RoundAnswer>,
    failure: OnceLock<RoundFailure>,
}

impl RoundExchange {
    /// Creates the exchange of a round with the model of this id. `output_tokens` is the maximum of the model.
    pub fn new(
        request: RoundRequest,
        (model, output_tokens): (&str, u64),
        deltas: Option<mpsc::Sender<RoundDelta>>,
    ) -> RoundExchange {
        let text = serde_json::to_vec(&request).expect("a request consists of JSON values");
        let params = json!({
            "model": model,
            "messages": request.messages.len(),
            "bytes": text.len(),
            "digest": format!("sha256:{}", hex::encode(Sha256::digest(&text))),
            "tools": request.tools.len(),
            "output_tokens": request.output_tokens.map_or(output_tokens, |asked| asked.min(output_tokens)),
        });
        let params = if let Value::Object(params) = params { params } else { Map::new() };
        let (has_sent_delta, answer, failure) = (AtomicBool::new(false), OnceLock::new(), OnceLock::new());
        RoundExchange { request, params, deltas, has_sent_delta, answer, failure }
    }

    pub fn request(&self) -> &RoundRequest {
        &self.request
    }

    /// Returns the parameters of the call. The executor refuses other parameters.
    pub fn params(&self) -> &Map<String, Value> {
        &self.params
    }

    /// Returns the answer, once the call has succeeded.
    pub fn answer(&self) -> Option<&RoundAnswer> {
        self.answer.get()
    }

    /// Returns why the round has failed, if it began and has failed.
    pub fn failure(&self) -> Option<RoundFailure> {
        self.failure.get().copied()
    }

    /// Returns whether a part of the answer has been sent to the listener. Such a round must not be tried again.
    pub fn has_sent_delta(&self) -> bool {
        self.has_sent_delta.load(Ordering::Acquire)
    }

    /// Returns whether a listener waits for pieces of the answer.
    pub(crate) fn has_listener(&self) -> bool {
        self.deltas.is_some()
    }

    /// Sends a piece of the answer to the listener.
    pub(crate) async fn send(&self, channel: RoundChannel, text: String) {
        let Some(deltas) = self.deltas.as_ref().filter(|_| !text.is_empty()) else { return };
        self.has_sent_delta.store(true, Ordering::Release);
        // The listener may have gone; the answer is then read from the exchange.
        drop(deltas.send(RoundDelta { channel, text }).await);
    }

    pub(crate) fn succeed(&self, answer: RoundAnswer) {
        self.answer.get_or_init(|| answer);
    }

    pub(crate) fn fail(&self, failure: RoundFailure) {
        self.failure.get_or_init(|| failure);
    }
}
