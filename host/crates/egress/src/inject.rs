//! Step 5, first half: adds the credential to the request by the inject rules that were stored with the credential.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use monstrum_manifest::{BasicPair, BodyRule, HeaderRule, InjectRule, PathRule, QueryRule};
use monstrum_types::{Failure, FailureCode, Secret};
use percent_encoding::{percent_decode, utf8_percent_encode};
use serde_json::{Map, Value};
use url::Url;

use crate::credential::Credential;
use crate::url::{RESERVED, push_query};

/// A request that has passed the checks.
#[derive(Clone)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Vec<u8>>,
}

/// Adds `credential` to `outgoing`.
pub(crate) fn inject(mut outgoing: Outgoing, credential: &Credential) -> Result<Outgoing, Failure> {
    for rule in &credential.inject {
        match rule {
            InjectRule::Header(rule) => add_header(&mut outgoing, credential, rule)?,
            InjectRule::Query(rule) => add_query(&mut outgoing, credential, rule)?,
            InjectRule::Basic(rule) => add_basic(&mut outgoing, credential, &rule.basic)?,
            InjectRule::Body(rule) => add_body(&mut outgoing, credential, rule)?,
            InjectRule::Path(rule) => add_path(&mut outgoing, credential, rule)?,
        }
    }
    Ok(outgoing)
}

fn add_header(outgoing: &mut Outgoing, credential: &Credential, rule: &HeaderRule) -> Result<(), Failure> {
    let name = HeaderName::from_bytes(rule.header.as_bytes()).map_err(|_| unusable())?;
    set_secret_header(&mut outgoing.headers, name, &filled(credential, &rule.value)?)
}

fn add_basic(outgoing: &mut Outgoing, credential: &Credential, pair: &BasicPair) -> Result<(), Failure> {
    // The first colon ends the user name (RFC 7617), so the user name must not contain a colon.
    if filled(credential, &pair.username)?.expose().contains(':') {
        return Err(unusable());
    }
    let pair = credential.basic(&pair.username, &pair.password).ok_or_else(unusable)?;
    let value = Secret::new(format!("Basic {}", STANDARD.encode(pair.expose())));
    set_secret_header(&mut outgoing.headers, AUTHORIZATION, &value)
}

/// Adds a header. Step 1 has rejected plugin headers that the manifest's rules set. The stored rules may differ, so the
/// name is checked again.
fn set_secret_header(headers: &mut HeaderMap, name: HeaderName, value: &Secret) -> Result<(), Failure> {
    let mut value = HeaderValue::from_bytes(value.expose().as_bytes()).map_err(|_| unusable())?;
    value.set_sensitive(true);
    match headers.entry(name) {
        http::header::Entry::Occupied(entry) => Err(taken(&format!("the header `{}`", entry.key()))),
        http::header::Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
    }
}

fn add_query(outgoing: &mut Outgoing, credential: &Credential, rule: &QueryRule) -> Result<(), Failure> {
    if outgoing.url.query_pairs().any(|(name, _)| name == rule.query.as_str()) {
        return Err(taken(&format!("the query parameter `{}`", rule.query)));
    }
    let mut url = String::from(outgoing.url.as_str());
    push_query(&mut url, &rule.query, filled(credential, &rule.value)?.expose());
    outgoing.url = Url::parse(&url).map_err(|_| unusable())?;
    Ok(())
}

/// Adds a field to the JSON body. The body is parsed and serialized again, so integers that do not fit into 64 bits
/// become floats.
fn add_body(outgoing: &mut Outgoing, credential: &Credential, rule: &BodyRule) -> Result<(), Failure> {
    let value = filled(credential, &rule.value)?;
    let body = outgoing.body.as_deref().filter(|body| !body.is_empty());
    let mut body: Value = match body {
        Some(body) => serde_json::from_slice(body)
            .map_err(|_| invalid("the body must be JSON, because the credential is added to it"))?,
        None => Value::Object(Map::new()),
    };
    let mut steps = rule.body.strip_prefix('/').ok_or_else(unusable)?.split('/').map(unescape_pointer).peekable();
    let mut place = &mut body;
    while let Some(step) = steps.next() {
        let is_leaf = steps.peek().is_none();
        place = match place {
            Value::Object(members) if is_leaf => {
                if members.contains_key(&step) {
                    return Err(taken(&format!("`{}` in the body", rule.body)));
                }
                members.insert(step, Value::String(value.expose().to_owned()));
                break;
            }
            Value::Object(members) => members.entry(step).or_insert_with(|| Value::Object(Map::new())),
            // Missing list items are not created.
            Value::Array(items) if !is_leaf => index(&step).and_then(|at| items.get_mut(at)).ok_or_else(no_place)?,
            _ => return Err(no_place()),
        };
    }
    outgoing.body = Some(body.to_string().into_bytes());
    outgoing.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    Ok(())
}

fn no_place() -> Failure {
    invalid("the body has no object at the place where the credential must be added")
}

/// Parses the index of a list item (RFC 6901), which has no sign and no leading zeros.
fn index(step: &str) -> Option<usize> {
    let is_index = step == "0" || (step.bytes().all(|byte| byte.is_ascii_digit()) && !step.starts_with('0'));
    step.parse().ok().filter(|_| is_index)
}

/// Decodes a step of a JSON pointer (RFC 6901).
fn unescape_pointer(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

fn add_path(outgoing: &mut Outgoing, credential: &Credential, rule: &PathRule) -> Result<(), Failure> {
    let value = filled(credential, &rule.value)?;
    let path = outgoing.url.path();
    let places: Vec<Range<usize>> = placeholders_in(path.as_bytes(), rule.path.as_bytes()).collect();
    let [place] = places.as_slice() else {
        return Err(invalid(&format!("the URL's path must contain `{}` exactly once", rule.path)));
    };
    let value = utf8_percent_encode(value.expose(), RESERVED);
    let filled = format!("{}{value}{}", &path[..place.start], &path[place.end..]);
    outgoing.url.set_path(&filled);
    // This check fails if the parser changed the path, for example because the value is `..`.
    if outgoing.url.path() == filled { Ok(()) } else { Err(unusable()) }
}

/// Returns the positions of `wanted` in `path`. The characters of `wanted` may be percent-encoded in `path`, because
/// the URL parser encodes braces. All other characters of the path remain unchanged.
fn placeholders_in(path: &[u8], wanted: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let place_at = move |start: usize| {
        let mut at = start;
        for byte in wanted {
            let rest = &path[at..];
            at += match rest {
                [plain, ..] if plain == byte && *plain != b'%' => 1,
                [b'%', _, _, ..] if percent_decode(&rest[..3]).eq([*byte]) => 3,
                _ => return None,
            };
        }
        Some(start..at)
    };
    (0..path.len()).filter_map(place_at)
}

fn filled(credential: &Credential, template: &str) -> Result<Secret, Failure> {
    credential.fill(template).ok_or_else(unusable)
}

/// Returns the failure of a credential that cannot be injected. The message has no details, because details could
/// reveal the secret.
fn unusable() -> Failure {
    Failure::unsent(FailureCode::Unauthenticated, "the stored credential does not match its inject rules")
}

fn taken(place: &str) -> Failure {
    Failure::unsent(FailureCode::Denied, format!("only the host may set {place}"))
}

fn invalid(message: &str) -> Failure {
    Failure::unsent(FailureCode::Invalid, message)
}

#[cfg(test)]
mod tests;
