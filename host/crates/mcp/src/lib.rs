//! The server side of the Model Context Protocol (MCP) for the tools of one bot.
//!
//! The crate translates between MCP and the trait [`Offer`], which describes a bot in the host's own terms. It contains
//! all code that knows the library `rmcp`. It must not know how the host authenticates callers, decides about calls or
//! runs them: the HTTP gateway implements [`Offer`] and passes only authenticated requests to [`respond`].
//!
//! Two generations of the protocol are served. Revision 2026-07-28 is stateless: each request carries its revision and
//! the capabilities of its client. Clients of earlier revisions begin with `initialize`. [`Message`] reads from a
//! request what the gateway needs to serve both.

#![forbid(unsafe_code)]

mod answer;
mod handler;
mod message;
mod offer;
mod schema;
mod server;
mod stream;

pub use message::{Initialize, Message, Method, Unreadable};
pub use offer::{Offer, OfferedTool, Outcome, Refusal, ToolCall};
pub use server::{Body, Delivery, Request, respond};
pub use stream::{KEEP_ALIVE, list_changes};
