//! The caller's language, from the Accept-Language header.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use http::header;

use crate::gateway::http::state::HttpState;
use monstrum_core::language::Language;

/// The language that the caller prefers.
pub(crate) struct InLanguage(pub Language);

impl FromRequestParts<HttpState> for InLanguage {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &HttpState) -> Result<Self, Infallible> {
        let lines = parts.headers.get_all(header::ACCEPT_LANGUAGE).iter();
        // Header lines that are not text are ignored.
        let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
        Ok(InLanguage(Language::new(lines.join(","))))
    }
}
