//! Chat Completions, as OpenAI defined them and as many other servers offer them: messages, requests and the reader of
//! answers.
//!
//! The crate is pure: it turns values into the bytes of a request, and the bytes of an answer into values. It must not
//! open connections, wait, read clocks or know credentials. Requests are written strictly by OpenAI's reference.
//! Answers are read leniently, because servers differ in what they leave out, repeat and add.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod estimate;
mod json;
pub mod messages;
pub mod reader;
pub mod request;
pub mod schema;
pub mod sse;

pub use estimate::Factor;
pub use messages::{Arguments, ArgumentsError, AssistantMessage, Message, Origin, Part, ToolCall};
pub use reader::{Delta, FinishReason, NotRun, ProviderError, ROUND_BYTES_MAX, ReadError, Reader, Round, Usage};
pub use request::{OutputField, Request, RequestError, Tool, ToolChoice, ToolSchema};
