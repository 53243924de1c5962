//! Step 5, first half: the credential is added to the request, by the rules that were sealed with it.

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

/// `outgoing` with `credential` in it.
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
    // RFC 7617: the first colon ends the user name, so one within it would shift the password.
    if filled(credential, &pair.username)?.expose().contains(':') {
        return Err(unusable());
    }
    let pair = credential.basic(&pair.username, &pair.password).ok_or_else(unusable)?;
    let value = Secret::new(format!("Basic {}", STANDARD.encode(pair.expose())));
    set_secret_header(&mut outgoing.headers, AUTHORIZATION, &value)
}

/// The plugin's own headers never have this name: that was refused in step 1, and is again, should the rules of the
/// credential differ from those of the manifest.
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

/// The body is written anew from its JSON: numbers beyond 64 bits become floating point.
fn add_body(outgoing: &mut Outgoing, credential: &Credential, rule: &BodyRule) -> Result<(), Failure> {
    let value = filled(credential, &rule.value)?;
    let body = outgoing.body.as_deref().filter(|body| !body.is_empty());
    let mut body: Value = match body {
        Some(body) => serde_json::from_slice(body).map_err(|_| invalid("the body must be JSON for the credential"))?,
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
            // What a list lacks is no leaf that could be filled in.
            Value::Array(items) if !is_leaf => index(&step).and_then(|at| items.get_mut(at)).ok_or_else(no_place)?,
            _ => return Err(no_place()),
        };
    }
    outgoing.body = Some(body.to_string().into_bytes());
    outgoing.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    Ok(())
}

fn no_place() -> Failure {
    invalid("the body has no place for the credential")
}

/// The index of an item as RFC 6901 writes it: without a sign and without leading zeros.
fn index(step: &str) -> Option<usize> {
    let is_index = step == "0" || (step.bytes().all(|byte| byte.is_ascii_digit()) && !step.starts_with('0'));
    step.parse().ok().filter(|_| is_index)
}

/// RFC 6901.
fn unescape_pointer(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

fn add_path(outgoing: &mut Outgoing, credential: &Credential, rule: &PathRule) -> Result<(), Failure> {
    let value = filled(credential, &rule.value)?;
    let path = outgoing.url.path();
    let places: Vec<Range<usize>> = placeholders_in(path.as_bytes(), rule.path.as_bytes()).collect();
    let [place] = places.as_slice() else {
        return Err(invalid(&format!("the URL's path must hold `{}` exactly once", rule.path)));
    };
    let value = utf8_percent_encode(value.expose(), RESERVED);
    let filled = format!("{}{value}{}", &path[..place.start], &path[place.end..]);
    outgoing.url.set_path(&filled);
    // A value that a parser would take for a step through the path must not become one.
    if outgoing.url.path() == filled { Ok(()) } else { Err(unusable()) }
}

/// Where `wanted` lies in `path`, each of its characters plain or percent-encoded: its braces are encoded on the way. The
/// rest of the path is not touched, because it goes as it was written.
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

/// What is wrong is not told in more detail: the details are secret.
fn unusable() -> Failure {
    Failure::unsent(FailureCode::Unauthenticated, "the stored credential does not fit the way in which it is sent")
}

fn taken(place: &str) -> Failure {
    Failure::unsent(FailureCode::Denied, format!("{place} is the host's to write"))
}

fn invalid(message: &str) -> Failure {
    Failure::unsent(FailureCode::Invalid, message)
}

#[cfg(test)]
mod tests;
