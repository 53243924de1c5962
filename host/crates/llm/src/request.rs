//! Writes the body of a request to Chat Completions.
//!
//! The module owns the names of the fields that the host sends. The configuration of a model can add fields
//! ([`Request::extra`]), but must not replace one of them: limits and messages are the host's. Addresses and headers are
//! the caller's.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};

use crate::estimate::RequestSize;
use crate::messages::{Message, Origin, Part};
use crate::schema;

/// The fields that only the host writes. `n`, `functions` and `function_call` are among them because they would change
/// what the reader expects.
const OWN_FIELDS: &[&str] = &[
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "response_format",
    "reasoning_effort",
    "n",
    "functions",
    "function_call",
];

/// One request.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The model that is asked, and its resource.
    pub to: &'a Origin,
    /// The conversation. Each call in it has its result.
    pub messages: &'a [Message],
    /// The tools that the model may ask for.
    pub tools: &'a [Tool<'a>],
    /// How the schemas of tools are written.
    pub tool_schema: ToolSchema,
    /// Whether the model must, may or must not call tools. `None`: what the server does by itself, which is `Auto`.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may ask for several calls at once. `None`: the field is not sent.
    pub parallel_tool_calls: Option<bool>,
    /// The most tokens that the model may write.
    pub output_tokens: u64,
    /// The field that has `output_tokens`.
    pub output_field: OutputField,
    /// Whether the answer is a stream, which then ends with the usage.
    pub stream: bool,
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// The share of probability to sample from.
    pub top_p: Option<f64>,
    /// Texts that end the answer.
    pub stop: &'a [String],
    /// The seed of sampling.
    pub seed: Option<i64>,
    /// The form of the answer, such as `{"type": "json_object"}`.
    pub response_format: Option<&'a Value>,
    /// How much the model thinks, such as `low`.
    pub reasoning_effort: Option<&'a str>,
    /// The fields that the configuration of the model adds.
    pub extra: &'a Map<String, Value>,
}

/// A tool that a model may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Tool<'a> {
    /// The name.
    pub name: &'a str,
    /// What the model reads about it.
    pub description: &'a str,
    /// The full schema of its parameters.
    pub parameters: &'a Value,
}

/// How the schemas of tools are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolSchema {
    /// As the tool has them.
    #[default]
    Full,
    /// Reduced to a few keywords: see [`schema::plain`].
    Plain,
}

/// Whether a model calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// The model must not call a tool.
    None,
    /// The model must call a tool.
    Required,
}

/// The field that limits the output. OpenAI's reasoning models refuse the first one; many other servers know no other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutputField {
    /// `max_tokens`.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

/// Why a request cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The configuration of the model names a field of the host.
    #[error("`extra` of the model cannot have the field `{field}`, which the host writes itself; remove it")]
    OwnField {
        /// The name of the field.
        field: String,
    },
    /// A number that JSON cannot express.
    #[error("`{field}` of the request is not a finite number")]
    NotFinite {
        /// The name of the field.
        field: &'static str,
    },
    /// A call without its result.
    #[error("messages[{message}] has the call `{call_id}`, but its result does not follow")]
    CallWithoutResult {
        /// The position of the message with the call.
        message: usize,
        /// The id of the call.
        call_id: String,
    },
    /// A result without its call.
    #[error("messages[{message}] is a result of the call `{call_id}`, which no assistant message before it has open")]
    ResultWithoutCall {
        /// The position of the result.
        message: usize,
        /// The id that the result names.
        call_id: String,
    },
    /// The values cannot be written as JSON.
    #[error("failed to write the request as JSON")]
    Write(#[source] serde_json::Error),
}

/// Checks the fields that the configuration of a model adds to its requests.
///
/// # Errors
///
/// One of them is a field that the host writes.
pub fn check_extra(extra: &Map<String, Value>) -> Result<(), RequestError> {
    match extra.keys().find(|name| OWN_FIELDS.contains(&name.as_str())) {
        Some(field) => Err(RequestError::OwnField { field: field.clone() }),
        None => Ok(()),
    }
}

impl<'a> Request<'a> {
    /// Creates a streamed request without tools and options.
    #[must_use]
    pub fn new(
        to: &'a Origin,
        messages: &'a [Message],
        output_tokens: u64,
        extra: &'a Map<String, Value>,
    ) -> Request<'a> {
        Request {
            to,
            messages,
            tools: &[],
            tool_schema: ToolSchema::Full,
            tool_choice: None,
            parallel_tool_calls: None,
            output_tokens,
            output_field: OutputField::MaxTokens,
            stream: true,
            temperature: None,
            top_p: None,
            stop: &[],
            seed: None,
            response_format: None,
            reasoning_effort: None,
            extra,
        }
    }

    /// Writes the body.
    ///
    /// # Errors
    ///
    /// The configuration names a field of the host, a number is not finite, or a call and its result do not match.
    pub fn body(&self) -> Result<Vec<u8>, RequestError> {
        check_extra(self.extra)?;
        check_results(self.messages)?;
        let mut body = Map::new();
        let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
        put("model", json!(self.to.model));
        put("messages", self.messages.iter().map(|message| message.to_json(self.to)).collect());
        if !self.tools.is_empty() {
            put("tools", self.tools.iter().map(|tool| tool.to_json(self.tool_schema)).collect());
            if let Some(choice) = self.tool_choice {
                put("tool_choice", json!(choice.word()));
            }
            if let Some(parallel) = self.parallel_tool_calls {
                put("parallel_tool_calls", json!(parallel));
            }
        }
        put(self.output_field.name(), json!(self.output_tokens));
        put("stream", json!(self.stream));
        if self.stream {
            put("stream_options", json!({"include_usage": true}));
        }
        for (field, number) in [("temperature", self.temperature), ("top_p", self.top_p)] {
            if let Some(number) = number {
                let number = Number::from_f64(number).ok_or(RequestError::NotFinite { field })?;
                put(field, Value::Number(number));
            }
        }
        if !self.stop.is_empty() {
            put("stop", json!(self.stop));
        }
        if let Some(seed) = self.seed {
            put("seed", json!(seed));
        }
        if let Some(format) = self.response_format {
            put("response_format", format.clone());
        }
        if let Some(effort) = self.reasoning_effort {
            put("reasoning_effort", json!(effort));
        }
        body.extend(self.extra.iter().map(|(name, value)| (name.clone(), value.clone())));
        serde_json::to_vec(&body).map_err(RequestError::Write)
    }

    /// Measures the request for an estimate of its tokens. Images count by their number, not by their bytes.
    #[must_use]
    pub fn size(&self) -> RequestSize {
        let mut size = RequestSize::default();
        let mut count = |bytes: usize| {
            size.text_bytes = size.text_bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        };
        let mut images = 0;
        for message in self.messages {
            match message {
                Message::User { parts } => {
                    for part in parts {
                        match part {
                            Part::Text { text } => count(text.len()),
                            Part::Image { .. } => images += 1,
                        }
                    }
                }
                message => count(message.to_json(self.to).to_string().len()),
            }
        }
        for tool in self.tools {
            count(tool.to_json(self.tool_schema).to_string().len());
        }
        size.images = images;
        size
    }
}

impl Tool<'_> {
    fn to_json(self, form: ToolSchema) -> Value {
        let parameters = match form {
            ToolSchema::Full => self.parameters.clone(),
            ToolSchema::Plain => schema::plain(self.parameters),
        };
        let function = json!({"name": self.name, "description": self.description, "parameters": parameters});
        json!({"type": "function", "function": function})
    }
}

impl ToolChoice {
    fn word(self) -> &'static str {
        match self {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
            ToolChoice::Required => "required",
        }
    }
}

impl OutputField {
    fn name(self) -> &'static str {
        match self {
            OutputField::MaxTokens => "max_tokens",
            OutputField::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// Checks that the results of all calls follow their message, each once. Servers refuse other conversations with
/// messages that are hard to understand.
///
/// # Errors
///
/// A call has no result, or a result has no call.
pub fn check_results(messages: &[Message]) -> Result<(), RequestError> {
    let mut asked = 0;
    let mut open: Vec<&str> = Vec::new();
    for (position, message) in messages.iter().enumerate() {
        if let Message::Tool { call_id, .. } = message {
            let Some(found) = open.iter().position(|id| id == call_id) else {
                return Err(RequestError::ResultWithoutCall { message: position, call_id: call_id.clone() });
            };
            open.remove(found);
            continue;
        }
        all_answered(asked, &open)?;
        if let Message::Assistant(assistant) = message {
            asked = position;
            open = assistant.calls.iter().map(|call| call.id.as_str()).collect();
        }
    }
    all_answered(asked, &open)
}

fn all_answered(message: usize, open: &[&str]) -> Result<(), RequestError> {
    match open.first() {
        Some(id) => Err(RequestError::CallWithoutResult { message, call_id: (*id).to_owned() }),
        None => Ok(()),
    }
}
