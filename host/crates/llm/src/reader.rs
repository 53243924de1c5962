//! Reads the answer to a request, while it arrives or at once.
//!
//! The reader owns what an answer means. Servers differ in what they send: content may be null, absent or in parts; usage
//! may come in any chunk or in none; `choices` may be empty, null or absent; calls may lack ids, indexes or arguments; the
//! end of the stream may have no `[DONE]`. All of that is read. A stream that ends without `finish_reason`, an error
//! inside of an answer and an answer over the limits make a failed round: what came before must not be taken for the
//! whole.
//!
//! The result never depends on how the bytes are cut. The reader must not decide whether a call may run beyond what the
//! answer itself says ([`Round::runnable`]), and must not know tools.

mod calls;
mod error;
mod merge;
mod usage;

use serde_json::{Map, Value};

use crate::json::{self, JsonError, VALUES_MAX};
use crate::messages::{ArgumentsError, AssistantMessage, Origin, ToolCall};
use crate::sse::{self, Event, SseError};
pub use calls::CALLS_MAX;
use calls::Calls;
pub use error::ProviderError;
pub use usage::{TOKENS_MAX, Usage};

/// The most bytes of one answer. The longest outputs of models, with each token in a chunk of its own, have about half.
pub const ROUND_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The bytes from which the reader tells a stream from a JSON document. More white space than this before a document is
/// not accepted.
const START_BYTES_MAX: usize = 1024;

/// The longest reason for the end of an answer that is kept.
const REASON_BYTES_MAX: usize = 64;

/// A piece of an answer, in the order in which the server sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// A piece of the text.
    Text(String),
    /// A piece of the reasoning.
    Reasoning(String),
    /// The name of a call, as soon as it is known.
    CallName {
        /// The position of the call in [`AssistantMessage::calls`].
        call: usize,
        /// The name of the tool.
        name: String,
    },
    /// A piece of the arguments of a call.
    CallArguments {
        /// The position of the call in [`AssistantMessage::calls`].
        call: usize,
        /// The piece.
        text: String,
    },
}

/// Why a model ended its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The answer is complete.
    Stop,
    /// The answer is complete and asks for calls.
    ToolCalls,
    /// The answer was cut at the limit of tokens.
    Length,
    /// The server held back the answer or its rest.
    ContentFilter,
    /// A reason that only this server has.
    Other(String),
}

/// One answer, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    /// The id that the server gave to the answer.
    pub id: Option<String>,
    /// The model that answered, as the server names it. It can be more exact than what was asked for.
    pub model: Option<String>,
    /// What the model said.
    pub message: AssistantMessage,
    /// What the model thought, as far as the server shows it.
    pub reasoning: String,
    /// Why the answer ended.
    pub finish: FinishReason,
    /// What the answer used, if the server reported it.
    pub usage: Option<Usage>,
}

/// Why a call of an answer must not run.
#[derive(Debug, thiserror::Error)]
pub enum NotRun {
    /// The answer was cut, so that any call of it may be cut.
    #[error("the answer of the model was cut at its limit of tokens, so none of its calls runs")]
    Cut,
    /// The server filtered the answer, so that any call of it may be cut.
    #[error("the server filtered the answer of the model, so none of its calls runs")]
    Filtered,
    /// The arguments are invalid.
    #[error("the call of `{tool}` does not run")]
    Arguments {
        /// The name of the tool.
        tool: String,
        /// What is wrong.
        #[source]
        source: ArgumentsError,
    },
}

/// Why an answer could not be read. The round has failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The server sent an error instead of the answer or of its rest.
    #[error("the model's server reported an error")]
    Provider(#[source] ProviderError),
    /// The connection ended too early, or the server does not follow the protocol.
    #[error("the answer ended after {events} events without `finish_reason`")]
    Unfinished {
        /// The number of events read; 0 for a JSON document.
        events: usize,
    },
    /// The answer is too long.
    #[error("the answer has more than {ROUND_BYTES_MAX} bytes")]
    TooLong,
    /// The fields that the host does not know have too many values, over all events.
    #[error("the unknown fields of the answer have more than {VALUES_MAX} values")]
    TooManyValues,
    /// The framing of the stream is invalid.
    #[error("the event stream is invalid after {events} events")]
    Stream {
        /// The number of events before.
        events: usize,
        /// What is wrong.
        #[source]
        source: SseError,
    },
    /// An event, or the document, cannot be parsed.
    #[error("event {event} of the answer cannot be parsed")]
    Json {
        /// The number of the event, from 1; 0 for a JSON document.
        event: usize,
        /// What is wrong.
        #[source]
        source: JsonError,
    },
    /// The document is not text.
    #[error("the answer is not UTF-8")]
    NotText(#[source] std::str::Utf8Error),
    /// An event, or the document, is JSON but not an object.
    #[error("event {event} of the answer is not a JSON object")]
    NotAnObject {
        /// The number of the event, from 1; 0 for a JSON document.
        event: usize,
    },
    /// The model asked for too many calls.
    #[error("the answer has more than {CALLS_MAX} calls")]
    TooManyCalls,
    /// A call without a name, which could be neither run nor sent back.
    #[error("call {call} of the answer names no tool")]
    CallWithoutName {
        /// The position of the call, from 0.
        call: usize,
    },
}

/// What has been read of an answer.
#[derive(Debug, Default)]
struct Partial {
    id: Option<String>,
    model: Option<String>,
    text: String,
    reasoning: String,
    calls: Calls,
    extra: Map<String, Value>,
    /// The values in the unknown fields of the message and of its calls.
    kept: merge::Kept,
    finish: Option<String>,
    usage: Option<Usage>,
}

#[derive(Debug)]
enum Form {
    /// The bytes so far do not tell.
    Unknown(Vec<u8>),
    Stream(sse::Parser),
    /// A JSON document, also where a stream was asked for: some servers answer so, above all with errors.
    Document(Vec<u8>),
}

/// Reads one answer.
#[derive(Debug)]
pub struct Reader<M> {
    origin: Origin,
    new_call_id: M,
    form: Form,
    bytes: usize,
    events: usize,
    partial: Partial,
    is_done: bool,
    failure: Option<ReadError>,
}

impl<M: FnMut() -> String> Reader<M> {
    /// Creates a reader of the answer of `origin`. `new_call_id` makes ids for calls that have none, each time another.
    pub fn new(origin: Origin, new_call_id: M) -> Self {
        Reader {
            origin,
            new_call_id,
            form: Form::Unknown(Vec::new()),
            bytes: 0,
            events: 0,
            partial: Partial::default(),
            is_done: false,
            failure: None,
        }
    }

    /// Reads the next bytes and returns what they add. A JSON document adds nothing until [`Reader::finish`].
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let (taken, rest) = bytes.split_at(bytes.len().min(ROUND_BYTES_MAX - self.bytes));
        self.bytes += taken.len();
        if !self.is_over() {
            self.take_bytes(taken, &mut deltas);
        }
        if !rest.is_empty() && !self.is_over() {
            self.failure = Some(ReadError::TooLong);
        }
        deltas
    }

    /// Returns whether more bytes change nothing, because the stream has ended or has failed. The connection can then be
    /// closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_done || self.failure.is_some()
    }

    /// Returns the usage that was reported so far, for rounds that fail.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.partial.usage
    }

    /// Ends the answer.
    ///
    /// # Errors
    ///
    /// The answer is incomplete, is an error, or is over a limit.
    pub fn finish(mut self) -> Result<Round, ReadError> {
        if !self.is_over() {
            match std::mem::replace(&mut self.form, Form::Unknown(Vec::new())) {
                Form::Unknown(_) => {}
                Form::Document(bytes) => self.take_document(&bytes),
                Form::Stream(parser) => self.take_last_event(parser),
            }
        }
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let partial = self.partial;
        let Some(reason) = partial.finish else {
            return Err(ReadError::Unfinished { events: self.events });
        };
        let finish = FinishReason::read(&reason)?;
        let message = AssistantMessage {
            origin: Some(self.origin),
            text: partial.text,
            calls: partial.calls.finish(self.new_call_id)?,
            extra: partial.extra,
        };
        Ok(Round {
            id: partial.id,
            model: partial.model,
            message,
            reasoning: partial.reasoning,
            finish,
            usage: partial.usage,
        })
    }

    fn take_bytes(&mut self, bytes: &[u8], deltas: &mut Vec<Delta>) {
        match &mut self.form {
            Form::Document(document) => document.extend_from_slice(bytes),
            Form::Stream(parser) => {
                let mut events = Vec::new();
                let read = parser.push(bytes, &mut events);
                for event in events {
                    if !self.is_over() {
                        self.take_event(&event, deltas);
                    }
                }
                if let (Err(source), false) = (read, self.is_over()) {
                    self.failure = Some(ReadError::Stream { events: self.events, source });
                }
            }
            Form::Unknown(start) => {
                start.extend_from_slice(bytes);
                if let Some(form) = form_of(start) {
                    let start = std::mem::take(start);
                    self.form = form;
                    self.take_bytes(&start, deltas);
                }
            }
        }
    }

    fn take_event(&mut self, event: &Event, deltas: &mut Vec<Delta>) {
        self.events += 1;
        let text = event.data.trim_ascii();
        if text == "[DONE]" {
            self.is_done = true;
        } else if event.name == "error" {
            self.failure = Some(ReadError::Provider(ProviderError::from_body(text.as_bytes())));
        } else if !text.is_empty() {
            let taken = json::parse(text).map_err(|source| ReadError::Json { event: self.events, source });
            let taken = taken.and_then(|value| self.take_value(value, deltas));
            self.failure = taken.err();
        }
    }

    /// Takes what a stream has after its last blank line. If it cannot be parsed, the connection ended inside of it: it
    /// counts as not sent.
    fn take_last_event(&mut self, parser: sse::Parser) {
        match parser.finish() {
            Ok(Some(event)) if event.data.trim_ascii() == "[DONE]" || json::parse(&event.data).is_ok() => {
                self.take_event(&event, &mut Vec::new());
            }
            Ok(_) => {}
            Err(source) => self.failure = Some(ReadError::Stream { events: self.events, source }),
        }
    }

    fn take_document(&mut self, bytes: &[u8]) {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let taken = std::str::from_utf8(bytes).map_err(ReadError::NotText);
        let taken = taken.and_then(|text| json::parse(text).map_err(|source| ReadError::Json { event: 0, source }));
        let taken = taken.and_then(|value| self.take_value(value, &mut Vec::new()));
        self.failure = taken.err();
    }

    /// Takes one chunk of a stream, or a whole document.
    fn take_value(&mut self, value: Value, deltas: &mut Vec<Delta>) -> Result<(), ReadError> {
        if let Some(error) = ProviderError::within(&value) {
            return Err(ReadError::Provider(error));
        }
        let mut chunk = match value {
            Value::Object(chunk) => chunk,
            Value::Null => return Ok(()),
            _ => return Err(ReadError::NotAnObject { event: self.events }),
        };
        let partial = &mut self.partial;
        take_string(&chunk, "id", &mut partial.id);
        take_string(&chunk, "model", &mut partial.model);
        usage::take(chunk.get("usage"), &mut partial.usage);
        usage::take(chunk.get("x_groq").and_then(|groq| groq.get("usage")), &mut partial.usage);
        let Some(Value::Array(choices)) = chunk.get_mut("choices").map(Value::take) else {
            return Ok(());
        };
        for choice in choices {
            let Value::Object(mut choice) = choice else { continue };
            // One answer is asked for. A server that sends several has the first one at index 0.
            if choice.get("index").and_then(Value::as_u64).unwrap_or(0) != 0 {
                continue;
            }
            usage::take(choice.get("usage"), &mut partial.usage);
            let said = ["delta", "message"].iter().find_map(|name| match choice.remove(*name) {
                Some(Value::Object(said)) => Some(said),
                _ => None,
            });
            if let Some(said) = said {
                partial.take_said(said, deltas)?;
            }
            take_string(&choice, "finish_reason", &mut partial.finish);
        }
        Ok(())
    }
}

impl Partial {
    /// Takes a `delta`, or a whole `message`.
    fn take_said(&mut self, mut said: Map<String, Value>, deltas: &mut Vec<Delta>) -> Result<(), ReadError> {
        // The channel says which of the texts a chunk continues; it is not a part of the message.
        for name in ["role", "channel"] {
            said.remove(name);
        }
        // Some servers send the same reasoning by both names.
        let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|name| said.get(*name)?.as_str());
        self.add_reasoning(reasoning.unwrap_or_default(), deltas);
        if let Some(content) = said.remove("content") {
            self.take_content(&content, deltas);
        }
        if let Some(Value::Array(fragments)) = said.remove("tool_calls") {
            for fragment in fragments {
                if let Value::Object(fragment) = fragment {
                    self.calls.take(fragment, &mut self.kept, deltas)?;
                }
            }
        }
        merge::message_fields(&mut self.extra, said, &mut self.kept);
        if self.kept.count() > VALUES_MAX { Err(ReadError::TooManyValues) } else { Ok(()) }
    }

    /// Takes content: a string, or a list of parts. Of parts, text and thoughts are read.
    fn take_content(&mut self, content: &Value, deltas: &mut Vec<Delta>) {
        match content {
            Value::String(text) => self.add_text(text, deltas),
            Value::Array(parts) => {
                for part in parts {
                    match (part, part.get("thinking")) {
                        (Value::String(text), _) => self.add_text(text, deltas),
                        (_, Some(Value::String(thought))) => self.add_reasoning(thought, deltas),
                        (_, Some(Value::Array(thoughts))) => {
                            for thought in thoughts {
                                self.add_reasoning(text_of(thought), deltas);
                            }
                        }
                        (part, _) => self.add_text(text_of(part), deltas),
                    }
                }
            }
            _ => {}
        }
    }

    fn add_text(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        if !text.is_empty() {
            self.text.push_str(text);
            deltas.push(Delta::Text(text.to_owned()));
        }
    }

    fn add_reasoning(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        if !text.is_empty() {
            self.reasoning.push_str(text);
            deltas.push(Delta::Reasoning(text.to_owned()));
        }
    }
}

impl Round {
    /// Returns the arguments with which a call of this round may run.
    ///
    /// # Errors
    ///
    /// The answer was cut or filtered, or the arguments are not a JSON object.
    pub fn runnable(&self, call: &ToolCall) -> Result<Map<String, Value>, NotRun> {
        self.finish.runnable(call)
    }
}

impl FinishReason {
    /// Returns the arguments with which a call of an answer that ended for this reason may run.
    ///
    /// # Errors
    ///
    /// The answer was cut or filtered, or the arguments are not a JSON object.
    pub fn runnable(&self, call: &ToolCall) -> Result<Map<String, Value>, NotRun> {
        match self {
            FinishReason::Length => Err(NotRun::Cut),
            FinishReason::ContentFilter => Err(NotRun::Filtered),
            _ => call.arguments.parse().map_err(|source| NotRun::Arguments { tool: call.name.clone(), source }),
        }
    }

    /// Returns the word of the protocol for the reason.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Length => "length",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::Other(word) => word,
        }
    }

    /// Reads the word of a server. Words of other protocols are known too, because gateways pass them on.
    fn read(word: &str) -> Result<Self, ReadError> {
        Ok(match word.to_ascii_lowercase().as_str() {
            "stop" | "end_turn" | "eos" | "stop_sequence" => FinishReason::Stop,
            "tool_calls" | "tool_use" | "function_call" => FinishReason::ToolCalls,
            "length" | "max_tokens" | "model_length" => FinishReason::Length,
            "content_filter" | "safety" | "refusal" => FinishReason::ContentFilter,
            "error" | "insufficient_system_resource" | "network_error" => {
                return Err(ReadError::Provider(ProviderError::interrupted(word)));
            }
            // A reason is a word. What is cut of a longer text could end with a part of a secret, which nothing would find.
            _ if word.len() > REASON_BYTES_MAX => FinishReason::Other("other".to_owned()),
            _ => FinishReason::Other(word.to_owned()),
        })
    }
}

/// Tells a stream from a document by the first byte that is not white space.
fn form_of(start: &[u8]) -> Option<Form> {
    let known = &start[..start.len().min(START_BYTES_MAX)];
    let text = known.strip_prefix(b"\xef\xbb\xbf").unwrap_or(known);
    match text.trim_ascii_start().first() {
        Some(b'{' | b'[') => Some(Form::Document(Vec::new())),
        // The beginning of a byte order mark.
        _ if b"\xef\xbb\xbf".starts_with(known) => None,
        None if start.len() < START_BYTES_MAX => None,
        _ => Some(Form::Stream(sse::Parser::new(ROUND_BYTES_MAX))),
    }
}

/// Returns the text of a part of type `text`.
fn text_of(part: &Value) -> &str {
    part.get("text").and_then(Value::as_str).unwrap_or_default()
}

/// Takes the first text of a field that is there and not empty.
fn take_string(object: &Map<String, Value>, name: &str, target: &mut Option<String>) {
    if let (None, Some(Value::String(text))) = (&target, object.get(name))
        && !text.is_empty()
    {
        *target = Some(text.clone());
    }
}
