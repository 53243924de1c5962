//! Outbound HTTP. [`Egress::send`] and [`Egress::open`] send all requests that a plugin, a bot or a tenant can influence.
//!
//! Sending has eight steps in one function (`send`), each in its own file: the URL and the headers are built (`url`,
//! `headers`), checked against the allowed origins of the resource (`policy`) and searched for secrets (`scan`). The
//! name is resolved and all addresses are checked (`addresses`, `names`). The credential is added and the request is sent
//! (`inject`, `client`). Redirects are followed if the manifest allows them (`redirect`), and a rejected token is
//! refreshed once. The size of the response is limited, headers that only the host needs are removed, and secrets are
//! redacted (`response`, `redact`), in a body that is read while it arrives as well (`stream`, `sse`).
//!
//! This crate does not use the database. It receives secrets from a [`CredentialSource`] and returns results as data.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod client;
mod credential;
mod headers;
mod inject;
mod limits;
mod names;
mod policy;
mod redact;
mod redirect;
mod resolve;
mod response;
mod scan;
mod searches;
mod send;
mod sse;
mod stream;
mod url;

pub use addresses::is_allowed;
pub use client::{EgressOptions, Transport};
pub use credential::{Anonymous, Credential, CredentialSource, CredentialState};
pub use limits::{
    REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES_MAX, REQUEST_HEADERS_MAX, RESPONSE_BODY_BYTES_MAX,
    RESPONSE_HEADER_BYTES_MAX, RESPONSE_HEADERS_MAX, URL_BYTES_MAX,
};
pub use policy::{Network, Scope};
pub use redact::{PieceRedactor, REDACTED, Redactor, RedactorCell, SECRET_BYTES_MIN};
pub use resolve::{LookupError, Resolve, SystemResolver};
pub use searches::{INLINE_SEARCH_BYTES_MAX, SearchBudget, SearchError, Watch, search};
pub use send::{BeforeSending, Egress, Step, StepObserver};
pub use sse::{EVENT_BYTES_MAX, Event, EventReader};
pub use stream::{StreamedBody, StreamedResponse, UnredactedBody};
