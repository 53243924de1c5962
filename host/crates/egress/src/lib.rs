//! The one way out: everything that a plugin, a bot or a tenant can influence leaves through [`Egress::send`].
//!
//! Sending is eight steps in one function (`send`), each step a file: the URL and the headers are built (`url`,
//! `headers`), checked against the origins that the resource may reach (`policy`), searched for secrets (`scan`), the
//! name is resolved once and every address checked (`addresses`), the credential is added and the request sent
//! (`inject`, `client`), redirects are followed where the manifest asks for it (`redirect`), a refused token is
//! refreshed once, and the response is bounded, stripped and redacted (`response`, `redact`).
//!
//! Nothing here knows a database: secrets come from a [`CredentialSource`], and what happened goes back as data.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod client;
mod credential;
mod headers;
mod inject;
mod limits;
mod policy;
mod redact;
mod redirect;
mod resolve;
mod response;
mod scan;
mod searches;
mod send;
mod url;

pub use addresses::is_allowed;
pub use client::{EgressOptions, Transport};
pub use credential::{Anonymous, Credential, CredentialSource, CredentialState};
pub use limits::{
    REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES_MAX, REQUEST_HEADERS_MAX, RESPONSE_BODY_BYTES_MAX,
    RESPONSE_HEADER_BYTES_MAX, RESPONSE_HEADERS_MAX, URL_BYTES_MAX,
};
pub use policy::{Network, Scope};
pub use redact::{REDACTED, Redactor, RedactorCell, SECRET_BYTES_MIN};
pub use resolve::{LookupError, Resolve, SystemResolver};
pub use searches::{INLINE_SEARCH_BYTES_MAX, SearchBudget, Stopped, Watch, search};
pub use send::{BeforeSending, Egress, Step, StepObserver};
