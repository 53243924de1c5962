//! The Model Context Protocol (MCP): the server of the tools of one bot, and the client of other servers.
//!
//! The server translates between MCP and the trait [`Offer`], which describes a bot in the host's own terms. The crate
//! contains all code that knows the library `rmcp`. It must not know how the host authenticates callers, decides about
//! calls or runs them: the HTTP gateway implements [`Offer`] and passes only authenticated requests to [`respond`]. The
//! client is in [`client`]; it must not know egress, which the host gives to it as a [`client::Wire`].
//!
//! Two generations of the protocol are served. Revision 2026-07-28 is stateless: each request carries its revision and
//! the capabilities of its client. Clients of earlier revisions begin with `initialize`. [`Message`] reads from a
//! request what the gateway needs to serve both.

#![forbid(unsafe_code)]

mod answer;
pub mod client;
mod direct;
mod elicitation;
mod handler;
mod listed;
mod message;
mod offer;
mod schema;
mod server;
mod stream;
mod values;

pub use message::{Initialize, Message, Method, Unreadable};
pub use offer::{Offer, OfferedPage, OfferedTool, Outcome, Refusal, Retry, ToolCall};
pub use server::{Body, Delivery, Request, respond};
pub use stream::{KEEP_ALIVE, list_changes};
