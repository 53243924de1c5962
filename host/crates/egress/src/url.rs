//! Step 1, first half: the URL of a request.
//!
//! URL parsers repair their input: they drop tabs, convert backslashes, resolve `..` and rewrite unusual spellings of
//! addresses. A repaired URL could differ from the checked one. Therefore this module checks the text before parsing
//! and rejects it if parsing changes anything other than escapes.

use std::net::{Ipv4Addr, Ipv6Addr};

use monstrum_types::{Failure, FailureCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::{Host, Position, Url};

use crate::limits::URL_BYTES_MAX;

/// All characters except the unreserved characters of RFC 3986.
pub(crate) const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const ONLY_HTTP: &str = "the URL must start with http:// or https://";

/// Builds a URL from `text` and `query`. An absolute URL is used unchanged; a path is appended to `api_base` as text.
pub(crate) fn build(api_base: Option<&Url>, text: &str, query: &[(String, String)]) -> Result<Url, Failure> {
    let length = query.iter().fold(text.len(), |sum, (name, value)| sum + name.len() + value.len() + 2);
    if length > URL_BYTES_MAX {
        return Err(too_long());
    }
    let mut full = if is_absolute(text) { text.to_owned() } else { append(api_base, text)? };
    for (name, value) in query {
        push_query(&mut full, name, value);
    }
    checked(&full)
}

/// Resolves the `location` of a redirect against `from`. A fragment is dropped, because it is never sent.
pub(crate) fn follow(from: &Url, location: &str) -> Result<Url, Failure> {
    let location = location.split_once('#').map_or(location, |(location, _)| location);
    check_characters(location)?;
    if is_absolute(location) {
        return checked(location);
    }
    let url = from.join(location).map_err(|_| invalid("the redirect URL is malformed"))?;
    checked(url.as_str())
}

/// Appends one query parameter to a URL in text form.
pub(crate) fn push_query(url: &mut String, name: &str, value: &str) {
    match url.find('?') {
        None => url.push('?'),
        Some(_) if url.ends_with(['?', '&']) => {}
        Some(_) => url.push('&'),
    }
    url.extend(utf8_percent_encode(name, RESERVED));
    url.push('=');
    url.extend(utf8_percent_encode(value, RESERVED));
}

fn is_absolute(text: &str) -> bool {
    let starts = |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    starts("http://") || starts("https://")
}

/// Appends a path to the base. The path must be empty or start with `/` or `?`, so that it cannot extend the host name.
fn append(api_base: Option<&Url>, path: &str) -> Result<String, Failure> {
    if !(path.is_empty() || path.starts_with(['/', '?'])) {
        return Err(invalid(match path.find([':', '/', '?']) {
            Some(at) if path[at..].starts_with(':') => ONLY_HTTP,
            _ => "a path must start with `/`",
        }));
    }
    let base = api_base.ok_or_else(|| invalid("this resource has no api_base, so the URL must be absolute"))?;
    if base.query().is_some() || base.fragment().is_some() {
        return Err(invalid("the resource's api_base must not have a query or a fragment"));
    }
    let base = base.as_str();
    Ok(format!("{}{path}", base.strip_suffix('/').unwrap_or(base)))
}

fn checked(text: &str) -> Result<Url, Failure> {
    check_characters(text)?;
    if !is_absolute(text) {
        return Err(invalid(ONLY_HTTP));
    }
    let (_, rest) = text.split_once("://").ok_or_else(malformed)?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(invalid("the URL must not contain a user name or password"));
    }
    if authority.is_empty() || !authority.is_ascii() || authority.contains('%') {
        return Err(invalid("the host in the URL must be plain ASCII"));
    }
    check_segments(path)?;
    let url = Url::parse(text).map_err(|_| malformed())?;
    if !is_same(&url, authority, path) {
        return Err(invalid("the URL is not in its canonical form"));
    }
    if url.as_str().len() > URL_BYTES_MAX {
        return Err(too_long());
    }
    Ok(url)
}

/// Rejects control characters, raw or encoded, and characters that a parser would convert.
fn check_characters(text: &str) -> Result<(), Failure> {
    if text.contains('#') {
        return Err(invalid("the URL must not contain a fragment"));
    }
    if text.contains('\\') {
        return Err(invalid("the URL must not contain backslashes"));
    }
    if text.chars().any(char::is_whitespace) {
        return Err(invalid("the URL must not contain spaces or control characters"));
    }
    let decoded: Vec<u8> = percent_decode_str(text).collect();
    if decoded.iter().any(u8::is_ascii_control) || String::from_utf8_lossy(&decoded).chars().any(char::is_control) {
        return Err(invalid("the URL must not contain control characters, raw or encoded"));
    }
    Ok(())
}

/// Rejects segments that a server could resolve: segments that are `.` or `..` after one decoding. Decoding may reveal
/// separators, and some servers truncate a segment at `;`.
fn check_segments(path: &str) -> Result<(), Failure> {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let decoded: Vec<u8> = percent_decode_str(path).collect();
    let mut segments = decoded.split(|byte| matches!(byte, b'/' | b'\\'));
    let is_step = |segment: &[u8]| {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or(segment);
        name == b"." || name == b".."
    };
    if segments.any(is_step) { Err(invalid("the URL must not contain `.` or `..` as a path segment")) } else { Ok(()) }
}

/// Returns whether the parser left the host unchanged, and changed only escapes in the remainder of the URL.
fn is_same(url: &Url, authority: &str, path: &str) -> bool {
    let host = match url.host() {
        Some(Host::Domain(name)) => host_text(authority).eq_ignore_ascii_case(name),
        Some(Host::Ipv4(address)) => host_text(authority).parse::<Ipv4Addr>() == Ok(address),
        Some(Host::Ipv6(address)) => {
            let text = authority.strip_prefix('[').and_then(|text| text.split_once(']'));
            text.is_some_and(|(text, _)| text.parse::<Ipv6Addr>() == Ok(address))
        }
        None => false,
    };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let written = percent_decode_str(slash).chain(percent_decode_str(path));
    host && url.username().is_empty()
        && url.password().is_none()
        && written.eq(percent_decode_str(&url[Position::BeforePath..]))
}

fn host_text(authority: &str) -> &str {
    authority.split_once(':').map_or(authority, |(host, _)| host)
}

fn malformed() -> Failure {
    invalid("the URL is malformed")
}

fn too_long() -> Failure {
    invalid(&format!("the URL is longer than {} KiB", URL_BYTES_MAX / 1024))
}

fn invalid(message: &str) -> Failure {
    Failure::unsent(FailureCode::Invalid, message)
}

#[cfg(test)]
mod tests;
